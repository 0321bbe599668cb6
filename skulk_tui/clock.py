"""The operator side's one adapter to time; nothing else in this package reads a clock or sleeps."""

import threading
import time
from typing import Protocol, final

from protocol.clock import Clock


class WaitingClock(Clock, Protocol):
    """A clock that a synchronous program can also wait on."""

    def wait_s(self, duration_s: float) -> None:
        """Block for so many seconds; a signal handler that raises ends the wait."""
        ...


@final
class SystemClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary point, never stepping back."""
        return time.monotonic()  # ruff: ignore[banned-api]  # this is the adapter

    def wall_ms(self) -> int:
        """Milliseconds since 1970 (UTC)."""
        return time.time_ns() // 1_000_000

    def utc_offset_s(self) -> int:
        """Seconds that local time is ahead of UTC now."""
        return time.localtime().tm_gmtoff

    def wait_s(self, duration_s: float) -> None:
        """Block for so many seconds; a signal handler that raises ends the wait."""
        threading.Event().wait(max(0.0, duration_s))
