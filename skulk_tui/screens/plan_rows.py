"""How plans and refusals are shown: one row each, and the arithmetic of the one chosen. Pure."""

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.control_api import PreviewsDocument
from protocol.placements import MemoryArithmetic, Plan, Refusal, Shape
from skulk_tui.formatting import UNKNOWN, format_bytes, format_count
from skulk_tui.glyphs import GlyphSet, bar
from skulk_tui.lines import Line, Span, fit, line, span, toned, width_of, wrapped
from skulk_tui.table_columns import Column
from skulk_tui.table_model import Ref, TableRow
from skulk_tui.view_state import ViewState
from skulk_tui.wish import Wish

PLAN_COLUMNS: Final = (
    Column(key="plan", title="PLAN", width=10),
    Column(key="nodes", title="NODES", width=9, grow=1),
    Column(key="verdict", title="VERDICT", width=9),
    Column(key="left", title="LEFT", width=6, align="right"),
    Column(key="context", title="CTX", width=7, align="right", drop=1),
    Column(key="fetch", title="FETCH", width=8, align="right", drop=2),
    Column(key="backend", title="ENGINE", width=17, drop=3),
    Column(key="speed", title="TOK/S", width=5, align="right", drop=4),
    Column(key="ttft", title="TTFT", width=4, align="right", drop=5),
)
SHAPE_WORDS: Final[dict[Shape, str]] = {
    "single": "one node",
    "pipeline": "pipeline",
    "tensor": "tensor",
    "rpc": "rpc",
}
_REFUSALS: Final = {
    "placement.no_fit": "no fit",
    "placement.no_backend": "no engine",
    "placement.no_node": "left out",
    "placement.no_space": "no disk",
    "placement.node_unreachable": "away",
    "placement.node_draining": "drained",
    "placement.unsupported_shape": "no shape",
    "placement.facts_missing": "not yet",
}
_GIB: Final = 1 << 30
_WHOLE_FROM: Final = 100
_TEN_GIB: Final = 10 * _GIB
_BAR_LEAST: Final = 4
_BAR_MOST: Final = 20
_NAME: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a planner has answered.

    Invariant: `document` answers `wish`.
    """

    wish: Wish
    document: PreviewsDocument
    at: float
    """When it came, in monotonic seconds."""
    changes: tuple[str, ...] = ()
    """What differs from the answer before to the same wish."""

    @property
    def best(self) -> Plan | None:
        """What would be placed if nobody chose."""
        return self.document.plans[0] if self.document.plans else None

    def plan(self, ref: Ref | None) -> Plan | None:
        """Give the plan of a row."""
        return next(
            (one for one in self.document.plans if ref is not None and ref_of_plan(one) == ref),
            None,
        )

    def refusal(self, ref: Ref | None) -> Refusal | None:
        """Give the refusal of a row."""
        for index, one in enumerate(self.document.refusals):
            if ref is not None and ref_of_refusal(one, index) == ref:
                return one
        return None


def ref_of_plan(plan: Plan) -> Ref:
    """Give a plan's identity: its digest."""
    return Ref(kind="plan", id=plan.plan_id, name=f"plan {plan.plan_id[:4]}")


def ref_of_refusal(refusal: Refusal, index: int) -> Ref:
    """Give a refusal's identity: its node, or its place where it is about the request."""
    return Ref(kind="refused", id=refusal.node_id or f"{refusal.error.code} {index}")


# ---- The table ---------------------------------------------------------------------------------


def plan_rows(made: Made | None, view: ViewState) -> Sequence[TableRow]:
    """Give plans in the planner's order, each with a letter, then the refusals."""
    if made is None:
        return []
    plans = [_plan_row(plan, index, view) for index, plan in enumerate(made.document.plans)]
    refusals = [
        _refusal_row(refusal, index, view) for index, refusal in enumerate(made.document.refusals)
    ]
    return [*plans, *refusals]


def letter_of(index: int) -> str:
    """Give a plan's letter; beyond 26 there is none."""
    return string.ascii_uppercase[index] if index < len(string.ascii_uppercase) else " "


