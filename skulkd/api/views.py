"""State and readings to the documents that clients read. Pure."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from protocol.cluster_api import ClusterDocument
from protocol.control_api import (
    AcceleratorView,
    EngineBuildView,
    EventView,
    HealthDocument,
    HealthLevel,
    HealthReasonView,
    InstanceView,
    NodeHealthView,
    NodeResourcesView,
    PauseView,
    ProgressView,
    RunnerView,
    StateDocument,
    TransferStatus,
    WaitingView,
)
from protocol.events import ApiKeyChanged, ApiKeyCreated, SequencedEvent
from protocol.ids import ModelId, NodeId
from protocol.instances import LOADING_PHASES, Instance
from protocol.nodes import EngineFacts, Level, Member, NodeFacts, NodeHealth
from protocol.readings import AcceleratorReading, InstanceReading, Readings, TransferReading
from protocol.state import ClusterState
from skulkd.api.cluster_views import liveness_of, topology
from skulkd.api.dependencies import NodeFace
from skulkd.api.memory_views import runner_memory
from skulkd.api.ports import CatalogModel
from skulkd.core.reconcile import stays_s

_LEVELS: Final[dict[Level, HealthLevel]] = {"ok": "ok", "warning": "warn", "error": "error"}
"""The original's words, which its clients compare with."""


def instance_view(
    instance: Instance,
    readings: Readings,
    *,
    now: float,
    is_reachable: Callable[[NodeId], bool],
) -> InstanceView:
    """Show one instance with how far its runners are, and which of its nodes are out of reach."""
    reading = readings.instances.get(instance.instance_id)
    return InstanceView(
        instance_id=instance.instance_id,
        model_id=instance.model_id,
        phase=instance.phase,
        desired=instance.desired,
        drain_ms=instance.drain_ms,
        ttl_ms=instance.ttl_ms,
        sleeps_in_s=sleeps_in_s(instance, readings, now=now),
        pinned=instance.pinned,
        priority=instance.priority,
        made_room_for=instance.made_room_for,
        attempt=instance.attempt,
        plan=instance.plan,
        runners=tuple(
            RunnerView(
                rank=runner.rank,
                node_id=runner.node_id,
                attempt=runner.attempt,
                phase=runner.phase,
                since_ms=runner.since_ms,
                pid=runner.pid,
                memory=runner_memory(instance, runner),
            )
            for runner in instance.runners
        ),
        progress=_progress(instance, readings, now),
        failure=instance.failure,
        launch=instance.launch,
        placed_at_ms=instance.placed_at_ms,
        replaces=instance.replaces,
        moved_from=instance.moved_from,
        disconnect=instance.disconnect,
        repairs=instance.repairs,
        context_token_limit=instance.plan.context_tokens,
        slots=instance.plan.slots,
        in_flight=reading.in_flight if reading else None,
        queued=reading.queued if reading else None,
        waiting=_waiting(reading) if reading else (),
        tokens_per_s=reading.tokens_per_s if reading else None,
        answer_tokens_per_s=reading.answer_tokens_per_s if reading else None,
        unreachable_nodes=tuple(
            shard.node_id for shard in instance.plan.shards if not is_reachable(shard.node_id)
        ),
    )


def _waiting(reading: InstanceReading) -> tuple[WaitingView, ...]:
    """Give whole seconds: a row of a session is sent anew whenever it changes."""
    return tuple(
        WaitingView(
            position=position,
            asker=task.asker,
            waited_s=int(task.waited_s),
            expected_s=None if task.expected_s is None else round(task.expected_s),
        )
        for position, task in enumerate(reading.waiting, start=1)
    )


def sleeps_in_s(instance: Instance, readings: Readings, *, now: float) -> int | None:
    """Say how long an idle on-demand instance stays loaded from now on; None where it is not so."""
    reading = readings.instances.get(instance.instance_id)
    if instance.ttl_ms is None or instance.pinned or instance.phase != "ready" or reading is None:
        return None
    if reading.idle_since_s is None:
        return None
    idle_s = stays_s(instance.ttl_ms / 1000, reading.keep_s)
    return None if math.isinf(idle_s) else max(0, round(reading.idle_since_s + idle_s - now))


