import logging

import pytest

from skulkd.cluster.stranger_list import StrangerList

NOBODY = "unknown key"


def _key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_tries_of_one_key_and_host_are_one_entry_with_the_newest_reason() -> None:
    strangers = StrangerList()
    strangers.note(_key(1), "10.0.0.1", NOBODY, now_s=1.0)
    strangers.note(_key(2), "10.0.0.1", NOBODY, now_s=2.0)
    strangers.note(_key(1), "10.0.0.1", "removed", now_s=3.0)
    newest, other = strangers.listed(3.0)
    assert (newest.public_key, newest.reason, newest.n_tries) == (_key(1), "removed", 2)
    assert (newest.first_s, newest.last_s) == (1.0, 3.0)
    assert other.public_key == _key(2)
    assert strangers.n_refused == 3


def test_the_list_holds_64_of_the_last_hour() -> None:
    strangers = StrangerList()
    for number in range(1000):
        strangers.note(_key(number), "10.0.0.1", NOBODY, now_s=float(number))
    assert [one.public_key for one in strangers.listed(999.0)] == [
        _key(number) for number in range(999, 935, -1)
    ]
    assert len(strangers.listed(999.0 + 3590)) == 11
    assert strangers.listed(999.0 + 3601) == ()


def test_a_key_is_logged_once_a_minute_and_a_flood_of_keys_ten_times(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strangers = StrangerList()
    with caplog.at_level(logging.WARNING):
        for second in range(600):
            strangers.note(_key(1), "10.0.0.1", NOBODY, now_s=float(second))
        assert len(caplog.records) == 10
        caplog.clear()
        for number in range(10_000):
            strangers.note(_key(number + 2), "10.0.0.1", NOBODY, now_s=700.0 + number * 0.012)
        assert 20 <= len(caplog.records) <= 30
