"""The question being written: several lines, a cursor, and what was pasted in one piece.

Pure. A long paste is one item among the characters, shown by how long it is and deleted at once;
what is sent holds all of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from rich.cells import cell_len

from skulk_tui.formatting import strip_controls
from skulk_tui.glyphs import plain
from skulk_tui.lines import Line, Span

MAX_CHARS: Final = 400_000
LONG_LINES: Final = 6
LONG_CHARS: Final = 1_000
"""A paste of more is shown by its length alone."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """What one item looks like: its text, and the row of the field it stands in."""

    shown: str
    row: int
    column: int


@final
class Draft:
    """The question.

    Args:
        text: At first; the cursor is at its end.
    """

    def __init__(self, text: str = "") -> None:
        self._items: list[str] = []
        """Characters, and pastes of many."""
        self._at = 0
        self._n_chars = 0
        self._history: Sequence[str] = ()
        self._history_index = 0
        self._typed = ""
        self.set_text(text)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._items)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing."""
        return not self._items

    def set_text(self, text: str) -> None:
        """Replace it; the cursor goes to its end."""
        self._items = []
        self._at = self._n_chars = 0
        self.paste(text)

    def remember(self, questions: Sequence[str]) -> None:
        """Take earlier questions, the oldest first; the arrows at the ends bring them back."""
        self._history = tuple(questions)
        self._history_index = len(self._history)

    # ---- Editing ----

    def type(self, text: str) -> None:
        """Insert what was typed."""
        room = MAX_CHARS - self._n_chars
        self._insert(list(_clean(text)[: max(0, room)]))

    def paste(self, text: str) -> int:
        """Insert what was pasted; gives how many characters there was no room for."""
        clean = _clean(text)
        kept = clean[: max(0, MAX_CHARS - self._n_chars)]
        is_long = len(kept) > LONG_CHARS or kept.count("\n") >= LONG_LINES
        self._insert([kept] if is_long else list(kept))
        return len(clean) - len(kept)

    def press(self, key: str, width: int) -> bool:
        """Do what an editing key does; False for a key that is none."""
        match key:
            case "backspace":
                self._delete(self._at - 1)
            case "delete":
                self._delete(self._at)
            case "left":
                self._at = max(0, self._at - 1)
            case "right":
                self._at = min(len(self._items), self._at + 1)
            case "home" | "end":
                self._move_in_line(to_end=key == "end")
            case "up":
                self._move_row(-1, width)
            case "down":
                self._move_row(1, width)
            case _:
                return False
        return True

    def _move_in_line(self, *, to_end: bool) -> None:
        if to_end:
            while self._at < len(self._items) and self._items[self._at] != "\n":
                self._at += 1
        else:
            while self._at and self._items[self._at - 1] != "\n":
                self._at -= 1

    def _insert(self, items: list[str]) -> None:
        self._items[self._at : self._at] = items
        self._at += len(items)
        self._n_chars += sum(map(len, items))

    def _delete(self, index: int) -> None:
        if 0 <= index < len(self._items):
            self._n_chars -= len(self._items.pop(index))
            self._at = index

    # ---- Rows ----

    def rows(self, width: int) -> tuple[list[Line], int]:
        """Give its rows, with the cursor drawn, and the index of the cursor's row."""
        cells = self._cells(width)
        rows: list[list[Span]] = [[] for _ in range(cells[-1].row + 1)]
        for index, cell in enumerate(cells):
            if index == self._at:
                tone = "inverse"
            elif len(cell.shown) > 1 and len(self._items[index]) > 1:
                tone = "accent"
            else:
                tone = "plain"
            row = rows[cell.row]
            if row and row[-1].tone == tone == "plain":
                row[-1] = Span(row[-1].text + cell.shown, tone)
            elif cell.shown:
                row.append(Span(cell.shown, tone))
        return [tuple(row) for row in rows], cells[self._at].row

    def _cells(self, width: int) -> list[_Cell]:
        """Lay the items out; the last cell is the place behind all of them."""
        width = max(2, width)
        cells: list[_Cell] = []
        row = column = 0
        for item in (*self._items, ""):
            shown = _shown(item)
            n_cells = cell_len(shown)
            if column and column + n_cells > width:
                row, column = row + 1, 0
            cells.append(_Cell(shown, row, column))
            column += n_cells
            if item == "\n":
                row, column = row + 1, 0
        return cells

    def _move_row(self, by: int, width: int) -> None:
        cells = self._cells(width)
        here = cells[self._at]
        target = here.row + by
        if not 0 <= target <= cells[-1].row:
            self._recall(by)
            return
        found = [index for index, cell in enumerate(cells) if cell.row == target]
        self._at = max(
            (index for index in found if cells[index].column <= here.column), default=found[0]
        )

    def _recall(self, by: int) -> None:
        if self._history_index == len(self._history):
            self._typed = self.text
        index = max(0, min(self._history_index + by, len(self._history)))
        if index != self._history_index:
            is_typed = index == len(self._history)
            self.set_text(self._typed if is_typed else self._history[index])
            self._history_index = index


def _clean(text: str) -> str:
    return strip_controls(text.replace("\r\n", "\n").replace("\r", "\n"))


def _shown(item: str) -> str:
    if len(item) > 1:
        n_lines = item.count("\n") + 1
        return f"[pasted {n_lines} lines]" if n_lines > 1 else f"[pasted {len(item)} characters]"
    if item in {"\n", ""}:
        return " "  # where the cursor can stand
    return "    " if item == "\t" else plain(item) or "?"
