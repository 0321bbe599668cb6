"""The screen Models: plans while the operator asks, exactly the plan shown, phases, stopping.

Numbers in brackets are rows of the acceptance list for the terminal interface.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from rich.cells import cell_len

from protocol.session import Cancel, SessionRequest, row_key
from tests.support.builders import (
    a_node_id,
    an_instance_id,
)
from tests.support.den_cluster import (
    QWEN,
    SMALL,
    den_failure,
    den_member,
    den_models,
    den_node,
    fill,
)
from tests.support.plan_documents import (
    accepted,
    no_fit,
    previews,
    small_instance,
    small_plan,
    type_command,
    usual_previews,
)
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import SeatUnderTest, a_seat, check_sizes
from tests.support.session_answers import Scripted, plain, refusal

_HOSTILE = (
    ("[red]x[/red]", "[red]x[/r"),
    ("\x1b[31mred\x07", "[31mred"),
    ("日本語の名前", "日本語"),
    ("\u202egnp.exe", "gnp.exe"),
    ("n" * 300, "nnnn"),
    ("a; rm -rf /", "a; rm -rf"),
)
"""Names, and what is seen of them."""
_PREVIEWS = "/instance/previews"
_PLACE = "/place_instance"


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        scripted.answer("GET", _PREVIEWS, usual_previews())
        scripted.answer("POST", _PLACE, accepted(small_plan(2)))
        yield scripted


async def _go(seat: SeatUnderTest, *words: str) -> None:
    await seat.until_shows("attic-mini")
    await seat.press("2", "end")
    await seat.until_shows("Models 3", "> SmolLM2", "0/2", *words)


def _wishes(node: ScriptedSession) -> list[str]:
    return [one.query for one in node.asked("GET", _PREVIEWS)]


def test_models_and_the_plan_are_as_drawn(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat, "fits", "no fit")
            await check_sizes(seat, "models-plan")

    asyncio.run(story())


def test_the_plan_follows_the_cursor_and_superseded_questions_are_not_put(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat, "fits")
            asked = len(_wishes(node))
            await seat.press("up", "up", "down", "down")
            await seat.pilot.pause(0.5)
            assert len(_wishes(node)) <= asked + 1
            await seat.press("up")
            await seat.until(lambda: f"model_id={QWEN.replace('/', '%2F')}" in _wishes(node)[-1])

    asyncio.run(story())


def test_a_question_under_way_is_given_up_when_what_is_asked_changes(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        node.answer("GET", _PREVIEWS, Scripted(is_silent=True))
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat, "planning")
            await seat.until(lambda: node.asked("GET", _PREVIEWS))
            first = node.asked("GET", _PREVIEWS)[-1].id
            node.answer("GET", _PREVIEWS, usual_previews())
            await seat.press("plus")
            await seat.until_shows("fits")
            given_up = [one.id for one in node.seen if isinstance(one, Cancel)]
            assert first in given_up

    asyncio.run(story())


def test_nodes_shape_context_and_slots_are_asked_for_and_stand_in_the_command(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path, size=(160, 50)) as seat:
            await _go(seat, "fits")
            await seat.press("tab", "tab", "down", "space")
            await seat.until_shows("[x] den-01", "1 picked", "--nodes den-01")
            await seat.press("plus", "greater_than_sign", "S")
            await seat.until_shows("shape one  ctx 32768  slots 5")
            await seat.until(lambda: "slots=5" in _wishes(node)[-1])
            asked = parse_qs(_wishes(node)[-1])
            assert asked == {
                "model_id": [SMALL],
                "node_ids": [a_node_id(1)],
                "shape": ["single"],
                "context_tokens": ["32768"],
                "slots": ["5"],
            }
            await seat.until_shows("--nodes den-01 --shape single --context 32768 --slots 5")
            await seat.press("minus", "N")
            await seat.until_shows("any node", "shape auto  ctx auto  slots auto")

    asyncio.run(story())


def test_placing_shows_the_same_figures_and_sends_exactly_the_plan_shown(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat, "> A one node")
            await seat.press("tab", "down", "enter")
            await seat.until_shows("Place HuggingFaceTB", "den-01", "of 13.0 GiB free", "Cancel")
            await seat.press("enter")
            await seat.until_shows("nothing was changed")
            assert node.asked("POST", _PLACE) == []
            await seat.press("enter")
            await seat.until_shows("Cancel")
            node.rows(
                "placements", {row_key("instance", an_instance_id(7)): small_instance("download")}
            )
            await seat.until_shows("Cancel")  # whatever moves below
            await seat.press("p")
            await seat.until(lambda: node.asked("POST", _PLACE))
            (sent,) = node.asked("POST", _PLACE)
            assert sent.body["plan_id"] == small_plan(1).plan_id
            assert sent.body["model_id"] == SMALL
            await seat.until_shows("is accepted as", "u undo")

    asyncio.run(story())


def test_a_plan_that_no_longer_holds_is_told_made_anew_and_nothing_is_applied(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[13]"""

    async def story() -> None:
        now = small_plan(4, context_tokens=8192)
        node.answer(
            "POST",
            _PLACE,
            refusal("placement.plan_changed", "no longer", status=409, plan=now),
        )
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat, "> A one node")
            await seat.press("enter")
            await seat.until_shows("Cancel", "den-02")
            node.answer("GET", _PREVIEWS, previews([now], no_fit()))
            await seat.press("p")
            await seat.until_shows("nothing was placed", "> A one node  attic-mini")
            await seat.until_shows("changed: nodes den-02 -> attic-mini")
            assert len(node.asked("POST", _PLACE)) == 1

    asyncio.run(story())


