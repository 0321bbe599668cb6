"""A table without a terminal: identity, order, filter, marks, widths."""

import random

import pytest

from skulk_tui.lines import Span, line, text_of, width_of
from skulk_tui.table_columns import Column, lay_out
from skulk_tui.table_model import Ref, TableModel, TableRow

_COLUMNS = (
    Column(key="name", title="NODE", width=8, grow=1),
    Column(key="mem", title="MEM", width=5, align="right", drop=1),
    Column(key="net", title="NET", width=9, drop=2),
)


def _row(name: str, memory: int | None = 1, *, node_id: str = "") -> TableRow:
    return TableRow(
        ref=Ref(kind="node", id=node_id or name, name=name),
        cells={"name": line(name), "mem": line(f"{memory}G"), "net": line("0/0")},
        sort={"mem": memory},
        facets={"size": None if memory is None else memory * 2**30, "on": name},
    )


def _model(*rows: TableRow, sort: str | None = "name") -> TableModel:
    model = TableModel(_COLUMNS, facets=frozenset({"size", "on"}), sort=sort)
    model.set_rows(rows)
    return model


def _names(model: TableModel) -> list[str]:
    return [row.ref.shown for row in model.rows]


def test_the_cursor_stays_on_its_object_when_rows_are_sorted_anew_and_others_come() -> None:
    model = _model(_row("b"), _row("c"), _row("d"))
    model.move_to(1)
    model.set_rows([_row("a"), _row("c", 9), _row("b"), _row("d")])
    assert model.cursor == Ref(kind="node", id="c", name="c")
    model.sort()
    model.reverse()
    assert model.cursor is not None
    assert model.cursor.id == "c"


def test_where_the_object_is_gone_the_cursor_is_on_what_stands_there_now() -> None:
    model = _model(_row("a"), _row("b"), _row("c"))
    model.move_to(1)
    model.set_rows([_row("a"), _row("c")])
    assert model.cursor is not None
    assert model.cursor.id == "c"
    model.set_rows([])
    assert model.cursor is None
    assert model.cursor_row is None
    assert model.selection == ()


def test_an_unknown_value_sorts_last_both_ways() -> None:
    model = _model(_row("a", None), _row("b", 3), _row("c", 2), sort="mem")
    assert _names(model) == ["c", "b", "a"]
    model.reverse()
    assert _names(model) == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("typed", "left"),
    [
        ("", ["den-01", "den-02", "rack"]),
        ("den", ["den-01", "den-02"]),
        ("!den", ["rack"]),
        ("~d2", ["den-02"]),
        ("size:<2G", ["den-01"]),
        ("size:>=2G !rack", ["den-02"]),
        ("on:rack", ["rack"]),
        ("DEN 02", ["den-02"]),
        ("nothing", []),
    ],
)
def test_a_filter_is_text_inverse_fuzzy_and_facets(typed: str, left: list[str]) -> None:
    model = _model(_row("den-01", 1), _row("den-02", 2), _row("rack", 4))
    model.set_filter(typed)
    assert _names(model) == left


def test_marks_hold_objects_and_go_with_them() -> None:
    model = _model(_row("a"), _row("b"), _row("c"), _row("d"))
    model.mark()
    model.move(1)
    model.mark_range()
    assert [ref.id for ref in model.selection] == ["a", "b", "c"]
    model.set_rows([_row("c"), _row("d")])
    assert [ref.id for ref in model.selection] == ["c"]
    model.mark_all()
    assert len(model.selection) == 2
    model.mark_all()
    assert [ref.id for ref in model.selection] == [model.cursor.id if model.cursor else ""]


@pytest.mark.parametrize(
    ("width", "kept"),
    [(60, ["name", "mem", "net"]), (20, ["name", "mem"]), (9, ["name"]), (1, ["name"])],
)
def test_columns_go_in_their_fixed_order(width: int, kept: list[str]) -> None:
    layout = lay_out(_COLUMNS, width)
    assert [column.key for column, _ in layout.columns] == kept


@pytest.mark.parametrize(
    "name", ["日本語の名前をもつノード", "x" * 300, "a\u0301" * 40, "[red]x[/]"]
)
@pytest.mark.parametrize("width", [1, 2, 7, 24, 60, 120])
def test_every_line_has_exactly_the_width(name: str, width: int) -> None:
    model = _model(_row(name, node_id="n1"), _row("b"))
    shown = model.shown(width, 5)
    assert width_of(shown.header) == width
    assert {width_of(content) for _, content in shown.rows} == {width}


def test_the_cursor_is_always_among_the_rows_shown() -> None:
    choose = random.Random(7)  # ruff: ignore[suspicious-non-cryptographic-random-usage]  seeded
    model = _model()
    for _ in range(400):
        step = choose.randrange(5)
        if step == 0:
            model.set_rows(
                [_row(f"n{choose.randrange(60):02}") for _ in range(choose.randrange(50))]
            )
        elif step == 1:
            model.move(choose.randrange(-30, 31))
        elif step == 2:
            model.set_filter(choose.choice(["", "1", "!2", "zzz"]))
        elif step == 3:
            model.sort()
        else:
            model.reverse()
        height = choose.randrange(1, 20)
        shown = model.shown(50, height)
        if model.cursor is None:
            assert shown.rows == ()
        else:
            assert shown.cursor is not None
            assert shown.rows[shown.cursor][0] == model.cursor
            assert len(shown.rows) == min(height, len(model.rows))


def test_the_cursor_and_marks_are_written_and_not_only_coloured() -> None:
    model = _model(_row("a"), _row("b"))
    model.mark()
    shown = model.shown(30, 5)
    assert [text_of(content)[:2] for _, content in shown.rows] == [" *", "> "]
    assert shown.rows[1][1][0] == Span(">", "accent")
