"""A node's detail: opened from the table, live, with its log; and what `y` copies."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.session import Unsubscribe, row_key
from tests.support.builders import a_node_id
from tests.support.den_cluster import den_log_line, fill
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import SeatUnderTest, a_seat, check_sizes


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        yield scripted


async def _open_first_node(seat: SeatUnderTest) -> None:
    await seat.until_shows("> attic-mini")
    await seat.press("j", "enter")
    await seat.until_shows("- Runs 1", "is late")


def test_a_node_is_as_drawn(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _open_first_node(seat)
            await check_sizes(seat, "node")

    asyncio.run(story())


def test_its_log_follows_and_stops_when_the_operator_looks_up(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _open_first_node(seat)
            await seat.press("l")
            node.lines("logs", [den_log_line(f"line {n}") for n in range(30)])
            await seat.until_shows("line 29", "follow ON")
            await seat.press("up", "up", "up")
            node.lines("logs", [den_log_line("the newest")])
            await seat.until_shows("4 new below, G follows")
            assert "the newest" not in seat.text
            await seat.press("G")
            await seat.until_shows("the newest", "follow ON")
            await seat.press("escape")
            await seat.until(lambda: any(isinstance(one, Unsubscribe) for one in node.seen))

    asyncio.run(story())


def test_a_node_that_is_removed_while_it_is_open_says_so(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _open_first_node(seat)
            node.rows("cluster", {row_key("node", a_node_id(1)): None})
            await seat.until_shows("this node is no longer a member")
            await seat.press("q")
            await seat.until_shows("- Nodes 3")

    asyncio.run(story())


def test_what_can_be_copied_of_a_node_is_offered_with_its_text(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("> attic-mini")
            await seat.press("y")
            await seat.until_shows("Copy attic-mini", a_node_id(4), "JSON", "skulk nodes --json")
            await seat.press("n")
            await seat.until_shows("wrote 10 bytes")
            assert (tmp_path / "clipboard.txt").read_text() == "attic-mini"

    asyncio.run(story())


def test_ctrl_c_copies_the_names_of_what_is_selected_and_says_how_to_leave(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("> attic-mini")
            await seat.press("ctrl+c")
            await seat.until_shows("q quits; attic-mini: wrote 10 bytes")
            assert (tmp_path / "clipboard.txt").read_text() == "attic-mini"
            await seat.press("space", "space", "ctrl+c")
            await seat.until_shows("q quits; 2 lines: wrote 17 bytes")
            copied = (tmp_path / "clipboard.txt").read_text()
            assert set(copied.split("\n")) == {"attic-mini", "den-01"}
            await seat.press("5", "right_square_bracket", "ctrl+c")  # events have no rows to select
            await seat.until(lambda: seat.frame[-2].startswith(" q quits   "))

    asyncio.run(story())


def test_without_a_clipboard_ctrl_c_says_how_to_leave(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            seat.app.seat.clipboard = None
            await seat.until_shows("> attic-mini")
            await seat.press("ctrl+c")
            await seat.until(lambda: seat.frame[-2].strip() == "q quits")
            assert not (tmp_path / "clipboard.txt").exists()

    asyncio.run(story())
