"""How far one phase has come: bytes that never run backwards, a rate once it is measured."""

from collections import deque
from dataclasses import dataclass
from typing import Final, final

WINDOW_S: Final = 5.0
"""The rate is the mean over so much of the recent past."""
MEASURED_AFTER_S: Final = 1.0
"""No rate and no remaining time are given before bytes were seen for so long."""
MAX_SAMPLES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownProgress:
    """What can be said of a phase; None is unknown, never 0."""

    done_bytes: int | None
    total_bytes: int | None
    rate_bytes_s: float | None
    eta_s: float | None
    note: str


@final
class ProgressTracker:
    """Collects byte counts of one phase.

    Args:
        now: Monotonic seconds at which the phase began.
    """

    def __init__(self, *, now: float) -> None:
        self._began_s = now
        self._done_bytes: int | None = None
        self._total_bytes: int | None = None
        self._note = ""
        self._samples: deque[tuple[float, int]] = deque(maxlen=MAX_SAMPLES)

    def advance(
        self, *, done_bytes: int | None, total_bytes: int | None, note: str, now: float
    ) -> bool:
        """Take a report; returns whether it shows progress: more bytes, or another note."""
        moved = bool(note) and note != self._note
        self._note = note or self._note
        if total_bytes is not None:
            self._total_bytes = total_bytes
        if done_bytes is None:
            return moved
        if done_bytes > (self._done_bytes or 0):
            moved = True
        self._done_bytes = max(done_bytes, self._done_bytes or 0)
        self._samples.append((now, self._done_bytes))
        # The newest sample that is older than the window stays: the rate is over the whole window.
        while len(self._samples) > 1 and self._samples[1][0] <= now - WINDOW_S:
            self._samples.popleft()
        return moved

    def shown(self, *, now: float) -> ShownProgress:
        """Say where the phase stands."""
        rate = self._rate(now)
        eta_s = None
        if rate and self._total_bytes is not None and self._done_bytes is not None:
            eta_s = max(0, self._total_bytes - self._done_bytes) / rate
        return ShownProgress(
            done_bytes=self._done_bytes,
            total_bytes=self._total_bytes,
            rate_bytes_s=rate,
            eta_s=eta_s,
            note=self._note,
        )

    def _rate(self, now: float) -> float | None:
        if not self._samples:
            return None
        first_at, first_bytes = self._samples[0]
        span_s = now - first_at
        if span_s < MEASURED_AFTER_S:
            return None
        return (self._samples[-1][1] - first_bytes) / span_s
