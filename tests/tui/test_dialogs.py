"""Dialogs: what they show whole, what they ask for, and what they refuse."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.control_api import CommandAccepted
from protocol.session import row_key
from tests.support.builders import a_command_id, a_node_id, an_instance_id
from tests.support.den_cluster import den_instance, fill
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import SeatUnderTest, a_seat


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        yield scripted


@pytest.mark.parametrize("size", [(80, 24), (60, 16)])
def test_a_long_message_is_whole_in_the_list_of_messages(
    node: ScriptedSession, tmp_path: Path, size: tuple[int, int]
) -> None:
    words = [f"word{n}" for n in range(40)]

    async def story() -> None:
        async with a_seat(node.url, tmp_path, size=size) as seat:
            await seat.until_shows("LIVE")
            seat.app.seat.tell(" ".join(words), level="bad")
            await seat.press("semicolon")
            await seat.until_shows("Messages", "error: word0", *words)

    asyncio.run(story())


SMALL_RUN = an_instance_id(2)
ACCEPTED = CommandAccepted(
    message="accepted", command_id=a_command_id(1), durable="local", term=1, seq=9
)


async def command(seat: SeatUnderTest, text: str) -> None:
    await seat.press("colon")
    await seat.type(text)
    await seat.press("enter")


@pytest.mark.parametrize("gone", [True, False])
def test_a_dialog_whose_object_has_changed_meanwhile_sends_nothing(
    node: ScriptedSession, tmp_path: Path, *, gone: bool
) -> None:
    key = row_key("instance", SMALL_RUN)

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await command(seat, f"stop {SMALL_RUN}")
            await seat.until_shows("x stop now")
            node.rows("placements", {key: None if gone else den_instance(2, attempt=2)})
            await seat.until_shows("has changed meanwhile", "Review it again")
            assert "stop now" not in seat.text
            await seat.press("x")
            await seat.press("enter")
            await seat.until_shows("nothing was changed")

    asyncio.run(story())
    assert not node.asked("DELETE", f"/instance/{SMALL_RUN}")


def test_readings_that_move_leave_a_dialog_as_it_is(node: ScriptedSession, tmp_path: Path) -> None:
    path = f"/instance/{SMALL_RUN}"
    node.answer("DELETE", path, ACCEPTED)

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await command(seat, f"stop {SMALL_RUN}")
            await seat.until_shows("x stop now")
            moved = den_instance(2, in_flight=1, tokens_per_s=12.5)
            node.rows("placements", {row_key("instance", SMALL_RUN): moved})
            await seat.settled()
            await seat.press("x")
            await seat.until(lambda: node.asked("DELETE", path))

    asyncio.run(story())


def test_an_instance_that_becomes_ready_meanwhile_is_stopped_all_the_same(
    node: ScriptedSession, tmp_path: Path
) -> None:
    path, key = f"/instance/{SMALL_RUN}", row_key("instance", SMALL_RUN)
    node.answer("DELETE", path, ACCEPTED)
    node.rows("placements", {key: den_instance(2, "probe")})

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await command(seat, f"stop {SMALL_RUN}")
            await seat.until_shows("x stop now")
            node.rows("placements", {key: den_instance(2)})
            await seat.until(
                lambda: all(one.phase == "ready" for one in seat.app.seat.view.instances)
            )
            await seat.press("x")
            await seat.until(lambda: node.asked("DELETE", path))

    asyncio.run(story())


def test_on_a_protected_cluster_its_name_is_typed_before_any_change(
    node: ScriptedSession, tmp_path: Path
) -> None:
    path = f"/instance/{SMALL_RUN}"
    node.answer("DELETE", path, ACCEPTED)

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            seat.app.seat.is_protected, seat.app.seat.profile = True, "prod"
            await seat.until_shows("PROTECTED")
            await command(seat, f"stop {SMALL_RUN}")
            await seat.until_shows("This cluster is protected. Type prod to go on")
            await seat.press("x", "enter")  # a letter is text here, and not the deed
            await seat.settled()
            await seat.press("backspace")
            assert not node.asked("DELETE", path)
            await seat.type("prod")
            await seat.press("enter")
            await seat.until_shows("d drain first", "x stop now")
            assert not node.asked("DELETE", path)
            await seat.press("x")
            await seat.until(lambda: node.asked("DELETE", path))

    asyncio.run(story())


def test_what_cannot_be_undone_there_wants_both_words_one_after_the_other(
    node: ScriptedSession, tmp_path: Path
) -> None:
    path = f"/v1/cluster/members/{a_node_id(2)}"
    node.answer("DELETE", path, ACCEPTED)

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            seat.app.seat.is_protected, seat.app.seat.profile = True, "prod"
            await seat.until_shows("PROTECTED", "den-02")
            await command(seat, "remove den-02")
            await seat.until_shows("This cannot be undone. Type den-02")
            await seat.type("den-02")
            await seat.press("enter")
            await seat.until_shows("This cluster is protected. Type prod", "enter remove now")
            assert not node.asked("DELETE", path)
            await seat.type("prod")
            await seat.press("enter")
            await seat.until(lambda: node.asked("DELETE", path))

    asyncio.run(story())


def test_a_choice_between_ways_comes_after_the_name_of_a_protected_cluster(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            seat.app.seat.is_protected, seat.app.seat.profile = True, "prod"
            await seat.until_shows("PROTECTED")
            await command(seat, "invite")
            await seat.until_shows("Type prod", "enter go on")
            await seat.type("prod")
            await seat.press("enter")
            await seat.until_shows("w six words", "t a token")
            await seat.press("w")
            await seat.until(lambda: node.asked("POST", "/v1/cluster/invite"))

    asyncio.run(story())
