"""What is shown where there is no room for a body: a card of the cluster, down to one cell."""

from collections.abc import Sequence
from typing import final

from skulk_tui.formatting import UNKNOWN, date_of, format_percent
from skulk_tui.lines import Line, Span, Tone, line, retoned, span, toned
from skulk_tui.seat import Seat
from skulk_tui.status_row import link_words
from skulk_tui.widgets.line_widget import LineWidget

_WORDS: dict[str, tuple[str, Tone]] = {
    "alive": ("alive", "good"),
    "suspect": ("susp!", "warn"),
    "lost": ("lost!", "bad"),
    "left": ("left", "dim"),
    "joining": ("joins", "warn"),
}


@final
class Card(LineWidget):
    """The card.

    Args:
        seat: The run.
    """

    def __init__(self, seat: Seat) -> None:
        super().__init__(id="card")
        self._seat = seat

    def make_lines(self, width: int, height: int) -> Sequence[Line]:
        """Draw the cluster in short, a node a line, and what still works."""
        seat = self._seat
        head = seat.view.head
        name = seat.profile or (head.name if head else "")
        lines: list[Line] = [
            line(Span("skulk ", "title"), span(name), "  ",
                 *link_words(seat.link.view, now=seat.now()))
        ]  # fmt: skip
        if seat.view.saved_at_ms is not None:
            date = date_of(seat.view.saved_at_ms, seat.utc_offset_s)
            lines.append(toned(f"SAVED {date}", "warn"))
        elif head is not None:
            noun = "alert" if head.alerts == 1 else "alerts"
            alerts = (Span(f"  {head.alerts} {noun}", "bad"),) if head.alerts else ()
            rate = "" if head.tokens_per_s is None else f"  {head.tokens_per_s:.0f} tok/s"
            lines.append(line(f"{head.alive} alive  {head.ready} ready", *alerts, rate))
        foot = [
            toned(f"{width}x{height}: card below 60x16", "dim"),
            toned("1-5 : ? q work", "dim"),
        ]
        room = max(0, height - len(lines) - len(foot))
        lines += self._node_lines(room)
        return (*lines, *foot)

    def _node_lines(self, room: int) -> Sequence[Line]:
        lines: list[Line] = []
        for node in self._seat.view.nodes[:room]:
            word, tone = _WORDS[node.member.liveness]
            resources = node.resources
            used, busy = UNKNOWN, UNKNOWN
            if resources is not None:
                busy = format_percent(resources.cpu_ratio, 1.0)
            if resources is not None and resources.memory_total_bytes:
                free = resources.memory_available_bytes or 0
                total = resources.memory_total_bytes
                used = format_percent(total - free, total)
            name = span(f"{node.member.name:<12}")
            shown = line(name, " ", Span(f"{word:<7}", tone), f"{used:>5}  {busy:>5}")
            lines.append(retoned(shown, "dim") if self._seat.view.saved_at_ms else shown)
        return lines
