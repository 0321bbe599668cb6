"""Decisions about instances: placing, stopping, retrying, and what their runners report.

A model may run several times, on several nodes: each placement is another copy. On one node it runs
once: a second placement there is `placement.already_live`, whatever its window or slots. One whose
failure is final gives way to a new placement, and one that is stopping is gone already.
"""

from typing import Final, Literal

from protocol.cards import card_digest
from protocol.commands import (
    ClearBreaker,
    PlaceInstance,
    ReportFailure,
    ReportMemory,
    ReportPhase,
    RetryInstance,
    StopInstance,
)
from protocol.errors import PlacementError, RequestError, error_of
from protocol.events import (
    BreakerCleared,
    Event,
    InstanceFailed,
    InstanceFellAsleep,
    InstancePlaced,
    InstanceRemoved,
    InstanceRetried,
    InstanceStopRequested,
    RunnerPhaseChanged,
)
from protocol.ids import InstanceId, NodeId
from protocol.instances import (
    PHASE_ORDER,
    Instance,
    InstanceFailure,
    Phase,
    RunnerStatus,
)
from protocol.placements import PlacementOutcome, Plan
from protocol.readings import Readings
from protocol.state import ClusterState
from skulkd.core.breaker import allows_retry, n_recent_retries
from skulkd.core.placement.explain import outcome_error, size_text, sum_text
from skulkd.core.placement.files import holders_in
from skulkd.core.placement.memory_fit import lack_in_all_bytes
from skulkd.core.placement.planner import plan, replan
from skulkd.core.placement.refusals import draining

MAX_INSTANCES: Final = 512
MAX_SLOTS: Final = 256
MAX_CONTEXT_TOKENS: Final = 1 << 24
"""As requests are bounded; a plan comes back from outside, whoever made it."""
_NO_REPORT: Final[frozenset[Phase]] = frozenset({"asleep", "failed"})
_ORDER: Final[tuple[Phase, ...]] = (*PHASE_ORDER, "stopping", "stopped")
Liveness = Literal["live", "failed", "stopping"]


def place(
    state: ClusterState,
    readings: Readings,
    command: PlaceInstance,
    *,
    now_ms: int,
    now_s: float | None,
    unheard: frozenset[NodeId],
) -> tuple[Event, ...]:
    """Take exactly the plan that the command carries, if it still holds on these readings.

    Args:
        state: The newest.
        readings: The master's own.
        command: What is to be placed.
        now_ms: The stamp of the event.
        now_s: On the clock of the readings; with it, old ones count as missing.
        unheard: Members that the master does not hear at the moment.

    Raises:
        RequestError: `request.invalid` when request, plan and card do not belong together.
        PlacementError: `placement.card_changed`, `placement.already_live`,
            `placement.plan_changed`, `placement.facts_missing`, `placement.busy`, or why nothing
            fits any more.
    """
    instance_id = InstanceId(command.command_id)
    if instance_id in state.instances:
        return ()
    _check_consistent(command)
    _check_card(state, command)
    given_way = _make_way(state, command.plan)
    if len(state.instances) - len(given_way) >= MAX_INSTANCES:
        raise PlacementError(
            "placement.busy",
            f"the cluster holds {len(state.instances)} instances and takes {MAX_INSTANCES}",
            remediation="Stop instances that are not used (`skulk stop`).",
        )
    made = _confirm(state, readings, command, now_s=now_s, unheard=unheard)
    placed = Instance(
        instance_id=instance_id,
        model_id=made.model_id,
        plan=made,
        card=command.card,
        desired="running" if command.ttl_ms is None else "asleep",
        ttl_ms=command.ttl_ms,
        priority=command.priority,
        placed_at_ms=now_ms,
        request=command.request,
        disconnect=command.disconnect,
    )
    return (*given_way, InstancePlaced(instance=placed))


def stop(state: ClusterState, command: StopInstance) -> tuple[Event, ...]:
    """Ask an instance's runners to go; forget one that has none left.

    One that is stopping already, with time for its requests, is given less of it, never more.

    Raises:
        PlacementError: `placement.not_live` for an instance that is not known.
    """
    instance = known_instance(state, command.instance_id)
    match liveness_of(instance):
        case "stopping" if command.drain_ms >= instance.drain_ms:
            return ()
        case "failed":
            return (InstanceRemoved(instance_id=instance.instance_id),)
        case "stopping" | "live":
            return (
                InstanceStopRequested(instance_id=instance.instance_id, drain_ms=command.drain_ms),
            )


