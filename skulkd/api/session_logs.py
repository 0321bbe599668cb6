"""Line topics of a session that are read from logs: one log, and all that one command did.

The logs are asked for as `GET /v1/logs` asks, of whichever node has them, over and over: nothing
tells when a line is written.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Final, final

from protocol.cluster_api import LogLineView, LogsDocument
from protocol.errors import ErrorCode, RequestError, SkulkError
from protocol.events import SequencedEvent
from protocol.ids import CommandId, NodeId
from protocol.session import Subscribe, TimelineEntry
from protocol.state import ClusterState
from skulkd.api.session_lines import BATCH_BYTES, LineBatch
from skulkd.eventlog.gateway import StateView
from skulkd.runtime.tasks import Tasks, sleep

LOOK_S: Final = 0.5
LOOK_ELSEWHERE_S: Final = 1.0
LOOK_FOR_COMMAND_S: Final = 2.0
RETRY_S: Final = 2.0
PAGE_LINES: Final = 500
MAX_READERS: Final = 32
"""Of all sessions together: each looks now and then, and a command on all nodes."""
MAX_WAITING: Final = 1000
"""Entries of a command that wait to be sent."""
GATHER_S: Final = 1.5
"""How long a command's first frame waits for the logs of all nodes, to show them in order."""
_EVENTS_SEARCHED: Final = 10_000
_PASSING: Final[frozenset[ErrorCode]] = frozenset({
    "cluster.peer_unreachable", "cluster.peer_timeout", "request.overloaded",
})  # fmt: skip
_TEXT_CHARS: Final = 500

ReadLogs = Callable[[Mapping[str, str]], Awaitable[LogsDocument]]
"""Asks `GET /v1/logs` with these query fields; raises what it answers instead."""
OnEnd = Callable[[SkulkError], None]
"""Called when the source cannot be read any more."""


@final
class LogReaders:
    """Counts the subscriptions that look at logs, over all sessions."""

    def __init__(self) -> None:
        self.n_readers = 0

    def enter(self) -> None:
        """Count one more.

        Raises:
            RequestError: `request.overloaded`.
        """
        if self.n_readers >= MAX_READERS:
            raise RequestError(
                "request.overloaded",
                f"{MAX_READERS} sessions follow logs or commands of this node already",
                remediation="End some of them, or attach to another node.",
                retry_after_s=5,
            )
        self.n_readers += 1

    def leave(self) -> None:
        """Count one less."""
        self.n_readers -= 1


@final
class LogLines:
    """The lines of one log, from any position of it.

    Args:
        read: Asks for pages.
        wish: The subscription.
        is_here: The log lies on this node: looking is cheap.
        tasks: Owner of the task that looks.
        on_change: Called when there is something to take.
        on_end: See `OnEnd`.
    """

    def __init__(
        self,
        read: ReadLogs,
        wish: Subscribe,
        *,
        is_here: bool,
        tasks: Tasks,
        on_change: Callable[[], None],
        on_end: OnEnd,
    ) -> None:
        self._read = read
        self._wish = wish
        self._pause_s = LOOK_S if is_here else LOOK_ELSEWHERE_S
        self._on_change = on_change
        self._on_end = on_end
        self._page: LogsDocument | None = None
        self._n_passed = 0
        self._taken = asyncio.Event()
        self._task = tasks.start(self._run(), name="a log in a session", essential=False)

    def take(self, *, is_skipping: bool) -> LineBatch | None:
        """Give what is new since the last call; see `LineSource`."""
        page, self._page = self._page, None
        if page is None:
            return None
        self._taken.set()
        gap = "lines before these are gone: the log was capped" if page.was_cut else ""
        if is_skipping:
            n_lines = len(page.lines)
            gap = f"{n_lines} lines or more were passed over: this client reads too slowly"
            return LineBatch(cursor=page.next_after, gap=gap)
        items = [line.model_dump_json().encode() for line in page.lines]
        return LineBatch(cursor=page.next_after, items=items, gap=gap)

    def close(self) -> None:
        """Watch no more. Idempotent."""
        self._task.cancel()

    async def _run(self) -> None:
        try:
            await self._follow()
        except SkulkError as error:
            self._on_end(error)

    async def _follow(self) -> None:
        page = await self._first()
        while True:
            await self._offer(page)
            if not page.has_more:
                await sleep(self._pause_s)
            page = await self._next(page.next_after)

    async def _first(self) -> LogsDocument:
        backlog = self._wish.backlog
        fields = {**self._where(), "limit": str(max(1, backlog))}
        if self._wish.cursor is not None:
            fields |= {"after": self._wish.cursor, "limit": str(PAGE_LINES)}
        page = await self._read(fields)
        is_unwanted = backlog == 0 and self._wish.cursor is None
        return page.model_copy(update={"lines": ()}) if is_unwanted else page

    async def _offer(self, page: LogsDocument) -> None:
        """Have a page sent, and wait until it is; the first one also if it is empty."""
        if page.lines or page.was_cut or not self._taken.is_set():
            self._taken.clear()
            self._page = page
            self._on_change()
            await self._taken.wait()

    async def _next(self, after: str) -> LogsDocument:
        """Ask on; a node that cannot be reached now is asked again."""
        while True:
            try:
                fields = {**self._where(), "after": after, "limit": str(PAGE_LINES)}
                return await self._read(fields)
            except SkulkError as error:
                if error.code not in _PASSING:
                    raise
                await sleep(RETRY_S)

    def _where(self) -> dict[str, str]:
        fields = {"instance": self._wish.instance_id, "node": self._wish.node}
        return {name: value for name, value in fields.items() if value is not None}


