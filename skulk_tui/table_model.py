"""A live table without a terminal: rows by identity, a cursor that stays on its object.

Rows come and go, are sorted and filtered anew; the cursor, the marks and the scroll position hold
identities. `Shown` is what a widget draws; comparing two of them tells which lines to draw again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from skulk_tui.lines import EMPTY, Line, Span, cut, fit, line, span, text_of
from skulk_tui.row_filter import FacetValue, RowFilter
from skulk_tui.table_columns import GAP, Column, ColumnSet, Layout

_NO_FACETS: Final[Mapping[str, FacetValue]] = {}
SortValue = str | float
_FILTER_CELLS: Final = 24
"""Of a filter, as a rule shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """What a row is about: an object's identity, kept by cursors, marks, dialogs and undo."""

    kind: str
    """`node`, `instance`, `model`, `transfer`, `stored`, `event`, `check`, …"""
    id: str
    name: str = ""
    """For people; the id where it is empty."""

    @property
    def shown(self) -> str:
        """What people call it."""
        return self.name or self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One object."""

    ref: Ref
    cells: Mapping[str, Line]
    """By column key; a missing one is empty."""
    sort: Mapping[str, SortValue | None] = field(default_factory=dict[str, SortValue | None])
    """By column key, where the cell's text does not sort rightly; None sorts last."""
    facets: Mapping[str, FacetValue] = field(default_factory=lambda: _NO_FACETS)
    full: str = ""
    """What the flash row shows of the row under the cursor where cells were cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a table of some size shows now."""

    header: Line
    rows: tuple[tuple[Ref, Line], ...]
    cursor: int | None
    """Index among `rows`."""
    n_matching: int
    n_all: int
    top: int
    """Index of the first row shown, among those that match."""