def test_a_plan_is_made_anew_when_the_cluster_changes(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat, "> A one node  den-02")
            node.answer("GET", _PREVIEWS, previews([small_plan(1, free_gib=13.0)], no_fit()))
            lost = den_node(2, member=den_member(2, liveness="lost", presence="lost"))
            node.rows("cluster", {row_key("node", a_node_id(2)): lost})
            await seat.until_shows("> A one node  den-01", "changed: nodes den-02 -> den-01")

    asyncio.run(story())


def test_a_refusal_names_the_term_the_shortage_and_the_change_that_fits(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        node.answer("GET", _PREVIEWS, previews([], no_fit()))
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat, "no fit")
            await check_sizes(seat, "models-refusal")
            await seat.press("enter")
            await seat.until_shows("error: rack-a6k: 0.99 GiB are needed")
            await seat.press("F")
            await seat.until(lambda: "context_tokens=4096" in _wishes(node)[-1])

    asyncio.run(story())


def test_phases_are_told_node_by_node_with_bytes_rate_and_time_left(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        node.rows("placements", {row_key("instance", an_instance_id(7)): small_instance("load")})
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat, "load", "fits")
            await check_sizes(seat, "models-phases")

    asyncio.run(story())


def test_x_stops_at_any_phase_and_undo_places_the_same_again(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        path = f"/instance/{an_instance_id(7)}"
        node.answer("DELETE", path, accepted())
        key = row_key("instance", an_instance_id(7))
        node.rows("placements", {key: small_instance("download")})
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat, "download")
            await seat.press("x")
            await seat.until_shows("Stop HuggingFaceTB", "in the phase download", "skulk stop")
            node.rows("placements", {key: small_instance("load")})
            await seat.press("x")
            await seat.until(lambda: node.asked("DELETE", path))
            node.rows("placements", {key: None})
            await seat.until_shows("is being stopped", "u undo")
            await seat.press("u")
            await seat.until_shows("Place HuggingFaceTB", "--nodes den-02")
            await seat.press("p")
            await seat.until(lambda: node.asked("POST", _PLACE))
            sent = node.asked("POST", _PLACE)[0].body
            assert sent["nodes"] == [a_node_id(2)]
            assert sent["plan_id"] == small_plan(2).plan_id

    asyncio.run(story())


def test_stopping_what_serves_says_how_many_requests_fail_and_what_is_freed(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat, "fits")
            await type_command(seat, f"stop {an_instance_id(1)}")
            await seat.until_shows(
                "Stop bartowski/Llama", "3 requests are running and would fail", "Frees 49.1 GiB",
                "x stop now",
            )  # fmt: skip
            await seat.press("escape")
            await seat.until_shows("nothing was changed")

    asyncio.run(story())


def test_a_failed_instance_says_why_and_is_tried_again(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        path = f"/instance/{an_instance_id(7)}/retry"
        node.answer("POST", path, accepted())
        failure = den_failure(7)
        node.rows(
            "placements",
            {row_key("instance", an_instance_id(7)): small_instance("failed", failure=failure)},
        )
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat, "failed", "SIGKILL")
            await seat.press("shift+tab", "shift+tab", "r")
            await seat.until_shows("Try HuggingFaceTB", "skulk retry")
            await seat.press("r")
            await seat.until(lambda: node.asked("POST", path))

    asyncio.run(story())


def test_a_command_asks_from_every_screen_and_names_what_is_wrong(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path, size=(140, 24)) as seat:
            await seat.until_shows("attic-mini")
            await type_command(
                seat, f"plan {SMALL} on den-01,den-02 not rack-a6k shape one ctx 4096"
            )
            await seat.until_shows("[2 Models]", "> SmolLM2", "[x] den-02", "[-] rack-a6k", "fits")
            await seat.until_shows(
                "--nodes den-01,den-02 --exclude rack-a6k --shape single --context 4096"
            )
            for words, problem in (
                (f"plan {SMALL} on nobody", "there is no node 'nobody'"),
                ("plan of/mine", "there is no model 'of/mine'"),
                (f"plan {SMALL} ctx 10", "from 256 to 16777216"),
                (f"plan {SMALL} backend tpu", "'tpu' is no backend"),
            ):
                await type_command(seat, words)
                await seat.until_shows(problem)

    asyncio.run(story())


