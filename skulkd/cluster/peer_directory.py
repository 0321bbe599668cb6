"""Keeps whom the transport dials and admits in step with what the log says.

Members come from the appended state: a node whose joining is decided must be dialled before it is
committed, or nobody could commit it. A node that has just been admitted has no state yet; until it
has one, the members that its host named are its seeds.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, final

from protocol.ids import NodeId
from protocol.state import ClusterState
from skulkd.cluster.discovery import Sighting
from skulkd.cluster.transport import Peer

MAX_ADDRESSES: Final = 16
"""Of one peer; more are not tried."""
GOING_S: Final = 1.5
"""A removed node is still sent to for so long: it is to hear that it was removed."""


class PeerSockets(Protocol):
    """What a directory keeps in step: the part of `Transport` that it needs."""

    @property
    def node_id(self) -> NodeId:
        """This node."""
        ...

    def set_peers(self, peers: Mapping[NodeId, Peer]) -> None:
        """Dial and admit exactly these."""
        ...


@final
class PeerDirectory:
    """Whom this node knows, and where.

    Args:
        transport: Told whom to dial and to admit.
        appended: Gives the newest state of this node's journal.
        seeds: Members of the cluster that has admitted this node.
        operator_addresses: Addresses of which an operator says that there is a member (`--peer`);
            tried for every member, last: only the right one's key answers.
    """

    def __init__(
        self,
        transport: PeerSockets,
        *,
        appended: Callable[[], ClusterState],
        seeds: Iterable[Peer] = (),
        operator_addresses: Sequence[str] = (),
    ) -> None:
        self._transport = transport
        self._appended = appended
        self._seeds = {seed.node_id: seed for seed in seeds}
        self._operator_addresses = tuple(operator_addresses)
        self._sighted: dict[NodeId, tuple[str, ...]] = {}
        self._named: dict[NodeId, Peer] = {}
        self._going: set[NodeId] = set()
        """Removed, and still to hear of it."""
        self._gone: set[NodeId] = set()
        """Removed, and given the time to hear of it."""

    @property
    def peers(self) -> tuple[Peer, ...]:
        """Who is dialled and admitted now."""
        return tuple(self._named.values())

    def refresh(self) -> None:
        """Look at the state again; cheap when nothing has changed."""
        state = self._appended()
        named = {peer.node_id: self._with_addresses(peer) for peer in self._members(state)}
        named |= self._still_going(state)
        if named != self._named:
            self._named = named
            self._transport.set_peers(named)

    def _still_going(self, state: ClusterState) -> dict[NodeId, Peer]:
        self._gone &= state.removed.keys()
        for node_id in (state.removed.keys() & self._named.keys()) - self._going - self._gone:
            self._going.add(node_id)
            asyncio.get_running_loop().call_later(GOING_S, self._let_go, node_id)
        self._going &= state.removed.keys()
        return {node_id: self._named[node_id] for node_id in self._going}

    def _let_go(self, node_id: NodeId) -> None:
        if node_id in self._going:
            self._going.discard(node_id)
            self._gone.add(node_id)
            self.refresh()

    def sight(self, sighting: Sighting) -> None:
        """Take a neighbour's word for where a member is; of others nothing is kept."""
        known = self._named.get(sighting.node_id)
        if known is None or known.public_key != sighting.public_key:
            return
        if self._sighted.get(sighting.node_id) != sighting.addresses:
            self._sighted[sighting.node_id] = sighting.addresses
            self.refresh()

    def _members(self, state: ClusterState) -> tuple[Peer, ...]:
        node_id = self._transport.node_id
        if node_id not in state.members and self._seeds:
            return tuple(seed for seed in self._seeds.values() if seed.node_id != node_id)
        return tuple(
            Peer(
                node_id=member.node_id,
                public_key=bytes.fromhex(member.public_key),
                addresses=member.addresses,
            )
            for member in state.members.values()
            if member.node_id != node_id
        )

    def _with_addresses(self, peer: Peer) -> Peer:
        # What the member says of itself comes first: a neighbour's packet is anybody's word.
        known = dict.fromkeys(
            (*peer.addresses, *self._sighted.get(peer.node_id, ()), *self._operator_addresses)
        )
        return Peer(
            node_id=peer.node_id,
            public_key=peer.public_key,
            addresses=tuple(known)[:MAX_ADDRESSES],
        )