def _plan_row(plan: Plan, index: int, view: ViewState) -> TableRow:
    nodes = nodes_text(plan, view)
    headroom = min(shard.memory.headroom_bytes for shard in plan.shards)
    fetch = format_bytes(plan.download_bytes) if plan.download_bytes else "0"
    return TableRow(
        ref=ref_of_plan(plan),
        cells={
            "plan": line(Span(letter_of(index), "accent"), " ", Span(SHAPE_WORDS[plan.shape])),
            "nodes": line(span(nodes)),
            "verdict": toned("fits", "good"),
            "left": line(gib(headroom)),
            "context": line(str(plan.context_tokens)),
            "fetch": line(fetch),
            "backend": line(plan.backend),
            "speed": _speed_cell(plan),
            "ttft": toned(UNKNOWN, "dim"),
        },
        sort={"left": headroom, "context": plan.context_tokens, "fetch": plan.download_bytes},
        full=f"{nodes}  {plan.backend}  plan {plan.plan_id}",
    )


def _speed_cell(plan: Plan) -> Line:
    """Show the predicted rate; `?` marks one that does not rest on measurements alone."""
    if plan.speed is None:
        return toned(UNKNOWN, "dim")
    rate = plan.speed.tokens_per_s
    shown = f"{rate:.1f}" if rate < _WHOLE_FROM else f"{rate:.0f}"
    return line(shown, Span("" if plan.speed.is_measured else "?", "dim"))


def _refusal_row(refusal: Refusal, index: int, view: ViewState) -> TableRow:
    memory = refusal.memory
    name = view.name_of(refusal.node_id) if refusal.node_id else "all nodes"
    verdict = _REFUSALS.get(refusal.error.code, refusal.error.code.partition(".")[2])
    return TableRow(
        ref=ref_of_refusal(refusal, index),
        cells={
            "plan": toned("  one node" if refusal.node_id else "", "dim"),
            "nodes": line(span(name)),
            "verdict": toned(verdict, "warn"),
            "left": line(gib(memory.headroom_bytes) if memory else UNKNOWN),
            "context": line(str(memory.context_tokens) if memory else UNKNOWN),
        },
        sort={"left": memory.headroom_bytes if memory else None},
        full=refusal.error.message,
    )


def nodes_text(plan: Plan, view: ViewState) -> str:
    """Name a plan's nodes, in the order that a token goes through them."""
    return ", ".join(dict.fromkeys(view.name_of(shard.node_id) for shard in plan.shards))


def gib(n_bytes: int) -> str:
    """Write a size in GiB with one decimal: `13.1G`."""
    return f"{n_bytes / _GIB:.1f}G"


# ---- The arithmetic ----------------------------------------------------------------------------


def plan_lines(plan: Plan, view: ViewState, glyphs: GlyphSet, width: int) -> Sequence[Line]:
    """Add a plan up, node by node.

    Args:
        plan: Which.
        view: Says what the nodes have in all.
        glyphs: For the bars.
        width: In cells; words are wrapped to it.
    """
    memories = [shard.memory for shard in plan.shards]
    slots = f"{plan.slots} slot{'' if plan.slots == 1 else 's'}"
    lines: list[Line] = [
        line(f"ctx {format_count(plan.context_tokens)}, {slots}, {plan.backend}"),
        line(
            f"weights {gib(sum(one.weights_bytes for one in memories))}",
            f" + kv {gib(sum(one.kv_cache_bytes for one in memories))}",
            f" + over {gib(sum(one.overhead_bytes for one in memories))}",
        ),
    ]
    lines += [
        _node_line(
            view.name_of(shard.node_id),
            shard.memory,
            _total(view, shard.node_id, shard.memory),
            glyphs,
            width,
        )
        for shard in plan.shards
    ]
    claimed = sum(one.reserved_bytes for one in memories)
    fetch = format_bytes(plan.download_bytes) if plan.download_bytes else "0"
    lines.append(line(f"fetch {fetch}   stop 0   move 0"))
    if claimed:
        lines.append(line(f"{gib(claimed)} are claimed by what is placed and not loaded yet"))
    if plan.speed is not None:
        basis = "measured" if plan.speed.is_measured else "as is typical of the hardware"
        lines.append(
            line(
                f"{plan.speed.tokens_per_s:.1f} tok/s {basis}: ",
                f"{plan.speed.compute_us / 1000:.1f} ms a token",
                f" + {plan.speed.link_us / 1000:.1f} ms on links" if plan.speed.link_us else "",
            )
        )
    if plan.context_limited_by:
        lines.append(toned(f"ctx limited: {plan.context_limited_by}", "warn"))
    return _wrapped(lines, width)


