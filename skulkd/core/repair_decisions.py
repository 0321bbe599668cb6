"""Repairing an instance: it cannot go on where it is, and is put on other nodes; pure.

An instance keeps its id, its request and what it is (on demand, pinned); its plan and its attempt
are new. A node that it has left sees that it is no longer named, ends what it runs of it and gives
up the download that it began for it.

    cannot go on because           then, first that fits                      else
    memory was refused there       more nodes; or without that node           failed, with why
    an attempt failed for good     the request again, without that node       failed, with why
    a node is away for too long    the request again, without what is away    it waits; says why

Where facts are still arriving the answer waits for them. A node at fault is avoided for a while,
and an instance is put elsewhere three times in ten minutes at most, so that two nodes never pass a
model to and fro. What would end the same on every node is not repaired.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from protocol.commands import RepairInstance
from protocol.errors import ErrorBody, ErrorCode
from protocol.events import (
    DownloadForgotten,
    Event,
    InstanceFailed,
    InstanceReplanned,
    PlacementFailed,
)
from protocol.ids import InstanceId, NodeId
from protocol.instances import Instance, InstanceFailure, Repair
from protocol.placements import PlacementOutcome, PlacementRequest, Plan, Refusal
from protocol.readings import Readings
from protocol.state import ClusterState, PlacementFailure
from skulkd.core.breaker import WINDOW_MS
from skulkd.core.instance_decisions import liveness_of
from skulkd.core.move_decisions import move_of, nodes_of, request_of
from skulkd.core.placement.explain import nearest_refusal
from skulkd.core.placement.files import holders_in
from skulkd.core.placement.planner import plan

MAX_REPAIRS: Final = 3
"""In WINDOW_MS, of one instance."""
AVOIDED_MS: Final = WINDOW_MS
AVOIDED_AFTER_ABSENCE_MS: Final = 60_000
"""A node that was away is no worse for it, unless it comes and goes."""
FACTS_WAIT_MS: Final = 15_000
"""As long as placing waits for facts."""
MAX_REASONS: Final = 16
"""Of as many nodes a failure says why they cannot take an instance."""

SAME_EVERYWHERE: Final[frozenset[ErrorCode]] = frozenset(
    {
        "store.card_invalid",
        "store.card_unknown_field",
        "store.gguf_invalid",
        "store.gguf_truncated",
        "store.digest_mismatch",
        "store.source_changed",
        "store.not_found",
        "store.cancelled",
        "store.paused",
        "engine.unsupported",
        "engine.request_failed",
        "internal.bug",
    }
)
"""About the model, or an operator's word: another node would end the same."""
AWAY: Final[frozenset[ErrorCode]] = frozenset({"placement.node_unreachable"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cause:
    """Why an instance cannot go on, and which of its nodes that is about."""

    error: ErrorBody
    at_fault: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """What is planned against: as the arguments of `decide`."""

    state: ClusterState
    readings: Readings
    now_ms: int
    now_s: float | None
    unheard: frozenset[NodeId]


def repair(
    state: ClusterState,
    readings: Readings,
    command: RepairInstance,
    *,
    now_ms: int,
    now_s: float | None,
    unheard: frozenset[NodeId],
) -> tuple[Event, ...]:
    """Put an instance elsewhere that waits for it; nothing while that cannot be said yet.

    Args:
        state: The newest.
        readings: The master's own.
        command: Which instance; who sends it has seen that its nodes are away for long enough.
        now_ms: The stamp of the events.
        now_s: On the clock of the readings; with it, old ones count as missing.
        unheard: Members that the master does not hear at the moment.
    """
    instance = state.instances.get(command.instance_id)
    if (
        instance is None
        or instance.attempt != command.after_attempt
        or not is_repairable(state, instance)
    ):
        return ()
    site = _Site(state=state, readings=readings, now_ms=now_ms, now_s=now_s, unheard=unheard)
    waiting = waiting_failure(instance)
    if waiting is not None:
        return _after(site, instance, waiting)
    away = away_nodes(state, instance)
    return _without_absent(site, instance, away) if away else ()


def with_repairs(
    state: ClusterState,
    readings: Readings,
    events: tuple[Event, ...],
    *,
    now_ms: int,
    now_s: float | None,
    unheard: frozenset[NodeId],
) -> tuple[Event, ...]:
    """Put another place after a failure that is final where it is.

    Args:
        state: The newest, without these events.
        readings: The master's own.
        events: What follows from one report.
        now_ms: As `repair`.
        now_s: As `repair`.
        unheard: As `repair`.
    """
    site = _Site(state=state, readings=readings, now_ms=now_ms, now_s=now_s, unheard=unheard)
    decided: list[Event] = []
    for event in events:
        if not isinstance(event, InstanceFailed) or not event.failure.final:
            decided.append(event)
            continue
        instance = state.instances[event.failure.instance_id]
        is_hopeless = event.failure.error.code in SAME_EVERYWHERE
        if is_hopeless or not is_repairable(state, instance):
            decided.append(event)
            continue
        waiting = event.failure.model_copy(update={"final": False})
        decided.extend(_after(site, instance, waiting) or (InstanceFailed(failure=waiting),))
    return tuple(decided)


def is_repairable(state: ClusterState, instance: Instance) -> bool:
    """Say whether an instance may be put elsewhere: it is wanted, may be, and is not being moved.

    What is being moved has another place already.
    """
    return (
        liveness_of(instance) == "live"
        and instance.disconnect.replace
        and instance.replaces is None
        and move_of(state, instance.instance_id) is None
    )


def waiting_failure(instance: Instance) -> InstanceFailure | None:
    """Give the failure of the present attempt that has led to nothing yet: facts are missing."""
    failure = instance.failure
    is_waiting = (
        failure is not None
        and not failure.final
        and failure.attempt == instance.attempt
        and instance.desired == "running"
    )
    return failure if is_waiting else None


def away_nodes(state: ClusterState, instance: Instance) -> tuple[NodeId, ...]:
    """Name the nodes of an instance that are lost or have left, as the cluster has agreed."""
    members = (state.members.get(node_id) for node_id in nodes_of(instance))
    return tuple(
        dict.fromkeys(
            member.node_id
            for member in members
            if member is not None and member.presence in {"lost", "left"}
        )
    )


def _after(site: _Site, instance: Instance, failure: InstanceFailure) -> tuple[Event, ...]:
    """Give what follows a failure; nothing while facts are awaited."""
    at_fault = nodes_of(instance) if failure.node_id is None else (failure.node_id,)
    cause = _Cause(error=failure.error, at_fault=at_fault)
    found = _look_elsewhere(site, instance, cause)
    noted = (InstanceFailed(failure=failure),) if instance.failure != failure else ()
    if isinstance(found, Plan):
        return (*noted, *_replanned(site, instance, cause, found))
    if found.missing_facts and site.now_ms - failure.at_ms < FACTS_WAIT_MS:
        return ()
    final = InstanceFailed(failure=failure.model_copy(update={"final": True}))
    return (final, *_no_place(site, instance, cause, found))


def _without_absent(site: _Site, instance: Instance, away: tuple[NodeId, ...]) -> tuple[Event, ...]:
    said = f"{_names(site.state, away)} {'is' if len(away) == 1 else 'are'} away"
    error = ErrorBody(code="placement.node_unreachable", message=said)
    cause = _Cause(error=error, at_fault=away)
    found = _look_elsewhere(site, instance, cause)
    if isinstance(found, Plan):
        return _replanned(site, instance, cause, found)
    since_ms = max(site.state.members[node_id].since_ms for node_id in away)
    is_told = any(
        one.instance_id == instance.instance_id and one.at_ms >= since_ms
        for one in site.state.placement_failures
    )
    return () if found.missing_facts or is_told else _no_place(site, instance, cause, found)


def _look_elsewhere(site: _Site, instance: Instance, cause: _Cause) -> Plan | PlacementOutcome:
    """Take the first plan of the requests that may be made; else what the last one was told."""
    if n_recent_repairs(instance, site.now_ms) >= MAX_REPAIRS:
        return PlacementOutcome(refusals=(_often_enough(),))
    others = {key: one for key, one in site.state.instances.items() if key != instance.instance_id}
    state = site.state.changed({"instances": others})
    outcome = PlacementOutcome()
    missing: tuple[str, ...] = ()
    for request in _requests(site, instance, cause):
        outcome = plan(
            request,
            instance.card,
            instance.plan.card_digest,
            state,
            site.readings,
            now_s=site.now_s,
            unheard=site.unheard,
            holders=holders_in(site.readings, instance.model_id) or None,
        )
        if outcome.plans:
            return outcome.plans[0]
        missing += outcome.missing_facts
    return outcome.model_copy(update={"missing_facts": missing})


def _requests(site: _Site, instance: Instance, cause: _Cause) -> Iterator[PlacementRequest]:
    """Give what may be asked of the planner, in the order of preference."""
    wished = request_of(instance)
    avoided = {*_avoided(instance, site.now_ms), *_places_of_copies(site.state, instance)}
    if cause.error.code == "runner.no_memory" and wished.shape != "single":
        width = len(instance.plan.shards) + 1
        yield _without(wished.model_copy(update={"min_nodes": width}), avoided)
    avoided.update(cause.at_fault)
    may_be_alone = wished.shape in {None, "single"}
    if cause.error.code != "runner.no_memory" or not may_be_alone:
        yield _without(wished, avoided)
    if may_be_alone:
        alone = wished.model_copy(update={"min_nodes": 1, "shape": "single"})
        yield _without(alone, avoided)


def _without(request: PlacementRequest, avoided: Iterable[NodeId]) -> PlacementRequest:
    left_out = tuple(dict.fromkeys((*request.excluded_nodes, *sorted(avoided))))
    return request.model_copy(update={"excluded_nodes": left_out})


def n_recent_repairs(instance: Instance, now_ms: int) -> int:
    """Count the repairs of the last WINDOW_MS."""
    return sum(now_ms - one.at_ms < WINDOW_MS for one in instance.repairs)


def _avoided(instance: Instance, now_ms: int) -> Iterator[NodeId]:
    for one in instance.repairs:
        for_ms = AVOIDED_AFTER_ABSENCE_MS if one.error.code in AWAY else AVOIDED_MS
        if now_ms - one.at_ms < for_ms:
            yield from one.at_fault


def _places_of_copies(state: ClusterState, instance: Instance) -> Iterator[NodeId]:
    """Name the nodes where the model runs already: there it runs once."""
    for other in state.instances.values():
        is_copy = other.model_id == instance.model_id and other.instance_id != instance.instance_id
        if is_copy and liveness_of(other) == "live":
            yield from nodes_of(other)


def _replanned(site: _Site, instance: Instance, cause: _Cause, made: Plan) -> tuple[Event, ...]:
    repaired = Repair(
        at_ms=site.now_ms,
        attempt=instance.attempt,
        error=cause.error,
        at_fault=cause.at_fault,
        from_nodes=tuple(dict.fromkeys(nodes_of(instance))),
        to_nodes=tuple(dict.fromkeys(shard.node_id for shard in made.shards)),
    )
    forgotten = (
        DownloadForgotten(node_id=node_id, model_id=instance.model_id)
        for node_id in cause.at_fault
        if _has_failed_download(site.state, node_id, instance)
    )
    placed = InstanceReplanned(
        instance_id=instance.instance_id,
        attempt=instance.attempt + 1,
        plan=made,
        repair=repaired,
    )
    return (placed, *forgotten)


def _has_failed_download(state: ClusterState, node_id: NodeId, instance: Instance) -> bool:
    outcome = state.downloads.get(f"{node_id}/{instance.model_id}")
    return outcome is not None and outcome.error is not None


def _no_place(
    site: _Site, instance: Instance, cause: _Cause, found: PlacementOutcome
) -> tuple[Event, ...]:
    """Say under the instance's id why no other node took it; where there is none, say nothing."""
    at_fault = set(cause.at_fault)
    refusals = tuple(one for one in found.refusals if one.node_id not in at_fault)
    if not refusals:
        return ()
    told = tuple(_with_reason(site, instance, refusal) for refusal in refusals)
    nearest = nearest_refusal(told).error
    reasons = [refusal.error.message for refusal in told[:MAX_REASONS]]
    if len(told) > MAX_REASONS:
        reasons.append(f"{len(told) - MAX_REASONS} more nodes refused")
    error = ErrorBody(
        code=nearest.code,
        message=f"{instance.model_id} cannot go on ({cause.error.message}), and no other node "
        f"takes it: {'; '.join(reasons)}",
        remediation=_remedy(instance, cause, nearest),
        details=nearest.details,
        retry_after_s=nearest.retry_after_s,
    )
    failure = PlacementFailure(
        instance_id=instance.instance_id,
        model_id=instance.model_id,
        at_ms=site.now_ms,
        error=error,
    )
    return (PlacementFailed(failure=failure),)


def _remedy(instance: Instance, cause: _Cause, nearest: ErrorBody) -> str:
    if cause.error.code in AWAY:
        return f"It goes on once its node is back. {nearest.remediation}".strip()
    again = f"Then try again: skulk retry {instance.instance_id}"
    return f"{nearest.remediation} {again}".strip()


def _with_reason(site: _Site, instance: Instance, refusal: Refusal) -> Refusal:
    """Say of a node that was left out for a failure there which one it was."""
    if refusal.node_id is None:
        return refusal
    for one in reversed(instance.repairs):
        if refusal.node_id in one.at_fault and refusal.error.code == "placement.no_node":
            name = _names(site.state, (refusal.node_id,))
            error = refusal.error.model_copy(
                update={
                    "message": f"{name}: it could not go on there ({one.error.message})",
                    "remediation": one.error.remediation or refusal.error.remediation,
                }
            )
            return refusal.model_copy(update={"error": error})
    return refusal


def _often_enough() -> Refusal:
    return Refusal(
        node_id=None,
        error=ErrorBody(
            code="placement.failed",
            message=f"it was put on other nodes {MAX_REPAIRS} times within "
            f"{WINDOW_MS // 60_000} minutes, and goes no further by itself",
            remediation="See why each of them failed (`skulk events`, `skulk instance show`).",
        ),
    )


def _names(state: ClusterState, node_ids: Iterable[NodeId]) -> str:
    members = ((node_id, state.members.get(node_id)) for node_id in node_ids)
    return ", ".join(node_id if member is None else member.name for node_id, member in members)


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRepair:
    """Submit `RepairInstance`."""

    instance_id: InstanceId
    after_attempt: int


def repairs_due(state: ClusterState, silent_ms: Mapping[NodeId, int]) -> Iterator[DueRepair]:
    """Name the instances that wait for another place: for facts, or for nodes that are away.

    Args:
        state: After the last appended event.
        silent_ms: How long the master has not heard each member that it does not hear now.
    """
    for instance in state.instances.values():
        if waiting_failure(instance) is None and not _is_away_too_long(state, instance, silent_ms):
            continue
        if is_repairable(state, instance):
            yield DueRepair(instance_id=instance.instance_id, after_attempt=instance.attempt)


def _is_away_too_long(
    state: ClusterState, instance: Instance, silent_ms: Mapping[NodeId, int]
) -> bool:
    if not silent_ms:
        return False
    patience_ms = instance.disconnect.lost_after_ms
    return any(silent_ms.get(one, 0) >= patience_ms for one in away_nodes(state, instance))
