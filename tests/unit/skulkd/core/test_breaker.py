import pytest

from protocol.errors import ErrorCode
from skulkd.core.breaker import (
    BACKOFF_S,
    MAX_RETRIES,
    WINDOW_MS,
    allows_retry,
    backoff_s,
    n_recent_retries,
)
from tests.support.builders import NOW_MS, a_failure, a_state, an_error, an_instance


def failures(n: int, *, at_ms: int = NOW_MS) -> list[int]:
    return [at_ms + place for place in range(n)]


@pytest.mark.parametrize(
    "code",
    [
        "runner.exited",
        "engine.cpu_unsupported",
        "runner.no_memory",
        "runner.load_stalled",
        "runner.probe_failed",
        "store.digest_mismatch",
        "store.incomplete",
    ],
)
def test_an_attempt_that_never_was_ready_is_final_when_its_cause_stays(code: ErrorCode) -> None:
    failure = a_failure(error=an_error(code))
    assert not allows_retry(a_state(), an_instance(phase="load"), failure)


@pytest.mark.parametrize("code", ["store.source_unavailable", "store.stalled"])
def test_a_cause_that_may_pass_is_tried_again(code: ErrorCode) -> None:
    failure = a_failure(error=an_error(code), phase="download")
    assert allows_retry(a_state(), an_instance(phase="download"), failure)


def test_a_load_that_was_killed_from_outside_is_tried_again_and_a_crash_is_not() -> None:
    killed = a_failure().model_copy(update={"signal": "SIGKILL", "exit_code": None})
    crashed = a_failure().model_copy(update={"signal": "SIGSEGV", "exit_code": None})
    instance = an_instance(phase="load")
    assert allows_retry(a_state(), instance, killed)
    assert not allows_retry(a_state(), instance, crashed)


def test_a_ready_runner_that_died_is_relaunched_three_times_in_ten_minutes() -> None:
    history = tuple(
        a_failure(attempt=place + 1, phase="ready", at_ms=at_ms, final=False)
        for place, at_ms in enumerate(failures(MAX_RETRIES))
    )
    latest = a_failure(phase="ready", at_ms=NOW_MS + 1000)
    instance = an_instance(phase="ready")
    assert allows_retry(a_state(failures=history[:2]), instance, latest)
    assert not allows_retry(a_state(failures=history), instance, latest)


def test_health_for_ten_minutes_resets_the_count() -> None:
    history = tuple(
        a_failure(attempt=place + 1, phase="ready", final=False) for place in range(MAX_RETRIES)
    )
    latest = a_failure(phase="ready", at_ms=NOW_MS + WINDOW_MS + 1)
    assert allows_retry(a_state(failures=history), an_instance(phase="ready"), latest)


def test_an_operators_retry_resets_the_count() -> None:
    history = tuple(
        a_failure(attempt=place + 1, phase="ready", final=place == MAX_RETRIES)
        for place in range(MAX_RETRIES + 1)
    )
    latest = a_failure(phase="ready", at_ms=NOW_MS + 1)
    assert allows_retry(a_state(failures=history), an_instance(phase="ready"), latest)


def test_failures_of_other_instances_do_not_count() -> None:
    history = tuple(a_failure(number=2, phase="ready", final=False) for _ in range(10))
    latest = a_failure(phase="ready", at_ms=NOW_MS + 1)
    assert allows_retry(a_state(failures=history), an_instance(phase="ready"), latest)


def test_the_wait_grows_with_each_retry_and_a_first_attempt_does_not_wait() -> None:
    assert not backoff_s(a_state(), an_instance())
    history = tuple(
        a_failure(attempt=place + 1, phase="ready", at_ms=at_ms, final=False)
        for place, at_ms in enumerate(failures(MAX_RETRIES))
    )
    waits: list[float] = []
    for n_failed in range(1, MAX_RETRIES + 1):
        instance = an_instance(phase=None, attempt=n_failed + 1, failure=history[n_failed - 1])
        waits.append(backoff_s(a_state(failures=history[:n_failed]), instance))
    assert tuple(waits) == BACKOFF_S


def test_an_operators_retry_does_not_wait() -> None:
    final = a_failure()
    instance = an_instance(phase=None, attempt=2, failure=final.model_copy(update={"final": False}))
    assert not backoff_s(a_state(failures=(final,)), instance)


def test_a_renewed_attempt_does_not_wait_for_an_old_failure() -> None:
    old = a_failure(attempt=1, phase="ready", final=False)
    instance = an_instance(phase=None, attempt=3, failure=old)
    assert not backoff_s(a_state(failures=(old,)), instance)


def test_a_cleared_breaker_counts_from_then_on_and_waits_no_longer() -> None:
    history = tuple(
        a_failure(attempt=place + 1, phase="ready", at_ms=at_ms, final=False)
        for place, at_ms in enumerate(failures(MAX_RETRIES))
    )
    cleared = an_instance(phase=None, attempt=4, failure=history[-1]).model_copy(
        update={"breaker_cleared_ms": NOW_MS + 500}
    )
    state = a_state(instances=[cleared], failures=history)
    latest = a_failure(attempt=4, phase="ready", at_ms=NOW_MS + 1000)
    assert allows_retry(state, cleared, latest)
    assert not backoff_s(state, cleared)
    again = latest.model_copy(update={"final": False})
    later = a_state(instances=[cleared], failures=(*history, again))
    assert n_recent_retries(later, cleared.instance_id, NOW_MS + 2000) == 1
