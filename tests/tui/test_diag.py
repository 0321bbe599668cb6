"""The screen Diag: health, events with gaps, logs of any node, the network; one command's story."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from protocol.control_api import EventView
from protocol.session import TimelineEntry, row_key
from skulk_tui.screens.diag import TABS, DiagView
from tests.support.builders import NOW_MS, a_command_id, a_node_id
from tests.support.den_cluster import den_health, den_log_line, fill
from tests.support.frames import check_frame
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import SeatUnderTest, a_seat, check_sizes


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        yield scripted


async def _go(seat: SeatUnderTest, *, tab: int = 0) -> None:
    await seat.until_shows("attic-mini")
    await seat.press("5")
    await seat.until_shows("- Health")
    for _ in range(tab):
        await seat.press("right_square_bracket")


def test_health_is_as_drawn(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await check_sizes(seat, "diag-health")

    asyncio.run(story())


def test_a_check_that_passes_again_goes(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await seat.until_shows("> den-01", "1 to look at")
            await seat.press("enter")
            await seat.until_shows("19.0 GiB are free for models", "skulk models rm MODEL")
            await seat.press("escape")
            node.rows("health", {row_key("health", a_node_id(1)): den_health(2)})
            await seat.until_shows("all is well")

    asyncio.run(story())


def test_events_come_live_and_a_gap_is_a_row_of_its_own(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat, tab=1)
            await seat.until_shows("- Events", ".8817", "follow ON")
            lost = EventView(
                term=7, seq=8900, at_ms=NOW_MS, kind="MemberLost", event={"node_id": a_node_id(4)}
            )
            node.lines("events", [lost], gap="events 8818 to 8899 are no longer kept")
            await seat.until_shows("gap: events 8818 to 8899", "MemberLost", a_node_id(4))

    asyncio.run(story())


def test_events_since_shows_what_came_within_that_time_and_esc_shows_all(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        now_ms = time.time_ns() // 1_000_000
        node.lines("events", [_lost(8901, now_ms - 3_600_000, 3), _lost(8902, now_ms - 60_000, 4)])
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await seat.press("colon")
            await seat.type("events since 10m")
            await seat.press("enter")
            await seat.until_shows("[Timeline]", "last 10m   follow ON", ".8902")
            assert ".8901" not in seat.text
            node.lines("events", [_lost(8903, now_ms, 2)])
            await seat.until_shows(".8902", ".8903")
            assert ".8901" not in seat.text
            await seat.press("colon")
            await seat.type("events since 30s")
            await seat.press("enter")
            await seat.until(lambda: ".8902" not in seat.text)
            assert ".8903" in seat.text
            await seat.press("escape")
            await seat.until_shows(".8817", ".8901", ".8902", ".8903")
            assert "[Timeline]" in seat.text
            assert "last 30s" not in seat.text

    asyncio.run(story())


def test_a_time_that_is_none_is_refused_as_by_the_command_line(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await seat.press("colon")
            await seat.type("events since soon")
            await seat.press("enter")
            await seat.until_shows("since: 'soon' is not a duration above 0")

    asyncio.run(story())


def _lost(seq: int, at_ms: int, number: int) -> EventView:
    event = {"node_id": a_node_id(number)}
    return EventView(term=7, seq=seq, at_ms=at_ms, kind="MemberLost", event=event)


def test_a_log_is_chosen_by_node_filtered_by_level_and_expression(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat, tab=3)
            await seat.until_shows("Log of the node attached to", "serving", "a reading is late")
            await seat.press("L")
            await seat.until(lambda: "serving" not in seat.text)
            assert "a reading is late" in seat.text
            await seat.press("colon")
            await seat.type("logs den-02 level info")
            await seat.press("enter")
            await seat.until_shows("Log of den-02   level info+", "serving")
            assert node.subscribed("logs")[-1].node == a_node_id(2)
            await seat.press("colon")
            await seat.type("grep late$")
            await seat.press("enter")
            await seat.until(lambda: "serving" not in seat.text)
            await seat.press("colon")
            await seat.type("grep (")
            await seat.press("enter")
            await seat.until_shows("is no regular expression")

    asyncio.run(story())


def test_hostile_log_lines_are_shown_as_text(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat, tab=3)
            node.lines("logs", [den_log_line("\x1b[2J[red]gone[/red]\x07 \u202eabc " + "x" * 5000)])
            await seat.until_shows("[2J[red]gone[/red] abc")
            assert "\x1b" not in seat.text

    asyncio.run(story())


def test_the_network_shows_each_link_with_its_age(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat, tab=4)
            await seat.until_shows("- Network 3", "silent", "2.9 s ago")
            check_frame("diag-network-80x24", await seat.settled())

    asyncio.run(story())


def test_traces_say_what_they_need_and_show_nothing_made_up(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat, tab=2)
            await seat.until_shows("no traces yet", "flight recorder")

    asyncio.run(story())


def test_one_commands_story_is_told_across_nodes(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        entries = [
            TimelineEntry(at_ms=NOW_MS, source="event", kind="InstancePlaced", text="on den-02"),
            TimelineEntry(
                at_ms=NOW_MS + 20, source="log", kind="info", text="spawning",
                node_id=a_node_id(2), node_name="den-02",
            ),
        ]  # fmt: skip
        node.lines("command", entries)
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await seat.press("colon")
            await seat.type(f"command {a_command_id()}")
            await seat.press("enter")
            await seat.until_shows("cluster", "InstancePlaced on den-02", "den-02", "spawning")
            assert node.subscribed("command")[-1].command_id == a_command_id()

    asyncio.run(story())


def test_a_pane_is_drawn_once_when_something_new_has_come(
    node: ScriptedSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            view = seat.app.screen.query_one(DiagView)
            for tab in TABS:
                await seat.until(lambda tab=tab: view.tab == tab)
                await seat.settled()
                pane = view.panes()[0]
                drawn: list[str] = []
                with monkeypatch.context() as patched:
                    patched.setattr(pane, "redraw", partial(drawn.append, tab))
                    view.commit(None)
                assert drawn == [tab]
                await seat.press("right_square_bracket")

    asyncio.run(story())
