"""Telling where a block of Markdown ends, while it is still being written.

Pure. What is shown of a block changes once, when it closes; so a block is closed only when nothing
that follows could still belong to it, and rather too late than too early. Each line is looked at
once: a fence of any length costs what its lines cost.
"""

import re
from dataclasses import dataclass
from typing import Final, final

_FENCE: Final = re.compile(r"(?P<indent> {0,3})(?P<mark>`{3,}|~{3,})(?P<info>[^\n]*)")
_NESTED_FENCE: Final = re.compile(
    r"\s*(?:(?:[-*+]|\d{1,9}[.)])\s+)?(?P<mark>`{3,}|~{3,})(?P<info>.*)"
)
_HEADING: Final = re.compile(r" {0,3}#{1,6}(?:\s|$)")
_ITEM: Final = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)")
_INDENTED: Final = re.compile(r" {2,}|\t| {0,1}\t")
_CODE_INDENT: Final = 4


@dataclass(frozen=True, slots=True)
class Block:
    """A block that is closed."""

    source: str
    """Its lines, without the end of the last."""
    is_fence: bool = False
    """Code between marks, by itself: its first and last lines are the marks, where it has a last
    one."""


@final
class BlockSplitter:
    """Cuts one answer into blocks."""

    def __init__(self) -> None:
        self._chunk: list[str] = []
        self._tail = ""
        """The line that has not ended."""
        self._fence = ""
        """The mark that has to be matched, within a fence that stands by itself."""
        self._nested = ""
        """The same within a list."""
        self._goes_on = False
        """A blank line does not end it by itself: a list, indented code."""
        self._n_blank = 0
        """Blank lines at its end, as far as that is open."""

    @property
    def open_text(self) -> str:
        """What has come of the block that is open."""
        return "\n".join([*self._chunk, *[""] * self._n_blank, self._tail])

    def feed(self, text: str) -> list[Block]:
        """Take further text; give the blocks that it has closed."""
        closed: list[Block] = []
        *lines, self._tail = (self._tail + text).split("\n")
        for row in lines:
            self._take(row, closed)
        return closed

    def finish(self) -> list[Block]:
        """Close what is open: nothing follows."""
        closed: list[Block] = []
        if self._tail:
            self._take(self._tail, closed)
            self._tail = ""
        self._close(closed)
        return closed

    def _take(self, row: str, closed: list[Block]) -> None:
        if self._fence:
            self._chunk.append(row)
            if ends_fence(row, self._fence):
                self._close(closed)
        elif self._nested:
            self._chunk.append(row)
            if ends_fence(row, self._nested):
                self._nested = ""
        elif not row.strip():
            self._take_blank(closed)
        else:
            if self._n_blank and not self._is_continuation(row):
                self._close(closed)
            self._take_text(row, closed)

    def _take_blank(self, closed: list[Block]) -> None:
        if not self._chunk:
            return
        if self._goes_on:
            self._n_blank += 1
        else:
            self._close(closed)

    def _is_continuation(self, row: str) -> bool:
        return bool(_INDENTED.match(row) or _ITEM.match(row))

    def _take_text(self, row: str, closed: list[Block]) -> None:
        self._chunk.extend([""] * self._n_blank)
        self._n_blank = 0
        fence = _FENCE.match(row)
        is_own = not (self._goes_on and self._chunk and row.startswith(" "))
        if fence and is_own and _is_fence(fence):
            self._close(closed)
            self._chunk.append(row)
            self._fence = fence["mark"]
            return
        if is_own and _HEADING.match(row):
            self._close(closed)
            closed.append(Block(row))
            return
        if _ITEM.match(row) or (not self._chunk and _is_code(row)):
            self._goes_on = True
        self._chunk.append(row)
        nested = _NESTED_FENCE.match(row)
        if nested and _is_fence(nested):
            self._nested = nested["mark"]

    def _close(self, closed: list[Block]) -> None:
        if self._chunk:
            closed.append(Block("\n".join(self._chunk), is_fence=bool(self._fence)))
        self._chunk = []
        self._fence = self._nested = ""
        self._goes_on = False
        self._n_blank = 0


def _is_fence(found: re.Match[str]) -> bool:
    return found["mark"][0] == "~" or "`" not in found["info"]


def ends_fence(row: str, mark: str) -> bool:
    """Whether a row closes the fence that such a mark has opened."""
    bare = row.strip()
    return len(bare) >= len(mark) and bare == mark[0] * len(bare)


def _is_code(row: str) -> bool:
    return row.startswith((" " * _CODE_INDENT, "\t"))
