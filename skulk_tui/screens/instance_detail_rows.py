"""What an instance's detail shows: its shards, its figures, and why it failed. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from protocol.control_api import InstanceView, ProgressView, RunnerView
from protocol.instances import InstanceFailure, Phase
from protocol.placements import Plan, ShardAssignment
from skulk_tui.formatting import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
    format_throughput,
    joined,
    rfc3339,
)
from skulk_tui.lines import Line, Span, line, span, toned
from skulk_tui.measured import measured_bytes, measured_text, memory_error_percent
from skulk_tui.screens.move_text import move_text
from skulk_tui.screens.plan_phases import failure_lines, phase_word, tone_of
from skulk_tui.screens.plan_rows import SHAPE_WORDS
from skulk_tui.screens.stay_text import stay_text
from skulk_tui.table_columns import Column
from skulk_tui.table_model import Ref, TableRow
from skulk_tui.view_state import ViewState

SHARD_COLUMNS: Final = (
    Column(key="node", title="NODE", width=11, grow=1),
    Column(key="layers", title="LAYERS", width=7),
    Column(key="memory", title="PLANNED", width=8, align="right"),
    Column(key="phase", title="PHASE", width=8),
    Column(key="done", title="DONE", width=5, align="right"),
    Column(key="rate", title="RATE", width=10, align="right", drop=1),
    Column(key="eta", title="ETA", width=8, align="right", drop=2),
    Column(key="pid", title="PID", width=7, align="right", drop=3),
    Column(key="measured", title="MEASURED", width=8, align="right", drop=4),
)
_MOST_LOG: Final = 20
"""Lines of an engine's log that a failure keeps."""


def instance_of(view: ViewState, instance_id: str) -> InstanceView | None:
    """Give an instance as it is now; None once it is placed no more."""
    return next((one for one in view.instances if one.instance_id == instance_id), None)


def failure_of(view: ViewState, instance_id: str) -> InstanceFailure | None:
    """Give how an instance failed last; also where it is placed no more."""
    return next((one for one in view.failures if one.instance_id == instance_id), None)


# ---- Shards ------------------------------------------------------------------------------------


def shard_rows(item: InstanceView, view: ViewState) -> Sequence[TableRow]:
    """Give a row for each rank, in the order that a token goes through them."""
    runners = {one.rank: one for one in item.runners}
    progress = {one.rank: one for one in item.progress}
    return [
        _shard_row(
            item, shard, view, runner=runners.get(shard.rank), progress=progress.get(shard.rank)
        )
        for shard in sorted(item.plan.shards, key=lambda one: one.rank)
    ]


def _shard_row(
    item: InstanceView,
    shard: ShardAssignment,
    view: ViewState,
    *,
    runner: RunnerView | None,
    progress: ProgressView | None,
) -> TableRow:
    name = view.name_of(shard.node_id)
    phase: Phase = progress.phase if progress else runner.phase if runner else "pending"
    is_away = shard.node_id in item.unreachable_nodes
    done, total = (progress.done_bytes, progress.total_bytes) if progress else (None, None)
    return TableRow(
        ref=Ref(kind="shard", id=f"{shard.rank} {shard.node_id}", name=name),
        cells={
            "node": line(span(name, "strong")),
            "layers": line(f"{shard.layer_start}-{shard.layer_end - 1}"),
            "memory": line(format_bytes(shard.memory.needed_bytes)),
            "phase": toned("away!", "bad") if is_away else toned(phase, tone_of(phase)),
            "done": line(format_percent(done, total).replace(" ", "")),
            "rate": line(format_rate(progress.rate_bytes_s if progress else None)),
            "eta": line(format_duration(progress.eta_s if progress else None)),
            "pid": line(str(runner.pid) if runner and runner.pid else UNKNOWN),
            "measured": toned(UNKNOWN, "dim"),  # no node measures a shard's memory
        },
        sort={"memory": shard.memory.needed_bytes},
        full=f"{name}  rank {shard.rank}  {phase}  {progress.note if progress else ''}",
    )


# ---- Figures -----------------------------------------------------------------------------------


