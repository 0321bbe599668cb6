"""The reducer: fold one event of the log into the state.

`apply` is total on every log that `core.decide` can have written: it never refuses and never
guesses. An event that cannot be (an unknown instance, say) leaves everything but the position as it
was, so that all nodes still agree; `core.invariants.event_violations` names it.

The trade-off taken: states are values, so that a snapshot, a request handler and the next event can
each hold one without a lock. Only what an event changes is copied. The dedupe window is the one
large mapping that every command touches; results therefore gather in a small tuple and are merged
into the window 64 at a time, which makes them cost a fraction of a microsecond an event instead
of five.
"""

import hashlib
import json
from collections.abc import Mapping
from itertools import islice
from typing import Final, TypeVar, assert_never

from protocol.events import (
    ApiKeyChanged,
    ApiKeyCreated,
    ApiKeyRevoked,
    BreakerCleared,
    CardAdded,
    CardRemoved,
    ClusterFounded,
    Event,
    InstanceFailed,
    InstanceFellAsleep,
    InstancePinned,
    InstancePlaced,
    InstanceRemoved,
    InstanceReplanned,
    InstanceRetried,
    InstanceStopRequested,
    InstanceUnpinned,
    InstanceWoken,
    JoinTokenCreated,
    JoinTokenRevoked,
    MasterElected,
    MemberFactsReported,
    MemberJoined,
    MemberLeft,
    MemberLost,
    MemberRemoved,
    MemberReturned,
    MemoryMeasured,
    NodeDrainEnded,
    NodeDrainStarted,
    RunnerPhaseChanged,
    SequencedEvent,
    SettingsChanged,
    TermSettled,
)
from protocol.ids import ClusterId, CommandId, Digest, InstanceId, NodeId
from protocol.instances import REPAIRS_KEPT, Instance, RunnerStatus
from protocol.measurements import (
    BOOTS_KEPT,
    MEASUREMENTS_KEPT,
    MeasuredBoot,
    MemoryMeasurement,
)
from protocol.nodes import Presence
from protocol.state import (
    DEDUPE_WINDOW,
    FAILURES_KEPT,
    RECENT_RESULTS,
    REMOVED_KEPT,
    ClusterState,
    CommandResult,
    RemovedMember,
)

Key = TypeVar("Key")
Value = TypeVar("Value")
Changes = dict[str, object]
"""Fields of ClusterState that an event changes, by name."""

PLACEMENT_FAILURES_KEPT: Final = FAILURES_KEPT


def initial_state(cluster_id: ClusterId) -> ClusterState:
    """Give the state before the first event."""
    return ClusterState(cluster_id=cluster_id)


def apply(state: ClusterState, sequenced: SequencedEvent) -> ClusterState:
    """Fold the next event into the state; the old state stays as it was.

    Args:
        state: Folded from the log up to and with seq `sequenced.seq - 1`.
        sequenced: The next record.
    """
    term, seq, stamp_ms, command_id, event = sequenced
    at_ms = max(state.at_ms, stamp_ms)
    changes = _changes(state, event, at_ms)
    changes["term"] = term
    changes["seq"] = seq
    changes["at_ms"] = at_ms
    if not changes.get("is_minority_term", state.is_minority_term):
        changes["settled_term"] = term
        changes["settled_seq"] = seq
    if command_id is not None:
        _remember(state, command_id, sequenced, changes)
    return state.changed(changes)


def repeated(state: ClusterState, command_id: CommandId) -> CommandResult | None:
    """Find what a command led to, if it was decided before and is still in the window."""
    for result in reversed(state.recent_results):
        if result.command_id == command_id:
            return result
    return state.results.get(command_id)


def state_hash(state: ClusterState) -> Digest:
    """Digest a state: the same for every node that folded the same log prefix.

    Mappings are ordered by key first, so that a state that came as a snapshot agrees with one that
    was folded.
    """
    plain = state.model_dump(mode="json", by_alias=False)
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return Digest(hashlib.sha256(b"skulk state\0" + canonical.encode()).hexdigest())


