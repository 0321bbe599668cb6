"""Stop strings across token borders. Pure."""

from typing import final


@final
class StopFilter:
    """Lets text through until a stop string appears, and never lets a part of one slip out.

    Text that could be the beginning of a stop string is held back until the next token decides.
    Invariant: what came out, joined with the rest that `flush` gives, is the text up to the
    earliest stop string; how the text was cut into tokens changes nothing.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = tuple(text for text in stop if text)
        self._longest = max((len(text) for text in self._stop), default=0)
        self._held = ""
        self.stopped_by: str | None = None
        """The stop string that has appeared; nothing comes out any more."""

    @property
    def has_stopped(self) -> bool:
        """A stop string has appeared."""
        return self.stopped_by is not None

    def feed(self, text: str) -> str:
        """Take a piece of text and give what is safe to show."""
        if self.has_stopped:
            return ""
        if not self._stop:
            return text
        held = self._held + text
        first = self._first_stop(held)
        if first is not None:
            end, self.stopped_by = first
            self._held = ""
            return held[:end]
        keep = self._n_undecided(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """End the text and give what was held back in vain."""
        held, self._held = self._held, ""
        return held

    def _first_stop(self, text: str) -> tuple[int, str] | None:
        """Give where the text ends, and what ends it."""
        # Several stop strings may end in the same token: the one that ends first wins, as it would
        # if the text came character by character; of those that end together, the longest.
        found = ((at + len(stop), at, stop) for stop in self._stop if (at := text.find(stop)) >= 0)
        first = min(found, default=None)
        return None if first is None else first[1:]

    def _n_undecided(self, text: str) -> int:
        for size in range(min(len(text), self._longest - 1), 0, -1):
            tail = text[-size:]
            if any(stop.startswith(tail) for stop in self._stop):
                return size
        return 0
