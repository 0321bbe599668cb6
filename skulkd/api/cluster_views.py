"""State, and what a node sees of its peers, to the documents about the cluster. Pure."""

from dataclasses import dataclass, field

from protocol.cluster_api import (
    ClusterDocument,
    DivergenceView,
    DuplicateView,
    JournalWord,
    Liveness,
    MdnsView,
    MemberView,
    NodesDocument,
    NodeView,
    QuorumView,
    StrangerView,
    TermRole,
    TokenList,
    TokenView,
)
from protocol.control_api import LinkEdge, StateDocument, TopologyView
from protocol.ids import NodeId
from protocol.state import ClusterState
from skulkd.api.cluster_look import liveness_of_member
from skulkd.api.node_names import name_of
from skulkd.cluster.guests import Stranger
from skulkd.cluster.link_views import Duplicate, LinkViews
from skulkd.cluster.roles import MasterView
from skulkd.core.drain_decisions import eligibility_of
from skulkd.core.link_rtt import RttOf, no_rtt


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSight:
    """What this node knows of itself and its surroundings, beside state, roles and links."""

    node_id: NodeId
    name: str
    base_port: int | None
    """None while it is closed."""
    bound: tuple[str, ...] = ()
    advertised: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    commit_seq: int
    appended_seq: int
    journal: JournalWord = "durable"
    build: str = ""
    strangers: tuple[Stranger, ...] = ()
    duplicates: tuple[Duplicate, ...] = ()
    mdns: MdnsView = field(default_factory=lambda: MdnsView(status="off"))
    divergence: DivergenceView | None = None
    rtt_of: RttOf = no_rtt


def cluster_document(
    state: ClusterState, sight: OwnSight, master: MasterView, links: LinkViews, *, now_s: float
) -> ClusterDocument:
    """Show the cluster as this node sees it.

    Args:
        state: The replica's.
        sight: What this node knows beside.
        master: Who is master, and who is heard.
        links: How the ways to the others are.
        now_s: Monotonic, on the clock of the strangers and duplicates.
    """
    term = master.term
    role: TermRole = "none" if term is None else "member"
    if master.is_master:
        role = "master"
    return ClusterDocument(
        node_id=sight.node_id,
        name=sight.name,
        cluster_id=state.cluster_id,
        is_open=sight.base_port is not None,
        base_port=sight.base_port,
        bound=sight.bound,
        advertised=sight.advertised,
        missing=sight.missing,
        role=role,
        master=None if term is None else term.master,
        last_master=master.last_master,
        term=state.term if term is None else term.number,
        is_minority=state.is_minority_term,
        policy=state.settings.policy,
        quorum=_quorum(state, master),
        commit_seq=sight.commit_seq,
        appended_seq=sight.appended_seq,
        journal=sight.journal,
        members=member_views(state, sight, master, links),
        strangers=tuple(
            StrangerView(
                public_key=one.public_key.hex(),
                address=one.address,
                reason=one.reason,
                first_ago_s=_ago(one.first_s, now_s),
                last_ago_s=_ago(one.last_s, now_s),
                tries=one.n_tries,
            )
            for one in sight.strangers
        ),
        mdns=sight.mdns,
        duplicates=tuple(
            DuplicateView(
                node_id=one.node_id,
                name=name_of(state, one.node_id),
                addresses=one.addresses,
                last_ago_s=_ago(one.last_seen_s, now_s),
            )
            for one in sight.duplicates
        ),
        divergence=sight.divergence,
    )


def _ago(then_s: float, now_s: float) -> float:
    return round(max(0.0, now_s - then_s), 3)


def _quorum(state: ClusterState, master: MasterView) -> QuorumView:
    voters = [node_id for node_id, member in state.members.items() if member.is_voter]
    n_alive = sum(1 for node_id in voters if master.is_alive(node_id))
    return QuorumView(voters=len(voters), alive=n_alive, is_majority=2 * n_alive > len(voters))


def member_views(
    state: ClusterState, sight: OwnSight, master: MasterView, links: LinkViews
) -> tuple[MemberView, ...]:
    """Show every member, by name."""
    master_id = None if master.term is None else master.term.master
    views: list[MemberView] = []
    for node_id, member in state.members.items():
        is_self = node_id == sight.node_id
        silent_s = None if is_self else master.silent_s(node_id)
        info = None if is_self else links.peer_info(node_id)
        rtt = None if is_self else sight.rtt_of(node_id)
        views.append(
            MemberView(
                node_id=node_id,
                name=member.name,
                role=member.role,
                presence=member.presence,
                since_ms=member.since_ms,
                eligibility=eligibility_of(state, node_id),
                liveness=liveness_of_member(member, is_heard=is_self or master.is_alive(node_id)),
                is_self=is_self,
                is_master=node_id == master_id,
                silent_s=None if silent_s is None else round(silent_s, 3),
                link=info.link if info else None,
                link_reason=info.reason if info else "",
                rtt_median_ms=None if rtt is None else round(rtt.median_ms, 3),
                rtt_last_ms=None if rtt is None else round(rtt.last_ms, 3),
                addresses=member.addresses,
                dialled=info.dialled if info else None,
                api_port=member.api_port,
                api_tls=member.api_tls,
                build=sight.build if is_self else info.build if info else None,
                public_key=member.public_key,
            )
        )
    return tuple(sorted(views, key=lambda one: (one.name, one.node_id)))


def topology(cluster: ClusterDocument) -> TopologyView:
    """Show who takes part now, and how the answering node reaches them: the living only."""
    alive = [one for one in cluster.members if one.liveness == "alive"]
    return TopologyView(
        nodes=tuple(one.node_id for one in alive),
        links=tuple(
            LinkEdge(
                source=cluster.node_id,
                target=one.node_id,
                state=one.link or "connecting",
                address=one.dialled,
                silent_s=one.silent_s,
                rtt_median_ms=one.rtt_median_ms,
                rtt_last_ms=one.rtt_last_ms,
            )
            for one in alive
            if not one.is_self
        ),
    )


def nodes_document(cluster: ClusterDocument, state: StateDocument) -> NodesDocument:
    """Show every member with its health and resources."""
    return NodesDocument(
        seq=state.seq,
        items=tuple(
            NodeView(
                member=one,
                health=state.node_health.get(one.node_id),
                resources=state.node_resources.get(one.node_id),
            )
            for one in cluster.members
        ),
    )


def liveness_of(cluster: ClusterDocument) -> dict[NodeId, Liveness]:
    """Say of every member whether it is there."""
    return {one.node_id: one.liveness for one in cluster.members}


def token_list(state: ClusterState, *, now_ms: int) -> TokenList:
    """Show the invitations, newest first; their secrets are nowhere."""
    newest_first = sorted(state.join_tokens.values(), key=lambda one: -one.created_at_ms)
    return TokenList(
        items=tuple(
            TokenView(
                token_id=one.token_id,
                kind=one.kind,
                inviter=one.inviter,
                inviter_name=name_of(state, one.inviter),
                created_at_ms=one.created_at_ms,
                expires_at_ms=one.expires_at_ms,
                uses_left=one.uses_left,
                is_valid=one.uses_left > 0 and one.expires_at_ms > max(now_ms, state.at_ms),
            )
            for one in newest_first
        )
    )
