"""How a node's answers become records. Pure."""

from protocol.cluster_api import Liveness, NodeView
from protocol.control_api import (
    HealthReasonView,
    InstanceView,
    NodeHealthView,
    NodeResourcesView,
    ProgressView,
    StateDocument,
    TransferStatus,
    WaitingView,
)
from protocol.ids import NodeId
from protocol.instances import InstanceFailure, Repair
from protocol.keys_api import KeyView
from protocol.models_api import BootView, ModelEntry
from protocol.nodes import Eligibility, Member, Role
from protocol.placements import MemoryArithmetic, Plan, Refusal
from protocol.state import PlacementFailure
from protocol.storage_api import FoundModelView
from skulk_tui.cli.records import (
    ArithmeticRecord,
    BootRecord,
    CandidateRecord,
    CheckRecord,
    FailureRecord,
    ImportRecord,
    InstanceRecord,
    KeyRecord,
    ModelRecord,
    NodeRecord,
    NoPlaceRecord,
    ProgressRecord,
    RankSpeedRecord,
    ReasonRecord,
    RepairRecord,
    SpeedRecord,
    StatusRecord,
    TransferRecord,
    WaitingRecord,
)
from skulk_tui.formatting import rfc3339
from skulk_tui.measured import measured_bytes, memory_error_percent

Names = dict[NodeId, str]
_Rtt = tuple[float | None, float | None]
"""To a node and back, in milliseconds: the median, and the last."""
_NO_RTT: _Rtt = (None, None)


def names_of(state: StateDocument) -> Names:
    """Give the name of each node."""
    return {node_id: member.name for node_id, member in state.members.items()}


def name_of(names: Names, node_id: NodeId) -> str:
    """Give a node's name, or its id where the name is not known."""
    return names.get(node_id, node_id)


def node_records(state: StateDocument) -> tuple[NodeRecord, ...]:
    """List the members by name."""
    rtts = {one.target: (one.rtt_median_ms, one.rtt_last_ms) for one in state.topology.links}
    records = (
        _node_record(
            node_id,
            member.name,
            member.role,
            is_master=state.master == node_id,
            liveness=state.liveness.get(node_id, _agreed(member)),
            eligibility=_eligibility(state, member),
            health=state.node_health.get(node_id),
            resources=state.node_resources.get(node_id),
            rtt=rtts.get(node_id, _NO_RTT),
        )
        for node_id, member in state.members.items()
    )
    return tuple(sorted(records, key=lambda record: (record.name, record.node_id)))


def _agreed(member: Member) -> Liveness:
    """What an older node does not say: what follows from the presence alone."""
    return "alive" if member.presence == "present" else member.presence


def _eligibility(state: StateDocument, member: Member) -> Eligibility:
    """Say what `/v1/nodes` says of it."""
    if member.drain_since_ms is None:
        return "eligible"
    is_left = any(
        shard.node_id == member.node_id
        for view in state.instances.values()
        if view.phase != "failed"
        for shard in view.plan.shards
    )
    return "draining" if is_left else "drained"


def view_record(node: NodeView) -> NodeRecord:
    """Give one node of `/v1/nodes`."""
    member = node.member
    return _node_record(
        member.node_id,
        member.name,
        member.role,
        is_master=member.is_master,
        liveness=member.liveness,
        eligibility=member.eligibility,
        health=node.health,
        resources=node.resources,
        rtt=(member.rtt_median_ms, member.rtt_last_ms),
    )


def _node_record(
    node_id: NodeId,
    name: str,
    role: Role,
    *,
    is_master: bool,
    liveness: Liveness,
    eligibility: Eligibility,
    health: NodeHealthView | None,
    resources: NodeResourcesView | None,
    rtt: _Rtt,
) -> NodeRecord:
    # What was measured before a node went is no news of it; that it went, and where to, is.
    known = resources if liveness in {"alive", "suspect"} else None
    reasons = health.reasons if health else ()
    return NodeRecord(
        node_id=node_id,
        name=name,
        role=role,
        is_master=is_master,
        liveness=liveness,
        eligibility=eligibility,
        health=health.level if health and known else "unknown",
        reasons=tuple(_reason(one) for one in reasons if known or _is_about_membership(one)),
        backends=resources.backends if resources else (),
        memory_total_bytes=resources.memory_total_bytes if resources else None,
        memory_available_bytes=known.memory_available_bytes if known else None,
        disk_total_bytes=resources.disk_total_bytes if resources else None,
        disk_free_bytes=known.disk_free_bytes if known else None,
        cpu_ratio=known.cpu_ratio if known else None,
        reading_age_s=resources.reading_age_s if resources else None,
        rtt_median_ms=rtt[0],
        rtt_last_ms=rtt[1],
    )


