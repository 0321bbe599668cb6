"""What a node is told of its machine's sleep: before, so that it can say goodbye, and after.

Where nothing tells (no service manager that knows, macOS) a node is suspended in mid-sentence: its
boot clock tells it so when it wakes (skulkd/core/election.py), and the others miss it by silence.
"""

from typing import Final, Protocol

GOODBYE_S: Final = 4.0
"""What a node may take before the machine sleeps; systemd waits 5 s by default."""


class SleepListener(Protocol):
    """Who has something to do before the machine sleeps, and after."""

    async def before_sleep(self) -> None:
        """Do it, within `GOODBYE_S`; the machine sleeps at its end, or without waiting for it."""
        ...

    def after_sleep(self) -> None:
        """Go on; also called when the machine did not sleep after all. Must not block."""
        ...


class SleepSource(Protocol):
    """Knows when the machine sleeps."""

    async def tell(self, listener: SleepListener) -> None:
        """Tell a listener, until cancelled; returns at once where nothing is ever told."""
        ...
