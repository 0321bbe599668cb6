"""`skulk logs` and `skulk events`: what a node, an engine and the cluster wrote down."""

from dataclasses import dataclass, replace
from typing import Annotated, Final

import typer

from protocol.cluster_api import LogsDocument
from protocol.control_api import EventsDocument, EventView, StateDocument, read_answer
from protocol.errors import ClientError
from protocol.ids import CommandId, InstanceId, NodeId, parse_command_id
from skulk_tui.cli.cluster_answers import event_record, log_record
from skulk_tui.cli.cluster_records import EventRecord, LogLineRecord
from skulk_tui.cli.cluster_tables import event_text, log_text
from skulk_tui.cli.completing import complete_node_or_instance
from skulk_tui.cli.following import Follower
from skulk_tui.cli.instances import find_instances
from skulk_tui.cli.nearest import unknown_value
from skulk_tui.cli.output import Listing, plain
from skulk_tui.cli.session import Session, terminal_width
from skulk_tui.cli.suggestions import node_ids_of
from skulk_tui.cli.verb import verb
from skulk_tui.cli.waiting import state_of
from skulk_tui.event_stream import ServerEvent
from skulk_tui.formatting import one_line, shorten, strip_controls

MAX_LINES: Final = 1000

FollowOption = Annotated[
    bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
]


def add_log_verbs(app: typer.Typer) -> None:
    """Register the verbs."""
    verb(app, "logs", examples=("skulk logs studio -n 50", "skulk logs my/model -f"))(show_logs)
    verb(app, "events", examples=("skulk events -n 20", "skulk events -f -o jsonl"))(show_events)


# ---- Logs --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    node: NodeId | None = None
    instance: InstanceId | None = None
    command: CommandId | None = None

    def query(self, n_lines: int) -> dict[str, str]:
        fields = {
            "node": self.node,
            "instance": self.instance,
            "command_id": self.command,
            "limit": str(n_lines),
        }
        return {name: value for name, value in fields.items() if value is not None}


def show_logs(
    session: Session,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[NODE|INSTANCE]",
            help="A node, or an instance (also by its model); the node that is asked, if left out.",
            autocompletion=complete_node_or_instance,
        ),
    ] = None,
    *,
    follow: FollowOption = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=MAX_LINES, help="How many, from the end.")
    ] = 100,
    command: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only the lines of one command, from the oldest on."),
    ] = None,
) -> int | None:
    """Show the last lines of a node's log, or of an instance's engine, wherever it is."""
    command_id = None if command is None else parse_command_id(command)
    wanted = _Wanted() if target is None else _wanted(state_of(session), target)
    wanted = replace(wanted, command=command_id)
    if follow:
        Follower(session, "/v1/logs", {**wanted.query(lines), "follow": "1"}).run(
            lambda event: _write_page(session, event)
        )
        return None
    page = session.client.get("/v1/logs", LogsDocument, query=wanted.query(lines))
    records = [log_record(page, line) for line in page.lines]
    if session.form in {"table", "wide"}:
        _write_lines(session, [log_text(record) for record in records])
    else:
        session.output.show(
            Listing(
                kind="logs",
                items=records,
                tables=(),
                names=[strip_controls(record.message) for record in records],
            )
        )
    if not records and not session.output.is_for_programs:
        session.narrate("There is no line in that log.")
    return None


def _wanted(state: StateDocument, target: str) -> _Wanted:
    """Find what is meant: a node by name or id; an instance by id, the start of one, or model.

    Raises:
        ClientError: `client.usage` when nothing or too much is meant.
    """
    nodes = {word for node, member in state.members.items() for word in (node, member.name)}
    if target.casefold() in {word.casefold() for word in nodes}:
        (node,) = node_ids_of(state, (target,))
        return _Wanted(node=node)
    gone = [one for one in state.failures if one.instance_id == target]
    if gone and target not in state.instances:
        return _Wanted(instance=gone[-1].instance_id)
    try:
        (view,) = find_instances(state, target)
    except ClientError as error:
        if "means" in error.message:
            raise
        models = [view.model_id for view in state.instances.values()]
        known = [*nodes, *state.instances, *models]
        raise unknown_value("a node, an instance or a placed model", target, known) from error
    return _Wanted(instance=view.instance_id)


def _write_page(session: Session, event: ServerEvent) -> None:
    page = read_answer(LogsDocument, event.data.encode())
    if page.was_cut:
        session.narrate("some lines are missing: the log was capped")
    records = [log_record(page, line) for line in page.lines]
    _write_each(session, records, [log_text(record) for record in records])


# ---- Events ------------------------------------------------------------------------------------


def show_events(
    session: Session,
    *,
    follow: FollowOption = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=MAX_LINES, help="How many, from the end.")
    ] = 20,
    after: Annotated[
        int | None, typer.Option(min=0, metavar="SEQ", help="Those after this seq instead.")
    ] = None,
) -> int | None:
    """Show what the cluster has decided: the events of its log, oldest first."""
    if after is None:
        last = session.client.get("/events", EventsDocument, query={"limit": "1"}).last_seq
        after = max(0, last - lines)
    if follow:
        Follower(session, "/events", {"follow": "1", "after_seq": str(after)}).run(
            lambda event: _write_event(session, event)
        )
        return None
    query = {"after_seq": str(after), "limit": str(lines)}
    document = session.client.get("/events", EventsDocument, query=query)
    records = [event_record(view) for view in document.events]
    if session.form in {"table", "wide"}:
        _write_lines(session, [_event_line(session, record) for record in records])
    else:
        session.output.show(
            Listing(
                kind="events",
                seq=document.last_seq,
                items=records,
                tables=(),
                names=[str(record.seq) for record in records],
            )
        )
    if not records and not session.output.is_for_programs:
        session.narrate(f"There is no event after seq {after}.")
    return None


def _event_line(session: Session, record: EventRecord) -> str:
    """Write an event for people; on a terminal the facts of a node would fill a screen."""
    text = event_text(record)
    if not session.output.is_terminal or session.form == "wide":
        return text
    return shorten(one_line(text), terminal_width(session.environ))


def _write_event(session: Session, event: ServerEvent) -> None:
    if event.event == "state_replaced":
        session.narrate(f"the node began anew from a snapshot at seq {event.id}")
        return
    record = event_record(read_answer(EventView, event.data.encode()))
    _write_each(session, [record], [_event_line(session, record)])


# ---- Writing -----------------------------------------------------------------------------------


def _write_each(
    session: Session, records: list[LogLineRecord] | list[EventRecord], texts: list[str]
) -> None:
    """Write what has come, one a line; JSON of a stream is always an object a line."""
    if session.output.is_for_programs:
        for record in records:
            session.output.write_record(plain(record))
    else:
        _write_lines(session, texts)


def _write_lines(session: Session, texts: list[str]) -> None:
    shown = [strip_controls(text) for text in texts] if session.output.is_terminal else texts
    session.output.write("".join(f"{text}\n" for text in shown))