def retry(state: ClusterState, command: RetryInstance) -> tuple[Event, ...]:
    """Begin the next attempt of an instance whose present one failed or went with its daemon.

    Raises:
        PlacementError: `placement.not_live` for an instance that is not known or is being stopped,
            `placement.busy` when it is at another attempt than the command says,
            `placement.no_fit` when others have been placed where it was,
            `placement.node_draining` when one of its nodes is being drained.
    """
    instance = known_instance(state, command.instance_id)
    if liveness_of(instance) == "stopping":
        raise PlacementError(
            "placement.not_live",
            f"instance {instance.instance_id} is being stopped",
            remediation="Place the model anew once it is gone.",
        )
    if instance.desired == "asleep":
        raise PlacementError(
            "placement.not_live",
            f"instance {instance.instance_id} is asleep; there is nothing to try again",
            remediation="The next request for its model loads it.",
        )
    if instance.attempt != command.after_attempt:
        raise PlacementError(
            "placement.busy",
            f"instance {instance.instance_id} is at attempt {instance.attempt}, not "
            f"{command.after_attempt}: it has been retried since",
            remediation="Look at it again with `skulk ps`.",
            details={"attempt": instance.attempt},
        )
    if liveness_of(instance) == "failed":
        _check_eligible(state, instance)
        _check_room(state, instance)
    return (InstanceRetried(instance_id=instance.instance_id, attempt=instance.attempt + 1),)


def clear_breaker(state: ClusterState, command: ClearBreaker, *, now_ms: int) -> tuple[Event, ...]:
    """Begin the count of relaunches anew; what failed for good is tried again.

    Raises:
        PlacementError: `placement.not_live` for an instance that is not known or is being stopped,
            `placement.no_fit` when others have been placed where it was,
            `placement.node_draining` when one of its nodes is drained.
    """
    instance = known_instance(state, command.instance_id)
    match liveness_of(instance):
        case "stopping" | "failed":
            again = RetryInstance(
                command_id=command.command_id,
                instance_id=instance.instance_id,
                after_attempt=instance.attempt,
            )
            return retry(state, again)
        case "live":
            n_retries = n_recent_retries(state, instance.instance_id, now_ms)
            return (BreakerCleared(instance_id=instance.instance_id),) if n_retries else ()


def report(
    state: ClusterState, command: ReportPhase | ReportFailure, *, now_ms: int
) -> tuple[Event, ...]:
    """Note what a runner says; see `report_phase` and `report_failure`."""
    if isinstance(command, ReportPhase):
        return report_phase(state, command, now_ms=now_ms)
    return report_failure(state, command, now_ms=now_ms)


def report_phase(state: ClusterState, command: ReportPhase, *, now_ms: int) -> tuple[Event, ...]:
    """Note the phase of a runner; late, repeated and backward reports change nothing.

    Raises:
        RequestError: `request.invalid` for a node or rank that the plan does not have, or for the
            phases `failed`, which only `ReportFailure` reports, and `asleep`, which no runner has.
    """
    instance = reported(state, command)
    if command.phase in _NO_REPORT:
        raise RequestError(
            "request.invalid",
            f"the phase {command.phase} is not reported: a failure is by report_failure",
        )
    if instance is None or liveness_of(instance) == "failed":
        return ()
    if liveness_of(instance) == "stopping" and command.phase == "stopped":
        return _rank_stopped(instance, command, now_ms)
    known = _runner(instance, command.rank)
    if known is not None and not _is_later(command.phase, known.phase):
        return ()
    status = RunnerStatus(
        rank=command.rank,
        node_id=command.node_id,
        attempt=command.attempt,
        phase=command.phase,
        since_ms=now_ms,
        pid=command.pid,
    )
    launch = command.launch if command.phase == "ready" else None
    return (RunnerPhaseChanged(instance_id=instance.instance_id, runner=status, launch=launch),)


def report_failure(
    state: ClusterState, command: ReportFailure, *, now_ms: int
) -> tuple[Event, ...]:
    """Note that an attempt failed, and begin another one if the breaker allows it.

    An on-demand instance that found too little memory sleeps again: what holds the memory may be
    gone when it is asked for the next time.

    Raises:
        RequestError: `request.invalid` for a node or rank that the plan does not have.
    """
    instance = reported(state, command)
    if instance is None:
        return ()
    if liveness_of(instance) != "live":
        # One that was to go is failing now, and its processes may still be there: that they are
        # gone, however it came about, is told by report_phase.
        return ()
    known = _runner(instance, command.rank)
    if known is not None and known.phase == "failed":
        return ()
    failure = InstanceFailure(
        instance_id=instance.instance_id,
        model_id=instance.model_id,
        node_id=command.node_id,
        attempt=command.attempt,
        phase="ready" if command.was_ready else command.phase,
        error=command.error,
        exit_code=command.exit_code,
        signal=command.signal,
        log_tail=command.log_tail,
        at_ms=now_ms,
        final=True,
    )
    if _sleeps_over(instance, failure):
        return (
            InstanceFailed(failure=failure.model_copy(update={"final": False})),
            InstanceFellAsleep(instance_id=instance.instance_id),
        )
    if not allows_retry(state, instance, failure):
        return (InstanceFailed(failure=failure),)
    return (
        InstanceFailed(failure=failure.model_copy(update={"final": False})),
        InstanceRetried(instance_id=instance.instance_id, attempt=instance.attempt + 1),
    )


