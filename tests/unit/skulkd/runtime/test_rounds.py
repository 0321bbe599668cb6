import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest

from skulkd.runtime.rounds import Rounds
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual


def a_log(rounds: Rounds, called_s: list[float], *, soonest_s: float, latest_s: float) -> None:
    loop = asyncio.get_running_loop()
    rounds.call(lambda: called_s.append(loop.time()), soonest_s=soonest_s, latest_s=latest_s)


def test_a_call_goes_with_the_first_round_after_its_time_and_comes_once() -> None:
    async def story() -> None:
        rounds, called_s = Rounds(), list[float]()
        began_s = asyncio.get_running_loop().time()
        a_log(rounds, called_s, soonest_s=1.0, latest_s=2.0)
        for _ in range(6):
            await sleep(0.4)
            rounds.begin()
        assert called_s == [pytest.approx(began_s + 1.2)]

    run_virtual(story)


def test_those_that_a_round_calls_come_in_the_order_in_which_they_asked() -> None:
    async def story() -> None:
        rounds, called = Rounds(), list[int]()
        for number in range(50):
            rounds.call(partial(called.append, number), soonest_s=0.0, latest_s=2.0)
        rounds.begin()
        await sleep(0.1)
        assert called == list(range(50))

    run_virtual(story)


def test_a_call_comes_by_itself_where_no_round_does() -> None:
    async def story() -> None:
        rounds, called_s = Rounds(), list[float]()
        began_s = asyncio.get_running_loop().time()
        a_log(rounds, called_s, soonest_s=1.0, latest_s=2.0)
        await sleep(1.5)
        assert called_s == []
        await sleep(1.5)
        assert called_s == [pytest.approx(began_s + 2.0)]

    run_virtual(story)


def test_what_is_called_may_ask_to_be_called_again_and_waits_for_a_later_round() -> None:
    async def story() -> None:
        rounds, n_called = Rounds(), 0

        def again() -> None:
            nonlocal n_called
            n_called += 1
            rounds.call(again, soonest_s=0.2, latest_s=9.0)

        again()
        for _ in range(10):
            await sleep(0.25)
            rounds.begin()
        await sleep(0)
        assert n_called == 11

    run_virtual(story)


def test_a_call_that_is_cancelled_does_not_come_not_even_in_the_round_that_has_begun() -> None:
    async def story() -> None:
        rounds, called_s = Rounds(), list[float]()
        call = rounds.call(lambda: called_s.append(0.0), soonest_s=0.0, latest_s=1.0)
        rounds.begin()
        call.cancel()
        call.cancel()
        await sleep(2)
        assert called_s == []

    run_virtual(story)


def test_the_bug_of_one_that_goes_along_costs_neither_the_others_nor_the_round() -> None:
    async def story() -> None:
        rounds, called_s, stories = Rounds(), list[float](), list[dict[str, Any]]()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: stories.append(context))

        def has_a_bug() -> None:
            raise AssertionError

        rounds.call(has_a_bug, soonest_s=0.0, latest_s=1.0)
        a_log(rounds, called_s, soonest_s=0.0, latest_s=1.0)
        rounds.begin()
        await sleep(0.1)
        assert len(called_s) == len(stories) == 1

    run_virtual(story)


def test_whoever_waits_and_is_cancelled_leaves_nothing_behind() -> None:
    async def story() -> None:
        rounds = Rounds()
        waiting: Coroutine[Any, Any, None] = rounds.wait(soonest_s=0.5, latest_s=1.0)
        task = asyncio.get_running_loop().create_task(waiting)
        await sleep(0.1)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        await sleep(0.6)
        rounds.begin()
        began_s = asyncio.get_running_loop().time()
        await rounds.wait(soonest_s=0.1, latest_s=0.2)
        assert asyncio.get_running_loop().time() == pytest.approx(began_s + 0.2)

    run_virtual(story)


def test_the_lag_is_that_of_the_latest_round_and_is_taken_once() -> None:
    async def story() -> None:
        rounds = Rounds()
        assert rounds.take_lag_s() is None
        for late_s in (0.0, 0.3, 0.1):
            rounds.begin(late_s=late_s)
        assert rounds.take_lag_s() == pytest.approx(0.3)
        rounds.begin(late_s=0.1)
        assert rounds.take_lag_s() == pytest.approx(0.1)
        assert rounds.take_lag_s() is None
        await sleep(0)

    run_virtual(story)
