from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import ClusterId, NodeId, node_id_of
from skulkd.cluster.addresses import MAX_BASE_PORT, InterfaceAddress
from skulkd.cluster.discovery import Announcement, Sighting, cluster_hash_of
from skulkd.cluster.sightings import (
    CHANGE_WINDOW_S,
    KEPT_S,
    MAX_ADDRESSES,
    MAX_CHANGES,
    MAX_SIGHTINGS,
    REPEAT_S,
    SightingBook,
    read_txt,
    txt_of,
)

CLUSTER = cluster_hash_of(ClusterId("k" + "a" * 16))
LAN = InterfaceAddress(interface="eth0", host="192.0.2.1", prefix=24)
OTHER = InterfaceAddress(interface="eth1", host="198.51.100.1", prefix=24)
OWN = node_id_of(b"o" * 32)


def _said(number: int = 1, *, base_port: int = 12416) -> Announcement:
    key = number.to_bytes(32, "big")
    return Announcement(
        node_id=node_id_of(key), public_key=key, cluster_hash=CLUSTER, base_port=base_port
    )


def _txt(said: Announcement) -> dict[bytes, bytes | None]:
    return {key.encode(): value.encode() for key, value in txt_of(said).items()}


def _book() -> SightingBook:
    book = SightingBook(OWN)
    book.set_links([LAN])
    return book


def _hear(
    book: SightingBook, said: Announcement, now_s: float = 0.0, *, hosts: tuple[str, ...] = ()
) -> Sighting | None:
    return book.hear(said.node_id, _txt(said), hosts or ("192.0.2.9",), now_s=now_s)


def test_a_clusters_hash_is_stable_and_tells_no_id() -> None:
    assert cluster_hash_of(ClusterId("k" + "a" * 16)) == "6qo5yorqrxt3w3xc"
    assert cluster_hash_of(ClusterId("k" + "a" * 15 + "b")) != CLUSTER


def test_what_is_said_is_read_back_and_stays_small() -> None:
    said = _said()
    assert read_txt(said.node_id, _txt(said)) == said
    assert read_txt(said.node_id, _txt(said) | {b"later": b"x", b"flag": None}) == said
    assert sum(len(key) + len(value or b"") + 2 for key, value in _txt(said).items()) < 150


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"key", b"00" * 31),
        (b"key", b"zz" * 32),
        (b"key", None),
        (b"cluster", b"short"),
        (b"cluster", CLUSTER.upper().encode()),
        (b"base", b"0"),
        (b"base", str(MAX_BASE_PORT + 1).encode()),
        (b"base", b"-1"),
        (b"base", "١٢".encode()),
        (b"wire", b""),
        (b"wire", b"one"),
        (b"later", b"x" * 300),
        (b"key", b"\xff" * 64),
    ],
)
def test_what_is_not_of_the_form_is_counted_and_passed_over(key: bytes, value: bytes) -> None:
    book = _book()
    said = _said()
    assert book.hear(said.node_id, _txt(said) | {key: value}, ["192.0.2.9"], now_s=0.0) is None
    assert (book.n_garbled, book.listed()) == (1, ())


def test_an_id_that_is_not_the_keys_is_passed_over() -> None:
    book = _book()
    for name in (_said(2).node_id, "den", "", "n" + "a" * 16, "x" * 300):
        assert book.hear(name, _txt(_said(1)), ["192.0.2.9"], now_s=0.0) is None
    assert book.n_garbled == 5


@given(
    st.text(max_size=20),
    st.dictionaries(
        st.sampled_from([b"key", b"wire", b"cluster", b"base"]),
        st.none() | st.binary(max_size=70),
        max_size=4,
    ),
    st.lists(st.text(max_size=20), max_size=3),
)
def test_no_strings_break_the_book(
    name: str, txt: dict[bytes, bytes | None], hosts: list[str]
) -> None:
    book = _book()
    assert book.hear(name, txt, hosts, now_s=0.0) is None
    assert book.n_garbled == 1


