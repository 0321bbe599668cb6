"""The screen Cluster against a scripted node: what it shows, and that the cursor holds objects.

Numbers in brackets are rows of the acceptance list for the terminal interface.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len

from protocol.errors import ErrorBody
from protocol.link_api import ProbeFailure
from protocol.session import row_key
from tests.support.builders import a_node_id
from tests.support.cluster_documents import a_probe
from tests.support.den_cluster import den_links, den_member, den_node, fill
from tests.support.frames import check_frame
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import a_seat, check_sizes

CARDS = ((59, 20), (34, 9), (20, 5), (1, 1))


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        yield scripted


def test_the_overview_is_as_drawn(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE", "attic-mini", "rack-a6k")
            await check_sizes(seat, "cluster-overview")

    asyncio.run(story())


def test_sub_tabs_show_links_members_and_the_door(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE", "attic-mini")
            for tab in ("links", "members", "door"):
                await seat.press("right_square_bracket")
                await seat.until_shows(f"- {tab.capitalize()}")
                if tab == "links":
                    await seat.until_shows("0.18 9.4G e")
                check_frame(f"cluster-{tab}-80x24", await seat.settled())
            await seat.press("enter")
            await seat.until_shows("If it is yours: :invite")

    asyncio.run(story())


def test_links_are_measured_by_a_command_and_followed_to_their_end(
    node: ScriptedSession, tmp_path: Path
) -> None:
    running = a_probe("running", n_pairs=6, n_tried=2, current=(a_node_id(1), a_node_id(2)))
    error = ErrorBody(code="cluster.probe_disturbs", message="den-02 is answering requests")
    failure = ProbeFailure(source=a_node_id(1), target=a_node_id(2), error=error)
    node.answer("POST", "/v1/cluster/links/probe", a_probe("running", n_pairs=6))
    node.answer("GET", "/v1/cluster/links", den_links(running))

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE", "attic-mini")
            await seat.press("2", "colon")
            await seat.type("probe links of den-01,den-02")
            await seat.press("enter")
            await seat.until_shows("- Links", "measured 2 of 6 pairs; now den-01 and den-02")
            (asked,) = node.asked("POST", "/v1/cluster/links/probe")
            assert asked.body == {
                "nodes": [a_node_id(1), a_node_id(2)],
                "even_busy": False,
                "dry_run": False,
            }
            done = a_probe(n_pairs=6, n_tried=6, failures=(failure,))
            node.answer("GET", "/v1/cluster/links", den_links(done))
            await seat.until_shows("not measured: den-01 to den-02: den-02 is answering requests")

    asyncio.run(story())


def test_a_node_that_tells_nothing_of_the_others_links_is_no_empty_matrix(
    node: ScriptedSession, tmp_path: Path
) -> None:
    node.refuse("GET", "/v1/cluster/links", "request.not_found")

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE", "attic-mini")
            await seat.press("m")
            await seat.until_shows("- Links", "silent", "what others tell of their links is not")

    asyncio.run(story())


def _grow(node: ScriptedSession, n_more: int) -> None:
    for number in range(10, 10 + n_more):
        member = den_member(2, name=f"n{number}", node_id=a_node_id(number))
        node.rows("cluster", {row_key("node", a_node_id(number)): den_node(2, member=member)})


def test_nodes_are_cards_where_there_is_room_and_rows_again_where_not_all_fit(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path, size=(120, 36)) as seat:
            await seat.until_shows("> attic-mini", "mem [##........] 6/24G 25%")
            assert "RUNS" not in seat.text
            check_frame("cluster-overview-120x36", await seat.settled())
            await seat.resize(119, 36)
            await seat.until_shows("RUNS")
            await seat.resize(120, 35)
            await seat.until_shows("RUNS")
            await seat.resize(120, 36)
            await seat.until(lambda: "RUNS" not in seat.text)
            _grow(node, 8)
            await seat.until_shows("- Nodes 12", "RUNS", "n17")

    asyncio.run(story())


def test_keys_do_to_cards_what_they_do_to_rows(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path, size=(120, 36)) as seat:
            await seat.until_shows("> attic-mini", "mem [##")
            await seat.press("j", "j")
            await seat.until_shows("> den-02", "- den-02 -")
            await seat.press("space")
            await seat.until_shows(" *den-02", "> rack-a6k", "1 marked")
            await seat.press("home")
            await seat.until_shows("> attic-mini")
            await seat.pilot.click("#pane-nodes", offset=(40, 2))
            await seat.until_shows("> den-01")
            await seat.press("slash")
            await seat.type("rack")
            await seat.press("enter")
            await seat.until_shows("> rack-a6k", "(1 of 4)", "mem [#########.] 43/48G")
            await seat.press("escape", "escape")
            await seat.until_shows("attic-mini")
            await seat.press("enter")
            await seat.until_shows("- Runs 1")

    asyncio.run(story())


def test_cards_are_there_by_command_at_any_size_and_follow_the_cursor(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("RUNS", "> attic-mini")
            await seat.press("2", "colon")
            await seat.type("cards")
            await seat.press("enter")
            await seat.until_shows("[1 Cluster]", "> attic-mini", "mem [##........] 6/24G 25%")
            _grow(node, 8)
            await seat.until_shows("- Nodes 12")
            assert "43/48G" not in seat.text
            await seat.press("end")
            await seat.until_shows("> rack-a6k", "43/48G")
            for typed, shown in (
                ("cards", "RUNS"),
                ("cards on", "mem [##"),
                ("cards auto", "RUNS"),
            ):
                await seat.press("colon")
                await seat.type(typed)
                await seat.press("enter")
                await seat.until_shows(shown)

    asyncio.run(story())


def test_where_there_is_no_room_a_card_stands(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until(lambda: len(seat.app.seat.view.nodes) == 4)
            await check_sizes(seat, "cluster-card", CARDS)
            await seat.resize(80, 24)
            await seat.until_shows("- Nodes 4")

    asyncio.run(story())


def test_the_cursor_holds_its_node_through_changes_and_a_dialog_does_too(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[12]"""

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("> attic-mini")
            await seat.press("j", "j")
            await seat.until_shows("> den-02")
            newcomer = den_node(2, member=den_member(2, name="aaa", node_id=a_node_id(9)))
            node.rows("cluster", {row_key("node", a_node_id(9)): newcomer})
            await seat.until_shows("aaa")
            assert "> den-02" in seat.text
            await seat.press("x")
            await seat.until_shows("Remove den-02")
            node.rows("cluster", {row_key("node", a_node_id(1)): None})
            await seat.pilot.pause(0.3)
            assert "Remove den-02" in seat.text
            await seat.type("den-02")
            await seat.press("enter")
            await seat.until(lambda: node.asked("DELETE", f"/v1/cluster/members/{a_node_id(2)}"))

    asyncio.run(story())


