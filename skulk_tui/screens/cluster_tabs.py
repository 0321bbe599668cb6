"""The further sub-tabs of the screen Cluster: members, the door. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from protocol.cluster_api import NodeView, StrangerView
from skulk_tui.formatting import UNKNOWN, format_duration
from skulk_tui.lines import EMPTY, Line, Span, Tone, line, span, toned
from skulk_tui.screens.cluster_rows import presence_of, ref_of_node
from skulk_tui.table_columns import Column
from skulk_tui.table_model import Ref, TableRow
from skulk_tui.view_state import ViewState

MEMBER_COLUMNS: Final = (
    Column(key="name", title="NODE", width=12, grow=1),
    Column(key="role", title="ROLE", width=10, drop=4),
    Column(key="liveness", title="PRESENCE", width=9),
    Column(key="link", title="LINK", width=12),
    Column(key="address", title="ADDRESS", width=20, grow=1, drop=2),
    Column(key="build", title="BUILD", width=9, drop=3),
    Column(key="id", title="ID", width=17, drop=5),
)
DOOR_COLUMNS: Final = (
    Column(key="address", title="FROM", width=16, grow=1),
    Column(key="reason", title="REFUSED BECAUSE", width=24, grow=2),
    Column(key="tries", title="TRIES", width=5, align="right", drop=2),
    Column(key="last", title="LAST", width=9, align="right"),
    Column(key="key", title="KEY", width=12, drop=3),
)
LINK_TONES: Final[Mapping[str, Tone]] = {
    "up": "good",
    "connecting": "warn",
    "silent": "warn",
    "refused": "bad",
    "incompatible": "bad",
}


def member_rows(view: ViewState) -> Sequence[TableRow]:
    """Give the rows of the table of members."""
    return [_member_row(node) for node in view.nodes]


def _member_row(node: NodeView) -> TableRow:
    member = node.member
    link = member.link or ("here" if member.is_self else UNKNOWN)
    address = member.dialled or (member.addresses[0] if member.addresses else UNKNOWN)
    return TableRow(
        ref=ref_of_node(node),
        cells={
            "name": line(span(member.name, "strong")),
            "role": line(member.role),
            "liveness": line(presence_of(member)[0].rstrip("!")),
            "link": toned(link, LINK_TONES.get(link, "plain")),
            "address": line(span(address)),
            "build": line(span(member.build or UNKNOWN)),
            "id": line(member.node_id),
        },
        facets={"link": link, "role": member.role, "live": member.liveness},
        full=f"{member.name}  {member.link_reason or link}  {' '.join(member.addresses)}",
    )


def ref_of_stranger(stranger: StrangerView) -> Ref:
    """Give a stranger's identity."""
    return Ref(kind="stranger", id=stranger.public_key, name=stranger.address)


def door_rows(view: ViewState) -> Sequence[TableRow]:
    """Give the rows of the table of strangers."""
    return [
        TableRow(
            ref=ref_of_stranger(one),
            cells={
                "address": line(span(one.address, "strong")),
                "reason": line(span(one.reason, "warn")),
                "tries": line(str(one.tries)),
                "last": line(f"{format_duration(one.last_ago_s)} ago"),
                "key": line(span(one.public_key)),
            },
            sort={"tries": one.tries, "last": one.last_ago_s},
            full=f"{one.address}: {one.reason}; key {one.public_key}",
        )
        for one in view.strangers
    ]


def door_line(view: ViewState) -> Line:
    """Say in one line who was refused at the door; empty where nobody was."""
    if not view.strangers:
        return EMPTY
    latest = view.strangers[0]
    n = len(view.strangers)
    return line(
        Span(f" refused at the door: {n} ", "warn"),
        span(f"({latest.address}, {latest.reason}, {format_duration(latest.last_ago_s)} ago)"),
        Span("  :door", "accent"),
    )


def stranger_lines(stranger: StrangerView) -> Sequence[Line]:
    """Say all that is known of a stranger, and what would let it in."""
    return (
        line("from     ", span(stranger.address, "strong")),
        line("because  ", span(stranger.reason, "warn")),
        line("key      ", span(stranger.public_key)),
        line(f"tried    {stranger.tries} times, {format_duration(stranger.last_ago_s)} ago last"),
        EMPTY,
        line("If it is yours: :invite, and join with the invitation there."),
        line("If not: nothing is needed; it stays refused."),
    )
