"""Going over to another cluster, and to another node, without leaving the seat."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from skulk_tui.clusters import SavedClusters
from skulk_tui.own_files import CONFIG_FILE
from tests.support.den_cluster import fill
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import SeatUnderTest, a_seat

WORK_KEY = "skulk-key-of-the-work-cluster"


@pytest.fixture
def home() -> Iterator[ScriptedSession]:
    with ScriptedSession(name="den-01") as node:
        fill(node)
        yield node


@pytest.fixture
def work() -> Iterator[ScriptedSession]:
    with ScriptedSession(name="forge-01", number=7, api_key=WORK_KEY) as node:
        yield node


def save(tmp_path: Path, home: ScriptedSession, work: ScriptedSession, **more: bool) -> None:
    config = tmp_path / "config"
    (config / "keys").mkdir(parents=True)
    flags = "".join(f"{name} = {str(value).lower()}\n" for name, value in more.items())
    (config / CONFIG_FILE).write_text(
        f'[profile.home]\nseeds = ["{home.url}"]\n'
        f'[profile.work]\nseeds = ["{work.url}", "http://127.0.0.1:9"]\n{flags}'
    )
    key = config / "keys" / "work"
    key.write_text(WORK_KEY)
    key.chmod(0o600)


def with_clusters(seat: SeatUnderTest, tmp_path: Path) -> None:
    seat.app.seat.clusters = SavedClusters({}, tmp_path / "config")


async def command(seat: SeatUnderTest, text: str) -> None:
    await seat.press("colon")
    await seat.type(text)
    await seat.press("enter")


def test_another_cluster_is_used_with_its_own_key_and_nothing_of_the_first_stays(
    home: ScriptedSession, work: ScriptedSession, tmp_path: Path
) -> None:
    save(tmp_path, home, work, protect=True, readonly=True)

    async def story() -> None:
        async with a_seat(home.url, tmp_path) as seat:
            with_clusters(seat, tmp_path)
            await seat.until_shows("via den-01", "rack-a6k", "2 ready")
            await command(seat, "use work")
            frame = "\n".join(await seat.settled())
            await seat.until_shows("work  via forge-01", "LIVE", "RO", "PROTECTED")
            assert "rack-a6k" not in seat.text
            assert "rack-a6k" not in frame or "via forge-01" not in frame
            assert seat.app.seat.link.addresses == (work.url, "http://127.0.0.1:9")
            await command(seat, "use home")
            await seat.until_shows("home  via den-01", "LIVE", "rack-a6k")
            assert "PROTECTED" not in seat.text
            assert " RO " not in seat.text

    asyncio.run(story())
    assert [one.get("authorization") for one in home.headers] == [None, None]
    assert [one.get("authorization") for one in work.headers] == [f"Bearer {WORK_KEY}"]


def test_the_clusters_that_are_saved_are_offered_and_completed(
    home: ScriptedSession, work: ScriptedSession, tmp_path: Path
) -> None:
    save(tmp_path, home, work)

    async def story() -> None:
        async with a_seat(home.url, tmp_path) as seat:
            with_clusters(seat, tmp_path)
            await seat.until_shows("via den-01", "rack-a6k")
            await command(seat, "use")
            await seat.until_shows("Go over to", "home", "work", "127.0.0.1:9")
            await seat.press("escape")
            await seat.press("colon")
            await seat.type("use w")
            await seat.press("tab")
            await seat.until_shows(":use work")
            await seat.press("enter")
            await seat.until_shows("via forge-01", "LIVE")

    asyncio.run(story())


def test_another_cluster_can_be_used_while_the_one_in_front_is_out_of_reach(
    home: ScriptedSession, work: ScriptedSession, tmp_path: Path
) -> None:
    save(tmp_path, home, work)

    async def story() -> None:
        async with a_seat("http://127.0.0.1:9", tmp_path) as seat:
            with_clusters(seat, tmp_path)
            await seat.until_shows("CONNECTING")
            await command(seat, "use home")
            await seat.until_shows("via den-01", "LIVE", "rack-a6k")

    asyncio.run(story())


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("use wrok", "unknown cluster 'wrok'"),
        ("use work", "the key file"),
        ("attach nobody", "no node"),
    ],
)
def test_what_cannot_be_used_is_said_and_leaves_the_link_as_it_is(
    home: ScriptedSession, work: ScriptedSession, tmp_path: Path, typed: str, told: str
) -> None:
    save(tmp_path, home, work)
    (tmp_path / "config" / "keys" / "work").chmod(0o644)

    async def story() -> None:
        async with a_seat(home.url, tmp_path) as seat:
            with_clusters(seat, tmp_path)
            await seat.until_shows("via den-01", "rack-a6k")
            await command(seat, typed)
            await seat.until_shows(told)
            await seat.until_shows("via den-01", "LIVE")

    asyncio.run(story())
    assert home.n_sessions == 1


def test_no_saved_cluster_says_how_to_save_one(home: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(home.url, tmp_path) as seat:
            with_clusters(seat, tmp_path)
            await seat.until_shows("rack-a6k")
            await command(seat, "use")
            await seat.until_shows("no cluster is saved")

    asyncio.run(story())


def test_the_nodes_that_can_be_attached_to_are_offered(
    home: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(home.url, tmp_path) as seat:
            await seat.until_shows("rack-a6k")
            await command(seat, "attach")
            await seat.until_shows("Go on through", "den-01  alive  attached now", home.url)
            await seat.press("escape")
            assert home.n_sessions == 1

    asyncio.run(story())
