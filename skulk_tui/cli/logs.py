"""`skulk logs` and `skulk events`: what a node, an engine and the cluster wrote down."""

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
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
from skulk_tui.cli.session import Session, parse_duration, terminal_width
from skulk_tui.cli.suggestions import node_ids_of
from skulk_tui.cli.verb import verb
from skulk_tui.cli.waiting import state_of
from skulk_tui.event_stream import ServerEvent
from skulk_tui.formatting import one_line, shorten, strip_controls

MAX_LINES: Final = 1000
_LOG_LINES: Final = 100
_EVENTS: Final = 20

FollowOption = Annotated[
    bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
]

LinesOption = Annotated[
    int | None,
    typer.Option("--lines", "-n", min=1, max=MAX_LINES, help="How many, from the end."),
]
SinceOption = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Only what came within the last 10m, 2h, 1d."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How much of a log is wanted.

    Args:
        lines: At most so many, from the end; None is as many as there are since `since_ms`.
        since_ms: Nothing from before; None is no such bound.
    """

    lines: int | None
    since_ms: int | None = None

    @property
    def to_ask(self) -> int:
        """How many lines to ask for: when they came is known only once they are here."""
        return MAX_LINES if self.lines is None or self.since_ms is not None else self.lines

    def holds(self, at_ms: int | None) -> bool:
        """Is something of that time wanted? What has no time is."""
        return self.since_ms is None or at_ms is None or at_ms >= self.since_ms


def window_of(session: Session, lines: int | None, since: str | None, *, usual: int) -> Window:
    """Read the options of a verb that shows a log.

    Raises:
        ClientError: `client.usage`.
    """
    if since is None:
        return Window(lines=usual if lines is None else lines)
    before_ms = int(parse_duration(since, "--since") * 1000)
    return Window(lines=lines, since_ms=session.clock.wall_ms() - before_ms)


def add_log_verbs(app: typer.Typer) -> None:
    """Register the verbs."""
    verb(app, "logs", examples=("skulk logs studio --since 10m", "skulk logs my/model -f"))(
        show_logs
    )
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
    lines: LinesOption = None,
    since: SinceOption = None,
    command: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only the lines of one command, from the oldest on."),
    ] = None,
) -> int | None:
    """Show the last lines of a node's log, or of an instance's engine, wherever it is.

    What an engine writes has no time: `--since` leaves all of its lines in.
    """
    window = window_of(session, lines, since, usual=_LOG_LINES)
    command_id = None if command is None else parse_command_id(command)
    wanted = _Wanted() if target is None else _wanted(state_of(session), target)
    wanted = replace(wanted, command=command_id)
    if follow:
        Follower(session, "/v1/logs", {**wanted.query(window.to_ask), "follow": "1"}).run(
            lambda event: _write_page(session, event, window)
        )
        return None
    page = session.client.get("/v1/logs", LogsDocument, query=wanted.query(window.to_ask))
    records = _records(page, window)
    records = records if window.lines is None else records[-window.lines :]
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


def _records(page: LogsDocument, window: Window) -> list[LogLineRecord]:
    lines = [line for line in page.lines if window.holds(_ms(line.at))]
    return [log_record(page, line) for line in lines]


def _ms(at: str | None) -> int | None:
    if at is None:
        return None
    with suppress(ValueError):
        return int(datetime.fromisoformat(at).timestamp() * 1000)
    return None


def _write_page(session: Session, event: ServerEvent, window: Window) -> None:
    page = read_answer(LogsDocument, event.data.encode())
    if page.was_cut:
        session.narrate("some lines are missing: the log was capped")
    records = _records(page, window)
    _write_each(session, records, [log_text(record) for record in records])


# ---- Events ------------------------------------------------------------------------------------


def show_events(
    session: Session,
    *,
    follow: FollowOption = False,
    lines: LinesOption = None,
    since: SinceOption = None,
    after: Annotated[
        int | None, typer.Option(min=0, metavar="SEQ", help="Those after this seq instead.")
    ] = None,
) -> int | None:
    """Show what the cluster has decided: the events of its log, oldest first."""
    window = window_of(session, lines, since, usual=_EVENTS)
    is_from_end = after is None
    if after is None:
        last = session.client.get("/events", EventsDocument, query={"limit": "1"}).last_seq
        after = max(0, last - window.to_ask)
    if follow:
        Follower(session, "/events", {"follow": "1", "after_seq": str(after)}).run(
            lambda event: _write_event(session, event, window)
        )
        return None
    query = {"after_seq": str(after), "limit": str(window.to_ask)}
    document = session.client.get("/events", EventsDocument, query=query)
    records = [event_record(view) for view in document.events if window.holds(view.at_ms)]
    if window.lines is not None:
        records = records[-window.lines :] if is_from_end else records[: window.lines]
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
        what = f"after seq {after}" if since is None else f"of the last {since}"
        session.narrate(f"There is no event {what}.")
    return None


def _event_line(session: Session, record: EventRecord) -> str:
    """Write an event for people; on a terminal the facts of a node would fill a screen."""
    text = event_text(record)
    if not session.output.is_terminal or session.form == "wide":
        return text
    return shorten(one_line(text), terminal_width(session.environ))


def _write_event(session: Session, event: ServerEvent, window: Window) -> None:
    if event.event == "state_replaced":
        session.narrate(f"the node began anew from a snapshot at seq {event.id}")
        return
    view = read_answer(EventView, event.data.encode())
    if not window.holds(view.at_ms):
        return
    record = event_record(view)
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
