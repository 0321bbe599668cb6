"""How a node's answers about the cluster become records. Pure."""

from protocol.cluster_api import (
    ClusterDocument,
    Invitation,
    LogLineView,
    LogsDocument,
    MemberView,
    StrangerView,
    TokenView,
)
from protocol.control_api import EventView
from skulk_tui.cli.cluster_records import (
    ClusterRecord,
    DivergenceRecord,
    DuplicateRecord,
    EventRecord,
    InvitationRecord,
    LogLineRecord,
    MemberRecord,
    StrangerRecord,
)
from skulk_tui.formatting import rfc3339


def member_record(member: MemberView) -> MemberRecord:
    """Give one member."""
    return MemberRecord(
        node_id=member.node_id,
        name=member.name,
        role=member.role,
        presence=member.presence,
        liveness=member.liveness,
        eligibility=member.eligibility,
        is_self=member.is_self,
        is_master=member.is_master,
        silent_s=member.silent_s,
        link=member.link,
        link_reason=member.link_reason,
        rtt_median_ms=member.rtt_median_ms,
        rtt_last_ms=member.rtt_last_ms,
        addresses=member.addresses,
        dialled=member.dialled,
        api_port=member.api_port,
        api_tls=member.api_tls,
        build=member.build,
        public_key=member.public_key,
        since=rfc3339(member.since_ms) if member.since_ms else None,
    )


def stranger_record(stranger: StrangerView) -> StrangerRecord:
    """Give one stranger."""
    return StrangerRecord(
        public_key=stranger.public_key,
        address=stranger.address,
        reason=stranger.reason,
        first_ago_s=stranger.first_ago_s,
        last_ago_s=stranger.last_ago_s,
        tries=stranger.tries,
    )


def cluster_record(cluster: ClusterDocument) -> ClusterRecord:
    """Give the whole picture of one node's answer."""
    divergence = cluster.divergence
    return ClusterRecord(
        cluster_id=cluster.cluster_id,
        node_id=cluster.node_id,
        name=cluster.name,
        is_open=cluster.is_open,
        base_port=cluster.base_port,
        bound=cluster.bound,
        advertised=cluster.advertised,
        missing=cluster.missing,
        role=cluster.role,
        master=cluster.master,
        last_master=cluster.last_master,
        term=cluster.term,
        is_minority=cluster.is_minority,
        policy=cluster.policy,
        voters=cluster.quorum.voters,
        voters_alive=cluster.quorum.alive,
        is_majority=cluster.quorum.is_majority,
        commit_seq=cluster.commit_seq,
        appended_seq=cluster.appended_seq,
        journal=cluster.journal,
        mdns=cluster.mdns.status,
        mdns_reason=cluster.mdns.reason,
        mdns_seen=cluster.mdns.seen,
        members=tuple(member_record(one) for one in cluster.members),
        strangers=tuple(stranger_record(one) for one in cluster.strangers),
        duplicates=tuple(
            DuplicateRecord(
                node_id=one.node_id,
                name=one.name,
                addresses=one.addresses,
                last_ago_s=one.last_ago_s,
            )
            for one in cluster.duplicates
        ),
        divergence=None
        if divergence is None
        else DivergenceRecord(
            at=rfc3339(divergence.at_ms),
            term=divergence.term,
            seq=divergence.seq,
            discarded=divergence.discarded,
            message=divergence.message,
        ),
    )


def made_invitation(made: Invitation, *, now_ms: int) -> InvitationRecord:
    """Give an invitation that has just been made, with its secret."""
    return InvitationRecord(
        token_id=made.token_id,
        kind=made.kind,
        inviter=made.inviter,
        uses_left=made.uses,
        is_valid=True,
        created_at=rfc3339(now_ms),
        expires_at=rfc3339(made.expires_at_ms),
        addresses=made.addresses,
        token=made.token,
        code=made.code,
    )


def invitation_record(token: TokenView) -> InvitationRecord:
    """Give an invitation without its secret."""
    return InvitationRecord(
        token_id=token.token_id,
        kind=token.kind,
        inviter=token.inviter_name or token.inviter,
        uses_left=token.uses_left,
        is_valid=token.is_valid,
        created_at=rfc3339(token.created_at_ms),
        expires_at=rfc3339(token.expires_at_ms),
    )


def log_record(page: LogsDocument, line: LogLineView) -> LogLineRecord:
    """Give one line of a log."""
    return LogLineRecord(
        node_id=page.node_id,
        node_name=page.name,
        instance_id=page.instance_id,
        at=line.at,
        level=line.level,
        logger=line.logger,
        message=line.message,
        command_id=line.command_id,
        extra=dict(line.extra),
    )


def event_record(view: EventView) -> EventRecord:
    """Give one event."""
    return EventRecord(
        term=view.term,
        seq=view.seq,
        at=rfc3339(view.at_ms),
        kind=view.kind,
        command_id=view.command_id,
        event=dict(view.event),
    )
