import pytest

from protocol.errors import RequestError
from protocol.state import KeyLimits
from skulkd.core.key_limits import KeyLimiter, RequestWindow
from tests.support.builders import a_key_id

KEY = a_key_id(1)
OTHER = a_key_id(2)


def limits(rate: int | None = None, most: int | None = None) -> KeyLimits:
    return KeyLimits(requests_per_minute=rate, concurrent_requests=most)


def refused(limiter: KeyLimiter, bounds: KeyLimits, now: float) -> RequestError:
    with pytest.raises(RequestError) as caught:
        limiter.take(KEY, bounds, now)
    return caught.value


def test_a_key_without_limits_is_counted_all_the_same() -> None:
    limiter = KeyLimiter()
    for _ in range(1000):
        limiter.take(KEY, limits(), 5.0)
    assert limiter.n_open(KEY) == 1000
    assert limiter.standing(KEY, limits(), 5.0) is None
    assert refused(limiter, limits(rate=1000), 6.0).code == "request.rate_limited"


def test_the_request_beyond_the_rate_is_refused_and_told_when_there_is_room() -> None:
    limiter = KeyLimiter()
    limiter.take(KEY, limits(2), 10.2)
    limiter.take(KEY, limits(2), 30.7)
    error = refused(limiter, limits(2), 31.0)
    assert (error.code, error.retry_after_s) == ("request.rate_limited", 40)
    assert error.details == {"key_id": KEY, "requests_per_minute": 2}
    assert refused(limiter, limits(2), 70.9).retry_after_s == 1
    limiter.take(KEY, limits(2), 71.0)


def test_a_limit_that_was_lowered_waits_for_as_many_as_it_has_to() -> None:
    limiter = KeyLimiter()
    for second in range(5):
        limiter.take(KEY, limits(10), float(second))
    assert refused(limiter, limits(2), 5.0).retry_after_s == 3 + 61 - 5


def test_requests_at_a_time_are_bounded_and_given_back() -> None:
    limiter = KeyLimiter()
    first = limiter.take(KEY, limits(most=2), 0.0)
    limiter.take(KEY, limits(most=2), 0.0)
    error = refused(limiter, limits(most=2), 0.0)
    assert (error.code, error.retry_after_s) == ("request.concurrency_limited", 1)
    assert error.details == {"key_id": KEY, "concurrent_requests": 2, "open": 2}
    limiter.give_back(first)
    limiter.take(KEY, limits(most=2), 0.0)


def test_a_refused_request_counts_for_nothing() -> None:
    limiter = KeyLimiter()
    limiter.take(KEY, limits(rate=5, most=1), 0.0)
    for _ in range(10):
        refused(limiter, limits(rate=5, most=1), 0.0)
    standing = limiter.standing(KEY, limits(rate=5, most=1), 0.0)
    assert standing is not None
    assert (standing.limit, standing.remaining, standing.reset_s) == (5, 4, 61)


def test_keys_do_not_count_for_each_other() -> None:
    limiter = KeyLimiter()
    limiter.take(KEY, limits(1, 1), 0.0)
    limiter.take(OTHER, limits(1, 1), 0.0)
    assert (limiter.n_open(KEY), limiter.n_open(OTHER)) == (1, 1)


def test_what_a_revoked_key_has_open_may_still_end() -> None:
    limiter = KeyLimiter()
    use = limiter.take(KEY, limits(), 0.0)
    limiter.keep(frozenset())
    limiter.give_back(use)
    assert limiter.n_open(KEY) == 0


def test_a_window_keeps_61_numbers_however_much_is_asked() -> None:
    window = RequestWindow()
    for moment in range(100_000):
        window.add(moment / 100)
        window.count(moment / 100)
    assert window.count(1000.0) <= 61 * 100
