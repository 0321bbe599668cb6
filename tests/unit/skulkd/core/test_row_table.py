"""Rows: what changed since, each row once, and a snapshot where that cannot be told."""

import json
import random

from protocol.base import FrozenModel
from skulkd.core.row_table import Place, RowTable, members_of

PLENTY = 1 << 20


class Doc(FrozenModel):
    value: int


def rows(**values: int) -> dict[str, FrozenModel]:
    return {key: Doc(value=value) for key, value in values.items()}


def shown(changed: tuple[tuple[str, bytes], ...]) -> dict[str, int | None]:
    return {key: (doc := json.loads(text)) and doc["value"] for key, text in changed}


def test_a_follower_with_nothing_gets_all_rows() -> None:
    table = RowTable()
    assert table.update(rows(a=1, b=2))
    delta = table.since(None, max_bytes=PLENTY)
    assert delta.is_snapshot
    assert shown(delta.rows) == {"a": 1, "b": 2}
    assert delta.place.n == table.n


def test_an_empty_table_gives_an_empty_snapshot_and_then_nothing() -> None:
    table = RowTable()
    first = table.since(None, max_bytes=PLENTY)
    assert first.is_snapshot
    assert first.rows == ()
    assert not table.since(first.place, max_bytes=PLENTY).is_snapshot


def test_rows_that_are_equal_are_no_change() -> None:
    table = RowTable()
    table.update(rows(a=1))
    n = table.n
    assert not table.update(rows(a=1))
    assert table.n == n


def test_a_row_that_changed_twice_is_given_once_as_it_is_by_then() -> None:
    table = RowTable()
    table.update(rows(a=1, b=1))
    place = Place(table.n)
    table.update(rows(a=2, b=1))
    table.update(rows(a=3, b=1))
    delta = table.since(place, max_bytes=PLENTY)
    assert not delta.is_snapshot
    assert shown(delta.rows) == {"a": 3}


def test_a_removal_is_told_and_a_snapshot_does_not_hold_it() -> None:
    table = RowTable()
    table.update(rows(a=1, b=1))
    place = Place(table.n)
    table.update(rows(b=1))
    assert shown(table.since(place, max_bytes=PLENTY).rows) == {"a": None}
    assert shown(table.since(None, max_bytes=PLENTY).rows) == {"b": 1}
    assert table.row("a") is None


def test_a_row_that_came_back_is_no_removal() -> None:
    table = RowTable(removals_kept=1)
    table.update(rows(a=1))
    place = Place(table.n)
    table.update({})
    table.update(rows(a=2, b=1))
    table.update(rows(a=2))
    delta = table.since(place, max_bytes=PLENTY)
    assert not delta.is_snapshot, "the removal that was forgotten was taken back before"
    assert shown(delta.rows) == {"a": 2, "b": None}


def test_who_may_have_missed_a_removal_gets_a_snapshot() -> None:
    table = RowTable(removals_kept=2)
    table.update(rows(a=1, b=1, c=1, d=1))
    place = Place(table.n)
    table.update(rows(d=1))
    delta = table.since(place, max_bytes=PLENTY)
    assert delta.is_snapshot
    assert shown(delta.rows) == {"d": 1}


def test_a_place_that_the_table_never_gave_is_answered_by_a_snapshot() -> None:
    table = RowTable()
    table.update(rows(a=1))
    assert table.since(Place(table.n + 1), max_bytes=PLENTY).is_snapshot
    assert table.since(Place(-1), max_bytes=PLENTY).is_snapshot


def test_a_bounded_answer_goes_on_where_it_stopped() -> None:
    table = RowTable()
    table.update({f"k{i}": Doc(value=i) for i in range(10)})
    delta = table.since(None, max_bytes=40)
    assert delta.is_snapshot
    assert delta.has_more
    seen = shown(delta.rows)
    while delta.has_more:
        delta = table.since(delta.place, max_bytes=40)
        assert not delta.is_snapshot
        assert delta.rows, "at least one row at a time"
        seen |= shown(delta.rows)
    assert seen == {f"k{i}": i for i in range(10)}
    assert delta.place.n == table.n


def test_a_snapshot_in_parts_goes_on_although_removals_before_it_are_forgotten() -> None:
    table = RowTable(removals_kept=1)
    table.update({f"k{i}": Doc(value=i) for i in range(10)})
    table.update({f"k{i}": Doc(value=i) for i in range(4)})
    delta = table.since(None, max_bytes=1)
    seen = shown(delta.rows)
    while delta.has_more:
        delta = table.since(delta.place, max_bytes=1)
        assert not delta.is_snapshot
        seen |= shown(delta.rows)
    assert {key for key, value in seen.items() if value is not None} == {"k0", "k1", "k2", "k3"}


def test_members_are_json_whatever_the_key_is() -> None:
    text = b"{" + members_of((('a"\n/b', b"1"), ("c", b"null"))) + b"}"
    assert json.loads(text) == {'a"\n/b': 1, "c": None}


def test_a_follower_that_asks_now_and_then_ends_with_the_tables_rows() -> None:
    for seed in range(40):
        chance = random.Random(seed)  # ruff: ignore[suspicious-non-cryptographic-random-usage]
        table = RowTable(removals_kept=3)
        kept: dict[str, int | None] = {}
        place: Place | None = None
        truth: dict[str, int] = {}
        for _ in range(60):
            key = f"k{chance.randrange(8)}"
            if chance.random() < 0.4:
                truth.pop(key, None)
            else:
                truth[key] = chance.randrange(3)
            table.update(rows(**truth))
            if chance.random() < 0.3:
                delta = table.since(place, max_bytes=chance.choice([1, 50, PLENTY]))
                kept = {} if delta.is_snapshot else kept
                kept |= shown(delta.rows)
                place = delta.place
        n_frames = 0
        has_more = True
        while has_more:
            delta = table.since(place, max_bytes=30)
            kept = {} if delta.is_snapshot else kept
            kept |= shown(delta.rows)
            place, has_more = delta.place, delta.has_more
            n_frames += 1
            assert n_frames < 100, seed
        assert {key: value for key, value in kept.items() if value is not None} == truth, seed
