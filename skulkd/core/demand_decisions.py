"""Decisions about on-demand instances and pins: who is loaded because somebody asks; pure.

An on-demand instance is placed, and asleep: it has its node, its window and its slots, and takes
no memory. A request wakes it. The node that runs it counts from the end of its last request, on a
clock of its own, so that no election begins the count anew or cuts it short; once its time to live
is over the node asks for sleep.

    asleep, no runner left      woken: a new attempt, if the memory is there now
    asleep, no room             others that are idle fall asleep; woken once their memory is back
    asleep, runner there still  woken: the same attempt; its node goes on with it, or renews it
    awake, nothing to do        falls asleep, unless it is pinned

That it falls asleep never ends a request: its node unloads it only while it answers nobody, and
else wakes it again (`core.reconcile`).
"""

from typing import Final

from protocol.commands import PinInstance, SleepInstance, UnpinInstance, WakeInstance
from protocol.errors import PlacementError
from protocol.events import (
    Event,
    InstanceFellAsleep,
    InstancePinned,
    InstanceUnpinned,
    InstanceWoken,
)
from protocol.ids import NodeId
from protocol.instances import Instance
from protocol.placements import PlacementOutcome, PlacementRequest
from protocol.readings import Readings
from protocol.state import ClusterState
from skulkd.core.instance_decisions import known_instance, liveness_of
from skulkd.core.making_room import holders_text, memory_in_use, room_for
from skulkd.core.move_decisions import nodes_of
from skulkd.core.placement.explain import FACTS_RETRY_S, outcome_error
from skulkd.core.placement.memory_fit import lack_in_all_bytes
from skulkd.core.placement.planner import replan

SETTLE_MS: Final = 10_000
"""So long after an engine has ended, readings may not show yet that its memory is back."""


def wake(
    state: ClusterState,
    readings: Readings,
    command: WakeInstance,
    *,
    now_ms: int,
    now_s: float | None,
    unheard: frozenset[NodeId],
) -> tuple[Event, ...]:
    """Have an instance loaded, where the memory for it is there now.

    Where it is not, idle on-demand instances are put to sleep that hold it (`core.making_room`):
    then this one sleeps on until it is asked for again, with their memory measured to be back.

    Args:
        state: The newest.
        readings: The master's own.
        command: Which instance.
        now_ms: The stamp of the event.
        now_s: On the clock of the readings; with it, old ones count as missing.
        unheard: Members that the master does not hear at the moment.

    Raises:
        PlacementError: `placement.not_live` for one that is not known or is being stopped;
            `placement.failed` for one that failed for good; `placement.facts_missing` while memory
            is still coming back; `placement.memory_in_use` while what would have to go for it
            answers somebody; why it does not fit now, with the numbers.
    """
    instance = known_instance(state, command.instance_id)
    match liveness_of(instance):
        case "stopping":
            raise PlacementError(
                "placement.not_live",
                f"instance {instance.instance_id} is being stopped",
                remediation="Place the model anew.",
            )
        case "failed":
            raise PlacementError(
                "placement.failed",
                f"instance {instance.instance_id} of {instance.model_id} has failed for good",
                remediation=f"`skulk ps` says why; try again: skulk retry {instance.instance_id}",
                details={"instance_id": instance.instance_id},
            )
        case "live":
            pass
    if instance.desired == "running":
        return ()
    is_new = any(runner.phase in {"stopped", "failed"} for runner in instance.runners)
    if is_new or not instance.runners:
        unloaded = _make_room(
            state, readings, instance, now_ms=now_ms, now_s=now_s, unheard=unheard
        )
        if unloaded:
            return unloaded
    else:
        _check_kept(state, instance)
    attempt = instance.attempt + 1 if is_new else instance.attempt
    return (InstanceWoken(instance_id=instance.instance_id, attempt=attempt),)


def fall_asleep(state: ClusterState, command: SleepInstance) -> tuple[Event, ...]:
    """Have an idle instance unloaded; a word that comes too late changes nothing."""
    instance = state.instances.get(command.instance_id)
    if (
        instance is None
        or instance.phase != "ready"
        or instance.attempt != command.attempt
        or instance.ttl_ms is None
        or instance.pinned
    ):
        return ()
    return (InstanceFellAsleep(instance_id=instance.instance_id),)


