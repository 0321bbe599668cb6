"""What follows from a command: events, or a refusal; pure.

The master calls this on its newest state; nothing else decides. A command that changes nothing
gives no events, so that an idle cluster stays idle however often its nodes report. Whether the
command itself was decided before is the caller's question (`core.apply.repeated`), asked first.
"""

from typing import assert_never

from protocol.commands import (
    AddCard,
    AdmitMember,
    ChangeApiKey,
    ChangeSettings,
    ClearBreaker,
    Command,
    CreateApiKey,
    CreateJoinToken,
    DrainNode,
    PinInstance,
    RemoveCard,
    RemoveMember,
    ReportDownload,
    ReportFacts,
    ReportLeave,
    ReportLoss,
    RetryInstance,
    RevokeApiKey,
    RevokeJoinToken,
    RotateApiKey,
    SettleTerm,
    SleepInstance,
    StopInstance,
    UndrainNode,
    UnpinInstance,
)
from protocol.errors import ClusterError, StoreError
from protocol.events import (
    CardAdded,
    CardRemoved,
    DownloadEnded,
    Event,
    MemberFactsReported,
    SettingsChanged,
)
from protocol.ids import NodeId
from protocol.readings import Readings
from protocol.state import ClusterState, DownloadOutcome
from skulkd.core import (
    demand_decisions,
    drain_decisions,
    instance_decisions,
    invitation_decisions,
    key_decisions,
    member_decisions,
    memory_decisions,
    move_decisions,
    repair_decisions,
)

MAX_CARDS = 1000


def decide(
    state: ClusterState,
    readings: Readings,
    command: Command,
    *,
    now_ms: int,
    now_s: float | None = None,
    unheard: frozenset[NodeId] = frozenset(),
) -> tuple[Event, ...]:
    """Decide a command that was not decided before.

    Args:
        state: The newest state of the log's end.
        readings: The master's own; looked at where something is planned.
        command: What is asked.
        now_ms: The stamp that the events will carry; wall clock, never stepping back.
        now_s: Monotonic seconds on the clock of the readings; with it, old ones count as missing.
        unheard: Members that the master does not hear at the moment; nothing is placed there.

    Returns:
        What happened, in order; empty when the command changes nothing.

    Raises:
        SkulkError: A refusal; nothing has happened.
    """
    match command.kind:
        case "place_instance":
            return instance_decisions.place(
                state, readings, command, now_ms=now_ms, now_s=now_s, unheard=unheard
            )
        case "move_instance":
            return move_decisions.move(
                state, readings, command, now_ms=now_ms, now_s=now_s, unheard=unheard
            )
        case "wake_instance":
            return demand_decisions.wake(
                state, readings, command, now_ms=now_ms, now_s=now_s, unheard=unheard
            )
        case (
            "stop_instance"
            | "sleep_instance"
            | "pin_instance"
            | "unpin_instance"
            | "retry_instance"
            | "clear_breaker"
        ):
            return _decide_instance(state, command, now_ms)
        case "report_phase" | "report_failure":
            reported = instance_decisions.report(state, command, now_ms=now_ms)
            repaired = repair_decisions.with_repairs(
                state, readings, reported, now_ms=now_ms, now_s=now_s, unheard=unheard
            )
            return move_decisions.with_consequences(state, repaired)
        case "repair_instance":
            return repair_decisions.repair(
                state, readings, command, now_ms=now_ms, now_s=now_s, unheard=unheard
            )
        case "report_memory":
            return memory_decisions.report(state, command)
        case "report_download":
            return _report_download(state, command, now_ms)
        case (
            "admit_member"
            | "report_loss"
            | "report_leave"
            | "remove_member"
            | "drain_node"
            | "undrain_node"
            | "create_join_token"
            | "revoke_join_token"
            | "settle_term"
        ):
            return _decide_membership(state, command, now_ms)
        case _:
            return _decide_cluster(state, command, now_ms)


def _decide_instance(
    state: ClusterState,
    command: StopInstance
    | SleepInstance
    | PinInstance
    | UnpinInstance
    | RetryInstance
    | ClearBreaker,
    now_ms: int,
) -> tuple[Event, ...]:
    match command:
        case StopInstance():
            return instance_decisions.stop(state, command)
        case SleepInstance():
            return demand_decisions.fall_asleep(state, command)
        case PinInstance():
            return demand_decisions.pin(state, command)
        case UnpinInstance():
            return demand_decisions.unpin(state, command)
        case RetryInstance():
            return instance_decisions.retry(state, command)
        case ClearBreaker():
            return instance_decisions.clear_breaker(state, command, now_ms=now_ms)
        case _:
            assert_never(command)


