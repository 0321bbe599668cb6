"""Each state of link and cluster on the screen: a word for it, its reason, and what can be done.

Numbers in brackets are rows of the acceptance list for the terminal interface.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.session import row_key
from tests.support.den_cluster import den_head, den_member, den_node, fill
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import a_seat, check_sizes


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        yield scripted


def test_without_a_node_the_reason_and_the_remedy_stand_there(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        node.close()
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("CONNECTING", "retry now")
            await check_sizes(seat, "state-connecting")

    asyncio.run(story())


def test_while_it_learns_what_there_is_it_says_how_far_it_is(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        node.withhold("models")
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("SYNC 80%", "attic-mini")
            await check_sizes(seat, "state-syncing")
            node.release()
            await seat.until_shows("LIVE")
            await check_sizes(seat, "state-live")

    asyncio.run(story())


def test_a_session_that_is_taken_up_again_shows_the_last_view_meanwhile(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE", "attic-mini")
            node.withhold("cluster", "models")
            node.drop()
            await seat.until_shows("RESUME", "attic-mini")
            await check_sizes(seat, "state-resuming")
            node.release()
            await seat.until_shows("LIVE")

    asyncio.run(story())


def test_silence_makes_it_stale_and_then_lost_and_nothing_old_looks_live(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE", "rack-a6k")
            node.stall()
            await seat.until_shows("STALE")
            await seat.until(lambda: seat.app.screen.has_class("stale"))
            await check_sizes(seat, "state-stale")
            node.close()
            await seat.until_shows("LOST", "no node answers", "retry 2 in")
            await check_sizes(seat, "state-lost")
            await seat.press("x")
            await seat.until_shows("not while the link is lost")

    asyncio.run(story())


def test_a_link_that_comes_back_keeps_cursor_filter_and_messages(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[1]"""

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("> attic-mini")
            await seat.press("j", "slash")
            await seat.type("den")
            await seat.press("enter")
            await seat.until_shows("> den-01", "filter: den (2 of 4)")
            node.close()
            await seat.until_shows("LOST")
            node.reopen()
            await seat.press("r")
            await seat.until_shows("LIVE", "> den-01", "filter: den (2 of 4)")
            await seat.until(lambda: "retry now" not in seat.text)  # the next layout

    asyncio.run(story())


def test_a_change_on_a_stale_view_says_how_old_it_is(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("> attic-mini")
            node.stall()
            await seat.until_shows("STALE")
            await seat.press("x")
            await seat.until_shows("Remove attic-mini", "The view is")

    asyncio.run(story())


def test_another_version_is_named_with_both_and_the_remedy(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        node.version = 9
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("NODE INCOMPATIBLE", "version 9", "this program 1")
            await check_sizes(seat, "state-incompatible")

    asyncio.run(story())


def test_a_refused_key_is_named_with_its_source(tmp_path: Path) -> None:
    async def story() -> None:
        with ScriptedSession(api_key="skulk-aaaaaaaa-" + "b" * 32) as node:
            async with a_seat(node.url, tmp_path) as seat:
                await seat.until_shows("NO ACCESS", "key from none")
                await check_sizes(seat, "state-denied")

    asyncio.run(story())


@pytest.mark.parametrize(
    ("state", "changes", "words"),
    [
        ("electing", {"master": None}, "ELECTING"),
        ("minority", {"is_minority": True, "alive": 2, "voters": 7}, "MINORITY 2 of 7"),
        ("degraded", {"alerts": 3}, "3 alerts"),
    ],
)
def test_what_the_cluster_says_of_itself_is_a_word_in_the_status_row(
    node: ScriptedSession, tmp_path: Path, state: str, changes: dict[str, object], words: str
) -> None:
    async def story() -> None:
        node.rows("cluster", {"cluster": den_head(**changes)})
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE", words)
            await check_sizes(seat, f"state-{state}")

    asyncio.run(story())


def test_a_slow_feed_pause_and_read_only_are_words_too(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path, is_readonly=True) as seat:
            await seat.until_shows("LIVE", "RO")
            await check_sizes(seat, "state-read-only")
            await seat.resize(80, 24)
            node.feed("summary")
            await seat.until_shows("SUMMARY FEED")
            await check_sizes(seat, "state-coalesced")
            node.feed("full")
            await seat.until(lambda: "SUMMARY" not in seat.text)
            await seat.press("p")
            await seat.until_shows("PAUSED")
            await check_sizes(seat, "state-paused")
            await seat.resize(80, 24)
            node.rows("cluster", {"cluster": den_head(ready=9)})
            await seat.until_shows("9 ready")
            await seat.press("p")
            await seat.until(lambda: "PAUSED" not in seat.text)

    asyncio.run(story())


def test_density_glyphs_times_and_theme_change_and_the_cursor_stays_where_it_can(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("> attic-mini", "llama_server-cpu")
            await seat.press("w")
            await seat.until(lambda: "llama_server-cpu" not in seat.text)
            await seat.press("w")
            await seat.until_shows("llama_server-cpu")
            for command, sign in (("glyphs unicode", "─ Nodes 4"), ("glyphs ascii", "- Nodes 4")):
                await seat.press("colon")
                await seat.type(command)
                await seat.press("enter")
                await seat.until_shows(sign)
            for theme in ("light", "ansi", "mono", "dark"):
                await seat.press("colon")
                await seat.type(f"theme {theme}")
                await seat.press("enter")
                await seat.until_shows("- Nodes 4")
            await seat.press("T")
            await seat.until_shows("times are")

    asyncio.run(story())


def test_attaching_by_name_goes_to_that_nodes_address(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        with ScriptedSession(name="den-02", number=2) as other:
            fill(other)
            silent = den_node(3, member=den_member(3, api_port=0))
            other.rows("cluster", {row_key("node", silent.member.node_id): silent})
            member = den_member(2, addresses=("127.0.0.1:12416",), api_port=other.port)
            node.rows("cluster", {row_key("node", member.node_id): den_node(2, member=member)})
            async with a_seat(node.url, tmp_path) as seat:
                await seat.until_shows("via den-01", "> attic-mini")
                await seat.press("colon")
                await seat.type("attach den-02")
                await seat.press("enter")
                await seat.until_shows("via den-02", "LIVE", "> attic-mini")
                await seat.press("colon")
                await seat.type("attach rack-a6k")
                await seat.press("enter")
                await seat.until_shows("serves no HTTP that is known here")

    asyncio.run(story())
