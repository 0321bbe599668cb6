"""The data plane of one node: both its sides share one way to each peer.

What a turn of the event loop has for a peer leaves as few payloads at the end of that turn. When
the way is full, the rest waits here in order, and those who produce much ask `is_full` and wait;
the little that others have to say (credit, cancels) is never refused. When a way breaks, whatever
waits for it is dropped and both sides are told: nothing that was said before still holds.
"""

import asyncio
import itertools
import logging
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar, final

from protocol.data_wire import (
    MAX_MESSAGES,
    DataMessage,
    Frames,
    PulseAnswer,
    Taken,
    ToApi,
    ToWorker,
    pack_payload,
    unpack_message,
    unpack_payload,
)
from protocol.errors import ProtocolError
from protocol.ids import NodeId
from skulkd.cluster.transport import LinkState, Transport
from skulkd.runtime.tasks import Tasks

_log = logging.getLogger(__name__)

PULSE_S: Final = 1.0
"""While streams are open between two nodes, the API node asks the worker this often for them."""
MISSED_PULSES: Final = 5
"""After so many in a row a side gives up the other. Counted, not timed: a node whose own loop has
stood still must not take its own silence for the other's."""
PAYLOAD_BYTES: Final = 320 << 10
"""Messages are put together up to this size."""
MAX_WAITING_BYTES: Final = 64 << 20
"""For one peer. Streams stop for want of credit long before; beyond it are the answers to a peer
that asks and asks and takes nothing."""

_TO_API: Final = (Frames, Taken, PulseAnswer)
"""A tuple: a union is made anew wherever it is written, and this is asked of every frame."""

_Received_contra = TypeVar("_Received_contra", bound=DataMessage, contravariant=True)


class DataSide(Protocol[_Received_contra]):
    """The API side or the worker side of a node's data plane."""

    def on_message(self, peer: NodeId, message: _Received_contra, n_bytes: int) -> None:
        """Take a message, whose packed size is `n_bytes`; must not block or raise."""
        ...

    def on_broken(self, peer: NodeId, reason: str) -> None:
        """Give up what is open with a peer: messages have been lost. May be called at any time."""
        ...

    def open_peers(self) -> set[NodeId]:
        """Name the peers with which anything is open."""
        ...


@dataclass(slots=True, eq=False)
class _Way:
    """What waits for one peer."""

    messages: list[bytes] = field(default_factory=list[bytes])
    n_bytes: int = 0
    full: asyncio.Event | None = None
    """Set once the way takes more; None while it does."""