def _changes(state: ClusterState, event: Event, at_ms: int) -> Changes:
    # By kind: asking each class in turn costs three times as much.
    match event.kind:
        case "runner_phase_changed":
            return _phase_changed(state, event)
        case "memory_measured":
            return _measured(state, event, at_ms)
        case (
            "instance_placed"
            | "instance_failed"
            | "instance_retried"
            | "instance_replanned"
            | "breaker_cleared"
            | "instance_woken"
            | "instance_fell_asleep"
            | "instance_pinned"
            | "instance_unpinned"
            | "instance_stop_requested"
            | "instance_removed"
        ):
            return _instance_changes(state, event, at_ms)
        case "placement_failed":
            kept = (*state.placement_failures, event.failure)[-PLACEMENT_FAILURES_KEPT:]
            return {"placement_failures": kept}
        case "download_ended":
            key = f"{event.outcome.node_id}/{event.outcome.model_id}"
            return {"downloads": {**state.downloads, key: event.outcome}}
        case "download_forgotten":
            key = f"{event.node_id}/{event.model_id}"
            return {"downloads": _without(state.downloads, key)}
        case (
            "member_joined"
            | "member_lost"
            | "member_left"
            | "member_returned"
            | "member_removed"
            | "member_facts_reported"
            | "node_drain_started"
            | "node_drain_ended"
            | "join_token_created"
            | "join_token_revoked"
        ):
            return _member_changes(state, event, at_ms)
        case _:
            return _cluster_changes(state, event)


def _instance_changes(
    state: ClusterState,
    event: InstancePlaced
    | InstanceFailed
    | InstanceRetried
    | InstanceReplanned
    | BreakerCleared
    | InstanceWoken
    | InstanceFellAsleep
    | InstancePinned
    | InstanceUnpinned
    | InstanceStopRequested
    | InstanceRemoved,
    at_ms: int,
) -> Changes:
    match event:
        case InstancePlaced():
            return _with_instance(state, event.instance)
        case InstanceFailed():
            return _failed(state, event)
        case InstanceRetried() | InstanceReplanned():
            return _next_attempt(state, event)
        case BreakerCleared():
            return _changed_instance(state, event.instance_id, {"breaker_cleared_ms": at_ms})
        case InstanceWoken():
            return _woken(state, event)
        case InstanceFellAsleep():
            asleep: Changes = {"desired": "asleep", "made_room_for": event.room_for}
            return _changed_instance(state, event.instance_id, asleep)
        case InstancePinned() | InstanceUnpinned():
            is_pinned = event.kind == "instance_pinned"
            return _changed_instance(state, event.instance_id, {"pinned": is_pinned})
        case InstanceStopRequested():
            return _stopping(state, event)
        case InstanceRemoved():
            return _gone(state, event.instance_id)
        case _:
            assert_never(event)


def _member_changes(
    state: ClusterState,
    event: MemberJoined
    | MemberLost
    | MemberLeft
    | MemberReturned
    | MemberRemoved
    | MemberFactsReported
    | NodeDrainStarted
    | NodeDrainEnded
    | JoinTokenCreated
    | JoinTokenRevoked,
    at_ms: int,
) -> Changes:
    match event:
        case MemberFactsReported():
            update: Changes = {"facts": event.facts, "capabilities": event.capabilities}
            return _changed_member(state, event.node_id, update)
        case MemberJoined():
            return _joined(state, event)
        case MemberLost():
            return _present(state, event.node_id, "lost", at_ms)
        case MemberLeft():
            return _present(state, event.node_id, "left", at_ms)
        case MemberReturned():
            return _present(state, event.node_id, "present", at_ms)
        case MemberRemoved():
            return _removed(state, event, at_ms)
        case NodeDrainStarted() | NodeDrainEnded():
            since_ms = at_ms if event.kind == "node_drain_started" else None
            return _changed_member(state, event.node_id, {"drain_since_ms": since_ms})
        case JoinTokenCreated():
            return {"join_tokens": {**state.join_tokens, event.token.token_id: event.token}}
        case JoinTokenRevoked():
            return {"join_tokens": _without(state.join_tokens, event.token_id)}
        case _:
            assert_never(event)


def _cluster_changes(
    state: ClusterState,
    event: ClusterFounded
    | MasterElected
    | TermSettled
    | CardAdded
    | CardRemoved
    | ApiKeyCreated
    | ApiKeyChanged
    | ApiKeyRevoked
    | SettingsChanged,
) -> Changes:
    match event:
        case ClusterFounded():
            return {"cluster_id": event.cluster_id}
        case MasterElected():
            return {"master": event.master, "is_minority_term": event.is_minority}
        case TermSettled():
            return {"is_minority_term": False}
        case CardAdded():
            return {"cards": {**state.cards, event.card.model_id: event.card}}
        case CardRemoved():
            return {"cards": _without(state.cards, event.model_id)}
        case ApiKeyCreated() | ApiKeyChanged():
            return {"api_keys": {**state.api_keys, event.key.key_id: event.key}}
        case ApiKeyRevoked():
            return {"api_keys": _without(state.api_keys, event.key_id)}
        case SettingsChanged():
            return {"settings": event.settings}
        case _:
            assert_never(event)


