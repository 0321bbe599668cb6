"""Logs of any node and of any instance, by pages or followed.

Whoever follows a log of another node holds a question there: it is answered as soon as there are
lines, or with none when its time is over, and asked again from where the last answer ended.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, final

from protocol.cluster_api import LogsDocument
from protocol.errors import RequestError, SkulkError
from protocol.ids import InstanceId, NodeId, parse_command_id
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.errors import bug, error_reply
from skulkd.api.http import Answer, Request, Send, StreamReply, json_reply
from skulkd.api.other_nodes import OtherNodes
from skulkd.api.ports import LogQuery
from skulkd.api.query import whole_number
from skulkd.api.sse import SSE_HEADERS, EventStream
from skulkd.runtime.tasks import sleep

DEFAULT_LINES: Final = 100
MAX_LINES: Final = 1000
MAX_FOLLOWERS: Final = 32
"""Each looks many times a second, and they stay for days."""
MAX_HELD: Final = 32
"""Questions of other nodes that may wait here for lines; a further one is answered at once."""
HOLD_S: Final = 10.0
"""How long a question waits for lines."""
LOOK_S: Final = 0.05
"""Between two looks at how far a log has come: a tenth of a millisecond each."""
REST_S: Final = 0.1
"""After lines: a log that grows all the time is read ten times a second, and not for each line."""
NOT_HELD_PAUSE_S: Final = 1.0
"""Before a question is repeated that the other node has not held."""
_ANSWER_S: Final = 10.0
_MAX_POSITION_CHARS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Whose log, and which lines."""

    node_id: NodeId
    query: LogQuery

    def after(self, position: str) -> "_Source":
        return replace(self, query=replace(self.query, after=position))

    def fields(self, wait_s: int) -> Mapping[str, str]:
        fields = {
            "wait_s": str(wait_s) if wait_s else None,
            "instance": self.query.instance_id,
            "after": self.query.after,
            "limit": str(self.query.limit),
            "command_id": self.query.command_id,
        }
        return {name: value for name, value in fields.items() if value is not None}


