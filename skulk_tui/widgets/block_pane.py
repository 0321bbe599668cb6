"""A pane of objects that take several lines each; the cursor goes from object to object."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from skulk_tui.lines import Line, Span, toned
from skulk_tui.table_model import Ref
from skulk_tui.widgets.pane import Pane


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One object."""

    ref: Ref
    lines: tuple[Line, ...]
    """At least one; the first has the cursor's mark in front."""


@final
class BlockPane(Pane):
    """A pane of blocks.

    Args:
        name: As in `Pane`.
        title: On its rule.
        empty: What stands there while there is nothing: why, and what to do.
    """

    def __init__(self, name: str, title: str, *, empty: Sequence[str], dash: str = "-") -> None:
        super().__init__(name, title, dash=dash)
        self._empty = tuple(empty)
        self._blocks: tuple[Block, ...] = ()
        self._cursor: Ref | None = None
        self._index = 0
        self._top = 0
        self._cursor_y: int | None = None
        self._drawn_cursor: int | None = None
        self.note = ""

    @property
    def state(self) -> str:
        """The note that was set."""
        return self.note

    @property
    def n_lines(self) -> int:
        """How many lines all blocks have, or the empty state."""
        return sum(len(block.lines) for block in self._blocks) or len(self._empty)

    @property
    def selection(self) -> tuple[Ref, ...]:
        """The object under the cursor."""
        return () if self._cursor is None else (self._cursor,)

    def show(self, blocks: Sequence[Block]) -> None:
        """Replace the blocks; the cursor stays on its object."""
        self._blocks = tuple(blocks)
        for index, block in enumerate(self._blocks):
            if block.ref == self._cursor:
                self._index = index
                break
        else:
            self._go(self._index)
        self.redraw()

    def move(self, by: int) -> None:
        """Go on by so many objects."""
        self._go(self._index + by)

    def move_to_end(self, *, last: bool) -> None:
        """Go to the first or last object."""
        self._go(len(self._blocks) - 1 if last else 0)

    def point_at(self, ref: Ref) -> bool:
        """Put the cursor on an object; False where it is not shown."""
        for index, block in enumerate(self._blocks):
            if block.ref == ref:
                self._go(index)
                return True
        return False

    def cursor_line(self) -> int | None:
        """The cursor shows in the focused pane alone."""
        return self._drawn_cursor if self.has_focus else None

    def body(self, width: int, height: int) -> Sequence[Line]:
        """Draw the blocks around the cursor."""
        del width
        self._drawn_cursor = None
        if not self._blocks:
            return [toned(f"   {text}", "dim") for text in self._empty]
        lines: list[Line] = []
        first = last = 0
        for index, block in enumerate(self._blocks):
            is_here = index == self._index
            if is_here:
                first, last = len(lines), len(lines) + len(block.lines)
            mark = Span(">" if is_here else " ", "accent")
            lines.append((mark, *block.lines[0]))
            lines.extend((Span(" "), *content) for content in block.lines[1:])
        self._top = max(0, min(self._top, first, len(lines) - height))
        self._top = max(self._top, min(first, last - height))
        self._drawn_cursor = first - self._top + 1
        return lines[self._top : self._top + height]

    def _go(self, index: int) -> None:
        if not self._blocks:
            self._index, self._cursor = 0, None
            return
        self._index = max(0, min(index, len(self._blocks) - 1))
        self._cursor = self._blocks[self._index].ref
