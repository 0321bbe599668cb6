"""The breaker: does another attempt follow a failure, and when.

An attempt that never became ready is not repeated when its cause will be there again: the same
command line meets the same file, memory and processor. A runner that was ready and died has shown
that it can run: it is relaunched after 1, 5 and 25 seconds. Three relaunches in ten minutes are
enough; the fourth failure stands until an operator acts, whose word starts the count anew.

Pure: the history is `state.failures`, the present is the stamp of the failure that is judged.
"""

from typing import Final

from protocol.errors import ErrorCode
from protocol.ids import InstanceId
from protocol.instances import Instance, InstanceFailure
from protocol.state import ClusterState

BACKOFF_S: Final[tuple[float, ...]] = (1.0, 5.0, 25.0)
"""Wait before the first, second and third relaunch within the window."""
WINDOW_MS: Final = 600_000
MAX_RETRIES: Final = len(BACKOFF_S)

TRANSIENT_CODES: Final[frozenset[ErrorCode]] = frozenset(
    {"store.source_unavailable", "store.stalled", "engine.gone"}
)
"""Causes that may be gone at the next attempt, also of one that never became ready."""
OUTSIDE_SIGNALS: Final[frozenset[str]] = frozenset({"SIGHUP", "SIGINT", "SIGTERM", "SIGKILL"})
"""Signals that somebody else sends; what an engine does to itself is SIGSEGV, SIGABRT, SIGILL."""


def allows_retry(state: ClusterState, instance: Instance, failure: InstanceFailure) -> bool:
    """Say whether a new attempt follows this failure, which the state does not hold yet.

    Args:
        state: With the failures before this one.
        instance: Whose attempt failed.
        failure: What is judged; its `final` is not looked at.
    """
    was_ready = _was_ready(instance, failure)
    if not was_ready and not is_transient(failure.error.code, failure.signal):
        return False
    return n_recent_retries(state, instance.instance_id, failure.at_ms) < MAX_RETRIES


def is_transient(code: ErrorCode, signal: str | None) -> bool:
    """Say whether the cause may be gone at the next attempt."""
    killed_from_outside = code == "runner.exited" and signal in OUTSIDE_SIGNALS
    return code in TRANSIENT_CODES or killed_from_outside


def n_recent_retries(state: ClusterState, instance_id: InstanceId, at_ms: int) -> int:
    """Count the attempts that followed failures within the window before `at_ms`.

    Failures before the last final one, and before the breaker was cleared, do not count: an
    operator has acted since. Nor do those on nodes that the instance has left.
    """
    instance = state.instances.get(instance_id)
    cleared_ms = 0 if instance is None else instance.breaker_cleared_ms
    if instance is not None and instance.repairs:
        cleared_ms = max(cleared_ms, instance.repairs[-1].at_ms)
    count = 0
    for failure in reversed(state.failures):
        if failure.instance_id != instance_id:
            continue
        is_past = failure.at_ms < at_ms - WINDOW_MS or failure.at_ms <= cleared_ms
        if failure.final or is_past:
            break
        count += 1
    return count


def backoff_s(state: ClusterState, instance: Instance) -> float:
    """Give how long the present attempt waits in `pending` before it starts; 0 for a first one."""
    failure = instance.failure
    if failure is None or failure.attempt != instance.attempt - 1:
        return 0.0
    retries = n_recent_retries(state, instance.instance_id, failure.at_ms)
    if retries == 0:  # the failure was final, and an operator asked for this attempt
        return 0.0
    return BACKOFF_S[min(retries, MAX_RETRIES) - 1]


def _was_ready(instance: Instance, failure: InstanceFailure) -> bool:
    """Ready when it failed: the failure names the phase that the runner was in."""
    if failure.phase == "ready":
        return True
    return any(
        runner.phase == "ready" and runner.node_id == failure.node_id for runner in instance.runners
    )
