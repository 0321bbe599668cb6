"""Decisions about members: who is let in, who is gone for now, who is out for good.

What a node knows of itself (name, addresses, role) it renews at each start and whenever it changes;
that is also how one comes back that was lost or had left. A renewal that says nothing new gives no
events.
"""

from protocol.commands import AdmitMember, RemoveMember, ReportLeave, ReportLoss, SettleTerm
from protocol.errors import ClusterError, RequestError
from protocol.events import (
    Event,
    InstanceRemoved,
    InstanceStopRequested,
    JoinTokenRevoked,
    MemberJoined,
    MemberLeft,
    MemberLost,
    MemberRemoved,
    MemberReturned,
    RunnerPhaseChanged,
    TermSettled,
)
from protocol.ids import NodeId, TokenId, node_id_of
from protocol.instances import Instance, RunnerStatus
from protocol.nodes import Member
from protocol.peer_messages import MAX_MEMBERS
from protocol.state import ClusterState
from skulkd.core.invitation_decisions import check_invitation


def member_of(state: ClusterState, node_id: NodeId) -> Member:
    """Look a member up.

    Raises:
        ClusterError: `cluster.removed`, `cluster.not_member`.
    """
    member = state.members.get(node_id)
    if member is not None:
        return member
    removed = state.removed.get(node_id)
    if removed is not None:
        raise ClusterError(
            "cluster.removed",
            f"{removed.name} ({node_id}) was removed from this cluster",
            remediation="To have it back, make a new invitation on a member (`skulk cluster "
            "invite`) and join by it.",
            details={"node_id": node_id},
        )
    raise ClusterError(
        "cluster.not_member",
        f"{node_id} is not a member of this cluster",
        remediation="`skulk cluster members` lists the members; `skulk cluster invite` lets a node "
        "in.",
        details={"node_id": node_id},
    )


def voters_of(state: ClusterState) -> frozenset[NodeId]:
    """Name the members that have a vote."""
    return frozenset(member.node_id for member in state.members.values() if member.is_voter)


def admit(state: ClusterState, command: AdmitMember, *, now_ms: int) -> tuple[Event, ...]:
    """Let a node in by an invitation, or renew what is known of a member.

    A guest is `joining`, without a vote, until it has come and renews itself: that it was admitted
    may never reach it. One whose answer was lost may ask again, and uses nothing up. A member that
    comes as a guest has given up its log, and with it what it had promised: it begins anew, too.

    Raises:
        RequestError: `request.invalid` for an id that is not the key's.
        ClusterError: `cluster.not_member`, `cluster.removed`, `cluster.full`,
            `cluster.token_unknown`, `cluster.token_expired`, `cluster.token_used`.
    """
    if node_id_of(bytes.fromhex(command.public_key)) != command.node_id:
        raise RequestError(
            "request.invalid",
            f"the public key that came with {command.node_id} is another node's",
            remediation="Run the same build on both nodes; if they do, report this.",
        )
    known = state.members.get(command.node_id)
    if known is not None and known.public_key != command.public_key:
        raise RequestError(
            "request.invalid",
            f"node {command.node_id} is a member with another public key",
            remediation="Remove the node from the cluster, then let it join again.",
        )
    if command.token_id is None:
        if known is not None:
            return _renew(known, command, now_ms)
        if state.members:
            member_of(state, command.node_id)
    elif known is None or not _asks_again(state, known, command.token_id):
        check_invitation(state, command.token_id, command.node_id, now_ms=now_ms)
    if known is not None and not _may_begin_anew(state, known):
        return _renew(known, command, now_ms)
    if known is None and len(state.members) >= MAX_MEMBERS:
        raise ClusterError(
            "cluster.full",
            f"the cluster has {len(state.members)} members and takes {MAX_MEMBERS}",
            remediation="Remove members that are gone for good (`skulk cluster remove`).",
        )
    member = Member(
        node_id=command.node_id,
        name=command.name,
        public_key=command.public_key,
        addresses=command.addresses,
        api_port=command.api_port,
        api_tls=command.api_tls,
        role=command.role,
        presence="present" if command.token_id is None else "joining",
        since_ms=now_ms,
        drain_since_ms=None if known is None else known.drain_since_ms,
    )
    return (MemberJoined(member=member, token_id=command.token_id),)


def report_loss(state: ClusterState, command: ReportLoss) -> tuple[Event, ...]:
    """Note that a member was not heard for too long; one that is not present stays as it is.

    Raises:
        RequestError: `request.invalid` for the master, who decides this and so is there.
        ClusterError: `cluster.not_member`, `cluster.removed`.
    """
    member = member_of(state, command.node_id)
    if command.node_id == state.master:
        raise RequestError("request.invalid", f"{member.name} is the master and cannot be lost")
    if member.presence != "present":
        return ()
    return (
        MemberLost(
            node_id=command.node_id,
            silent_ms=command.silent_ms,
            is_refused=command.is_refused,
        ),
    )


