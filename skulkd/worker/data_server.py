"""The worker's side of the data plane: serves tasks that API nodes of the cluster send.

A stream runs in one task from its request to its terminal, which most chunks do not wake: they are
packed where they arrive. It stops for want of credit, never for another stream; it ends when its
API node cancels it, is gone, or no longer names it.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Final, Protocol, assert_never, final

from protocol.data_frames import Chunk, Frame, Started, TakeChunk
from protocol.data_wire import (
    MAX_STREAMS,
    MAX_TASK_BYTES,
    UNKNOWN_STREAM,
    Cancel,
    Credit,
    Piece,
    Pulse,
    PulseAnswer,
    Request,
    Taken,
    ToWorker,
    pack_message,
    unpack_task,
)
from protocol.errors import (
    ClusterError,
    EngineError,
    ErrorBody,
    ProtocolError,
    RequestError,
    SkulkError,
)
from protocol.frame_wire import pack_chunk, pack_frame, pack_short
from protocol.ids import CommandId, InstanceId, NodeId
from protocol.tasks import ChatTask, Task, VectorTask
from skulkd.cluster.data_link import MISSED_PULSES, PULSE_S, DataLinks
from skulkd.runtime.logs import command_id as log_command_id
from skulkd.runtime.tasks import Tasks, run_blocking, timeout
from skulkd.worker.frame_sender import FrameQueue, FrameSender

_log = logging.getLogger(__name__)

MAX_UPLOADING: Final = 64
"""Tasks that arrive in pieces at a time."""
MAX_HELD_BYTES: Final = 512 << 20
"""Of all tasks of other nodes that are queued or run here."""
NO_CREDIT_S: Final = 10.0
"""A client that takes nothing for so long gives its slot up."""
UPLOAD_STALL_S: Final = 10.0
_OFF_LOOP_BYTES: Final = 64 << 10
"""From here on a thread checks and decodes a task."""
_KEPT_ENDED: Final = 4096


class Served(Protocol):
    """What this node serves; the worker."""

    def chat(
        self, instance_id: InstanceId, task: ChatTask, take: TakeChunk | None = None
    ) -> AsyncGenerator[Frame]:
        """Serve one task; see `skulkd.api.ports.Inference`."""
        ...

    def vectors(self, instance_id: InstanceId, task: VectorTask) -> AsyncGenerator[Frame]:
        """Serve one task for vectors; see `skulkd.api.ports.Inference`."""
        ...

    def cancel(self, command_id: CommandId) -> bool:
        """End a task with `request.cancelled`, also one that arrives within the next 60 s."""
        ...


@dataclass(slots=True, eq=False)
class _Stream:
    """One task of another node."""

    peer: NodeId
    request: Request
    frames: FrameQueue
    runner: asyncio.Task[None] | None = None
    body: bytearray = field(default_factory=bytearray)
    arrived_bytes: int = 0
    """Of the task; the body itself is let go once it has been decoded."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """A piece has arrived, or credit."""

    @property
    def is_uploading(self) -> bool:
        """Whether pieces of the task are still to come."""
        return bool(self.request.digest) and self.arrived_bytes < self.request.size_bytes


@final
class DataServer:
    """Serves the other nodes of the cluster.

    Args:
        links: The ways to them.
        served: What serves the tasks.
        tasks: Owner of the streams.
    """

    def __init__(self, links: DataLinks, served: Served, tasks: Tasks) -> None:
        self._links = links
        self._served = served
        self._tasks = tasks
        self._streams: dict[tuple[NodeId, int], _Stream] = {}
        self._ended: OrderedDict[tuple[NodeId, int], None] = OrderedDict()
        """So that a request that arrives twice is served once."""
        self._sender = FrameSender(links)
        self._held_bytes = 0
        self._is_closing = False
        self._missed: dict[NodeId, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        links.serve_worker(self)

    @property
    def n_open(self) -> int:
        """Tasks of other nodes that have not ended."""
        return len(self._streams)

    @property
    def held_bytes(self) -> int:
        """The size of their tasks."""
        return self._held_bytes

    def cancel(self, command_id: CommandId) -> bool:
        """End a task, wherever it came from; False when there is none of that id here.

        One that is still on its way ends when it arrives.
        """
        # One that the worker has not taken up yet is found cancelled when it does.
        return self._served.cancel(command_id) or any(
            stream.request.command_id == command_id for stream in self._streams.values()
        )

    def close(self) -> None:
        """End every task with an error that says so, and refuse every later one; idempotent."""
        self._is_closing = True
        for stream in list(self._streams.values()):
            self._sender.end(stream.frames, _stopping().body())
            self._close(stream)
        self._sender.flush()

    # ---- What the links call ----

    def on_message(self, peer: NodeId, message: ToWorker, n_bytes: int) -> None:
        """Take a message of an API node."""
        del n_bytes
        self._missed[peer] = 0
        match message:
            case Request():
                self._open(peer, message)
            case Piece():
                self._add_piece(peer, message)
            case Cancel():
                self._stop(peer, message.stream)
            case Credit():
                self._renew(peer, message.stream, message.total_bytes)
            case Pulse():
                self._answer_pulse(peer, message)
            case _:
                assert_never(message)

    def on_broken(self, peer: NodeId, reason: str) -> None:
        """End every task of a node that has gone: nobody would read what they say."""
        lost = [stream for stream in self._streams.values() if stream.peer == peer]
        self._missed.pop(peer, None)
        if lost:
            _log.warning("%d tasks of %s end here, because %s", len(lost), peer, reason)
        for stream in lost:
            self._stop(peer, stream.request.stream)

    def open_peers(self) -> set[NodeId]:
        """Name the nodes whose tasks are here."""
        return {peer for peer, _ in self._streams}

    # ---- Opening ----

    def _open(self, peer: NodeId, request: Request) -> None:
        key = (peer, request.stream)
        if key in self._streams or key in self._ended:
            return
        stream = _Stream(peer, request, FrameQueue(peer, request.stream, request.credit_bytes))
        refusal = self._refusal(peer, request)
        self._streams[key] = stream
        if refusal is not None:
            self._sender.end(stream.frames, refusal.body())
            self._close(stream)
            return
        self._held_bytes += request.size_bytes
        stream.runner = self._tasks.start(
            self._run(stream), name=f"task {request.command_id}", essential=False
        )
        stream.runner.add_done_callback(lambda _: self._release(stream))
        self._watch()

    def _refusal(self, peer: NodeId, request: Request) -> SkulkError | None:
        if self._is_closing:
            return _stopping()
        if request.size_bytes > MAX_TASK_BYTES:
            return RequestError(
                "request.too_large",
                f"the task is {request.size_bytes} bytes, the limit is {MAX_TASK_BYTES}",
                remediation="Send less in one request.",
            )
        n_uploading = sum(1 for stream in self._streams.values() if stream.is_uploading)
        is_full = (
            self._held_bytes + request.size_bytes > MAX_HELD_BYTES
            or (request.digest and n_uploading >= MAX_UPLOADING)
            or sum(1 for key in self._streams if key[0] == peer) >= MAX_STREAMS
        )
        if is_full:
            return EngineError(
                "engine.busy",
                f"{len(self._streams)} tasks of other nodes with {self._held_bytes} bytes are here "
                f"already, of which {n_uploading} are still arriving",
                remediation="Try again in a moment, or place the model on a further node.",
                retry_after_s=1,
            )
        return None

    # ---- One stream ----

    async def _run(self, stream: _Stream) -> None:
        log_command_id.set(stream.request.command_id)
        try:
            task = await self._receive(stream)
            await self._serve(stream, task)
        except SkulkError as error:
            self._sender.end(stream.frames, error.body())
        except Exception:  # ruff: ignore[blind-except] - a bug ends its stream, and says so
            _log.exception("serving a task of %s failed", stream.peer)
            self._sender.end(stream.frames, _bug())

    async def _receive(self, stream: _Stream) -> Task:
        """Have the whole task here, and decode it."""
        request = stream.request
        body = request.body
        if request.digest:
            while stream.is_uploading:
                await self._wait(stream, UPLOAD_STALL_S, "its task has stopped arriving")
            body = bytes(stream.body)
            stream.body.clear()
        if len(body) < _OFF_LOOP_BYTES:
            return _decoded(request, body)
        return await run_blocking(_decoded, request, body)

    async def _serve(self, stream: _Stream, task: Task) -> None:
        queue, sender, links, peer = stream.frames, self._sender, self._links, stream.peer

        def take(chunk: Chunk) -> bool:
            if queue.is_closed or queue.is_spent or links.is_full(peer):
                return False
            packed = pack_short(chunk)
            if packed is None:
                return False  # the credit may end between two of its frames
            sender.put(queue, packed, is_urgent=False)
            return True

        instance_id = stream.request.instance_id
        frames = (
            self._served.chat(instance_id, task, take)
            if isinstance(task, ChatTask)
            else self._served.vectors(instance_id, task)
        )
        try:
            async for frame in frames:
                if type(frame) is Chunk:
                    for packed in pack_chunk(frame):
                        sender.put(queue, packed, is_urgent=False)
                        if queue.is_spent or links.is_full(peer):
                            await self._wait_room(stream)
                else:
                    sender.put(queue, pack_frame(frame), is_urgent=True)
                    if type(frame) is not Started:
                        # It is on its way while what served it is put away.
                        sender.flush()
                        return
        finally:
            await frames.aclose()
        message = "the stream of this task ended without saying how"
        raise EngineError("engine.gone", message)

    async def _wait_room(self, stream: _Stream) -> None:
        while stream.frames.is_spent:
            await self._wait(stream, NO_CREDIT_S, "its client has taken nothing")
        if self._links.is_full(stream.peer):
            try:
                async with timeout(NO_CREDIT_S):
                    await self._links.wait_room(stream.peer)
            except TimeoutError:
                raise _stalled("the network has taken nothing", NO_CREDIT_S) from None

    async def _wait(self, stream: _Stream, within_s: float, what: str) -> None:
        """Wait for a piece or for credit."""
        stream.news.clear()
        try:
            async with timeout(within_s):
                await stream.news.wait()
        except TimeoutError:
            raise _stalled(what, within_s) from None

    def _add_piece(self, peer: NodeId, piece: Piece) -> None:
        stream = self._streams.get((peer, piece.stream))
        if stream is None or piece.offset < stream.arrived_bytes:
            return  # over, or come twice
        n_bytes = stream.arrived_bytes + len(piece.data)
        is_next = piece.offset == stream.arrived_bytes and n_bytes <= stream.request.size_bytes
        if not is_next or not stream.request.digest:
            self._sender.end(stream.frames, _torn())
            self._close(stream)
            return
        stream.body += piece.data
        stream.arrived_bytes = n_bytes
        stream.news.set()
        self._links.post(peer, pack_message(Taken(piece.stream, n_bytes)))

    def _renew(self, peer: NodeId, number: int, total_bytes: int) -> None:
        stream = self._streams.get((peer, number))
        if stream is not None and total_bytes > stream.frames.credit_bytes:
            stream.frames.credit_bytes = total_bytes
            stream.news.set()

    # ---- Ends ----

    def _stop(self, peer: NodeId, number: int) -> None:
        """End a stream that nobody reads any more; nothing is said about it."""
        stream = self._streams.get((peer, number))
        if stream is None:
            return
        self._sender.drop(stream.frames)
        self._close(stream)

    def _close(self, stream: _Stream) -> None:
        key = (stream.peer, stream.request.stream)
        if self._streams.pop(key, None) is None:
            return
        self._ended[key] = None
        if len(self._ended) > _KEPT_ENDED:
            self._ended.popitem(last=False)
        if stream.runner is not None:
            stream.runner.cancel()

    def _release(self, stream: _Stream) -> None:
        """The stream's task has ended, its slot is free."""
        self._held_bytes -= stream.request.size_bytes
        self._close(stream)

    # ---- Pulses ----

    def _answer_pulse(self, peer: NodeId, pulse: Pulse) -> None:
        # What was put before the answer is sent before it, so that the counts agree on arrival.
        self._sender.flush()
        named = dict(pulse.streams)
        for number, total_bytes in pulse.streams:
            self._renew(peer, number, total_bytes)
        forgotten = [key[1] for key in self._streams if key[0] == peer and key[1] not in named]
        for number in forgotten:
            self._stop(peer, number)
        counts = tuple((number, self._n_messages(peer, number)) for number in named)
        self._links.post(peer, pack_message(PulseAnswer(counts)))

    def _n_messages(self, peer: NodeId, number: int) -> int:
        stream = self._streams.get((peer, number))
        return UNKNOWN_STREAM if stream is None else stream.frames.n_messages

    def _watch(self) -> None:
        """Look after silent API nodes for as long as there are any."""
        if self._timer is None and self._streams:
            self._timer = asyncio.get_running_loop().call_later(PULSE_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        for peer in self.open_peers():
            missed = self._missed[peer] = self._missed.get(peer, 0) + 1
            if missed > MISSED_PULSES:
                self.on_broken(peer, f"it has not asked for them for {MISSED_PULSES} s")
        self._watch()


def _decoded(request: Request, body: bytes) -> Task:
    if request.digest and hashlib.sha256(body).digest() != request.digest:
        raise ProtocolError(
            "protocol.bad_frame",
            f"the task of {len(body)} bytes has arrived changed",
            remediation="Send it again; if it happens twice, look at the memory of both nodes.",
        )
    task = unpack_task(body)
    if task.command_id != request.command_id:
        raise ProtocolError(
            "protocol.bad_frame", f"the task of {request.command_id} is that of {task.command_id}"
        )
    return task


def _stalled(what: str, within_s: float) -> RequestError:
    return RequestError(
        "request.timeout",
        f"{what} for {within_s:.0f} s, so the task was ended",
        remediation="Send the request again, and read its answer as it comes.",
    )


def _stopping() -> ClusterError:
    return ClusterError(
        "cluster.stopping",
        "the node that serves this model is stopping",
        remediation="Try again in a moment.",
        retry_after_s=5,
    )


def _torn() -> ErrorBody:
    return ErrorBody(
        code="engine.gone",
        message="a piece of the task was lost on its way to the node that serves it",
        remediation="Send the request again.",
        retry_after_s=1,
    )


def _bug() -> ErrorBody:
    return ErrorBody(
        code="internal.bug",
        message="the node that serves the model failed to handle this request; its log has the "
        "story",
        remediation="Report it with the lines of `skulk logs` that carry this command id.",
    )
