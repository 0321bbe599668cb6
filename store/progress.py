"""How far a transfer has come, in numbers that never run backwards.

Pure: time is an argument.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal, final, get_args

TransferPhase = Literal["look", "wait", "resolve", "download", "extract", "verify"]
"""In the order a transfer goes through them; one that it does not need is left out.

`look`: about to fetch, unless another node does; `wait`: another node fetches, or has it and serves
others first.
"""

WINDOW_S: Final = 10.0
"""The rate is the mean over so much of the recent past."""
MEASURED_AFTER_S: Final = 1.0
"""No rate and no remaining time are given before they have been seen for so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferProgress:
    """Where a transfer stands in its present phase.

    Invariant: phases go forward only, and within a phase `done_bytes` never decreases; after a
    start from zero it stands still until the earlier mark is passed.
    """

    phase: TransferPhase
    done_bytes: int
    total_bytes: int | None
    rate_bytes_s: int | None
    """Mean over the last 10 s; absent until measured for a second."""
    eta_s: int | None
    """Absent until a rate is measured and the total is known."""
    source: str
    """Where the bytes come from, in words for people."""


_ORDER: Final[tuple[TransferPhase, ...]] = get_args(TransferPhase)


@final
class ProgressMeter:
    """Turns byte counts into progress.

    Args:
        source: Where the bytes come from, in words.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._phase: TransferPhase = _ORDER[0]
        self._high_bytes = 0
        self._total_bytes: int | None = None
        self._samples: deque[tuple[float, int]] = deque()

    def begin(
        self,
        phase: TransferPhase,
        *,
        now: float,
        done_bytes: int = 0,
        total_bytes: int | None = None,
    ) -> None:
        """Enter a phase, or start its rate anew. One that lies behind changes nothing.

        Args:
            phase: Which.
            now: Seconds of the monotonic clock.
            done_bytes: Already there; does not count for the rate.
            total_bytes: Of the phase, as far as known.
        """
        if _ORDER.index(phase) < _ORDER.index(self._phase):
            return
        if phase != self._phase:
            self._high_bytes = 0
            self._total_bytes = None
        if total_bytes is not None:
            self._total_bytes = total_bytes
        self._phase = phase
        self._high_bytes = max(self._high_bytes, done_bytes)
        self._samples.clear()
        self._samples.append((now, done_bytes))

    def advance(self, done_bytes: int, *, now: float) -> TransferProgress:
        """Count up to `done_bytes` of the phase, and say where that is."""
        self._samples.append((now, done_bytes))
        while self._samples[0][0] < now - WINDOW_S and self._samples[1][0] <= now - WINDOW_S:
            self._samples.popleft()
        self._high_bytes = max(self._high_bytes, done_bytes)
        return self.shown(now=now)

    def shown(self, *, now: float) -> TransferProgress:
        """Say where the transfer stands."""
        rate = self._rate(now)
        eta = None
        if rate and self._total_bytes is not None:
            eta = max(0, self._total_bytes - self._high_bytes) // rate
        return TransferProgress(
            phase=self._phase,
            done_bytes=self._high_bytes,
            total_bytes=self._total_bytes,
            rate_bytes_s=rate,
            eta_s=eta,
            source=self.source,
        )

    def _rate(self, now: float) -> int | None:
        if not self._samples:
            return None
        (first_at, first_bytes), (_, last_bytes) = self._samples[0], self._samples[-1]
        span_s = now - first_at
        if span_s < MEASURED_AFTER_S:
            return None
        return max(0, int((last_bytes - first_bytes) / span_s))
