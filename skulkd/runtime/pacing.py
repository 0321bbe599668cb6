"""Calls that are asked for more often than they need to be made."""

import asyncio
from collections.abc import Callable
from typing import Final, final


@final
class Paced:
    """Makes a call when it is asked for: at once, or a period after the last one.

    What is asked for meanwhile is made once, so that the last thing to tell is always told.

    Args:
        run: What to do; must not block.
        period_s: Between two calls, at least.
    """

    def __init__(self, run: Callable[[], None], period_s: float) -> None:
        self._run: Final = run
        self._period_s: Final = period_s
        self._is_asked = False
        self._timer: asyncio.TimerHandle | None = None
        """Ends the period; None where none is under way."""

    def __call__(self) -> None:
        """Ask for the call."""
        if self._timer is not None:
            self._is_asked = True
            return
        self._timer = asyncio.get_running_loop().call_later(self._period_s, self._on_end)
        self._run()

    def cancel(self) -> None:
        """Make no call that is still to come; idempotent, and it may be asked for again."""
        self._is_asked = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_end(self) -> None:
        self._timer = None
        if self._is_asked:
            self._is_asked = False
            self()
