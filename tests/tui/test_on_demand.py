"""Models on demand and pins from the terminal: how they are placed, shown, and kept."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.session import row_key
from tests.support.builders import an_instance_id
from tests.support.den_cluster import SMALL, den_instance, fill
from tests.support.plan_documents import accepted, small_plan, type_command, usual_previews
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import a_seat

ID = an_instance_id(9)
PIN = f"/instance/{ID}/pin"
PLACE = "/place_instance"


def show(node: ScriptedSession, **changes: object) -> None:
    """Have the small model placed on demand, and be as is said."""
    fields: dict[str, object] = {"plan": small_plan(4), "ttl_ms": 600_000}
    item = den_instance(9, **(fields | changes))  # pyright: ignore[reportArgumentType]  as fields
    node.rows("placements", {row_key("instance", ID): item})


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        scripted.answer("GET", "/instance/previews", usual_previews())
        scripted.answer("POST", PLACE, accepted(small_plan(2)))
        scripted.answer("POST", PIN, accepted())
        scripted.answer("DELETE", PIN, accepted())
        yield scripted


@pytest.mark.parametrize(
    ("words", "key", "ttl_s"), [("", "d", None), (" on-demand 30m", "p", 1800), ("", "p", None)]
)
def test_a_model_is_placed_on_demand_by_a_word_or_by_the_dialog(
    node: ScriptedSession, tmp_path: Path, words: str, key: str, ttl_s: int | None
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await type_command(seat, f"place {SMALL}{words}")
            await seat.until_shows("Place HuggingFaceTB", "p place it")
            if words:
                await seat.until_shows("--on-demand --ttl 1800s", "when a request asks for it")
            else:
                await seat.until_shows("d on demand")
            await seat.press(key)
            await seat.until(lambda: node.asked("POST", PLACE))
            body = node.asked("POST", PLACE)[0].body
            assert (body["on_demand"], body.get("ttl_s")) == (key == "d" or bool(words), ttl_s)

    asyncio.run(story())


def test_a_time_that_is_none_is_refused_at_the_prompt(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            for wrong in ("soon", "0", "8d", "10y"):
                await type_command(seat, f"place {SMALL} on-demand {wrong}")
                await seat.until_shows(f"not '{wrong}'")
                await seat.press("escape")
            assert node.asked("POST", PLACE) == []

    asyncio.run(story())


def test_what_sleeps_and_what_is_left_of_its_time_is_shown(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        show(node, phase="asleep", runners=(), in_flight=None)
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await type_command(seat, f"model {SMALL}")
            await seat.until_shows(ID, "asleep")
            show(node, sleeps_in_s=480)
            await seat.until_shows("sleeps in 8 m")
            show(node, pinned=True)
            await seat.until_shows("pinned")

    asyncio.run(story())


def test_an_instance_is_pinned_once_the_dialog_was_seen_and_the_way_back_is_offered(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        show(node, phase="asleep", runners=())
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await type_command(seat, f"pin {ID}")
            await seat.until_shows("Pin HuggingFaceTB", "skulk pin", "the next request loads it")
            assert not node.asked("POST", PIN)
            show(node)  # that a request wakes it meanwhile changes nothing
            await seat.press("p")
            await seat.until_shows("is pinned", "u undo")
            assert len(node.asked("POST", PIN)) == 1
            await type_command(seat, f"unpin {ID}")
            await seat.until_shows("Unpin HuggingFaceTB", "skulk unpin", "for 10 m")
            await seat.press("u")
            await seat.until(lambda: node.asked("DELETE", PIN))

    asyncio.run(story())
