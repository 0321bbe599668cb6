"""How much is asked for, what rate follows, which pairs are measured, and who may measure."""

import pytest

from protocol.errors import ClusterError
from skulkd.core.link_probe import (
    HOLD_S,
    PROBE_BYTES,
    PROBE_S,
    SILENT_S,
    Measurement,
    ProbeHolds,
    pairs_to_probe,
)
from tests.support.builders import a_node_id

KIB = 1 << 10
A, B, C = (a_node_id(number) for number in (1, 2, 3))


def ask_all(measurement: Measurement, now: float) -> list[tuple[int, int]]:
    asked: list[tuple[int, int]] = []
    while (piece := measurement.to_ask(now=now)) is not None:
        measurement.on_asked(*piece)
        asked.append(piece)
    return asked


def measured_at(rate_bytes_s: float, *, delay_s: float = 0.0) -> tuple[Measurement, float]:
    """Run a measurement over a line of this rate; returns it and when it was done."""
    measurement, now, line_free_s = Measurement(now=0.0), 0.0, 0.0
    on_the_way: list[tuple[float, int, int]] = []
    while not measurement.is_done(now=now):
        for number, n_bytes in ask_all(measurement, now):
            line_free_s = max(line_free_s, now + delay_s) + n_bytes / rate_bytes_s
            on_the_way.append((line_free_s + delay_s, number, n_bytes))
        if not on_the_way:
            break
        now, number, n_bytes = on_the_way.pop(0)
        assert measurement.on_piece(number, n_bytes, now=now)
    return measurement, now


@pytest.mark.parametrize(
    ("rate_bytes_s", "delay_s"),
    [(100e3, 0.0), (1e6, 0.002), (125e6, 0.0001), (125e6, 0.005), (1.2e9, 0.0002)],
)
def test_the_rate_of_a_line_is_found(rate_bytes_s: float, delay_s: float) -> None:
    measurement, _ = measured_at(rate_bytes_s, delay_s=delay_s)
    rate = measurement.rate()
    assert rate is not None
    assert rate.bytes_s == pytest.approx(rate_bytes_s, rel=0.1)


@pytest.mark.parametrize("rate_bytes_s", [100e3, 1e6, 10e6, 125e6, 5e9])
def test_a_measurement_is_bounded_in_bytes_and_time(rate_bytes_s: float) -> None:
    measurement, done_s = measured_at(rate_bytes_s)
    assert measurement.n_bytes <= PROBE_BYTES
    # What is on its way when the time is over: no more than had come, or than it began with.
    assert done_s <= 2 * PROBE_S + 256 * KIB / rate_bytes_s + 0.01


def test_what_is_on_its_way_grows_with_what_has_come() -> None:
    measurement = Measurement(now=0.0)
    first = ask_all(measurement, 0.0)
    assert sum(n_bytes for _, n_bytes in first) == 256 * KIB
    for number, n_bytes in first:
        measurement.on_piece(number, n_bytes, now=0.1)
    more = ask_all(measurement, 0.1)
    assert sum(n_bytes for _, n_bytes in more) <= 256 * KIB


def test_a_piece_that_another_one_has_passed_is_lost_and_not_waited_for() -> None:
    measurement = Measurement(now=0.0)
    (*_, last) = ask_all(measurement, 0.0)
    assert measurement.on_piece(*last, now=0.1)
    assert measurement.n_bytes == last[1]
    assert measurement.is_done(now=PROBE_S)


def test_what_was_not_asked_for_counts_not() -> None:
    measurement = Measurement(now=0.0)
    (first, *_) = ask_all(measurement, 0.0)
    assert not measurement.on_piece(first[0], first[1] + 1, now=0.1)
    assert measurement.on_piece(*first, now=0.1)
    assert not measurement.on_piece(*first, now=0.2)
    assert measurement.n_bytes == first[1]


def test_a_peer_that_says_nothing_is_silent_after_a_while() -> None:
    measurement = Measurement(now=0.0)
    ask_all(measurement, 0.0)
    assert not measurement.is_silent(now=SILENT_S - 0.1)
    assert measurement.is_silent(now=SILENT_S)
    assert measurement.rate() is None


def test_all_pairs_are_measured_or_those_of_a_node_or_those_among_some() -> None:
    assert pairs_to_probe((C, A, B)) == tuple(
        sorted({tuple(sorted(pair)) for pair in ((A, B), (A, C), (B, C))})
    )
    assert {frozenset(pair) for pair in pairs_to_probe((A, B, C), (B,))} == {
        frozenset((A, B)),
        frozenset((B, C)),
    }
    assert {frozenset(pair) for pair in pairs_to_probe((A, B, C), (B, C))} == {frozenset((B, C))}
    assert pairs_to_probe((A,)) == ()


def test_one_series_at_a_time_measures_and_a_hold_that_is_not_renewed_ends() -> None:
    holds = ProbeHolds(lambda node_id: f"node {node_id[:4]}")
    holds.take(A, 1, now=0.0)
    holds.take(A, 1, now=10.0)
    with pytest.raises(ClusterError) as refused:
        holds.take(B, 1, now=10.0 + HOLD_S - 0.1)
    assert refused.value.code == "cluster.probe_busy"
    assert A[:4] in refused.value.message
    with pytest.raises(ClusterError):
        holds.take(A, 2, now=10.0)
    holds.take(B, 1, now=10.0 + HOLD_S)
    holds.give_back(A, 1)
    with pytest.raises(ClusterError):
        holds.take(A, 3, now=10.0 + HOLD_S)
    holds.give_back(B, 1)
    holds.take(A, 3, now=10.0 + HOLD_S)
