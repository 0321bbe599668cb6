"""One session: an operator's program on one node, and through it on the whole cluster.

Frames come in one at a time and are handled at once; what goes out is not queued but asked for,
when there is credit and the socket takes it: of each subscription the next piece, in turns. So a
client that reads slowly holds a number for each topic, and nothing else.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never, final

from pydantic import ValidationError

from protocol.errors import ErrorBody, ProtocolError, RequestError, SessionError, SkulkError
from protocol.session import (
    HELLO_WITHIN_S,
    PING_S,
    SESSION_VERSION,
    Cancel,
    ClientFrame,
    ClientHello,
    Closing,
    Credit,
    Ended,
    Feed,
    NodeHello,
    OpenStream,
    Ping,
    Pong,
    ResumeStream,
    SessionRequest,
    Subscribe,
    Unsubscribe,
    read_client_frame,
)
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.http import Reply, Request
from skulkd.api.json_body import check_size
from skulkd.api.session_logs import LogReaders
from skulkd.api.session_ports import Door, Socket
from skulkd.api.session_requests import SessionRequests
from skulkd.api.session_subscriptions import SubscriptionParts, Subscriptions
from skulkd.api.session_topics import RowTopics
from skulkd.core.session_flow import SessionFlow

TICK_S: Final = 0.5
KEY_CHECK_S: Final = 4.0
"""Between two looks whether the key still counts; with the tick, less than the 5 s promised."""
CLIENT_SILENT_S: Final = 90.0
"""Without a frame of the client, which owes a `pong` a second at least. One whose machine lost its
power is never heard of again: TCP alone gives up after a quarter of an hour."""
_POLICY_VIOLATION: Final = 1008
_GOING_AWAY: Final = 1001
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParts:
    """What all sessions share."""

    deps: ApiDependencies
    door: Door
    topics: RowTopics
    log_readers: LogReaders
    on_opened: Callable[["Session"], None]
    on_over: Callable[["Session"], None]


@final
class Session:
    """Implements `SocketListener`; see the module.

    Args:
        opening: The request that it was opened by, which has passed all checks.
        parts: What all sessions share.
    """

    def __init__(self, opening: Request, parts: SessionParts) -> None:
        self._opening = opening
        self._who = opening.principal
        self._parts = parts
        self._deps = parts.deps
        self._socket: Socket | None = None
        self._flow: SessionFlow | None = None
        """None before the hello."""
        self._subscriptions = Subscriptions(
            SubscriptionParts(
                deps=parts.deps,
                topics=parts.topics,
                log_readers=parts.log_readers,
                read_logs=self._read_logs,
                on_change=self._pump_soon,
                on_end=self._end_subscription,
            )
        )
        self._requests = SessionRequests(
            opening, parts.door, parts.deps.tasks, on_change=self._pump_soon
        )
        self._is_over = False
        self._opened_s = self._sent_s = self._checked_s = self._heard_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._pumping: asyncio.Handle | None = None

    def attach(self, socket: Socket) -> None:
        """Take the socket, before it is opened."""
        self._socket = socket

    def close(self, error: SkulkError) -> None:
        """Say why the session ends, and end it. Idempotent."""
        if self._is_over:
            return
        code = _GOING_AWAY if error.code == "cluster.stopping" else _POLICY_VIOLATION
        self._say(Closing(error=error.body()).model_dump_json().encode())
        self._release()
        self._the_socket.close(code, error.code)

    # ---- SocketListener ----

    def on_opened(self) -> None:
        """Wait for the client's hello."""
        self._opened_s = self._sent_s = self._checked_s = self._heard_s = _now_s()
        self._parts.on_opened(self)
        self._timer = asyncio.get_running_loop().call_later(HELLO_WITHIN_S, self._tick)

    def on_message(self, data: bytes) -> None:
        """Handle one frame of the client."""
        if self._is_over:
            return
        self._heard_s = _now_s()
        try:
            self._take(data)
        except Exception:  # ruff: ignore[blind-except]  a bug ends this session alone, and says so
            self._fail()

    def _take(self, data: bytes) -> None:
        try:
            check_size(data)
            frame = read_client_frame(data)
        except (ValidationError, RequestError) as error:
            self.close(_bad_frame(_first_problem(error)))
            return
        if isinstance(frame, ClientHello):
            self._greet(frame)
        elif self._flow is None:
            self.close(_bad_frame(f"{frame.type} came before hello"))
        else:
            self._handle(frame, self._flow)
            if self._requests.is_flooded:
                self._give_up("this client asks on, and does not read that it is refused")

    def on_writable(self) -> None:
        """The socket takes more again."""
        self._pump_soon()

    def on_refused(self, error: ErrorBody) -> bytes | None:
        """The client broke the WebSocket's own protocol; gives what it is told."""
        if self._is_over:
            return None
        self._release()
        return Closing(error=error).model_dump_json().encode()

    def on_lost(self) -> None:
        """The socket is closed."""
        self._release()
        _log.info("a session of %s is over", self._who.name)
        self._parts.on_over(self)

    # ---- Frames of the client ----

    def _greet(self, hello: ClientHello) -> None:
        if self._flow is not None:
            self.close(_bad_frame("hello came twice"))
            return
        if SESSION_VERSION not in hello.versions:
            spoken = ", ".join(map(str, hello.versions)) or "none"
            self.close(
                SessionError(
                    "session.incompatible",
                    f"this node speaks version {SESSION_VERSION} of the session, the client "
                    f"{spoken}",
                    remediation="Run the same build on both ends.",
                )
            )
            return
        self._flow = SessionFlow(hello.credit_bytes)
        face, state = self._deps.face, self._deps.state.state
        _log.info("a session of %s begins: %.100r", self._who.name, hello.client)
        self._say(
            NodeHello(
                version=SESSION_VERSION,
                build=face.version,
                node_id=face.node_id,
                name=face.name,
                boot_id=face.boot_id,
                cluster_id=state.cluster_id,
                scope=self._who.scope,
                who=self._who.name,
                at_ms=self._deps.clock.wall_ms(),
            )
            .model_dump_json()
            .encode()
        )
        self._arm()

    def _handle(self, frame: ClientFrame, flow: SessionFlow) -> None:
        match frame:
            case Subscribe() | SessionRequest() | OpenStream() | ResumeStream():
                if self._requests.has(frame.id) or self._subscriptions.has(frame.id):
                    self.close(_bad_frame(f"the id {frame.id} is in use"))
                else:
                    self._begin(frame)
            case Unsubscribe():
                if self._subscriptions.drop(frame.id):
                    self._requests.answer(_encoded(Ended(id=frame.id)))
            case Cancel():
                self._requests.cancel(frame.id)
            case Credit():
                flow.taken(frame.bytes)
                self._look(flow)
                self._pump_soon()
            case Ping():
                self._say(_encoded(Pong(n=frame.n)))
            case Pong() | ClientHello():
                pass
            case _:
                assert_never(frame)

    def _begin(self, frame: Subscribe | SessionRequest | OpenStream | ResumeStream) -> None:
        if not isinstance(frame, Subscribe):
            self._requests.begin(frame)
            return
        try:
            self._parts.door.require(self._opening, "read")
            self._subscriptions.add(frame)
        except SkulkError as error:
            self._end_subscription(frame.id, error)

    # ---- Logs ----

    async def _read_logs(self, query: str) -> Reply:
        """Ask `GET /v1/logs` as a request of this session would."""
        wish = SessionRequest(id=1, method="GET", path="/v1/logs", query=query)
        return await self._parts.door.answer(self._opening, wish)

    # ---- What goes out ----

    @property
    def _the_socket(self) -> Socket:
        assert self._socket is not None  # ruff: ignore[assert]  attached before anything comes
        return self._socket

    def _say(self, message: bytes) -> None:
        """Send a frame that needs no credit: few and small ones, which the client waits for."""
        if self._flow is not None:
            self._flow.sent(len(message), is_small_talk=True)
        self._sent_s = _now_s()
        self._the_socket.send(message)

    def _end_subscription(self, frame_id: int, error: SkulkError) -> None:
        self._requests.answer(_encoded(Ended(id=frame_id, error=error.body())))

    def _pump_soon(self) -> None:
        if self._pumping is None and not self._is_over:
            self._pumping = asyncio.get_running_loop().call_soon(self._on_pump)

    def _on_pump(self) -> None:
        self._pumping = None
        if self._is_over or self._flow is None:
            return
        try:
            self._pump(self._flow)
        except Exception:  # ruff: ignore[blind-except]  a bug ends this session alone, and says so
            self._fail()

    def _fail(self) -> None:
        _log.exception("a session failed")
        self.close(SessionError("internal.bug", "this session failed; the node's log says how"))

    def _pump(self, flow: SessionFlow) -> None:
        """Send what there is, for as long as it is taken."""
        while flow.has_credit and self._the_socket.is_writable:
            frame = self._next_frame(flow)
            if frame is None:
                flow.idle()
                return
            flow.sent(len(frame))
            self._sent_s = _now_s()
            self._the_socket.send(frame)
        if self._requests.is_ready or self._subscriptions.is_ready:
            flow.blocked(_now_s())

    def _next_frame(self, flow: SessionFlow) -> bytes | None:
        with_streams = flow.feed != "summary"
        frame = self._requests.next_frame(with_streams=with_streams)
        return self._subscriptions.next_frame(flow.feed) if frame is None else frame

    # ---- Time ----

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        silent_s = _now_s() - self._sent_s
        delay_s = min(TICK_S, max(0.05, PING_S - silent_s))
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        """Look after silence, slowness and the key."""
        try:
            self._look_after()
        except Exception:  # ruff: ignore[blind-except]  a bug ends this session alone, and says so
            self._fail()

    def _look_after(self) -> None:
        now = _now_s()
        if self._flow is None:
            self.close(_bad_frame(f"no hello came within {HELLO_WITHIN_S:g} s"))
            return
        if now - self._checked_s >= KEY_CHECK_S:
            self._checked_s = now
            self._check_key()
        self._look(self._flow)
        if now - self._heard_s >= CLIENT_SILENT_S:
            self._give_up(f"nothing was heard of this client for {CLIENT_SILENT_S:g} s")
        if now - self._sent_s >= PING_S and not self._is_over:
            self._ping(self._flow, now)
        if not self._is_over:
            self._arm()

    def _ping(self, flow: SessionFlow, now: float) -> None:
        if flow.has_credit and self._the_socket.is_writable:
            ping = _encoded(Ping())
            flow.sent(len(ping))
            self._sent_s = now
            self._the_socket.send(ping)
        else:
            flow.blocked(now)

    def _check_key(self) -> None:
        if self._parts.door.identify(self._opening) != self._who:
            self.close(
                RequestError(
                    "request.unauthenticated",
                    "the key of this session was revoked, or is not needed or not enough any more",
                    remediation="Connect again, with a key that is valid.",
                )
            )

    def _look(self, flow: SessionFlow) -> None:
        before = flow.feed
        flow.look(_now_s(), is_writable=self._the_socket.is_writable)
        if flow.is_hopeless:
            self._give_up("nothing could be sent to this client for a minute")
        elif flow.feed != before:
            self._say(_encoded(Feed(state=flow.feed)))
            self._subscriptions.make_all_ready()
            self._requests.make_all_ready()
            self._pump_soon()

    def _give_up(self, why: str) -> None:
        self.close(
            SessionError(
                "session.slow_reader", why, remediation="Connect again, and read what comes."
            )
        )

    def _release(self) -> None:
        """Let go of everything. Streams go on for whoever resumes them."""
        if self._is_over:
            return
        self._is_over = True
        for handle in (self._timer, self._pumping):
            if handle is not None:
                handle.cancel()
        self._subscriptions.close()
        self._requests.close()


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _encoded(frame: Ended | Feed | Ping | Pong) -> bytes:
    return frame.model_dump_json().encode()


def _first_problem(error: ValidationError | RequestError) -> str:
    if isinstance(error, RequestError):
        return error.message
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part)[:50] for part in problem["loc"])
    return f"{place[:200]}: {problem['msg'][:200]}" if place else problem["msg"][:200]


def _bad_frame(why: str) -> ProtocolError:
    return ProtocolError(
        "protocol.bad_frame",
        f"the session ends: {why}",
        remediation="See docs/session-protocol.md; run the same build on both ends.",
    )
