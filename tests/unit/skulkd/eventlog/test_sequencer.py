import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pytest

from protocol.commands import Command
from protocol.errors import ClusterError, PlacementError
from protocol.events import SequencedEvent
from protocol.ids import NodeId
from protocol.readings import Readings
from protocol.state import ClusterState
from skulkd.core.apply import initial_state
from skulkd.eventlog.replica import Replica
from skulkd.eventlog.sequencer import Sequencer
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.tasks import Tasks
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import (
    a_cluster_id,
    a_command_id,
    a_node_id,
    an_added_card,
    an_admission,
)

Outcome = Literal["local", "memory"]


@dataclass
class SlowStore:
    """An event store whose every commit takes a second."""

    outcome: Outcome = "local"
    batches: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])

    async def commit(self, events: Sequence[tuple[SequencedEvent, ClusterState]]) -> Outcome:
        await asyncio.sleep(1.0)
        self.batches.append(tuple(sequenced.seq for sequenced, _ in events))
        return self.outcome


@dataclass
class Log:
    store: SlowStore
    replica: Replica
    sequencer: Sequencer
    tasks: Tasks
    deaths: list[str]


def with_log(story: Callable[[Log], Awaitable[None]], *, outcome: Outcome = "local") -> None:
    async def run() -> None:
        deaths: list[str] = []
        tasks = Tasks("log", on_death=lambda told, _error: deaths.append(told))
        replica = Replica(initial_state(a_cluster_id()))
        store = SlowStore(outcome)
        sequencer = Sequencer(
            node_id=a_node_id(),
            term=1,
            replica=replica,
            store=store,
            readings=Readings,
            clock=LoopClock(asyncio.get_running_loop(), epoch_ms=1_000),
            tasks=tasks,
        )
        await sequencer.begin_term()
        await story(Log(store, replica, sequencer, tasks, deaths))
        await tasks.close(5)
        assert deaths == []

    run_virtual(run)


def members(state: ClusterState) -> set[NodeId]:
    return set(state.members)


def test_a_term_begins_by_founding_the_cluster_and_naming_its_master() -> None:
    async def story(log: Log) -> None:
        state = log.replica.state
        assert (state.term, state.seq, state.master) == (1, 2, a_node_id())

    with_log(story)


def test_nothing_is_visible_before_it_is_committed() -> None:
    async def story(log: Log) -> None:
        submitted = asyncio.ensure_future(log.sequencer.submit(an_admission(1, command=1)))
        await asyncio.sleep(0.5)
        assert members(log.replica.state) == set()
        reply = await submitted
        assert members(log.replica.state) == {a_node_id(1)}
        assert (reply.seq, reply.durable, reply.repeated) == (3, "local", False)

    with_log(story)


def test_commands_that_come_while_the_disk_syncs_share_the_next_sync() -> None:
    async def story(log: Log) -> None:
        commands: list[Command] = [an_added_card(n) for n in range(1, 41)]
        await asyncio.gather(*(log.sequencer.submit(command) for command in commands))
        assert len(log.store.batches) == 2  # the term's own, and one for all forty
        assert len(log.replica.state.cards) == len(commands)

    with_log(story)


def test_a_repeated_command_is_answered_and_not_decided_again() -> None:
    async def story(log: Log) -> None:
        command = an_admission(1, command=1)
        first, during = await asyncio.gather(
            log.sequencer.submit(command), log.sequencer.submit(command)
        )
        after = await log.sequencer.submit(command)
        assert (first.repeated, during.repeated, after.repeated) == (False, True, True)
        assert first.seq == during.seq == after.seq == log.replica.state.seq

    with_log(story)


def test_a_caller_that_gives_up_does_not_take_its_command_back() -> None:
    async def story(log: Log) -> None:
        submitted = asyncio.ensure_future(log.sequencer.submit(an_admission(1, command=1)))
        await asyncio.sleep(0.1)
        submitted.cancel()
        await log.sequencer.close()
        await asyncio.sleep(0)
        assert members(log.replica.state) == {a_node_id(1)}

    with_log(story)


def test_a_refusal_reaches_the_caller_and_leaves_no_event() -> None:
    from protocol.commands import StopInstance
    from tests.support.builders import an_instance_id

    async def story(log: Log) -> None:
        seq = log.replica.state.seq
        stop = StopInstance(command_id=a_command_id(9), instance_id=an_instance_id())
        with pytest.raises(PlacementError) as refused:
            await log.sequencer.submit(stop)
        assert refused.value.code == "placement.not_live"
        assert log.replica.state.seq == seq

    with_log(story)


def test_a_failing_disk_is_told_in_the_reply() -> None:
    async def story(log: Log) -> None:
        reply = await log.sequencer.submit(an_admission(1, command=1))
        assert reply.durable == "memory"

    with_log(story, outcome="memory")


def test_a_closed_log_refuses_with_the_reason() -> None:
    async def story(log: Log) -> None:
        await log.sequencer.close()
        with pytest.raises(ClusterError) as refused:
            await log.sequencer.submit(an_admission(1, command=1))
        assert refused.value.code == "cluster.stopping"

    with_log(story)


def test_followers_see_every_event_once_and_in_order() -> None:
    async def story(log: Log) -> None:
        seen: list[int] = []
        unsubscribe = log.replica.subscribe(lambda sequenced, _state: seen.append(sequenced.seq))
        for number in range(1, 4):
            await log.sequencer.submit(an_added_card(number))
        unsubscribe()
        await log.sequencer.submit(an_added_card(9))
        assert seen == [3, 4, 5]
        assert [sequenced.seq for sequenced in log.replica.recent(3, 2)] == [4, 5]

    with_log(story)