@final
class CommandLines:
    """What happened on behalf of one command: its events, and the log lines of all nodes.

    Args:
        read: Asks for pages of logs.
        view: The replica: events, and who the nodes are.
        command_id: Which command.
        tasks: Owner of the tasks that look.
        on_change: Called when there may be something to take.
    """

    def __init__(
        self,
        read: ReadLogs,
        view: StateView,
        command_id: CommandId,
        *,
        tasks: Tasks,
        on_change: Callable[[], None],
    ) -> None:
        self._read = read
        self._command_id = command_id
        self._on_change = on_change
        self._waiting = [
            _of_event(event)
            for event in view.recent(0, _EVENTS_SEARCHED)
            if event.command_id == command_id
        ]
        self._gaps: list[str] = []
        self._n_dropped = 0
        names = {node_id: member.name for node_id, member in view.state.members.items()}
        self._unheard = set(names)
        """Nodes whose log has not been read yet."""
        self._is_first = True
        self._unsubscribe = view.subscribe(self._on_event)
        self._tasks = [
            tasks.start(
                self._watch(node_id, name), name=f"log lines of {command_id}", essential=False
            )
            for node_id, name in names.items()
        ]
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(GATHER_S, self._stop_gathering)

    def take(self, *, is_skipping: bool) -> LineBatch | None:
        """Give what is new since the last call; see `LineSource`."""
        if self._is_first and self._unheard and self._timer is not None:
            return None
        if not (self._waiting or self._gaps or self._is_first):
            return None
        self._is_first = False
        if is_skipping:
            self._n_dropped += len(self._waiting)
            self._waiting.clear()
        if self._n_dropped:
            self._gaps.append(f"{self._n_dropped} entries were passed over: they were not read")
            self._n_dropped = 0
        gap, self._gaps = "; ".join(self._gaps), []
        self._waiting.sort(key=lambda entry: entry.at_ms)
        items: list[bytes] = []
        n_bytes = 0
        while self._waiting and n_bytes < BATCH_BYTES:
            item = self._waiting.pop(0).model_dump_json().encode()
            n_bytes += len(item)
            items.append(item)
        return LineBatch(cursor="", items=items, gap=gap, has_more=bool(self._waiting))

    def close(self) -> None:
        """Watch no more. Idempotent."""
        self._unsubscribe()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _stop_gathering(self) -> None:
        self._timer = None
        self._on_change()

    def _on_event(self, event: SequencedEvent, state: ClusterState) -> None:
        del state
        if event.command_id == self._command_id:
            self._add([_of_event(event)])

    async def _watch(self, node_id: NodeId, name: str) -> None:
        """Look for further lines in one node's log, for as long as somebody follows."""
        after: str | None = None
        is_away = False
        while True:
            try:
                page = await self._read(self._fields(node_id, after))
            except SkulkError as error:
                if not is_away:
                    self._gaps.append(f"the log of {name} cannot be read now: {error.message}")
                is_away = True
                self._heard(node_id)
                await sleep(RETRY_S)
                continue
            is_away = False
            after = page.next_after
            self._heard(node_id)
            self._add([_of_line(line, node_id, name) for line in page.lines])
            if not page.has_more:
                await sleep(LOOK_FOR_COMMAND_S)

    def _fields(self, node_id: NodeId, after: str | None) -> Mapping[str, str]:
        fields = {"node": node_id, "command_id": self._command_id, "limit": str(PAGE_LINES)}
        return fields if after is None else {**fields, "after": after}

    def _heard(self, node_id: NodeId) -> None:
        self._unheard.discard(node_id)
        if self._is_first or self._gaps:
            self._on_change()

    def _add(self, entries: list[TimelineEntry]) -> None:
        if not entries:
            return
        self._waiting += entries
        excess = len(self._waiting) - MAX_WAITING
        if excess > 0:
            del self._waiting[:excess]
            self._n_dropped += excess
        self._on_change()


def _of_event(item: SequencedEvent) -> TimelineEntry:
    fields: dict[str, object] = item.event.model_dump(mode="json", exclude={"kind"})
    plain = [
        f"{name} {value}" for name, value in fields.items() if isinstance(value, str | int | float)
    ]
    return TimelineEntry(
        at_ms=item.at_ms,
        source="event",
        kind=item.event.kind,
        text=", ".join(plain)[:_TEXT_CHARS],
    )


def _of_line(line: LogLineView, node_id: NodeId, name: str) -> TimelineEntry:
    return TimelineEntry(
        at_ms=_milliseconds(line.at),
        node_id=node_id,
        node_name=name,
        source="log",
        kind=line.level or "",
        text=line.message,
    )


def _milliseconds(at: str | None) -> int:
    if at is None:
        return 0
    try:
        return int(datetime.fromisoformat(at).timestamp() * 1000)
    except ValueError:
        return 0
