"""A node without cluster ports: a cluster of one, which can neither invite nor join.

Implements `ClusterControl` and `PeerApi` where no transport is plugged in.
"""

from typing import final

from protocol.cluster_api import (
    ClusterDocument,
    Invitation,
    InvitationKind,
    JoinBody,
    Joined,
    MemberView,
    QuorumView,
)
from protocol.errors import ClusterError
from protocol.ids import NodeId
from protocol.peer_messages import ApiAnswer, CallApi, TermPair
from skulkd.api.dependencies import NodeFace
from skulkd.eventlog.gateway import StateView


@final
class LoneNode:
    """Implements `ClusterControl` and `PeerApi`.

    Args:
        face: This node.
        state: The replica.
    """

    def __init__(self, face: NodeFace, state: StateView) -> None:
        self._face = face
        self._state = state

    def status(self) -> ClusterDocument:
        """Show a cluster of one."""
        state, face = self._state.state, self._face
        members = tuple(
            MemberView(
                node_id=node_id,
                name=member.name,
                role=member.role,
                presence=member.presence,
                since_ms=member.since_ms,
                liveness="alive" if node_id == face.node_id else "lost",
                is_self=node_id == face.node_id,
                is_master=node_id == state.master,
                addresses=member.addresses,
                api_port=member.api_port,
                build=face.version if node_id == face.node_id else None,
                public_key=member.public_key,
            )
            for node_id, member in sorted(state.members.items())
        )
        return ClusterDocument(
            node_id=face.node_id,
            name=face.name,
            cluster_id=state.cluster_id,
            is_open=False,
            role="master" if state.master == face.node_id else "none",
            master=state.master,
            last_master=state.master,
            term=state.term,
            policy=state.settings.policy,
            quorum=QuorumView(voters=len(members), alive=1, is_majority=len(members) == 1),
            commit_seq=state.seq,
            appended_seq=state.seq,
            members=members,
        )

    async def invite(self, kind: InvitationKind, *, uses: int, ttl_s: int | None) -> Invitation:
        """Refuse: nobody could come in."""
        del kind, uses, ttl_s
        raise _no_ports()

    async def join(self, wish: JoinBody) -> Joined:
        """Refuse: nobody can be dialled."""
        del wish
        raise _no_ports()

    async def handover(self, node_id: NodeId | None) -> TermPair:
        """Refuse: there is nobody to take over."""
        del node_id
        raise _no_ports()

    async def call(self, node_id: NodeId, request: CallApi, *, timeout_s: float) -> ApiAnswer:
        """Refuse: nobody can be asked."""
        del request, timeout_s
        raise ClusterError(
            "cluster.peer_unreachable",
            f"there is no way to node {node_id}: this node has no cluster ports",
            remediation="Ask that node's own HTTP API.",
            details={"node_id": node_id},
        )


def _no_ports() -> ClusterError:
    return ClusterError(
        "cluster.join_failed",
        "this node has no cluster ports",
        remediation="Start skulkd as installed, without a transport of your own.",
    )
