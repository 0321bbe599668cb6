"""The transport's simulated twin: a network in one process, on the event loop's time.

Delay, loss, duplication and cuts are drawn from one seeded generator, so that a run in virtual time
repeats. Payloads of one plane between two nodes keep their order, as on a connection; a lost
one stands for a connection that broke and was made anew. It is kinder than the world in two
things: all ports of a node fare alike, and a handshake never fails by chance.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from protocol.envelope import (
    DEFAULT_BASE_PORT,
    MAX_PAYLOAD_BYTES,
    MAX_QUEUED_BYTES,
    PORTS,
    WIRE_VERSION,
    Plane,
)
from protocol.ids import NodeId
from skulkd.cluster.guests import OnGuest, Stranger
from skulkd.cluster.link_views import Duplicate, PeerInfo
from skulkd.cluster.simulated_ends import SimulatedEnd
from skulkd.cluster.simulated_guests import SimulatedDoor, SimulatedGuestDialler
from skulkd.cluster.simulated_links import Link, Links, Outlook
from skulkd.cluster.stranger_list import NO_MEMBER
from skulkd.cluster.transport import LinkState, OnLink, OnReceive, Peer, Refusal

_REPLACING_PLANES: Final[frozenset[Plane]] = frozenset({"election", "telemetry"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFaults:
    """What every link does to payloads."""

    min_delay_s: float = 0.0001
    max_delay_s: float = 0.001
    loss_ratio: float = 0.0
    duplicate_ratio: float = 0.0
    rate_bytes_s: float | None = None
    """What each plane of a link carries in one direction; None is without limit."""


@dataclass(slots=True)
class _Queued:
    receiver: SimulatedEnd
    link: Link | None
    """None on the way to oneself."""
    n_breaks: int
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
        self._nodes: dict[NodeId, SimulatedEnd] = {}
        self._hosts: dict[NodeId, str] = {}
        self._cuts: set[tuple[NodeId, NodeId]] = set()
        self._links = Links(rng, self._outlook, self._tell)
        self._queues: dict[_Pipe, deque[_Queued]] = {}
        self._queued_bytes: dict[_Pipe, int] = {}
        self._free_at_s: dict[_Pipe, float] = {}
        self._sent_at_s: dict[_Pipe, float] = {}
        """When the last byte of what was taken is on the line."""
        self._room: dict[_Pipe, list[asyncio.Future[None]]] = {}
        self.watcher: Callable[[NodeId, NodeId, Plane, bytes], None] | None = None
        """Shown sender, receiver, plane and payload of all that is handed over."""
        self.n_sent = 0
        self.n_delivered = 0
        self.n_lost = 0

    def attach(
        self,
        node_id: NodeId,
        *,
        public_key: bytes = b"",
        wire: int = WIRE_VERSION,
        is_open: bool = True,
    ) -> "SimulatedTransport":
        """Give a node its transport; one that is attached already is replaced, as by a restart.

        Args:
            node_id: Whose.
            public_key: As strangers are listed with.
            wire: The number that its hello says.
            is_open: False leaves its ports closed until `open`.
        """
        self.detach(node_id)
        number = len(self._hosts) + 1
        self._hosts.setdefault(node_id, f"10.0.{number // 256}.{number % 256}")
        end = SimulatedEnd(node_id=node_id, public_key=public_key, wire=wire)
        self._nodes[node_id] = end
        if is_open:
            end.listen([self.host_of(node_id)], DEFAULT_BASE_PORT)
        self.look()
        return SimulatedTransport(self, end)

    def detach(self, node_id: NodeId) -> None:
        """Take a node off the network, as when its process dies; what is on its way is lost."""
        if self._nodes.pop(node_id, None) is not None:
            self._links.hang_up_all(node_id)
            self.look()

    def leave(self, end: SimulatedEnd) -> None:
        """Take one process off, unless another has taken its place already."""
        if self._nodes.get(end.node_id) is end:
            self.detach(end.node_id)

    def guest_dialler(self, node_id: NodeId) -> SimulatedGuestDialler:
        """Give a node its way of dialling others as a guest."""
        return SimulatedGuestDialler(self, node_id, self._rng)

    def introduce_all(self) -> None:
        """Let every attached node name all the others."""
        peers = {node_id: self.peer(node_id) for node_id in self._nodes}
        for node_id, end in self._nodes.items():
            self.name(end, {other: peers[other] for other in peers if other != node_id})

    def peer(self, node_id: NodeId) -> Peer:
        """Give an attached node as others may name it."""
        end = self._nodes[node_id]
        return Peer(node_id=node_id, public_key=end.public_key, addresses=end.addresses())

    def cut(self, sender: NodeId, receiver: NodeId) -> None:
        """Let nothing pass in this one direction; links break in both, by their heartbeats."""
        self._cuts.add((sender, receiver))
        self.look()

    def heal(self, sender: NodeId, receiver: NodeId) -> None:
        """Undo a cut."""
        self._cuts.discard((sender, receiver))
        self.look()

    def partition(self, *groups: Iterable[NodeId]) -> None:
        """Cut both directions between nodes of different groups, and heal all other links."""
        self._cuts.clear()
        sides = [tuple(group) for group in groups]
        for number, side in enumerate(sides):
            for other in sides[number + 1 :]:
                self._cuts |= {(a, b) for a in side for b in other}
                self._cuts |= {(b, a) for a in side for b in other}
        self.look()

    def heal_all(self) -> None:
        """Undo every cut."""
        self._cuts.clear()
        self.look()

    def is_cut(self, one: NodeId, other: NodeId) -> bool:
        """Say whether either direction between two nodes is cut."""
        return (one, other) in self._cuts or (other, one) in self._cuts

    def host_of(self, node_id: NodeId) -> str:
        """Give a node's address; it keeps it over a restart."""
        return self._hosts[node_id]

    def door_at(self, address: str) -> tuple[NodeId, SimulatedDoor] | None:
        """Give who listens at an address, `HOST:BASE`."""
        for node_id, end in self._nodes.items():
            if address in end.addresses():
                return node_id, end.door
        return None

    # What a node's transport asks of its network.

    def look(self) -> None:
        """Something has changed that links depend on."""
        self._links.look()
        for pipe in list(self._room):
            self._wake(pipe)

    def name(self, dialler: SimulatedEnd, peers: Mapping[NodeId, Peer]) -> None:
        """Take over whom a node names from now on."""
        if self._nodes.get(dialler.node_id) is not dialler:
            return
        for peer in dialler.peers.keys() - peers.keys():
            self._links.hang_up(dialler.node_id, peer)
        for peer in peers:
            self._links.dial(dialler.node_id, peer)
        dialler.peers = dict(peers)
        self.look()

    def link(self, dialler: NodeId, peer: NodeId) -> LinkState:
        """Give the state of a link."""
        link = self._links.get(dialler, peer)
        return "connecting" if link is None else link.state

    def is_denied(self, dialler: SimulatedEnd, peer: NodeId) -> bool:
        """Say whether a node is dialled that listens and does not admit the dialler."""
        target = self._nodes.get(peer)
        if target is None or self.is_cut(dialler.node_id, peer):
            return False
        return dialler.can_dial(target) and dialler.node_id not in target.peers

    def _outlook(self, dialler: NodeId, peer: NodeId) -> Outlook:
        own, target = self._nodes.get(dialler), self._nodes.get(peer)
        if self.is_cut(dialler, peer):
            return Outlook(state="silent")
        if own is None or target is None or not target.addresses():
            return Outlook(state="refused")
        if not own.addresses():
            return Outlook(state="connecting")
        if not (own.can_dial(target) or target.can_dial(own)):
            return Outlook(state="connecting")
        if dialler not in target.peers:
            target.door.refuse(own.public_key, self.host_of(dialler), NO_MEMBER)
            return Outlook(state="connecting")
        state: LinkState = "up" if own.wire == target.wire else "incompatible"
        return Outlook(state=state, life=target)

    def _tell(self, dialler: NodeId, peer: NodeId, state: LinkState) -> None:
        for plane in MAX_PAYLOAD_BYTES:
            self._wake((dialler, peer, plane))
        self._nodes[dialler].tell(peer, state)

    def carry(self, pipe: _Pipe, payload: bytes, key: str | None) -> Refusal | None:
        """Queue a payload on its way."""
        sender, receiver, plane = pipe
        node, link = self._nodes.get(receiver), self._links.get(sender, receiver)
        if sender != receiver and link is None:
            return "unknown_peer"
        if node is None or (link is not None and link.state != "up"):
            return "no_link"
        if len(payload) > MAX_PAYLOAD_BYTES[plane]:
            return "too_large"
        self.n_sent += 1
        if self.watcher is not None:
            self.watcher(sender, receiver, plane, payload)
        if key is not None and self._supersede(pipe, payload, key):
            return None
        if not self._make_room(pipe, len(payload)):
            self.n_sent -= 1
            return "queue_full"
        is_lost = sender != receiver and self._rng.random() < self.faults.loss_ratio
        n_breaks = 0 if link is None else link.n_breaks
        queued = _Queued(node, link, n_breaks, key, payload, is_lost)
        self._enqueue(pipe, queued)
        if sender != receiver and self._rng.random() < self.faults.duplicate_ratio:
            self._enqueue(pipe, replace(queued, key=None, is_lost=False))
        return None

    async def wait_room(self, pipe: _Pipe) -> None:
        """Wait until the largest payload would be taken, or the link is not up."""
        while not self._has_room(pipe):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room.setdefault(pipe, []).append(waiter)
            await waiter

    def _has_room(self, pipe: _Pipe) -> bool:
        sender, receiver, plane = pipe
        if sender not in self._nodes or (
            sender != receiver and self.link(sender, receiver) != "up"
        ):
            return True
        n_bytes = self._queued_bytes.get(pipe, 0)
        return n_bytes + MAX_PAYLOAD_BYTES[plane] <= MAX_QUEUED_BYTES[plane]

    def _wake(self, pipe: _Pipe) -> None:
        if pipe in self._room and self._has_room(pipe):
            for waiter in self._room.pop(pipe):
                if not waiter.done():
                    waiter.set_result(None)

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
        sent_at_s = loop.time()
        if self.faults.rate_bytes_s is not None and pipe[0] != pipe[1]:
            sent_at_s = max(sent_at_s, self._sent_at_s.get(pipe, 0.0))
            sent_at_s += len(queued.payload) / self.faults.rate_bytes_s
            self._sent_at_s[pipe] = sent_at_s
        # A payload never overtakes the one before it, however short its own delay.
        at_s = max(sent_at_s + delay_s, self._free_at_s.get(pipe, 0.0))
        self._free_at_s[pipe] = at_s
        loop.call_at(at_s, self._deliver_next, pipe)

    def _deliver_next(self, pipe: _Pipe) -> None:
        queued = self._queues[pipe].popleft()
        self._queued_bytes[pipe] -= len(queued.payload)
        self._wake(pipe)
        sender, receiver, plane = pipe
        link, target = queued.link, self._nodes.get(receiver)
        has_broken = link is not None and (
            self._links.get(sender, receiver) is not link or link.n_breaks != queued.n_breaks
        )
        is_gone = target is not queued.receiver
        if queued.is_lost or is_gone or has_broken or (sender, receiver) in self._cuts:
            self.n_lost += 1
            return
        self.n_delivered += 1
        queued.receiver.deliver(sender, plane, queued.payload)


