"""A stream of server-sent events to one client: coalesced, kept alive, bounded.

What the producer puts is sent whenever the writer is free: the first piece at once, then whatever
has gathered meanwhile, so a burst costs one system call. One timer a stream looks after silence
and after a reader that does not read; no timer is made per event.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final, final

from protocol.clock import Clock
from skulkd.api.dialects.openai_chat_output import KEEP_ALIVE
from skulkd.api.http import Connection, Header, Message, Send

_log = logging.getLogger(__name__)

SSE_HEADERS: Final[tuple[Header, ...]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_NOTHING: Final[Message] = {"type": "http.response.body", "body": b"", "more_body": True}
_BURST: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """What one reader may cost."""

    keep_alive_s: float = 10.0
    """Silence after which a comment is sent; with the check interval, at most 15 s."""
    stall_s: float = 30.0
    """How long a send may wait for the reader."""
    buffer_bytes: int = 1 << 20
    """How much may gather for a reader that has stopped."""
    check_s: float = 4.0


@final
class EventStream:
    """The way from one producer to one client.

    Args:
        connection: Cut when the reader stalls.
        clock: Measures silence and stalls.
        limits: The bounds.
        name: What the log calls it.
    """

    __slots__ = (
        "_clock",
        "_connection",
        "_is_ended",
        "_is_lost",
        "_limits",
        "_n_bytes",
        "_name",
        "_parts",
        "_sending_since",
        "_taken",
        "_timer",
        "_wake",
        "_written_at",
    )

    def __init__(
        self, connection: Connection, *, clock: Clock, limits: StreamLimits, name: str
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._limits = limits
        self._name = name
        self._parts: list[bytes] = []
        self._n_bytes = 0
        self._wake = asyncio.Event()
        self._taken = asyncio.Event()
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
        self._taken.clear()
        await self._taken.wait()

    def put(self, data: bytes) -> None:
        """Send when the reader takes it; after the end or a loss, nothing happens."""
        if self._is_ended or self._is_lost:
            return
        self._parts.append(data)
        self._n_bytes += len(data)
        if self.is_full and self._is_too_slow():
            self._cut(f"{self._n_bytes} bytes wait for it")
        elif not self._wake.is_set():
            self._wake.set()

    def _is_too_slow(self) -> bool:
        """A writer that waits for its reader, or a producer that never waits for its writer."""
        is_waiting = self._sending_since is not None
        return is_waiting or self._n_bytes > _BURST * self._limits.buffer_bytes

    def end(self) -> None:
        """End the response once everything put so far is sent. Idempotent."""
        self._is_ended = True
        self._wake.set()

    def lose(self) -> None:
        """Stop: the client is gone. Idempotent."""
        self._is_lost = True
        self._wake.set()
        self._taken.set()

    async def run(self, send: Send) -> None:
        """Send until the end or the loss of the client."""
        self._check()
        try:
            while not self._is_lost:
                if not self._parts and not self._is_ended:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                parts, self._parts, self._n_bytes = self._parts, [], 0
                self._taken.set()
                is_last = self._is_ended
                self._sending_since = self._clock.monotonic_s()
                await send(
                    {
                        "type": "http.response.body",
                        "body": parts[0] if len(parts) == 1 else b"".join(parts),
                        "more_body": not is_last,
                    }
                )
                if is_last:
                    return
                if self._connection.is_choked:
                    await send(_NOTHING)  # returns once the reader has taken what was written
                self._sending_since = None
                self._written_at = self._clock.monotonic_s()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _check(self) -> None:
        """Look after silence and stalls, now and every so often."""
        now = self._clock.monotonic_s()
        if self._sending_since is not None:
            stalled_s = now - self._sending_since
            if stalled_s >= self._limits.stall_s:
                self._cut(f"it took nothing for {stalled_s:.0f} s")
                return
        elif now - self._written_at >= self._limits.keep_alive_s and not self._parts:
            self.put(KEEP_ALIVE)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._limits.check_s, self._check)

    def _cut(self, reason: str) -> None:
        _log.warning("stream %s is cut: its reader is too slow, %s", self._name, reason)
        self.lose()
        self._connection.abort()
