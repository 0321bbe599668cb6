"""What a command puts on stdout: one listing, as table, JSON, lines of JSON, or names.

stdout is data; everything that is told about it goes to stderr. rich is imported when a table is
drawn, not before.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Final, Literal, TextIO, final, get_args

from skulk_tui.formatting import strip_controls

OutputFormat = Literal["table", "wide", "json", "jsonl", "name"]
OUTPUT_FORMATS: Final[tuple[OutputFormat, ...]] = get_args(OutputFormat)
ColorWhen = Literal["auto", "always", "never"]
COLOR_CHOICES: Final[tuple[ColorWhen, ...]] = get_args(ColorWhen)

# No terminal cuts what is piped: a width that no table reaches.
_UNBOUNDED_WIDTH: Final = 100_000


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column."""

    title: str
    right: bool = False
    """Numbers line up on the right."""
    wide_only: bool = False
    """Shown with `-o wide` only."""


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
                self.write(json.dumps(document(listing), ensure_ascii=False, indent=2) + "\n")
            case "jsonl":
                for item in listing.items:
                    self.line_of_json(plain(item))
            case "name":
                self.write("".join(f"{name}\n" for name in listing.names))
            case "table" | "wide":
                shown = [table for table in listing.tables if table.rows]
                self.write("\n".join(self._draw(table) for table in shown))

    def line_of_json(self, value: object) -> None:
        """Write one value as one line."""
        self.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")

    def write(self, text: str) -> None:
        """Write data and push it out.

        Raises:
            BrokenPipeError: The reader has gone; the program then ends well.
        """
        self._stream.write(text)
        self._stream.flush()

    def _draw(self, table: Table) -> str:
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        shown = [
            index
            for index, column in enumerate(table.columns)
            if self.form == "wide" or not column.wide_only
        ]
        rich_table = RichTable(
            box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False
        )
        for index in shown:
            column = table.columns[index]
            rich_table.add_column(
                Text(column.title),
                justify="right" if column.right else "left",
                no_wrap=True,
                overflow="ellipsis",
            )
        for row in table.rows:
            rich_table.add_row(*(Text(self._cell(row[index])) for index in shown))
        console = Console(
            color_system="standard" if self._color else None,
            force_terminal=self._color,
            no_color=not self._color,
            width=self._width or _UNBOUNDED_WIDTH,
            legacy_windows=False,
        )
        with console.capture() as captured:
            console.print(rich_table)
        return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())

    def _cell(self, text: str) -> str:
        flat = text.replace("\n", " ").replace("\t", " ")
        return strip_controls(flat) if self.is_terminal else flat


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
    return Table(columns=(Column("FIELD"), Column("VALUE")), rows=tuple(pairs))
