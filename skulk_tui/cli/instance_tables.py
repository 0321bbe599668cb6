"""Instances as tables for people: where each runs, how far it is, why it failed. Pure."""

from collections.abc import Iterator, Sequence

from skulk_tui.cli.output import Column, Table, key_values
from skulk_tui.cli.records import FailureRecord, InstanceRecord, ProgressRecord
from skulk_tui.formatting import (
    UNKNOWN,
    format_age,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_throughput,
    joined,
)
from skulk_tui.measured import measured_text


def instances_table(instances: Sequence[InstanceRecord], *, now_ms: int) -> Table:
    """One row per instance; what was measured stands there once something was."""
    is_measured = any(one.measured_bytes is not None for one in instances)
    measured = (Column("MEASURED", right=True, drop=6),) if is_measured else ()
    return Table(
        (
            Column("INSTANCE", least=13),
            Column("MODEL", least=16),
            Column("PHASE", least=10),
            Column("NODE", least=6),
            Column("BACKEND", least=12, drop=4),
            Column("CONTEXT", right=True, drop=3),
            Column("BUSY", right=True),
            Column("TOK/S", right=True, drop=5),
            Column("MEMORY", right=True, drop=2),
            *measured,
            Column("AGE", right=True, drop=1),
            Column("PREDICTED", right=True, wide_only=True),
            Column("SEEN", right=True, wide_only=True),
            Column("QUEUED", right=True, wide_only=True),
            Column("ATTEMPT", right=True, wide_only=True),
            Column("LOADED IN", right=True, wide_only=True),
            Column("PID", wide_only=True),
            Column("NOTE", wide_only=True),
        ),
        tuple(
            (
                one.instance_id,
                one.model_id,
                phase_text(one),
                joined(one.node_names),
                one.backend,
                format_count(one.context_tokens),
                f"{UNKNOWN if one.in_flight is None else one.in_flight}/{one.slots}",
                rate_text(one.tokens_per_s),
                format_bytes(one.needed_bytes),
                *(measured_text(one.measured_bytes, one.memory_error_percent) for _ in measured),
                format_age(one.placed_at_ms, now_ms=now_ms),
                rate_text(one.predicted_tokens_per_s),
                rate_text(one.answer_tokens_per_s),
                format_count(one.queued),
                str(one.attempt),
                format_duration(None if one.load_ms is None else one.load_ms / 1000),
                joined(str(pid) for pid in one.pids),
                one.failure.message if one.failure else "",
            )
            for one in instances
        ),
    )


def rate_text(tokens_per_s: float | None) -> str:
    """Write a rate for a column that has its unit in its head."""
    return format_throughput(tokens_per_s).partition(" ")[0]


def failures_tables(instances: Sequence[InstanceRecord]) -> tuple[Table, ...]:
    """Why each failed instance failed, and the last lines of its engine's log."""
    failed = [(one, one.failure) for one in instances if one.failure is not None]
    causes = Table(
        (
            Column("FAILED", least=13),
            Column("IN"),
            Column("ATTEMPT", right=True, drop=1),
            Column("ENDED BY"),
            Column("WHY", least=20, wraps=True),
            Column("REMEDY", least=20, wraps=True),
        ),
        tuple(
            (
                one.instance_id,
                failure.phase,
                str(failure.attempt),
                ending_text(failure),
                f"{failure.code}: {failure.message}",
                failure.remediation or UNKNOWN,
            )
            for one, failure in failed
        ),
    )
    logs = (_log_table(f"LOG OF {one.instance_id}", failure) for one, failure in failed)
    return (causes, _no_place_table(instances), *logs)


def _no_place_table(instances: Sequence[InstanceRecord]) -> Table:
    """Why those that need another place have none."""
    return Table(
        (
            Column("NO OTHER PLACE", least=13),
            Column("WHY", least=20, wraps=True),
            Column("REMEDY", least=20, wraps=True),
        ),
        tuple(
            (
                one.instance_id,
                f"{one.no_place.code}: {one.no_place.message}",
                one.no_place.remediation or UNKNOWN,
            )
            for one in instances
            if one.no_place is not None
        ),
    )


def ending_text(failure: FailureRecord) -> str:
    """Write how the process ended: its signal, its exit status, or that it is not known."""
    if failure.signal is not None:
        return failure.signal
    return UNKNOWN if failure.exit_code is None else f"exit status {failure.exit_code}"


def _log_table(title: str, failure: FailureRecord) -> Table:
    lines = tuple((line,) for line in failure.log_tail)
    return Table((Column(title, least=20, wraps=True),), lines)


