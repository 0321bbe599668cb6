import json
from dataclasses import dataclass

import pytest
import yaml

from protocol.errors import ClientError
from skulk_tui.cli.output import (
    Column,
    Listing,
    Output,
    OutputFormat,
    Table,
    TableWish,
    fit,
    with_columns,
)
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


# ---- YAML ----------------------------------------------------------------------------------------


def test_yaml_is_the_document_of_json() -> None:
    hostile = ("a: b", "- c", "yes", "2026-11-30T14:00:00Z", "0x10", "\x1b[2J", "é\n")
    assert yaml.safe_load(shown(*hostile, form="yaml")) == json.loads(shown(*hostile, form="json"))


def test_what_follows_is_a_document_of_yaml_each() -> None:
    stream = Stream()
    output = Output(stream, form="yaml", color=False, width=None)
    for n in (1, 2):
        output.write_record({"type": "added", "seq": n, "object": ("a", "b")})
    documents = list(yaml.safe_load_all(stream.getvalue()))
    assert [one["seq"] for one in documents] == [1, 2]
    assert documents[0]["object"] == ["a", "b"]


# ---- Columns -------------------------------------------------------------------------------------


def with_wish(wish: TableWish, *, form: OutputFormat = "table", width: int | None = None) -> str:
    stream = Stream()
    Output(stream, form=form, color=False, width=width, wish=wish).show(listing("alpha", "b"))
    return stream.getvalue()


def test_columns_come_in_the_order_in_which_they_are_named() -> None:
    assert with_wish(TableWish(columns=("n", "Name"))) == "N  NAME\n0  alpha\n1  b\n"


def test_a_column_that_is_named_is_shown_though_it_is_for_wide_tables() -> None:
    assert with_wish(TableWish(columns=("more",))) == "MORE\nm\nm\n"


def test_a_table_without_titles_is_its_rows() -> None:
    assert with_wish(TableWish(has_heads=False)) == "alpha  0\nb      1\n"
    assert with_wish(TableWish(columns=("name",), has_heads=False)) == "alpha\nb\n"


def test_a_column_that_no_table_has_names_the_nearest() -> None:
    with pytest.raises(ClientError) as refused:
        with_wish(TableWish(columns=("nmae",)))
    assert (refused.value.code, refused.value.remediation) == (
        "client.usage",
        "Did you mean 'name'?",
    )


def test_titles_are_written_as_options_are() -> None:
    table = Table((Column("MEMORY FREE"), Column("+ KV CACHE")), (("1", "2"),))
    (left,) = with_columns([table], ["kv-cache", "Memory_Free"])
    assert [column.title for column in left.columns] == ["+ KV CACHE", "MEMORY FREE"]
    assert left.rows == (("2", "1"),)


def test_of_several_tables_those_stay_that_have_the_most_of_the_columns() -> None:
    first = Table((Column("NODE"), Column("CPU")), (("a", "1"),))
    second = Table((Column("NODE"), Column("INSTANCE")), (("a", "i"),))
    only_cpu = Table((Column("NODE"), Column("CPU")), (("a", "1"),))
    assert with_columns([first, second], ["node", "cpu"]) == [only_cpu]
    assert len(with_columns([first, second], ["node"])) == 2
