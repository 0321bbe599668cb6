"""The choices of one request, served side by side."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from protocol.data_frames import Failed, Finished, Terminal, Usage
from skulkd.runtime.tasks import Tasks


def usage_of_all(ended: Iterable[Finished]) -> Usage:
    """Add up the tokens that choices took of an engine: each has read its prompt itself."""
    usages = [terminal.usage for terminal in ended]
    if len(usages) == 1:
        return usages[0]
    return Usage(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        sum(usage.cached_tokens for usage in usages),
    )


async def all_ended(
    tasks: Tasks, n: int, serve: Callable[[int], Coroutine[Any, Any, Terminal]], *, name: str
) -> tuple[Finished, ...] | Failed:
    """Serve all choices; the first that fails ends the others.

    Args:
        tasks: Owner of those beside which others run.
        n: How many.
        serve: Serves one, by its number.
        name: Of the request.

    Returns:
        How they ended, in their order; or the failure.
    """
    if n == 1:
        terminal = await serve(0)
        return terminal if isinstance(terminal, Failed) else (terminal,)
    running = [
        tasks.start(serve(index), name=f"{name} choice {index}", essential=False)
        for index in range(n)
    ]
    try:
        return await _first_failure_or_all(running)
    finally:
        for one in running:
            one.cancel()
        await asyncio.wait(running)


async def _first_failure_or_all(
    running: list[asyncio.Task[Terminal]],
) -> tuple[Finished, ...] | Failed:
    finished: dict[asyncio.Task[Terminal], Finished] = {}
    waiting = set(running)
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            terminal = one.result()
            if isinstance(terminal, Failed):
                return terminal
            finished[one] = terminal
    return tuple(finished[one] for one in running)
