"""Settings of a node and starting it anew: planned by the node, shown, confirmed, sent."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from protocol.admin_api import ConfigDocument, InterruptedInstance, RestartDocument, SettingView
from protocol.session import SessionRequest
from tests.support.builders import a_node_id, an_instance_id
from tests.support.config_documents import some_settings
from tests.support.den_cluster import QWEN, fill
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import SeatUnderTest, a_seat
from tests.support.session_answers import Scripted, plain


def settings(*, bandwidth: int = 50, in_file: int = 60) -> ConfigDocument:
    document = some_settings()
    node = document.node.model_copy(
        update={
            "effective": {
                **document.node.effective,
                "priority": SettingView(value=bandwidth, source="file"),
            },
            "file": {"priority": in_file},
        }
    )
    return document.model_copy(update={"name": "den-02", "node": node})


def body_of(request: SessionRequest) -> dict[str, Any]:
    return cast("dict[str, Any]", request.body)


def checked(request: SessionRequest) -> Scripted:
    """Answer as a node does that has read the wish."""
    return Scripted(body=plain(settings(in_file=int(body_of(request)["settings"]["priority"]))))


RESTART = RestartDocument(
    node_id=a_node_id(2),
    name="den-02",
    boot_id="boot-1",
    restarting=False,
    interrupted=(
        InterruptedInstance(
            instance_id=an_instance_id(2), model_id=QWEN, phase="ready", requests=3
        ),
    ),
)


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        scripted.answer("GET", "/config", settings())
        scripted.answer("PUT", "/config", checked)
        scripted.answer("POST", "/admin/restart", RESTART)
        yield scripted


async def command(seat: SeatUnderTest, text: str) -> None:
    await seat.press("colon")
    await seat.type(text)
    await seat.press("enter")


def test_settings_are_shown_with_their_source_and_changed_after_the_node_has_checked(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("den-02")
            await command(seat, "config den-02")
            await seat.until_shows(
                "den-02 settings", "priority", "after a restart", "eth0,eth1", "cluster.policy"
            )
            await seat.press("down", "enter")
            await seat.until_shows(":set priority=")
            await seat.type("90")
            await seat.press("enter")
            await seat.until_shows(
                "priority: 60 becomes 90", "taken up when the node starts",
                "skulk config set priority=90 --on den-02",
            )  # fmt: skip
            (dry,) = node.asked("PUT", "/config")
            assert dry.query == f"node={a_node_id(2)}"
            assert body_of(dry)["dry_run"] is True
            node.answer("GET", "/config", settings(in_file=90))
            await seat.press("s")
            await seat.until_shows("the settings of den-02 are changed", "90 after a restart")
            done = body_of(node.asked("PUT", "/config")[-1])
            assert (done["dry_run"], done["settings"]) == (False, {"priority": "90"})

    asyncio.run(story())


def test_a_change_that_the_node_refuses_is_told_and_not_sent(
    node: ScriptedSession, tmp_path: Path
) -> None:
    node.refuse("PUT", "/config", "request.invalid", message="priority is 0 to 100, not 900")

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("den-02")
            await command(seat, "set priority=900 on den-02")
            await seat.until_shows("priority is 0 to 100, not 900")
            await command(seat, "set priority")
            await seat.until_shows("is no KEY=VALUE")

    asyncio.run(story())
    assert len(node.asked("PUT", "/config")) == 1


def test_a_restart_shows_what_it_interrupts_before_it_is_sent(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("den-02")
            await command(seat, "node den-02")
            await seat.until_shows("den-02", "- Runs")
            await seat.press("X")
            await seat.until_shows(
                "Restart den-02", "Qwen2.5-7B", "3 requests would fail", "skulk node restart den-02"
            )
            assert len(node.asked("POST", "/admin/restart")) == 1
            await seat.press("x")
            await seat.until_shows("den-02 is starting anew")
            assert [one.body for one in node.asked("POST", "/admin/restart")] == [
                {"dry_run": True},
                {"dry_run": False},
            ]

    asyncio.run(story())


def test_a_second_restart_is_a_conflict_that_is_told(node: ScriptedSession, tmp_path: Path) -> None:
    node.refuse(
        "POST", "/admin/restart", "cluster.restart_pending", message="den-02 is restarting already"
    )

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("den-02")
            await command(seat, "restart den-02")
            await seat.until_shows("den-02 is restarting already")

    asyncio.run(story())


def test_a_key_that_may_only_read_sees_settings_and_cannot_change_them(
    node: ScriptedSession, tmp_path: Path
) -> None:
    node.scope = "read"

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("den-02", "RO")
            await command(seat, "config den-02")
            await seat.until_shows("priority")
            await seat.press("enter", "X")
            await command(seat, "set priority=1 on den-02")
            await command(seat, "restart den-02")
            await seat.settled()
            assert ":set" not in seat.text

    asyncio.run(story())
    assert not node.asked("PUT", "/config")
    assert not node.asked("POST", "/admin/restart")
