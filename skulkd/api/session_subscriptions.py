"""What one session follows: of each topic where it stands, and what it gets next.

Subscriptions take turns: one frame each, for as long as there is something to send.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, Protocol, final
from urllib.parse import urlencode

from pydantic import ValidationError

from protocol.cluster_api import LogsDocument
from protocol.control_api import ErrorDocument, read_answer
from protocol.errors import ErrorBody, ProtocolError, RequestError, SkulkError, error_of
from protocol.session import MAX_SUBSCRIPTIONS, FeedState, RowTopic, Subscribe
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.http import Reply
from skulkd.api.node_names import find_node
from skulkd.api.session_frames import is_error, lines_frame, rows_frame
from skulkd.api.session_lines import EventLines, LineBatch, LineSource
from skulkd.api.session_logs import CommandLines, LogLines, LogReaders
from skulkd.api.session_rows import CLUSTER_KEY
from skulkd.api.session_topics import RowFeed, RowTopics
from skulkd.core.row_table import Place

ROWS_FRAME_BYTES: Final = 192 << 10
_MAX_DIGITS: Final = 18
_NOWHERE: Final = Place(-1)
"""A cursor with it is answered by a snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionParts:
    """What the subscriptions of a session stand on."""

    deps: ApiDependencies
    topics: RowTopics
    log_readers: LogReaders
    read_logs: Callable[[str], Awaitable[Reply]]
    """Asks `GET /v1/logs` with a query string."""
    on_change: Callable[[], None]
    """Called when there may be something to send."""
    on_end: Callable[[int, SkulkError], None]
    """Called when a subscription's source is gone."""


class _Follower(Protocol):
    def next_frame(self, feed: FeedState) -> bytes | None:
        """Give what comes next; None where there is nothing now."""
        ...

    def close(self) -> None:
        """Follow no more."""
        ...


@final
class Subscriptions:
    """See the module.

    Args:
        parts: What they stand on.
    """

    def __init__(self, parts: SubscriptionParts) -> None:
        self._parts = parts
        self._followers: dict[int, _Follower] = {}
        self._ready: dict[int, None] = {}
        """Those that may have something to send, the one whose turn it is first."""

    @property
    def is_ready(self) -> bool:
        """Something may wait to be sent."""
        return bool(self._ready)

    def has(self, frame_id: int) -> bool:
        """Say whether an id is one of them."""
        return frame_id in self._followers

    def add(self, wish: Subscribe) -> None:
        """Begin to follow.

        Raises:
            SkulkError: It cannot be followed.
        """
        if len(self._followers) >= MAX_SUBSCRIPTIONS:
            raise RequestError(
                "request.overloaded",
                f"this session follows {MAX_SUBSCRIPTIONS} topics already",
                remediation="Unsubscribe from some first.",
            )
        _check(wish)

        def on_change() -> None:
            if wish.id in self._followers:
                self._ready[wish.id] = None
                self._parts.on_change()

        self._followers[wish.id] = self._follow(wish, on_change)
        on_change()

    def drop(self, frame_id: int) -> bool:
        """Follow no more; False where it was not followed."""
        follower = self._followers.pop(frame_id, None)
        self._ready.pop(frame_id, None)
        if follower is not None:
            follower.close()
        return follower is not None

    def make_all_ready(self) -> None:
        """Look at each again: what it may send has changed."""
        self._ready = dict.fromkeys(self._followers)

    def next_frame(self, feed: FeedState) -> bytes | None:
        """Give the next frame of whoever's turn it is; None where there is nothing to send."""
        while self._ready:
            frame_id = next(iter(self._ready))
            del self._ready[frame_id]
            frame = self._followers[frame_id].next_frame(feed)
            if frame is not None:
                self._ready[frame_id] = None  # behind the others; there may be more
                return frame
        return None

    def close(self) -> None:
        """Follow nothing more. Idempotent."""
        for frame_id in list(self._followers):
            self.drop(frame_id)

    def _follow(self, wish: Subscribe, on_change: Callable[[], None]) -> _Follower:
        deps = self._parts.deps
        match wish.topic:
            case "events":
                source: LineSource = EventLines(deps.state, wish, on_change)
            case "logs":
                source = _Counted(self._parts.log_readers, partial(self._logs, wish, on_change))
            case "command":
                source = _Counted(self._parts.log_readers, partial(self._command, wish, on_change))
            case _:
                return _RowFollower(wish, wish.topic, self._parts, on_change)
        return _LineFollower(wish.id, source, deps.clock.wall_ms)

    def _command(self, wish: Subscribe, on_change: Callable[[], None]) -> CommandLines:
        deps = self._parts.deps
        assert wish.command_id is not None  # ruff: ignore[assert]  `_check` has seen to it
        return CommandLines(
            self._read_logs, deps.state, wish.command_id, tasks=deps.tasks, on_change=on_change
        )

    def _logs(self, wish: Subscribe, on_change: Callable[[], None]) -> LogLines:
        deps = self._parts.deps
        is_here = wish.instance_id is None and wish.node is None
        if wish.node is not None:
            is_here = find_node(deps.state.state, wish.node) == deps.face.node_id
        return LogLines(
            self._read_logs,
            wish,
            is_here=is_here,
            tasks=deps.tasks,
            on_change=on_change,
            on_end=partial(self._on_end, wish.id),
        )

    def _on_end(self, frame_id: int, error: SkulkError) -> None:
        if self.drop(frame_id):
            self._parts.on_end(frame_id, error)

    async def _read_logs(self, fields: Mapping[str, str]) -> LogsDocument:
        reply = await self._parts.read_logs(urlencode(fields))
        try:
            if is_error(reply):
                raise _error_in(reply)
            return read_answer(LogsDocument, reply.body)
        except ValidationError as error:
            raise ProtocolError(
                "protocol.bad_frame",
                "the lines of this log cannot be read",
                remediation="Run the same build on all nodes.",
            ) from error


