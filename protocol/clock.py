"""Time as an argument. Each package has one adapter that reads the clock; nothing else does."""

from typing import Protocol


class Clock(Protocol):
    """Where a shell gets its time from; the simulator supplies its own."""

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary point, never stepping back. For timers."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970 (UTC). For people and for stamps the master makes."""
        ...


class BootClock(Protocol):
    """For leases: unlike timers they run out while a machine sleeps."""

    def boot_s(self) -> float:
        """Seconds from an arbitrary point, never stepping back, suspend included."""
        ...
