"""The tools of the seat: sorting, help by topic, keymap and probe, pictures, figures, API keys."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.ids import KeyId
from protocol.keys_api import KeyList, KeyView
from protocol.state import KeyLimits
from tests.support.builders import NOW_MS
from tests.support.den_cluster import fill
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import SeatUnderTest, a_seat


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        key = KeyView(
            key_id=KeyId("key-k3yk3yk3"),
            name="laptop",
            scope="operate",
            created_at_ms=NOW_MS,
            limits=KeyLimits(requests_per_minute=60, concurrent_requests=4),
        )
        scripted.answer("GET", "/v1/keys", KeyList(items=(key,)))
        yield scripted


async def command(seat: SeatUnderTest, text: str) -> None:
    await seat.press("colon")
    await seat.type(text)
    await seat.press("enter")


def test_rows_are_sorted_by_the_column_that_is_named(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("sort: node ^")
            await command(seat, "sort mem")
            await seat.until_shows("sort: mem ^")
            await command(seat, "sort colour")
            await seat.until_shows("there is no column 'colour'", "There are")
            await seat.until_shows("sort: mem ^")

    asyncio.run(story())


def test_columns_are_chosen_for_each_table_and_stay_so(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("sort: node ^", "RUNS", "SEEN")
            await command(seat, "columns")
            await seat.until_shows("Columns: Nodes", "[x] runs", ":columns NAME,NAME")
            await seat.press("escape")
            await command(seat, "columns live,colour")
            await seat.until_shows("there is no column 'colour'", "There are")
            await seat.press("colon")
            await seat.type("columns live,me")
            await seat.press("tab")
            await seat.until_shows("columns live,mem")
            await seat.press("enter")
            await seat.until_shows("LIVE", "4 left out")
            await seat.until(lambda: "SEEN" not in seat.text)
            await seat.press("2", "1")
            await seat.until_shows("4 left out")
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("sort: node ^", "4 left out")
            assert "SEEN" not in seat.text
            await command(seat, "columns +seen")
            await seat.until_shows("SEEN", "3 left out")
            await command(seat, "columns all")
            await seat.until_shows("SEEN", "RUNS")
            await seat.until(lambda: "left out" not in seat.text)

    asyncio.run(story())


def test_a_file_of_columns_that_cannot_be_read_is_told_and_all_are_shown(
    node: ScriptedSession, tmp_path: Path
) -> None:
    (tmp_path / "columns").mkdir()
    (tmp_path / "columns" / "default.json").write_text("{")

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows(
                "which columns are left out cannot be read", "sort: node ^", "SEEN"
            )

    asyncio.run(story())


@pytest.mark.parametrize(
    ("topic", "shown"),
    [("store", ":pull"), ("bundle", ":bundle"), ("invitation", ":invite"), ("X", "restart")],
)
def test_help_is_there_by_topic_command_word_and_key(
    node: ScriptedSession, tmp_path: Path, topic: str, shown: str
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE")
            await command(seat, f"help {topic}")
            await seat.until_shows("Help", shown)

    asyncio.run(story())


def test_help_about_nothing_names_the_topics(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE")
            await command(seat, "help zebra")
            await seat.until_shows("nothing is about 'zebra'")

    asyncio.run(story())


def test_keys_are_listed_with_their_ids_and_shown_as_they_arrive(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE")
            await command(seat, "keymap")
            await seat.until_shows("Keymap", "go.cluster", ":attach [NODE]", "link.attach")
            await seat.press("escape")
            await command(seat, "keymap probe")
            await seat.press("f5", "q", "ctrl+j", "escape", "a")
            await seat.until_shows("Keys as they arrive", "f5", "q", "ctrl+j", "escape")
            await seat.press("escape", "escape")
            await seat.until(lambda: "Keys as they arrive" not in seat.text)

    asyncio.run(story())


def test_a_picture_and_the_inner_figures(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE", "attic-mini")
            await command(seat, "screenshot")
            await seat.until_shows("the picture is")
            (picture,) = (tmp_path / "pictures").iterdir()
            assert "attic-mini" in picture.read_text()
            assert picture.stat().st_mode & 0o077 == 0
            await command(seat, "debug")
            await seat.until_shows(
                "link", "live to http", "4 nodes, 2 instances, 3 models, 0 that cannot be read",
                "80x24", "10 a second", "0 writes",
            )  # fmt: skip

    asyncio.run(story())


def test_api_keys_are_listed_without_a_secret(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE")
            await command(seat, "keys")
            await seat.until_shows(
                "API keys", "laptop", "operate", "60/min, 4 at a time", "skulk keys create NAME"
            )

    asyncio.run(story())


def test_the_mouse_is_taken_and_left(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE")
            await command(seat, "mouse off")
            await seat.until_shows("the mouse is the terminal's now")
            await command(seat, "mouse on")
            await seat.until_shows("the mouse is this program's now")

    asyncio.run(story())


def test_commands_of_an_earlier_run_are_at_hand_again(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE")
            await command(seat, "sort mem")
            await command(seat, "nonsense")
            await seat.until_shows("there is no command")
            kept = tmp_path / "history" / "default"
            await seat.until(kept.exists)
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE")
            await seat.press("colon", "up")
            await seat.until_shows(":sort mem")

    asyncio.run(story())
