"""What has been told to the operator: the newest in the flash row, all of it behind `;`.

Nothing is lost as with messages that pop up and go: they are counted, and the list is kept.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final, final

from protocol.errors import SkulkError
from skulk_tui.lines import EMPTY, Line, Span, span, spread, toned

KEPT: Final = 200
_TONES: Final = {"info": "plain", "good": "good", "warn": "warn", "bad": "bad"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message."""

    at_ms: int
    text: str
    level: str
    """`info`, `good`, `warn` or `bad`; also a word in front of what is not `info`."""

    @property
    def content(self) -> Line:
        """The message as a line."""
        words = {"warn": "note: ", "bad": "error: "}.get(self.level, "")
        tone = _TONES[self.level]
        return (span(words + self.text, tone),)  # type: ignore[arg-type]  # the tones above


@final
class FlashLog:
    """The messages of this run."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque(maxlen=KEPT)
        self._n_unseen = 0

    @property
    def messages(self) -> tuple[Message, ...]:
        """All that are kept, the newest first."""
        return tuple(reversed(self._messages))

    def tell(self, text: str, *, at_ms: int, level: str = "info") -> None:
        """Take a message."""
        self._messages.append(Message(at_ms=at_ms, text=text, level=level))
        self._n_unseen += 1

    def tell_error(self, error: SkulkError, *, at_ms: int) -> None:
        """Take an error: what, and what helps."""
        remedy = f"  {error.remediation}" if error.remediation else ""
        self.tell(f"{error.message}{remedy}", at_ms=at_ms, level="bad")

    def see(self) -> None:
        """The operator has looked at the list."""
        self._n_unseen = 0

    def row(self, width: int) -> Line:
        """Give the flash row: the newest message, and how many more there are to see."""
        if not self._messages:
            return EMPTY
        more = self._n_unseen - 1
        right = toned(f"{more} more: ;", "dim") if more > 0 else EMPTY
        return spread((Span(" "), *self._messages[-1].content), right, width)