def _is_about_membership(reason: HealthReasonView) -> bool:
    return reason.code.startswith("member.") or reason.code == "node.duplicate_identity"


def check_record(node: NodeRecord) -> CheckRecord:
    """Say how well a node is."""
    levels = {reason.level for reason in node.reasons} | {node.health}
    verdict = "well"
    if "error" in levels:
        verdict = "fails"
    elif "warn" in levels or node.liveness != "alive":
        verdict = "degraded"
    return CheckRecord(
        node_id=node.node_id,
        name=node.name,
        verdict=verdict,
        liveness=node.liveness,
        health=node.health,
        reasons=node.reasons,
    )


def _reason(reason: HealthReasonView) -> ReasonRecord:
    return ReasonRecord(
        code=reason.code,
        level=reason.level,
        message=reason.message,
        remediation=reason.remediation,
    )


def status_record(state: StateDocument) -> StatusRecord:
    """Give the whole picture of one node's answer."""
    return StatusRecord(
        cluster_id=state.cluster_id,
        node_id=state.node_id,
        boot_id=state.boot_id,
        master=state.master,
        term=state.term,
        seq=state.seq,
        policy=state.settings.policy,
        nodes=node_records(state),
        instances=instance_records(state),
        transfers=tuple(transfer_record(transfer) for transfer in state.transfers),
    )


def instance_records(state: StateDocument) -> tuple[InstanceRecord, ...]:
    """List the instances, oldest first."""
    names = names_of(state)
    views = sorted(state.instances.values(), key=lambda one: (one.placed_at_ms, one.instance_id))
    replacing = {
        view.replaces.instance_id: view
        for view in views
        if view.replaces is not None and view.phase not in {"failed", "stopping"}
    }
    return tuple(
        instance_record(
            view,
            names,
            moves_to=replacing.get(view.instance_id),
            no_place=no_place_of(state, view),
        )
        for view in views
    )


def no_place_of(state: StateDocument, view: InstanceView) -> PlacementFailure | None:
    """Find why no other node takes an instance."""
    told = [one for one in state.placement_failures if one.instance_id == view.instance_id]
    return told[-1] if told else None


def _waiting_record(view: WaitingView) -> WaitingRecord:
    return WaitingRecord(
        position=view.position,
        asker=view.asker,
        waited_s=view.waited_s,
        expected_s=view.expected_s,
    )


def instance_record(
    view: InstanceView,
    names: Names,
    *,
    moves_to: InstanceView | None = None,
    no_place: PlacementFailure | None = None,
) -> InstanceRecord:
    """Give one instance.

    Args:
        view: What its node says of it.
        names: Of the nodes.
        moves_to: The instance that it is being moved to, where the others are known.
        no_place: Why no other node takes it.
    """
    policy = view.disconnect
    return InstanceRecord(
        instance_id=view.instance_id,
        model_id=view.model_id,
        phase=view.phase,
        attempt=view.attempt,
        node_ids=_node_ids(view),
        node_names=_node_names(view, names),
        unreachable_names=tuple(name_of(names, node_id) for node_id in view.unreachable_nodes),
        shape=view.plan.shape,
        backend=view.plan.backend,
        plan_id=view.plan.plan_id,
        context_tokens=view.context_token_limit,
        slots=view.slots,
        in_flight=view.in_flight,
        queued=view.queued,
        waiting=tuple(map(_waiting_record, view.waiting)),
        tokens_per_s=view.tokens_per_s,
        predicted_tokens_per_s=_predicted_rate(view.plan),
        answer_tokens_per_s=view.answer_tokens_per_s,
        needed_bytes=sum(shard.memory.needed_bytes for shard in view.plan.shards),
        measured_bytes=measured_bytes(view),
        memory_error_percent=memory_error_percent(view),
        ttl_s=None if view.ttl_ms is None else view.ttl_ms // 1000,
        sleeps_in_s=view.sleeps_in_s,
        priority=view.priority,
        made_room_for=view.made_room_for,
        pinned=view.pinned,
        pids=tuple(runner.pid for runner in view.runners if runner.pid is not None),
        load_ms=view.launch.load_ms if view.launch else None,
        placed_at=rfc3339(view.placed_at_ms),
        placed_at_ms=view.placed_at_ms,
        replaces=view.replaces.instance_id if view.replaces else None,
        replaced_by=None if moves_to is None else moves_to.instance_id,
        moves_to_names=() if moves_to is None else _node_names(moves_to, names),
        moved_from_names=tuple(name_of(names, node_id) for node_id in view.moved_from),
        waits=view.replaces is not None and view.replaces.stop_first and view.phase == "pending",
        lost_after_s=policy.lost_after_ms // 1000,
        replace=policy.replace,
        stop_after_s=None if policy.stop_after_ms is None else policy.stop_after_ms // 1000,
        repairs=tuple(_repair_record(repair, names) for repair in view.repairs),
        no_place=None if no_place is None else _no_place_record(no_place),
        progress=tuple(progress_record(progress) for progress in view.progress),
        failure=failure_record(view.failure) if view.failure else None,
    )