def _progress(instance: Instance, readings: Readings, now: float) -> tuple[ProgressView, ...]:
    found: list[ProgressView] = []
    for rank in range(len(instance.plan.shards)):
        progress = readings.progress.get((instance.instance_id, rank))
        if (
            progress is None
            or progress.attempt != instance.attempt
            or progress.phase not in LOADING_PHASES
        ):
            continue
        found.append(
            ProgressView(
                rank=rank,
                node_id=progress.node_id,
                attempt=progress.attempt,
                phase=progress.phase,
                phase_s=round(max(0.0, now - progress.since_s), 3),
                done_bytes=progress.done_bytes,
                total_bytes=progress.total_bytes,
                rate_bytes_s=progress.rate_bytes_s,
                eta_s=progress.eta_s,
                note=progress.note,
            )
        )
    return tuple(found)


def state_document(
    state: ClusterState,
    readings: Readings,
    health: Mapping[NodeId, NodeHealth],
    cluster: ClusterDocument,
    *,
    face: NodeFace,
    now: float,
    is_reachable: Callable[[NodeId], bool],
) -> StateDocument:
    """Show the cluster; no secret and no hash of one leaves here.

    Args:
        state: The replica's.
        readings: What moves.
        health: Of each member.
        cluster: Who is master and who is heard, as this node sees it.
        face: This node.
        now: Monotonic, on the clock of the readings.
        is_reachable: Whether this node can send requests to another.
    """
    return StateDocument(
        node_id=face.node_id,
        boot_id=face.boot_id,
        cluster_id=state.cluster_id,
        term=state.term,
        seq=state.seq,
        at_ms=state.at_ms,
        master=cluster.master,
        members=state.members,
        instances={
            instance_id: instance_view(instance, readings, now=now, is_reachable=is_reachable)
            for instance_id, instance in state.instances.items()
        },
        failures=state.failures,
        placement_failures=state.placement_failures,
        launches=state.launches,
        downloads=state.downloads,
        transfers=transfer_views(readings),
        custom_models=tuple(sorted(state.cards)),
        api_keys=len(state.api_keys),
        settings=state.settings,
        topology=topology(cluster),
        liveness=liveness_of(cluster),
        node_health={node_id: node_health_view(item) for node_id, item in health.items()},
        node_resources={
            node_id: _resources(state, readings, node_id, now) for node_id in state.members
        },
    )


def transfer_views(readings: Readings) -> tuple[TransferStatus, ...]:
    """Show the downloads that are under way, on all nodes."""
    return tuple(map(transfer_view, readings.transfers.values()))


def transfer_view(reading: TransferReading) -> TransferStatus:
    """Show a download that is under way, or paused."""
    paused = reading.paused
    return TransferStatus(
        model_id=reading.model_id,
        node_id=reading.node_id,
        state="running" if paused is None else "paused",
        phase=reading.phase,
        done_bytes=reading.done_bytes,
        total_bytes=reading.total_bytes,
        rate_bytes_s=reading.rate_bytes_s,
        eta_s=reading.eta_s,
        source=reading.source,
        paused=None if paused is None else PauseView(by=paused.by, at_ms=paused.at_ms),
    )


def node_health_view(health: NodeHealth) -> NodeHealthView:
    """Show a node's health in the original's words."""
    return NodeHealthView(
        level=_LEVELS[health.level],
        reasons=tuple(
            HealthReasonView(
                code=reason.code,
                level=_LEVELS[reason.level],
                message=reason.message,
                remediation=reason.remediation,
            )
            for reason in health.reasons
        ),
    )


def _resources(
    state: ClusterState, readings: Readings, node_id: NodeId, now: float
) -> NodeResourcesView:
    member = state.members[node_id]
    facts = member.facts
    known = known_resources(member)
    reading = readings.nodes.get(node_id)
    if reading is None:
        return known
    return known.model_copy(
        update={
            "memory_available_bytes": reading.memory_available_bytes,
            "accelerators": accelerator_views(facts, reading.accelerators),
            "disk_free_bytes": reading.disk_free_bytes,
            "cpu_ratio": reading.cpu_ratio,
            "loop_lag_s": reading.loop_lag_s,
            "journal_durable": reading.journal_durable,
            "journal_unwritten": reading.journal_unwritten,
            "reading_age_s": round(max(0.0, now - reading.at_s), 3),
        }
    )


