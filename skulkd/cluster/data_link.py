"""The data plane of one node: both its sides share one way to each peer.

What a turn of the event loop has for a peer leaves as few payloads at the end of that turn. When
the way is full, the rest waits here in order, and those who produce much ask `is_full` and wait;
the little that others have to say (credit, cancels) is never refused. When a way breaks, whatever
waits for it is dropped and both sides are told: nothing that was said before still holds.
"""

import asyncio
import logging
from collections import Counter, deque
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
        self._waiting: dict[NodeId, deque[bytes]] = {}
        self._waiting_bytes: Counter[NodeId] = Counter()
        self._full: dict[NodeId, asyncio.Event] = {}
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
        return peer in self._full

    async def wait_room(self, peer: NodeId) -> None:
        """Wait until the way to a peer takes more, or has broken."""
        full = self._full.get(peer)
        if full is not None:
            await full.wait()

    def post(self, peer: NodeId, packed: bytes) -> None:
        """Send a packed message at the end of this turn of the loop.

        It is lost without a word when the way to the peer breaks, of which the sides are told.
        """
        if self._is_closed:
            return
        waiting = self._waiting.get(peer)
        if waiting is None:
            waiting = self._waiting[peer] = deque()
        waiting.append(packed)
        n_bytes = self._waiting_bytes[peer]
        self._waiting_bytes[peer] += len(packed)
        if self._flush_handle is None:
            self._flush_handle = asyncio.get_running_loop().call_soon(self.flush)
        if n_bytes <= MAX_WAITING_BYTES < self._waiting_bytes[peer]:
            # Not at once: who posts may be in the middle of something that a break changes.
            asyncio.get_running_loop().call_soon(self._give_up, peer)

    def flush(self) -> None:
        """Send what waits, now."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        for peer in [peer for peer in self._waiting if peer not in self._full]:
            self._flush(peer)

    def close(self) -> None:
        """Send nothing more, and give up what is open with every peer; idempotent."""
        self._is_closed = True
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        peers = {*self._waiting, *self._full}
        for side in (self._api, self._worker):
            if side is not None:
                peers |= side.open_peers()
        for peer in peers:
            self._break(peer, "this node is stopping")

    def _give_up(self, peer: NodeId) -> None:
        if self._waiting_bytes[peer] > MAX_WAITING_BYTES:
            self._break(peer, "it takes nothing of what it asks for")

    def _flush(self, peer: NodeId) -> None:
        waiting = self._waiting[peer]
        while waiting:
            messages = _next_payload(waiting)
            refusal = self._transport.send(peer, "data", pack_payload(messages))
            if refusal == "queue_full":
                self._full[peer] = asyncio.Event()
                self._tasks.start(self._drain(peer), name=f"data to {peer}", essential=False)
                return
            if refusal is not None:
                self._break(peer, f"this node cannot send to it ({refusal})")
                return
            for _ in messages:
                self._waiting_bytes[peer] -= len(waiting.popleft())
        del self._waiting[peer], self._waiting_bytes[peer]

    async def _drain(self, peer: NodeId) -> None:
        full = self._full[peer]
        try:
            await self._transport.wait_room(peer, "data")
        finally:
            if self._full.get(peer) is full:
                del self._full[peer]
            full.set()
        if peer in self._waiting and peer not in self._full:
            self._flush(peer)

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
            if isinstance(message, Frames | Taken | PulseAnswer):
                if api is not None:
                    api.on_message(peer, message, n_bytes)
            elif worker is not None:
                worker.on_message(peer, message, n_bytes)

    def _on_link(self, peer: NodeId, state: LinkState) -> None:
        if state != "up":
            self._break(peer, f"the link to it is {state}")

    def _break(self, peer: NodeId, reason: str) -> None:
        self._waiting.pop(peer, None)
        del self._waiting_bytes[peer]
        full = self._full.pop(peer, None)
        if full is not None:
            full.set()
        if self._api is not None:
            self._api.on_broken(peer, reason)
        if self._worker is not None:
            self._worker.on_broken(peer, reason)


def _next_payload(waiting: deque[bytes]) -> tuple[bytes, ...]:
    """Give the first messages that fit into one payload; at least one."""
    messages: list[bytes] = []
    n_bytes = 0
    for packed in waiting:
        n_bytes += len(packed)
        if messages and (n_bytes > PAYLOAD_BYTES or len(messages) == MAX_MESSAGES):
            break
        messages.append(packed)
    return tuple(messages)