def test_only_direct_neighbours_are_listed() -> None:
    book = _book()
    assert _hear(book, _said(), hosts=("198.51.100.9", "127.0.0.1", "den", "2001:db8::1")) is None
    assert book.n_off_link == 1
    hosts = ("10.0.0.1", "192.0.2.9", "192.0.2.8", "192.0.2.9")
    heard = _hear(book, _said(), hosts=hosts)
    assert heard is not None
    assert heard.addresses == ("192.0.2.9:12416", "192.0.2.8:12416")


def test_a_neighbour_has_at_most_eight_addresses() -> None:
    heard = _hear(_book(), _said(), hosts=tuple(f"192.0.2.{n}" for n in range(2, 40)))
    assert heard is not None
    assert len(heard.addresses) == MAX_ADDRESSES


def test_without_an_address_of_its_own_a_node_has_no_neighbours() -> None:
    book = SightingBook(OWN)
    assert _hear(book, _said()) is None
    assert book.n_off_link == 1


def test_what_a_node_says_itself_is_passed_over() -> None:
    book = SightingBook(_said().node_id)
    book.set_links([LAN])
    assert _hear(book, _said()) is None
    assert (book.listed(), book.n_garbled) == ((), 0)


def test_a_neighbour_is_told_of_when_new_changed_or_heard_again_later() -> None:
    book = _book()
    said = _said()
    assert _hear(book, said, 0.0) is not None
    assert _hear(book, said, 1.0) is None
    assert [one.seen_s for one in book.listed()] == [1.0]
    moved = _hear(book, said, 2.0, hosts=("192.0.2.10",))
    assert moved is not None
    assert moved.addresses == ("192.0.2.10:12416",)
    assert _hear(book, said, 2.0 + REPEAT_S - 0.1, hosts=("192.0.2.10",)) is None
    assert _hear(book, said, 2.0 + REPEAT_S, hosts=("192.0.2.10",)) is not None


def test_a_neighbour_that_changes_all_the_time_is_told_of_five_times_in_ten_seconds() -> None:
    book = _book()
    told = [_hear(book, _said(base_port=1000 + n), n * 0.01) for n in range(500)]
    assert len([one for one in told if one is not None]) == 1 + MAX_CHANGES
    assert book.n_dropped == 499 - MAX_CHANGES
    assert _hear(book, _said(base_port=9), CHANGE_WINDOW_S) is not None


def test_a_crowd_takes_no_place_from_who_was_heard_just_now() -> None:
    book = _book()
    for number in range(MAX_SIGHTINGS):
        assert _hear(book, _said(number + 1), 0.0) is not None
    assert _hear(book, _said(9_999), KEPT_S) is None
    assert book.n_dropped == 1
    assert len(book.listed()) == MAX_SIGHTINGS
    assert _hear(book, _said(2), KEPT_S) is not None
    assert _hear(book, _said(9_999), KEPT_S + 0.1) is not None
    listed = [one.node_id for one in book.listed()]
    assert len(listed) == MAX_SIGHTINGS
    assert listed[0] == _said(9_999).node_id
    assert _said(1).node_id not in listed
    assert _said(2).node_id in listed


def test_a_goodbye_takes_a_neighbour_off_the_list() -> None:
    book = _book()
    _hear(book, _said(1))
    _hear(book, _said(2))
    book.forget(_said(1).node_id)
    book.forget("nobody")
    assert [one.node_id for one in book.listed()] == [_said(2).node_id]


def test_other_links_have_other_neighbours() -> None:
    book = SightingBook(OWN)
    book.set_links([LAN, OTHER])
    _hear(book, _said(1), hosts=("192.0.2.9", "198.51.100.9"))
    _hear(book, _said(2), hosts=("192.0.2.8",))
    book.set_links([OTHER])
    assert [one.addresses for one in book.listed()] == [("198.51.100.9:12416",)]


def test_a_neighbour_of_another_wire_version_is_listed_with_its_number() -> None:
    heard = _hear(_book(), replace(_said(), wire=7))
    assert heard is not None
    assert heard.wire == 7
    assert heard.node_id == NodeId(_said().node_id)
