"""One client connection: uvicorn's HTTP/1.1 protocol with the bounds it leaves to others.

Measured on uvicorn 0.54 with httptools 0.9 (docs/decisions/0006-http-server.md): a header block of
any size is taken, a client that sends nothing or half a request holds its connection for ever, as
does one that asks on and reads no answer, trailers become headers, one read of 256 KB may queue
6,000 requests, and a refused concurrency is answered in plain text. What uvicorn does enforce is
used as it is: it stops reading a body that nobody asks for at 64 KiB, and closes idle keep-alive
connections.

A timer is armed only while a client owes us bytes or takes none, so a request that arrives whole,
as nearly all do, costs none.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from typing import Final, Literal, cast, final
from urllib.parse import unquote

from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from protocol.clock import Clock
from protocol.errors import ErrorCode, RequestError
from skulkd.api.auth import is_loopback
from skulkd.api.dialects.chat_dialect import Dialect
from skulkd.api.errors import error_reply
from skulkd.api.http import CONNECTION, UpgradedProtocol
from skulkd.api.routes import dialect_of

_REASONS: Final = {
    400: b"Bad Request",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
    503: b"Service Unavailable",
}


_CONTINUE: Final = b"HTTP/1.1 100 "

_MAX_PIPELINED: Final = 16
"""Requests that wait for the one being served. Clients that pipeline at all send a handful."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What one connection, and all of them together, may take."""

    max_connections: int = 2048
    kept_for_loopback: int = 16
    """Of these, so that strangers who connect and wait cannot keep an operator out."""
    header_bytes: int = 32 * 1024
    header_s: float = 10.0
    body_s: float = 60.0
    linger_s: float = 5.0
    """For a client to read its refusal while it still sends the body that was refused."""
    stall_s: float = 60.0
    """How long a client may leave an answer untaken. A stream is cut earlier, and says why."""
    keep_alive_s: int = 30


@final
class SharedState(ServerState):
    """What all connections of the node share, and the second that their Date header shows."""

    def __init__(self) -> None:
        super().__init__()
        self.date_s = -1


@final
class _HeadWithBody:
    """A response's way out: its head is held back until the first of its body, and leaves with it.

    Both are written one right after the other: as two writes they cost a system call more, and wake
    the client twice.

    Args:
        transport: The connection's.
        on_out: Called with the first of the body; from then on the transport will do by itself.
    """

    __slots__ = ("_head", "_on_out", "_transport")

    def __init__(self, transport: asyncio.Transport, on_out: Callable[[], None]) -> None:
        self._transport = transport
        self._on_out = on_out
        self._head: bytes | None = None
        """None before it, empty once it is out."""

    def write(self, data: bytes) -> None:
        """Take the next bytes of the response."""
        if self._head:
            data, self._head = self._head + data, b""
            self._on_out()
        elif self._head is None and not data.startswith(_CONTINUE):
            self._head = data
            return
        self._transport.write(data)

    def is_closing(self) -> bool:
        """Whether the connection ends."""
        return self._transport.is_closing()

    def close(self) -> None:
        """End the connection after what has been written."""
        if self._head:
            self.write(b"")
        self._transport.close()