def test_place_as_a_command_waits_for_the_plan_and_asks(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await type_command(seat, f"place {SMALL} slots 4")
            await seat.until_shows("Place HuggingFaceTB", "--slots 4")
            await seat.press("escape")
            node.answer("GET", _PREVIEWS, previews([], no_fit()))
            await type_command(seat, f"place {SMALL} slots 5")
            await seat.until_shows("error: rack-a6k: 0.99 GiB")
            assert node.asked("POST", _PLACE) == []

    asyncio.run(story())


def test_the_cursor_and_a_dialog_hold_their_objects_while_rows_move(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[12]"""

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat, "> A one node  den-02")
            newcomer = den_models()[0].model_copy(update={"id": "aaa/first", "name": "first"})
            node.rows("models", {row_key("model", "aaa/first"): newcomer})
            await seat.until_shows("Models 4", "> SmolLM2")
            await seat.press("tab", "down")
            await seat.until_shows("> B one node  den-01")
            node.answer("GET", _PREVIEWS, previews([small_plan(1, free_gib=13.0), small_plan(2)]))
            node.rows("cluster", {row_key("node", a_node_id(3)): None})
            await seat.until_shows("> A one node  den-01", "  B one node  den-02")
            await seat.press("enter")
            await seat.until_shows("Place HuggingFaceTB", "den-01")
            node.rows("models", {row_key("model", SMALL): None})
            node.answer("GET", _PREVIEWS, previews([small_plan(2)]))
            await seat.until_shows("Models 3")
            await seat.press("p")
            await seat.until(lambda: node.asked("POST", _PLACE))
            sent = node.asked("POST", _PLACE)[0].body
            assert (sent["model_id"], sent["plan_id"]) == (SMALL, small_plan(1).plan_id)

    asyncio.run(story())


def test_a_read_key_plans_and_is_offered_nothing_that_changes(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[14]"""

    async def story() -> None:
        node.scope = "read"
        node.rows("placements", {row_key("instance", an_instance_id(7)): small_instance("ready")})
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat, "fits", "RO")
            for key, title in (("enter", "place"), ("x", "stop")):
                await seat.press(key)
                await seat.until_shows(f"{title}: the key may not")
            await seat.press("question_mark")
            await seat.until_shows("Help")
            assert "Stop an instance" not in seat.text
            assert "placing the plan" not in seat.text
            await seat.press("escape")
            await type_command(seat, f"place {SMALL}")
            await seat.until_shows("place: the key may not")
            assert [one for one in node.requests if one.method != "GET"] == []

    asyncio.run(story())


def test_hostile_node_names_are_shown_literally_aligned_and_in_no_command(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[16]"""

    async def story() -> None:
        async with a_seat(node.url, tmp_path, size=(100, 24)) as seat:
            await _go(seat, "fits")
            await type_command(seat, f"plan {SMALL} on {a_node_id(2)}")
            await seat.until_shows("--nodes den-02")
            for name, shown in _HOSTILE:
                hostile = den_node(2, member=den_member(2, name=name))
                node.rows("cluster", {row_key("node", a_node_id(2)): hostile})
                await seat.until_shows(f"[x] {shown}", f"--nodes {a_node_id(2)}")
                columns = {
                    cell_len(row[: row.index(memory)])
                    for row in seat.frame
                    for memory in ("20/64G", "13/64G")
                    if memory in row
                }
                assert len(columns) == 1
                assert "\x1b" not in seat.text
                assert "\u202e" not in seat.text

    asyncio.run(story())


def test_without_models_the_screen_says_how_to_get_one(tmp_path: Path) -> None:
    async def story(node: ScriptedSession) -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await seat.press("2")
            await seat.until_shows("no model has a card here", "choose a model")
            await check_sizes(seat, "models-empty")

    with ScriptedSession() as node:
        fill(node)
        node.snapshot("models", {})
        asyncio.run(story(node))


def test_facets_choose_models_by_size_family_node_and_fit(
    node: ScriptedSession, tmp_path: Path
) -> None:
    def answer_previews(request: SessionRequest) -> Scripted:
        is_small = "SmolLM2" in request.query
        answer = usual_previews() if is_small else previews([], no_fit())
        return Scripted(body=plain(answer))

    async def story() -> None:
        node.answer("GET", _PREVIEWS, answer_previews)
        async with a_seat(node.url, tmp_path, size=(140, 20)) as seat:
            await _go(seat, "fits")
            for words, n_left in (
                ("size:<20G", 2),
                ("family:qwen", 1),
                ("on:rack-a6k", 1),
                ("backend:llama !qwen", 2),
                ("fits:yes", 1),
                ("fits:no", 2),
            ):
                await type_command(seat, words, key="slash")
                await seat.until_shows(f"({n_left} of 3)")
                await seat.press("escape")

    asyncio.run(story())


def test_the_dry_run_shows_every_candidate_and_the_command_is_copied(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path, size=(160, 50)) as seat:
            await _go(seat, "fits")
            await seat.press("d")
            await seat.until_shows(
                "Dry run", "A one node on den-02", "C one node on attic-mini", "placement.no_fit"
            )
            await seat.press("escape", "Y")
            await seat.until_shows("wrote")
            copied = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
            assert any(f"skulk place {SMALL} --plan" in text for text in copied)

    asyncio.run(story())
