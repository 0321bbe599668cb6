from protocol.ids import node_id_of
from skulkd.core.link_rtt import AGAIN_S, N_KEPT, N_OF_P99, N_WAITING, LinkRtt, LinkRtts, no_rtt

A, B = (node_id_of(bytes([number]) * 32) for number in (1, 2))


def _measure(rtts: LinkRtts, rtt_s: float, *, at_s: float = 0.0) -> None:
    number = rtts.ask(A, now=at_s)
    rtts.answer(A, number, now=at_s + rtt_s)


def test_what_was_not_measured_is_unknown_and_not_zero() -> None:
    rtts = LinkRtts()
    assert rtts.of(A) is None
    rtts.ask(A, now=1.0)
    assert rtts.of(A) is None
    assert no_rtt(A) is None


def test_one_slow_word_moves_the_last_and_not_the_median() -> None:
    rtts = LinkRtts()
    for rtt_s in (0.25, 0.25, 0.5, 0.25, 16.0):
        _measure(rtts, rtt_s)
    assert rtts.of(A) == LinkRtt(median_ms=250.0, last_ms=16_000.0)


def test_old_measurements_are_forgotten() -> None:
    rtts = LinkRtts()
    for rtt_s in (1.0,) * N_KEPT + (0.5,) * N_KEPT:
        _measure(rtts, rtt_s)
    assert rtts.of(A) == LinkRtt(median_ms=500.0, last_ms=500.0, p99_ms=500.0)


def test_what_is_rare_is_told_once_there_are_enough_to_be_rare_among() -> None:
    rtts = LinkRtts()
    for _ in range(N_OF_P99 - 1):
        _measure(rtts, 0.5)
    measured = rtts.of(A)
    assert measured is not None
    assert measured.p99_ms is None
    _measure(rtts, 2.0)
    measured = rtts.of(A)
    assert measured is not None
    assert (measured.median_ms, measured.p99_ms) == (500.0, 2000.0)
    for _ in range(N_KEPT - N_OF_P99):
        _measure(rtts, 0.5)
    measured = rtts.of(A)
    assert measured is not None
    assert measured == LinkRtt(median_ms=500.0, last_ms=500.0, p99_ms=500.0)


def test_an_answer_counts_once_and_only_where_it_was_asked() -> None:
    rtts = LinkRtts()
    rtts.answer(A, 1, now=5.0)
    slow, fast = rtts.ask(A, now=10.0), rtts.ask(A, now=20.0)
    rtts.answer(B, fast, now=20.5)
    assert rtts.of(A) is None
    rtts.answer(A, fast, now=20.5)
    rtts.answer(A, fast, now=30.0)
    assert rtts.of(A) == LinkRtt(median_ms=500.0, last_ms=500.0)
    rtts.answer(A, slow, now=21.0)
    assert rtts.of(A) == LinkRtt(median_ms=5750.0, last_ms=11_000.0)
    assert rtts.of(B) is None


def test_of_questions_without_answer_the_newest_are_kept() -> None:
    rtts = LinkRtts()
    lost = rtts.ask(A, now=0.0)
    for _ in range(N_WAITING):
        rtts.ask(A, now=10.0)
    rtts.answer(A, lost, now=11.0)
    assert rtts.of(A) is None


def test_a_way_that_broke_is_unknown_until_it_is_measured_anew() -> None:
    rtts = LinkRtts()
    _measure(rtts, 0.5)
    number = rtts.ask(A, now=1.0)
    rtts.forget(A)
    rtts.forget(B)
    rtts.answer(A, number, now=60.0)
    assert rtts.of(A) is None
    _measure(rtts, 0.25, at_s=70.0)
    assert rtts.of(A) == LinkRtt(median_ms=250.0, last_ms=250.0)


def test_of_nodes_that_are_no_peers_nothing_is_kept() -> None:
    rtts = LinkRtts()
    _measure(rtts, 0.5)
    rtts.keep(frozenset({A}))
    assert rtts.of(A) is not None
    rtts.keep(frozenset({B}))
    assert rtts.of(A) is None


def test_a_question_that_was_lost_is_wanted_again_until_something_is_known() -> None:
    rtts = LinkRtts()
    assert rtts.is_wanted(A, now=0.0)
    rtts.ask(A, now=0.0)
    assert not rtts.is_wanted(A, now=AGAIN_S / 2)
    assert rtts.is_wanted(A, now=AGAIN_S)
    _measure(rtts, 0.5, at_s=2.0)
    assert not rtts.is_wanted(A, now=60.0)
    rtts.forget(A)
    assert rtts.is_wanted(A, now=60.0)
