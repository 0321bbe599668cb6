"""`skulk timeline`: everything that happened on behalf of one command, on all nodes, in order."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pydantic import ValidationError

from protocol.ids import CommandId, parse_command_id
from skulk_tui.cli.cluster_records import TimelineRecord
from skulk_tui.cli.output import Listing, plain
from skulk_tui.cli.session import Session
from skulk_tui.cli.verb import verb
from skulk_tui.formatting import one_line, rfc3339, strip_controls

if TYPE_CHECKING:
    from skulk_tui.cli.linked import Linked

BACKLOG: Final = 1000
SETTLE_S: Final = 0.2
"""A long story comes in several parts, one right after the other."""


def add_timeline(app: typer.Typer) -> None:
    """Register the verb."""
    verb(
        app,
        "timeline",
        examples=("skulk timeline abcdefgh-k3x9m2pq", "skulk timeline abcdefgh-k3x9m2pq -f --json"),
    )(timeline)


def timeline(
    session: Session,
    command: Annotated[
        str, typer.Argument(metavar="COMMAND_ID", help="As events, logs and answers name it.")
    ],
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
) -> int | None:
    """Show what one command led to: the cluster's events and the log lines of all nodes."""
    command_id = parse_command_id(command)
    from skulk_tui.cli.linked import run_linked

    if follow:
        run_linked(session, lambda linked: _follow(session, linked, command_id))
        return None
    records, gaps = run_linked(session, lambda linked: _gather(linked, command_id))
    for gap in gaps:
        session.narrate(gap)
    if session.form in {"table", "wide"}:
        _write(session, records)
    else:
        names = [record.text for record in records]
        session.output.show(Listing(kind="timeline", items=records, tables=(), names=names))
    if not records and not session.output.is_for_programs:
        session.narrate("No node has anything about it any more.")
    return None


async def _begin(linked: "Linked", command_id: CommandId) -> int:
    """Subscribe and wait for the first part, which the node gathers from all others."""
    followed = linked.link.subscribe("command", command_id=command_id, backlog=BACKLOG)
    await linked.start()
    while linked.view.lines(followed).cursor is None:
        _check(linked, followed)
        await linked.changed()
    return followed


def _check(linked: "Linked", followed: int) -> None:
    refusal = linked.link.error_of(followed)
    if refusal is not None:
        raise refusal


async def _gather(
    linked: "Linked", command_id: CommandId
) -> tuple[list[TimelineRecord], list[str]]:
    followed = await _begin(linked, command_id)
    n_seen = -1
    while n_seen != (n_now := linked.view.lines(followed).n_seen):
        n_seen = n_now
        await linked.changed_within(SETTLE_S)
    items = linked.view.lines(followed).items
    return list(_records(one.item for one in items)), [one.gap for one in items if one.gap]


async def _follow(session: Session, linked: "Linked", command_id: CommandId) -> None:
    followed = await _begin(linked, command_id)
    told: set[object] = set()
    while True:
        _check(linked, followed)
        for line in tuple(linked.view.lines(followed).items):
            # After a link was lost the story is told anew from its beginning.
            record = line.gap or next(iter(_records([line.item])), None)
            if record is None or record in told:
                continue
            told.add(record)
            if isinstance(record, str):
                session.narrate(record)
            elif session.output.is_for_programs:
                session.output.write_record(plain(record))
            else:
                _write(session, [record])
        await linked.changed()


def _records(items: Iterable[Mapping[str, Any]]) -> Iterable[TimelineRecord]:
    """Read items, passing over gaps and what this build cannot read."""
    from protocol.session import TimelineEntry

    for item in items:
        try:
            entry = TimelineEntry.model_validate(item, extra="ignore")
        except ValidationError:
            continue
        yield TimelineRecord(
            at=rfc3339(entry.at_ms),
            node_id=entry.node_id,
            node_name=entry.node_name or None,
            source=entry.source,
            kind=entry.kind,
            text=entry.text,
        )


def _write(session: Session, records: Iterable[TimelineRecord]) -> None:
    for record in records:
        where = record.node_name or "cluster"
        text = f"{record.at} {where} {record.kind}: {one_line(record.text)}".rstrip(": ")
        session.output.write(f"{strip_controls(text) if session.output.is_terminal else text}\n")
