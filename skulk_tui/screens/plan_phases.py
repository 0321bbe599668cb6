"""How an instance comes up, node by node: phases, bytes, rate, why it failed. Pure."""

from collections.abc import Sequence
from typing import Final

from protocol.control_api import InstanceView, ProgressView, RunnerView
from protocol.instances import LOADING_PHASES, PHASE_ORDER, InstanceFailure, Phase
from protocol.placements import ShardAssignment
from skulk_tui.formatting import (
    format_bytes,
    format_duration,
    format_percent,
    format_rate,
    format_throughput,
)
from skulk_tui.glyphs import GlyphSet, bar
from skulk_tui.lines import EMPTY, Line, Span, Tone, fit, line, span, wrapped
from skulk_tui.screens.cluster_rows import ref_of_instance
from skulk_tui.screens.move_text import move_text
from skulk_tui.screens.stay_text import stay_text
from skulk_tui.status_row import clock_time
from skulk_tui.view_state import ViewState
from skulk_tui.widgets.block_pane import Block

_TONES: Final[dict[Phase, Tone]] = {
    "ready": "good",
    "failed": "bad",
    "stopping": "dim",
    "stopped": "dim",
    "asleep": "dim",
}
_NAME: Final = 9
_PHASE: Final = 8
_BAR: Final = 10
_BAR_FROM: Final = 60
"""Columns from which there is room for a bar and for both sizes."""


def run_blocks(
    instances: Sequence[InstanceView], view: ViewState, glyphs: GlyphSet, width: int
) -> Sequence[Block]:
    """Give a block for each instance: its phase, then each node's."""
    return [
        Block(
            ref=ref_of_instance(item),
            lines=(run_head(item), *run_lines(item, view, glyphs, width)),
        )
        for item in instances
    ]


def tone_of(phase: Phase) -> Tone:
    """Give what a phase looks like: well, ended, or on its way."""
    return _TONES.get(phase, "warn")


def run_head(item: InstanceView) -> Line:
    """Say how far the whole is."""
    attempt = f"  attempt {item.attempt}" if item.attempt > 1 else ""
    load = ""
    if item.in_flight is not None:
        load = f"  {item.in_flight} of {item.slots} slots"
    if item.queued:
        load += f", {item.queued} waiting"
    if item.tokens_per_s:
        load += f"  {format_throughput(item.tokens_per_s)}"
    return line(
        Span(" "), span(item.instance_id, "strong"), "  ",
        Span(phase_word(item.phase), tone_of(item.phase)), attempt, load,
        Span(f"  {stays}" if (stays := stay_text(item)) else "", "dim"),
    )  # fmt: skip


def phase_word(phase: Phase) -> str:
    """Write a phase, and which of how many it is while the instance comes up."""
    if phase not in LOADING_PHASES:
        return phase
    return f"{phase} {PHASE_ORDER.index(phase) + 1}/{len(PHASE_ORDER)}"


def run_lines(item: InstanceView, view: ViewState, glyphs: GlyphSet, width: int) -> Sequence[Line]:
    """Give a line for each node, then whether it moves, and what went wrong."""
    runners = {one.rank: one for one in item.runners}
    progress = {one.rank: one for one in item.progress}
    lines = [
        runner_line(
            view.name_of(shard.node_id),
            shard,
            runners.get(shard.rank),
            progress.get(shard.rank),
            glyphs,
            width=width,
            is_unreachable=shard.node_id in item.unreachable_nodes,
        )
        for shard in sorted(item.plan.shards, key=lambda one: one.rank)
    ]
    moves = move_text(item, view)
    if moves:
        lines.append(line(Span("  "), span(moves, "warn")))
    if item.failure is not None:
        lines += failure_lines(item.failure, width)
    return lines


def runner_line(
    name: str,
    shard: ShardAssignment,
    runner: RunnerView | None,
    progress: ProgressView | None,
    glyphs: GlyphSet,
    *,
    width: int,
    is_unreachable: bool,
) -> Line:
    """Say how far one node is."""
    phase: Phase = progress.phase if progress else runner.phase if runner else "pending"
    head = (
        Span("  "),
        *fit((span(name),), _NAME),
        Span(" "),
        *fit((Span(phase, tone_of(phase)),), _PHASE),
        Span(" "),
    )
    if is_unreachable:
        return line(*head, Span("out of reach", "bad"))
    if progress is None:
        layers = f"layers {shard.layer_start}-{shard.layer_end - 1}"
        pid = f"  pid {runner.pid}" if runner and runner.pid else ""
        return line(*head, f"{layers}  {format_bytes(shard.memory.needed_bytes)}{pid}")
    return line(*head, *progress_line(progress, glyphs, is_wide=width >= _BAR_FROM))


def progress_line(progress: ProgressView, glyphs: GlyphSet, *, is_wide: bool) -> Line:
    """Say bytes, rate and time left; what is not measured yet is not said."""
    done, total = progress.done_bytes, progress.total_bytes
    if done is None:
        return line(
            f"for {format_duration(progress.phase_s)}", span(f"  {progress.note}" if progress.note
                                                             else ""),
        )  # fmt: skip
    percent = format_percent(done, total).replace(" ", "")
    parts: list[str | Span] = []
    if is_wide and total:
        parts.append(f"{bar(glyphs, _BAR, used=min(1.0, done / total))} ")
    parts.append(f"{percent:>3}")
    if is_wide:
        parts.append(f"  {format_bytes(done)} of {format_bytes(total)} ")
    if progress.rate_bytes_s is not None:
        parts.append(f" {format_rate(progress.rate_bytes_s)}")
    if progress.eta_s is not None:
        parts.append(f" {clock_time(progress.eta_s)}")
    return line(*parts)


def failure_lines(failure: InstanceFailure, width: int, *, n_log: int = 1) -> Sequence[Line]:
    """Say where and why it failed, what helps, and the last lines of the engine's log."""
    how = failure.signal or (
        "" if failure.exit_code is None else f"exit status {failure.exit_code}"
    )
    again = "no further attempt follows" if failure.final else "another attempt follows"
    lines = [
        line(
            Span("   "),
            span(f"failed in {failure.phase}, attempt {failure.attempt}", "bad"),
            span(f", {how}" if how else ""),
            f"; {again}",
        ),
        line(Span("   "), span(failure.error.message, "bad")),
        line(Span("   "), span(failure.error.remediation, "accent"))
        if failure.error.remediation
        else EMPTY,
    ]
    lines += [
        line(Span("   | ", "dim"), span(text, "dim")) for text in failure.log_tail[-n_log:]
    ]  # fmt: skip
    return [piece for item in lines if item for piece in wrapped(item, max(20, width))]
