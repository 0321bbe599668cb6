"""The daemon's clocks: the machine's and an event loop's. Nothing else in skulkd reads time."""

import asyncio
import time
from typing import final


@final
class SystemClock:
    """The machine's own time."""

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary point, never stepping back; stands still during suspend."""
        # ruff: ignore[banned-api]  this class is the adapter
        return time.monotonic()

    def wall_ms(self) -> int:
        """Milliseconds since 1970 (UTC); may step either way."""
        return time.time_ns() // 1_000_000


@final
class LoopClock:
    """The time of an event loop, so that a whole node lives in virtual time.

    Args:
        loop: Whose time to tell.
        epoch_ms: The wall time at which `loop.time()` was zero.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, epoch_ms: int = 0) -> None:
        self._loop = loop
        self._epoch_ms = epoch_ms

    def monotonic_s(self) -> float:
        """Seconds by the loop."""
        return self._loop.time()

    def wall_ms(self) -> int:
        """Milliseconds since 1970, if the loop began at `epoch_ms`."""
        return self._epoch_ms + int(self._loop.time() * 1000)
