"""Blocking work, off the event loop, and over before its caller goes on."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]
"""Waits for so many seconds."""


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call in a thread.

    Unlike `asyncio.to_thread`, a cancelled caller leaves only when the call has ended: it is about
    to close the descriptors that the call writes to. Calls are therefore kept short.
    """
    future = asyncio.get_running_loop().run_in_executor(None, partial(function, *args, **kwargs))
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        future.exception()
        raise cancelled
    return future.result()