@final
class _RowFollower:
    """Follows a table."""

    def __init__(
        self,
        wish: Subscribe,
        topic: RowTopic,
        parts: SubscriptionParts,
        on_change: Callable[[], None],
    ) -> None:
        self._id = wish.id
        self._topic: RowTopic = topic
        self._parts = parts
        self._on_change = on_change
        self._boot = parts.deps.face.boot_id
        self._place = None if wish.cursor is None else self._placed(wish.cursor)
        self._is_first = True
        self._summary_n = 0
        """When the row that was sent last in place of all rows had changed."""
        self._feed: RowFeed = parts.topics.follow(topic, on_change)

    def next_frame(self, feed: FeedState) -> bytes | None:
        """Give the rows that changed; of a client that is far too slow, one row."""
        if not self._feed.is_ready:
            return None
        if feed == "summary":
            return self._summary()
        delta = self._feed.table.since(self._place, max_bytes=ROWS_FRAME_BYTES)
        self._place = delta.place
        if not (delta.rows or delta.is_snapshot or self._is_first):
            return None
        self._is_first = False
        return rows_frame(
            self._id,
            self._cursor,
            delta.rows,
            is_snapshot=delta.is_snapshot,
            at_ms=self._parts.deps.clock.wall_ms(),
        )

    def close(self) -> None:
        """Follow no more."""
        self._parts.topics.leave(self._topic, self._on_change)

    def _summary(self) -> bytes | None:
        head = self._feed.table.row(CLUSTER_KEY)
        if head is None or head[0] == self._summary_n:
            return None
        self._summary_n = head[0]
        return rows_frame(
            self._id,
            self._cursor,
            ((CLUSTER_KEY, head[1]),),
            is_snapshot=False,
            at_ms=self._parts.deps.clock.wall_ms(),
        )

    @property
    def _cursor(self) -> str:
        place = self._place or _NOWHERE
        return f"{self._boot}.{self._topic}.{place.n}.{place.snapshot_n}"

    def _placed(self, cursor: str) -> Place:
        """Read a cursor; of another node, boot or topic it is worth a snapshot."""
        prefix = f"{self._boot}.{self._topic}."
        n, dot, snapshot_n = cursor.removeprefix(prefix).partition(".")
        is_ours = cursor.startswith(prefix) and bool(dot)
        if not is_ours or not (_is_number(n) and _is_number(snapshot_n)):
            return _NOWHERE
        return Place(int(n), int(snapshot_n))


@final
class _LineFollower:
    """Follows a source of lines."""

    def __init__(self, frame_id: int, source: LineSource, wall_ms: Callable[[], int]) -> None:
        self._id = frame_id
        self._source = source
        self._wall_ms = wall_ms

    def next_frame(self, feed: FeedState) -> bytes | None:
        """Give the next items, or, of a client that is too slow, that there were some."""
        if feed == "summary":
            return None
        batch = self._source.take(is_skipping=feed != "full")
        return None if batch is None else lines_frame(self._id, batch, at_ms=self._wall_ms())

    def close(self) -> None:
        """Follow no more."""
        self._source.close()


@final
class _Counted:
    """A source that is one of so many.

    Raises:
        SkulkError: There are too many, or it cannot be made.
    """

    def __init__(self, readers: LogReaders, make: Callable[[], LineSource]) -> None:
        readers.enter()
        try:
            self._source = make()
        except BaseException:
            readers.leave()
            raise
        self._leave = readers.leave

    def take(self, *, is_skipping: bool) -> LineBatch | None:
        """Give what is new since the last call; see `LineSource`."""
        return self._source.take(is_skipping=is_skipping)

    def close(self) -> None:
        """Watch no more; called once."""
        self._source.close()
        self._leave()


_Field = Literal["node", "instance_id", "command_id"]
_TAKES: Final[Mapping[str, frozenset[_Field]]] = {
    "logs": frozenset({"node", "instance_id"}),
    "command": frozenset({"command_id"}),
}


def _check(wish: Subscribe) -> None:
    """Refuse fields that mean nothing to the topic, and see that what it needs is there."""
    given = {
        "node": wish.node,
        "instance_id": wish.instance_id,
        "command_id": wish.command_id,
    }
    taken = _TAKES.get(wish.topic, frozenset[_Field]())
    for name, value in given.items():
        if value is not None and name not in taken:
            raise _senseless(wish.topic, name)
    if wish.topic == "command" and wish.command_id is None:
        raise RequestError(
            "request.invalid",
            "the topic `command` takes a command_id",
            remediation="Give the id that the change was answered with.",
            details={"param": "command_id"},
        )
    if wish.topic == "command" and wish.cursor is not None:
        raise _senseless(wish.topic, "cursor")


def _senseless(topic: str, name: str) -> RequestError:
    return RequestError(
        "request.invalid",
        f"the topic `{topic}` takes no {name}",
        remediation="See docs/session-protocol.md.",
        details={"param": name},
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS


def _error_in(reply: Reply) -> SkulkError:
    """Read an error document.

    Raises:
        ValidationError: It is none.
    """
    envelope = read_answer(ErrorDocument, reply.body).error
    return error_of(
        ErrorBody(
            code=envelope.skulk_code,
            message=envelope.message,
            remediation=envelope.remediation,
            details=envelope.details,
            retry_after_s=envelope.retry_after_s,
        )
    )
