"""A placement that heals itself, as the terminal shows it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.instances import Repair
from protocol.session import row_key
from protocol.state import PlacementFailure
from tests.support.builders import NOW_MS, a_node_id, an_error, an_instance_id
from tests.support.den_cluster import SMALL, fill
from tests.support.plan_documents import small_instance, type_command
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import a_seat, check_sizes

NEW = an_instance_id(7)
REPAIR = Repair(
    at_ms=NOW_MS,
    attempt=1,
    error=an_error("store.no_space", "the disk of attic-mini is full"),
    at_fault=(a_node_id(4),),
    from_nodes=(a_node_id(4),),
    to_nodes=(a_node_id(2),),
)


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        yield scripted


def test_a_run_that_was_put_elsewhere_says_from_where_and_why(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        loading = small_instance("load", repairs=(REPAIR,), attempt=2)
        node.rows("placements", {row_key("instance", NEW): loading})
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await seat.press("2", "end")
            await seat.until_shows("from attic-mini: store.no_space")
            await type_command(seat, f"instance {NEW}")
            await seat.until_shows("repaired", "attic-mini to den-02: the disk")
            ready = small_instance("ready", repairs=(REPAIR,), attempt=2)
            node.rows("placements", {row_key("instance", NEW): ready})
            await seat.until_shows("phase     ready", "attic-mini to den-02: the disk")

    asyncio.run(story())


def test_one_that_no_other_node_takes_says_why_and_what_helps(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        refused = PlacementFailure(
            instance_id=NEW,
            model_id=SMALL,
            at_ms=NOW_MS,
            error=an_error("placement.no_fit", "rack-a6k: 2.0 GiB too little"),
        )
        failed = small_instance("ready", unreachable_nodes=(a_node_id(2),))
        rows = {row_key("instance", NEW): failed, row_key("refusal", NEW): refused}
        node.rows("placements", rows)
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            await type_command(seat, f"instance {NEW}")
            await seat.until_shows("no place", "rack-a6k: 2.0 GiB too little", "look at its log")
            await check_sizes(seat, "repairs-no-place")

    asyncio.run(story())
