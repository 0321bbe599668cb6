"""Records as tables for people. Pure: the terminal's width is settled by whoever draws them."""

from collections.abc import Sequence

from skulk_tui.cli.instance_tables import instances_table
from skulk_tui.cli.output import Column, Table, key_values
from skulk_tui.cli.records import (
    BootRecord,
    FileRecord,
    ImportRecord,
    KeyRecord,
    ModelRecord,
    NodeRecord,
    OutcomeRecord,
    StatusRecord,
    TransferRecord,
)
from skulk_tui.formatting import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
    format_rtt,
    joined,
    presence_text,
)

# `--plan` takes the start of an id too.


def status_tables(
    status: StatusRecord, *, now_ms: int, has_notes: bool = False
) -> tuple[Table, ...]:
    """Cluster, nodes, what is wrong with them, instances, downloads."""
    names = {node.node_id: node.name for node in status.nodes}
    master = names.get(status.master, status.master) if status.master else "none"
    cluster = key_values(
        [
            ("cluster", status.cluster_id),
            ("answered by", names.get(status.node_id, status.node_id)),
            ("master", f"{master} (term {status.term}, seq {status.seq})"),
            ("nodes", _alive(status.nodes)),
        ]
    )
    return (
        cluster,
        nodes_table(status.nodes),
        reasons_table(status.nodes, has_notes=has_notes),
        instances_table(status.instances, now_ms=now_ms),
        transfers_table(status.transfers),
    )


def _alive(nodes: Sequence[NodeRecord]) -> str:
    n_alive = sum(1 for node in nodes if node.liveness == "alive")
    away = ", ".join(f"{node.name} {node.liveness}" for node in nodes if node.liveness != "alive")
    return f"{n_alive} of {len(nodes)} alive" + (f"; {away}" if away else "")


def nodes_table(nodes: Sequence[NodeRecord]) -> Table:
    """One row per node."""
    return Table(
        (
            Column("NODE", least=8),
            Column("LIVENESS"),
            Column("HEALTH"),
            Column("ROLE", drop=2),
            Column("MEMORY FREE", right=True),
            Column("OF", right=True),
            Column("DISK FREE", right=True, drop=1),
            Column("BACKENDS", least=12, drop=3),
            Column("ID", wide_only=True),
            Column("CPU", right=True, wide_only=True),
            Column("SEEN", right=True, wide_only=True),
            Column("RTT MS", right=True, wide_only=True),
        ),
        tuple(
            (
                node.name,
                presence_text(node.liveness, node.eligibility),
                node.health,
                f"{node.role}, master" if node.is_master else node.role,
                format_bytes(node.memory_available_bytes),
                format_bytes(node.memory_total_bytes),
                format_bytes(node.disk_free_bytes),
                joined(node.backends),
                node.node_id,
                format_percent(node.cpu_ratio, 1.0),
                _ago(node.reading_age_s),
                format_rtt(node.rtt_median_ms),
            )
            for node in nodes
        ),
    )


def _ago(age_s: float | None) -> str:
    return UNKNOWN if age_s is None else f"{format_duration(age_s)} ago"


def reasons_table(nodes: Sequence[NodeRecord], *, has_notes: bool = False) -> Table:
    """One row per thing that is wrong; empty when all is well.

    Args:
        nodes: Whose reasons are shown.
        has_notes: Show also what is worth a note and not wrong.
    """
    return Table(
        (
            Column("NODE", least=8),
            Column("LEVEL"),
            Column("CODE", least=12),
            Column("MESSAGE", least=20, wraps=True),
            Column("REMEDY", least=20, wraps=True),
        ),
        tuple(
            (node.name, reason.level, reason.code, reason.message, reason.remediation or UNKNOWN)
            for node in nodes
            for reason in node.reasons
            if has_notes or reason.level != "ok"
        ),
    )


def transfers_table(transfers: Sequence[TransferRecord]) -> Table:
    """One row per download."""
    return Table(
        (
            Column("DOWNLOAD", least=16),
            Column("STATE"),
            Column("DONE", right=True),
            Column("OF", right=True),
            Column("RATE", right=True),
            Column("ETA", right=True),
            Column("FROM", wide_only=True),
            Column("NODE ID", wide_only=True),
        ),
        tuple(
            (
                one.model_id,
                one.phase or one.state,
                format_bytes(one.done_bytes),
                format_bytes(one.total_bytes),
                format_rate(one.rate_bytes_s),
                format_duration(one.eta_s),
                one.source or UNKNOWN,
                one.node_id,
            )
            for one in transfers
        ),
    )


