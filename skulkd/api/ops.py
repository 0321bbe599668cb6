"""State, events, health and identity; listeners."""

import platform
from typing import Final, final

from protocol.cards import EngineName
from protocol.control_api import (
    EventsDocument,
    ListenersDocument,
    NodeIdentity,
    OpenApiBody,
    VersionDocument,
)
from protocol.errors import RequestError
from protocol.events import SequencedEvent
from protocol.state import ClusterState
from skulkd.api.auth import includes
from skulkd.api.control import read_body
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.http import Answer, Reply, Request, Send, StreamReply, json_reply
from skulkd.api.query import MAX_DIGITS, whole_number
from skulkd.api.sse import SSE_HEADERS, EventStream
from skulkd.api.state_writer import StateWriter
from skulkd.api.views import event_view, health_document, public_health

_STATE_CACHE_S: Final = 0.25
"""Readings move once a second; a screen full of clients asks far more often."""
_MAX_EVENTS: Final = 1_000
_DEFAULT_EVENTS: Final = 100
_MAX_FOLLOWERS: Final = 64
"""They stay for days, and must leave an operator some of the control places."""
_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
_JSON: Final = (b"content-type", b"application/json")


@final
class OpsRoutes:
    """The routes that tell how this node and the cluster are.

    Args:
        deps: The rest of the daemon.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps
        self._state_writer = StateWriter(deps.face)
        self._cached_state: tuple[ClusterState, float, Reply] | None = None
        self._followers: set[EventStream] = set()

    def stop(self) -> None:
        """End the streams of `GET /events?follow=1`."""
        for events in list(self._followers):
            events.end()

    async def root(self, request: Request) -> Answer:
        """`GET /`: what clients probe to see whether somebody is there."""
        del request
        return Reply(body=b"skulk is running\n", headers=(_TEXT,))

    async def health(self, request: Request) -> Answer:
        """`GET /health`."""
        deps, face = self._deps, self._deps.face
        own = deps.health.node_health().get(face.node_id)
        if not includes(request.principal.scope, "read"):
            return json_reply(public_health(own, face=face))
        readings = deps.readings.readings
        return json_reply(health_document(deps.state.state, readings, own, face=face))

    async def version(self, request: Request) -> Answer:
        """`GET /version`."""
        del request
        return json_reply(
            VersionDocument(
                version=self._deps.face.version,
                python=platform.python_version(),
                platform=f"{platform.system().lower()}-{platform.machine()}",
            )
        )

    async def node_id(self, request: Request) -> Answer:
        """`GET /node_id`."""
        del request
        return Reply(body=f'"{self._deps.face.node_id}"'.encode())

    async def identity(self, request: Request) -> Answer:
        """`GET /node/identity`."""
        del request
        face, state = self._deps.face, self._deps.state.state
        member = state.members.get(face.node_id)
        engines = member.facts.engines if member and member.facts else ()
        usable: dict[EngineName, None] = {item.engine: None for item in engines if item.usable}
        return json_reply(
            NodeIdentity(
                node_id=face.node_id,
                name=face.name,
                cluster_id=state.cluster_id,
                boot_id=face.boot_id,
                version=face.version,
                role=face.role,
                public_key=face.public_key,
                master=state.master,
                urls=self._deps.listeners.urls(),
                base_urls=self._deps.listeners.base_urls(),
                engines=tuple(usable),
            )
        )

    async def state(self, request: Request) -> Answer:
        """`GET /state`: at most 0.25 s old, and never older than the log."""
        del request
        deps = self._deps
        state, now = deps.state.state, deps.clock.monotonic_s()
        cached = self._cached_state
        if cached is not None and cached[0] is state and now - cached[1] < _STATE_CACHE_S:
            return cached[2]
        body = self._state_writer.write(
            state,
            deps.readings.readings,
            deps.health.node_health(),
            deps.cluster.look(),
            now=now,
            is_reachable=deps.is_reachable,
        )
        reply = Reply(body=body)
        self._cached_state = (state, now, reply)
        return reply

    # ---- Events ----

    async def events(self, request: Request) -> Answer:
        """`GET /events`: what is kept after a seq; with `follow=1` a stream that goes on."""
        last_seq = self._deps.state.state.seq
        is_following = request.query("follow") in {"1", "true"} and request.method == "GET"
        resumed = request.headers.get(b"last-event-id")
        after_seq = whole_number(request, "after_seq", last_seq if is_following else 0)
        if (
            is_following
            and resumed is not None
            and resumed.isdigit()
            and len(resumed) <= MAX_DIGITS
        ):
            after_seq = int(resumed)
        if is_following:
            if len(self._followers) >= _MAX_FOLLOWERS:
                raise RequestError(
                    "request.overloaded",
                    f"{_MAX_FOLLOWERS} clients follow the events already",
                    remediation="End some of them, or ask for pages: GET /events?after_seq=N.",
                    retry_after_s=5,
                )
            return StreamReply(
                run=lambda send: self._follow(request, send, after_seq), headers=SSE_HEADERS
            )
        limit = min(whole_number(request, "limit", _DEFAULT_EVENTS), _MAX_EVENTS)
        kept = self._deps.state.recent(after_seq, limit)
        document = EventsDocument(
            events=tuple(event_view(item) for item in kept),
            next_after_seq=kept[-1].seq if kept else max(after_seq, 0),
            last_seq=last_seq,
        )
        return json_reply(document, camel=True)

    async def _follow(self, request: Request, send: Send, after_seq: int) -> None:
        deps = self._deps
        events = EventStream(
            request.connection, clock=deps.clock, limits=deps.stream_limits, name="events"
        )
        events.put(b": events\n\n")
        for item in deps.state.recent(after_seq, _MAX_EVENTS):
            events.put(_event_frame(item))

        def on_event(item: SequencedEvent, state: ClusterState) -> None:
            del state
            events.put(_event_frame(item))

        def on_reset(state: ClusterState) -> None:
            events.put(_reset_frame(state))

        unsubscribe = deps.state.subscribe(on_event, on_reset)
        request.connection.on_lost(events.lose)
        self._followers.add(events)
        try:
            await events.run(send)
        finally:
            self._followers.discard(events)
            request.connection.on_lost(None)
            unsubscribe()

    # ---- Listeners ----

    async def open_api(self, request: Request) -> Answer:
        """`POST /v1/api/open`."""
        body = await read_body(request, OpenApiBody, is_optional=True)
        urls = await self._deps.listeners.open_api(body.host, persist=body.persist)
        base_urls = self._deps.listeners.base_urls()
        return json_reply(ListenersDocument(urls=urls, base_urls=base_urls))

    async def close_api(self, request: Request) -> Answer:
        """`POST /v1/api/close`."""
        del request
        return json_reply(ListenersDocument(urls=await self._deps.listeners.close_api()))


def _reset_frame(state: ClusterState) -> bytes:
    """Say that the state was replaced: the events up to this seq are not told one by one."""
    body = f'{{"term": {state.term}, "seq": {state.seq}}}'
    return f"id: {state.seq}\nevent: state_replaced\ndata: {body}\n\n".encode()


def _event_frame(item: SequencedEvent) -> bytes:
    body = event_view(item).model_dump_json(by_alias=True)
    return f"id: {item.seq}\nevent: {item.event.kind}\ndata: {body}\n\n".encode()
