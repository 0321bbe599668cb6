"""Which instance serves a request, and why none does. Pure, given the random numbers."""

import random
from collections.abc import Mapping
from typing import Final

from protocol.control_api import LoadingDocument
from protocol.errors import PlacementError, RequestError, SkulkError
from protocol.ids import InstanceId, ModelId
from protocol.instances import LOADING_PHASES, PHASE_ORDER, Instance
from protocol.readings import PhaseProgress, Readings
from protocol.state import ClusterState
from skulkd.api.errors import Attachments, DocumentedError

_RETRY_LOW_S: Final = 1
_RETRY_HIGH_S: Final = 30


def choose(
    state: ClusterState,
    model_id: ModelId,
    *,
    in_flight: Mapping[InstanceId, int],
    readings: Readings,
    now: float,
    chance: random.Random,
) -> tuple[Instance, ...]:
    """Give the ready instances of a model, the one to ask first in front.

    The first is the better of two random ones by requests in flight: nearly as even as asking all,
    and two API nodes do not run to the same instance at once.

    Raises:
        SkulkError: `request.model_not_found`, `request.instance_loading`, `placement.failed`.
    """
    placed = [item for item in state.instances.values() if item.model_id == model_id]
    ready = [item for item in placed if item.phase == "ready"]
    if not ready:
        raise _why_not(state, model_id, placed, readings=readings, now=now)
    if len(ready) == 1:
        return (ready[0],)

    def load(instance: Instance) -> int:
        own = in_flight.get(instance.instance_id, 0)
        reading = readings.instances.get(instance.instance_id)
        return max(own, reading.in_flight + reading.queued if reading else 0)

    order = chance.sample(ready, len(ready))
    if load(order[1]) < load(order[0]):
        order[0], order[1] = order[1], order[0]
    return tuple(order)


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


def _why_not(
    state: ClusterState,
    model_id: ModelId,
    placed: list[Instance],
    *,
    readings: Readings,
    now: float,
) -> SkulkError:
    for instance in placed:
        if instance.phase in LOADING_PHASES:
            return _loading(loading_document(state, instance, readings, now=now))
    for instance in placed:
        if instance.phase == "failed" and instance.failure is not None:
            failure = instance.failure
            return DocumentedError(
                PlacementError(
                    "placement.failed",
                    f"the instance of {model_id} failed in phase {failure.phase}: "
                    f"{failure.error.message}",
                    remediation=failure.error.remediation
                    or f"Try again: skulk place {model_id}, or stop it: skulk stop {model_id}",
                    details={"instance_id": instance.instance_id, "reason": failure.error.code},
                ),
                Attachments(failure=failure),
            )
    return RequestError(
        "request.model_not_found",
        f"No instance found for model {model_id}. Place it with: skulk place {model_id}",
        remediation=f"skulk place {model_id}",
        details={"param": "model"},
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