def models_table(models: Sequence[ModelRecord]) -> Table:
    """One row per model."""
    return Table(
        (
            Column("MODEL", least=16),
            Column("SIZE", right=True),
            Column("QUANT", drop=2),
            Column("CONTEXT", right=True, drop=1),
            Column("STATE"),
            Column("SOURCE", drop=3),
            Column("FAMILY", wide_only=True),
            Column("CAPABILITIES", wide_only=True),
            Column("BACKENDS", wide_only=True),
            Column("LICENCE", wide_only=True),
        ),
        tuple(
            (
                model.model_id,
                format_bytes(model.size_bytes),
                model.quantization or UNKNOWN,
                format_count(model.context_window or model.context_length),
                model_state(model),
                model.source,
                model.family or UNKNOWN,
                joined(model.capabilities),
                joined(model.backends),
                model.license or UNKNOWN,
            )
            for model in models
        ),
    )


def model_state(model: ModelRecord) -> str:
    """Write the furthest that a model has come: ready, placed, installed or available."""
    if model.ready:
        return "ready"
    if model.placed:
        return "placed"
    return "installed" if model.installed else "available"


def model_table(model: ModelRecord) -> Table:
    """Everything about one model."""
    return key_values(
        [
            ("model", model.model_id),
            ("name", model.name),
            ("state", model_state(model)),
            ("size", f"{format_bytes(model.size_bytes)} ({format_count(model.size_bytes)} B)"),
            ("family", model.family or UNKNOWN),
            ("quantization", model.quantization or UNKNOWN),
            ("context", f"{format_count(model.context_length)} tokens"),
            ("served window", format_count(model.context_window)),
            ("tasks", joined(model.tasks)),
            ("capabilities", joined(model.capabilities)),
            ("backends", joined(model.backends)),
            ("source", model.source),
            ("licence", model.license or UNKNOWN),
            *(("measured", _boot_text(boot)) for boot in model.measured),
        ]
    )


def _boot_text(boot: BootRecord) -> str:
    return (
        f"{format_bytes(boot.measured_bytes)} with {format_count(boot.context_tokens)} tokens and"
        f" {boot.slots} slots, {boot.build} on {boot.device} ({boot.compute}),"
        f" layers {boot.layer_start}-{boot.layer_end - 1}"
    )


def keys_table(keys: Sequence[KeyRecord]) -> Table:
    """One row per API key."""
    return Table(
        (
            Column("KEY"),
            Column("NAME", least=8),
            Column("SCOPE"),
            Column("PER MIN", right=True),
            Column("AT ONCE", right=True),
            Column("OPEN", right=True, drop=2),
            Column("CREATED", drop=1),
            Column("EXPIRES"),
        ),
        tuple(
            (
                key.key_id,
                key.name,
                key.scope,
                _limit_text(key.requests_per_minute),
                _limit_text(key.concurrent_requests),
                format_count(key.open_requests),
                key.created_at or UNKNOWN,
                "expired" if key.is_expired else key.expires_at or "never",
            )
            for key in keys
        ),
    )


def _limit_text(limit: int | None) -> str:
    return "any" if limit is None else format_count(limit)


def imports_table(found: Sequence[ImportRecord]) -> Table:
    """One row per file."""
    return Table(
        (
            Column("MODEL", least=16),
            Column("STATE"),
            Column("SIZE", right=True, drop=1),
            Column("FROM"),
            Column("PROBLEM", least=16, wraps=True),
            Column("PATH", least=20, wraps=True),
        ),
        tuple(
            (
                one.model_id or one.name,
                "imported" if one.imported else "refused" if one.problem else "found",
                format_bytes(one.size_bytes),
                one.source,
                one.problem,
                one.path,
            )
            for one in found
        ),
    )


def outcomes_table(outcomes: Sequence[OutcomeRecord]) -> Table:
    """One row per target; without columns that have nothing to say about any of them."""
    cells = (
        (Column("TARGET", least=13), [one.target for one in outcomes]),
        (Column("MODEL", least=16, drop=2), [one.model_id or UNKNOWN for one in outcomes]),
        (
            Column("OUTCOME", least=16, wraps=True),
            [
                one.outcome if one.error is None else f"{one.outcome}: {one.error}"
                for one in outcomes
            ],
        ),
        (Column("FREED", right=True, drop=1), [format_bytes(one.freed_bytes) for one in outcomes]),
    )
    shown = [(column, texts) for column, texts in cells if any(text != UNKNOWN for text in texts)]
    return Table(
        tuple(column for column, _ in shown),
        tuple(zip(*(texts for _, texts in shown), strict=True)),
    )


def _use_of(one: FileRecord) -> str:
    if one.damaged:
        return "damaged"
    return "in use" if one.in_use else "imported" if one.linked else "idle"


def files_table(files: Sequence[FileRecord]) -> Table:
    """One row per model and node."""
    return Table(
        (
            Column("MODEL", least=16),
            Column("NODE", least=8),
            Column("SIZE", right=True),
            Column("USE"),
            Column("PATH", least=20, wraps=True, drop=1),
        ),
        tuple(
            (
                one.model_id,
                one.node_name,
                format_bytes(one.size_bytes),
                _use_of(one),
                one.path or UNKNOWN,
            )
            for one in files
        ),
    )
