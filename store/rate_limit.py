"""How many bytes a second may pass, over all that share a limit; can be changed while they do."""

import asyncio
from typing import Final, final

from protocol.clock import Clock
from store.threads import Sleep

MB: Final = 1_000_000
MIN_RATE_BYTES_S: Final = 256 << 10
"""A slower rate, shared by all transfers, would be taken for a stall."""


@final
class RateLimit:
    """Spreads bytes evenly over time, in the order in which they are asked for.

    Args:
        clock: Measures.
        rate_bytes_s: At first; less than 256 KiB/s counts as that, None is no limit.
        sleep: Waits.
    """

    def __init__(
        self, clock: Clock, *, rate_bytes_s: int | None = None, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._rate_bytes_s = rate_bytes_s
        self._free_at_s = 0.0

    @property
    def rate_bytes_s(self) -> int | None:
        """How much may pass; None is no limit."""
        return self._rate_bytes_s

    def change(self, rate_bytes_s: int | None) -> None:
        """Set another rate: it holds for all that is asked for from now on."""
        self._rate_bytes_s = rate_bytes_s
        self._free_at_s = 0.0

    def change_mb(self, rate_mb_s: int | None) -> None:
        """Set a rate in megabytes (10^6 bytes) a second."""
        self.change(None if rate_mb_s is None else rate_mb_s * MB)

    async def take(self, n_bytes: int) -> None:
        """Wait until so many bytes may pass."""
        rate = self._rate_bytes_s
        if rate is None:
            return
        now_s = self._clock.monotonic_s()
        begin_s = max(now_s, self._free_at_s)
        self._free_at_s = begin_s + n_bytes / max(rate, MIN_RATE_BYTES_S)
        if begin_s > now_s:
            await self._sleep(begin_s - now_s)


@final
class TransferRates:
    """The limits of one node's transfers: each way has the same one for itself.

    Args:
        clock: Measures.
        rate_mb_s: In megabytes (10^6 bytes) a second, at first; None is no limit.
    """

    def __init__(self, clock: Clock, rate_mb_s: int | None) -> None:
        self.serving: Final = RateLimit(clock)
        """What other nodes are given."""
        self.fetching: Final = RateLimit(clock)
        """What comes from outside the cluster."""
        self.change_mb(rate_mb_s)

    def change_mb(self, rate_mb_s: int | None) -> None:
        """Set another rate; it holds at once, for transfers under way too."""
        self.serving.change_mb(rate_mb_s)
        self.fetching.change_mb(rate_mb_s)
