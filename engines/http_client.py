"""A lean HTTP/1.1 client for engines on this machine, over a Unix socket or a loopback port.

It lies in the path of every token, so it trades generality for cost: one `asyncio.Protocol` per
connection, no task and no timer per read, parsing in C (httptools), pieces handed over as they
arrive. It knows no redirects, no TLS, no cookies and no bodies that end by closing: an engine
frames its bodies. docs/decisions/0002-http-client-token-path.md holds the numbers.

What an engine sends is bounded: the head in size, the unread body by pausing the socket, a whole
body by the caller's limit.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, cast, final

import httptools

from engines.base import Endpoint
from protocol.errors import EngineError

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_UNREAD_BYTES: Final = 256 * 1024
"""Above this the socket is no longer read until the consumer has caught up."""
MAX_IDLE_CONNECTIONS: Final = 64
"""As many as the most slots that a test machine was given, four times over."""

_FIRST_FINAL_STATUS: Final = 200
_State = Literal["idle", "head", "body", "complete", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTimeouts:
    """How long an engine may be silent, in seconds."""

    connect_s: float = 5.0
    quiet_s: float = 600.0
    """Between two arrivals while somebody waits; noticed after one to two times this long."""


@final
class HttpResponse:
    """A response whose head has arrived and whose body is read piece by piece."""

    __slots__ = ("_connection", "status")

    def __init__(self, connection: "_Connection", status: int) -> None:
        self._connection: _Connection | None = connection
        self.status = status

    async def next_piece(self) -> bytes:
        """Wait for more of the body; everything that has arrived comes at once, b"" at the end.

        Raises:
            EngineError: `engine.gone` when the connection ends or stays quiet too long;
                `engine.request_failed` when what arrives is not HTTP.
        """
        if self._connection is None:
            return b""
        return await self._connection.next_piece()

    async def deliver(self, receiver: Callable[[bytes], bool]) -> None:
        """Hand over the body as it arrives, in the read that brings it, until that is enough.

        Args:
            receiver: Gets every piece, b"" at the end; says False when it wants no more of them.
                What it raises comes out of here.

        Raises:
            EngineError: As `next_piece`.
        """
        if self._connection is None:
            receiver(b"")
        else:
            await self._connection.deliver(receiver)

    async def read_all(self, max_bytes: int) -> bytes:
        """Read the rest of the body.

        Raises:
            EngineError: As `next_piece`, and `engine.request_failed` beyond `max_bytes`.
        """
        pieces: list[bytes] = []
        n_bytes = 0
        while piece := await self.next_piece():
            n_bytes += len(piece)
            if n_bytes > max_bytes:
                self.close()
                raise EngineError(
                    "engine.request_failed",
                    f"the engine's answer is larger than {max_bytes} bytes",
                    details={"max_bytes": max_bytes},
                )
            pieces.append(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Let go of the response: keep the connection if the body is over, cut it if not.

        Idempotent. A cut tells the engine that nobody listens any more, and its slot is freed.
        """
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()

    def finish(self) -> None:
        """Let go of a response whose last meaningful byte was read.

        The end of the body may still be on its way; the connection is kept once it has arrived.
        """
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release_at_end()


