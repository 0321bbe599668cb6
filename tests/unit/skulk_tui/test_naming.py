"""A word names one object, or it is said why it names none."""

import pytest

from protocol.errors import SkulkError
from protocol.session import Rows, row_key
from skulk_tui.naming import ref_named, url_of_node
from skulk_tui.view_state import ViewState
from tests.support.builders import NOW_MS, a_command_id, a_node_id
from tests.support.den_cluster import den_member, den_node


def _view(**names: str) -> ViewState:
    view = ViewState()
    rows: dict[str, object] = {}
    for index, name in enumerate(names.values(), 1):
        node = den_node(index, member=den_member(index, name=name))
        rows[row_key("node", a_node_id(index))] = node.model_dump(mode="json")
    view.apply_rows(Rows(id=1, cursor="c", is_snapshot=True, rows=rows, at_ms=NOW_MS), now=0.0)
    return view


def test_a_node_is_named_by_its_name_or_its_id() -> None:
    view = _view(first="a", second="b")
    assert ref_named(view, "node", "b").id == a_node_id(2)
    assert ref_named(view, "node", a_node_id(1)).name == "a"


def test_an_id_is_its_owners_whatever_another_is_called() -> None:
    view = _view(first=a_node_id(2), second="b")
    assert ref_named(view, "node", a_node_id(2)).name == "b"


def test_of_two_of_one_name_neither_is_meant() -> None:
    view = _view(first="twin", second="twin")
    with pytest.raises(SkulkError, match="there are 2 nodes 'twin'") as refused:
        ref_named(view, "node", "twin")
    assert a_node_id(1) in refused.value.remediation
    assert a_node_id(2) in refused.value.remediation


@pytest.mark.parametrize(("kind", "word"), [("node", "nobody"), ("command", "no-such\x1b[2J")])
def test_what_names_nothing_is_refused(kind: str, word: str) -> None:
    with pytest.raises(SkulkError):
        ref_named(_view(first="a"), kind, word)


def test_a_command_is_named_by_its_id() -> None:
    assert ref_named(_view(), "command", a_command_id(1)).id == a_command_id(1)


@pytest.mark.parametrize(("api_tls", "scheme"), [(False, "http"), (True, "https")])
def test_a_node_is_attached_to_by_what_it_speaks(api_tls: bool, scheme: str) -> None:
    view = ViewState()
    member = den_member(1, addresses=("192.0.2.7:12416",), api_port=52415, api_tls=api_tls)
    row = den_node(1, member=member).model_dump(mode="json")
    rows = {row_key("node", a_node_id(1)): row}
    view.apply_rows(Rows(id=1, cursor="c", is_snapshot=True, rows=rows, at_ms=NOW_MS), now=0.0)
    assert url_of_node(view, member.name) == f"{scheme}://192.0.2.7:52415"
