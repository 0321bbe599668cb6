"""The data clock: what changed is gathered, and shown a few times a second at most.

Textual queues writes and, once its queue is full, blocks the whole program. So nothing is committed
while the terminal still has writes to take: values are skipped, keys never are.
"""

from typing import Final, final

from skulk_tui.view_state import NOTHING, Changes

MAX_BACKLOG: Final = 1
"""Writes waiting for the terminal, beyond which a commit is skipped."""
MAX_SKIPPED_S: Final = 5.0
"""A terminal this far behind gets what there is all the same, lest it show nothing for ever."""


@final
class DataClock:
    """Gathers changes, and says when they may be shown. Pure: times are arguments."""

    def __init__(self, hz: float) -> None:
        self.hz = hz
        self._gathered = NOTHING
        self._committed_at = 0.0
        self.n_skipped = 0

    @property
    def interval_s(self) -> float:
        """How long one frame lasts."""
        return 1.0 / self.hz

    def gather(self, changes: Changes) -> None:
        """Add what has changed."""
        held = self._gathered
        self._gathered = Changes(
            keys=held.keys | changes.keys,
            line_ids=held.line_ids | changes.line_ids,
            is_head=held.is_head or changes.is_head,
        )

    def take(self, now: float, *, backlog: int) -> Changes:
        """Give what is to be shown now: nothing between frames, or while output is behind."""
        if not self._gathered:
            return NOTHING
        waited = now - self._committed_at
        if waited < self.interval_s * 0.9:
            return NOTHING
        if backlog > MAX_BACKLOG and waited < MAX_SKIPPED_S:
            self.n_skipped += 1
            return NOTHING
        taken, self._gathered = self._gathered, NOTHING
        self._committed_at = now
        return taken
