"""The transport's simulated twin: a network in one process, on the event loop's time.

Delay, loss, duplication and cuts are drawn from one seeded generator, so that a run in virtual time
repeats. Payloads of one plane between two nodes keep their order, as on a connection; a lost
one stands for a connection that broke and was made anew.
"""

import asyncio
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

from protocol.envelope import MAX_PAYLOAD_BYTES, MAX_QUEUED_BYTES, Plane
from protocol.ids import NodeId
from skulkd.cluster.transport import OnReceive, Refusal

_REPLACING_PLANES: Final[frozenset[Plane]] = frozenset({"election", "telemetry"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFaults:
    """What every link does to payloads."""

    min_delay_s: float = 0.0001
    max_delay_s: float = 0.001
    loss_ratio: float = 0.0
    duplicate_ratio: float = 0.0


@dataclass(slots=True)
class _Queued:
    receiver: "SimulatedTransport"
    key: str | None
    payload: bytes
    is_lost: bool


_Pipe = tuple[NodeId, NodeId, Plane]


@final
class SimulatedNetwork:
    """All the links of one simulated cluster.

    Args:
        rng: Decides every delay and loss.
        faults: What links do; may be changed at any time.
    """

    def __init__(self, rng: random.Random, faults: NetworkFaults | None = None) -> None:
        self.faults = faults or NetworkFaults()
        self._rng = rng
        self._nodes: dict[NodeId, SimulatedTransport] = {}
        self._cuts: set[tuple[NodeId, NodeId]] = set()
        self._queues: dict[_Pipe, deque[_Queued]] = {}
        self._queued_bytes: dict[_Pipe, int] = {}
        self._free_at_s: dict[_Pipe, float] = {}
        self.n_sent = 0
        self.n_delivered = 0
        self.n_lost = 0

    def attach(self, node_id: NodeId) -> "SimulatedTransport":
        """Give a node its transport; one that is attached already is replaced, as by a restart."""
        transport = SimulatedTransport(self, node_id)
        self._nodes[node_id] = transport
        return transport

    def detach(self, transport: "SimulatedTransport") -> None:
        """Take a node off the network, as when its process dies; what is on its way is lost."""
        if self._nodes.get(transport.node_id) is transport:
            del self._nodes[transport.node_id]

    def cut(self, sender: NodeId, receiver: NodeId) -> None:
        """Let nothing pass in this one direction; the sender does not notice."""
        self._cuts.add((sender, receiver))

    def heal(self, sender: NodeId, receiver: NodeId) -> None:
        """Undo a cut."""
        self._cuts.discard((sender, receiver))

    def partition(self, *groups: Iterable[NodeId]) -> None:
        """Cut both directions between nodes of different groups, and heal all other links."""
        self._cuts.clear()
        sides = [tuple(group) for group in groups]
        for number, side in enumerate(sides):
            for other in sides[number + 1 :]:
                self._cuts |= {(a, b) for a in side for b in other}
                self._cuts |= {(b, a) for a in side for b in other}

    def heal_all(self) -> None:
        """Undo every cut."""
        self._cuts.clear()

    # What a node's transport asks of its network.

    def peers_of(self, node_id: NodeId) -> tuple[NodeId, ...]:
        """Name the other nodes that are attached, sorted."""
        return tuple(sorted(self._nodes.keys() - {node_id}))

    def carry(self, pipe: _Pipe, payload: bytes, key: str | None) -> Refusal | None:
        """Queue a payload on its way."""
        sender, receiver, plane = pipe
        node = self._nodes.get(receiver)
        if node is None:
            return "unknown_peer"
        if len(payload) > MAX_PAYLOAD_BYTES[plane]:
            return "too_large"
        self.n_sent += 1
        if key is not None and self._supersede(pipe, payload, key):
            return None
        if not self._make_room(pipe, len(payload)):
            self.n_sent -= 1
            return "queue_full"
        is_lost = sender != receiver and self._rng.random() < self.faults.loss_ratio
        self._enqueue(pipe, _Queued(node, key, payload, is_lost))
        if sender != receiver and self._rng.random() < self.faults.duplicate_ratio:
            self._enqueue(pipe, _Queued(node, None, payload, is_lost=False))
        return None

    def _supersede(self, pipe: _Pipe, payload: bytes, key: str) -> bool:
        for queued in self._queues.get(pipe, ()):
            if queued.key == key:
                self._queued_bytes[pipe] += len(payload) - len(queued.payload)
                queued.payload = payload
                return True
        return False

    def _make_room(self, pipe: _Pipe, n_bytes: int) -> bool:
        limit = MAX_QUEUED_BYTES[pipe[2]]
        queue = self._queues.setdefault(pipe, deque())
        while self._queued_bytes.setdefault(pipe, 0) + n_bytes > limit:
            if pipe[2] not in _REPLACING_PLANES:
                return False
            # Its delivery finds an empty place.
            oldest = next(queued for queued in queue if queued.payload)
            self._queued_bytes[pipe] -= len(oldest.payload)
            oldest.payload, oldest.key, oldest.is_lost = b"", None, True
        return True

    def _enqueue(self, pipe: _Pipe, queued: _Queued) -> None:
        self._queues[pipe].append(queued)
        self._queued_bytes[pipe] += len(queued.payload)
        loop = asyncio.get_running_loop()
        delay_s = 0.0
        if pipe[0] != pipe[1]:
            delay_s = self._rng.uniform(self.faults.min_delay_s, self.faults.max_delay_s)
        # A payload never overtakes the one before it, however short its own delay.
        at_s = max(loop.time() + delay_s, self._free_at_s.get(pipe, 0.0))
        self._free_at_s[pipe] = at_s
        loop.call_at(at_s, self._deliver_next, pipe)

    def _deliver_next(self, pipe: _Pipe) -> None:
        queued = self._queues[pipe].popleft()
        self._queued_bytes[pipe] -= len(queued.payload)
        sender, receiver, plane = pipe
        is_gone = self._nodes.get(receiver) is not queued.receiver
        if queued.is_lost or is_gone or (sender, receiver) in self._cuts:
            self.n_lost += 1
            return
        self.n_delivered += 1
        queued.receiver.deliver(sender, plane, queued.payload)


@final
class SimulatedTransport:
    """One node's end; made by `SimulatedNetwork.attach`."""

    def __init__(self, network: SimulatedNetwork, node_id: NodeId) -> None:
        self._network = network
        self._node_id = node_id
        self._receivers: dict[Plane, OnReceive] = {}
        self._is_closed = False

    @property
    def node_id(self) -> NodeId:
        """This node."""
        return self._node_id

    def peers(self) -> tuple[NodeId, ...]:
        """Name the other attached nodes; a cut hides none."""
        return () if self._is_closed else self._network.peers_of(self._node_id)

    def send(
        self, peer: NodeId, plane: Plane, payload: bytes, *, key: str | None = None
    ) -> Refusal | None:
        """Hand a payload over."""
        if self._is_closed:
            return "closed"
        return self._network.carry((self._node_id, peer, plane), payload, key)

    def on_receive(self, plane: Plane, receiver: OnReceive) -> None:
        """Name who gets a plane's payloads."""
        self._receivers[plane] = receiver

    async def close(self) -> None:
        """Leave the network."""
        if not self._is_closed:
            self._is_closed = True
            self._network.detach(self)

    def deliver(self, sender: NodeId, plane: Plane, payload: bytes) -> None:
        """Give a payload that has arrived to its receiver."""
        receiver = self._receivers.get(plane)
        if receiver is not None and not self._is_closed:
            receiver(sender, payload)
