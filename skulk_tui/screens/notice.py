"""The two rows that say why nothing new is shown, and what can be done about it. Pure."""

from collections.abc import Sequence

from skulk_tui.formatting import date_of
from skulk_tui.lines import EMPTY, Line, Span, line, span
from skulk_tui.link_view import LinkView
from skulk_tui.status_row import clock_time
from skulk_tui.view_state import ViewState


def notice_lines(link: LinkView, view: ViewState, *, now: float) -> Sequence[Line]:
    """Give no row, or two; none while the link is well, or only a moment late."""
    match link.word:
        case "live" | "stale" | "syncing" | "resuming":
            return ()
        case "connecting" if not link.reason:
            return ()
        case "denied" | "incompatible":
            return (
                line(Span("! ", "bad"), span(link.reason or f"{link.url} refused", "bad")),
                line(Span("! ", "bad"), span(link.remedy), *_ways(view)),
            )
        case _:
            known = _known(link, now)
            reason = link.reason or f"{link.url} does not answer"
            return (
                line(Span("! ", "bad"), span(reason, "bad"), span(known)),
                line(Span("! ", "bad"), Span("r", "accent"), " retry now", *_ways(view),
                     span("   changes off", "dim")),
            )  # fmt: skip


def _known(link: LinkView, now: float) -> str:
    age = link.age_s(now)
    return "" if age is None else f"; last known state below, {clock_time(age)} old"


def _ways(view: ViewState) -> Line:
    """Name another node that could be attached to; none where only one is known."""
    own = view.hello.node_id if view.hello is not None else ""
    others = [node.member for node in view.nodes if node.member.node_id != own]
    alive = [member for member in others if member.liveness == "alive"]
    if not alive:
        return EMPTY
    return line(Span("   :attach ", "accent"), span(f"{alive[0].name}"))


def staleness(link: LinkView, view: ViewState, *, now: float, utc_offset_s: int = 0) -> str:
    """Give the word for each pane's rule: how old what it shows is; empty while it is live."""
    if view.saved_at_ms is not None:
        return f"SAVED {date_of(view.saved_at_ms, utc_offset_s)}"
    age = link.age_s(now)
    if age is None or link.word in {"live", "syncing", "resuming"}:
        return ""
    return f"STALE {age:.0f}s"
