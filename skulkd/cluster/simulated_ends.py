"""One process on a simulated network, as the network sees it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from protocol.envelope import Plane
from protocol.ids import NodeId
from skulkd.cluster.addresses import join_address
from skulkd.cluster.simulated_guests import SimulatedDoor
from skulkd.cluster.transport import LinkState, OnLink, OnReceive, Peer


@final
@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedEnd:
    """Where it listens, whom it names, and who in it wants to know what."""

    node_id: NodeId
    public_key: bytes
    wire: int
    hosts: tuple[str, ...] = ()
    base_port: int | None = None
    peers: Mapping[NodeId, Peer] = field(default_factory=dict[NodeId, Peer])
    receivers: dict[Plane, OnReceive] = field(default_factory=dict[Plane, OnReceive])
    watchers: list[OnLink] = field(default_factory=list[OnLink])
    heard_s: dict[NodeId, float] = field(default_factory=dict[NodeId, float])
    door: SimulatedDoor = field(default_factory=SimulatedDoor)

    def listen(self, hosts: Sequence[str], base_port: int | None) -> None:
        """Take over where it listens."""
        self.hosts, self.base_port = tuple(hosts), base_port

    def addresses(self) -> tuple[str, ...]:
        """Give where it listens, as `HOST:BASE`; nothing while its ports are closed."""
        if self.base_port is None:
            return ()
        return tuple(join_address(host, self.base_port) for host in self.hosts)

    def can_dial(self, other: "SimulatedEnd") -> bool:
        """Say whether it was given an address at which the other listens."""
        named = self.peers.get(other.node_id)
        return named is not None and not set(named.addresses).isdisjoint(other.addresses())

    def tell(self, peer: NodeId, state: LinkState) -> None:
        """Tell who watches."""
        for watcher in self.watchers:
            watcher(peer, state)

    def deliver(self, sender: NodeId, plane: Plane, payload: bytes) -> None:
        """Give a payload that has arrived to its receiver, if its sender is admitted."""
        if sender != self.node_id and sender not in self.peers:
            return
        self.heard_s[sender] = asyncio.get_running_loop().time()
        receiver = self.receivers.get(plane)
        if receiver is not None:
            receiver(sender, payload)
