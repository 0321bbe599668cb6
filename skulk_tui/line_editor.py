"""One line being typed: the `:` and `/` prompts, and every other small text field.

Pure. Positions are characters of the text; what is shown is cut to cells around the cursor.
"""

from collections.abc import Sequence
from typing import Final, final

from rich.cells import cell_len

from skulk_tui.glyphs import plain

MAX_CHARS: Final = 4000
HISTORY_KEPT: Final = 100


@final
class LineEditor:
    """A text and a cursor in it.

    Args:
        text: At first; the cursor is at its end.
        history: Earlier lines, the oldest first.
    """

    def __init__(self, text: str = "", history: Sequence[str] = ()) -> None:
        self._text = text
        self._at = len(text)
        self._history = list(history)[-HISTORY_KEPT:]
        self._history_index = len(self._history)
        self._typed = text

    @property
    def text(self) -> str:
        """What stands there."""
        return self._text

    @property
    def before(self) -> str:
        """What stands before the cursor."""
        return self._text[: self._at]

    def insert(self, text: str) -> None:
        """Type text, or paste it; what would not fit the row or the limit is left out."""
        clean = plain(text)[: MAX_CHARS - len(self._text)]
        self._text = self._text[: self._at] + clean + self._text[self._at :]
        self._at += len(clean)

    def replace_word(self, word: str) -> None:
        """Put a completion in place of the word before the cursor."""
        start = self.before.rfind(" ") + 1
        self._text = self._text[:start] + word + self._text[self._at :]
        self._at = start + len(word)

    def press(self, key: str) -> bool:
        """Do what an editing key does; False for a key that is none."""
        if key == "backspace":
            if self._at:
                self._text = self._text[: self._at - 1] + self._text[self._at :]
                self._at -= 1
        elif key == "delete":
            self._text = self._text[: self._at] + self._text[self._at + 1 :]
        elif key == "left":
            self._at = max(0, self._at - 1)
        elif key == "right":
            self._at = min(len(self._text), self._at + 1)
        elif key == "home":
            self._at = 0
        elif key == "end":
            self._at = len(self._text)
        elif key == "up":
            self._recall(-1)
        elif key == "down":
            self._recall(1)
        else:
            return False
        return True

    def window(self, width: int) -> tuple[str, str, str]:
        """Give what fits `width` cells: before the cursor, under it, and after it.

        What is under the cursor is a blank at the end of the text. The cursor is always within.
        """
        under = self._text[self._at] if self._at < len(self._text) else " "
        room = max(0, width - cell_len(under))
        before = self.before
        while cell_len(before) > room:
            before = before[1:]
        room -= cell_len(before)
        after = self._text[self._at + 1 :]
        while cell_len(after) > room:
            after = after[:-1]
        return before, under, after

    def _recall(self, by: int) -> None:
        if self._history_index == len(self._history):
            self._typed = self._text
        self._history_index = max(0, min(self._history_index + by, len(self._history)))
        is_typed = self._history_index == len(self._history)
        self._text = self._typed if is_typed else self._history[self._history_index]
        self._at = len(self._text)
