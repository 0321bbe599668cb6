"""Frames on their way to the API nodes: put together over a moment, numbered, within their credit.

The first frames of a stream and its last leave at the end of the turn of the event loop that
brought them, and take along what else waits. Others wait up to `PACE_S` for company.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final, final

from protocol.data_frames import Failed
from protocol.data_wire import MAX_FRAMES, frames_head, pack_frames
from protocol.errors import ErrorBody
from protocol.frame_wire import pack_frame
from protocol.ids import NodeId
from skulkd.cluster.data_link import DataLinks

PACE_S: Final = 0.002
"""Between two payloads of frames that nobody waits for most. A payload costs some 60 µs of
processor time on both sides together, a frame in it 10 µs: without this, 32 streams of 50 tokens a
second would cost half as much again."""
URGENT_MESSAGES: Final = 2
"""`Started`, and the first token: the client waits for them more than for those behind."""
_MESSAGE_BYTES: Final = 128 << 10


@dataclass(slots=True, eq=False)
class FrameQueue:
    """The frames of one stream, until the API node has them."""

    peer: NodeId
    stream: int
    credit_bytes: int
    """What may be sent in all."""
    head: bytes = b""
    """What its messages begin with."""
    waiting: list[bytes] = field(default_factory=list[bytes])
    waiting_bytes: int = 0
    n_messages: int = 0
    """Sent so far."""
    n_sent_bytes: int = 0
    is_closed: bool = False
    """Its terminal has been put, or nobody reads it any more."""

    def __post_init__(self) -> None:
        self.head = frames_head(self.stream)

    @property
    def is_spent(self) -> bool:
        """Whether the API node has asked for no more yet."""
        return self.n_sent_bytes + self.waiting_bytes >= self.credit_bytes


@final
class FrameSender:
    """Sends the frames of all streams.

    Args:
        links: The ways to their API nodes.
    """

    def __init__(self, links: DataLinks) -> None:
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._unsent: dict[FrameQueue, None] = {}
        self._handle: asyncio.Handle | None = None
        self._is_next = False
        """Whether it will run in this turn of the loop."""
        self._flushed_s = float("-inf")

    def put(self, queue: FrameQueue, packed: bytes, *, is_urgent: bool) -> None:
        """Send a packed frame at the end of this turn of the loop, or within `PACE_S`."""
        queue.waiting.append(packed)
        queue.waiting_bytes += len(packed)
        self._unsent[queue] = None
        if is_urgent or queue.n_messages < URGENT_MESSAGES:
            if not self._is_next:
                self._schedule(0.0)
        elif self._handle is None:
            self._schedule(self._flushed_s + PACE_S - self._loop.time())

    def end(self, queue: FrameQueue, error: ErrorBody) -> None:
        """End a stream with an error."""
        self.put(queue, pack_frame(Failed(error)), is_urgent=True)
        queue.is_closed = True

    def drop(self, queue: FrameQueue) -> None:
        """Forget what waits of a stream."""
        queue.waiting, queue.waiting_bytes = [], 0
        queue.is_closed = True
        self._unsent.pop(queue, None)

    def flush(self) -> None:
        """Send what waits, now."""
        if self._handle is not None:
            self._handle.cancel()
            self._flush()

    def _schedule(self, pause_s: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._is_next = pause_s <= 0
        if self._is_next:
            self._handle = self._loop.call_soon(self._flush)
        else:
            self._handle = self._loop.call_later(pause_s, self._flush)

    def _flush(self) -> None:
        self._handle = None
        self._is_next = False
        self._flushed_s = self._loop.time()
        unsent, self._unsent = self._unsent, {}
        for queue in unsent:
            self._send(queue)
        self._links.flush()

    def _send(self, queue: FrameQueue) -> None:
        waiting, n_bytes = queue.waiting, queue.waiting_bytes
        queue.waiting, queue.waiting_bytes = [], 0
        if n_bytes <= _MESSAGE_BYTES and len(waiting) <= MAX_FRAMES:
            self._post(queue, waiting)
            return
        start = n_bytes = 0
        for index, packed in enumerate(waiting):
            if index > start and (
                n_bytes + len(packed) > _MESSAGE_BYTES or index - start == MAX_FRAMES
            ):
                self._post(queue, waiting[start:index])
                start, n_bytes = index, 0
            n_bytes += len(packed)
        self._post(queue, waiting[start:])

    def _post(self, queue: FrameQueue, packed: list[bytes]) -> None:
        message = pack_frames(queue.head, queue.n_messages, packed)
        queue.n_messages += 1
        queue.n_sent_bytes += len(message)
        self._links.post(queue.peer, message)