def _joined(state: ClusterState, event: MemberJoined) -> Changes:
    node_id = event.member.node_id
    changes: Changes = {"members": {**state.members, node_id: event.member}}
    if node_id in state.removed:
        changes["removed"] = _without(state.removed, node_id)
    token = None if event.token_id is None else state.join_tokens.get(event.token_id)
    if token is not None:
        used = token.model_copy(update={"uses_left": max(0, token.uses_left - 1)})
        changes["join_tokens"] = {**state.join_tokens, token.token_id: used}
    return changes


def _present(state: ClusterState, node_id: NodeId, presence: Presence, at_ms: int) -> Changes:
    return _changed_member(state, node_id, {"presence": presence, "since_ms": at_ms})


def _changed_member(state: ClusterState, node_id: NodeId, update: Changes) -> Changes:
    member = state.members.get(node_id)
    if member is None:
        return {}
    return {"members": {**state.members, node_id: member.model_copy(update=update)}}


def _removed(state: ClusterState, event: MemberRemoved, at_ms: int) -> Changes:
    """Forget a node and its downloads; keep its key, so that it is told why it is refused."""
    member = state.members.get(event.node_id)
    if member is None:
        return {}
    gone = RemovedMember(
        node_id=member.node_id, public_key=member.public_key, name=member.name, at_ms=at_ms
    )
    removed = {**_without(state.removed, member.node_id), member.node_id: gone}
    for oldest in tuple(islice(removed, max(0, len(removed) - REMOVED_KEPT))):
        del removed[oldest]
    downloads = {
        key: outcome
        for key, outcome in state.downloads.items()
        if outcome.node_id != member.node_id
    }
    return {
        "members": _without(state.members, member.node_id),
        "removed": removed,
        "downloads": downloads,
    }


def _phase_changed(state: ClusterState, event: RunnerPhaseChanged) -> Changes:
    instance = state.instances.get(event.instance_id)
    if instance is None:
        return {}
    runner = event.runner
    update: Changes = {"runners": with_runner(instance.runners, runner)}
    if runner.phase != "ready":
        return _with_instance(state, instance.model_copy(update=update))
    # What went wrong before is history once the instance serves; `state.failures` keeps it.
    update["failure"] = None
    launches = state.launches
    if event.launch is not None:
        update["launch"] = event.launch
        launches = {**launches, instance.model_id: event.launch}
    changes = _with_instance(state, instance.model_copy(update=update))
    changes["launches"] = launches
    return changes | _has_a_place(state, instance.instance_id)


def _measured(state: ClusterState, event: MemoryMeasured, at_ms: int) -> Changes:
    """Note what a boot took: with its runner, and for the boots to come."""
    digest = event.key.digest()
    known = state.measurements.get(digest)
    boot = MeasuredBoot(instance_id=event.instance_id, attempt=event.attempt, memory=event.memory)
    others = tuple(
        one
        for one in (known.boots if known is not None else ())
        if (one.instance_id, one.attempt) != (boot.instance_id, boot.attempt)
    )
    measurements = _without(state.measurements, digest)
    measurements[digest] = MemoryMeasurement(
        key=event.key, boots=(*others, boot)[-BOOTS_KEPT:], at_ms=at_ms
    )
    for oldest in tuple(islice(measurements, max(0, len(measurements) - MEASUREMENTS_KEPT))):
        del measurements[oldest]
    changes: Changes = {"measurements": measurements}
    instance = state.instances.get(event.instance_id)
    if instance is not None:
        runners = tuple(
            runner.model_copy(update={"memory": event.memory})
            if runner.rank == event.rank
            else runner
            for runner in instance.runners
        )
        changes |= _with_instance(state, instance.model_copy(update={"runners": runners}))
    return changes


def _failed(state: ClusterState, event: InstanceFailed) -> Changes:
    failure = event.failure
    # The same one may be known already: only now has it turned out that nothing follows.
    waiting = failure.model_copy(update={"final": False})
    known = (one for one in state.failures if one != waiting)
    changes: Changes = {"failures": (*known, failure)[-FAILURES_KEPT:]}
    instance = state.instances.get(failure.instance_id)
    if instance is None:
        return changes
    runners = tuple(
        runner.model_copy(update={"phase": "failed", "since_ms": failure.at_ms})
        if runner.node_id == failure.node_id
        else runner
        for runner in instance.runners
    )
    changed = instance.model_copy(update={"failure": failure, "runners": runners})
    changes.update(_with_instance(state, changed))
    return changes


