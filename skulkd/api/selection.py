"""Which instance serves a request, and why none does. Pure, given the random numbers."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.control_api import LoadingDocument
from protocol.errors import ClusterError, EngineError, PlacementError, RequestError, SkulkError
from protocol.ids import InstanceId, ModelId, NodeId
from protocol.instances import LOADING_PHASES, PHASE_ORDER, Instance, InstanceFailure, Phase
from protocol.readings import PhaseProgress, Readings
from protocol.state import ClusterState
from skulkd.api.errors import Attachments, DocumentedError

LATEST: Final = ":latest"
_MAY_SERVE: Final[frozenset[Phase]] = frozenset({*LOADING_PHASES, "ready", "asleep"})
_RETRY_LOW_S: Final = 1
_RETRY_HIGH_S: Final = 30
_DRAINING_RETRY_S: Final = 5
_UNREACHABLE_RETRY_S: Final = 5
"""A node that was cut off for a moment is back by then, as a rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What this node sees of the instances, now."""

    node_id: NodeId
    """This node."""
    is_reachable: Callable[[NodeId], bool]
    """Whether requests can be sent to a node; always true of this one."""
    in_flight: Mapping[InstanceId, int]
    """Requests of this node's own clients."""
    readings: Readings
    now_s: float
    """On the clock of the readings."""

    def reaches(self, instance: Instance) -> bool:
        """Say whether every node of an instance can be reached."""
        return all(self.is_reachable(shard.node_id) for shard in instance.plan.shards)

    def load(self, instance: Instance) -> tuple[int, bool]:
        """Rank an instance by its requests in flight; on a tie, one that takes no network wins."""
        own = self.in_flight.get(instance.instance_id, 0)
        reading = self.readings.instances.get(instance.instance_id)
        told = reading.in_flight + reading.queued if reading else 0
        is_remote = instance.plan.shards[0].node_id != self.node_id
        return max(own, told), is_remote


Warmth = Callable[[Sequence[Instance]], Mapping[InstanceId, int]]
"""Says how much of a prompt each of several instances has read lately; asked only where there are
several."""


def _cold(instances: Sequence[Instance]) -> Mapping[InstanceId, int]:
    """No prompt is known."""
    del instances
    return {}


Look = Callable[[], Sight]
"""Gives what this node sees, now."""


def untagged(model_id: ModelId) -> ModelId:
    """Leave out the tag that Ollama's clients put behind a name that has none."""
    return ModelId(model_id.removesuffix(LATEST))


def placed_instances(state: ClusterState, model_id: ModelId) -> list[Instance]:
    """Give the instances of a model, in whatever phase, `name:latest` being `name`."""
    instances = state.instances.values()
    exact = [item for item in instances if item.model_id == model_id]
    if exact or not model_id.endswith(LATEST):
        return exact
    return [item for item in instances if item.model_id == untagged(model_id)]


def choose(
    state: ClusterState,
    model_id: ModelId,
    sight: Sight,
    chance: random.Random,
    warmth: Warmth = _cold,
) -> tuple[Instance, ...]:
    """Give the instances of a model that are ready and can be reached, the one to ask first.

    Where none is, those that a request may wait for: on demand, and asleep or being loaded.

    The first is the better of two random ones by requests in flight: nearly as even as asking all,
    and two API nodes do not run to the same instance at once. The one that has read most of the
    prompt lately is looked at beside them; of those that are equally busy, it is the better one.

    Raises:
        SkulkError: `request.model_not_found`, `request.instance_loading`, `placement.failed`,
            `cluster.instance_unreachable`, `engine.draining`.
    """
    placed = placed_instances(state, model_id)
    ready = [item for item in placed if item.phase == "ready" and sight.reaches(item)]
    if not ready:
        waited_for = _on_demand(placed, sight)
        if not waited_for:
            raise why_not(state, model_id, sight)
        return waited_for
    if len(ready) == 1:
        return (ready[0],)
    order = chance.sample(ready, len(ready))
    warm = warmth(ready)

    def rank(instance: Instance) -> tuple[int, int, bool]:
        n_requests, is_remote = sight.load(instance)
        return n_requests, -warm.get(instance.instance_id, 0), is_remote

    warmest = max(order, key=lambda item: warm.get(item.instance_id, 0))
    first = min(order[0], order[1], warmest, key=rank)
    order.remove(first)
    return (first, *order)


