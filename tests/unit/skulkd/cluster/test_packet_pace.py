import pytest
from hypothesis import given
from hypothesis import strategies as st

from skulkd.cluster.packet_pace import ALARM_SECONDS, MAX_PACKETS_PER_S, MAX_WAIT_S, PacketPace


def test_five_packets_leave_at_once_and_the_sixth_a_second_later() -> None:
    pace = PacketPace()
    assert [pace.reserve(1, now_s=0.0) for _ in range(5)] == [0.0] * 5
    assert pace.reserve(1, now_s=0.2) == pytest.approx(0.85)
    assert pace.n_sent == 6
    assert not pace.is_alarming(now_s=0.2)


def test_what_would_leave_too_late_is_not_sent() -> None:
    pace = PacketPace()
    waits = [pace.reserve(1, now_s=0.0) for _ in range(100)]
    assert pace.wait_s(1, now_s=0.0) == pytest.approx(3.15)
    sent = [wait for wait in waits if wait is not None]
    assert len(sent) == 15
    assert max(sent) <= MAX_WAIT_S
    assert (pace.n_sent, pace.n_withheld) == (15, 85)


def test_a_crowd_that_comes_once_is_no_alarm_and_one_that_stays_is() -> None:
    pace = PacketPace()
    for tenth in range(10 * (ALARM_SECONDS - 1)):
        for _ in range(5):
            pace.reserve(1, now_s=4.0 + tenth / 10)
    assert pace.n_withheld > 300
    assert not pace.is_alarming(now_s=14.0)
    for _ in range(20):
        pace.reserve(1, now_s=14.0)
    assert pace.is_alarming(now_s=14.0)
    assert pace.is_alarming(now_s=63.0)
    assert not pace.is_alarming(now_s=67.0)


def test_a_message_of_more_packets_than_a_second_has_is_not_sent() -> None:
    pace = PacketPace()
    assert pace.reserve(MAX_PACKETS_PER_S, now_s=0.0) is not None
    assert pace.reserve(MAX_PACKETS_PER_S + 1, now_s=100.0) is None
    assert pace.reserve(MAX_PACKETS_PER_S, now_s=100.0) is not None


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(1, 6)), max_size=80))
def test_no_second_ever_has_more_than_five_packets(steps: list[tuple[float, int]]) -> None:
    pace = PacketPace()
    now_s = 0.0
    left_s: list[float] = []
    for step_s, n_packets in steps:
        now_s += step_s
        wait_s = pace.reserve(n_packets, now_s=now_s)
        if wait_s is not None:
            assert 0.0 <= wait_s <= MAX_WAIT_S
            left_s += [now_s + wait_s] * n_packets
    assert left_s == sorted(left_s)
    for first, sixth in zip(left_s, left_s[MAX_PACKETS_PER_S:], strict=False):
        assert sixth - first >= 1.0
    assert pace.n_sent == len(left_s)