@final
class TableModel:
    """The rows of one table, and where the operator is in them.

    Args:
        columns: In the order they are shown.
        facets: Names of the facets that rows have.
        sort: Key of the column sorted by at first; None keeps the order that rows came in.
        paged: What its paged columns are called together: `nodes`.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        facets: frozenset[str] = frozenset(),
        sort: str | None = None,
        paged: str = "columns",
    ) -> None:
        self.columns = ColumnSet(columns, paged=paged)
        self.facets = facets
        self.sort_key = sort
        self.is_reversed = False
        self.marks: set[Ref] = set()
        self.filter = RowFilter()
        self._rows: tuple[TableRow, ...] = ()
        self._matching: tuple[TableRow, ...] = ()
        self._cursor: Ref | None = None
        self._cursor_index = 0
        self._top = 0
        self._range_from: Ref | None = None

    # ---- Rows ----

    def set_rows(self, rows: Iterable[TableRow]) -> None:
        """Replace all rows; the cursor stays on its object, or where that object was."""
        self._rows = tuple(rows)
        present = {row.ref for row in self._rows}
        self.marks &= present
        self._arrange()

    def set_columns(self, columns: Sequence[Column]) -> None:
        """Replace the columns."""
        self.columns.replace(columns)
        if self.sort_key not in {item.key for item in columns}:
            self.sort_key = None
        self._arrange()

    def set_filter(self, text: str) -> None:
        """Show the rows that match a filter."""
        self.filter = RowFilter(text, self.facets)
        self._arrange()

    @property
    def rows(self) -> tuple[TableRow, ...]:
        """The rows that match, in the order shown."""
        return self._matching

    @property
    def n_all(self) -> int:
        """How many rows there are, matching or not."""
        return len(self._rows)

    # ---- The operator ----

    @property
    def cursor(self) -> Ref | None:
        """The object under the cursor; None in an empty table."""
        return self._cursor

    @property
    def cursor_row(self) -> TableRow | None:
        """Its row."""
        if self._cursor is None:
            return None
        return self._matching[self._cursor_index]

    @property
    def selection(self) -> tuple[Ref, ...]:
        """What an action is about: the marked objects, or else the one under the cursor."""
        if self.marks:
            return tuple(row.ref for row in self._matching if row.ref in self.marks)
        return () if self._cursor is None else (self._cursor,)

    def move(self, by: int) -> None:
        """Move the cursor by so many rows; it stops at the ends."""
        self.move_to(self._cursor_index + by)

    def move_to(self, index: int) -> None:
        """Put the cursor on a row; beyond the ends it stays on the first or last one."""
        if not self._matching:
            return
        self._cursor_index = max(0, min(index, len(self._matching) - 1))
        self._cursor = self._matching[self._cursor_index].ref

    def point_at(self, ref: Ref) -> bool:
        """Put the cursor on an object; False where it is not shown."""
        for index, row in enumerate(self._matching):
            if row.ref == ref:
                self.move_to(index)
                return True
        return False

    def mark(self) -> None:
        """Mark the object under the cursor, or take its mark away, and go on to the next."""
        if self._cursor is None:
            return
        self.marks ^= {self._cursor}
        self._range_from = self._cursor
        self.move(1)

    def mark_range(self) -> None:
        """Mark from the last object marked to the one under the cursor."""
        if self._cursor is None:
            return
        indices = {row.ref: index for index, row in enumerate(self._matching)}
        start = indices.get(self._range_from, self._cursor_index) if self._range_from else (
            self._cursor_index
        )  # fmt: skip
        low, high = sorted((start, self._cursor_index))
        self.marks |= {row.ref for row in self._matching[low : high + 1]}

    def mark_all(self) -> None:
        """Mark all that match, or, where all are marked, none."""
        shown = {row.ref for row in self._matching}
        self.marks = set() if shown and shown <= self.marks else shown

    def clear_marks(self) -> bool:
        """Take all marks away; False where there was none."""
        had_any = bool(self.marks)
        self.marks = set()
        return had_any

    def sort(self, column: str = "") -> None:
        """Sort by a column; without one by the next, and after the last as the rows come in."""
        keys: list[str | None] = [
            None,
            *(item.key for item in self.columns.chosen if item.is_sortable),
        ]
        here = keys.index(self.sort_key) if self.sort_key in keys else 0
        self.sort_key = column or keys[(here + 1) % len(keys)]
        self.is_reversed = False
        self._arrange()

    def reverse(self) -> None:
        """Turn the order round."""
        self.is_reversed = not self.is_reversed
        self._arrange()

    @property
    def state(self) -> str:
        """What the pane's rule says of the order, the filter and the columns, as drawn last."""
        # What hides rows stands first: where there is no room, the end is cut.
        parts: list[str] = []
        if self.filter:
            text = text_of(cut(line(span(self.filter.text)), _FILTER_CELLS))
            parts.append(f"filter: {text} ({len(self._matching)} of {self.n_all})")
        if self.columns.page_state:
            parts.append(self.columns.page_state)
        if self.marks:
            parts.append(f"{len(self.marks)} marked")
        if self.sort_key is not None:
            title = next(item.title for item in self.columns.all if item.key == self.sort_key)
            parts.append(f"sort: {title.lower()} {'v' if self.is_reversed else '^'}")
        if self.columns.choice_state:
            parts.append(self.columns.choice_state)
        return "   ".join(parts)

    # ---- What is drawn ----

    def shown(self, width: int, height: int) -> Shown:
        """Give the header and `height` rows of a width, with the cursor among them.

        Each row begins with two cells: `>` at the cursor, `*` at a mark.
        """
        layout = self.columns.lay_out(width)
        self._scroll(height)
        window = self._matching[self._top : self._top + max(0, height)]
        rows = tuple((row.ref, self._draw(row, layout, width)) for row in window)
        is_visible = self._cursor is not None and height > 0
        return Shown(
            header=_header(layout, width),
            rows=rows,
            cursor=self._cursor_index - self._top if is_visible else None,
            n_matching=len(self._matching),
            n_all=len(self._rows),
            top=self._top,
        )

    def _draw(self, row: TableRow, layout: Layout, width: int) -> Line:
        is_here = row.ref == self._cursor
        spans: list[Span] = [
            Span(">" if is_here else " ", "accent"),
            Span("*" if row.ref in self.marks else " ", "accent"),
        ]
        for index, (column, cells) in enumerate(layout.columns):
            if index:
                spans.append(Span(" " * GAP))
            spans.extend(fit(row.cells.get(column.key, EMPTY), cells, align=column.align))
        return fit(tuple(spans), width)

    def _scroll(self, height: int) -> None:
        if height <= 0 or self._cursor is None:
            self._top = 0
            return
        lowest = max(0, len(self._matching) - height)
        self._top = min(self._top, self._cursor_index, lowest)
        self._top = max(self._top, self._cursor_index - height + 1)

    # ---- Order ----

    def _arrange(self) -> None:
        rows = [row for row in self._rows if self._is_shown(row)]
        key = self.sort_key
        if key is not None:
            known = [row for row in rows if _sort_value(row, key) is not None]
            unknown = [row for row in rows if _sort_value(row, key) is None]
            known.sort(key=lambda row: _sortable(row, key), reverse=self.is_reversed)
            rows = known + unknown
        elif self.is_reversed:
            rows.reverse()
        self._matching = tuple(rows)
        self._follow()

    def _is_shown(self, row: TableRow) -> bool:
        if not self.filter:
            return True
        text = " ".join(text_of(cell) for cell in row.cells.values())
        return self.filter.lets_through(f"{row.ref.shown} {text}", row.facets)

    def _follow(self) -> None:
        """Keep the cursor on its object; where that is gone, on what stands there now."""
        if not self._matching:
            self._cursor, self._cursor_index = None, 0
            return
        for index, row in enumerate(self._matching):
            if row.ref == self._cursor:
                self._cursor_index = index
                return
        self.move_to(self._cursor_index)


def _header(layout: Layout, width: int) -> Line:
    spans: list[Span] = [Span("  ")]
    for index, (column, cells) in enumerate(layout.columns):
        if index:
            spans.append(Span(" " * GAP))
        spans.extend(fit(cut((Span(column.title, "dim"),), cells), cells, align=column.align))
    return fit(tuple(spans), width)


def _sort_value(row: TableRow, key: str) -> SortValue | None:
    if key in row.sort:
        return row.sort[key]
    return text_of(row.cells.get(key, EMPTY)).strip().lower()


def _sortable(row: TableRow, key: str) -> tuple[bool, float, str]:
    """Numbers before texts; a column has the one or the other."""
    value = _sort_value(row, key)
    if isinstance(value, int | float):
        return (False, float(value), "")
    return (True, 0.0, str(value))