@final
class HttpClient:
    """A pool of connections to one engine."""

    def __init__(self, endpoint: Endpoint, timeouts: HttpTimeouts | None = None) -> None:
        self._endpoint = endpoint
        self.timeouts = timeouts or HttpTimeouts()
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._closed = False
        credentials = f"Authorization: Bearer {endpoint.api_key}\r\n" if endpoint.api_key else ""
        self._head_rest = (
            f" HTTP/1.1\r\nHost: localhost\r\n{credentials}Content-Type: application/json\r\n"
            "Content-Length: "
        ).encode()

    async def request(
        self,
        method: Literal["GET", "POST"],
        path: str,
        body: bytes = b"",
        *,
        quiet_s: float | None = None,
    ) -> HttpResponse:
        """Send one request and wait for the head of its response.

        An engine may close an idle connection just as the request is written. Such a request is
        sent once more on a new connection, if not a byte of an answer had arrived.

        Args:
            method: Of the request.
            path: Absolute, already encoded.
            body: JSON, or nothing.
            quiet_s: Instead of the client's own limit on silence.

        Raises:
            EngineError: `engine.gone` when there is no connection, or it ends or stays quiet too
                long; `engine.request_failed` when what arrives is not HTTP.
        """
        message = b"".join(
            (
                f"{method} {path}".encode(),
                self._head_rest,
                str(len(body)).encode(),
                b"\r\n\r\n",
                body,
            )
        )
        quiet_s = quiet_s or self.timeouts.quiet_s
        if self._idle:
            connection = self._idle.pop()
            try:
                return HttpResponse(connection, await connection.exchange(message, quiet_s))
            except EngineError:
                if not connection.was_stale or self._closed:
                    raise
        connection = await self._connect()
        return HttpResponse(connection, await connection.exchange(message, quiet_s))

    async def close(self) -> None:
        """Cut every connection; whoever waits on one gets `engine.gone`. Idempotent."""
        self._closed = True
        for connection in tuple(self._open):
            connection.cut("this client was closed")

    async def _connect(self) -> "_Connection":
        if self._closed:
            raise _gone("this client was closed")
        loop = asyncio.get_running_loop()
        endpoint = self._endpoint
        try:
            async with asyncio.timeout(self.timeouts.connect_s):
                if endpoint.socket_path is not None:
                    _, connection = await loop.create_unix_connection(
                        lambda: _Connection(self, loop), str(endpoint.socket_path)
                    )
                else:
                    _, connection = await loop.create_connection(
                        lambda: _Connection(self, loop), "127.0.0.1", endpoint.port or 0
                    )
        except (OSError, TimeoutError) as error:
            where = endpoint.socket_path or f"127.0.0.1:{endpoint.port}"
            reason = f"no connection to the engine at {where}: {error}"
            raise _gone(reason) from error
        return connection

    # What a connection tells its pool.

    def on_open(self, connection: "_Connection") -> None:
        """Remember a connection."""
        self._open.add(connection)

    def on_lost(self, connection: "_Connection") -> None:
        """Forget a connection."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def try_keep(self, connection: "_Connection") -> bool:
        """Take a connection back for the next request, unless there are enough."""
        if self._closed or len(self._idle) >= MAX_IDLE_CONNECTIONS:
            return False
        self._idle.append(connection)
        return True


@final
class _Connection(asyncio.Protocol):
    """One connection and the exchange under way on it."""

    def __init__(self, pool: HttpClient, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._state: _State = "idle"
        self._failure: EngineError | None = None
        self._pieces: deque[bytes] = deque()
        self._unread_bytes = 0
        self._head_bytes = 0
        self._is_paused = False
        self._keep_alive = False
        self._release_at_end = False
        self._waiter: asyncio.Future[None] | None = None
        self._receiver: Callable[[bytes], bool] | None = None
        """Who gets the body as it arrives, while somebody waits for the end of that."""
        self._n_arrivals = 0
        self._n_exchanges = 0
        self._quiet_timer: asyncio.TimerHandle | None = None
        self.was_stale = False
        """The connection ended under a request before any byte came, after it had served one."""

    # The exchange.

    async def exchange(self, message: bytes, quiet_s: float) -> int:
        """Write a request and wait for the status of its response."""
        if self._transport is None or self._transport.is_closing():
            self.was_stale = self._n_exchanges > 0
            raise self._failure or _gone("the engine closed the connection")
        self._state = "head"
        self._head_bytes = 0
        self._n_exchanges += 1
        self._transport.write(message)
        self._watch_quiet(quiet_s, seen=self._n_arrivals)
        try:
            while self._state == "head":
                await self._wait()
        except BaseException:
            self.cut("the request was abandoned")
            raise
        if self._failure is not None:
            self._stop_watching()
            raise self._failure
        return self._parser.get_status_code()

    async def next_piece(self) -> bytes:
        """Wait for bytes of the body; b"" at its end."""
        while not self._pieces:
            if self._state == "complete":
                return b""
            if self._failure is not None:
                raise self._failure
            await self._wait()
        return self._unread()

    async def deliver(self, receiver: Callable[[bytes], bool]) -> None:
        """Hand over bytes of the body until the receiver has enough; b"" at its end."""
        while True:
            if self._pieces:
                if not receiver(self._unread()):
                    return
            elif self._state == "complete":
                receiver(b"")
                return
            elif self._failure is not None:
                raise self._failure
            else:
                self._receiver = receiver
                try:
                    await self._wait()
                    if self._receiver is None:
                        return
                finally:
                    self._receiver = None

    def _unread(self) -> bytes:
        piece = self._pieces.popleft() if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._unread_bytes = 0
        self._resume()
        return piece

    def release(self) -> None:
        """End the exchange: back to the pool if it is complete, cut if not."""
        if self._state == "complete":
            self._back_to_pool()
        else:
            self.cut("the request was abandoned")

    def release_at_end(self) -> None:
        """End the exchange once the rest of the body has arrived."""
        self._pieces.clear()
        self._unread_bytes = 0
        if self._state == "body":
            self._release_at_end = True
            self._resume()
        else:
            self.release()

    def cut(self, reason: str) -> None:
        """Close at once."""
        if self._failure is None:
            self._failure = _gone(reason)
        self._state = "lost"
        self._stop_watching()
        self._wake()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def _resume(self) -> None:
        if self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    def _back_to_pool(self) -> None:
        self._stop_watching()
        self._state = "idle"
        self._release_at_end = False
        self._pieces.clear()
        self._unread_bytes = 0
        kept = self._keep_alive and self._pool.try_keep(self)
        if not kept and self._transport is not None:
            self._transport.close()

    async def _wait(self) -> None:
        waiter = self._loop.create_future()
        self._waiter = waiter
        try:
            await waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _watch_quiet(self, quiet_s: float, *, seen: int) -> None:
        # One timer an exchange that looks at a counter costs nothing per arrival. A consumer that
        # does not wait makes the socket quiet itself, and is no reason to give up.
        self._quiet_timer = self._loop.call_later(quiet_s, self._on_quiet, quiet_s, seen)

    def _on_quiet(self, quiet_s: float, seen: int) -> None:
        if self._n_arrivals == seen and (self._waiter is not None or self._release_at_end):
            self.cut(f"the engine sent nothing for {quiet_s:g} s")
        else:
            self._watch_quiet(quiet_s, seen=self._n_arrivals)

    def _stop_watching(self) -> None:
        if self._quiet_timer is not None:
            self._quiet_timer.cancel()
            self._quiet_timer = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._pool.on_open(self)

    def data_received(self, data: bytes) -> None:
        self._n_arrivals += 1
        if self._state == "idle":
            self.cut("the engine sent bytes that nobody asked for")
            return
        if self._state == "head":
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._failure = EngineError(
                "engine.request_failed", f"the engine's answer is not HTTP: {error}"
            )
            self.cut("")
            return
        if self._state == "head" and self._head_bytes > MAX_HEAD_BYTES:
            self._failure = EngineError(
                "engine.request_failed",
                f"the head of the engine's answer is larger than {MAX_HEAD_BYTES} bytes",
            )
            self.cut("")
            return
        if self._receiver is None or self._state != "body":
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.on_lost(self)
        self._transport = None
        if self._state == "head" and self._head_bytes == 0 and self._n_exchanges > 1:
            self.was_stale = True
        if self._state != "complete":
            self._state = "lost"
            if self._failure is None:
                self._failure = _gone(f"the engine closed the connection{_because(exc)}")
        self._keep_alive = False
        self._stop_watching()
        self._wake()

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self._state != "head":
            msg = "a second response to one request"
            raise ValueError(msg)

    def on_headers_complete(self) -> None:
        if self._parser.get_status_code() >= _FIRST_FINAL_STATUS:
            self._state = "body"
            self._keep_alive = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        if self._release_at_end:
            return
        # Once whoever waits has been woken, what comes is for when it has run.
        waiter = self._waiter
        receiver = self._receiver
        if receiver is not None and waiter is not None and not waiter.done():
            try:
                if not receiver(body):
                    self._receiver = None
            # ruff: ignore[blind-except]  it is raised where somebody waits, not into the parser
            except Exception as error:
                waiter.set_exception(error)
            return
        self._pieces.append(body)
        self._unread_bytes += len(body)
        if self._unread_bytes > MAX_UNREAD_BYTES and not self._is_paused and self._transport:
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._state != "body":
            return
        self._state = "complete"
        if self._release_at_end:
            self._back_to_pool()


def _gone(message: str) -> EngineError:
    return EngineError(
        "engine.gone",
        message,
        remediation="the instance's log says why the engine ended; ask again once it is ready",
    )


def _because(exc: Exception | None) -> str:
    return f": {exc}" if exc is not None else ""