@final
class SimulatedTransport:
    """One node's transport with its ports and its door; made by `SimulatedNetwork.attach`."""

    def __init__(self, network: SimulatedNetwork, end: SimulatedEnd) -> None:
        self._network = network
        self._end = end
        self._is_closed = False

    @property
    def node_id(self) -> NodeId:
        """This node."""
        return self._end.node_id

    @property
    def base_port(self) -> int | None:
        """The first of the three ports; None while they are closed."""
        return self._end.base_port

    async def open(self, hosts: Sequence[str], base_port: int) -> int:
        """Listen on the addresses; no port of the simulation is ever busy."""
        self._end.listen(hosts, base_port or DEFAULT_BASE_PORT)
        self._network.look()
        return base_port or DEFAULT_BASE_PORT

    async def close_ports(self) -> None:
        """Listen nowhere, and dial nobody until opened again."""
        self._end.listen((), None)
        self._network.look()

    def peers(self) -> tuple[NodeId, ...]:
        """Name the nodes whose link is up."""
        return tuple(sorted(peer for peer in self._end.peers if self.link(peer) == "up"))

    def link(self, peer: NodeId) -> LinkState:
        """Say how the way to a peer is."""
        return self._network.link(self.node_id, peer)

    def set_peers(self, peers: Mapping[NodeId, Peer]) -> None:
        """Dial and admit exactly these from now on."""
        others = {node_id: peer for node_id, peer in peers.items() if node_id != self.node_id}
        self._network.name(self._end, others)

    def send(
        self, peer: NodeId, plane: Plane, payload: bytes, *, key: str | None = None
    ) -> Refusal | None:
        """Hand a payload over."""
        if self._is_closed:
            return "closed"
        return self._network.carry((self.node_id, peer, plane), payload, key)

    def on_receive(self, plane: Plane, receiver: OnReceive) -> None:
        """Name who gets a plane's payloads."""
        self._end.receivers[plane] = receiver

    def on_link(self, watcher: OnLink) -> None:
        """Add one who is told whenever a link changes."""
        self._end.watchers.append(watcher)

    async def wait_room(self, peer: NodeId, plane: Plane) -> None:
        """Wait until the largest payload would be taken, or the peer is gone."""
        await self._network.wait_room((self.node_id, peer, plane))

    async def close(self) -> None:
        """Leave the network."""
        self._is_closed = True
        self._network.leave(self._end)
        self._end.peers = {}
        self._end.receivers = {}

    def set_guest_keys(self, keys: Mapping[bytes, str]) -> None:
        """Admit guests with exactly these public keys."""
        self._end.door.set_guest_keys(keys)

    def on_guest(self, receiver: OnGuest) -> None:
        """Name who gets what guests say."""
        self._end.door.on_guest(receiver)

    def strangers(self) -> tuple[Stranger, ...]:
        """List who was refused in the last hour."""
        return self._end.door.strangers()

    def peer_info(self, peer: NodeId) -> PeerInfo | None:
        """Say how it stands with a peer."""
        named = self._end.peers.get(peer)
        if named is None:
            return None
        link = self.link(peer)
        return PeerInfo(
            node_id=peer,
            link=link,
            reason="" if link == "up" else f"the link is {link}",
            is_denied=self._network.is_denied(self._end, peer),
            ports=dict.fromkeys(PORTS, link),
            dialled=named.addresses[0] if named.addresses else None,
            last_heard_s=self._end.heard_s.get(peer),
        )

    def duplicates(self) -> tuple[Duplicate, ...]:
        """List nothing: a simulated key has one process."""
        return ()
