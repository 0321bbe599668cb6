"""The sub-tab Bundle: what it will hold, made over the one session, stopped, and copied."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.cluster_api import LogLineView, LogsDocument
from protocol.control_api import EventsDocument
from protocol.session import SessionRequest
from tests.support.builders import a_node_id
from tests.support.den_cluster import fill
from tests.support.fake_node import a_state_document
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import SeatUnderTest, a_seat
from tests.support.session_answers import Scripted, plain

SECRET = "skulk1-" + "abcd" * 10
NO_EVENTS = EventsDocument.model_validate({"events": (), "last_seq": 0, "nextAfterSeq": 0})


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        scripted.answer("GET", "/state", a_state_document())
        scripted.answer("GET", "/events", NO_EVENTS)
        line = LogLineView(message=f"joined by {SECRET}", level="info")
        scripted.answer(
            "GET", "/v1/logs", LogsDocument(node_id=a_node_id(), name="den-01", lines=(line,),
                                            next_after="1.1")
        )  # fmt: skip
        yield scripted


async def command(seat: SeatUnderTest, text: str) -> None:
    await seat.press("colon")
    await seat.type(text)
    await seat.press("enter")


def bundles(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "bundles").glob("*"))


def test_a_bundle_says_what_it_holds_is_made_on_enter_and_copied(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await command(seat, "bundle since 10m")
            await seat.until_shows(
                "[Bundle]", "the last 10m", "API keys, invitations, prompts", "before compression",
                "skulk diag bundle --since 10m", "enter makes it",
            )  # fmt: skip
            assert not bundles(tmp_path)
            await seat.press("enter")
            # Routes that this node does not have are left out, and named.
            await seat.until_shows("4 documents", "removals", "missing", "review it before")
            (made,) = bundles(tmp_path)
            assert made.stat().st_mode & 0o077 == 0
            await seat.press("y")
            await seat.until_shows("Copy skulk-bundle", str(made)[:30])
            await seat.press("escape")

    asyncio.run(story())
    assert node.asked("GET", "/v1/logs")
    assert not any("limit=1000" in one.query for one in node.asked("GET", "/state"))


def test_a_bundle_that_is_stopped_keeps_what_has_come(
    node: ScriptedSession, tmp_path: Path
) -> None:
    goes_on = threading.Event()

    def slow(_request: SessionRequest) -> Scripted:
        goes_on.wait(10)
        return Scripted(body=plain(NO_EVENTS))

    node.answer("GET", "/events", slow)

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await command(seat, "bundle")
            await seat.until_shows("[Bundle]", "enter makes it")
            await seat.press("enter")
            await seat.until_shows("asking for events.json", "x stops")
            await seat.press("x")
            goes_on.set()
            await seat.until_shows("it was stopped: this is a part of it")
            assert len(bundles(tmp_path)) == 1

    asyncio.run(story())


@pytest.mark.parametrize(
    ("typed", "told"),
    [("bundle since soon", "soon"), ("bundle nodes nobody", "nobody")],
)
def test_a_bundle_that_cannot_be_made_says_why(
    node: ScriptedSession, tmp_path: Path, typed: str, told: str
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await command(seat, typed)
            await seat.press("enter")
            await seat.until_shows("error:", told)
            assert not bundles(tmp_path)

    asyncio.run(story())


def test_leaving_in_the_middle_of_a_bundle_leaves_no_half_file(
    node: ScriptedSession, tmp_path: Path
) -> None:
    goes_on = threading.Event()

    def slow(_request: SessionRequest) -> Scripted:
        goes_on.wait(10)
        return Scripted(body=plain(NO_EVENTS))

    node.answer("GET", "/events", slow)

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await command(seat, "bundle")
            await seat.press("enter")
            await seat.until_shows("asking for events.json")
        goes_on.set()

    asyncio.run(story())
    assert not [path for path in bundles(tmp_path) if path.name.endswith(".part")]
