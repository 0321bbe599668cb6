"""The traces of one node: its last five minutes, a row for each measure. Pure."""

from collections.abc import Sequence
from typing import Final

from skulk_tui.formatting import UNKNOWN
from skulk_tui.glyphs import GlyphSet, level
from skulk_tui.lines import Line, Span, line
from skulk_tui.node_history import MEASURES, STEPS, Measure, NodeHistory, Sample

_LABEL: Final = 7
_VALUE: Final = 9
_EDGES: Final = 3
_LEAST: Final = 8
_TITLES: Final[dict[Measure, str]] = {
    "cpu": "cpu",
    "mem": "memory",
    "slots": "slots",
    "tok/s": "tok/s",
}


def trace_lines(history: NodeHistory, node_id: str, glyphs: GlyphSet, width: int) -> Sequence[Line]:
    """Give a row for each measure; none where there is no room for a trace."""
    n_cells = min(STEPS, width - _LABEL - _VALUE - _EDGES)
    if n_cells < _LEAST:
        return ()
    return [
        _trace_line(measure, history.trace(node_id, measure)[-n_cells:], glyphs, n_cells)
        for measure in MEASURES
    ]


def _trace_line(
    measure: Measure, samples: Sequence[Sample], glyphs: GlyphSet, n_cells: int
) -> Line:
    known = [one.value for one in samples if one.value is not None]
    most = max((one.most or 0.0 for one in samples), default=0.0) or max(known, default=0.0) or 1.0
    drawn = "".join(
        level(glyphs, None if one.value is None else one.value / most) for one in samples
    )
    last = samples[-1] if samples else None
    return line(
        Span(f"{_TITLES[measure]:<{_LABEL}}", "dim"),
        Span(glyphs.bar_left), Span(f"{drawn:>{n_cells}}", "accent"), Span(glyphs.bar_right),
        f" {_value(measure, last):>{_VALUE}}",
    )  # fmt: skip


def _value(measure: Measure, last: Sample | None) -> str:
    if last is None or last.value is None:
        return UNKNOWN
    match measure:
        case "cpu" | "mem":
            return f"{100 * last.value:.0f}%"
        case "slots":
            return f"{last.value:.0f}/{last.most or 0:.0f}"
        case "tok/s":
            return f"{last.value:.1f}"
