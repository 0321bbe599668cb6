"""The saved view of a cluster on the screen: at the start, until a node has answered."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.session import row_key
from skulk_tui.clusters import SavedClusters
from skulk_tui.last_view import read_view, rows_to_keep, write_view
from skulk_tui.own_files import CONFIG_FILE
from tests.support.builders import NOW_MS, a_node_id
from tests.support.den_cluster import den_head, fill
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import a_seat, check_sizes

SAVED = "SAVED 2023-11-14 22:13"


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        yield scripted


async def _save(node: ScriptedSession, tmp_path: Path) -> None:
    async with a_seat(node.url, tmp_path, profile="home") as seat:
        await seat.until_shows("LIVE", "attic-mini")
        write_view(tmp_path, "home", rows_to_keep(seat.app.seat.view), NOW_MS)
        # What this run writes at its end would have the date of today.
        seat.app.seat.profile = ""


def test_until_a_node_answers_the_saved_view_is_shown_with_its_date_and_nothing_can_be_changed(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        await _save(node, tmp_path)
        node.close()
        async with a_seat(node.url, tmp_path, profile="home") as seat:
            await seat.until_shows("CONNECTING", SAVED, "> attic-mini", "retry now")
            assert seat.app.screen.has_class("stale")
            await check_sizes(seat, "state-saved", sizes=((60, 16), (160, 50), (80, 24)))
            await seat.press("x")
            await seat.until_shows("not while the link is connecting")
            node.reopen()
            await seat.press("r")
            await seat.until_shows("LIVE", "> attic-mini")
            await seat.until(lambda: "SAVED" not in seat.text)
            assert not seat.app.screen.has_class("stale")

    asyncio.run(story())


def test_while_the_first_rows_are_awaited_the_saved_ones_are_no_news(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        node.rows("cluster", {"cluster": den_head(master=None)})
        await _save(node, tmp_path)
        node.withhold("cluster", "placements", "transfers", "models", "health")
        async with a_seat(node.url, tmp_path, profile="home") as seat:
            await seat.until_shows("SYNC 0%", SAVED, "attic-mini")
            assert "alive  2 ready" not in seat.frame[0]
            assert "ELECTING" not in seat.frame[0]
            node.release()
            await seat.until_shows("LIVE", "ELECTING", "4 alive  2 ready")
            assert "SAVED" not in seat.text

    asyncio.run(story())


def test_a_card_says_too_that_what_it_shows_was_saved(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        await _save(node, tmp_path)
        node.close()
        async with a_seat(node.url, tmp_path, profile="home", size=(34, 9)) as seat:
            await seat.until_shows("CONNECTING", SAVED, "attic-mini   susp!   25 %      -")
            assert "alive  2 ready" not in seat.text

    asyncio.run(story())


def test_the_saved_view_of_the_cluster_that_is_gone_over_to_is_shown(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        config = tmp_path / "config"
        config.mkdir()
        nobody = "http://127.0.0.1:9"
        (config / CONFIG_FILE).write_text(f'[profile.home]\nseeds = ["{nobody}"]\n')
        await _save(node, tmp_path)
        async with a_seat(node.url, tmp_path, profile="work") as seat:
            seat.app.seat.clusters = SavedClusters({}, config)
            await seat.until_shows("LIVE", "attic-mini")
            node.rows("cluster", {row_key("node", a_node_id(4)): None})
            await seat.until(lambda: "attic-mini" not in seat.text)
            await seat.press("colon")
            await seat.type("use home")
            await seat.press("enter")
            await seat.until_shows("CONNECTING", SAVED, "attic-mini")

    asyncio.run(story())


def test_what_was_live_is_written_once_at_first_and_at_the_end(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path, profile="home") as seat:
            await seat.until_shows("LIVE", "attic-mini")
            path = tmp_path / "views" / "home.json"
            await seat.until(path.exists)
            path.unlink()
            await asyncio.sleep(2.2)  # two of the seat's seconds
            assert not path.exists()
        assert read_view(tmp_path, "home") is not None

    asyncio.run(story())


def test_without_a_saved_cluster_nothing_is_kept_or_shown(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE", "attic-mini")
        assert not (tmp_path / "views").exists()

    asyncio.run(story())


def test_a_file_that_cannot_be_read_counts_for_nothing_and_debug_says_so(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        path = tmp_path / "views" / "home.json"
        path.parent.mkdir()
        path.write_text('{"version": 9, "at_ms": 1, "rows": {}}')
        node.close()
        async with a_seat(node.url, tmp_path, profile="home", size=(160, 40)) as seat:
            await seat.until_shows("CONNECTING", "no node has answered yet")
            await seat.press("colon")
            await seat.type("debug")
            await seat.press("enter")
            await seat.until_shows("last view", "holds no view of a cluster: version")

    asyncio.run(story())


def test_another_clusters_saved_view_is_not_shown(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        await _save(node, tmp_path)
        node.close()
        async with a_seat(node.url, tmp_path, profile="work") as seat:
            await seat.until_shows("CONNECTING", "retry now")
            assert "attic-mini" not in seat.text

    asyncio.run(story())
