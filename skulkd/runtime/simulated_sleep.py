"""The twin of a machine that sleeps: in virtual time, whenever a story says so."""

import asyncio
from typing import final

from skulkd.runtime.clock import LoopClock
from skulkd.runtime.machine_sleep import GOODBYE_S, SleepListener
from skulkd.runtime.tasks import timeout


@final
class SimulatedSleep:
    """Implements `SleepSource`.

    Args:
        clock: The node's; its boot and wall time go on while it sleeps.
    """

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self._listener: SleepListener | None = None

    async def tell(self, listener: SleepListener) -> None:
        """Tell a listener, until cancelled."""
        self._listener = listener
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._listener = None

    async def fall_asleep(self) -> None:
        """Announce the sleep, and wait as long as a machine does."""
        if self._listener is not None:
            try:
                async with timeout(GOODBYE_S):
                    await self._listener.before_sleep()
            except TimeoutError:
                return

    def wake_up(self, slept_s: float) -> None:
        """Wake after so many seconds."""
        self._clock.sleep(slept_s)
        if self._listener is not None:
            self._listener.after_sleep()