def loading_document(
    state: ClusterState, instance: Instance, readings: Readings, *, now: float
) -> LoadingDocument:
    """Say how far an instance is; of several runners, the one that is furthest behind."""
    found: list[PhaseProgress] = []
    for rank in range(len(instance.plan.shards)):
        progress = readings.progress.get((instance.instance_id, rank))
        if (
            progress is not None
            and progress.attempt == instance.attempt
            and progress.phase in LOADING_PHASES
        ):
            found.append(progress)
    behind = min(found, key=lambda item: PHASE_ORDER.index(item.phase), default=None)
    node_id = instance.plan.shards[0].node_id if behind is None else behind.node_id
    member = state.members.get(node_id)
    document = LoadingDocument(
        instance_id=instance.instance_id,
        model_id=instance.model_id,
        phase=instance.phase if behind is None else behind.phase,
        attempt=instance.attempt,
        node_id=node_id,
        node_name=member.name if member else "",
    )
    if behind is None:
        return document
    return document.model_copy(
        update={
            "phase_s": round(max(0.0, now - behind.since_s), 3),
            "done_bytes": behind.done_bytes,
            "total_bytes": behind.total_bytes,
            "rate_bytes_s": behind.rate_bytes_s,
            "eta_s": behind.eta_s,
            "note": behind.note,
        }
    )


def why_not(state: ClusterState, model_id: ModelId, sight: Sight) -> SkulkError:
    """Say why no instance of a model serves a request now."""
    model_id, placed = untagged(model_id), placed_instances(state, model_id)
    for instance in placed:
        if instance.phase in LOADING_PHASES and sight.reaches(instance):
            return loading(state, instance, sight)
    for instance in placed:
        if instance.phase in _MAY_SERVE:
            return _unreachable(state, instance, sight)
    for instance in placed:
        if instance.phase == "failed" and instance.failure is not None:
            return failed(instance, instance.failure)
    for instance in placed:
        if instance.drain_ms and instance.desired == "stopped":
            return _draining(instance)
    return RequestError(
        "request.model_not_found",
        f"No instance found for model {model_id}. Place it with: skulk place {model_id}",
        remediation=f"skulk place {model_id}",
        details={"param": "model"},
    )


def loading(state: ClusterState, instance: Instance, sight: Sight) -> SkulkError:
    """Say that an instance is not ready yet, and how far it is."""
    return _loading(loading_document(state, instance, sight.readings, now=sight.now_s))


def failed(instance: Instance, failure: InstanceFailure) -> SkulkError:
    """Say why an instance does not come."""
    model_id = instance.model_id
    return DocumentedError(
        PlacementError(
            "placement.failed",
            f"the instance of {model_id} failed in phase {failure.phase}: {failure.error.message}",
            remediation=failure.error.remediation
            or f"Try again: skulk place {model_id}, or stop it: skulk stop {model_id}",
            details={"instance_id": instance.instance_id, "reason": failure.error.code},
        ),
        Attachments(failure=failure),
    )


def _on_demand(placed: list[Instance], sight: Sight) -> tuple[Instance, ...]:
    """Give those that are worth waiting for; one that is being loaded is so already."""
    found = [
        item
        for item in placed
        if item.ttl_ms is not None
        and (item.phase == "asleep" or item.phase in LOADING_PHASES)
        and sight.reaches(item)
    ]
    return tuple(sorted(found, key=lambda item: item.phase == "asleep"))


def _unreachable(state: ClusterState, instance: Instance, sight: Sight) -> SkulkError:
    away = [
        shard.node_id for shard in instance.plan.shards if not sight.is_reachable(shard.node_id)
    ]
    names = [state.members[node_id].name for node_id in away if node_id in state.members]
    return ClusterError(
        "cluster.instance_unreachable",
        f"{instance.model_id}: instance on unreachable node {', '.join(names) or away[0]}",
        remediation="Try again when the node is back, or place a copy on another node: "
        f"skulk place {instance.model_id}",
        details={"instance_id": instance.instance_id, "node_id": away[0]},
        retry_after_s=_UNREACHABLE_RETRY_S,
    )


def _draining(instance: Instance) -> SkulkError:
    return EngineError(
        "engine.draining",
        f"{instance.model_id} is being stopped: its instance ends what it is answering, and takes "
        "no more",
        remediation=f"Ask again in a moment, or place it anew: skulk place {instance.model_id}",
        details={"instance_id": instance.instance_id},
        retry_after_s=_DRAINING_RETRY_S,
    )


def _loading(document: LoadingDocument) -> SkulkError:
    parts = [f"{document.model_id} is not ready: {document.phase}"]
    if document.node_name:
        parts.append(f"on {document.node_name}")
    if document.done_bytes is not None and document.total_bytes:
        parts.append(f"{document.done_bytes} of {document.total_bytes} bytes")
    if document.eta_s is not None:
        parts.append(f"about {document.eta_s:.0f} s left")
    wait_s = _RETRY_LOW_S if document.eta_s is None else round(document.eta_s)
    return DocumentedError(
        RequestError(
            "request.instance_loading",
            ", ".join(parts),
            remediation="Try again when it is ready; `skulk ps` shows how far it is.",
            details={"instance_id": document.instance_id, "phase": document.phase},
            retry_after_s=max(_RETRY_LOW_S, min(_RETRY_HIGH_S, wait_s)),
        ),
        Attachments(loading=document),
    )
