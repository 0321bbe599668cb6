import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from protocol.errors import ClusterError
from skulkd.cluster.attempts import Attempt, Failures, first_success
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual

FAILURE = ClusterError("cluster.join_failed", "no")
OTHER_FAILURE = ClusterError("cluster.join_failed", "no, either")


class Trial:
    """Attempts that take a while each, and when they were begun."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, float]] = []
        self.cancelled: list[str] = []

    def attempt(self, name: str, takes_s: float, error: Exception | None = None) -> Attempt[str]:
        async def run() -> str:
            self.begun.append((name, asyncio.get_running_loop().time()))
            try:
                await sleep(takes_s)
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise
            if error is not None:
                raise error
            return name

        return run


def _race(*attempts: Attempt[str]) -> str | Failures:
    async def main() -> str | Failures:
        return await first_success(attempts, stagger_s=2.0, name="trial")

    begin: Callable[[], Coroutine[Any, Any, str | Failures]] = main
    return run_virtual(begin)


def test_the_next_attempt_waits_for_its_turn_and_the_slow_ones_are_ended() -> None:
    trial = Trial()
    outcome = _race(
        trial.attempt("slow", 100.0), trial.attempt("quick", 1.0), trial.attempt("never", 1.0)
    )
    assert outcome == "quick"
    assert trial.begun == [("slow", 0.0), ("quick", 2.0)]
    assert trial.cancelled == ["slow"]


def test_a_failure_gives_its_turn_to_the_next_at_once() -> None:
    trial = Trial()
    assert _race(trial.attempt("bad", 0.5, FAILURE), trial.attempt("good", 1.0)) == "good"
    assert trial.begun == [("bad", 0.0), ("good", 0.5)]


def test_a_slow_attempt_may_still_succeed_when_all_others_have_failed() -> None:
    trial = Trial()
    assert _race(trial.attempt("slow", 30.0), trial.attempt("bad", 1.0, FAILURE)) == "slow"


def test_without_a_success_all_failures_are_given_in_order() -> None:
    trial = Trial()
    outcome = _race(trial.attempt("a", 9.0, FAILURE), trial.attempt("b", 1.0, OTHER_FAILURE))
    assert outcome == Failures(errors=(FAILURE, OTHER_FAILURE))
    assert _race() == Failures(errors=())


def test_a_bug_is_no_failure() -> None:
    trial = Trial()
    with pytest.raises(KeyError):
        _race(trial.attempt("slow", 9.0), trial.attempt("bug", 1.0, KeyError("bug")))
    assert trial.cancelled == ["slow"]
