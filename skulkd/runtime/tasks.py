"""Named, owned tasks; the only place in skulkd that starts one, sleeps, or goes to a thread.

A daemon whose subsystem has silently died is worse than one that ended: the first still answers
health checks. So every task has an owner and a name, and a task that its owner does not await is
essential: when it dies of an exception, `on_death` gets its story and ends the daemon.
"""

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from types import CoroutineType, FrameType
from typing import Any, ParamSpec, TypeVar, final

_log = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

OnDeath = Callable[[str, BaseException], None]
"""Called on the loop with a dead task's story and the exception it died of."""


async def sleep(seconds: float) -> None:
    """Wait; the loop's clock decides how long that is."""
    await asyncio.sleep(seconds)


def timeout(seconds: float | None) -> asyncio.Timeout:
    """Bound an `async with`: its body ends in `TimeoutError` after `seconds`; None is never."""
    return asyncio.timeout(seconds)


async def run_blocking(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call in a thread of the shared pool.

    Cancelling the caller does not stop the thread: the call runs to its end and its result is lost.
    """
    return await asyncio.to_thread(call, *args, **kwargs)


async def run_blocking_in(executor: Executor, call: Callable[[], T]) -> T:
    """Run a blocking call in a pool of the caller's own, where nobody else's work is in front."""
    return await asyncio.get_running_loop().run_in_executor(executor, call)


@final
class Tasks:
    """The background tasks of one owner; they end with it.

    Args:
        owner: The room or object they belong to; the first half of each task's name.
        on_death: Gets the story of an essential task that died of an exception.
    """

    def __init__(self, owner: str, *, on_death: OnDeath) -> None:
        self._owner = owner
        self._on_death = on_death
        self._running: set[asyncio.Task[Any]] = set()
        self._essential: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    def start(
        self, coro: Coroutine[Any, Any, T], *, name: str, essential: bool = True
    ) -> asyncio.Task[T]:
        """Start a task on the running loop and keep hold of it.

        Args:
            coro: What to run.
            name: What it does; the task is called `owner/name`.
            essential: True when the daemon must not live without it. False for a task whose end
                somebody awaits or whose failure costs only itself; its exception is logged.

        Raises:
            RuntimeError: The owner is closed; `coro` has been closed too.
        """
        if self._is_closed:
            coro.close()
            message = f"{self._owner} is closed and cannot start {name}"
            raise RuntimeError(message)
        task = asyncio.get_running_loop().create_task(coro, name=f"{self._owner}/{name}")
        self._running.add(task)
        if essential:
            self._essential.add(task)
        task.add_done_callback(self._on_done)
        return task

    def names(self) -> tuple[str, ...]:
        """Name the tasks that run now, sorted."""
        return tuple(sorted(task.get_name() for task in self._running))

    async def close(self, timeout_s: float) -> tuple[str, ...]:
        """Cancel every task and wait for the end of each; start no more.

        May be called twice, and from one of the tasks, which is then left alone.

        Returns:
            The names of those that had not ended after `timeout_s`; their stacks are in the log.
        """
        self._is_closed = True
        ending = self._running - {asyncio.current_task()}
        for task in ending:
            task.cancel()
        if not ending:
            return ()
        _, late = await asyncio.wait(ending, timeout=timeout_s)
        for task in late:
            _log.error("task %s ignores its cancellation:\n%s", task.get_name(), _task_story(task))
        return tuple(sorted(task.get_name() for task in late))

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        is_essential = task in self._essential
        self._essential.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        story = _death_story(task.get_name(), self._owner, error)
        _log.error("%s", story)
        if is_essential and not self._is_closed:
            self._on_death(story, error)


def _death_story(name: str, owner: str, error: BaseException) -> str:
    trace = "".join(traceback.format_exception(error))
    return f"task {name} of {owner} died of {type(error).__name__}: {error}\n{trace}"


def dump_story(loop: asyncio.AbstractEventLoop | None = None) -> str:
    """Tell what every task and every thread is doing now, for SIGUSR1.

    Args:
        loop: Whose tasks; the running loop by default. Without either, threads only.
    """
    if loop is None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
    parts: list[str] = []
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()) if loop else []
    parts.append(f"{len(tasks)} tasks")
    parts += [f"task {task.get_name()}\n{_task_story(task)}" for task in tasks]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    # ruff: ignore[private-member-access]  documented; nothing else gives thread stacks
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  see above
    parts.append(f"{len(frames)} threads")
    for ident, frame in sorted(frames.items()):
        stack = "".join(traceback.format_stack(frame))
        parts.append(f"thread {names.get(ident, '?')} ({ident})\n{stack}")
    return "\n".join(parts)


def _task_story(task: asyncio.Task[Any]) -> str:
    # Task.get_stack() shows only the outermost frame of a suspended task, so the chain of awaits
    # is walked here.
    lines: list[str] = []
    awaited: object = task.get_coro()
    while isinstance(awaited, CoroutineType):
        frame: FrameType | None = awaited.cr_frame
        if frame is not None:
            lines += traceback.format_list(
                traceback.StackSummary.extract([(frame, frame.f_lineno)])
            )
        awaited = awaited.cr_await
    if awaited is not None:
        lines.append(f"  awaiting {awaited!r}\n")
    return "".join(lines)
