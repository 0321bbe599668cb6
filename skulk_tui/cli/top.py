"""`skulk top`: nodes and what is placed on one screen, the busiest first, kept up once a second."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

import typer

from skulk_tui.cli.answers import status_record
from skulk_tui.cli.completing import complete_words
from skulk_tui.cli.instance_tables import phase_text, rate_text
from skulk_tui.cli.nearest import unknown_value
from skulk_tui.cli.output import Column, Listing, Table
from skulk_tui.cli.records import InstanceRecord, NodeRecord, StatusRecord
from skulk_tui.cli.session import Session
from skulk_tui.cli.verb import verb
from skulk_tui.cli.waiting import state_of
from skulk_tui.formatting import (
    UNKNOWN,
    format_age,
    format_bytes,
    format_count,
    format_percent,
    joined,
    presence_text,
)

REDRAW_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """How both lists are sorted; larger first, what is not known last, equals by name."""

    node: Callable[[NodeRecord], float]
    instance: Callable[[InstanceRecord], float]


def _used_bytes(node: NodeRecord) -> float:
    if node.memory_total_bytes is None or node.memory_available_bytes is None:
        return -1
    return node.memory_total_bytes - node.memory_available_bytes


_ORDERS: Final[dict[str, _Order]] = {
    "load": _Order(
        node=lambda one: -1 if one.cpu_ratio is None else one.cpu_ratio,
        instance=lambda one: (one.in_flight or 0) + (one.queued or 0),
    ),
    "memory": _Order(node=_used_bytes, instance=lambda one: one.needed_bytes),
    "name": _Order(node=lambda _: 0, instance=lambda _: 0),
}


def add_top(app: typer.Typer) -> None:
    """Register the verb."""
    verb(app, "top", examples=("skulk top --by memory", "skulk top --once"))(top)


def top(
    session: Session,
    *,
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="ORDER",
            help="load, memory or name.",
            autocompletion=complete_words(*_ORDERS),
        ),
    ] = "load",
    once: Annotated[bool, typer.Option("--once", help="Show it once, also on a terminal.")] = False,
) -> int | None:
    """Show nodes and placed models, the busiest first; on a terminal until Ctrl-C.

    In a pipe, as JSON and with `--once` it is shown once.
    """
    order = _ORDERS.get(by)
    if order is None:
        raise unknown_value("an order of --by", by, _ORDERS)
    from skulk_tui.cli.live_screen import takes_live_screen

    if not once and takes_live_screen(session):
        _keep_up(session, order)
        return None
    status = _sorted(status_record(state_of(session)), order)
    session.output.show(
        Listing(
            kind="top",
            seq=status.seq,
            items=(status,),
            tables=_tables(status, now_ms=session.clock.wall_ms()),
            names=(status.cluster_id,),
        )
    )
    return None


def _keep_up(session: Session, order: _Order) -> None:
    from skulk_tui.cli.watched import nodes_of
    from skulk_tui.cli.watches import status_in
    from skulk_tui.cli.watching import Watch, watch
    from skulk_tui.view_state import ViewState

    def tables(view: ViewState) -> Sequence[Table]:
        status = status_in(view)
        if status is None:
            return ()
        return _tables(_sorted(status, order), now_ms=session.clock.wall_ms())

    topics = ("cluster", "placements")
    watch(session, Watch(topics=topics, picture=nodes_of, tables=tables, redraw_s=REDRAW_S))


def _sorted(status: StatusRecord, order: _Order) -> StatusRecord:
    nodes = sorted(status.nodes, key=lambda one: (-order.node(one), one.name, one.node_id))
    instances = sorted(
        status.instances, key=lambda one: (-order.instance(one), one.model_id, one.instance_id)
    )
    return replace(status, nodes=tuple(nodes), instances=tuple(instances))


def _tables(status: StatusRecord, *, now_ms: int) -> tuple[Table, ...]:
    return (_head(status), _nodes(status), _instances(status, now_ms=now_ms))


def _head(status: StatusRecord) -> Table:
    names = {node.node_id: node.name for node in status.nodes}
    n_alive = sum(node.liveness == "alive" for node in status.nodes)
    phases = [one.phase for one in status.instances]
    n_failed = phases.count("failed")
    return Table(
        (
            Column("MASTER", least=8),
            Column("TERM", right=True, drop=1),
            Column("NODES ALIVE"),
            Column("READY"),
            Column("FAILED", right=True),
        ),
        (
            (
                names.get(status.master, status.master) if status.master else "none",
                str(status.term),
                f"{n_alive} of {len(status.nodes)}",
                f"{phases.count('ready')} of {len(phases)}",
                str(n_failed),
            ),
        ),
    )


def _nodes(status: StatusRecord) -> Table:
    placed: dict[str, int] = {}
    for one in status.instances:
        for node_id in one.node_ids:
            placed[node_id] = placed.get(node_id, 0) + 1
    return Table(
        (
            Column("NODE", least=8),
            Column("LIVENESS"),
            Column("HEALTH", drop=2),
            Column("CPU", right=True),
            Column("MEMORY USED", right=True),
            Column("OF", right=True),
            Column("DISK FREE", right=True, drop=1),
            Column("INSTANCES", right=True, drop=3),
        ),
        tuple(
            (
                node.name,
                presence_text(node.liveness, node.eligibility),
                node.health,
                format_percent(node.cpu_ratio, 1.0),
                UNKNOWN if (used := _used_bytes(node)) < 0 else format_bytes(used),
                format_bytes(node.memory_total_bytes),
                format_bytes(node.disk_free_bytes),
                str(placed.get(node.node_id, 0)),
            )
            for node in status.nodes
        ),
    )


def _instances(status: StatusRecord, *, now_ms: int) -> Table:
    return Table(
        (
            Column("INSTANCE", least=13),
            Column("MODEL", least=16),
            Column("PHASE", least=10),
            Column("NODE", least=6),
            Column("BUSY", right=True),
            Column("QUEUED", right=True, drop=3),
            Column("TOK/S", right=True, drop=4),
            Column("MEMORY", right=True, drop=2),
            Column("AGE", right=True, drop=1),
        ),
        tuple(
            (
                one.instance_id,
                one.model_id,
                phase_text(one),
                joined(one.node_names),
                f"{UNKNOWN if one.in_flight is None else one.in_flight}/{one.slots}",
                format_count(one.queued),
                rate_text(one.tokens_per_s),
                format_bytes(one.needed_bytes),
                format_age(one.placed_at_ms, now_ms=now_ms),
            )
            for one in status.instances
        ),
    )
