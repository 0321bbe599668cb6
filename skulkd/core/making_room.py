"""Making room for a model that is woken: which on-demand instances are unloaded for it; pure.

Only an instance that is on demand, not pinned, ready and idle for a moment may go, never one that
answers, has a queue, or has just been loaded for somebody, and none of a higher priority than the
one that needs the room. The lowest priority goes first, of equal ones that which was used the
longest ago, and no more than are needed. What a reading says may be late: the node itself unloads
nothing that answers somebody, and wakes it again instead (`core.reconcile`).

The memory counts as free only once it is measured to be: until the engines are gone the planner
answers that it is still to come back, and the request waits.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from protocol.errors import PlacementError
from protocol.ids import InstanceId
from protocol.instances import LOADING_PHASES, Instance
from protocol.placements import PlacementOutcome
from protocol.readings import Readings
from protocol.state import ClusterState
from skulkd.core.move_decisions import nodes_of
from skulkd.core.placement.explain import size_text
from skulkd.core.placement.question import STALE_READING_S

QUIET_S: Final = 2.0
"""One that was loaded or used within this time is not unloaded: who had it loaded is about to ask,
and readings are up to two seconds old."""
IN_USE_RETRY_S: Final = 5

Planned = Callable[[ClusterState], PlacementOutcome]
"""Plans what is to be loaded on a state, on the readings of now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What would make room for an instance."""

    unloaded: tuple[InstanceId, ...] = ()
    """To be unloaded now; empty when that does not help."""
    is_in_use: bool = False
    """It would fit if those that answer now were idle."""


def room_for(
    state: ClusterState,
    readings: Readings,
    instance: Instance,
    planned: Planned,
    *,
    now_s: float | None,
) -> Room:
    """Choose what to unload for an instance that does not fit as it is.

    Args:
        state: The newest.
        readings: The master's own.
        instance: What is to be loaded.
        planned: Plans it on a state.
        now_s: On the clock of the readings; with it, an instance must have been idle for a while.
    """
    nodes = set(nodes_of(instance))
    beside = [other for other in state.instances.values() if other is not instance]
    may_go = [
        other
        for other in beside
        if _may_go(other)
        and other.priority <= instance.priority
        and not nodes.isdisjoint(nodes_of(other))
    ]
    idle = [
        (other.priority, since_s, other.instance_id)
        for other in may_go
        if (since_s := _idle_since_s(readings, other, now_s)) is not None
    ]
    chosen: list[InstanceId] = []
    for _, _, instance_id in sorted(idle):
        chosen.append(instance_id)
        if _fits_without(state, chosen, planned):
            return Room(unloaded=_fewest(state, chosen, planned))
    everyone = [other.instance_id for other in may_go]
    is_in_use = len(everyone) > len(chosen) and _fits_without(state, everyone, planned)
    return Room(is_in_use=is_in_use)


def memory_in_use(state: ClusterState, instance: Instance) -> PlacementError:
    """Say that what would have to be unloaded answers somebody now."""
    return PlacementError(
        "placement.memory_in_use",
        f"{instance.model_id} does not fit beside what is in use: {holders_text(state, instance)}",
        remediation="Wait until one of them is idle: then it is unloaded for this one.",
        retry_after_s=IN_USE_RETRY_S,
    )


def holders_text(state: ClusterState, instance: Instance) -> str:
    """Name what holds memory on the nodes of an instance, with what keeps each there."""
    nodes, parts = nodes_of(instance), list[str]()
    for other in state.instances.values():
        held_bytes = sum(
            shard.memory.needed_bytes for shard in other.plan.shards if shard.node_id in nodes
        )
        if other is instance or not held_bytes or other.phase in {"asleep", "failed"}:
            continue
        parts.append(f"{other.model_id} holds {size_text(held_bytes)} ({_why_it_stays(other)})")
    return "; ".join(parts)


def _why_it_stays(instance: Instance) -> str:
    if instance.desired == "stopped":
        return "stopping"
    if instance.pinned:
        return f"pinned: skulk unpin {instance.instance_id}"
    if instance.ttl_ms is None:
        return f"always loaded: skulk stop {instance.instance_id}"
    return f"on demand, priority {instance.priority}"


def _may_go(instance: Instance) -> bool:
    """Say whether an instance is one that others may take the place of, idle or not."""
    is_loaded = instance.phase == "ready" or instance.phase in LOADING_PHASES
    return is_loaded and instance.ttl_ms is not None and not instance.pinned


def _idle_since_s(readings: Readings, instance: Instance, now_s: float | None) -> float | None:
    """Say since when a ready instance has nothing to do; None while it has, or may have."""
    reading = readings.instances.get(instance.instance_id)
    if instance.phase != "ready" or reading is None or reading.idle_since_s is None:
        return None
    if reading.in_flight or reading.queued:
        return None
    if now_s is not None:
        is_new = now_s - reading.idle_since_s < QUIET_S
        if is_new or now_s - reading.at_s > STALE_READING_S:
            return None
    return reading.idle_since_s


def _fewest(
    state: ClusterState, chosen: list[InstanceId], planned: Planned
) -> tuple[InstanceId, ...]:
    """Leave out those without which it fits as well, the most valuable first."""
    needed = list(chosen)
    for instance_id in reversed(chosen):
        others = [other for other in needed if other != instance_id]
        if others and _fits_without(state, others, planned):
            needed = others
    return tuple(needed)


def _fits_without(state: ClusterState, gone: Iterable[InstanceId], planned: Planned) -> bool:
    """Say whether it fits once these are unloaded, as far as can be known before they are."""
    unloading = {
        instance_id: state.instances[instance_id].model_copy(update={"desired": "asleep"})
        for instance_id in gone
    }
    outcome = planned(state.model_copy(update={"instances": {**state.instances, **unloading}}))
    # The planner says of memory that is still to come back that it is missing.
    return bool(outcome.plans or outcome.missing_facts)
