"""Moving an instance from the terminal: what it means is shown first, and both ends tell of it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from protocol.instances import Replacement
from protocol.move_api import MoveDocument
from protocol.placements import PlacementRequest
from protocol.session import SessionRequest, row_key
from tests.support.builders import a_node_id, an_instance_id
from tests.support.den_cluster import SMALL, den_instance, fill
from tests.support.plan_documents import (
    accepted,
    no_fit,
    small_instance,
    small_plan,
    type_command,
    usual_previews,
)
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import a_seat, check_sizes
from tests.support.session_answers import Scripted, plain, refusal

OLD, NEW = an_instance_id(9), an_instance_id(7)
MOVE = f"/instance/{OLD}/move"
TO = small_plan(2)


def a_look(*, stop_first: bool = False, **changes: object) -> MoveDocument:
    consequences = (
        "attic-mini goes on serving until den-02 is ready; then requests go to den-02.",
        "Requests that attic-mini is answering then may take up to 60 s.",
    )
    if stop_first:
        consequences = (
            "attic-mini is stopped first: it takes no more requests.",
            "Then nobody serves it until den-02 is ready.",
        )
    fields: dict[str, object] = {
        "instance_id": OLD,
        "model_id": SMALL,
        "from_nodes": (a_node_id(4),),
        "in_flight": 3,
        "stop_first": stop_first,
        "drain_s": 60,
        "request": PlacementRequest(model_id=SMALL),
        "plans": (TO,),
        "consequences": consequences,
    }
    return MoveDocument.model_validate(fields | changes)


def look(request: SessionRequest) -> Scripted:
    is_first = "stop_first" in parse_qs(request.query)
    return Scripted(body=plain(a_look(stop_first=is_first)))


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        old = den_instance(9, plan=small_plan(4))
        scripted.rows("placements", {row_key("instance", OLD): old})
        scripted.answer("GET", MOVE, look)
        scripted.answer("GET", "/instance/previews", usual_previews())
        scripted.answer("POST", MOVE, accepted(TO))
        yield scripted


def test_a_move_shows_its_arithmetic_and_both_ways_and_sends_the_plan_shown(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await type_command(seat, f"move {OLD} to den-01,den-02")
            await seat.until_shows(
                "Move HuggingFaceTB", "goes on serving", "s stops it first instead",
                "skulk move", "--nodes den-01,den-02", "m move it",
            )  # fmt: skip
            await check_sizes(seat, "moves-dialog")
            asked = [parse_qs(one.query) for one in node.asked("GET", MOVE)]
            assert [one.get("stop_first") for one in asked] == [None, ["true"]]
            assert asked[0]["node_ids"] == [a_node_id(1), a_node_id(2)]
            await seat.press("m")
            await seat.until_shows("moves; back: :move", "u undo")
            (sent,) = node.asked("POST", MOVE)
            assert sent.body["plan_id"] == TO.plan_id
            assert sent.body["stop_first"] is False

    asyncio.run(story())


def test_stopping_first_is_the_other_letter_and_offers_no_undo(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await type_command(seat, f"move {OLD}")
            await seat.until_shows("stops it first")
            await seat.press("s")
            await seat.until_shows("moves; back: :move")
            (sent,) = node.asked("POST", MOVE)
            assert sent.body["stop_first"] is True
            assert "u undo" not in seat.text

    asyncio.run(story())


def test_undo_gives_the_move_up_and_leaves_the_old_one(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        node.answer("DELETE", f"/instance/{NEW}", accepted())
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await type_command(seat, f"move {OLD} to den-02")
            await seat.until_shows("m move it")
            await seat.press("m")
            await seat.until_shows("u undo")
            await seat.press("u")
            await seat.until_shows("Give up the move", f"skulk stop {NEW}", "goes on on attic-mini")
            await seat.press("x")
            await seat.until(lambda: node.asked("DELETE", f"/instance/{NEW}"))

    asyncio.run(story())


def test_a_plan_that_holds_no_more_and_a_refusal_are_told_and_nothing_moves(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        now = small_plan(1).model_dump(mode="json")
        node.answer(
            "POST", MOVE, refusal("placement.plan_changed", "moved on", status=409, plan=now)
        )
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await type_command(seat, f"move {OLD} to den-02")
            await seat.until_shows("m move it")
            await seat.press("m")
            await seat.until_shows("nothing was moved; since the plan was made: nodes den-02 ->")
            node.answer("GET", MOVE, a_look(plans=(), refusals=(no_fit(),)))
            await type_command(seat, f"move {OLD} to rack-a6k")
            await seat.until_shows("rack-a6k: 0.99 GiB are needed")
            await type_command(seat, f"move {OLD} to nobody")
            await seat.until_shows("there is no node 'nobody'")

    asyncio.run(story())


def test_a_move_under_way_is_shown_at_both_ends(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        replaces = Replacement(instance_id=OLD, drain_ms=60_000)
        new = small_instance("load", replaces=replaces, moved_from=(a_node_id(4),))
        node.rows("placements", {row_key("instance", NEW): new})
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await seat.press("2", "end")
            await seat.until_shows("moves to den-02", "from attic-mini")
            await check_sizes(seat, "moves-runs")
            waits = replaces.model_copy(update={"stop_first": True})
            waiting = small_instance("pending", replaces=waits, moved_from=(a_node_id(4),))
            node.rows("placements", {row_key("instance", NEW): waiting})
            await type_command(seat, f"instance {NEW}")
            await seat.until_shows("waits for attic-mini")

    asyncio.run(story())


def test_a_dialog_that_has_no_room_keeps_its_ways_on_and_moves_the_rest(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path, size=(60, 16)) as seat:
            await seat.until_shows("attic-mini")
            await type_command(seat, f"move {OLD}")
            await seat.until_shows("more lines: down", "[ Cancel ]", "m move it")
            await seat.press("pagedown", "pagedown")
            await seat.until_shows("Then nobody serves it", "that is all", "[ Cancel ]")
            await seat.press("pageup", "pageup", "pageup", "down")
            await seat.until_shows("Runs on den-02", "more lines: down")
            assert not node.asked("POST", MOVE)

    asyncio.run(story())


def test_a_breaker_is_cleared_by_name_once_its_dialog_was_seen(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        path = f"/instance/{OLD}/clear-breaker"
        node.answer("POST", path, accepted())
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await type_command(seat, f"clear-breaker {OLD}")
            await seat.until_shows(
                "Clear the breaker", "skulk instance clear-breaker", "c clear it"
            )
            assert not node.asked("POST", path)
            await seat.press("c")
            await seat.until_shows("the crashes of HuggingFaceTB")
            assert len(node.asked("POST", path)) == 1

    asyncio.run(story())
