"""What must hold of on-demand models in a simulated cluster, unloaded and woken."""

from collections import Counter

from protocol.events import InstanceWoken
from protocol.ids import ModelId
from protocol.instances import Instance
from protocol.state import ClusterState
from skulkd.core.reconcile import ENDED_PHASES
from tests.support.simulated_box import Box
from tests.support.simulated_machine import FREE_BYTES, SimulatedProcess
from tests.support.simulated_node import SimulatedNode


def watch_unloading(box: Box, problems: list[str], process: SimulatedProcess) -> None:
    """See that no engine that answers somebody is asked to end because its model sleeps."""
    node = box.running
    instance = None if node is None else node.state.instances.get(process.owner.instance_id)
    if instance is not None and instance.desired == "asleep" and process.n_busy:
        problems.append(f"{process.owner} is unloaded, and answers {process.n_busy}")


def needless_wakes(node: SimulatedNode, n_asked: Counter[str]) -> list[str]:
    """Name the instances that were loaded again and again: each request has its model woken once.

    A second time where it was unloaded in the moment in which it was asked for.
    """
    woken = Counter(
        shown.event.instance_id
        for shown in node.replica.recent(0, node.state.seq)
        if isinstance(shown.event, InstanceWoken)
    )
    return [
        f"{instance.instance_id} was woken {woken[instance.instance_id]} times"
        for instance in node.state.instances.values()
        if woken[instance.instance_id] > 2 * n_asked[instance.model_id]
    ]


def is_at_rest(instance: Instance) -> bool:
    """Say whether nothing more is to come of an instance by itself."""
    if instance.phase == "ready":
        return instance.ttl_ms is None or instance.pinned
    is_unloaded = all(runner.phase in ENDED_PHASES for runner in instance.runners)
    return instance.phase == "failed" or (instance.phase == "asleep" and is_unloaded)


def can_serve(state: ClusterState, model_id: ModelId) -> bool:
    """Say whether a model has to serve: it is ready, or it sleeps and there is room for it."""
    return any(
        instance.phase == "ready" or (instance.phase == "asleep" and _has_room(state, instance))
        for instance in state.instances.values()
        if instance.model_id == model_id
    )


def _has_room(state: ClusterState, instance: Instance) -> bool:
    beside = [
        other for other in state.instances.values() if other.phase not in {"asleep", "failed"}
    ]
    needed_bytes = sum(
        one.plan.shards[0].memory.needed_bytes
        for one in (instance, *beside)
        if one.plan.shards[0].node_id == instance.plan.shards[0].node_id
    )
    return needed_bytes <= FREE_BYTES
