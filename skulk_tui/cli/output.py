"""What a command puts on stdout: one listing, as table, JSON, lines of JSON, YAML, or names.

stdout is data; everything that is told about it goes to stderr. rich is imported when a table is
drawn, and yaml when YAML is written, not before.
"""

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any, Final, Literal, TextIO, final, get_args

from protocol.errors import ClientError
from skulk_tui.cli.nearest import unknown_value
from skulk_tui.formatting import strip_controls

OutputFormat = Literal["table", "wide", "json", "jsonl", "yaml", "name"]
OUTPUT_FORMATS: Final[tuple[OutputFormat, ...]] = get_args(OutputFormat)
ColorWhen = Literal["auto", "always", "never"]
COLOR_CHOICES: Final[tuple[ColorWhen, ...]] = get_args(ColorWhen)

# No terminal cuts what is piped: a width that no table reaches.
_UNBOUNDED_WIDTH: Final = 100_000
GAP: Final = 2
"""Spaces between columns."""
_FOR_PROGRAMS: Final[frozenset[OutputFormat]] = frozenset({"json", "jsonl", "yaml"})
_APART: Final = re.compile(r"[^0-9a-z]+")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWish:
    """What is wanted of a table."""

    columns: tuple[str, ...] = ()
    """Only these, in this order; none is what the table shows by itself."""
    has_heads: bool = True


@final
class Output:
    """Writes listings to stdout.

    Args:
        stream: Standard output.
        form: How listings are written.
        color: Whether tables are coloured.
        width: Columns of the terminal; None when it is none, and then nothing is cut.
        wish: What is wanted of tables.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        form: OutputFormat,
        color: bool,
        width: int | None,
        wish: TableWish | None = None,
    ) -> None:
        self._wish = wish or TableWish()
        self._stream = stream
        self.form: OutputFormat = form
        self._color = color
        self._width = width
        self.is_ascii: bool = (stream.encoding or "").lower() == "ascii"

    @property
    def is_for_programs(self) -> bool:
        """Does a machine read this?"""
        return is_for_programs(self.form)

    @property
    def is_terminal(self) -> bool:
        """Does a person read this on a terminal?"""
        return self._width is not None

    def show(self, listing: Listing) -> None:
        """Write a listing whole, in the form chosen.

        Raises:
            ClientError: `client.usage`; a column was wanted that no table has.
        """
        match self.form:
            case "json":
                self.write(self._json(document(listing), indent=2) + "\n")
            case "jsonl":
                for item in listing.items:
                    self.write_record(plain(item))
            case "yaml":
                self.write(self._yaml(document(listing)))
            case "name":
                self.write("".join(f"{name}\n" for name in listing.names))
            case "table" | "wide":
                self.write(self.text_of(listing.tables))

    def text_of(self, tables: Sequence[Table]) -> str:
        """Draw tables one below the other, without those that have no rows.

        Raises:
            ClientError: `client.usage`; a column was wanted that no table has.
        """
        if self._wish.columns and tables:
            tables = with_columns(tables, self._wish.columns)
        return "\n".join(self._draw(table) for table in tables if table.rows)

    def write_record(self, value: object) -> None:
        """Write one of several values that come one after the other: a line, or a document."""
        if self.form == "yaml":
            self.write("---\n" + self._yaml(value))
        else:
            self.write(self._json(value, separators=(",", ":")) + "\n")

    def _json(
        self, value: object, *, indent: int | None = None, separators: tuple[str, str] | None = None
    ) -> str:
        return json.dumps(value, ensure_ascii=self.is_ascii, indent=indent, separators=separators)

    def _yaml(self, value: object) -> str:
        import yaml

        return yaml.safe_dump(  # pyright: ignore[reportUnknownMemberType]  stubs leave one open
            value, sort_keys=False, allow_unicode=not self.is_ascii, width=_UNBOUNDED_WIDTH
        )

    def write(self, text: str) -> None:
        """Write data and push it out.

        Raises:
            BrokenPipeError: The reader has gone; the program then ends well.
            ClientError: `client.output_failed`; a disk is full, for one.
        """
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:
            raise
        except OSError as wrong:
            raise ClientError(
                "client.output_failed",
                f"standard output cannot be written: {wrong.strerror or wrong}",
                remediation="Make room where it goes; what was asked for is done.",
            ) from wrong

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
            index: [
                column.title if self._wish.has_heads else "",
                *(self._cell(row[index]) for row in table.rows),
            ]
            for index, column in shown.items()
        }
        natural = {index: max(map(cell_len, texts)) for index, texts in cells.items()}
        room = self._width if self.form == "table" else None
        widths = natural if room is None else fit(shown, natural, room)
        rich_table = RichTable(
            box=None,
            pad_edge=False,
            padding=(0, GAP, 0, 0),
            header_style="bold",
            show_edge=False,
            show_header=self._wish.has_heads,
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
        drawn = io.StringIO()  # or rich would touch standard output, which may be out of order
        console = Console(
            file=drawn,
            color_system="standard" if self._color else None,
            force_terminal=self._color,
            no_color=not self._color,
            width=_UNBOUNDED_WIDTH,
            legacy_windows=False,
        )
        console.print(rich_table)
        return "".join(f"{line.rstrip()}\n" for line in drawn.getvalue().splitlines())

    def _cell(self, text: str) -> str:
        flat = text.replace("\n", " ").replace("\t", " ")
        return strip_controls(flat) if self.is_terminal else flat


def is_for_programs(form: OutputFormat) -> bool:
    """Does a machine read what is written in this form?"""
    return form in _FOR_PROGRAMS


def with_columns(tables: Sequence[Table], names: Sequence[str]) -> list[Table]:
    """Leave of each table the columns that are named, in that order.

    Those tables stay that have the most of them: whoever names columns of one means that one.

    Args:
        tables: Of one listing.
        names: Titles of columns, in capitals or not, with `-` or `_` for what is no letter.

    Raises:
        ClientError: `client.usage`; no table has such a column.
    """
    wanted = [_key(name) for name in names]
    known = {_key(column.title): column.title for one in tables for column in one.columns}
    for name, key in zip(names, wanted, strict=True):
        if key not in known:
            raise unknown_value("a column of this listing", name, known)
    left = [_left(one, wanted) for one in tables]
    most = max(len(one.columns) for one in left)
    return [one for one in left if len(one.columns) == most]


def _key(title: str) -> str:
    return _APART.sub("-", title.casefold()).strip("-")


def _left(table: Table, wanted: Sequence[str]) -> Table:
    at = {_key(column.title): index for index, column in enumerate(table.columns)}
    kept = [at[key] for key in wanted if key in at]
    # What somebody asked for is neither for wide tables alone nor left out where it is narrow.
    columns = (replace(table.columns[index], wide_only=False, drop=0) for index in kept)
    return Table(tuple(columns), tuple(tuple(row[index] for index in kept) for row in table.rows))


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
