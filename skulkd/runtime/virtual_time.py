"""An asyncio event loop whose time jumps to the next deadline when nothing is ready.

Whole shells run on it unchanged: queues, timeouts, gather, tasks, `run_blocking`. It has no
sockets, pipes, signals or threads at all, so a run is a function of its code and its seed.
Callbacks that are ready keep the order in which they became ready, as asyncio promises; the seed
varies what asyncio leaves open: timers of one instant, and how long a job in a thread takes.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple, Unpack, final

from skulkd.runtime.tasks import dump_story

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TIMER_JITTER_S: Final = 1e-6
"""Timers of one instant are spread over this much by the seed; no timer is ever early."""
JOB_DELAY_S: Final = 0.002
"""The longest that a job waits for its thread, and its result for the loop, by the seed."""


class DeadlockError(RuntimeError):
    """Nothing is ready, no timer runs, and the main task has not ended: it never will."""


class TimeLimitError(RuntimeError):
    """The virtual time ran past the limit that the test gave."""


class _Selector(Protocol):
    def select(self, timeout: float | None) -> list[object]: ...


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop; see the module.

    Args:
        seed: Varies the schedule; None is the plainest one: no jitter, and jobs take no time.
        limit_s: Virtual seconds after which the run ends in `TimeLimitError`.
    """

    def __init__(self, *, seed: int | None = None, limit_s: float | None = None) -> None:
        super().__init__()
        self._now_s = 0.0
        self._limit_s = limit_s
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  a repeatable schedule is the aim
        self._random = None if seed is None else random.Random(seed)
        self._job_stall_s = 0.0
        # BaseEventLoop polls this attribute between turns; all the waiting there is happens in it.
        self._selector: _Selector = _Jump(self)

    def time(self) -> float:
        """Give the virtual time, in seconds since the loop was made."""
        return self._now_s

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call at a virtual time."""
        if self._random is not None:
            when += self._random.uniform(0.0, TIMER_JITTER_S)
        return super().call_at(when, callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run the call on the loop's own thread, a seeded moment later, and answer after another.

        Whatever `executor` is, jobs run one after the other, each to its end.
        """
        del executor
        result: asyncio.Future[T] = self.create_future()
        self.call_later(self._job_delay_s(), self._run_job, result, lambda: func(*args))
        return result

    def stall_job(self, seconds: float) -> None:
        """Called inside a job: let its result arrive that much later, as from a slow disk."""
        self._job_stall_s += seconds

    def advance(self, timeout: float | None) -> None:
        """Jump to the next deadline.

        Args:
            timeout: Seconds to it; None when there is none.

        Raises:
            DeadlockError: There is none.
            TimeLimitError: It lies beyond the limit.
        """
        if timeout is None:
            message = f"nothing can ever happen again, at {self._now_s:.6f} s:\n{dump_story(self)}"
            raise DeadlockError(message)
        self._now_s += max(0.0, timeout)
        if self._limit_s is not None and self._now_s > self._limit_s:
            message = f"not done after {self._limit_s} virtual seconds:\n{dump_story(self)}"
            raise TimeLimitError(message)

    def _job_delay_s(self) -> float:
        return 0.0 if self._random is None else self._random.uniform(0.0, JOB_DELAY_S)

    def _run_job(self, result: "asyncio.Future[T]", job: Callable[[], T]) -> None:
        self._job_stall_s = 0.0
        # A thread sees no running loop; code that asks must get the same answer here.
        # ruff: ignore[private-member-access]  exported for those who implement loops
        asyncio._set_running_loop(None)
        try:
            value = job()
        # ruff: ignore[blind-except]  it is handed on, as a thread pool does
        except Exception as error:
            self._answer_later(result.set_exception, result, error)
        else:
            self._answer_later(result.set_result, result, value)
        finally:
            # ruff: ignore[private-member-access]  see above
            asyncio._set_running_loop(self)

    def _answer_later(
        self, answer: Callable[[T], None], result: "asyncio.Future[Any]", value: T
    ) -> None:
        def deliver() -> None:
            if not result.done():
                answer(value)

        self.call_later(self._job_delay_s() + self._job_stall_s, deliver)

    def _process_events(self, event_list: list[object]) -> None:
        """Nothing but time ever happens outside."""

    def _write_to_self(self) -> None:
        """Nobody waits in another thread."""


@final
class _Jump:
    """Stands where a loop would wait for the world."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None or timeout > 0:
            self._loop.advance(timeout)
        return []


def run_virtual(
    main: Callable[[], Coroutine[Any, Any, T]],
    *,
    seed: int | None = None,
    limit_s: float | None = None,
) -> T:
    """Run a coroutine function to its end in virtual time, and cancel whatever it left running.

    Args:
        main: Called on the loop's thread; its result is returned.
        seed: See `VirtualLoop`.
        limit_s: See `VirtualLoop`.

    Raises:
        DeadlockError: It waits for something that cannot happen.
        TimeLimitError: It did not end within `limit_s`.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(seed=seed, limit_s=limit_s)) as runner:
        return runner.run(main())
