import pytest

from protocol.errors import RequestError
from skulkd.api.body_budget import SMALL_BODY_BYTES, BodyBudget

LARGE = 2 * SMALL_BODY_BYTES


def test_small_bodies_are_not_counted() -> None:
    budget = BodyBudget(0)
    budget.share().grow_to(SMALL_BODY_BYTES)
    assert budget.held_bytes == 0


def test_a_share_grows_to_the_largest_size_and_is_given_back_once() -> None:
    budget = BodyBudget(2 * LARGE)
    share = budget.share()
    for size in (LARGE, LARGE - 1, 10, 2 * LARGE):
        share.grow_to(size)
    assert budget.held_bytes == 2 * LARGE
    for _ in range(2):
        share.release()
        assert budget.held_bytes == 0


def test_what_does_not_fit_is_refused_with_the_numbers_and_holds_nothing() -> None:
    budget = BodyBudget(LARGE)
    budget.share().grow_to(LARGE)
    late = budget.share()
    with pytest.raises(RequestError, match=f"{LARGE} bytes of {LARGE}") as refused:
        late.grow_to(LARGE)
    assert (refused.value.code, refused.value.retry_after_s) == ("request.overloaded", 1)
    late.release()
    assert budget.held_bytes == LARGE
