"""The operator side's one place that starts a task or goes to a thread.

A task belongs to an owner and ends with it. An exception that nobody awaits is handed to `on_death`
with the task's name: the terminal interface shows it and lives on.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, final

T = TypeVar("T")
P = ParamSpec("P")

OnDeath = Callable[[str, BaseException], None]


async def run_blocking(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call in a thread of the shared pool; its result is lost on cancel."""
    return await asyncio.to_thread(call, *args, **kwargs)


def wait_on_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Wait, in a thread of `run_blocking`, for something that the loop does.

    What the loop gives up when it ends raises `concurrent.futures.CancelledError` here.
    """
    return asyncio.run_coroutine_threadsafe(work, loop).result()


@final
class Tasks:
    """The background tasks of one owner.

    Args:
        owner: The first half of each task's name.
        on_death: Gets the name of a task that died, and the exception.
    """

    def __init__(self, owner: str, *, on_death: OnDeath) -> None:
        self._owner = owner
        self._on_death = on_death
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a task on the running loop and keep hold of it."""
        task = asyncio.get_running_loop().create_task(coro, name=f"{self._owner}/{name}")
        self._running.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def close(self) -> None:
        """Cancel every task but the present one, and wait for their ends."""
        ending = self._running - {asyncio.current_task()}
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_death(task.get_name(), error)