def _repair_record(repair: Repair, names: Names) -> RepairRecord:
    return RepairRecord(
        at=rfc3339(repair.at_ms),
        at_ms=repair.at_ms,
        code=repair.error.code,
        message=repair.error.message,
        from_names=tuple(name_of(names, node_id) for node_id in repair.from_nodes),
        to_names=tuple(name_of(names, node_id) for node_id in repair.to_nodes),
    )


def _no_place_record(failure: PlacementFailure) -> NoPlaceRecord:
    return NoPlaceRecord(
        at=rfc3339(failure.at_ms),
        code=failure.error.code,
        message=failure.error.message,
        remediation=failure.error.remediation,
    )


def _predicted_rate(made: Plan) -> float | None:
    return None if made.speed is None else round(made.speed.tokens_per_s, 1)


def _node_names(view: InstanceView, names: Names) -> tuple[str, ...]:
    return tuple(name_of(names, node_id) for node_id in _node_ids(view))


def _node_ids(view: InstanceView) -> tuple[NodeId, ...]:
    return tuple(shard.node_id for shard in view.plan.shards)


def progress_record(progress: ProgressView) -> ProgressRecord:
    """Give how far one runner is."""
    return ProgressRecord(
        rank=progress.rank,
        node_id=progress.node_id,
        phase=progress.phase,
        phase_s=progress.phase_s,
        done_bytes=progress.done_bytes,
        total_bytes=progress.total_bytes,
        rate_bytes_s=progress.rate_bytes_s,
        eta_s=progress.eta_s,
        note=progress.note,
    )


def failure_record(failure: InstanceFailure) -> FailureRecord:
    """Give why an instance failed."""
    return FailureRecord(
        code=failure.error.code,
        message=failure.error.message,
        remediation=failure.error.remediation,
        phase=failure.phase,
        attempt=failure.attempt,
        exit_code=failure.exit_code,
        signal=failure.signal,
        log_tail=failure.log_tail,
        at=rfc3339(failure.at_ms),
        final=failure.final,
    )


def transfer_record(transfer: TransferStatus) -> TransferRecord:
    """Give how far a download is."""
    return TransferRecord(
        model_id=transfer.model_id,
        node_id=transfer.node_id,
        state=transfer.state,
        phase=transfer.phase,
        done_bytes=transfer.done_bytes,
        total_bytes=transfer.total_bytes,
        rate_bytes_s=transfer.rate_bytes_s,
        eta_s=transfer.eta_s,
        source=transfer.source,
        paused_by=None if transfer.paused is None else transfer.paused.by,
        paused_at=None if transfer.paused is None else rfc3339(transfer.paused.at_ms),
    )


def model_record(entry: ModelEntry) -> ModelRecord:
    """Give one model of the catalogue."""
    return ModelRecord(
        model_id=entry.id,
        name=entry.name,
        size_bytes=entry.storage_size_bytes,
        family=entry.family,
        quantization=entry.quantization,
        context_length=entry.context_length or None,
        context_window=entry.context_window,
        tasks=entry.tasks,
        capabilities=entry.capabilities,
        backends=entry.backends,
        source=entry.source,
        installed=entry.installed,
        placed=entry.placed,
        ready=entry.ready,
        license=entry.license,
        measured=tuple(boot_record(boot) for boot in entry.measured),
    )


def boot_record(boot: BootView) -> BootRecord:
    """Give what boots of a model have taken."""
    return BootRecord(
        build=boot.build,
        compute=boot.compute,
        device=boot.device,
        context_tokens=boot.context_tokens,
        slots=boot.slots,
        layer_start=boot.layers[0],
        layer_end=boot.layers[1],
        measured_bytes=boot.measured_bytes,
        n_boots=boot.n_boots,
        at=rfc3339(boot.at_ms),
    )


