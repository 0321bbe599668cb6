"""The sub-tab of links: nodes by nodes, how long, how much, by what; pure.

The node attached tells of its own links all the time; those between others are asked for.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from protocol.errors import SkulkError
from protocol.link_api import LinksDocument, LinkView, ProbeView
from protocol.readings import LinkKind
from skulk_tui.formatting import UNKNOWN, format_duration, format_rtt
from skulk_tui.glyphs import pad_cells
from skulk_tui.lines import EMPTY, Line, Span, Tone, line, span, toned
from skulk_tui.screens.cluster_tabs import LINK_TONES
from skulk_tui.view_state import ViewState

_CELL: Final = 12
_NAME_CELLS: Final = 14
_MAX_FAILURES: Final = 6
_KIND_LETTERS: Final[Mapping[LinkKind, str]] = {
    "thunderbolt": "t",
    "ethernet": "e",
    "wifi": "w",
    "vpn": "v",
    "bridge": "b",
    "virtual": "n",
    "loopback": "l",
    "other": "o",
}
_KIND_WORDS: Final[Mapping[LinkKind, str]] = {"virtual": "virtual net"}
_UNITS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


class KnownLinks(NamedTuple):
    """What the node was asked for."""

    document: LinksDocument | None = None
    at_s: float | None = None
    """When it came; ages grow from then."""
    problem: SkulkError | None = None
    """Why it was not told the last time."""


def link_matrix(view: ViewState, known: KnownLinks, width: int, *, now: float) -> Sequence[Line]:
    """Draw each link: rows are the nodes it leads from, columns those it leads to."""
    nodes = [(node.member.node_id, node.member.name) for node in view.nodes]
    if len(nodes) < 2:  # ruff: ignore[magic-value-comparison]  a link has two ends
        return (toned("  one node alone has no links; :invite lets another one in", "dim"),)
    links = _links_of(view, known)
    name_cells = min(_NAME_CELLS, max(len(name) for _, name in nodes) + 1)
    n_columns = max(1, (width - name_cells - 2) // (_CELL + 1))
    shown = nodes[:n_columns]
    up = [link for link in links.values() if link.state == "up"]
    worst_ms = max((link.rtt_median_ms or 0.0 for link in up), default=0.0)
    head = (Span(pad_cells(name, _CELL) + " ", "dim") for _, name in shown)
    lines: list[Line] = [line(Span(" " * (name_cells + 2)), *head)]
    for node_id, name in nodes:
        cells = (_cell(node_id, other, links, worst_ms) for other, _ in shown)
        lines.append((Span("  "), Span(pad_cells(name, name_cells), "strong"), *cells))
    lines += [EMPTY, *_legend(links, known, now)]
    if len(shown) < len(nodes):
        lines.append(toned(f"  {len(nodes) - len(shown)} more columns than fit", "dim"))
    return [*lines, *_probe_lines(view, known)]


def _links_of(view: ViewState, known: KnownLinks) -> dict[tuple[str, str], LinkView]:
    """Put what was asked for and what is told all the time together; the latter is newer."""
    links: dict[tuple[str, str], LinkView] = {
        (link.source, link.target): link
        for link in (known.document.links if known.document else ())
    }
    for edge in view.links:
        asked = links.get((edge.source, edge.target))
        told = asked or LinkView(source=edge.source, target=edge.target)
        rtt_ms = told.rtt_median_ms if edge.rtt_median_ms is None else edge.rtt_median_ms
        links[edge.source, edge.target] = told.model_copy(
            update={"state": edge.state, "rtt_median_ms": rtt_ms}
        )
    return links


def _cell(
    source: str, target: str, links: Mapping[tuple[str, str], LinkView], worst_ms: float
) -> Span:
    """Write what is known of a way; how it is while it is not up."""
    link = links.get((source, target))
    if source == target or link is None:
        return Span(pad_cells("." if source == target else UNKNOWN, _CELL) + " ", "dim")
    tone: Tone = "plain" if link.state is None else LINK_TONES[link.state]
    parts = [] if link.rtt_median_ms is None else [format_rtt(link.rtt_median_ms)]
    if link.rate_bytes_s is not None:
        parts.append(rate_text(link.rate_bytes_s))
    if link.state not in {"up", None} or not parts:
        return Span(pad_cells(link.state or UNKNOWN, _CELL) + " ", tone)
    if link.kind is not None:
        parts.append(_KIND_LETTERS[link.kind])
    is_worst = link.rtt_median_ms is not None and link.rtt_median_ms == worst_ms
    text = f"{' '.join(parts)}{'!' if is_worst else ''}"
    return Span(pad_cells(text, _CELL) + " ", "warn" if is_worst else tone)


def rate_text(bytes_s: float) -> str:
    """Write a rate as links are named, in bits a second: `940M`, `2.3G`."""
    bits_s = bytes_s * 8
    for unit, letter in _UNITS:
        if bits_s >= unit:
            value = bits_s / unit
            return f"{value:.1f}{letter}" if value < 10 else f"{value:.0f}{letter}"  # ruff: ignore[magic-value-comparison]  two digits
    return f"{bits_s:.0f}"


def _legend(
    links: Mapping[tuple[str, str], LinkView], known: KnownLinks, now: float
) -> Sequence[Line]:
    found = {link.kind for link in links.values() if link.kind is not None}
    letters = ", ".join(
        f"{letter} {_KIND_WORDS.get(kind, kind)}"
        for kind, letter in _KIND_LETTERS.items()
        if kind in found
    )
    lines = [
        toned("  ms there and back, then bits a second as measured; ! is the slowest", "dim"),
    ]
    if letters:
        lines.append(toned(f"  kinds of link: {letters}", "dim"))
    if known.problem is not None:
        told = f"  what others tell of their links is not known: {known.problem.message}"
        return [*lines, line(span(told, "warn"))]
    since_s = 0.0 if known.at_s is None else max(0.0, now - known.at_s)
    ages = [link.rate_age_s + since_s for link in links.values() if link.rate_age_s is not None]
    if not ages:
        return [*lines, toned("  no rate has been measured; :probe links does", "dim")]
    newest, oldest = format_duration(min(ages)), format_duration(max(ages))
    when = newest if newest == oldest else f"{newest} to {oldest}"
    return [*lines, toned(f"  rates measured {when} ago; :probe links measures anew", "dim")]


def _probe_lines(view: ViewState, known: KnownLinks) -> Sequence[Line]:
    probe = known.document.probe if known.document else None
    if probe is None:
        return ()
    if probe.state == "running":
        return (EMPTY, line(span(f"  {probe_text(view, probe)}", "accent")))
    lines: list[Line] = []
    if probe.error is not None:
        lines.append(line(span(f"  measuring ended early: {probe.error.message}", "bad")))
    for failure in probe.failures[:_MAX_FAILURES]:
        ends = f"{view.name_of(failure.source)} to {view.name_of(failure.target)}"
        lines.append(line(span(f"  not measured: {ends}: {failure.error.message}", "warn")))
    if len(probe.failures) > _MAX_FAILURES:
        n_more = len(probe.failures) - _MAX_FAILURES
        lines.append(toned(f"  and {n_more} more: skulk cluster links", "dim"))
    return [EMPTY, *lines] if lines else ()


def probe_text(view: ViewState, probe: ProbeView) -> str:
    """Say how far a series of measurements is."""
    pair = " and ".join(view.name_of(node_id) for node_id in probe.current or ())
    now = f"; now {pair}" if pair else ""
    return f"measured {probe.n_tried} of {probe.n_pairs} pairs{now}"
