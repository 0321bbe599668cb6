"""What a command puts on stdout: one listing, as table, JSON, lines of JSON, or names.

stdout is data; everything that is told about it goes to stderr. rich is imported when a table is
drawn, not before.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Final, Literal, TextIO, final, get_args

from skulk_tui.formatting import strip_controls

OutputFormat = Literal["table", "wide", "json", "jsonl", "name"]
OUTPUT_FORMATS: Final[tuple[OutputFormat, ...]] = get_args(OutputFormat)
ColorWhen = Literal["auto", "always", "never"]
COLOR_CHOICES: Final[tuple[ColorWhen, ...]] = get_args(ColorWhen)

# No terminal cuts what is piped: a width that no table reaches.
_UNBOUNDED_WIDTH: Final = 100_000
GAP: Final = 2
"""Spaces between columns."""


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column."""

    title: str
    right: bool = False
    """Numbers line up on the right."""
    wide_only: bool = False
    """Shown with `-o wide` only."""
    least: int = 0
    """On a narrow terminal it may shrink to so many characters; 0 is not at all."""
    wraps: bool = False
    """What is cut from it is continued below, not left out."""
    drop: int = 0
    """On a terminal too narrow for all, columns go in falling order of this; 0 never goes."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for people. Invariant: each row has one cell per column."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What a command found, for people and for machines.

    `items` are dataclasses; their fields are the JSON interface, to which fields are only added.
    """

    kind: str
    items: Sequence[object]
    tables: Sequence[Table]
    names: Sequence[str]
    """One identifier per item, for `-o name`."""
    seq: int | None = None
    """Position in the cluster's log that the answer reflects, where the answer says."""


@final
class Output:
    """Writes listings to stdout.

    Args:
        stream: Standard output.
        form: How listings are written.
        color: Whether tables are coloured.
        width: Columns of the terminal; None when it is none, and then nothing is cut.
    """

    def __init__(
        self, stream: TextIO, *, form: OutputFormat, color: bool, width: int | None
    ) -> None:
        self._stream = stream
        self.form: OutputFormat = form
        self._color = color
        self._width = width
        self._is_ascii = (stream.encoding or "").lower() == "ascii"

    @property
    def is_json(self) -> bool:
        """Does a machine read this?"""
        return self.form in {"json", "jsonl"}

    @property
    def is_terminal(self) -> bool:
        """Does a person read this on a terminal?"""
        return self._width is not None

    def show(self, listing: Listing) -> None:
        """Write a listing whole, in the form chosen."""
        match self.form:
            case "json":
                self.write(self._json(document(listing), indent=2) + "\n")
            case "jsonl":
                for item in listing.items:
                    self.line_of_json(plain(item))
            case "name":
                self.write("".join(f"{name}\n" for name in listing.names))
            case "table" | "wide":
                self.write(self.text_of(listing.tables))

    def text_of(self, tables: Sequence[Table]) -> str:
        """Draw tables one below the other, without those that have no rows."""
        return "\n".join(self._draw(table) for table in tables if table.rows)

    def line_of_json(self, value: object) -> None:
        """Write one value as one line."""
        self.write(self._json(value, separators=(",", ":")) + "\n")

    def _json(
        self, value: object, *, indent: int | None = None, separators: tuple[str, str] | None = None
    ) -> str:
        return json.dumps(value, ensure_ascii=self._is_ascii, indent=indent, separators=separators)

    def write(self, text: str) -> None:
        """Write data and push it out.

        Raises:
            BrokenPipeError: The reader has gone; the program then ends well.
        """
        self._stream.write(text)
        self._stream.flush()

    def _draw(self, table: Table) -> str:
        from rich.cells import cell_len
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        shown = {
            index: column
            for index, column in enumerate(table.columns)
            if self.form == "wide" or not column.wide_only
        }
        cells = {
            index: [column.title, *(self._cell(row[index]) for row in table.rows)]
            for index, column in shown.items()
        }
        natural = {index: max(map(cell_len, texts)) for index, texts in cells.items()}
        room = self._width if self.form == "table" else None
        widths = natural if room is None else fit(shown, natural, room)
        rich_table = RichTable(
            box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold", show_edge=False
        )
        for index, width in widths.items():
            column = shown[index]
            rich_table.add_column(
                Text(column.title),
                justify="right" if column.right else "left",
                no_wrap=not column.wraps,
                overflow="fold" if column.wraps else "ellipsis",
                width=width,
            )
        for line in range(1, len(table.rows) + 1):
            rich_table.add_row(*(Text(cells[index][line]) for index in widths))
        console = Console(
            color_system="standard" if self._color else None,
            force_terminal=self._color,
            no_color=not self._color,
            width=_UNBOUNDED_WIDTH,
            legacy_windows=False,
        )
        with console.capture() as captured:
            console.print(rich_table)
        return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())

    def _cell(self, text: str) -> str:
        flat = text.replace("\n", " ").replace("\t", " ")
        return strip_controls(flat) if self.is_terminal else flat


def fit(columns: Mapping[int, Column], natural: Mapping[int, int], room: int) -> dict[int, int]:
    """Choose column widths for a terminal: shrink the widest that may, then leave columns out.

    Args:
        columns: The columns by position.
        natural: What each would take.
        room: Columns of the terminal.

    Returns:
        The width of each column that stays; together with the gaps more than `room` only when
        nothing may shrink or go any more.
    """
    kept = list(columns)
    while True:
        widths = {index: natural[index] for index in kept}
        over = sum(widths.values()) + GAP * (len(kept) - 1) - room
        while over > 0:
            shrinkable = [i for i in kept if columns[i].least and widths[i] > columns[i].least]
            if not shrinkable:
                break
            widths[max(shrinkable, key=lambda index: widths[index])] -= 1
            over -= 1
        droppable = [index for index in kept if columns[index].drop]
        if over <= 0 or not droppable:
            return widths
        kept.remove(max(droppable, key=lambda index: columns[index].drop))


def document(listing: Listing) -> dict[str, object]:
    """Give the JSON form of a listing: `{"kind", "seq", "items"}`."""
    return {
        "kind": listing.kind,
        "seq": listing.seq,
        "items": [plain(item) for item in listing.items],
    }


def plain(item: object) -> dict[str, Any]:
    """Turn a record into what JSON can hold.

    Raises:
        AssertionError: The item is no dataclass.
    """
    if not is_dataclass(item) or isinstance(item, type):
        msg = f"{type(item).__name__} is not a record"
        raise AssertionError(msg)
    return asdict(item)


def key_values(pairs: Sequence[tuple[str, str]]) -> Table:
    """Make a table of names and values for one thing."""
    return Table(
        columns=(Column("FIELD"), Column("VALUE", least=20, wraps=True)), rows=tuple(pairs)
    )