def report_leave(state: ClusterState, command: ReportLeave) -> tuple[Event, ...]:
    """Note a goodbye; the last member that is present has nobody to say it to, and keeps its vote.

    Its log is the newest, so that it can be master again at once when it is back, alone or not.

    Raises:
        ClusterError: `cluster.not_member`, `cluster.removed`.
    """
    member = member_of(state, command.node_id)
    others = (known for known in state.members.values() if known.node_id != command.node_id)
    if member.presence == "left" or all(known.presence != "present" for known in others):
        return ()
    return (MemberLeft(node_id=command.node_id),)


def remove(state: ClusterState, command: RemoveMember, *, now_ms: int) -> tuple[Event, ...]:
    """Take a node out for good, with its instances and the invitations that only it could honour.

    Nothing will ever report that its runners are gone, so they count as gone at once: an instance
    that ran nowhere else is removed, one that did is stopped.

    Raises:
        ClusterError: `cluster.not_member`, `cluster.last_voter`, `cluster.is_master`.
    """
    if command.node_id in state.removed:
        return ()
    member = member_of(state, command.node_id)
    if not voters_of(state) - {command.node_id}:
        raise ClusterError(
            "cluster.last_voter",
            f"{member.name} is the only member that can be master",
            remediation="Bring another member back first, or join that node to another cluster.",
        )
    if command.node_id == state.master:
        raise ClusterError(
            "cluster.is_master",
            f"{member.name} is the master, which cannot remove itself",
            remediation="Hand over first (`skulk cluster handover`), then remove it.",
        )
    events: list[Event] = []
    for instance in state.instances.values():
        events.extend(_without_node(instance, command.node_id, now_ms))
    events.extend(
        JoinTokenRevoked(token_id=token.token_id)
        for token in state.join_tokens.values()
        if token.inviter == command.node_id
    )
    return (*events, MemberRemoved(node_id=command.node_id))


def settle(state: ClusterState, command: SettleTerm) -> tuple[Event, ...]:
    """Note that a majority follows the master of a minority term; a late word changes nothing."""
    if command.term != state.term or not state.is_minority_term:
        return ()
    return (TermSettled(),)


def _asks_again(state: ClusterState, known: Member, token_id: TokenId) -> bool:
    """Say whether the answer to a guest may have been lost: it has been let in, and not come yet.

    Of anybody else an invitation that has expired or is used up says nothing: whoever finds one
    must not be able to change what is known of a member.
    """
    return known.presence == "joining" and token_id in state.join_tokens


def _may_begin_anew(state: ClusterState, known: Member) -> bool:
    """Say whether a member can lose its vote for a while: not if it is the master, or the last."""
    is_needed = known.node_id == state.master or not voters_of(state) - {known.node_id}
    return known.presence != "joining" and not is_needed


def _renew(known: Member, command: AdmitMember, now_ms: int) -> tuple[Event, ...]:
    events: list[Event] = []
    present = known
    # With an invitation it is the inviter who speaks; the node itself has not come back yet.
    if known.presence != "present" and command.token_id is None:
        events.append(MemberReturned(node_id=known.node_id))
        present = known.model_copy(update={"presence": "present", "since_ms": now_ms})
    renewed = present.model_copy(
        update={
            "name": command.name,
            "addresses": command.addresses,
            "api_port": command.api_port,
            "api_tls": command.api_tls,
            "role": command.role,
        }
    )
    if renewed != present:
        events.append(MemberJoined(member=renewed))
    return tuple(events)


def _without_node(instance: Instance, node_id: NodeId, now_ms: int) -> list[Event]:
    """Give what becomes of an instance when one of its nodes is out for good."""
    ranks = [shard.rank for shard in instance.plan.shards if shard.node_id == node_id]
    if not ranks:
        return []
    gone = {runner.rank for runner in instance.runners if runner.phase == "stopped"} | set(ranks)
    is_failed = instance.failure is not None and instance.failure.final
    if is_failed or len(gone) == len(instance.plan.shards):
        return [InstanceRemoved(instance_id=instance.instance_id)]
    events: list[Event] = []
    if instance.desired != "stopped":
        events.append(InstanceStopRequested(instance_id=instance.instance_id))
    events.extend(
        RunnerPhaseChanged(
            instance_id=instance.instance_id,
            runner=RunnerStatus(
                rank=rank,
                node_id=node_id,
                attempt=instance.attempt,
                phase="stopped",
                since_ms=now_ms,
            ),
        )
        for rank in ranks
    )
    return events
