"""Keys that come in one lump, as over a slow line: each means what is shown once it is its turn."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.events import Key
from textual.keys import key_to_character

from tests.support.den_cluster import fill
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import SeatUnderTest, a_seat


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        yield scripted


def _press_at_once(seat: SeatUnderTest, *keys: str) -> None:
    for key in keys:
        seat.app.post_message(Key(key, key_to_character(key)))


def test_a_key_after_the_one_that_shows_a_screen_is_for_that_screen(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE", "> attic-mini")
            _press_at_once(seat, "2", "end")
            await seat.until_shows("[2 Models]", "> SmolLM2")
            _press_at_once(seat, "1", "home", "down", "down", "2", "home", "1", "escape")
            await seat.until_shows("[1 Cluster]", "> den-02")

    asyncio.run(story())
