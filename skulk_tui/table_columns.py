"""The columns of a table: which are shown, how wide, and on which page. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, final

from skulk_tui.lines import Align

GAP: Final = 2
"""Cells between two columns."""
MARKS: Final = 2
"""Cells before the first column: the cursor's, and the mark's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column.

    Invariant: `width` cells, or a share of what is left over where `grow` is above 0 (`width` is
    then the least).
    """

    key: str
    title: str
    width: int
    align: Align = "left"
    grow: int = 0
    drop: int = 0
    """Where not all columns fit, the one with the highest number goes first; 0 stays."""
    is_sortable: bool = True
    is_paged: bool = False
    """One of many alike, which are shown by pages of as many as fit; at least one always is."""

    @property
    def name(self) -> str:
        """What commands call it: its title in small letters, as one word."""
        return "-".join(self.title.lower().split())


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns that fit, with their widths in cells."""

    columns: tuple[tuple[Column, int], ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Which of the columns that are shown by pages are shown."""

    first: int
    n_shown: int
    n_all: int

    @property
    def is_whole(self) -> bool:
        """Whether all of them are."""
        return self.n_shown == self.n_all

    @property
    def range_text(self) -> str:
        """Say which, as people count: `4-6 of 12`."""
        last = self.first + self.n_shown
        numbers = str(last) if self.n_shown == 1 else f"{self.first + 1}-{last}"
        return f"{numbers} of {self.n_all}"


@final
class ColumnSet:
    """All columns of one table, and what the operator wants to see of them.

    Args:
        columns: In the order they are shown.
        paged: What its paged columns are called together: `nodes`.
    """

    def __init__(self, columns: Sequence[Column], *, paged: str = "columns") -> None:
        self.all = tuple(columns)
        self.left_out: frozenset[str] = frozenset()
        """Keys of those that the operator does not want to see."""
        self._paged = paged
        self._page_at: str | None = None
        """Key of the column that the page begins at: others may come before it."""
        self._drawn: Page | None = None

    def replace(self, columns: Sequence[Column]) -> None:
        """Take other columns; the page stays at the column that it begins at."""
        self.all = tuple(columns)

    def leave_out(self, keys: Collection[str]) -> None:
        """Show all but some; the first says what a row is about, and is always shown."""
        self.left_out = frozenset(keys) - {column.key for column in self.all[:1]}

    @property
    def chosen(self) -> Sequence[Column]:
        """Those that are shown where there is room."""
        return [column for column in self.all if column.key not in self.left_out]

    @property
    def page_state(self) -> str:
        """What the pane's rule says: which page this is, as drawn last; empty where all fit."""
        page = self._drawn
        return f"< > {self._paged} {page.range_text}" if page and not page.is_whole else ""

    @property
    def choice_state(self) -> str:
        """What the pane's rule says: how many are left out; empty where none is."""
        n_left_out = len(self.all) - len(self.chosen)
        return f"{n_left_out} left out" if n_left_out else ""

    def lay_out(self, width: int) -> Layout:
        """Give the columns that are shown in a table of a width."""
        self._drawn = self.page(width)
        here = set(self.page_keys(width))
        kept = [column for column in self.chosen if not column.is_paged or column.key in here]
        return lay_out(kept, max(1, width - MARKS))

    def page(self, width: int) -> Page:
        """Give the page of a table of a width; the last page is full."""
        keys = self._paged_keys
        fixed = sum(column.width + GAP for column in self.chosen if not column.is_paged)
        cells = max((column.width + GAP for column in self.chosen if column.is_paged), default=1)
        n_shown = min(len(keys), max(1, (width - MARKS - fixed + GAP) // cells))
        first = keys.index(self._page_at) if self._page_at in keys else 0
        return Page(min(first, len(keys) - n_shown), n_shown, len(keys))

    def page_keys(self, width: int) -> Collection[str]:
        """Give the keys of the paged columns that are shown in a table of a width."""
        page = self.page(width)
        return self._paged_keys[page.first : page.first + page.n_shown]

    def turn_page(self, by: int, width: int) -> bool:
        """Show the next page, or the one before; False where there is none."""
        here = self.page(width)
        first = max(0, min(here.first + by * here.n_shown, here.n_all - here.n_shown))
        if first == here.first:
            return False
        self._page_at = self._paged_keys[first]
        return True

    @property
    def _paged_keys(self) -> Sequence[str]:
        return [column.key for column in self.chosen if column.is_paged]


def lay_out(columns: Sequence[Column], width: int) -> Layout:
    """Choose the columns that fit a width, and share out what is left over."""
    kept = list(columns)
    while len(kept) > 1 and _least(kept) > width:
        last = max(kept, key=lambda column: column.drop)
        if last.drop == 0:
            break
        kept.remove(last)
    spare = max(0, width - _least(kept))
    n_shares = sum(column.grow for column in kept)
    widths: list[tuple[Column, int]] = []
    for column in kept:
        share = spare * column.grow // n_shares if n_shares else 0
        widths.append((column, column.width + share))
    return Layout(tuple(widths))


def _least(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + GAP * max(0, len(columns) - 1)
