"""When a node looks around: what recurs and is in no hurry is done then, all of it together.

To wake a node at rest costs far more than what it then does (docs/decisions/0014). Its elections
have to be on time and wake it twice a second anyway. Whoever says how early and how late it may be
called goes along with them; its own timer only serves where no round comes in between.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, final


@final
class RoundCall:
    """One call that is still to come; see `Rounds.call`."""

    def __init__(
        self, calls: "dict[RoundCall, None]", soonest_s: float, run: Callable[[], None]
    ) -> None:
        self._calls = calls
        self._run = run
        self.soonest_s: Final = soonest_s
        """By the loop's clock."""
        self.timer: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        """Have it not come; idempotent, and harmless once it has."""
        self._calls.pop(self, None)
        if self.timer is not None:
            self.timer.cancel()

    def run(self) -> None:
        """Do it, unless it was cancelled or done."""
        if self in self._calls:
            self.cancel()
            self._run()


@final
class Rounds:
    """The rounds of one node; used on its loop alone."""

    def __init__(self) -> None:
        self._calls: dict[RoundCall, None] = {}
        """In the order in which they were asked for, so that histories can be told again."""
        self._longest_late_s: float | None = None

    def begin(self, *, late_s: float = 0.0) -> None:
        """Have everybody called, in this turn of the loop or the next, who may be called by now.

        Args:
            late_s: How long after it was due this round begins: the loop was busy or stood still.
        """
        self._longest_late_s = max(late_s, self._longest_late_s or 0.0)
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for call in [call for call in self._calls if call.soonest_s <= now_s]:
            loop.call_soon(call.run)  # their bugs are not the bugs of whoever makes the round

    def call(self, run: Callable[[], None], *, soonest_s: float, latest_s: float) -> RoundCall:
        """Call once, with the first round after `soonest_s` seconds, and by `latest_s` without one.

        Args:
            run: What to do; must not block.
            soonest_s: From now.
            latest_s: From now; longer than between two rounds, or the call wakes by itself.
        """
        loop = asyncio.get_running_loop()
        call = RoundCall(self._calls, loop.time() + soonest_s, run)
        self._calls[call] = None
        call.timer = loop.call_later(latest_s, call.run)
        return call

    async def wait(self, *, soonest_s: float, latest_s: float) -> None:
        """Wait as `call` does."""
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call = self.call(partial(_reach, reached), soonest_s=soonest_s, latest_s=latest_s)
        try:
            await reached
        finally:
            call.cancel()

    def take_lag_s(self) -> float | None:
        """Give how late the latest round since the last call began; None when there was none."""
        lag_s, self._longest_late_s = self._longest_late_s, None
        return lag_s


def _reach(reached: "asyncio.Future[None]") -> None:
    if not reached.done():
        reached.set_result(None)