def test_what_would_remove_a_node_does_nothing_on_enter_or_esc(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("> attic-mini")
            for key in ("enter", "escape"):
                await seat.press("x")
                await seat.until_shows("Remove attic-mini")
                await seat.press(key)
                await seat.pilot.pause(0.1)
                if key == "enter":  # the word was not typed
                    assert "Remove attic-mini" in seat.text
                    await seat.press("escape")
                await seat.until_shows("nothing was changed")
            assert node.requests == []

    asyncio.run(story())


def test_a_filter_stays_visible_and_esc_takes_it_back(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await seat.press("slash")
            await seat.type("live:alive !den")
            await seat.press("enter")
            await seat.until_shows("filter: live:alive !den (1 of 4)")
            assert "> rack-a6k" in seat.text
            await seat.press("escape")
            await seat.until_shows("den-02")

    asyncio.run(story())


HOSTILE = (
    ("[red]x[/red]", "[red]x[/red]"),
    ("\x1b[31mred\x07", "[31mred"),
    ("日本語の名前", "日本語の名前"),
    ("\u202egnp.exe", "gnp.exe"),
    ("n" * 300, "nnnnnnnnnn"),
    ("a\u0301b", "a\u0301b"),
)
"""Names, and what is seen of them."""


def test_hostile_names_are_shown_literally_and_aligned(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[16]"""

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("rack-a6k", "den-02")
            for name, shown in HOSTILE:
                hostile = den_node(2, member=den_member(2, name=name))
                node.rows("cluster", {row_key("node", a_node_id(2)): hostile})
                await seat.until_shows(f"  {shown}", "44/64G")
                columns = {
                    cell_len(row[: row.index(memory)])
                    for row in seat.frame
                    for memory in ("44/64G", "43/48G")
                    if memory in row
                }
                assert len(columns) == 1
                assert "\x1b" not in seat.text
                assert "\u202e" not in seat.text

    asyncio.run(story())


def test_a_read_key_is_offered_nothing_that_changes(node: ScriptedSession, tmp_path: Path) -> None:
    """[14]"""

    async def story() -> None:
        node.scope = "read"
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("RO", "> attic-mini")
            await seat.press("x")
            await seat.until_shows("remove: the key may not")
            await seat.press("question_mark")
            await seat.until_shows("Help")
            assert "Remove a node" not in seat.text
            await seat.press("escape", "colon")
            await seat.type("remove den-01")
            await seat.press("enter")
            await seat.until_shows("remove: the key may not")
            assert node.requests == []

    asyncio.run(story())


def test_the_next_alert_leads_to_the_node_it_is_about(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("> attic-mini")
            await seat.press("exclamation_mark")
            await seat.until_shows("> den-01", "19.0 GiB are free for models")

    asyncio.run(story())
