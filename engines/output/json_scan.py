"""Where a JSON value ends, in text that comes piece by piece. Pure.

Nothing is parsed here: brackets are counted and strings are skipped, once over each character. What
cannot be JSON is found at once, so that prose is not held for long.
"""

import re
from typing import Final, final

MAX_DEPTH: Final = 100
"""Of brackets; the parser that reads the value later is recursive."""

_OUTSIDE: Final = re.compile(r"[^\s\w.,:+-]")
"""All that is neither blank, nor part of a number or name, nor between values."""
_IN_STRING: Final = re.compile(r'["\\]')


@final
class JsonScanner:
    """Follows one object or array from its opening bracket to the closing one."""

    __slots__ = ("_depth", "_is_escaped", "_is_in_string", "is_broken")

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False
        self.is_broken = False
        """What came cannot be the beginning of a JSON value; nothing more is to be fed."""

    def feed(self, text: str, start: int = 0) -> int | None:
        """Take text and give the place after the value's end; None while it goes on.

        Where the value is broken, the place is that of the character which cannot be in it.

        Args:
            text: The next piece.
            start: Where in it to begin.
        """
        at = start
        while at < len(text):
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            found = (_IN_STRING if self._is_in_string else _OUTSIDE).search(text, at)
            if found is None:
                return None
            at = found.end()
            self._on_character(found.group())
            if self.is_broken:
                return found.start()
            if self._depth == 0:
                return at
        return None

    def _on_character(self, character: str) -> None:
        if character == '"':
            self._is_in_string = not self._is_in_string
        elif self._is_in_string:
            self._is_escaped = True
        elif character in "{[":
            self._depth += 1
            self.is_broken = self._depth > MAX_DEPTH
        elif character in "}]":
            self._depth -= 1
        else:
            self.is_broken = True