@final
class LogRoutes:
    """The routes about logs.

    Args:
        deps: The rest of the daemon.
        others: Asks other nodes.
    """

    def __init__(self, deps: ApiDependencies, others: OtherNodes) -> None:
        self._deps = deps
        self._others = others
        self._followers: set[EventStream] = set()
        self._n_held = 0
        self._is_stopping = False

    def stop(self) -> None:
        """End the streams of `GET /v1/logs?follow=1`, and answer the questions that wait."""
        self._is_stopping = True
        for follower in list(self._followers):
            follower.end()

    async def logs(self, request: Request) -> Answer:
        """`GET /v1/logs`: lines of one log; with `follow=1` a stream that goes on."""
        source = self._source(request)
        is_following = request.query("follow") in {"1", "true"} and request.method == "GET"
        if request.asker is not None:
            return json_reply(await self._held(source.query, whole_number(request, "wait_s", 0)))
        if not is_following:
            return json_reply(await self._read(source))
        if len(self._followers) >= MAX_FOLLOWERS:
            raise RequestError(
                "request.overloaded",
                f"{MAX_FOLLOWERS} clients follow logs already",
                remediation="End some of them, or ask for pages: GET /v1/logs?after=POSITION.",
                retry_after_s=5,
            )
        first = await self._read(source)  # what is wrong with the request is told before a stream
        return StreamReply(
            run=lambda send: self._follow(request, send, source, first), headers=SSE_HEADERS
        )

    def _source(self, request: Request) -> _Source:
        instance = request.query("instance")
        instance_id = None if instance is None else InstanceId(parse_command_id(instance))
        node_id = None if request.asker is not None else self._others.named(request)
        if node_id is None:
            node_id = self._deps.face.node_id
            if instance_id is not None and request.asker is None:
                node_id = self._host_of(instance_id)
        after = request.query("after")
        resumed = request.headers.get(b"last-event-id")
        if resumed is not None:
            after = resumed.decode("latin-1")
        limit = whole_number(request, "limit", DEFAULT_LINES)
        command = request.query("command_id")
        query = LogQuery(
            instance_id=instance_id,
            after=None if after is None else after[:_MAX_POSITION_CHARS],
            limit=max(1, min(limit, MAX_LINES)),
            command_id=None if command is None else parse_command_id(command),
        )
        return _Source(node_id=node_id, query=query)

    def _host_of(self, instance_id: InstanceId) -> NodeId:
        """Find the node whose log tells most of an instance: its first rank's."""
        state = self._deps.state.state
        instance = state.instances.get(instance_id)
        if instance is not None:
            return instance.plan.shards[0].node_id
        for failure in reversed(state.failures):
            if failure.instance_id == instance_id and failure.node_id is not None:
                return failure.node_id
        return self._deps.face.node_id

    async def _read(self, source: _Source, *, wait_s: float = 0.0) -> LogsDocument:
        """Read lines, and wait for some if there are none."""
        if source.node_id == self._deps.face.node_id:
            return await self._wait(source.query, wait_s)
        fields = source.fields(int(wait_s))
        limit_s = wait_s + _ANSWER_S
        return await self._others.ask(
            source.node_id, "/v1/logs", LogsDocument, fields, timeout_s=limit_s
        )

    async def _held(self, query: LogQuery, wait_s: int) -> LogsDocument:
        """Answer another node, as soon as there are lines if it may wait here."""
        if self._n_held >= MAX_HELD:
            wait_s = 0
        self._n_held += 1
        try:
            return await self._wait(query, min(wait_s, HOLD_S))
        finally:
            self._n_held -= 1

    async def _wait(self, query: LogQuery, wait_s: float) -> LogsDocument:
        """Read lines of this node's logs; while there are none, look again until they come."""
        logs, clock = self._deps.logs, self._deps.clock
        until_s = clock.monotonic_s() + wait_s
        while True:
            # Before the reading: what comes between the two is seen at the next look.
            mark = await logs.mark(query) if wait_s else ()
            page = await logs.read(query)
            if page.lines or page.was_cut or page.has_more:
                return page
            query = replace(query, after=page.next_after)
            while True:
                if self._is_stopping or clock.monotonic_s() >= until_s:
                    return page
                await sleep(LOOK_S)
                if await logs.mark(query) != mark:
                    break

    async def _follow(
        self, request: Request, send: Send, source: _Source, first: LogsDocument
    ) -> None:
        deps = self._deps
        stream = EventStream(
            request.connection, clock=deps.clock, limits=deps.stream_limits, name="logs"
        )
        request.connection.on_lost(stream.lose)
        self._followers.add(stream)
        looking = deps.tasks.start(
            self._look(stream, source, first), name="follow a log", essential=False
        )
        try:
            await stream.run(send)
        finally:
            looking.cancel()
            self._followers.discard(stream)
            request.connection.on_lost(None)

    async def _look(self, stream: EventStream, source: _Source, first: LogsDocument) -> None:
        """Look for further lines until the reader goes, or the log cannot be read any more."""
        stream.put(b": logs\n\n")
        try:
            await self._copy(stream, source, first)
        except SkulkError as error:
            stream.put(_error_frame(error))
        except Exception:
            stream.put(_error_frame(bug()))
            raise
        finally:
            stream.end()

    async def _copy(self, stream: EventStream, source: _Source, page: LogsDocument) -> None:
        clock = self._deps.clock
        while True:
            if page.lines or page.was_cut:
                stream.put(_frame(page))
            if stream.is_full:
                await stream.room()
            elif not page.has_more:
                await sleep(REST_S)
            asked_s = clock.monotonic_s()
            page = await self._read(source.after(page.next_after), wait_s=HOLD_S)
            is_empty = not (page.lines or page.was_cut or page.has_more)
            if is_empty and clock.monotonic_s() - asked_s < HOLD_S / 2:
                await sleep(NOT_HELD_PAUSE_S)


def _frame(page: LogsDocument) -> bytes:
    return f"id: {page.next_after}\nevent: lines\ndata: {page.model_dump_json()}\n\n".encode()


def _error_frame(error: SkulkError) -> bytes:
    body = error_reply(error, dialect="control").body
    return b"event: error\ndata: " + body + b"\n\n"
