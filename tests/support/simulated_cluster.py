"""A simulated node's place in its cluster: what it sees is real, joining is done by the story."""

from typing import final

from protocol.clock import Clock
from protocol.cluster_api import ClusterDocument, Invitation, InvitationKind, JoinBody, Joined
from protocol.ids import NodeId
from protocol.peer_messages import TermPair
from skulkd.api.cluster_views import OwnSight, cluster_document
from skulkd.api.dependencies import NodeFace
from skulkd.cluster.link_views import LinkViews
from skulkd.rooms import Rooms


@final
class SimulatedCluster:
    """Implements `ClusterControl`."""

    def __init__(self, face: NodeFace, rooms: Rooms, links: LinkViews, clock: Clock) -> None:
        self._face = face
        self._rooms = rooms
        self._links = links
        self._clock = clock

    def status(self) -> ClusterDocument:
        rooms = self._rooms
        sight = OwnSight(
            node_id=self._face.node_id,
            name=self._face.name,
            base_port=1,
            commit_seq=rooms.log.commit_seq,
            appended_seq=rooms.log.appended.seq,
            build=self._face.version,
            duplicates=self._links.duplicates(),
        )
        return cluster_document(
            rooms.replica.state,
            sight,
            rooms.mastership,
            self._links,
            now_s=self._clock.monotonic_s(),
        )

    async def invite(self, kind: InvitationKind, *, uses: int, ttl_s: int | None) -> Invitation:
        raise AssertionError((kind, uses, ttl_s))

    async def join(self, wish: JoinBody) -> Joined:
        raise AssertionError(wish)

    async def handover(self, node_id: NodeId | None) -> TermPair:
        mastership = self._rooms.mastership
        target = node_id or mastership.successor
        assert target is not None
        await mastership.handover(target)
        assert mastership.term is not None
        return mastership.term
