"""Who is in the cluster and how this node reaches them: what moves from one look to the next. Pure.

`GET /state` shows this of a hundred members several times a second, so that a look costs little:
no model is built, and what a member says of itself is not repeated.
"""

from dataclasses import dataclass
from typing import NamedTuple

from protocol.cluster_api import Liveness
from protocol.ids import NodeId
from protocol.nodes import Member
from protocol.state import ClusterState
from skulkd.cluster.link_views import LinkViews
from skulkd.cluster.roles import MasterView
from skulkd.cluster.transport import LinkState
from skulkd.core.link_rtt import RttOf, no_rtt


class MemberLook(NamedTuple):
    """One member, as this node sees it now."""

    node_id: NodeId
    liveness: Liveness
    is_self: bool
    link: LinkState | None
    """None for this node, and for one that is no peer yet."""
    dialled: str | None
    silent_s: float | None
    rtt_median_ms: float | None = None
    rtt_last_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """All members by name, and who is master."""

    master: NodeId | None
    members: tuple[MemberLook, ...]


def look_at(
    state: ClusterState,
    own: NodeId,
    master: MasterView,
    links: LinkViews,
    rtt_of: RttOf = no_rtt,
) -> ClusterLook:
    """Look at the members of a state.

    Args:
        state: The replica's.
        own: This node.
        master: Who is master, and who is heard.
        links: How the ways to the others are.
        rtt_of: How long they take.
    """
    by_name = sorted(state.members.values(), key=lambda member: (member.name, member.node_id))
    return ClusterLook(
        None if master.term is None else master.term.master,
        tuple(_look_at(member, own, master, links, rtt_of) for member in by_name),
    )


def liveness_of_member(member: Member, *, is_heard: bool) -> Liveness:
    """What the cluster has agreed on counts; who is present may be silent here all the same."""
    if member.presence != "present":
        return member.presence
    return "alive" if is_heard else "suspect"


def _look_at(
    member: Member, own: NodeId, master: MasterView, links: LinkViews, rtt_of: RttOf
) -> MemberLook:
    node_id = member.node_id
    if node_id == own:
        return MemberLook(
            node_id,
            liveness_of_member(member, is_heard=True),
            is_self=True,
            link=None,
            dialled=None,
            silent_s=None,
        )
    silent_s = master.silent_s(node_id)
    info = links.peer_info(node_id)
    rtt = rtt_of(node_id)
    return MemberLook(
        node_id,
        liveness_of_member(member, is_heard=master.is_alive(node_id)),
        is_self=False,
        link=None if info is None else info.link,
        dialled=None if info is None else info.dialled,
        silent_s=None if silent_s is None else round(silent_s, 3),
        rtt_median_ms=None if rtt is None else round(rtt.median_ms, 3),
        rtt_last_ms=None if rtt is None else round(rtt.last_ms, 3),
    )
