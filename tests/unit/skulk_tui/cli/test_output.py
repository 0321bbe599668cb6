import json
from dataclasses import dataclass

from skulk_tui.cli.output import Column, Listing, Output, OutputFormat, Table, fit
from tests.support.command_line import Stream


@dataclass(frozen=True)
class Item:
    name: str
    n: int


def listing(*names: str) -> Listing:
    columns = (Column("NAME", least=8), Column("N", right=True), Column("MORE", wide_only=True))
    return Listing(
        kind="things",
        seq=7,
        items=[Item(name, index) for index, name in enumerate(names)],
        tables=(Table(columns, tuple((name, str(i), "m") for i, name in enumerate(names))),),
        names=names,
    )


def shown(
    *names: str, form: OutputFormat = "table", color: bool = False, width: int | None = None
) -> str:
    stream = Stream()
    Output(stream, form=form, color=color, width=width).show(listing(*names))
    return stream.getvalue()


def test_a_table_has_its_numbers_on_the_right_and_no_trailing_space() -> None:
    assert shown("alpha", "b") == "NAME   N\nalpha  0\nb      1\n"


def test_wide_shows_more_columns() -> None:
    assert shown("a", form="wide") == "NAME  N  MORE\na     0  m\n"


def test_names_come_one_a_line() -> None:
    assert shown("a", "b", form="name") == "a\nb\n"


def test_json_is_one_document_with_kind_and_seq() -> None:
    assert json.loads(shown("a", form="json")) == {
        "kind": "things",
        "seq": 7,
        "items": [{"name": "a", "n": 0}],
    }


def test_lines_of_json_hold_one_item_each() -> None:
    lines = shown("a", "b", form="jsonl").splitlines()
    assert [json.loads(line) for line in lines] == [{"name": "a", "n": 0}, {"name": "b", "n": 1}]


def test_an_empty_list_is_an_empty_list() -> None:
    assert json.loads(shown(form="json"))["items"] == []
    assert [shown(), shown(form="jsonl"), shown(form="name")] == ["", "", ""]


def test_a_terminal_gets_a_table_that_fits_and_a_pipe_gets_it_whole() -> None:
    long = "x" * 200
    assert max(map(len, shown(long, width=40).splitlines())) <= 40
    assert long in shown(long)


def test_color_is_there_only_when_asked_for() -> None:
    assert "\x1b[" in shown("a", color=True, width=80)
    assert "\x1b[" not in shown("a", width=80)


def test_a_terminal_is_shielded_from_escape_sequences_and_a_pipe_is_not() -> None:
    assert "\x1b" not in shown("a\x1b[2Jb", width=80)
    assert "a\x1b[2Jb" in shown("a\x1b[2Jb")


def test_markup_and_newlines_in_foreign_text_are_plain_text() -> None:
    assert "[red]x[/red]" in shown("[red]x[/red]", width=80)
    assert len(shown("a\nb").splitlines()) == 2


def test_the_widest_column_shrinks_first_and_then_columns_go() -> None:
    columns = {
        0: Column("A", least=4),
        1: Column("B", least=4),
        2: Column("C", drop=1),
        3: Column("D", drop=2),
    }
    natural = {0: 20, 1: 10, 2: 5, 3: 5}
    assert fit(columns, natural, 46) == natural
    assert fit(columns, natural, 40) == {0: 14, 1: 10, 2: 5, 3: 5}
    assert fit(columns, natural, 22) == {0: 6, 1: 7, 2: 5}
    assert fit(columns, natural, 3) == {0: 4, 1: 4}
