"""The two rows on top: which cluster, through whom, how the link is, and the five screens.

Pure. What the link and the cluster are is a word first, and a tone second.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from skulk_tui.lines import EMPTY, Line, Span, Tone, fit, line, retoned, span, spread, toned
from skulk_tui.link_view import LinkView
from skulk_tui.view_state import ViewState

TABS: Final = ("Cluster", "Models", "Chat", "Store", "Diag")
_NARROW: Final = 60
_ROOMY: Final = 72
"""Columns below which what says least gives way: alerts stand last, and must not be cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFlags:
    """What the operator's own program adds to the row."""

    profile: str = ""
    """Name of the cluster's profile; the cluster's own name is used where it is empty."""
    is_protected: bool = False
    is_readonly: bool = False
    paused_since: float | None = None


def status_row(
    view: ViewState, link: LinkView, flags: StatusFlags, *, now: float, width: int
) -> Line:
    """Give row 1."""
    name = flags.profile or (view.head.name if view.head else "")
    via = link.node_name or link.url
    is_roomy = width >= _ROOMY
    left = line(Span(" skulk", "title"), "  ") if is_roomy or not name else line(" ")
    left = (*left, span(name, "strong"))
    if width >= _NARROW:
        left = (*left, Span("  via " if name else "via "), span(via, "title"))
    gap = Span("    " if is_roomy else "  ")
    left = (*left, gap, *link_words(link, now=now), *_overlays(view, flags, now=now))
    is_known = view.saved_at_ms is None  # a view of an earlier run is no news
    if is_known and link.word in {"live", "stale", "syncing", "resuming"}:
        left = (*left, *_counts(view, is_roomy=is_roomy))
    shown = spread(left, toned("PROTECTED", "bad") if flags.is_protected else EMPTY, width)
    return retoned(fit(shown, width), "inverse") if flags.is_protected else shown


def link_words(link: LinkView, *, now: float) -> Line:
    """Say how the link is: `LIVE 0.3s`, and so on."""
    since = max(0.0, now - link.since)
    age = link.age_s(now)
    match link.word:
        case "live":
            return toned(f"LIVE {_short_age(age)}", "good")
        case "stale":
            return toned(f"STALE {_short_age(age)}", "warn")
        case "connecting":
            return toned(f"CONNECTING {since:.0f}s", "warn")
        case "syncing":
            done = 0 if link.progress_ratio is None else math.floor(100 * link.progress_ratio)
            return toned(f"SYNC {done}%", "warn")
        case "resuming":
            return toned("RESUME", "warn")
        case "incompatible":
            return toned(f"NODE INCOMPATIBLE {link.reason}", "bad")
        case "denied":
            return toned("NO ACCESS", "bad")
        case "lost":
            return toned(f"LOST {clock_time(since)}{_retry(link, now)}", "bad")


def _retry(link: LinkView, now: float) -> str:
    if link.retry_at is None:
        return f"  try {link.attempt + 1}"
    return f"  retry {link.attempt + 1} in {max(0, math.ceil(link.retry_at - now))}s"


def clock_time(seconds: float) -> str:
    """Write a duration as `MM:SS`, or `H:MM:SS` from an hour on."""
    whole = int(seconds)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute:02}:{second:02}"


def _short_age(age: float | None) -> str:
    # Whole seconds: tenths would send a piece of this row ten times a second to say nothing.
    return "0s" if age is None else f"{age:.0f}s"


def _overlays(view: ViewState, flags: StatusFlags, *, now: float) -> Line:
    words: list[tuple[str, Tone]] = []
    head = view.head if view.saved_at_ms is None else None
    if head is not None and head.master is None:
        words.append(("ELECTING", "warn"))
    if head is not None and head.is_minority:
        words.append((f"MINORITY {head.alive} of {head.voters}", "bad"))
    if view.feed != "full":
        words.append(("SUMMARY FEED" if view.feed == "summary" else "SLOW FEED", "warn"))
    if flags.is_readonly:
        words.append(("RO", "strong"))
    if flags.paused_since is not None:
        words.append((f"PAUSED {_short_age(max(0.0, now - flags.paused_since))}", "warn"))
    return tuple(part for word, tone in words for part in (Span("  "), Span(word, tone)))


def _counts(view: ViewState, *, is_roomy: bool) -> Line:
    head = view.head
    if head is None:
        return EMPTY
    parts: list[Span] = [Span(f"   {head.alive} alive  {head.ready} ready")]
    if head.tokens_per_s is not None and is_roomy:
        parts.append(Span(f"  {head.tokens_per_s:.0f} tok/s"))
    if head.alerts:
        noun = "alert" if head.alerts == 1 else "alerts"
        parts.extend((Span("  "), Span(f"{head.alerts} {noun}", "bad")))
    return tuple(parts)


def tab_row(current: str, crumbs: Sequence[str], *, width: int) -> Line:
    """Give row 2: the five screens with the current one in brackets, and two reminders.

    Args:
        current: Id of the root screen, lower-case.
        crumbs: Titles of what is open on top of it.
        width: In cells.
    """
    parts: list[Span] = []
    for number, title in enumerate(TABS, start=1):
        is_here = title.lower() == current
        text = f"[{number} {title}]" if is_here else f" {number} {title} "
        parts.append(Span(text, "title" if is_here else "plain"))
    for crumb in crumbs:
        parts += [Span(" > ", "dim"), span(crumb, "strong")]
    reminders = "/filter  ?help" if width >= _ROOMY else "?help"
    return spread(tuple(parts), toned(reminders, "dim"), width)
