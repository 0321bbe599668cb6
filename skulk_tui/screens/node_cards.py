"""Nodes as cards, where there is room for more than a row each. Pure."""

from collections.abc import Mapping
from typing import Final

from protocol.cluster_api import NodeView
from skulk_tui.formatting import format_bytes
from skulk_tui.glyphs import GlyphSet, bar
from skulk_tui.lines import EMPTY, Line, Span, joined, line, span, toned
from skulk_tui.screens.cluster_rows import DISK_WARN_BYTES
from skulk_tui.table_model import Ref, TableRow
from skulk_tui.widgets.card_pane import Card

_BAR: Final = 10


def node_card(nodes: Mapping[Ref, NodeView], glyphs: GlyphSet, row: TableRow) -> Card:
    """Give the card of a node that has a row; what both show is the row's."""
    node = nodes[row.ref]
    cells = row.cells
    return Card(
        head=cells["name"],
        state=joined((cells["live"], toned(" seen", "dim"), cells["seen"])),
        lines=(
            joined((_memory_bar(node, glyphs), cells["mem"])),
            joined((toned("cpu", "dim"), cells["cpu"], toned("gpu", "dim"), cells["gpu"],
                    _disk(node))),
            joined((toned("runs", "dim"), cells["runs"])),
            _trouble(node) or _engines(node),
        ),
    )  # fmt: skip


def _memory_bar(node: NodeView, glyphs: GlyphSet) -> Line:
    resources = node.resources
    total = resources.memory_total_bytes if resources else None
    free = resources.memory_available_bytes if resources else None
    if not total or free is None:
        return toned("mem", "dim")
    return line(Span("mem ", "dim"), Span(bar(glyphs, _BAR, used=(total - free) / total)))


def _disk(node: NodeView) -> Line:
    free = node.resources.disk_free_bytes if node.resources else None
    if free is None:
        return EMPTY
    is_low = free < DISK_WARN_BYTES
    text = f"{format_bytes(free)}{'!' if is_low else ''}"
    return line(Span("disk free ", "dim"), Span(text, "warn" if is_low else "plain"))


def _trouble(node: NodeView) -> Line:
    """Say the first thing that is wrong; what helps stands in the strip and on Diag."""
    member = node.member
    if node.health is not None and node.health.reasons:
        reason = node.health.reasons[0]
        return line(span(f"{reason.level}: {reason.message}", "warn"))
    if member.link not in {None, "up"}:
        return line(span(f"link {member.link}: {member.link_reason}", "warn"))
    return EMPTY


def _engines(node: NodeView) -> Line:
    backends = " ".join(node.resources.backends) if node.resources else ""
    build = f"skulkd {node.member.build}" if node.member.build else ""
    return line(span("  ".join(part for part in (backends or "no engine", build) if part), "dim"))
