"""A placed model's detail, and a model's: shards, failures with their log, the card."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.cards import card_digest
from protocol.control_api import CardDocument, WaitingView
from protocol.session import row_key
from tests.support.builders import a_card, an_instance_id
from tests.support.den_cluster import LLAMA, den_failure, fill
from tests.support.frames import check_frame
from tests.support.plan_documents import small_instance, type_command, usual_previews
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import a_seat, check_sizes

_SIZES = ((60, 16), (80, 24), (160, 50))


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        scripted.answer("GET", "/instance/previews", usual_previews())
        yield scripted


def test_an_instance_shows_shards_figures_failures_and_its_engines_log(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await type_command(seat, f"instance {an_instance_id(1)}")
            await seat.until_shows("Shards 3", "no attempt has failed")
            await seat.until(
                lambda: [one.instance_id for one in node.subscribed("logs")] == [an_instance_id(1)]
            )
            await check_sizes(seat, "instance")
            await seat.press("x")
            await seat.until_shows("3 requests are running")
            await seat.press("escape", "down", "enter")
            await seat.until_shows("- den-02 -", "- Runs 1")

    asyncio.run(story())


def test_an_instance_says_how_long_requests_wait_for_it(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        waiting = (
            WaitingView(position=1, asker="loopback", waited_s=12, expected_s=4),
            WaitingView(position=2, asker="loopback", waited_s=11, expected_s=9),
        )
        busy = small_instance("ready", queued=2, waiting=waiting)
        node.rows("placements", {row_key("instance", an_instance_id(7)): busy})
        async with a_seat(node.url, tmp_path, size=(160, 50)) as seat:
            await seat.until_shows("attic-mini")
            await type_command(seat, f"instance {an_instance_id(7)}")
            await seat.until_shows("2 waiting", "the first for 12 s, the last for about 9.0 s more")

    asyncio.run(story())


def test_an_instance_that_failed_tells_its_log_and_stays_readable_when_it_is_gone(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        key, failure = row_key("instance", an_instance_id(7)), den_failure(7)
        node.rows("placements", {key: small_instance("failed", failure=failure)})
        node.rows("placements", {row_key("failure", an_instance_id(7)): failure})
        async with a_seat(node.url, tmp_path, size=(160, 50)) as seat:
            await seat.until_shows("attic-mini")
            await type_command(seat, f"instance {an_instance_id(7)}")
            await seat.until_shows("SIGKILL", "| loading tensors", "| killed", "--context 4096")
            node.rows("placements", {key: None})
            await seat.until_shows("placed no more", "SIGKILL")
            await seat.press("x")
            await seat.until_shows("error: this instance is placed no more")

    asyncio.run(story())


@pytest.mark.parametrize("size", _SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_model_shows_what_runs_its_card_and_its_failures(
    node: ScriptedSession, tmp_path: Path, size: tuple[int, int]
) -> None:
    async def story() -> None:
        path = f"/models/cards/{LLAMA.replace('/', '%2F')}"
        card = a_card(model_id=LLAMA)
        node.answer("GET", path, CardDocument(card=card, digest=card_digest(card)))
        async with a_seat(node.url, tmp_path, size=size) as seat:
            await seat.until_shows("attic-mini")
            await seat.press("2", "home", "o")
            # The card adds six lines; where they do not fit, the rule counts them.
            of_the_card = {16: "8 more below", 24: "6 more below", 50: "hidden size 576"}
            await seat.until_shows("- Runs", "1 placed", of_the_card[size[1]])
            check_frame(f"model-{size[0]}x{size[1]}", await seat.settled())
            await seat.press("enter")
            await seat.until_shows("Shards 3")

    asyncio.run(story())
