from collections.abc import Mapping

import pytest

from protocol.session import Lines, NodeHello, Rows
from skulk_tui.view_state import LINES_KEPT, NOTHING, ViewState
from tests.support.builders import NOW_MS, a_cluster_id, a_node_id
from tests.support.den_cluster import den_head, den_member, den_node, den_rows
from tests.support.session_answers import plain


def rows(subscription_id: int, documents: Mapping[str, object], **changes: object) -> Rows:
    fields: dict[str, object] = {
        "id": subscription_id,
        "cursor": "c",
        "rows": {key: plain(document) for key, document in documents.items()},
        "at_ms": NOW_MS,
    }
    return Rows.model_validate(fields | changes)


def lines(subscription_id: int, *items: Mapping[str, object], **changes: object) -> Lines:
    fields: dict[str, object] = {
        "id": subscription_id,
        "cursor": "c",
        "items": items,
        "at_ms": NOW_MS,
    }
    return Lines.model_validate(fields | changes)


@pytest.fixture
def view() -> ViewState:
    """Holds the whole of a cluster of four, each topic under its own number."""
    made = ViewState()
    for number, (_, documents) in enumerate(sorted(den_rows().items()), start=1):
        made.apply_rows(rows(number, documents, is_snapshot=True), 100.0)
    return made


CLUSTER = 1  # topics are numbered in the order of their names


def test_every_kind_of_row_is_read(view: ViewState) -> None:
    assert view.n_unreadable == 0
    assert view.head == den_head()
    assert [one.member.name for one in view.nodes] == ["attic-mini", "den-01", "den-02", "rack-a6k"]
    counts = (view.links, view.strangers, view.instances, view.failures, view.refusals)
    assert [len(one) for one in counts] == [3, 1, 2, 1, 1]
    assert (len(view.transfers), len(view.models), len(view.health)) == (1, 3, 4)
    assert view.name_of(a_node_id(3)) == "rack-a6k"
    assert view.name_of("n-nobody") == "n-nobody"


def test_a_row_knows_when_it_came(view: ViewState) -> None:
    key = f"node/{a_node_id(2)}"
    view.apply_rows(rows(CLUSTER, {key: den_node(2, cpu_ratio=0.9)}), 105.0)
    changed, kept = view.row(key), view.row(f"node/{a_node_id(3)}")
    assert changed is not None
    assert kept is not None
    assert (changed.at, kept.at) == (105.0, 100.0)


def test_a_row_that_is_gone_is_told_and_forgotten(view: ViewState) -> None:
    key = f"node/{a_node_id(4)}"
    changes = view.apply_rows(rows(CLUSTER, {key: None, "node/never": None}), 101.0)
    assert changes.keys == {key}
    assert view.row(key) is None


def test_a_snapshot_replaces_all_that_the_subscription_brought_and_nothing_else(
    view: ViewState,
) -> None:
    head = {"cluster": den_head(term=8)}
    for _ in range(2):  # the second time, what the first removed must not come back
        view.apply_rows(rows(CLUSTER, head, is_snapshot=True), 101.0)
        assert view.nodes == ()
        assert view.links == ()
        assert len(view.instances) == 2
        view.apply_rows(rows(CLUSTER, {f"node/{a_node_id(1)}": den_node(1)}), 102.0)
        assert len(view.nodes) == 1


def test_what_a_snapshot_removed_and_a_change_brought_again_goes_with_the_subscription(
    view: ViewState,
) -> None:
    view.apply_rows(rows(CLUSTER, {"cluster": den_head()}, is_snapshot=True), 101.0)
    key = f"node/{a_node_id(1)}"
    view.apply_rows(rows(CLUSTER, {key: den_node(1)}), 102.0)
    changes = view.drop(CLUSTER)
    assert changes.keys == {"cluster", key}
    assert view.head is None


def test_the_head_is_told_as_such_and_other_rows_are_not(view: ViewState) -> None:
    assert view.apply_rows(rows(CLUSTER, {"cluster": den_head(ready=3)}), 101.0).is_head
    key = f"node/{a_node_id(2)}"
    assert not view.apply_rows(rows(CLUSTER, {key: den_node(2)}), 101.0).is_head


def test_a_kind_of_a_newer_node_is_passed_over_and_a_form_of_one_is_counted(
    view: ViewState,
) -> None:
    newer = den_node(2, member=den_member(2)).model_dump(mode="json") | {"aura": "violet"}
    key = f"node/{a_node_id(2)}"
    assert not view.apply_rows(rows(CLUSTER, {"flux/1": {"x": 1}}), 101.0)
    assert view.apply_rows(rows(CLUSTER, {key: newer}), 101.0).keys == {key}
    assert view.n_unreadable == 0
    assert view.apply_rows(rows(CLUSTER, {key: {"member": "somebody"}}), 101.0).keys == {key}
    assert view.n_unreadable == 1
    assert a_node_id(2) not in {node.member.node_id for node in view.nodes}  # nothing old for new


def test_lines_are_counted_and_a_gap_is_a_line_of_its_own(view: ViewState) -> None:
    assert view.apply_lines(lines(9, {"seq": 1}, {"seq": 2})).line_ids == {9}
    view.apply_lines(lines(9, {"seq": 9}, was_cut=True, gap="3 to 8 are gone"))
    kept = view.lines(9)
    assert [(one.n, one.item.get("seq"), one.gap) for one in kept.items] == [
        (0, 1, ""), (1, 2, ""), (2, None, "3 to 8 are gone"), (3, 9, ""),
    ]  # fmt: skip
    assert view.lines(10).n_seen == 0


def test_only_the_newest_lines_are_kept_and_the_others_are_counted(view: ViewState) -> None:
    for start in range(0, LINES_KEPT + 500, 500):
        view.apply_lines(lines(9, *({"seq": start + n} for n in range(500))))
    kept = view.lines(9)
    assert (len(kept.items), kept.n_forgotten) == (LINES_KEPT, 500)
    assert kept.items[0].n == 500


def test_a_feed_is_told_when_it_changes_and_is_full_in_a_new_session(view: ViewState) -> None:
    assert view.apply_feed("summary").is_head
    assert view.apply_feed("summary") is NOTHING
    hello = NodeHello(
        version=1, build="0.1.0", node_id=a_node_id(), name="den-01", boot_id="b",
        cluster_id=a_cluster_id(), at_ms=NOW_MS,
    )  # fmt: skip
    assert view.apply_hello(hello).is_head
    assert (view.feed, len(view.nodes)) == ("full", 4)