def _next_attempt(state: ClusterState, event: InstanceRetried | InstanceReplanned) -> Changes:
    instance = state.instances.get(event.instance_id)
    if instance is None:
        return {}
    update: Changes = {"attempt": event.attempt, "runners": ()}
    if instance.failure is not None and instance.failure.final:
        # A final failure is what keeps an instance down; the new attempt lifts it.
        update["failure"] = instance.failure.model_copy(update={"final": False})
    if isinstance(event, InstanceRetried):
        return _with_instance(state, instance.model_copy(update=update))
    update["plan"] = event.plan
    update["repairs"] = (*instance.repairs, event.repair)[-REPAIRS_KEPT:]
    changes = _with_instance(state, instance.model_copy(update=update))
    return changes | _has_a_place(state, event.instance_id)


def _has_a_place(state: ClusterState, instance_id: InstanceId) -> Changes:
    """Forget that no place was found for an instance that has one now."""
    kept = tuple(one for one in state.placement_failures if one.instance_id != instance_id)
    return {} if len(kept) == len(state.placement_failures) else {"placement_failures": kept}


def _woken(state: ClusterState, event: InstanceWoken) -> Changes:
    instance = state.instances.get(event.instance_id)
    if instance is None:
        return {}
    update: Changes = {"desired": "running", "made_room_for": None}
    if event.attempt != instance.attempt:
        update |= {"attempt": event.attempt, "runners": ()}
    return _with_instance(state, instance.model_copy(update=update))


def _stopping(state: ClusterState, event: InstanceStopRequested) -> Changes:
    instance = state.instances.get(event.instance_id)
    if instance is None:
        return {}
    update: Changes = {"desired": "stopped", "drain_ms": event.drain_ms}
    if instance.desired == "asleep":
        # That its runners were gone was said of its sleep; each node says it again of the stop.
        update["runners"] = ()
    return _with_instance(state, instance.model_copy(update=update))


def _gone(state: ClusterState, instance_id: InstanceId) -> Changes:
    """Forget an instance; a move of it is over."""
    instances = _without(state.instances, instance_id)
    for other in state.instances.values():
        if other.replaces is not None and other.replaces.instance_id == instance_id:
            instances[other.instance_id] = other.model_copy(update={"replaces": None})
    return {"instances": instances}


def with_runner(
    runners: tuple[RunnerStatus, ...], runner: RunnerStatus
) -> tuple[RunnerStatus, ...]:
    """Put a runner in the place of what was known of its rank."""
    if len(runners) == 0 or (len(runners) == 1 and runners[0].rank == runner.rank):
        return (runner,)
    others = [known for known in runners if known.rank != runner.rank]
    return tuple(sorted((*others, runner), key=lambda known: known.rank))


def _changed_instance(state: ClusterState, instance_id: InstanceId, update: Changes) -> Changes:
    instance = state.instances.get(instance_id)
    if instance is None:
        return {}
    return _with_instance(state, instance.model_copy(update=update))


def _with_instance(state: ClusterState, instance: Instance) -> Changes:
    instances = state.instances.copy()
    instances[instance.instance_id] = instance
    return {"instances": instances}


def _without(mapping: Mapping[Key, Value], key: Key) -> dict[Key, Value]:
    return {known: value for known, value in mapping.items() if known != key}


def _remember(
    state: ClusterState, command_id: CommandId, sequenced: SequencedEvent, changes: Changes
) -> None:
    """Note what a command led to: its last event's position."""
    result = CommandResult.unchecked(
        {"command_id": command_id, "term": sequenced.term, "seq": sequenced.seq}
    )
    recent = state.recent_results
    if recent and recent[-1].command_id == command_id:
        changes["recent_results"] = (*recent[:-1], result)
        return
    recent = (*recent, result)
    if len(recent) < RECENT_RESULTS:
        changes["recent_results"] = recent
        return
    merged = state.results.copy()
    for kept in recent:
        merged[kept.command_id] = kept
    for oldest in tuple(islice(merged, max(0, len(merged) - DEDUPE_WINDOW))):
        del merged[oldest]
    changes["results"] = merged
    changes["recent_results"] = ()
