"""Stories on a real event loop that wait for nothing but turns of it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

LIMIT_S: Final = 5.0
N_TURNS: Final = 10


async def settle() -> None:
    """Let everything run that can run without time passing."""
    for _ in range(N_TURNS):
        await asyncio.sleep(0)


def run(story: Callable[[], Awaitable[None]]) -> None:
    """Run a story, which ends within seconds or has failed."""

    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await story()

    asyncio.run(bounded())
