"""A table that can be drawn as cards: the same rows, order, filter, marks and cursor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

from skulk_tui.lines import EMPTY, Line, Span, fit, retoned, spread
from skulk_tui.table_model import TableModel, TableRow
from skulk_tui.widgets.pane import TablePane

LEAST_CELLS: Final = 34
"""Of a card's width."""
CARD_LINES: Final = 6
"""Of a card's height: head, lines, and the blank line below."""
_GAP: Final = 2
_MARKS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One object."""

    head: Line
    state: Line
    """Stands at the right of the head."""
    lines: tuple[Line, Line, Line, Line]


@dataclass(frozen=True, slots=True)
class Grid:
    """How cards are laid out, row by row."""

    n_across: int
    cells: int
    """Of one card's width."""
    n_visible: int
    """Rows of cards that are seen whole; at least one."""


def grid_of(n_cards: int, width: int, height: int) -> Grid:
    """Lay cards out: as many side by side as fit, and no more than there are."""
    n_across = max(1, min(n_cards, (width + _GAP) // (LEAST_CELLS + _GAP)))
    cells = max(1, (width - _GAP * (n_across - 1)) // n_across)
    return Grid(n_across, cells, max(1, (height + 1) // CARD_LINES))


@final
class CardPane(TablePane):
    """A pane of rows, or of cards.

    Args:
        name: As in `Pane`.
        title: Before the count of rows.
        model: The rows, and where the operator is in them.
        empty: What stands there while there is no row.
    """

    def __init__(
        self, name: str, title: str, model: TableModel, *, empty: Sequence[str], dash: str = "-"
    ) -> None:
        super().__init__(name, title, model, empty=empty, dash=dash)
        self.make_card: Callable[[TableRow], Card] | None = None
        """None where rows are shown."""
        self.is_forced = False
        """Cards are drawn even where not all of them are seen at once."""
        self._top = 0
        """The first row of cards."""
        self._grid: Grid | None = None

    @property
    def has_cards(self) -> bool:
        """Whether cards are what is drawn now."""
        return self._grid is not None

    @property
    def page(self) -> int:
        """How many objects a page has."""
        grid = self._grid
        return super().page if grid is None else grid.n_across * grid.n_visible

    def rows_body(self, width: int, height: int) -> Sequence[Line]:
        """Draw cards where all of them fit, or where they are wanted all the same; else rows."""
        self._grid = self._find_grid(width, height)
        if self._grid is None:
            return super().rows_body(width, height)
        grid, rows = self._grid, self.model.rows
        n_foot = 1 if self.foot else 0
        room = height - n_foot
        self._scroll(grid)
        lines: list[Line] = []
        for first in range(self._top * grid.n_across, len(rows), grid.n_across):
            if len(lines) < room:
                lines += self._draw_row(rows[first : first + grid.n_across], grid)
        lines = lines[:room]
        return [*lines, *[EMPTY] * (room - len(lines)), self.foot] if n_foot else lines

    def index_at(self, x: int, y: int) -> int | None:
        """Give the card that is drawn at a cell of the pane, or the row."""
        grid = self._grid
        if grid is None:
            return super().index_at(x, y)
        across = min(x // (grid.cells + _GAP), grid.n_across - 1)
        return (self._top + (y - 1) // CARD_LINES) * grid.n_across + across if y >= 1 else None

    def _find_grid(self, width: int, height: int) -> Grid | None:
        if self.make_card is None:
            return None
        n_cards = len(self.model.rows)
        grid = grid_of(n_cards, width, height - (1 if self.foot else 0))
        do_all_fit = grid.n_visible * grid.n_across >= n_cards
        return grid if do_all_fit or self.is_forced else None

    def _scroll(self, grid: Grid) -> None:
        refs = [row.ref for row in self.model.rows]
        here = refs.index(self.model.cursor) // grid.n_across if self.model.cursor in refs else 0
        lowest = max(0, -(-len(refs) // grid.n_across) - grid.n_visible)
        self._top = max(min(self._top, here, lowest), here - grid.n_visible + 1)

    def _draw_row(self, rows: Sequence[TableRow], grid: Grid) -> Sequence[Line]:
        drawn = [self._draw_card(row, grid) for row in rows]
        lines: list[Line] = []
        for parts in zip(*drawn, strict=True):
            spans: list[Span] = []
            for part in parts:
                spans += [*part, Span(" " * _GAP)]
            lines.append(tuple(spans[:-1]))
        return lines

    def _draw_card(self, row: TableRow, grid: Grid) -> Sequence[Line]:
        if self.make_card is None:
            return ()
        card, is_here = self.make_card(row), row.ref == self.model.cursor
        head = spread(card.head, card.state, max(0, grid.cells - _MARKS))
        if is_here and self.has_focus:
            head = retoned(head, "inverse")
        marks = (
            Span(">" if is_here else " ", "accent"),
            Span("*" if row.ref in self.model.marks else " ", "accent"),
        )
        below = ((Span(" " * _MARKS), *content) for content in card.lines)
        return [fit(content, grid.cells) for content in ((*marks, *head), *below, EMPTY)]
