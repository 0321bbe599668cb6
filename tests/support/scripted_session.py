"""A node that speaks `/v1/session` as a test wants it to: on a real socket, in a thread of its own.

    with ScriptedSession() as node:
        node.rows("cluster", {"cluster": ..., "node/...": ...})
        node.answer("GET", "/v1/cluster", document)
        ...            # attach to node.url
        node.stall()   # says nothing any more, the socket stays open
        node.go_on()
        node.close()   # gone, as if killed
        node.reopen()  # back, at the same address

All methods may be called from the test's thread at any time, and return when what they do is done.
"""

import asyncio
import http
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, Self, TypeVar, cast, final

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from protocol.base import FrozenModel
from protocol.errors import ErrorBody, ErrorCode
from protocol.session import (
    CLIENT_FRAME_MAX_BYTES,
    PING_S,
    SESSION_PATH,
    SESSION_VERSION,
    Cancel,
    ClientFrame,
    ClientHello,
    Closing,
    Credit,
    Ended,
    Feed,
    FeedState,
    Lines,
    LineTopic,
    NodeHello,
    OpenStream,
    Ping,
    Pong,
    ResumeStream,
    Rows,
    RowTopic,
    SessionAnswer,
    SessionRequest,
    Subscribe,
    Topic,
    Unsubscribe,
    read_client_frame,
)
from protocol.state import Scope
from tests.support.builders import NOW_MS, a_cluster_id, a_node_id
from tests.support.scripted_chats import ScriptedChats, ScriptedClient
from tests.support.session_answers import (
    Answerer,
    Json,
    Scripted,
    plain,
    refusal,
)

T = TypeVar("T")
WAIT_S: Final = 10.0
"""The longest that anything here waits for."""
_ROW_TOPICS: Final = frozenset({"cluster", "placements", "transfers", "models", "health"})