def _check_consistent(command: PlaceInstance) -> None:
    request, made, card = command.request, command.plan, command.card
    if not request.model_id == made.model_id == card.model_id:
        problem = f"it asks for {request.model_id}, plans {made.model_id}, brings {card.model_id}"
    elif request.context_tokens not in {None, made.context_tokens}:
        problem = f"it asks for {request.context_tokens} tokens and plans {made.context_tokens}"
    elif request.slots not in {None, made.slots}:
        problem = f"it asks for {request.slots} slots and plans {made.slots}"
    elif not (1 <= made.slots <= MAX_SLOTS and 1 <= made.context_tokens <= MAX_CONTEXT_TOKENS):
        problem = f"it plans {made.slots} slots and {made.context_tokens} tokens"
    else:
        return
    raise RequestError(
        "request.invalid",
        f"the placement contradicts itself: {problem}",
        remediation="Take plan and card from one answer of GET /instance/previews.",
    )


def _check_card(state: ClusterState, command: PlaceInstance) -> None:
    made = command.plan
    digest = card_digest(command.card)
    custom = state.cards.get(made.model_id)
    current = digest if custom is None else card_digest(custom)
    if digest == made.card_digest == current:
        return
    raise PlacementError(
        "placement.card_changed",
        f"the plan was made for card {made.card_digest[:12]} of {made.model_id}; the card is now "
        f"{current[:12]}",
        remediation="Plan again (`skulk place --dry-run`), then place the new plan.",
        details={"card_digest": current, "planned_card_digest": made.card_digest},
    )


def _make_way(state: ClusterState, made: Plan) -> tuple[Event, ...]:
    """Refuse a second copy on a node; give the removals of failed ones there."""
    nodes = {shard.node_id for shard in made.shards}
    removed: list[Event] = []
    for instance in state.instances.values():
        if instance.model_id != made.model_id or not nodes & _nodes(instance):
            continue
        match liveness_of(instance):
            case "failed":
                removed.append(InstanceRemoved(instance_id=instance.instance_id))
            case "live":
                raise PlacementError(
                    "placement.already_live",
                    f"{made.model_id} is placed there already: instance {instance.instance_id}, "
                    f"phase {instance.phase}",
                    remediation=f"Use it, stop it (`skulk stop {instance.instance_id}`), or name "
                    "another node with --nodes.",
                    details={"instance_id": instance.instance_id, "phase": instance.phase},
                )
            case "stopping":
                continue
    return tuple(removed)


def _confirm(
    state: ClusterState,
    readings: Readings,
    command: PlaceInstance,
    *,
    now_s: float | None,
    unheard: frozenset[NodeId],
) -> Plan:
    """Plan again on the master's readings; the same assignment has to come out."""
    made, card = command.plan, command.card
    again = replan(made, command.request, card, state, readings, now_s=now_s, unheard=unheard)
    if again.plans and again.plans[0].plan_id == made.plan_id:
        return again.plans[0]
    fresh = plan(
        command.request,
        card,
        made.card_digest,
        state,
        readings,
        now_s=now_s,
        unheard=unheard,
        holders=holders_in(readings, card.model_id) or None,
    )
    if not fresh.plans:
        raise outcome_error(_about(made, again) if again.missing_facts else fresh, card.model_id)
    best = fresh.plans[0]
    memory = best.shards[0].memory
    raise PlacementError(
        "placement.plan_changed",
        f"plan {made.plan_id[:12]} no longer holds{_why(made, again)}; plan "
        f"{best.plan_id[:12]} would be: {best.backend} on {_node_names(state, best)}, "
        f"{sum_text(memory)}",
        remediation="Look at the new plan (`skulk place --dry-run`), then place it.",
        details={
            "plan_id": best.plan_id,
            "planned_plan_id": made.plan_id,
            "backend": best.backend,
            "context_tokens": best.context_tokens,
            "needed_bytes": memory.needed_bytes,
            "available_bytes": memory.available_bytes,
            "reserved_bytes": memory.reserved_bytes,
        },
    )