def known_resources(member: Member) -> NodeResourcesView:
    """Show what a node's probes have found; what moves is unknown."""
    known = NodeResourcesView(
        name=member.name,
        role=member.role,
        backends=member.capabilities.backends,
        capability_conflicts=member.capabilities.conflicts,
    )
    facts = member.facts
    if facts is None:
        return known
    return known.model_copy(
        update={
            "engines": tuple(_engine_build(build) for build in facts.engines),
            "n_cpus": facts.n_cpus,
            "n_cores": facts.n_cores,
            "cpu_quota": facts.cpu_quota,
            "memory_total_bytes": facts.memory_bytes,
            "memory_seen_by": facts.memory_seen_by,
            "disk_total_bytes": facts.disk_total_bytes,
            "accelerators": accelerator_views(facts, ()),
        }
    )


def _engine_build(build: EngineFacts) -> EngineBuildView:
    return EngineBuildView(
        engine=build.engine,
        version=build.version,
        path=build.path,
        computes=build.computes,
        usable=build.usable,
        reason=build.reason,
        seen_by=build.seen_by,
    )


def accelerator_views(
    facts: NodeFacts | None, readings: Sequence[AcceleratorReading]
) -> tuple[AcceleratorView, ...]:
    """Show each accelerator of a node; what has not been measured is unknown."""
    devices = facts.accelerators if facts else ()
    # The readings are of the devices of the last probe pass, the facts of the last report.
    nows = (*readings, *(AcceleratorReading() for _ in devices))
    return tuple(
        AcceleratorView(
            name=device.name,
            memory_bytes=device.memory_bytes,
            free_bytes=now.free_bytes,
            busy_ratio=now.busy_ratio,
            watts=now.watts,
            celsius=now.celsius,
            mhz=now.mhz,
            compute=device.compute,
            unified=device.unified,
            seen_by=device.seen_by,
        )
        for device, now in zip(devices, nows, strict=False)
    )


def public_health(health: NodeHealth | None, *, face: NodeFace) -> HealthDocument:
    """Show strangers that this node is there, and how well; reasons name paths and models."""
    return HealthDocument(
        status=_LEVELS[health.level] if health else "ok",
        node_id=face.node_id,
        boot_id=face.boot_id,
        name=face.name,
        version=face.version,
    )


def health_document(
    state: ClusterState, readings: Readings, health: NodeHealth | None, *, face: NodeFace
) -> HealthDocument:
    """Show this node's own health to who may read it."""
    own = readings.nodes.get(face.node_id)
    known = {
        "durable": own.journal_durable if own else True,
        "term": state.term,
        "seq": state.seq,
        "reasons": node_health_view(health).reasons if health else (),
    }
    return public_health(health, face=face).model_copy(update=known)


def event_view(sequenced: SequencedEvent, *, camel: bool = True) -> EventView:
    """Show one event without the hashes of a key's secrets."""
    event: dict[str, Any] = sequenced.event.model_dump(mode="json", by_alias=camel)
    if isinstance(sequenced.event, (ApiKeyCreated, ApiKeyChanged)):
        hidden, key = "secretSha256" if camel else "secret_sha256", event["key"]
        del key[hidden]
        if key["previous"] is not None:
            del key["previous"][hidden]
    return EventView(
        term=sequenced.term,
        seq=sequenced.seq,
        at_ms=sequenced.at_ms,
        command_id=sequenced.command_id,
        kind=sequenced.event.kind,
        event=event,
    )


def merged_catalog(
    catalog: Iterable[CatalogModel], state: ClusterState
) -> dict[ModelId, CatalogModel]:
    """Merge this node's cards with the cluster's custom ones, which win."""
    merged = {item.card.model_id: item for item in catalog}
    for model_id, card in state.cards.items():
        known = merged.get(model_id)
        is_installed = known is not None and known.installed and known.card == card
        merged[model_id] = CatalogModel(card=card, origin="custom", installed=is_installed)
    return dict(sorted(merged.items()))