def pin(state: ClusterState, command: PinInstance) -> tuple[Event, ...]:
    """Keep an instance loaded; one that is asleep stays so until somebody asks for it.

    Raises:
        PlacementError: `placement.not_live` for one that is not known or is being stopped.
    """
    instance = _pinnable(state, command)
    return () if instance.pinned else (InstancePinned(instance_id=instance.instance_id),)


def unpin(state: ClusterState, command: UnpinInstance) -> tuple[Event, ...]:
    """Take a pin back.

    Raises:
        PlacementError: As `pin`.
    """
    instance = _pinnable(state, command)
    return (InstanceUnpinned(instance_id=instance.instance_id),) if instance.pinned else ()


def _pinnable(state: ClusterState, command: PinInstance | UnpinInstance) -> Instance:
    instance = known_instance(state, command.instance_id)
    if liveness_of(instance) == "stopping":
        raise PlacementError(
            "placement.not_live",
            f"instance {instance.instance_id} is being stopped",
            remediation="`skulk ps` lists the instances.",
        )
    return instance


def _check_kept(state: ClusterState, instance: Instance) -> None:
    """Refuse to go on with what is still loaded where its memory was given to others meanwhile.

    Whom it answers now it answers to the end; then it goes, and is woken when there is room.
    """
    if any(lack_in_all_bytes(state, shard) for shard in instance.plan.shards):
        raise PlacementError(
            "placement.facts_missing",
            f"{instance.model_id} is being unloaded for another model: "
            f"{holders_text(state, instance)}",
            remediation="Try again in a moment.",
            retry_after_s=FACTS_RETRY_S,
        )


def _make_room(
    state: ClusterState,
    readings: Readings,
    instance: Instance,
    *,
    now_ms: int,
    now_s: float | None,
    unheard: frozenset[NodeId],
) -> tuple[Event, ...]:
    """Ask the planner whether the very plan of an instance fits now; if not, unload for it."""
    made = instance.plan
    request = PlacementRequest(
        model_id=made.model_id, context_tokens=made.context_tokens, slots=made.slots
    )

    def planned(on: ClusterState) -> PlacementOutcome:
        return replan(made, request, instance.card, on, readings, now_s=now_s, unheard=unheard)

    again = planned(state)
    if again.plans:
        return ()
    nodes = set(nodes_of(instance))
    kept = tuple(refusal for refusal in again.refusals if refusal.node_id in {None, *nodes})
    error = outcome_error(again.model_copy(update={"refusals": kept}), made.model_id)
    if error.code == "placement.no_fit" and _frees_memory(state, nodes, now_ms):
        raise PlacementError(
            "placement.facts_missing",
            f"{error.message}; an engine has just ended there, whose memory may still come back",
            remediation="Try again in a moment.",
            retry_after_s=FACTS_RETRY_S,
        )
    if error.code != "placement.no_fit":
        raise error
    room = room_for(state, readings, instance, planned, now_s=now_s)
    if room.unloaded:
        return tuple(
            InstanceFellAsleep(instance_id=unloaded, room_for=instance.model_id)
            for unloaded in room.unloaded
        )
    if room.is_in_use:
        raise memory_in_use(state, instance)
    held = holders_text(state, instance)
    if not held:
        raise error
    raise PlacementError(
        error.code,
        f"{error.message}; {held}",
        remediation=f"{error.remediation} Or have one of those that hold it unloaded.",
        details=error.details,
    )


def _frees_memory(state: ClusterState, nodes: set[NodeId], now_ms: int) -> bool:
    """Say whether an engine of a sleeping instance has just ended on one of these nodes."""
    return any(
        runner.phase == "stopped"
        and runner.node_id in nodes
        and now_ms - runner.since_ms < SETTLE_MS
        for instance in state.instances.values()
        if instance.desired == "asleep"
        for runner in instance.runners
    )