def _check_eligible(state: ClusterState, instance: Instance) -> None:
    """Refuse to bring back what failed on a node that has been drained since."""
    for shard in instance.plan.shards:
        member = state.members.get(shard.node_id)
        if member is not None and member.drain_since_ms is not None:
            raise error_of(draining(member).error)


def _check_room(state: ClusterState, instance: Instance) -> None:
    """Refuse to bring back what failed for good, and so held nothing, beside what came since."""
    for shard in instance.plan.shards:
        lack_bytes = lack_in_all_bytes(state, shard)
        if lack_bytes:
            name = state.members[shard.node_id].name
            raise PlacementError(
                "placement.no_fit",
                f"{instance.model_id} needs {size_text(shard.memory.needed_bytes)} on {name}, and "
                f"what has been placed there since leaves {size_text(lack_bytes)} too little",
                remediation="Stop another instance there, or stop this one and place the model "
                "anew: the plan is then made for what is free.",
                details={"needed_bytes": shard.memory.needed_bytes, "lack_bytes": lack_bytes},
            )


def _about(made: Plan, outcome: PlacementOutcome) -> PlacementOutcome:
    """Leave out what an outcome says of nodes that the plan does not use."""
    nodes = {shard.node_id for shard in made.shards}
    kept = tuple(refusal for refusal in outcome.refusals if refusal.node_id in {None, *nodes})
    return outcome.model_copy(update={"refusals": kept})


def _why(made: Plan, again: PlacementOutcome) -> str:
    reasons = [refusal.error.message for refusal in _about(made, again).refusals]
    return f" ({'; '.join(reasons)})" if reasons else ""


def _node_names(state: ClusterState, made: Plan) -> str:
    return ", ".join(state.members[shard.node_id].name for shard in made.shards)


def known_instance(state: ClusterState, instance_id: InstanceId) -> Instance:
    """Find an instance.

    Raises:
        PlacementError: `placement.not_live` for one that is not known.
    """
    instance = state.instances.get(instance_id)
    if instance is None:
        raise PlacementError(
            "placement.not_live",
            f"there is no instance {instance_id}",
            remediation="`skulk ps` lists the instances.",
        )
    return instance


def reported(
    state: ClusterState, command: ReportPhase | ReportFailure | ReportMemory
) -> Instance | None:
    """Find the instance of a report; None when the report comes too late to matter."""
    instance = state.instances.get(command.instance_id)
    if instance is None or instance.attempt != command.attempt:
        return None
    for shard in instance.plan.shards:
        if shard.rank == command.rank and shard.node_id == command.node_id:
            return instance
    raise RequestError(
        "request.invalid",
        f"instance {instance.instance_id} has no rank {command.rank} on node {command.node_id}",
        details={"rank": command.rank, "node_id": command.node_id},
    )


def _rank_stopped(instance: Instance, command: ReportPhase, now_ms: int) -> tuple[Event, ...]:
    """Note that a rank of an unwanted instance is gone; with the last one the instance is."""
    gone = {runner.rank for runner in instance.runners if runner.phase == "stopped"}
    if command.rank in gone:
        return ()
    if len(gone) + 1 == len(instance.plan.shards):
        return (InstanceRemoved(instance_id=instance.instance_id),)
    status = RunnerStatus(
        rank=command.rank,
        node_id=command.node_id,
        attempt=command.attempt,
        phase="stopped",
        since_ms=now_ms,
    )
    return (RunnerPhaseChanged(instance_id=instance.instance_id, runner=status),)


def liveness_of(instance: Instance) -> Liveness:
    """Say whether an instance has failed for good, is being stopped, or is wanted; awake or not."""
    if instance.failure is not None and instance.failure.final:
        return "failed"
    return "stopping" if instance.desired == "stopped" else "live"


def _sleeps_over(instance: Instance, failure: InstanceFailure) -> bool:
    return (
        instance.ttl_ms is not None
        and failure.phase != "ready"
        and failure.error.code == "runner.no_memory"
    )


def _runner(instance: Instance, rank: int) -> RunnerStatus | None:
    return next((runner for runner in instance.runners if runner.rank == rank), None)


def _is_later(phase: Phase, known: Phase) -> bool:
    return known != "failed" and _ORDER.index(phase) > _ORDER.index(known)


def _nodes(instance: Instance) -> set[NodeId]:
    return {shard.node_id for shard in instance.plan.shards}
