"""Events of a term that this node does not follow yet: they may overtake the word of its master.

A new master sends its first events and its first heartbeat together, by two ways. What comes first
by the wrong one would otherwise be fetched, most of a second later, and commands would wait for it.
"""

from typing import Final, final

from protocol.peer_messages import EventBatch, TermPair

MAX_EARLY_BYTES: Final = 1 << 20
"""What comes after that is fetched."""

Early = tuple[EventBatch, int]
"""A batch, and its length."""


@final
class EarlyEvents:
    """The first batches of the highest term that has sent any."""

    def __init__(self) -> None:
        self._term: TermPair | None = None
        self._kept: list[Early] = []
        self.n_bytes = 0
        """Of those that are kept."""

    def keep(self, batch: EventBatch, n_bytes: int) -> None:
        """Keep a batch of a term that is higher than the one followed, sent by its master."""
        term = TermPair(batch.number, batch.master)
        if self._term is None or term > self._term:
            self.clear()
            self._term = term
        if term == self._term and self.n_bytes + n_bytes <= MAX_EARLY_BYTES:
            self._kept.append((batch, n_bytes))
            self.n_bytes += n_bytes

    def take(self, term: TermPair) -> list[Early]:
        """Give what has come of a term, in order, now that it is followed."""
        if self._term is None or self._term > term:
            return []
        kept = self._kept if self._term == term else []
        self.clear()
        return kept

    def clear(self) -> None:
        """Keep nothing more."""
        self._term, self._kept, self.n_bytes = None, [], 0