def phase_text(instance: InstanceRecord) -> str:
    """Write the phase, with how far it is, why it failed, or who is out of reach."""
    if instance.phase == "failed" and instance.failure is not None:
        return f"failed ({instance.failure.code})"
    if instance.unreachable_names:
        return f"{instance.phase} ({joined(instance.unreachable_names)} out of reach)"
    slowest = slowest_progress(instance.progress)
    phase = instance.phase
    if slowest is not None and slowest.done_bytes is not None and slowest.total_bytes:
        phase = f"{phase} {format_percent(slowest.done_bytes, slowest.total_bytes)}"
    sleeps = ""
    if instance.sleeps_in_s is not None:
        sleeps = f"sleeps in {format_duration(instance.sleeps_in_s)}"
    if instance.made_room_for is not None:
        sleeps = f"made room for {instance.made_room_for}"
    notes = [
        _move_text(instance),
        _repair_text(instance),
        sleeps,
        f"priority {instance.priority}" if instance.priority else "",
        "pinned" if instance.pinned else "",
    ]
    said = ", ".join(note for note in notes if note)
    return f"{phase} ({said})" if said else phase


def _move_text(instance: InstanceRecord) -> str:
    """Write where it is being moved to, or where what it takes the place of is."""
    if instance.replaced_by is not None:
        return f"moves to {joined(instance.moves_to_names)}"
    if instance.replaces is None:
        return ""
    return f"{'waits for' if instance.waits else 'from'} {joined(instance.moved_from_names)}"


def _repair_text(instance: InstanceRecord) -> str:
    """Write why it is on its way to where it is, until it serves there."""
    if not instance.repairs or instance.phase in {"ready", "asleep"}:
        return ""
    last = instance.repairs[-1]
    return f"from {joined(last.from_names)}: {last.code}"


def slowest_progress(progress: Sequence[ProgressRecord]) -> ProgressRecord | None:
    """Give the runner that the instance waits for: the least share of its bytes done."""

    def share(one: ProgressRecord) -> float:
        return (one.done_bytes or 0) / one.total_bytes if one.total_bytes else 0.0

    return min(progress, key=share, default=None)


def instance_tables(instance: InstanceRecord, *, now_ms: int) -> tuple[Table, ...]:
    """Everything about one instance."""
    pairs = [
        ("instance", instance.instance_id),
        ("model", instance.model_id),
        ("phase", phase_text(instance)),
        ("attempt", str(instance.attempt)),
        ("nodes", joined(instance.node_names)),
        ("backend", f"{instance.backend} ({instance.shape})"),
        ("context", f"{format_count(instance.context_tokens)} tokens a request"),
        ("slots", str(instance.slots)),
        *_stay_pairs(instance),
        ("in flight", format_count(instance.in_flight)),
        ("queued", format_count(instance.queued)),
        ("rate", format_throughput(instance.tokens_per_s)),
        ("memory", format_bytes(instance.needed_bytes)),
        *_measured_pairs(instance),
        ("pids", joined(str(pid) for pid in instance.pids)),
        ("loaded in", format_duration(_seconds(instance.load_ms))),
        ("placed", f"{format_age(instance.placed_at_ms, now_ms=now_ms)} ago"),
        ("plan", instance.plan_id),
        *_repair_pairs(instance, now_ms),
    ]
    failure = instance.failure
    if failure is None:
        return (key_values(pairs),)
    pairs += [
        ("error", f"{failure.code}: {failure.message}"),
        ("failed in", f"{failure.phase}, attempt {failure.attempt}"),
        ("ended by", ending_text(failure)),
        ("remedy", failure.remediation or UNKNOWN),
    ]
    return (key_values(pairs), _log_table("LAST LINES OF ITS LOG", failure))


def _repair_pairs(instance: InstanceRecord, now_ms: int) -> Iterator[tuple[str, str]]:
    """Say what becomes of it when it cannot go on, and what has."""
    away = f"after {format_duration(instance.lost_after_s)} without its node"
    yield "replaced", f"{away}, or a failure there" if instance.replace else "never by itself"
    if instance.stop_after_s is not None:
        yield "stops", f"after {format_duration(instance.stop_after_s)} without a master"
    for one in reversed(instance.repairs):
        way = f"from {joined(one.from_names)} to {joined(one.to_names)}"
        yield "repaired", f"{format_age(one.at_ms, now_ms=now_ms)} ago, {way}: {one.message}"
    if instance.no_place is not None:
        yield "no place", f"{instance.no_place.code}: {instance.no_place.message}"
        yield "then", instance.no_place.remediation or UNKNOWN


def _measured_pairs(instance: InstanceRecord) -> Iterator[tuple[str, str]]:
    if instance.measured_bytes is not None:
        yield "measured", measured_text(instance.measured_bytes, instance.memory_error_percent)


def _stay_pairs(instance: InstanceRecord) -> Iterator[tuple[str, str]]:
    """Say how long it stays loaded, where that is not for as long as it is placed."""
    if instance.ttl_s is not None:
        yield "on demand", f"unloaded {format_duration(instance.ttl_s)} after a request"
    if instance.pinned:
        yield "pinned", "it stays loaded, and no drain takes it along"


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
