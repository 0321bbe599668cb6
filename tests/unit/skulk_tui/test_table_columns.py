"""Columns of a table: those of many alike are shown by pages, and any can be left out."""

import pytest

from protocol.errors import ClientError
from skulk_tui.lines import text_of
from skulk_tui.screens.columns import left_out
from skulk_tui.table_columns import Column, ColumnSet
from skulk_tui.table_model import TableModel


def _matrix(*nodes: str) -> tuple[Column, ...]:
    alike = (Column(key=name, title=name, width=4, is_paged=True) for name in nodes)
    return (Column(key="name", title="NODE", width=8), *alike)


_THREE_FIT = 2 + 8 + 3 * (2 + 4)


def _titles(model: TableModel, width: int = _THREE_FIT) -> list[str]:
    return text_of(model.shown(width, 3).header).split()


def test_columns_of_many_alike_are_shown_by_pages_and_the_others_stay() -> None:
    model = TableModel(_matrix("a", "b", "c", "d", "e"), paged="nodes")
    assert _titles(model) == ["NODE", "a", "b", "c"]
    assert model.state == "< > nodes 1-3 of 5"
    assert not model.columns.turn_page(-1, _THREE_FIT)
    assert model.columns.turn_page(1, _THREE_FIT)
    assert _titles(model) == ["NODE", "c", "d", "e"]
    assert model.state == "< > nodes 3-5 of 5"
    assert not model.columns.turn_page(1, _THREE_FIT)
    assert model.columns.turn_page(-1, _THREE_FIT)
    assert _titles(model) == ["NODE", "a", "b", "c"]


def test_the_page_stays_at_its_column_when_others_come_and_widens_with_the_room() -> None:
    model = TableModel(_matrix("b", "c", "d", "e", "f", "g"))
    model.columns.turn_page(1, _THREE_FIT)
    model.set_columns(_matrix("a", "b", "c", "d", "e", "f", "g"))
    assert _titles(model) == ["NODE", "e", "f", "g"]
    assert model.columns.page_keys(_THREE_FIT) == ["e", "f", "g"]
    model.set_columns(_matrix("a", "b", "c", "d"))
    assert _titles(model) == ["NODE", "a", "b", "c"]
    assert _titles(model, 60) == ["NODE", "a", "b", "c", "d"]
    assert not model.state


@pytest.mark.parametrize("width", [1, 8, 14])
def test_one_of_the_paged_columns_is_shown_however_narrow_it_is(width: int) -> None:
    columns = ColumnSet(_matrix("a", "b", "c"), paged="nodes")
    columns.turn_page(1, width)
    assert [column.key for column, _ in columns.lay_out(width).columns] == ["name", "b"]
    assert columns.page_state == "< > nodes 2 of 3"


def _nodes() -> ColumnSet:
    return ColumnSet(
        [
            Column(key="name", title="NODE", width=8),
            Column(key="mem", title="MEM", width=5),
            Column(key="why", title="REFUSED BECAUSE", width=9),
        ]
    )


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("node,mem", ["name", "mem"]),
        ("MEM refused-because", ["name", "mem", "why"]),
        ("mem", ["name", "mem"]),
        ("-mem", ["name"]),
        ("-mem,+refused-because", ["name", "why"]),
        ("-node", ["name", "mem"]),
        ("all", ["name", "mem", "why"]),
    ],
)
def test_columns_are_chosen_by_name_or_by_sign_and_the_first_stays(
    words: str, keys: list[str]
) -> None:
    columns = _nodes()
    columns.leave_out({"why"})
    columns.leave_out(left_out(columns, words))
    assert [column.key for column in columns.chosen] == keys
    assert columns.choice_state == (f"{3 - len(keys)} left out" if len(keys) < 3 else "")


@pytest.mark.parametrize("words", ["colour", "+colour", "mem -node", "-"])
def test_a_column_that_is_not_there_and_names_with_and_without_signs_are_refused(
    words: str,
) -> None:
    with pytest.raises(ClientError):
        left_out(_nodes(), words)


def test_a_table_may_be_sorted_by_a_column_that_is_left_out() -> None:
    model = TableModel(_nodes().all, sort="mem")
    model.columns.leave_out({"mem"})
    assert "MEM" not in text_of(model.shown(60, 3).header)
    assert model.state == "sort: mem ^   1 left out"
    model.sort()
    assert model.sort_key == "name"


def test_all_nodes_may_be_left_out() -> None:
    model = TableModel(_matrix("a", "b"), paged="nodes")
    model.columns.leave_out({"a", "b"})
    assert _titles(model) == ["NODE"]
    assert not model.columns.turn_page(1, _THREE_FIT)
    assert model.state == "2 left out"