def instance_lines(item: InstanceView, view: ViewState) -> Sequence[Line]:
    """Say what the instance is, how it was placed, and what it does now."""
    plan = item.plan
    rows: list[tuple[str, Line]] = [
        ("instance", line(span(item.instance_id))),
        ("phase", line(Span(phase_word(item.phase), tone_of(item.phase)),
                       f", attempt {item.attempt}", "" if item.desired != "stopped"
                       else ", to be stopped")),
        *_no_place(item, view),
        *_repairs(item, view),
        *_stays(item, view),
        ("load", _load(item)),
        *_waits(item),
        ("window", line(f"{format_count(item.context_token_limit)} tokens a request")),
        ("plan", line(f"{SHAPE_WORDS[plan.shape]}, {plan.backend}, {plan.plan_id[:12]}")),
        ("memory", _memory(plan)),
        *_measured(item),
        ("placed", line(rfc3339(item.placed_at_ms) or UNKNOWN)),
        ("launch", _launch(item)),
        ("per token", toned(f"{UNKNOWN}  no node tells times per shard and hop", "dim")),
    ]  # fmt: skip
    return [line(Span(f" {name:<10}", "dim"), *content) for name, content in rows]


def _no_place(item: InstanceView, view: ViewState) -> Iterator[tuple[str, Line]]:
    """Say why no other node takes it, where it needs one."""
    for told in view.refusals:
        if told.instance_id == item.instance_id:
            yield "no place", toned(told.error.message, "bad")
            yield "then", toned(told.error.remediation, "accent")


def _repairs(item: InstanceView, view: ViewState) -> Iterator[tuple[str, Line]]:
    """Say when it was put on other nodes by itself, and why."""
    for one in reversed(item.repairs):
        old, new = (
            joined(view.name_of(node_id) for node_id in nodes)
            for nodes in (one.from_nodes, one.to_nodes)
        )
        at = rfc3339(one.at_ms) or UNKNOWN
        yield "repaired", line(Span(f"{at} ", "dim"), f"{old} to {new}: {one.error.message}")
    if not item.disconnect.replace:
        yield "replaced", line("never by itself")


def _stays(item: InstanceView, view: ViewState) -> Iterator[tuple[str, Line]]:
    """Say that a node of it is away, whether it is being moved, and for how long it stays."""
    away = ", ".join(view.name_of(node) for node in item.unreachable_nodes)
    if away:
        yield "away", toned(f"{away} cannot be reached from here", "bad")
    moves = move_text(item, view)
    if moves:
        yield "move", line(Span(moves, "warn"))
    stays = stay_text(item)
    if stays:
        yield "stays", line(stays)


def _measured(item: InstanceView) -> Iterator[tuple[str, Line]]:
    seen = measured_bytes(item)
    if seen is not None:
        yield "measured", line(measured_text(seen, memory_error_percent(item)))


def _load(item: InstanceView) -> Line:
    busy = UNKNOWN if item.in_flight is None else str(item.in_flight)
    queued = UNKNOWN if item.queued is None else str(item.queued)
    rate = "" if item.tokens_per_s is None else f", {format_throughput(item.tokens_per_s)}"
    return line(f"{busy} of {item.slots} slots busy, {queued} waiting{rate}")


def _waits(item: InstanceView) -> Iterator[tuple[str, Line]]:
    """Say how long the first request has waited, and what the last one that is told of expects."""
    if not item.waiting:
        return
    expected_s = item.waiting[-1].expected_s
    rest = "" if expected_s is None else f", the last for about {format_duration(expected_s)} more"
    yield "waiting", line(f"the first for {format_duration(item.waiting[0].waited_s)}{rest}")


def _memory(plan: Plan) -> Line:
    memories = [shard.memory for shard in plan.shards]
    return line(
        f"weights {format_bytes(sum(one.weights_bytes for one in memories))}"
        f" + kv {format_bytes(sum(one.kv_cache_bytes for one in memories))}"
        f" + overhead {format_bytes(sum(one.overhead_bytes for one in memories))}"
    )


def _launch(item: InstanceView) -> Line:
    if item.launch is None:
        return toned("has not been ready yet", "dim")
    launch = item.launch
    return line(
        f"loaded in {format_duration(launch.load_ms / 1000)}, ready since"
        f" {rfc3339(launch.ready_at_ms)}, arguments {launch.argv_digest[:12]}"
    )


# ---- Failures ----------------------------------------------------------------------------------


def trouble_lines(failure: InstanceFailure | None, width: int) -> Sequence[Line]:
    """Say how the last failure ended, with the last lines of its log; or that there was none."""
    if failure is None:
        return [toned(" no attempt has failed", "good")]
    at = rfc3339(failure.at_ms) or UNKNOWN
    return [toned(f" {at}", "dim"), *failure_lines(failure, width, n_log=_MOST_LOG)]
