"""A stream of events to one client, server-sent ones or lines: coalesced, kept alive, bounded.

What the producer puts in one turn of the loop is written at its end, so a burst costs one system
call, and an event costs neither a task's turn nor a future. Only a reader that is slow is waited
for. One timer a stream looks after silence and after a reader that does not read.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from protocol.clock import Clock
from skulkd.api.dialects.framing import SSE, Framing, sse_keep_alive
from skulkd.api.http import Connection, Header, Message, Send

_log = logging.getLogger(__name__)

_NOTHING: Final[Message] = {"type": "http.response.body", "body": b"", "more_body": True}
_BURST: Final = 8


def stream_headers(framing: Framing) -> tuple[Header, ...]:
    """Give the headers of a stream that nothing on the way may hold back."""
    return (
        (b"content-type", framing.content_type),
        (b"cache-control", b"no-cache, no-transform"),
        (b"x-accel-buffering", b"no"),
    )


SSE_HEADERS: Final = stream_headers(SSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """What one reader may cost."""

    keep_alive_s: float = 10.0
    """Silence after which it is filled; with the check interval, at most 15 s."""
    hold_s: float = 0.5
    """How long the status of a stream may wait for its engine, in dialects that go by it: enough
    to count a prompt, and short for one that is queued."""
    stall_s: float = 30.0
    """How long a send may wait for the reader."""
    buffer_bytes: int = 1 << 20
    """How much may gather for a reader that has stopped."""
    check_s: float = 4.0


@final
class TurnWrites:
    """Has streams write at the end of a turn of the loop: one call for all that have something."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due: list[EventStream] = []

    def add(self, stream: "EventStream") -> None:
        """Call `write_due` of a stream at the end of this turn."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._write)
        self._due.append(stream)

    def _write(self) -> None:
        due, self._due = self._due, []
        for stream in due:
            try:
                stream.write_due()
            # ruff: ignore[blind-except]  one stream's bug must not hold up the others
            except Exception:
                _log.exception("a stream was not written")


@final
class EventStream:
    """The way from one producer to one client.

    Args:
        connection: Cut when the reader stalls.
        clock: Measures silence and stalls.
        limits: The bounds.
        name: What the log calls it.
        turn: Shared with other streams; its own by default.
        keep_alive: Gives what fills a silence, never b"".
    """

    __slots__ = (
        "_clock",
        "_connection",
        "_is_due",
        "_is_ended",
        "_is_lost",
        "_is_ready",
        "_keep_alive",
        "_limits",
        "_loop",
        "_n_bytes",
        "_name",
        "_parts",
        "_sending_since",
        "_taken",
        "_timer",
        "_turn",
        "_wake",
        "_written_at",
    )

    def __init__(
        self,
        connection: Connection,
        *,
        clock: Clock,
        limits: StreamLimits,
        name: str,
        turn: TurnWrites | None = None,
        keep_alive: Callable[[], bytes] = sse_keep_alive,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._limits = limits
        self._name = name
        self._keep_alive = keep_alive
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self._n_bytes = 0
        self._is_ready = False
        """The response has begun, and nothing is in the way of writing to it."""
        self._turn = turn or TurnWrites()
        self._is_due = False
        """It will write at the end of this turn."""
        self._wake = asyncio.Event()
        self._taken: asyncio.Event | None = None
        """What a producer waits for, while one does."""
        self._is_ended = False
        self._is_lost = False
        self._sending_since: float | None = None
        self._written_at = clock.monotonic_s()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_lost(self) -> bool:
        """Nobody reads any more."""
        return self._is_lost

    @property
    def is_full(self) -> bool:
        """So much waits that a producer who can should wait for `room`."""
        return self._n_bytes > self._limits.buffer_bytes

    async def room(self) -> None:
        """Wait until the writer has taken what waits, or nobody reads any more."""
        if self.is_full and not self._is_lost:
            # Several choices may wait for one reader.
            self._taken = self._taken or asyncio.Event()
            await self._taken.wait()

    def put(self, data: bytes) -> None:
        """Send when the reader takes it; after the end or a loss, nothing happens."""
        if self._is_ended or self._is_lost:
            return
        self._parts.append(data)
        self._n_bytes += len(data)
        if self._n_bytes > self._limits.buffer_bytes and self._is_too_slow():
            self._cut(f"{self._n_bytes} bytes wait for it")
        elif self._is_ready and not self._is_due:
            self._is_due = True
            self._turn.add(self)

    def _is_too_slow(self) -> bool:
        """A reader that is waited for, or a producer that never waits for its writer."""
        is_waiting = self._sending_since is not None or self._connection.is_choked
        return is_waiting or self._n_bytes > _BURST * self._limits.buffer_bytes

    def end(self) -> None:
        """End the response once everything put so far is sent. Idempotent."""
        self._is_ended = True
        self._wake.set()

    def lose(self) -> None:
        """Stop: the client is gone. Idempotent."""
        self._is_lost = True
        self._wake.set()
        self._tell_producer()

    async def run(self, send: Send) -> None:
        """Send until the end or the loss of the client."""
        self._check()
        try:
            while not self._is_lost:
                if self._connection.is_choked:
                    await self._wait_for_reader(send)
                elif self._is_ended:
                    await send(
                        {"type": "http.response.body", "body": self._take(), "more_body": False}
                    )
                    return
                else:
                    self._write()
                    await self._wait_for_trouble()
        finally:
            self._is_ready = False
            if self._timer is not None:
                self._timer.cancel()

    async def _wait_for_reader(self, send: Send) -> None:
        self._sending_since = self._clock.monotonic_s()
        await send(_NOTHING)  # returns once the reader has taken what was written
        self._sending_since = None
        self._written_at = self._clock.monotonic_s()

    async def _wait_for_trouble(self) -> None:
        """Let events be written as they come, until the end, a loss, or a reader that is slow."""
        self._wake.clear()
        if self._is_ended or self._is_lost or self._connection.is_choked:
            return
        self._is_ready = True
        try:
            await self._wake.wait()
        finally:
            self._is_ready = False

    def write_due(self) -> None:
        """Write what has gathered in this turn; called by `TurnWrites`."""
        self._is_due = False
        if self._is_ready:
            self._write()

    def _write(self) -> None:
        """Write what has gathered."""
        if not self._n_bytes or self._is_lost:
            return
        connection = self._connection
        # A connection may find only at the end of the turn before that its reader is slow.
        if not connection.is_choked:
            connection.write(self._take())
            self._written_at = self._clock.monotonic_s()
        if connection.is_choked:
            self._wake.set()

    def _take(self) -> bytes:
        parts, self._parts, self._n_bytes = self._parts, [], 0
        if self._taken is not None:
            self._tell_producer()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _tell_producer(self) -> None:
        if self._taken is not None:
            self._taken.set()
            self._taken = None

    def _check(self) -> None:
        """Look after silence and stalls, now and every so often."""
        now = self._clock.monotonic_s()
        if self._sending_since is not None:
            stalled_s = now - self._sending_since
            if stalled_s >= self._limits.stall_s:
                self._cut(f"it took nothing for {stalled_s:.0f} s")
                return
        elif now - self._written_at >= self._limits.keep_alive_s and not self._parts:
            self.put(self._keep_alive())
        self._timer = self._loop.call_later(self._limits.check_s, self._check)

    def _cut(self, reason: str) -> None:
        _log.warning("stream %s is cut: its reader is too slow, %s", self._name, reason)
        self.lose()
        self._connection.abort()
