"""Journals as earlier builds wrote them, one a state schema: each must be read, and go on."""

import asyncio
from pathlib import Path

import pytest

from protocol.ids import node_id_of
from protocol.state import STATE_SCHEMA, ClusterState
from skulkd.core.invariants import violations
from skulkd.eventlog.records import ZERO_CHAIN, EncodedRecord, chain_after
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.simulated_disk import SimulatedDisk
from skulkd.runtime.tasks import Tasks
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import NOW_MS, a_cluster_id, a_key_id, a_node_id, an_added_card
from tests.support.lone_log import LoneLog

GOLDEN = Path(__file__).parent / "golden"
DIRECTORY = Path("/home/journal")
SCHEMAS = range(1, STATE_SCHEMA + 1)
OWNERS = {1: node_id_of(b"node 1"), 2: a_node_id(1)}
"""Which node wrote each."""


def a_disk(schema: int) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_private_directory(DIRECTORY)
    for path in (GOLDEN / f"schema-{schema}").iterdir():
        disk.replace(DIRECTORY / path.name, path.read_bytes())
    return disk


def _die(story: str, error: BaseException) -> None:
    raise AssertionError(story) from error


def live(disk: SimulatedDisk, schema: int, number: int) -> tuple[ClusterState, ClusterState]:
    """Open the journal, add a card, and close it; give the states before and after."""

    async def main() -> tuple[ClusterState, ClusterState]:
        tasks = Tasks("golden", on_death=_die)
        clock = LoopClock(asyncio.get_running_loop(), epoch_ms=NOW_MS + 1_000_000)
        lone = await LoneLog.open(
            disk,
            DIRECTORY,
            node_id=OWNERS[schema],
            cluster_id=a_cluster_id(),
            number=number,
            clock=clock,
            tasks=tasks,
        )
        check_chain(lone.durable.recovered.base_chain, lone.durable.recovered.newest)
        before = lone.log.replica.state
        await lone.log.submit(an_added_card(number))
        after = lone.log.replica.state
        await lone.close()
        await tasks.close(1.0)
        return before, after

    return run_virtual(main)


def check_chain(chain: bytes, records: list[EncodedRecord]) -> None:
    """See that what members are sent is what was written: the chain covers it."""
    for record in records:
        chain = chain_after(chain, record.body)
        assert record.chain == chain
    assert chain != ZERO_CHAIN


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_journal_of_an_earlier_schema_is_read_and_goes_on(schema: int) -> None:
    disk = a_disk(schema)
    before, after = live(disk, schema, 3)
    assert before.state_schema == STATE_SCHEMA
    assert violations(before) == ()
    assert {f"test/model-{term}-{n}" for term in (1, 2) for n in range(3)} == set(before.cards)
    assert set(before.api_keys) == {a_key_id(1), a_key_id(2)}
    assert before.settings.loopback == "keyed"
    assert before.members[OWNERS[schema]].facts is not None
    assert (before.settled_term, before.settled_seq) == (before.term, before.seq)
    assert (after.term, after.seq) == (3, before.seq + 2)
    again, _ = live(disk, schema, 4)
    assert again == after


def test_schema_1_knew_one_node_and_it_is_present_and_votes() -> None:
    before, _ = live(a_disk(1), 1, 3)
    member = before.members[OWNERS[1]]
    assert (member.presence, member.is_voter, member.addresses) == ("present", True, ())
    assert before.settings.policy == "availability"


def test_schema_2_knows_members_that_joined_and_left() -> None:
    before, _ = live(a_disk(2), 2, 3)
    assert before.members[a_node_id(2)].presence == "left"
    assert [token.uses_left for token in before.join_tokens.values()] == [1]
    assert before.settings.policy == "quorum"
