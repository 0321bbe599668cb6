"""Draining a node, and an instance that ends what it answers: shown, confirmed, sent."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.control_api import CommandAccepted
from protocol.drain_api import DrainDocument, DrainedInstance
from protocol.errors import ErrorBody
from protocol.ids import ModelId
from protocol.session import row_key
from tests.support.builders import a_command_id, a_node_id, an_instance_id
from tests.support.den_cluster import QWEN, den_instance, den_member, den_node, fill
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import SeatUnderTest, a_seat

ROUTE = f"/v1/nodes/{a_node_id(2)}/drain"
PLAN = DrainDocument(
    node_id=a_node_id(2),
    name="den-02",
    eligibility="eligible",
    deadline_s=60,
    is_applied=False,
    stops=(
        DrainedInstance(
            instance_id=an_instance_id(1),
            model_id=QWEN,
            phase="ready",
            requests=3,
            elsewhere="attic-mini",
        ),
        DrainedInstance(
            instance_id=an_instance_id(2),
            model_id=ModelId("test/large"),
            phase="ready",
            why_not=ErrorBody(code="placement.no_fit", message="4.0 GiB too little"),
        ),
    ),
    term=7,
    seq=9,
)
BEGUN = PLAN.model_copy(update={"is_applied": True, "command_id": a_command_id(3)})
ACCEPTED = CommandAccepted(
    message="accepted", command_id=a_command_id(1), durable="local", term=7, seq=9
)


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        scripted.answer("POST", ROUTE, PLAN, BEGUN)
        scripted.answer("DELETE", ROUTE, ACCEPTED)
        yield scripted


async def command(seat: SeatUnderTest, text: str) -> None:
    await seat.press("colon")
    await seat.type(text)
    await seat.press("enter")


def become(node: ScriptedSession, eligibility: str) -> None:
    member = den_member(2, eligibility=eligibility)
    node.rows("cluster", {row_key("node", a_node_id(2)): den_node(2, member=member)})


def test_a_drain_shows_what_stops_and_what_is_left_and_sends_what_was_seen(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path, size=(120, 36)) as seat:
            await seat.until_shows("den-02")
            await command(seat, "drain den-02")
            await seat.until_shows(
                "Drain den-02", QWEN, "3 requests", "it could be moved to attic-mini first",
                "no other node could take it.", "4.0 GiB too little", "skulk node drain den-02",
                "d drain (up to 60 s)", "x drain now",
            )  # fmt: skip
            await seat.press("d")
            await seat.until_shows("den-02 takes no models any more")
            become(node, "draining")
            await seat.until_shows("draining")
            become(node, "drained")
            await seat.until_shows("drained")

    asyncio.run(story())
    seen = [an_instance_id(1), an_instance_id(2)]
    assert [one.body for one in node.asked("POST", ROUTE)] == [
        {"deadline_s": 60, "dry_run": True},
        {"deadline_s": 60, "instances": seen, "dry_run": False},
    ]


def test_a_drain_without_delay_gives_no_time_and_a_refusal_is_told(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("den-02")
            await command(seat, "drain den-02")
            await seat.until_shows("x drain now")
            node.refuse(
                "POST", ROUTE, "placement.plan_changed", message="another model runs there by now"
            )
            await seat.press("x")
            await seat.until_shows("another model runs there by now")

    asyncio.run(story())
    assert node.asked("POST", ROUTE)[-1].body["deadline_s"] == 0  # pyright: ignore[reportIndexIssue, reportCallIssue, reportArgumentType, reportOptionalSubscript] - a document


def test_only_what_is_drained_is_undrained(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("den-02")
            await command(seat, "undrain den-02")
            await seat.until_shows("den-02 is not drained")
            assert node.asked("DELETE", ROUTE) == []
            become(node, "drained")
            await seat.until_shows("drained")
            await command(seat, "undrain den-02")
            await seat.until_shows("Undrain den-02", "does not come back by itself")
            await seat.press("u")
            await seat.until_shows("den-02 takes models again")

    asyncio.run(story())
    assert len(node.asked("DELETE", ROUTE)) == 1


def test_a_key_that_may_only_read_drains_nothing(node: ScriptedSession, tmp_path: Path) -> None:
    node.scope = "read"

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("den-02", "RO")
            await command(seat, "drain den-02")
            await seat.settled()

    asyncio.run(story())
    assert node.asked("POST", ROUTE) == []


@pytest.mark.parametrize(("key", "query"), [("d", "drain_s=60"), ("x", "")])
def test_an_instance_that_answers_may_be_stopped_once_it_has(
    node: ScriptedSession, tmp_path: Path, key: str, query: str
) -> None:
    path = f"/instance/{an_instance_id(1)}"
    node.answer("DELETE", path, ACCEPTED)

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("den-02")
            await command(seat, f"stop {an_instance_id(1)}")
            await seat.until_shows("d drain first (up to 60 s)", "x stop now")
            await seat.press(key)
            await seat.until(lambda: node.asked("DELETE", path))

    asyncio.run(story())
    assert [one.query or "" for one in node.asked("DELETE", path)] == [query]


def test_what_answers_nobody_is_stopped_now_and_what_drains_can_be_cut_off(
    node: ScriptedSession, tmp_path: Path
) -> None:
    key = row_key("instance", an_instance_id(2))
    node.rows("placements", {key: den_instance(2, in_flight=0, queued=0)})

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("den-02")
            await command(seat, f"stop {an_instance_id(2)}")
            await seat.until_shows("x stop now")
            assert "drain first" not in seat.text
            await seat.press("escape")
            draining = den_instance(2, "stopping", desired="stopped", drain_ms=60_000)
            node.rows("placements", {key: draining})
            await seat.until(
                lambda: any(one.phase == "stopping" for one in seat.app.seat.view.instances)
            )
            await command(seat, f"stop {an_instance_id(2)}")
            await seat.until_shows("that would be cut off", "x stop now")

    asyncio.run(story())