def _decide_membership(
    state: ClusterState,
    command: AdmitMember
    | ReportLoss
    | ReportLeave
    | RemoveMember
    | DrainNode
    | UndrainNode
    | CreateJoinToken
    | RevokeJoinToken
    | SettleTerm,
    now_ms: int,
) -> tuple[Event, ...]:
    match command:
        case AdmitMember():
            return member_decisions.admit(state, command, now_ms=now_ms)
        case ReportLoss():
            return member_decisions.report_loss(state, command)
        case ReportLeave():
            return member_decisions.report_leave(state, command)
        case RemoveMember():
            return member_decisions.remove(state, command, now_ms=now_ms)
        case SettleTerm():
            return member_decisions.settle(state, command)
        case DrainNode():
            return drain_decisions.drain(state, command)
        case UndrainNode():
            return drain_decisions.undrain(state, command)
        case CreateJoinToken():
            return invitation_decisions.create(state, command, now_ms=now_ms)
        case RevokeJoinToken():
            return invitation_decisions.revoke(state, command)
        case _:
            assert_never(command)


def _decide_cluster(
    state: ClusterState,
    command: ReportFacts
    | AddCard
    | RemoveCard
    | CreateApiKey
    | ChangeApiKey
    | RotateApiKey
    | RevokeApiKey
    | ChangeSettings,
    now_ms: int,
) -> tuple[Event, ...]:
    match command:
        case ReportFacts():
            return _report_facts(state, command)
        case AddCard():
            return _add_card(state, command)
        case RemoveCard():
            return _remove_card(state, command)
        case CreateApiKey():
            return key_decisions.create(state, command, now_ms)
        case ChangeApiKey():
            return key_decisions.change(state, command, now_ms)
        case RotateApiKey():
            return key_decisions.rotate(state, command, now_ms)
        case RevokeApiKey():
            return key_decisions.revoke(state, command)
        case ChangeSettings():
            return _change_settings(state, command)
        case _:
            assert_never(command)


def _report_facts(state: ClusterState, command: ReportFacts) -> tuple[Event, ...]:
    member = member_decisions.member_of(state, command.node_id)
    if member.facts == command.facts and member.capabilities == command.capabilities:
        return ()
    return (
        MemberFactsReported(
            node_id=command.node_id, facts=command.facts, capabilities=command.capabilities
        ),
    )


def _report_download(
    state: ClusterState, command: ReportDownload, now_ms: int
) -> tuple[Event, ...]:
    member_decisions.member_of(state, command.node_id)
    outcome = DownloadOutcome(
        node_id=command.node_id,
        model_id=command.model_id,
        at_ms=now_ms,
        size_bytes=command.size_bytes,
        error=command.error,
    )
    known = state.downloads.get(f"{command.node_id}/{command.model_id}")
    if known is not None and (known.size_bytes, known.error) == (command.size_bytes, command.error):
        return ()
    return (DownloadEnded(outcome=outcome),)


def _add_card(state: ClusterState, command: AddCard) -> tuple[Event, ...]:
    known = state.cards.get(command.card.model_id)
    if known == command.card:
        return ()
    if known is None and len(state.cards) >= MAX_CARDS:
        raise StoreError(
            "store.card_invalid",
            f"the cluster keeps {MAX_CARDS} custom cards and has {len(state.cards)}",
            remediation="Remove cards that are not used (`skulk models rm`).",
        )
    return (CardAdded(card=command.card),)


def _remove_card(state: ClusterState, command: RemoveCard) -> tuple[Event, ...]:
    if command.model_id not in state.cards:
        raise StoreError(
            "store.not_found",
            f"there is no custom card for {command.model_id}",
            remediation="`skulk models list` shows which cards are custom.",
        )
    return (CardRemoved(model_id=command.model_id),)


def _change_settings(state: ClusterState, command: ChangeSettings) -> tuple[Event, ...]:
    if command.settings == state.settings:
        return ()
    if command.settings.policy == "quorum" != state.settings.policy:
        _check_majority(state)
    return (SettingsChanged(settings=command.settings),)


def _check_majority(state: ClusterState) -> None:
    """Refuse what would hold at once and could not even be taken back by those that are there."""
    voters = [member for member in state.members.values() if member.is_voter]
    n_present = sum(member.presence == "present" for member in voters)
    if state.is_minority_term:
        problem = "the master was elected by half of the voters or fewer"
    elif voters and 2 * n_present <= len(voters):
        problem = f"{n_present} of {len(voters)} voters are present"
    else:
        return
    raise ClusterError(
        "cluster.minority_term",
        f"the policy cannot become quorum while {problem}: nothing could be changed any more",
        remediation="Bring other members back, or remove those that are gone for good "
        "(`skulk cluster remove`).",
    )
