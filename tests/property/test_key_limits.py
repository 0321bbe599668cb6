"""Limits of API keys: never more than asked for, and nothing that is taken is kept for ever."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import RequestError
from protocol.state import KeyLimits
from skulkd.core.key_limits import WINDOW_S, KeyLimiter, KeyUse
from tests.support.builders import a_key_id

KEY = a_key_id()
steps = st.lists(
    st.tuples(st.sampled_from(("ask", "end")), st.floats(0, 40, allow_nan=False)), max_size=120
)


@given(steps=steps, rate=st.integers(1, 8), most=st.integers(1, 4))
def test_no_minute_has_more_and_no_place_leaks(
    steps: list[tuple[str, float]], rate: int, most: int
) -> None:
    limiter, now = KeyLimiter(), 0.0
    limits = KeyLimits(requests_per_minute=rate, concurrent_requests=most)
    open_uses: list[KeyUse] = []
    admitted: list[float] = []
    for word, pause_s in steps:
        now += pause_s
        if word == "end" and open_uses:
            limiter.give_back(open_uses.pop())
        elif word == "ask":
            lately = [moment for moment in admitted if now - moment < WINDOW_S + 1]
            is_free = len(open_uses) < most and len(lately) < rate
            with suppress(RequestError):
                open_uses.append(limiter.take(KEY, limits, now))
                admitted.append(now)
            assert not is_free or admitted[-1] == now
        assert limiter.n_open(KEY) == len(open_uses) <= most
        assert len([moment for moment in admitted if now - moment < WINDOW_S]) <= rate
    while open_uses:
        limiter.give_back(open_uses.pop())
    assert limiter.n_open(KEY) == 0


@given(moments=st.lists(st.floats(0, 30, allow_nan=False), min_size=1, max_size=20))
def test_whoever_waits_as_long_as_was_said_is_served(moments: list[float]) -> None:
    limiter, now = KeyLimiter(), 0.0
    limits = KeyLimits(requests_per_minute=3)
    for pause_s in moments:
        now += pause_s
        try:
            limiter.take(KEY, limits, now)
        except RequestError as error:
            now += error.retry_after_s or 0
            limiter.take(KEY, limits, now)
    assert limiter.n_open(KEY) == len(moments)
