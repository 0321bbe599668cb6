"""Links between nodes as records, and these as tables. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.link_api import LinksDocument, LinkView
from skulk_tui.cli.output import Column, Table
from skulk_tui.formatting import (
    UNKNOWN,
    format_bits_rate,
    format_duration,
    format_rate,
    format_rtt,
    one_line,
)

MATRIX_FROM: Final = 4
"""Nodes; the pairs of fewer are read more easily line by line."""
MATRIX_UP_TO: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRecord:
    """The way from one node to another, as these two tell it."""

    source: str
    source_name: str
    target: str
    target_name: str
    state: str | None
    """As the source sees it."""
    kind: str | None
    interface: str | None
    """Of the source."""
    nominal_bits_s: int | None
    rtt_median_ms: float | None
    rtt_p99_ms: float | None
    rate_bytes_s: float | None
    """What came to the target when it was measured last."""
    rate_age_s: float | None
    problem: str | None
    """Why it was not measured by the series that the node was asked for last."""


def link_records(document: LinksDocument) -> tuple[LinkRecord, ...]:
    """List all directions of which something is known, by the names of their ends."""
    names = names_of(document)
    problems: dict[tuple[str, str], str] = {
        (one.source, one.target): one_line(one.error.message)
        for one in (document.probe.failures if document.probe else ())
    }
    known: dict[tuple[str, str], LinkView] = {
        (link.source, link.target): link for link in document.links
    }
    ends = [*known, *(pair for pair in problems if pair not in known)]
    return tuple(
        _record(source, target, known.get((source, target)), names, problems)
        for source, target in ends
    )


def names_of(document: LinksDocument) -> dict[str, str]:
    """Give the names of the nodes by their ids."""
    return {node.node_id: node.name for node in document.nodes}


def _record(
    source: str,
    target: str,
    link: LinkView | None,
    names: Mapping[str, str],
    problems: Mapping[tuple[str, str], str],
) -> LinkRecord:
    return LinkRecord(
        source=source,
        source_name=names.get(source, source),
        target=target,
        target_name=names.get(target, target),
        state=None if link is None else link.state,
        kind=None if link is None else link.kind,
        interface=None if link is None else link.interface,
        nominal_bits_s=None if link is None else link.nominal_bits_s,
        rtt_median_ms=None if link is None else link.rtt_median_ms,
        rtt_p99_ms=None if link is None else link.rtt_p99_ms,
        rate_bytes_s=None if link is None else link.rate_bytes_s,
        rate_age_s=None if link is None else link.rate_age_s,
        problem=problems.get((source, target)),
    )


def links_tables(
    document: LinksDocument, records: Sequence[LinkRecord], *, is_wide: bool
) -> tuple[Table, ...]:
    """Show a matrix of more than a few nodes, or each direction on a line; then what failed."""
    has_matrix = MATRIX_FROM <= len(document.nodes) <= MATRIX_UP_TO
    tables: list[Table] = []
    if has_matrix:
        tables.append(_matrix(document, records))
    if is_wide or not has_matrix:
        tables.append(_list(records))
    tables.append(_problems(records))
    return tuple(tables)


def _matrix(document: LinksDocument, records: Sequence[LinkRecord]) -> Table:
    by_ends = {(one.source, one.target): one for one in records}
    nodes = document.nodes
    return Table(
        (Column("FROM / TO", least=8), *(Column(node.name.upper(), least=8) for node in nodes)),
        tuple(
            (row.name, *(_cell(row.node_id, column.node_id, by_ends) for column in nodes))
            for row in nodes
        ),
    )


def _cell(source: str, target: str, by_ends: Mapping[tuple[str, str], LinkRecord]) -> str:
    if source == target:
        return "."
    link = by_ends.get((source, target))
    if link is None:
        return UNKNOWN
    if link.state not in {"up", None}:
        return str(link.state)
    rtt = UNKNOWN if link.rtt_median_ms is None else f"{format_rtt(link.rtt_median_ms)} ms"
    return rtt if link.rate_bytes_s is None else f"{rtt}, {format_rate(link.rate_bytes_s)}"


def _list(records: Sequence[LinkRecord]) -> Table:
    return Table(
        (
            Column("FROM", least=8),
            Column("TO", least=8),
            Column("LINK"),
            Column("KIND", drop=1),
            Column("INTERFACE", wide_only=True),
            Column("NOMINAL", right=True, drop=3),
            Column("RTT MS", right=True),
            Column("P99 MS", right=True, drop=4),
            Column("RATE", right=True),
            Column("MEASURED", drop=2),
        ),
        tuple(
            (
                one.source_name,
                one.target_name,
                one.state or UNKNOWN,
                one.kind or UNKNOWN,
                one.interface or UNKNOWN,
                format_bits_rate(one.nominal_bits_s),
                format_rtt(one.rtt_median_ms),
                format_rtt(one.rtt_p99_ms),
                format_rate(one.rate_bytes_s),
                UNKNOWN if one.rate_age_s is None else f"{format_duration(one.rate_age_s)} ago",
            )
            for one in records
        ),
    )


def _problems(records: Sequence[LinkRecord]) -> Table:
    return Table(
        (
            Column("FROM", least=8),
            Column("TO", least=8),
            Column("WHY IT WAS NOT MEASURED", least=20, wraps=True),
        ),
        tuple(
            (one.source_name, one.target_name, one.problem)
            for one in records
            if one.problem is not None
        ),
    )
