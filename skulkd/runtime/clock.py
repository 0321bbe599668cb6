"""The daemon's clocks: the machine's and an event loop's. Nothing else in skulkd reads time."""

import asyncio
import sys
import time
from typing import Final, final

# Both run on while the machine sleeps; Darwin has no CLOCK_BOOTTIME, and its raw clock is one.
_BOOT_CLOCK: Final = time.CLOCK_MONOTONIC_RAW if sys.platform == "darwin" else time.CLOCK_BOOTTIME


@final
class SystemClock:
    """The machine's own time."""

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary point, never stepping back; stands still during suspend."""
        # ruff: ignore[banned-api]  this class is the adapter
        return time.monotonic()

    def boot_s(self) -> float:
        """Seconds from an arbitrary point, never stepping back; runs on during suspend."""
        return time.clock_gettime(_BOOT_CLOCK)

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
        self._slept_s = 0.0

    def monotonic_s(self) -> float:
        """Seconds by the loop."""
        return self._loop.time()

    def boot_s(self) -> float:
        """Seconds by the loop, and those that this node has slept."""
        return self._loop.time() + self._slept_s

    def sleep(self, seconds: float) -> None:
        """Let boot and wall time pass that this node slept through: a suspended machine's."""
        self._slept_s += seconds

    def wall_ms(self) -> int:
        """Milliseconds since 1970, if the loop began at `epoch_ms`."""
        return self._epoch_ms + int(self.boot_s() * 1000)
