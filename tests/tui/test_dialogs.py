"""Dialogs: what they show whole, what they ask for, and what they refuse."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.den_cluster import fill
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import a_seat


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        yield scripted


@pytest.mark.parametrize("size", [(80, 24), (60, 16)])
def test_a_long_message_is_whole_in_the_list_of_messages(
    node: ScriptedSession, tmp_path: Path, size: tuple[int, int]
) -> None:
    words = [f"word{n}" for n in range(40)]

    async def story() -> None:
        async with a_seat(node.url, tmp_path, size=size) as seat:
            await seat.until_shows("LIVE")
            seat.app.seat.tell(" ".join(words), level="bad")
            await seat.press("semicolon")
            await seat.until_shows("Messages", "error: word0", *words)

    asyncio.run(story())