@final
class ScriptedSession:
    """The node; a context manager.

    `seen` holds every frame of clients, in order; `requests` the requests among them.
    """

    def __init__(
        self, *, name: str = "den-01", number: int = 1, api_key: str | None = None
    ) -> None:
        self.seen: list[ClientFrame] = []
        self.headers: list[Mapping[str, str]] = []
        """Of each upgrade, the refused ones too."""
        self.api_key = api_key
        self.scope: Scope = "admin"
        self.version = SESSION_VERSION
        self.name = name
        self.node_id = a_node_id(number)
        self.boot = 1
        self.upgrade_refusal: Scripted | None = None
        """Answered to every upgrade instead."""
        self.n_sessions = 0
        """How many there have been."""
        self.port = 0
        self._rows: dict[str, dict[str, Any]] = {topic: {} for topic in _ROW_TOPICS}
        self._lines: dict[str, list[dict[str, Any]]] = {}
        self._line_gaps: dict[str, str] = {}
        self._answers: dict[tuple[str, str], list[Scripted | Answerer]] = {}
        self._chats = ScriptedChats(self._send)
        self._withheld: set[str] = set()
        self._clients: list[ScriptedClient] = []
        self._is_stalled = False
        self._n = 0
        self._n_commands = 0
        self._loop = asyncio.new_event_loop()
        self._server: Server | None = None
        self._thread = threading.Thread(target=self._run, name="scripted session")

    # ---- Where it is ----

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def boot_id(self) -> str:
        """Changes with `reboot`."""
        return f"boot-{self.boot}"

    @property
    def requests(self) -> list[SessionRequest]:
        """What was asked, in order."""
        return [frame for frame in self.seen if isinstance(frame, SessionRequest)]

    def asked(self, method: str, path: str) -> list[SessionRequest]:
        """List the requests of one route."""
        return [one for one in self.requests if (one.method, one.path) == (method, path)]

    @property
    def n_open(self) -> int:
        """How many sessions are open now."""
        return self._call(self._count)

    def subscribed(self, topic: Topic) -> list[Subscribe]:
        """List who follows a topic now."""
        return self._call(self._followers, topic)

    def wait_for(self, is_so: Callable[[], object]) -> None:
        """Wait until something holds; fails after ten seconds."""
        ends_at = time.monotonic() + WAIT_S
        while not is_so():
            assert time.monotonic() < ends_at, "it did not come to be"
            time.sleep(0.005)

    # ---- What it tells ----

    def rows(self, topic: RowTopic, rows: Mapping[str, object]) -> None:
        """Add and change rows; None removes one. Who follows the topic is told the difference."""
        self._call(self._change_rows, topic, {key: plain(row) for key, row in rows.items()})

    def snapshot(self, topic: RowTopic, rows: Mapping[str, object]) -> None:
        """Replace all rows of a topic; who follows it gets a new snapshot."""
        self._call(self._replace_rows, topic, {key: plain(row) for key, row in rows.items()})

    def lines(self, topic: LineTopic, items: Iterable[object], *, gap: str = "") -> None:
        """Append items to a line topic, after a gap if one is told."""
        self._call(self._append_lines, topic, [plain(item) for item in items], gap)

    def withhold(self, *topics: Topic) -> None:
        """Do not answer a subscription to these, so that a client stays in SYNC."""
        self._call(self._withheld.update, topics)

    def release(self) -> None:
        """Answer the withheld subscriptions."""
        self._call(self._release)

    def feed(self, state: FeedState) -> None:
        """Say how much is sent from now on."""
        self._broadcast(Feed(state=state))

    def end_topic(self, topic: Topic, code: ErrorCode | None = None, message: str = "") -> None:
        """End every subscription to a topic."""
        error = None if code is None else ErrorBody(code=code, message=message)
        self._call(self._end_topic, topic, error)

    # ---- What it answers ----

    def answer(self, method: str, path: str, *answers: object) -> None:
        """Choose what a route answers, one after the other; the last is repeated.

        An answer is a document, plain JSON values, a `Scripted`, or a function of the request.
        """
        self._answers[method, path] = [
            cast("Answerer", one)
            if callable(one)
            else one
            if isinstance(one, Scripted)
            else Scripted(body=plain(one))
            for one in answers
        ]

    def refuse(self, method: str, path: str, code: ErrorCode, **how: Json) -> None:
        """Let a route answer with an error; arguments as for `refusal`."""
        self.answer(method, path, refusal(code, **how))

    def chat(self, *texts: str, hold_after: int | None = None, error: object = None) -> None:
        """Choose what the next chat answers; the last is repeated.

        Args:
            texts: One chunk each.
            hold_after: Send only so many events until `let_chats_go`.
            error: The `error` of an error document, in place of a good end.
        """
        self._chats.choose(texts, hold_after, error)

    def let_chats_go(self, n_events: int = 1 << 30) -> None:
        """Send further events of the chats that are held."""
        self._call(self._chats.let_go, self._clients, n_events)

    def forget_chats(self) -> None:
        """Let every later `resume` be refused."""
        self._call(self._chats.forget)

    def chat_events(self, *events: dict[str, Any]) -> None:
        """Choose the chunks of a chat, as they are sent, before its good end."""
        self._chats.choose_events(list(events))

    def refuse_chats(
        self, code: ErrorCode, message: str = "it cannot be done", **documents: object
    ) -> None:
        """Refuse every chat from now on; documents stand beside the error's words."""
        self._chats.refuse(code, message, documents)

    def accept_chats(self) -> None:
        """Refuse none any more."""
        self._chats.accept()

    # ---- How it fails ----

    def stall(self) -> None:
        """Say nothing any more, not even pings, and read nothing; sockets stay open."""
        self._is_stalled = True

    def go_on(self) -> None:
        """Talk again; what changed meanwhile is sent, each row once."""
        self._is_stalled = False
        self._call(self._snapshot_all)

    def drop(self) -> None:
        """Break every connection; new ones are taken."""
        self._call(self._abort)

    def close(self) -> None:
        """Be gone, as if killed: the port is closed too."""
        self._wait(self._stop_listening())

    def reopen(self, *, is_reboot: bool = False) -> None:
        """Be back at the same address; after a reboot no cursor and no chat is known."""
        if is_reboot:
            self.reboot()
        self._wait(self._listen())

    def reboot(self) -> None:
        """Be another boot from the next session on."""
        self.boot += 1
        self.forget_chats()

    def end_sessions(self, code: ErrorCode, message: str = "", remediation: str = "") -> None:
        """Send `closing` to all and close."""
        error = ErrorBody(code=code, message=message or code, remediation=remediation)
        self._broadcast(Closing(error=error))
        self._call(self._close_softly)

    def send_raw(self, message: str | bytes) -> None:
        """Send any message, to all."""
        self._call(self._send_raw, message)

    def break_off(self, n_missing: int = 40) -> None:
        """Send the head of a message and a part of it; what is sent next is taken for its rest."""
        part = b'{"type":"rows"'
        head = bytes((0x81, len(part) + n_missing))  # text, in one frame, not masked: RFC 6455, 5.2
        self._call(self._write_bytes, head + part)

    # ---- Its thread ----

    def __enter__(self) -> Self:
        self._thread.start()
        self._wait(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self._stop_listening())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _wait(self, coro: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result(WAIT_S)

    def _call(self, call: Callable[..., T], *arguments: object) -> T:
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(call(*arguments))
            except Exception as wrong:  # ruff: ignore[blind-except]  handed to the test's thread
                done.set_exception(wrong)

        self._loop.call_soon_threadsafe(run)
        return done.result(WAIT_S)

    async def _listen(self) -> None:
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            self.port,
            process_request=self._admit,
            compression=None,
            ping_interval=None,
            close_timeout=0.2,
            max_size=CLIENT_FRAME_MAX_BYTES,
            reuse_address=True,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close(close_connections=False)
            self._abort()
            await self._server.wait_closed()
            self._server = None

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        headers = {name.lower(): value for name, value in request.headers.raw_items()}
        self.headers.append(headers)
        scripted = self.upgrade_refusal
        if scripted is None and request.path != SESSION_PATH:
            scripted = refusal("request.not_found", "there is no such route", status=404)
        if self.api_key is not None and headers.get("authorization") != f"Bearer {self.api_key}":
            scripted = refusal("request.unauthenticated", "the key is not known", status=401)
        if scripted is None:
            return None
        response = connection.respond(http.HTTPStatus(scripted.status), json.dumps(scripted.body))
        del response.headers["content-type"]
        response.headers["content-type"] = "application/json"
        return response

    # ---- A session ----

    async def _serve(self, connection: ServerConnection) -> None:
        client = ScriptedClient(connection=connection)
        pinging = self._loop.create_task(self._ping(client))
        try:
            async for text in connection:
                while self._is_stalled:
                    await asyncio.sleep(0.01)
                self._take(client, read_client_frame(text))
        except ConnectionClosed:
            pass
        finally:
            if client in self._clients:
                self._clients.remove(client)
            ending = [pinging, *client.asked.values()]
            for task in ending:
                task.cancel()
            await asyncio.wait(ending)

    async def _ping(self, client: ScriptedClient) -> None:
        while True:
            await asyncio.sleep(PING_S)
            if client in self._clients:
                self._send(client, Ping(n=self._next()))

    def _take(self, client: ScriptedClient, frame: ClientFrame) -> None:
        self.seen.append(frame)
        match frame:
            case ClientHello():
                self._greet(client, frame)
            case Subscribe():
                client.topics[frame.id] = frame
                if frame.topic not in self._withheld:
                    self._send_first(client, frame)
            case Unsubscribe():
                client.topics.pop(frame.id, None)
                self._send(client, Ended(id=frame.id))
            case SessionRequest():
                client.asked[frame.id] = self._loop.create_task(self._answer(client, frame))
            case Cancel():
                self._cancel(client, frame.id)
            case Credit():
                client.credit += frame.bytes
            case Ping():
                self._send(client, Pong(n=frame.n))
            case _:
                self._take_chat(client, frame)

    def _take_chat(self, client: ScriptedClient, frame: OpenStream | ResumeStream | Pong) -> None:
        match frame:
            case OpenStream():
                self._chats.open(client, frame)
            case ResumeStream():
                self._chats.resume(client, frame)
            case Pong():
                pass

    def _greet(self, client: ScriptedClient, hello: ClientHello) -> None:
        client.hello = hello
        client.credit = hello.credit_bytes
        self._clients.append(client)
        self.n_sessions += 1
        self._send(
            client,
            NodeHello(
                version=self.version,
                build="0.1.0",
                node_id=self.node_id,
                name=self.name,
                boot_id=self.boot_id,
                cluster_id=a_cluster_id(),
                scope=self.scope,
                who="loopback",
                at_ms=NOW_MS,
            ),
        )

    def _send(self, client: ScriptedClient, frame: FrozenModel) -> None:
        if not self._is_stalled:
            self._write(client, frame.model_dump_json())

    def _write(self, client: ScriptedClient, message: str | bytes) -> None:
        """Send at once: a script's frames fit into the socket's buffer, or wait in asyncio's."""
        connection = client.connection
        try:
            if isinstance(message, str):
                connection.protocol.send_text(message.encode())
            else:
                connection.protocol.send_binary(message)
        except ConnectionClosed:
            return
        for data in connection.protocol.data_to_send():
            connection.transport.write(data)
        client.credit -= len(message)

    def _send_raw(self, message: str | bytes) -> None:
        for client in tuple(self._clients):
            self._write(client, message)

    def _write_bytes(self, data: bytes) -> None:
        for client in self._clients:
            client.connection.transport.write(data)

    def _broadcast(self, frame: FrozenModel) -> None:
        self._call(self._send_raw, frame.model_dump_json())

    def _abort(self) -> None:
        for client in tuple(self._clients):
            client.connection.transport.abort()
        self._clients.clear()

    def _close_softly(self) -> None:
        for client in tuple(self._clients):
            client.connection.transport.close()

    def _count(self) -> int:
        return len(self._clients)

    def _next(self) -> int:
        self._n += 1
        return self._n

    # ---- Topics ----

    def _followers(self, topic: str) -> list[Subscribe]:
        return [
            frame
            for client in self._clients
            for frame in client.topics.values()
            if frame.topic == topic
        ]

    def _each(self, topic: str) -> list[tuple[ScriptedClient, Subscribe]]:
        return [
            (client, frame)
            for client in self._clients
            for frame in client.topics.values()
            if frame.topic == topic and topic not in self._withheld
        ]

    def _cursor(self) -> str:
        return f"{self.boot_id}/{self._n}"

    def _send_first(self, client: ScriptedClient, frame: Subscribe) -> None:
        if frame.topic in _ROW_TOPICS:
            is_here = frame.cursor == self._cursor()
            rows = {} if is_here else self._rows[frame.topic]
            self._send(
                client,
                Rows(
                    id=frame.id,
                    cursor=self._cursor(),
                    is_snapshot=not is_here,
                    rows=rows,
                    at_ms=NOW_MS,
                ),
            )
            return
        kept = self._lines.get(frame.topic, [])
        after = len(kept) - frame.backlog if frame.cursor is None else int(frame.cursor)
        gap = self._line_gaps.pop(frame.topic, "") if frame.cursor is not None else ""
        items = tuple(kept[max(0, after) :])
        cursor = str(len(kept))
        self._send(
            client,
            Lines(
                id=frame.id,
                cursor=cursor,
                items=items,
                was_cut=bool(gap),
                gap=gap,
                at_ms=NOW_MS,
            ),
        )

    def _change_rows(self, topic: str, rows: dict[str, Any]) -> None:
        self._next()
        known = self._rows[topic]
        known.update(rows)
        for key in [key for key, row in rows.items() if row is None]:
            del known[key]
        for client, frame in self._each(topic):
            told = Rows(id=frame.id, cursor=self._cursor(), rows=rows, at_ms=NOW_MS)
            self._send(client, told)

    def _replace_rows(self, topic: str, rows: dict[str, Any]) -> None:
        self._next()
        self._rows[topic] = rows
        for client, frame in self._each(topic):
            self._send_first(client, frame.model_copy(update={"cursor": None}))

    def _append_lines(self, topic: str, items: list[dict[str, Any]], gap: str) -> None:
        kept = self._lines.setdefault(topic, [])
        kept += items
        followers = self._each(topic)
        if gap and not followers:
            self._line_gaps[topic] = gap
        for client, frame in followers:
            told = Lines(
                id=frame.id,
                cursor=str(len(kept)),
                items=tuple(items),
                was_cut=bool(gap),
                gap=gap,
                at_ms=NOW_MS,
            )
            self._send(client, told)

    def _snapshot_all(self) -> None:
        for client in self._clients:
            for frame in client.topics.values():
                if frame.topic in _ROW_TOPICS and frame.topic not in self._withheld:
                    self._send_first(client, frame.model_copy(update={"cursor": None}))

    def _release(self) -> None:
        withheld, self._withheld = self._withheld, set()
        for client in self._clients:
            for frame in client.topics.values():
                if frame.topic in withheld:
                    self._send_first(client, frame)

    def _end_topic(self, topic: str, error: ErrorBody | None) -> None:
        for client, frame in self._each(topic):
            del client.topics[frame.id]
            self._send(client, Ended(id=frame.id, error=error))

    # ---- Requests ----

    async def _answer(self, client: ScriptedClient, request: SessionRequest) -> None:
        scripted = self._choose(request)
        if scripted.is_silent:
            await asyncio.Event().wait()
        if scripted.after_s:
            await asyncio.sleep(scripted.after_s)
        client.asked.pop(request.id, None)
        body = scripted.body
        self._send(client, SessionAnswer(id=request.id, status=scripted.status, body=body))

    def _choose(self, request: SessionRequest) -> Scripted:
        left = self._answers.get((request.method, request.path))
        if not left:
            return refusal("request.not_found", f"no {request.path} here", status=404)
        chosen = left.pop(0) if len(left) > 1 else left[0]
        return chosen if isinstance(chosen, Scripted) else chosen(request)

    def _cancel(self, client: ScriptedClient, asked_id: int) -> None:
        task = client.asked.pop(asked_id, None)
        if task is not None:
            task.cancel()
            body = refusal("request.cancelled", "given up").body
            self._send(client, SessionAnswer(id=asked_id, status=499, body=body))
        self._chats.cancel(client, asked_id)
