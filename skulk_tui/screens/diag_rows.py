"""What the screen Diag shows: health, events, one command's timeline, the network. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final, cast

from skulk_tui.formatting import UNKNOWN, format_duration, format_rtt
from skulk_tui.lines import Line, Span, Tone, line, span, spread, toned
from skulk_tui.table_columns import Column
from skulk_tui.table_model import Ref, TableRow
from skulk_tui.view_state import ViewState

HEALTH_COLUMNS: Final = (
    Column(key="node", title="NODE", width=12),
    Column(key="level", title="LEVEL", width=8),
    Column(key="code", title="CHECK", width=18, drop=2),
    Column(key="message", title="WHAT", width=24, grow=2),
    Column(key="remedy", title="REMEDY", width=20, grow=2, drop=1),
)
HEALTH_FACETS: Final = frozenset({"node", "level", "code"})
NETWORK_COLUMNS: Final = (
    Column(key="source", title="FROM", width=12, grow=1),
    Column(key="target", title="TO", width=12, grow=1),
    Column(key="state", title="LINK", width=10),
    Column(key="rtt", title="RTT ms", width=6, align="right"),
    Column(key="heard", title="HEARD", width=9, align="right"),
    Column(key="address", title="ADDRESS", width=18, grow=1, drop=1),
)
NETWORK_FACETS: Final = frozenset({"from", "to", "link"})
_LEVEL_TONES: Final[Mapping[str, Tone]] = {
    "ok": "good",
    "info": "plain",
    "warn": "warn",
    "degraded": "warn",
    "error": "bad",
    "failed": "bad",
}
_LINK_TONES: Final[Mapping[str, Tone]] = {"up": "good", "connecting": "warn", "silent": "warn"}
_SKIPPED_FIELDS: Final = frozenset({"type", "kind", "facts", "plan", "card"})
"""Of an event: too long for a line, or said by its kind."""
_SHOWN_FIELDS: Final = 4
_TELLING_FIELDS: Final = ("phase", "code", "name", "model_id", "attempt")
"""Stand first, and are looked for one level deeper too."""


def tab_line(tabs: Sequence[str], current: str, *, n_problems: int, width: int) -> Line:
    """Give the row that names the sub-tabs, with how many things are not well."""
    parts: list[Span] = []
    for tab in tabs:
        title = tab.title()
        if tab == "health" and n_problems:
            title += f" {n_problems}!"
        is_here = tab == current
        text = f"[{title}]" if is_here else f" {title} "
        parts.append(Span(text, "title" if is_here else "plain"))
    return spread(tuple(parts), toned("[ and ] switch", "dim"), width)


def clock_of(at_ms: int, utc_offset_s: int) -> str:
    """Write a wall-clock stamp as a time of day: `12:03:07.22`."""
    zone = timezone(timedelta(seconds=utc_offset_s)) if utc_offset_s else UTC
    moment = datetime.fromtimestamp(at_ms / 1000, tz=zone)
    return f"{moment:%H:%M:%S}.{at_ms % 1000 // 10:02}"


# ---- Health ------------------------------------------------------------------------------------


def health_rows(view: ViewState) -> Sequence[TableRow]:
    """Give a row for each thing that is not well, and one for each node that is."""
    rows: list[TableRow] = []
    for node in view.nodes:
        node_id, name = node.member.node_id, node.member.name
        health = view.health.get(node_id) or node.health
        if health is None:
            rows.append(_health_row(node_id, name, "unknown", "", "it has told nothing yet", ""))
            continue
        rows += [
            _health_row(node_id, name, reason.level, reason.code, reason.message,
                        reason.remediation)
            for reason in health.reasons
        ]  # fmt: skip
        if not health.reasons:
            rows.append(_health_row(node_id, name, health.level, "", "all checks pass", ""))
    # What needs somebody stands first; nodes keep their order.
    return sorted(rows, key=lambda row: row.ref.kind != "check")


def _health_row(
    node_id: str, name: str, level: str, code: str, message: str, remedy: str
) -> TableRow:
    return TableRow(
        ref=Ref(kind="node", id=node_id, name=name)
        if not code
        else Ref(kind="check", id=f"{node_id}/{code}", name=f"{code} of {name}"),
        cells={
            "node": line(span(name, "strong")),
            "level": toned(level, _LEVEL_TONES.get(level, "plain")),
            "code": line(span(code or UNKNOWN)),
            "message": line(span(message)),
            "remedy": line(span(remedy, "accent")),
        },
        facets={"node": name.lower(), "level": level, "code": code},
        full=f"{name}: {message}. {remedy}".strip(),
    )


def n_problems(view: ViewState) -> int:
    """Count what is not well."""
    return sum(len(health.reasons) for health in view.health.values())


# ---- Events ------------------------------------------------------------------------------------


def event_line(item: Mapping[str, Any], *, utc_offset_s: int = 0) -> Line:
    """Write an `EventView`: when, position, what happened, and its short fields."""
    kind = str(item.get("kind") or "event")
    fields = _short_fields(item.get("event"))
    at_ms = item.get("at_ms")
    clock = clock_of(at_ms, utc_offset_s) if isinstance(at_ms, int) else ""
    return line(
        span(f"{clock} ", "dim"),
        span(f"{item.get('term', '')}.{item.get('seq', '')} ", "dim"),
        span(f"{kind} ", _event_tone(kind)),
        span(fields),
    )


def _short_fields(event: object) -> str:
    """Give the fields that say most; of what an event is about, the telling ones within it."""
    if not isinstance(event, Mapping):
        return ""
    fields = dict(cast("Mapping[str, object]", event))
    for value in tuple(fields.values()):
        if isinstance(value, Mapping):
            inner = cast("Mapping[str, object]", value)
            for key in inner.keys() & set(_TELLING_FIELDS):
                fields.setdefault(key, inner[key])
    shown = {
        key: value
        for key, value in fields.items()
        if key not in _SKIPPED_FIELDS and isinstance(value, str | int | float)
    }
    telling = [key for key in _TELLING_FIELDS if key in shown]
    others = [key for key in shown if key not in telling]
    return " ".join(f"{key}={shown[key]}" for key in [*telling, *others][:_SHOWN_FIELDS])


def _event_tone(kind: str) -> Tone:
    lowered = kind.lower()
    if "failed" in lowered or "lost" in lowered:
        return "bad"
    return "good" if "ready" in lowered or "joined" in lowered else "strong"


def timeline_line(item: Mapping[str, Any], *, utc_offset_s: int = 0) -> Line:
    """Write a `TimelineEntry`: when, on which node, and what."""
    at_ms = item.get("at_ms")
    clock = clock_of(at_ms, utc_offset_s) if isinstance(at_ms, int) else ""
    tone: Tone = "strong" if item.get("source") == "event" else "plain"
    return line(
        span(f"{clock} ", "dim"),
        span(f"{item.get('node_name') or 'cluster'!s:<12} ", "title"),
        span(f"{item.get('kind', '')} ", tone),
        span(str(item.get("text") or "")),
    )


# ---- Network -----------------------------------------------------------------------------------


def network_rows(view: ViewState) -> Sequence[TableRow]:
    """Give a row for each link that a node has told of."""
    return [
        TableRow(
            ref=Ref(
                kind="link",
                id=f"{edge.source}/{edge.target}",
                name=f"{view.name_of(edge.source)} to {view.name_of(edge.target)}",
            ),
            cells={
                "source": line(span(view.name_of(edge.source), "strong")),
                "target": line(span(view.name_of(edge.target), "strong")),
                "state": toned(edge.state, _LINK_TONES.get(edge.state, "bad")),
                "rtt": line(format_rtt(edge.rtt_median_ms)),
                "heard": line(
                    UNKNOWN if edge.silent_s is None else f"{format_duration(edge.silent_s)} ago"
                ),
                "address": line(span(edge.address or UNKNOWN)),
            },
            sort={"heard": edge.silent_s, "rtt": edge.rtt_median_ms},
            facets={
                "from": view.name_of(edge.source).lower(),
                "to": view.name_of(edge.target).lower(),
                "link": edge.state,
            },
        )
        for edge in view.links
    ]


def levels_at_least(level: str) -> frozenset[str]:
    """Give the levels of log lines that are shown at a least level; all for an unknown one."""
    order = ("debug", "info", "warning", "error", "critical")
    return frozenset(order[order.index(level) :] if level in order else order)


def node_choices(view: ViewState) -> Iterable[tuple[str, str]]:
    """Give id and name of the nodes whose logs can be followed."""
    return ((node.member.node_id, node.member.name) for node in view.nodes)


def empty_traces() -> Sequence[Line]:
    """Say what traces need: nothing is made up in their place."""
    return (
        toned("   no traces yet", "dim"),
        toned(
            "   Traces need the flight recorder, which this build of skulkd does not have.", "dim"
        ),
        line(
            Span("   :command ID ", "accent"), "shows what one command did, from events and logs."
        ),
    )
