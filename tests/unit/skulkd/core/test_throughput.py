import pytest

from protocol.data_frames import Chunk, Finished, Frame, Started, Usage
from skulkd.core.throughput import WINDOW_S, Throughput

WORD = Chunk(text="word ")


def say(throughput: Throughput, *frames: Frame) -> None:
    answer = throughput.begin()
    for frame in frames:
        assert answer.passed(frame) is frame


def finished(n_tokens: int) -> Finished:
    return Finished("stop", Usage(1, n_tokens))


def test_an_engine_that_has_said_nothing_generates_nothing() -> None:
    throughput = Throughput()
    assert [throughput.rate(at) for at in (0.0, 2.0, 4.0)] == [0.0, 0.0, 0.0]


def test_a_frame_counts_as_a_token_until_an_engine_has_counted() -> None:
    throughput = Throughput()
    throughput.rate(10.0)
    say(throughput, *[WORD] * 40)
    assert throughput.rate(12.0) == pytest.approx(20.0)


def test_what_engines_count_corrects_how_many_tokens_a_frame_has() -> None:
    throughput = Throughput()
    say(throughput, *[WORD] * 9, finished(30))  # three tokens a frame
    throughput.rate(0.0)
    say(throughput, *[WORD] * 40)
    assert throughput.rate(2.0) == pytest.approx(60.0)


def test_answers_that_end_without_a_count_teach_nothing() -> None:
    throughput = Throughput()
    say(throughput, Started(1), *[WORD] * 100)
    throughput.rate(0.0)
    say(throughput, *[WORD] * 10)
    assert throughput.rate(1.0) == pytest.approx(10.0)


def test_the_rate_is_that_of_the_last_seconds_and_falls_to_nothing_at_rest() -> None:
    throughput = Throughput()
    throughput.rate(0.0)
    say(throughput, *[WORD] * 100)
    rates = [throughput.rate(at) for at in (2.0, 4.0, 6.0, 8.0)]
    assert rates == [50.0, 25.0, 16.7, 0.0]


def test_after_a_pause_the_earlier_frames_do_not_count() -> None:
    throughput = Throughput()
    throughput.rate(0.0)
    say(throughput, *[WORD] * 100)
    assert throughput.rate(2 * WINDOW_S) == pytest.approx(0.0)


def test_being_asked_often_takes_no_room() -> None:
    throughput = Throughput()
    for step in range(10_000):
        throughput.rate(step / 100)
    # At most one sample a second is kept, and none that is older than the window.
    say(throughput, *[WORD] * 6)
    assert throughput.rate(100.0) == pytest.approx(1.0)


def test_the_fastest_of_the_last_answers_stands_for_one_that_was_alone() -> None:
    throughput = Throughput()
    assert throughput.answer_rate is None
    throughput.finish(n_frames=4, n_tokens=4, generation_ms=1.0)  # too short to tell
    assert throughput.answer_rate is None
    for generation_ms in (2000.0, 1000.0, 4000.0):
        throughput.finish(n_frames=101, n_tokens=101, generation_ms=generation_ms)
    assert throughput.answer_rate == pytest.approx(100.0)
    for _ in range(16):
        throughput.finish(n_frames=101, n_tokens=101, generation_ms=5000.0)
    assert throughput.answer_rate == pytest.approx(20.0)