def plan_record(plan: Plan, names: Names) -> CandidateRecord:
    """Give a plan with its arithmetic on each node."""
    node_ids = tuple(shard.node_id for shard in plan.shards)
    return CandidateRecord(
        fits=True,
        node_ids=node_ids,
        node_names=tuple(name_of(names, node_id) for node_id in node_ids),
        plan_id=plan.plan_id,
        shape=plan.shape,
        backend=plan.backend,
        context_tokens=plan.context_tokens,
        slots=plan.slots,
        alternative=plan.alternative,
        download_bytes=plan.download_bytes,
        context_limited_by=plan.context_limited_by,
        speed=speed_record(plan, names),
        arithmetic=tuple(
            arithmetic_record(
                shard.memory,
                shard.node_id,
                names,
                rank=shard.rank,
                layers=(shard.layer_start, shard.layer_end),
            )
            for shard in plan.shards
        ),
        refusal_code=None,
        refusal=None,
        broken_term=None,
        smallest_change=None,
        smallest_change_context_tokens=None,
    )


def speed_record(plan: Plan, names: Names) -> SpeedRecord | None:
    """Give a plan's predicted speed, rank by rank; None where it cannot be told."""
    if plan.speed is None:
        return None
    nodes = {shard.rank: shard.node_id for shard in plan.shards}
    return SpeedRecord(
        tokens_per_s=round(plan.speed.tokens_per_s, 1),
        link_ms_per_token=plan.speed.link_us / 1000,
        links_measured=plan.speed.links_measured,
        measured=plan.speed.is_measured,
        ranks=tuple(
            RankSpeedRecord(
                node_id=nodes[rank.rank],
                node_name=name_of(names, nodes[rank.rank]),
                read_bytes=rank.read_bytes,
                rate_bytes_s=rank.rate_bytes_s,
                ms_per_token=round(1000 * rank.read_bytes / rank.rate_bytes_s, 1),
                measured=rank.is_measured,
            )
            for rank in plan.speed.ranks
        ),
    )


def refusal_record(refusal: Refusal, names: Names) -> CandidateRecord:
    """Give why a candidate is refused, with its arithmetic where memory was the reason."""
    node_ids = (refusal.node_id,) if refusal.node_id is not None else ()
    memory = refusal.memory
    change = refusal.smallest_change
    return CandidateRecord(
        fits=False,
        node_ids=node_ids,
        node_names=tuple(name_of(names, node_id) for node_id in node_ids),
        plan_id=None,
        shape=None,
        backend=None,
        context_tokens=memory.context_tokens if memory else None,
        slots=None,
        alternative=False,
        download_bytes=0,
        context_limited_by="",
        speed=None,
        arithmetic=tuple(arithmetic_record(memory, node_id, names) for node_id in node_ids)
        if memory
        else (),
        refusal_code=refusal.error.code,
        refusal=refusal.error.message,
        broken_term=refusal.term,
        smallest_change=change.text if change else None,
        smallest_change_context_tokens=change.context_tokens if change else None,
    )


def arithmetic_record(
    memory: MemoryArithmetic,
    node_id: NodeId,
    names: Names,
    *,
    rank: int | None = None,
    layers: tuple[int, int] | None = None,
) -> ArithmeticRecord:
    """Give the memory arithmetic of one share on one node."""
    return ArithmeticRecord(
        node_id=node_id,
        node_name=name_of(names, node_id),
        rank=rank,
        layer_start=layers[0] if layers else None,
        layer_end=layers[1] if layers else None,
        pool=memory.pool,
        weights_bytes=memory.weights_bytes,
        kv_cache_bytes=memory.kv_cache_bytes,
        overhead_bytes=memory.overhead_bytes,
        needed_bytes=memory.needed_bytes,
        reserved_bytes=memory.reserved_bytes,
        available_bytes=memory.available_bytes,
        headroom_bytes=memory.headroom_bytes,
        kv_bytes_per_token=memory.kv_bytes_per_token,
        context_tokens=memory.context_tokens,
    )


def key_record(key: KeyView) -> KeyRecord:
    """Give an API key without its secret."""
    return KeyRecord(
        key_id=key.key_id,
        name=key.name,
        scope=key.scope,
        created_at=rfc3339(key.created_at_ms),
        expires_at=rfc3339(key.expires_at_ms),
        is_expired=key.is_expired,
        requests_per_minute=key.limits.requests_per_minute,
        concurrent_requests=key.limits.concurrent_requests,
        previous_until=rfc3339(key.previous_until_ms),
        open_requests=key.open_requests,
    )


def found_record(found: FoundModelView) -> ImportRecord:
    """Give a model file that another program left on the node's machine."""
    return ImportRecord(
        source=found.source,
        name=found.name,
        path=found.path,
        size_bytes=found.size_bytes,
        model_id=found.model_id,
        imported=found.imported,
        problem=found.problem,
    )
