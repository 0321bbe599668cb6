"""Telling where a block of Markdown ends, while it is still being written.

Pure. What is shown of a block changes once, when it closes; so a block is closed only when nothing
that follows could still belong to it, and rather too late than too early. Each line is looked at
once: a fence of any length costs what its lines cost.
"""

import re
from dataclasses import dataclass
from typing import Final, final

_FENCE: Final = re.compile(r" {0,3}(?P<mark>`{3,}|~{3,})(?P<info>.*)")
_HEADING: Final = re.compile(r" {0,3}#{1,6}(?:\s|$)")
_ITEM: Final = re.compile(r"(?P<mark> {0,3}(?:[-*+]|\d{1,9}[.)]))(?:(?P<gap> +)(?P<text>\S.*)?)?$")
_TAB: Final = 4
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
        self._indent = 0
        """Of what belongs to the list, or the indented code, that is open; 0 for neither. A blank
        line does not end those."""
        self._n_blank = 0
        """Blank lines at its end."""
        self._has_outsider = False
        """A line stands in the list that may have ended it, or may go on with its last words."""
        self._is_unclear = False
        """It cannot be told where it ends: it ends with the text."""

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
        if self._fence or self._is_unclear:
            self._chunk.append(row)
            if self._fence and ends_fence(row, self._fence):
                self._close(closed)
        elif not row.strip():
            self._take_blank(closed)
        elif self._indent:
            self._take_in_list(row, closed)
        else:
            self._take_text(row, closed)

    def _take_blank(self, closed: list[Block]) -> None:
        if self._indent:
            self._n_blank += 1
        else:
            self._close(closed)

    def _take_in_list(self, row: str, closed: list[Block]) -> None:
        flat = row.expandtabs(_TAB)
        item = _ITEM.match(flat)
        if _indent_of(flat) >= self._indent:
            # It is in the list, if there still is one: a fence would hide what follows.
            self._is_unclear = self._has_outsider and _opens_fence(flat) is not None
            self._append(row)
        elif item is not None:
            self._indent = _content_indent(item)
            self._has_outsider = False
            self._append(row)
        elif self._n_blank:
            self._close(closed)
            self._take_text(row, closed)
        else:
            self._has_outsider = True
            self._take_text(row, closed)

    def _take_text(self, row: str, closed: list[Block]) -> None:
        flat = row.expandtabs(_TAB)
        if mark := _opens_fence(flat):
            self._close(closed)
            self._chunk.append(row)
            self._fence = mark
        elif _HEADING.match(flat):
            self._close(closed)
            closed.append(Block(row))
        else:
            item = _ITEM.match(flat)
            if item is not None:
                self._indent = _content_indent(item)
            elif not self._chunk and _indent_of(flat) >= _CODE_INDENT:
                self._indent = _CODE_INDENT
            self._append(row)

    def _append(self, row: str) -> None:
        self._chunk.extend([""] * self._n_blank)
        self._n_blank = 0
        self._chunk.append(row)

    def _close(self, closed: list[Block]) -> None:
        if self._chunk:
            closed.append(Block("\n".join(self._chunk), is_fence=bool(self._fence)))
        self._chunk = []
        self._fence = ""
        self._indent = self._n_blank = 0
        self._has_outsider = self._is_unclear = False


def _opens_fence(row: str) -> str | None:
    """Give the mark that a row opens a fence with."""
    found = _FENCE.match(row)
    if found is None or (found["mark"][0] == "`" and "`" in found["info"]):
        return None
    return found["mark"]


def ends_fence(row: str, mark: str) -> bool:
    """Whether a row closes the fence that such a mark has opened."""
    flat = row.expandtabs(_TAB)
    bare = flat.strip()
    is_mark = len(bare) >= len(mark) and bare == mark[0] * len(bare)
    return is_mark and _indent_of(flat) < _CODE_INDENT


def _indent_of(row: str) -> int:
    return len(row) - len(row.lstrip(" "))


def _content_indent(item: re.Match[str]) -> int:
    """Give how far what belongs to a list's item is indented."""
    gap = len(item["gap"] or "")
    is_text = item["text"] is not None and gap <= _CODE_INDENT
    return len(item["mark"]) + (gap if is_text else 1)