def refusal_lines(
    refusal: Refusal, view: ViewState, glyphs: GlyphSet, width: int
) -> Sequence[Line]:
    """Say which node refuses, at which term, by how much, and the smallest change that fits."""
    lines: list[Line] = []
    memory, change = refusal.memory, refusal.smallest_change
    if memory is not None and refusal.node_id is not None:
        name, total = view.name_of(refusal.node_id), _total(view, refusal.node_id, memory)
        lines.append(_node_line(name, memory, total, glyphs, width))
        short = -memory.headroom_bytes
        if short > 0:
            broken = f" at {refusal.term.replace('_', ' ')}" if refusal.term else ""
            lines.append(toned(f"short {gib(short)}{broken}", "bad"))
    lines.append(line(span(refusal.error.message)))
    if change is not None and change.text:
        lines.append(line(Span("smallest change: ", "dim"), span(change.text, "accent")))
        if change.kind == "context_tokens":
            lines.append(line(Span("F", "accent"), " applies it to what is asked"))
    elif refusal.error.remediation:
        lines.append(line(span(refusal.error.remediation, "accent")))
    return _wrapped(lines, width)


def _wrapped(lines: Sequence[Line], width: int) -> Sequence[Line]:
    """Wrap lines, all with one cell of margin to the left."""
    room = max(20, width - 2)  # the blank after a line's last word stands beyond it
    return [(Span(" "), *piece) for item in lines for piece in wrapped(item, room)]


def _total(view: ViewState, node_id: str, memory: MemoryArithmetic) -> int | None:
    """Give what the memory is in all that a plan takes from; None where the node does not tell."""
    for node in view.nodes:
        if node.member.node_id == node_id and node.resources is not None:
            if memory.pool != "vram":
                return node.resources.memory_total_bytes
            totals = [device.memory_bytes for device in node.resources.accelerators]
            return max((total for total in totals if total is not None), default=None)
    return None


def _node_line(
    name: str, memory: MemoryArithmetic, total: int | None, glyphs: GlyphSet, width: int
) -> Line:
    """Draw `used now + weights+kv+overhead [bar] after`; the bar takes what room is left.

    Where a node does not tell how much there is in all, the bar is what is free.
    """
    added = "+".join(
        f"{part / _GIB:.1f}"
        for part in (memory.weights_bytes, memory.kv_cache_bytes, memory.overhead_bytes)
    )
    needed, available = memory.needed_bytes, memory.available_bytes
    is_whole = total is not None and total >= available > 0
    whole = total if is_whole and total is not None else available
    used = whole - available if is_whole else 0
    now = f"{used / _GIB:.1f}" if is_whole else UNKNOWN
    before = line(*fit((span(name, "strong"),), _NAME), f" {now} + {added} ")
    digits = 0 if whole >= _TEN_GIB else 1
    after = f" {(used + needed) / _GIB:.{digits}f}/{whole / _GIB:.{digits}f}G"
    n_cells = min(_BAR_MOST, width - 2 - width_of(before) - len(after) - 2)
    drawn = ""
    if n_cells >= _BAR_LEAST:
        drawn = bar(
            glyphs,
            n_cells,
            used=used / whole if whole else 0.0,
            added=needed / whole if whole else 0.0,
            reserve=memory.reserved_bytes / whole if whole else 0.0,
        )
    return (*before, Span(f"{drawn}{after}", "bad" if memory.headroom_bytes < 0 else "plain"))


# ---- The dry run -------------------------------------------------------------------------------


def dry_run_lines(
    made: Made, view: ViewState, glyphs: GlyphSet, *, width: int = 76
) -> Sequence[Line]:
    """Show every candidate with its arithmetic, as `skulk place --dry-run` does."""
    lines: list[Line] = []
    for index, plan in enumerate(made.document.plans):
        head = f"{letter_of(index)} {SHAPE_WORDS[plan.shape]} on {nodes_text(plan, view)}"
        lines.append(line(span(head, "title"), Span(f"  plan {plan.plan_id[:12]}", "dim")))
        lines += plan_lines(plan, view, glyphs, width)
    for refusal in made.document.refusals:
        name = view.name_of(refusal.node_id) if refusal.node_id else "all nodes"
        lines.append(line(span(name, "title"), Span(f"  {refusal.error.code}", "warn")))
        lines += refusal_lines(refusal, view, glyphs, width)
    lines += [toned(f"still unknown: {fact}", "warn") for fact in made.document.missing_facts]
    return lines or [toned("no node is a candidate", "warn")]