@final
class GuardedHttp(HttpToolsProtocol):
    """A connection whose headers, body and idleness are bounded.

    Args:
        config: uvicorn's, loaded.
        shared: What all connections share.
        limits: The bounds.
        clock: For the Date header.
        must_be_tls: It is not, and so whatever is asked is refused.
    """

    def __init__(
        self,
        config: Config,
        shared: SharedState,
        limits: ConnectionLimits,
        clock: Clock,
        *,
        must_be_tls: bool = False,
    ) -> None:
        super().__init__(config, shared, app_state={})
        self._shared = shared
        self._limits = limits
        self._clock = clock
        self._must_be_tls = must_be_tls
        self._stage: Literal["idle", "head", "body"] = "idle"
        self._head_bytes = 0
        self._is_refused = False
        self.url = b""
        self._has_body = False
        """Whether the last read held a piece of the body, and not trailers alone."""
        self._timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._answered: RequestResponseCycle | None = None
        """Whose response is under way; `cycle` is that of the request that has come last."""
        self._lost_callback: Callable[[], None] | None = None
        self._is_lost = False

    # ---- What handlers see (skulkd.api.http.Connection) ----

    @property
    def is_choked(self) -> bool:
        """The client reads more slowly than we write; sending waits for it."""
        return self.flow.write_paused

    def on_lost(self, callback: Callable[[], None] | None) -> None:
        """Call back once when the client goes, at once if it has gone; None takes that back."""
        if callback is not None and self._is_lost:
            callback()
            return
        self._lost_callback = callback

    def write(self, piece: bytes) -> None:
        """Send a piece of a stream that has begun and not ended, without waiting.

        What uvicorn's `send` does with a piece, without a coroutine and a dictionary for each.
        """
        cycle = self._answered
        if cycle is not None and cycle.chunked_encoding and not cycle.disconnected:
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def abort(self) -> None:
        """Drop the connection without sending what is still buffered."""
        self.transport.abort()

    def close_after_response(self) -> None:
        """Close once the present response has been sent."""
        if self._answered is not None:
            self._answered.keep_alive = False

    def upgrade(self, head: bytes, protocol: UpgradedProtocol) -> None:
        """Answer with `head`, and leave the transport to another protocol: HTTP ends here."""
        self.cycle.response_started = self.cycle.response_complete = True
        if self._is_lost or self.transport.is_closing():
            return
        self._disarm()
        self._disarm_stall()
        self._unset_keepalive_if_required()
        connections = cast("set[object]", self.connections)
        connections.discard(self)
        connections.add(protocol)
        protocol.client = self.client
        protocol.on_gone = lambda: connections.discard(protocol)
        self.transport.write(head)
        self.transport.set_protocol(cast("asyncio.Protocol", protocol))
        self.flow.resume_reading()
        protocol.connection_made(self.transport)

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, or refuse it where too many are open."""
        super().connection_made(transport)
        limit = self._limits.max_connections
        if self.client is None or not is_loopback(self.client[0]):
            limit -= self._limits.kept_for_loopback
        if len(self.connections) > limit:
            self._refuse(
                503,
                "request.overloaded",
                f"{limit} connections are open, no more are taken",
                retry_after_s=1,
                is_lingering=False,  # a descriptor each is what there are too few of
            )
            return
        self._arm(self._limits.header_s)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, and see that the rest is not owed for ever."""
        if self._is_refused:
            return
        if self._must_be_tls:
            self._refuse_plain()
            return
        self._has_body = False
        super().data_received(data)
        if self._is_refused or self.transport.is_closing():
            return
        if self._stage == "head" or (self._stage == "body" and not self._has_body):
            self._head_bytes += len(data)
        if self._head_bytes > self._limits.header_bytes:
            self._refuse_headers()
        elif self._timer is None and self._owes_bytes:
            self._arm(self._limits.body_s if self._stage == "body" else self._limits.header_s)

    def pause_writing(self) -> None:
        """The client does not take what it asked for; see that this ends."""
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self._limits.stall_s, self.abort)

    def resume_writing(self) -> None:
        """The client reads on."""
        super().resume_writing()
        self._disarm_stall()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever works for this client that nobody reads any more."""
        self._is_lost = True
        self._disarm()
        self._disarm_stall()
        super().connection_lost(exc)
        callback, self._lost_callback = self._lost_callback, None
        if callback is not None:
            callback()

    # ---- Parser callbacks ----

    def on_message_begin(self) -> None:
        """Start counting a request's headers."""
        super().on_message_begin()
        self._stage = "head"
        self._head_bytes = 0
        self.scope["extensions"] = {CONNECTION: self}  # type: ignore[typeddict-item]

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header. What follows a body is a trailer, and a stranger's second say on them."""
        if self._stage == "head":
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand the request on, unless its headers are too many."""
        if self._is_refused:
            return
        self._disarm()
        n_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if n_bytes > self._limits.header_bytes:
            self._refuse_headers()
            return
        if len(self.pipeline) >= _MAX_PIPELINED:
            self._refuse(400, "request.invalid", f"more than {_MAX_PIPELINED} requests wait")
            return
        self._stage = "body"
        self._head_bytes = 0
        self._stamp()
        super().on_headers_complete()
        cycle = self.cycle
        # A response without a body is all head, and an upgraded connection has no response.
        if cycle and cycle.transport is self.transport and self.scope["method"] != "HEAD":
            transport = self.transport

            def on_out() -> None:
                cycle.transport = transport

            cycle.transport = _HeadWithBody(transport, on_out)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body, or drop it where it has been refused."""
        self._has_body = True
        self._head_bytes = 0
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The client owes nothing more."""
        self._stage = "idle"
        self._disarm()
        if not self._is_refused:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Go on to the next request, or wait shortly for the rest of a refused body."""
        super().on_response_complete()
        if self._stage == "body":
            self._disarm()
            self._arm(self._limits.linger_s)

    def send_400_response(self, msg: str) -> None:  # ruff: ignore[unused-method-argument] - base
        """Answer what is not HTTP in the same form as every other error."""
        self._refuse(400, "request.invalid", "this is not a valid HTTP/1.1 request")

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also one whose client never took its last answer."""
        self._end()

    def _unsupported_upgrade_warning(self) -> None:
        """An upgrade that we do not know is ignored, as RFC 9110 has it; no reason to warn."""

    # ---- Bounds ----

    @property
    def _is_answered(self) -> bool:
        """Every request that was handed on has its whole response."""
        return not self.pipeline and (not self.cycle or self.cycle.response_complete)

    @property
    def _owes_bytes(self) -> bool:
        """The rest of a request is to come, or, after bytes that begin none, its first line."""
        return self._stage != "idle" or self._is_answered

    @property
    def _can_refuse(self) -> bool:
        """What we write now would be the response to the request that is arriving."""
        if self._stage == "body" and self.cycle:
            return not self.pipeline and not self.cycle.response_started
        return self._is_answered

    @property
    def _dialect(self) -> Dialect:
        """Whose form a refusal takes: that of the path, as far as one has come."""
        path = self.url.partition(b"?")[0]
        return dialect_of(unquote(path.decode("latin-1")), "inference")

    def _stamp(self) -> None:
        second = self._clock.wall_ms() // 1000
        if second != self._shared.date_s:
            self._shared.date_s = second
            date = formatdate(second, usegmt=True).encode()
            self._shared.default_headers = [(b"date", date)]

    def _arm(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._on_deadline)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _disarm_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _on_deadline(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._is_refused or (self._stage == "body" and self.cycle.response_started):
            self._end()
            return
        owed = "body" if self._stage == "body" else "headers"
        seconds = self._limits.body_s if owed == "body" else self._limits.header_s
        self._refuse(408, "request.timeout", f"the {owed} did not arrive within {seconds:g} s")

    def _end(self) -> None:
        # A close waits for what is buffered to be taken, and so for ever for one who takes nothing.
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()
        else:
            self.transport.close()

    def _refuse_headers(self) -> None:
        limit = self._limits.header_bytes
        self._refuse(431, "request.too_large", f"the headers are larger than {limit} bytes")

    def _refuse_plain(self) -> None:
        host, port = self.server or ("", None)
        shown = f"[{host}]" if ":" in host else host
        self._refuse(
            400,
            "request.tls_required",
            "this node speaks TLS beyond loopback, and this came over plain HTTP",
            remediation=f"Use https://{shown}:{port}; replace a key that you sent, if somebody may"
            " have listened.",
        )

    def _refuse(
        self,
        status: int,
        code: ErrorCode,
        message: str,
        *,
        remediation: str = "",
        retry_after_s: int | None = None,
        is_lingering: bool = True,
    ) -> None:
        self._is_refused = True
        self._disarm()
        if not self._can_refuse:
            # It would stand in the middle of the response to an earlier request.
            self.abort()
            return
        error = RequestError(code, message, remediation=remediation, retry_after_s=retry_after_s)
        reply = error_reply(error, dialect=self._dialect)
        head = [b"HTTP/1.1 %d %b\r\n" % (status, _REASONS[status])]
        head += [b"%b: %b\r\n" % header for header in reply.headers]
        head.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(reply.body))
        self.transport.write(b"".join(head) + reply.body)
        if self._stage == "body" and self.cycle:
            # Whoever has begun to handle the request is not to answer it a second time.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not is_lingering:
            self.transport.close()
            return
        # Closing over unread bytes would reset the connection and lose the answer with it.
        if self.transport.can_write_eof():  # TLS has no half of a connection
            self.transport.write_eof()
        self._arm(self._limits.linger_s)
