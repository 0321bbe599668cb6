"""A link to scripted nodes, for tests that watch what becomes of it."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from protocol.session import Topic
from skulk_tui.clock import SystemClock
from skulk_tui.session_link import SessionLink
from skulk_tui.session_socket import WebSocketConnector
from skulk_tui.target import Target
from skulk_tui.tls_pins import TlsTrust
from skulk_tui.view_state import Changes, ViewState
from tests.support.den_cluster import fill
from tests.support.scripted_session import ScriptedSession

WAIT_S: Final = 10.0


class Impatience(random.Random):  # ruff: ignore[suspicious-non-cryptographic-random-usage]
    """Makes every wait before a retry a fiftieth of what it would be."""

    def uniform(self, a: float, b: float) -> float:
        """Give the same share each time."""
        del a, b
        return 0.02


class Seen:
    """What a link told, and the words it went through."""

    def __init__(self) -> None:
        self.changes: list[Changes] = []
        self.words: list[str] = []
        self.link: SessionLink | None = None

    def take(self, changes: Changes) -> None:
        """Be told."""
        self.changes.append(changes)
        if self.link is not None and (not self.words or self.words[-1] != self.link.view.word):
            self.words.append(self.link.view.word)


@asynccontextmanager
async def linked(
    *nodes: ScriptedSession,
    api_key: str | None = None,
    seen: Seen | None = None,
    randomness: random.Random | None = None,
    topics: tuple[Topic, ...] = ("cluster",),
) -> AsyncGenerator[SessionLink]:
    """Attach to the nodes, the first one first, and let go at the end."""
    told = seen or Seen()
    url, *seeds = (node.url for node in nodes)
    link = SessionLink(
        Target(url=url, url_rule="--node", api_key=api_key, key_rule="test", seeds=tuple(seeds)),
        ViewState(),
        clock=SystemClock(),
        randomness=randomness or Impatience(),
        on_change=told.take,
        connect=WebSocketConnector(TlsTrust(Path("/nonexistent/pins"))),
    )
    told.link = link
    for topic in topics:
        link.subscribe(topic)
    link.start()
    try:
        yield link
    finally:
        await link.close()


async def until(is_so: Callable[[], object]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(WAIT_S):
        while not is_so():
            await asyncio.sleep(0.005)


async def live(link: SessionLink) -> None:
    """Wait until the link is live."""
    await until(lambda: link.view.word == "live")


def run(story: Callable[[ScriptedSession], Coroutine[Any, Any, None]]) -> None:
    """Tell a story with one node that has the whole of a cluster."""
    with ScriptedSession() as node:
        fill(node)
        asyncio.run(story(node))