@final
class DataLinks:
    """The ways to all peers.

    Args:
        transport: Its data plane belongs to this object from now on.
        tasks: Owner of those that wait for room.
    """

    def __init__(self, transport: Transport, tasks: Tasks) -> None:
        self._transport = transport
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._ways: dict[NodeId, _Way] = {}
        """To those for whom something has waited since their way last broke."""
        self._unsent: dict[NodeId, _Way] = {}
        """For whom something was posted in this turn."""
        self._flush_handle: asyncio.Handle | None = None
        self._api: DataSide[ToApi] | None = None
        self._worker: DataSide[ToWorker] | None = None
        self._is_closed = False
        self.n_refused: int = 0
        """Payloads that did not decode."""
        transport.on_receive("data", self._on_payload)
        transport.on_link(self._on_link)

    @property
    def node_id(self) -> NodeId:
        """This node."""
        return self._transport.node_id

    def serve_api(self, side: DataSide[ToApi]) -> None:
        """Name who gets what workers send."""
        self._api = side

    def serve_worker(self, side: DataSide[ToWorker]) -> None:
        """Name who gets what API nodes send."""
        self._worker = side

    def is_up(self, peer: NodeId) -> bool:
        """Say whether anything can be sent to a peer now."""
        return self._transport.link(peer) == "up"

    def is_full(self, peer: NodeId) -> bool:
        """Say whether the way to a peer takes no more for now."""
        way = self._ways.get(peer)
        return way is not None and way.full is not None

    async def wait_room(self, peer: NodeId) -> None:
        """Wait until the way to a peer takes more, or has broken."""
        way = self._ways.get(peer)
        if way is not None and way.full is not None:
            await way.full.wait()

    def post(self, peer: NodeId, packed: bytes) -> None:
        """Send a packed message at the end of this turn of the loop.

        It is lost without a word when the way to the peer breaks, of which the sides are told.
        """
        if self._is_closed:
            return
        way = self._ways.get(peer)
        if way is None:
            way = self._ways[peer] = _Way()
        way.messages.append(packed)
        n_bytes = way.n_bytes
        way.n_bytes += len(packed)
        self._unsent[peer] = way
        if self._flush_handle is None:
            self._flush_handle = self._loop.call_soon(self.flush)
        if n_bytes <= MAX_WAITING_BYTES < way.n_bytes:
            # Not at once: who posts may be in the middle of something that a break changes.
            self._loop.call_soon(self._give_up, peer)

    def flush(self) -> None:
        """Send what waits, now."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        while self._unsent:
            peer, way = self._unsent.popitem()
            if way.full is None:
                self._flush(peer, way)

    def close(self) -> None:
        """Send nothing more, and give up what is open with every peer; idempotent."""
        self._is_closed = True
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        peers = set(self._ways)
        for side in (self._api, self._worker):
            if side is not None:
                peers |= side.open_peers()
        for peer in peers:
            self._break(peer, "this node is stopping")

    def _give_up(self, peer: NodeId) -> None:
        way = self._ways.get(peer)
        if way is not None and way.n_bytes > MAX_WAITING_BYTES:
            self._break(peer, "it takes nothing of what it asks for")

    def _flush(self, peer: NodeId, way: _Way) -> None:
        """Send what waits for one peer, until its way is full."""
        messages = way.messages
        n_sent = 0
        while n_sent < len(messages):
            n_next, n_bytes = _next_payload(messages, n_sent, way.n_bytes)
            payload = pack_payload(tuple(messages[n_sent : n_sent + n_next]))
            refusal = self._transport.send(peer, "data", payload)
            if refusal is not None and refusal != "queue_full":
                self._break(peer, f"this node cannot send to it ({refusal})")
                return
            if refusal is not None:
                way.full = asyncio.Event()
                self._tasks.start(self._drain(peer, way), name=f"data to {peer}", essential=False)
                break
            n_sent += n_next
            way.n_bytes -= n_bytes
        del messages[:n_sent]

    async def _drain(self, peer: NodeId, way: _Way) -> None:
        try:
            await self._transport.wait_room(peer, "data")
        finally:
            full, way.full = way.full, None
            if full is not None:
                full.set()
        if self._ways.get(peer) is way:
            self._flush(peer, way)

    def _on_payload(self, peer: NodeId, payload: bytes) -> None:
        if self._is_closed:
            return
        try:
            messages = [(unpack_message(item), len(item)) for item in unpack_payload(payload)]
        except ProtocolError as error:
            self.n_refused += 1
            _log.warning("from %s: %s", peer, error.message, extra={"code": error.code})
            self._break(peer, "it sent what this node cannot read")
            return
        api, worker = self._api, self._worker
        for message, n_bytes in messages:
            if isinstance(message, _TO_API):
                if api is not None:
                    api.on_message(peer, message, n_bytes)
            elif worker is not None:
                worker.on_message(peer, message, n_bytes)

    def _on_link(self, peer: NodeId, state: LinkState) -> None:
        if state != "up":
            self._break(peer, f"the link to it is {state}")

    def _break(self, peer: NodeId, reason: str) -> None:
        self._unsent.pop(peer, None)
        way = self._ways.pop(peer, None)
        if way is not None and way.full is not None:
            full, way.full = way.full, None
            full.set()
        if self._api is not None:
            self._api.on_broken(peer, reason)
        if self._worker is not None:
            self._worker.on_broken(peer, reason)


def _next_payload(messages: list[bytes], start: int, waiting_bytes: int) -> tuple[int, int]:
    """Say how many of the messages from `start` on fit into one payload, and their size."""
    n_left = len(messages) - start
    if waiting_bytes <= PAYLOAD_BYTES and n_left <= MAX_MESSAGES:
        return n_left, waiting_bytes
    n_messages = n_bytes = 0
    for packed in itertools.islice(messages, start, start + MAX_MESSAGES):
        if n_messages and n_bytes + len(packed) > PAYLOAD_BYTES:
            break
        n_messages += 1
        n_bytes += len(packed)
    return n_messages, n_bytes
