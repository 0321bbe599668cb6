import asyncio
import errno
from collections.abc import Awaitable, Callable

import pytest

from protocol.commands import ChangeSettings, ReportLeave
from protocol.errors import ClusterError, SkulkError
from protocol.peer_messages import EventBatch, TermPair, pack_frame
from protocol.state import ClusterSettings
from skulkd.cluster.simulated import NetworkFaults
from skulkd.core.apply import state_hash
from skulkd.eventlog.leading import MAX_UNCOMMITTED
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import a_command_id, a_node_id, an_added_card, an_admission
from tests.support.simulated_logs import JOURNAL, LogNode, LogWorld, code_of

QUORUM = ChangeSettings(command_id=a_command_id(8000), settings=ClusterSettings(policy="quorum"))


def with_world(
    story: Callable[[LogWorld], Awaitable[None]],
    *,
    seed: int = 1,
    faults: NetworkFaults | None = None,
) -> None:
    async def main() -> None:
        world = LogWorld(seed, faults)
        await story(world)
        await world.close()

    run_virtual(main, seed=seed, limit_s=3600)


async def add(node: LogNode, *numbers: int) -> None:
    for number in numbers:
        await node.submit(an_added_card(number))


def cards(node: LogNode) -> set[str]:
    return set(node.state.cards)


def agree(world: LogWorld) -> bool:
    nodes = list(world.nodes.values())
    hashes = {state_hash(node.state) for node in nodes}
    return len({node.log.chain for node in nodes}) == 1 and len(hashes) == 1


# ---- Committing --------------------------------------------------------------------------------


def test_a_node_alone_is_master_of_its_own_cluster() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(1)
        reply = await first.submit(an_added_card(1))
        assert (reply.durable, reply.term, reply.seq) == ("local", 1, 4)
        assert list(first.state.members) == [a_node_id(1)]
        assert (first.state.master, first.state.is_minority_term) == (a_node_id(1), False)

    with_world(story)


def test_what_one_node_decides_is_the_state_of_all() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(3)
        reply = await first.submit(an_added_card(1))
        assert reply.durable == "member"
        await world.settle()
        assert agree(world)

    with_world(story)


@pytest.mark.parametrize("policy", ["availability", "quorum"])
def test_a_command_through_any_node_can_be_read_there_when_it_is_answered(policy: str) -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(3)
        if policy == "quorum":
            await first.submit(QUORUM)
        for number in (1, 2, 3):
            node = world.node(number)
            await add(node, number)
            assert f"test/card-{number}" in cards(node)

    with_world(story)


def test_nothing_is_visible_before_another_member_has_it() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(2)
        world.disk_of(a_node_id(2)).sync_delay_s = 1.0
        submitted = asyncio.ensure_future(first.submit(an_added_card(1)))
        await asyncio.sleep(0.5)
        assert cards(first) == cards(world.node(2)) == set()
        assert (await submitted).durable == "member"
        assert cards(first)

    with_world(story)


def test_many_commands_share_syncs_and_batches() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(3)
        for number in (1, 2, 3):
            world.disk_of(a_node_id(number)).sync_delay_s = 0.01
        n_syncs = world.disk_of(a_node_id(2)).n_syncs
        n_sent = world.network.n_sent
        await asyncio.gather(*(first.submit(an_added_card(number)) for number in range(1, 301)))
        assert world.disk_of(a_node_id(2)).n_syncs - n_syncs <= 5
        assert world.network.n_sent - n_sent < 100
        await world.settle()
        assert agree(world)

    with_world(story)


def test_what_waits_for_the_last_other_member_is_committed_alone_when_it_is_lost() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(2)
        world.disk_of(a_node_id(2)).sync_delay_s = 5.0
        submitted = asyncio.ensure_future(first.submit(an_added_card(1)))
        await asyncio.sleep(0.5)
        assert not submitted.done()
        await world.crash(2)
        await asyncio.sleep(0.1)
        assert submitted.done()
        assert (await submitted).durable == "local"

    with_world(story)


def test_a_member_whose_disk_fails_is_not_waited_for_without_end() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(2)
        world.disk_of(a_node_id(2)).sync_error = OSError(errno.EIO, "input/output error")
        began_s = world.clock.monotonic_s()
        assert (await first.submit(an_added_card(1))).durable == "local"
        assert 2.5 < world.clock.monotonic_s() - began_s < 4.0
        began_s = world.clock.monotonic_s()
        assert (await first.submit(an_added_card(2))).durable == "local"
        assert world.clock.monotonic_s() - began_s < 0.5, "once is enough"
        world.disk_of(a_node_id(2)).sync_error = None
        await asyncio.sleep(2)
        assert (await first.submit(an_added_card(3))).durable == "member"

    with_world(story)


def test_the_masters_own_failing_disk_does_not_count() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(3)
        world.disk_of(a_node_id(1)).sync_error = OSError(errno.EIO, "input/output error")
        assert (await first.submit(an_added_card(1))).durable == "member"
        await world.crash(2)
        await world.crash(3)
        assert (await first.submit(an_added_card(2))).durable == "memory"

    with_world(story)


def test_too_many_undecided_commands_are_refused_with_the_reason() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(1)
        world.disk_of(a_node_id(1)).sync_delay_s = 2.0
        waiting = [
            asyncio.ensure_future(first.log.submit(an_added_card(1 + number % 9)))
            for number in range(1)
        ]
        waiting += [
            asyncio.ensure_future(first.log.submit(an_admission(1, command=20_000 + number)))
            for number in range(MAX_UNCOMMITTED)
        ]
        await asyncio.sleep(0.1)
        assert await code_of(waiting[-1]) == "cluster.not_durable"
        assert await code_of(waiting[-2]) == "ok"
        await asyncio.gather(*waiting[:-1])

    with_world(story)


# ---- Repetition --------------------------------------------------------------------------------


def test_a_repeated_command_is_answered_and_not_decided_again() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(2)
        second = world.node(2)
        once, again = await asyncio.gather(
            first.submit(an_added_card(1)), second.submit(an_added_card(1))
        )
        after = await second.submit(an_added_card(1))
        assert {once.repeated, again.repeated} == {True, False}
        assert after.repeated
        assert once.seq == again.seq == after.seq

    with_world(story)


def test_a_command_in_the_log_of_an_earlier_term_is_answered_once_it_is_committed() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(3)
        await first.submit(QUORUM)
        world.partition({1}, {2, 3})
        submitted = asyncio.ensure_future(first.log.submit(an_added_card(1)))
        await asyncio.sleep(0.2)
        world.rest(1)
        assert await code_of(submitted) == "cluster.no_master"
        world.heal()
        await asyncio.sleep(3)
        assert world.elect({1, 2, 3}) is first
        reply = await first.submit(an_added_card(1))
        assert (reply.repeated, reply.durable, reply.term) == (True, "member", 1)
        await world.settle()
        assert cards(world.node(3)) == {"test/card-1"}

    with_world(story)


def test_a_caller_that_gives_up_does_not_take_its_command_back() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(2)
        submitted = asyncio.ensure_future(first.submit(an_added_card(1)))
        await asyncio.sleep(0.0001)
        submitted.cancel()
        await asyncio.sleep(1)
        assert cards(first) == {"test/card-1"}

    with_world(story)


# ---- Masters that change -----------------------------------------------------------------------


def test_a_new_master_goes_on_with_what_the_old_one_has_committed() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(3)
        await add(first, 1, 2, 3)
        await world.crash(1)
        master = world.elect()
        assert master is not None
        await add(master, 4)
        assert cards(master) == {f"test/card-{number}" for number in (1, 2, 3, 4)}
        await world.start(1)
        term = master.masters.term
        assert term is not None
        world.follow(1, term)
        await world.settle()
        assert agree(world)
        assert world.node(1).log.health().n_divergences == 0

    with_world(story)


def test_a_command_meets_a_master_that_dies_and_is_taken_by_the_next_one() -> None:
    async def story(world: LogWorld) -> None:
        await world.found(3)
        third = world.node(3)
        world.disk_of(a_node_id(1)).sync_delay_s = world.disk_of(a_node_id(2)).sync_delay_s = 2.0
        world.disk_of(a_node_id(3)).sync_delay_s = 2.0
        submitted = asyncio.ensure_future(third.submit(an_added_card(1)))
        await asyncio.sleep(0.5)
        await world.crash(1)
        await asyncio.sleep(1)
        world.elect()
        assert (await submitted).durable == "member"
        await world.settle()
        assert (
            sum(event.event.kind == "card_added" for event in third.log.replica.recent(0, 99)) == 1
        )

    with_world(story)


def test_events_of_another_term_or_sender_are_rejected_and_counted() -> None:
    async def story(world: LogWorld) -> None:
        await world.found(3)
        first, second, third = (world.node(number) for number in (1, 2, 3))
        tail = (third.log.appended.seq, third.log.chain)
        n_before = third.log.health().n_rejected
        term = third.masters.term
        assert term is not None
        for pair, sender in (
            (TermPair(term.number - 1, term.master), first),
            (TermPair(term.number + 1, term.master), first),
            (term, second),
            (TermPair(term.number, second.node_id), second),
        ):
            batch = EventBatch(*pair, *tail, tail[0], (b"\x95\x01\x02\x03\xc0\xc4\x00",))
            sender.transport.send(third.node_id, "events", pack_frame(batch))
        await asyncio.sleep(1)
        assert third.log.health().n_rejected - n_before == 4
        assert third.log.appended.seq == tail[0]
        assert not third.log.health().is_catching_up

    with_world(story)


def test_garbage_on_the_events_plane_is_counted_and_disturbs_nothing() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(2)
        second = world.node(2)
        term = first.masters.term
        assert term is not None
        for _ in range(200):
            first.transport.send(
                second.node_id, "events", world.chance.randbytes(world.chance.randrange(50))
            )
        for body in (b"\xc1", b"\x95\x01\x02\x03\xc0\xc4\x00", world.chance.randbytes(30)):
            seq, chain = second.log.appended.seq, second.log.chain
            batch = EventBatch(*term, seq, chain, seq, (body,))
            first.transport.send(second.node_id, "events", pack_frame(batch))
        await asyncio.sleep(1)
        assert second.log.health().n_garbage == 203
        await add(first, 1)
        await world.settle()
        assert agree(world)

    with_world(story)


def test_a_node_between_terms_takes_no_commands() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(2)
        world.rest(1)
        with pytest.raises(ClusterError) as refused:
            await first.log.submit(an_added_card(1))
        assert refused.value.code == "cluster.no_master"
        assert refused.value.details["last_master"] == first.node_id

    with_world(story)


def test_a_master_that_may_not_decide_commits_nothing() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(2)
        first.masters.is_master = False
        with pytest.raises(ClusterError) as refused:
            await first.log.submit(an_added_card(1))
        assert refused.value.code == "cluster.no_master"

    with_world(story)


# ---- Quorum ------------------------------------------------------------------------------------


def test_in_quorum_a_minority_refuses_with_the_numbers_and_keeps_what_it_has() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(3)
        await first.submit(QUORUM)
        await add(first, 1)
        world.partition({1}, {2, 3})
        began_s = world.clock.monotonic_s()
        with pytest.raises(ClusterError) as refused:
            await first.submit(an_added_card(2))
        error = refused.value
        assert error.code == "cluster.no_quorum"
        assert (error.details["alive"], error.details["voters"]) == (1, 3)
        assert "1 of 3 voters" in error.message
        assert first.node_id in error.message
        assert world.clock.monotonic_s() - began_s < 12
        assert cards(first) == {"test/card-1"}

    with_world(story)


def test_in_quorum_changes_of_who_votes_are_committed_one_by_one() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(4)
        await first.submit(QUORUM)
        for number in (1, 2, 3, 4):
            world.disk_of(a_node_id(number)).sync_delay_s = 0.5
        leaving = [
            asyncio.ensure_future(
                first.submit(
                    ReportLeave(command_id=a_command_id(100 + number), node_id=a_node_id(number))
                )
            )
            for number in (2, 3, 4)
        ]
        uncommitted: list[int] = []
        for _ in range(40):
            await asyncio.sleep(0.1)
            behind = [
                member
                for node_id, member in first.log.appended.members.items()
                if member.presence != first.state.members[node_id].presence
            ]
            uncommitted.append(len(behind))
        await asyncio.gather(*leaving)
        assert max(uncommitted) == 1
        left = [member for member in first.state.members.values() if member.presence == "left"]
        assert len(left) == 3

    with_world(story)


def test_in_quorum_a_replica_shows_nothing_uncommitted_after_a_restart() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(3)
        await first.submit(QUORUM)
        await add(first, 1)
        await world.settle()
        await asyncio.sleep(6)
        world.partition({1}, {2, 3})
        submitted = asyncio.ensure_future(first.log.submit(an_added_card(2)))
        await asyncio.sleep(1)
        await world.crash(1)
        submitted.cancel()
        first = await world.start(1)
        assert "test/card-2" in first.log.appended.cards
        assert cards(first) == {"test/card-1"}
        world.heal()
        await asyncio.sleep(2)
        assert world.elect({1, 2, 3}) is first
        await world.settle()
        assert cards(world.node(2)) == {"test/card-1", "test/card-2"}

    with_world(story)


# ---- Catching up -------------------------------------------------------------------------------


def test_a_lost_batch_is_fetched() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(3)
        world.network.faults = NetworkFaults(loss_ratio=0.5, duplicate_ratio=0.2)
        await asyncio.gather(*(first.log.submit(an_added_card(number)) for number in range(1, 60)))
        world.network.faults = NetworkFaults()
        await world.settle()
        assert agree(world)
        assert all(node.resets == [] for node in world.nodes.values())

    with_world(story)


def test_a_member_that_was_away_for_a_while_fetches_what_it_missed() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(3)
        await world.crash(3)
        await add(first, *range(1, 40))
        third = await world.start(3)
        term = first.masters.term
        assert term is not None
        world.follow(3, term)
        await world.settle()
        assert agree(world)
        assert third.resets == []

    with_world(story)


def test_a_node_that_lacks_more_than_is_kept_gets_a_snapshot_and_the_rest() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(2)
        await add(first, *range(1, 120))
        await asyncio.sleep(1)
        await world.stop(1)
        # A start remembers the newest records only as far as its snapshot.
        first = await world.start(1)
        assert world.elect({1, 2}) is not None
        await world.start(3)
        master = world.nodes[world.nodes[a_node_id(1)].masters.last_master or first.node_id]
        await world.admit(master, 3)
        await add(master, 200)
        await world.settle()
        assert agree(world)

    with_world(story)


def test_a_snapshot_is_shown_only_once_it_is_committed() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(2)
        second = world.node(2)
        await add(first, 1)
        await world.settle()
        world.disk_of(a_node_id(1)).sync_delay_s = 3.0
        submitted = asyncio.ensure_future(first.submit(an_added_card(2)))
        await asyncio.sleep(0.1)
        second.log.begin_anew()
        await asyncio.sleep(1)
        assert "test/card-2" in second.log.appended.cards
        assert cards(second) == {"test/card-1"}
        await submitted
        await world.settle()
        assert cards(second) == {"test/card-1", "test/card-2"}
        assert second.resets == [second.state.seq]

    with_world(story)


def test_a_log_that_differs_is_reported_given_up_and_kept_aside() -> None:
    async def story(world: LogWorld) -> None:
        await world.found(3)
        await world.settle()
        first, second = world.node(1), world.node(2)
        fork_seq = first.log.appended.seq
        world.partition({1}, {2, 3})
        world.elect({1})
        await add(first, 1, 2)
        assert first.state.is_minority_term
        assert world.elect({2, 3}) is not first
        await add(second, 3, 4, 5)
        world.heal()
        await asyncio.sleep(3)
        term = second.masters.term
        assert term is not None
        world.follow(1, term)
        await world.settle()
        assert agree(world)
        assert cards(first) == {"test/card-3", "test/card-4", "test/card-5"}
        health = first.log.health()
        assert health.n_divergences == 1
        last = health.last_divergence
        assert last is not None
        assert (last.seq, last.n_discarded, last.term) == (fork_seq, 3, term.number)
        assert first.resets
        archives = [name for name in first.disk.list(JOURNAL.parent) if "archive" in name]
        assert archives == ["journal.archive-000001"]
        await world.stop(1)
        again = await world.start(1)
        assert state_hash(again.log.appended) == state_hash(second.log.appended)

    with_world(story)


def test_a_disk_that_takes_no_new_history_is_tried_again() -> None:
    async def story(world: LogWorld) -> None:
        await world.found(3)
        await world.settle()
        first, second = world.node(1), world.node(2)
        world.partition({1}, {2, 3})
        world.elect({1})
        await add(first, 1)
        world.elect({2, 3})
        await add(second, 2)
        world.heal()
        await asyncio.sleep(3)
        disk = world.disk_of(first.node_id)
        disk.write_error = OSError(errno.ENOSPC, "no space left on device")
        term = second.masters.term
        assert term is not None
        world.follow(1, term)
        await asyncio.sleep(5)
        assert first.log.health().is_catching_up
        assert cards(first) == {"test/card-1"}
        disk.write_error = None
        await world.settle()
        assert agree(world)
        assert first.log.health().n_divergences == 1

    with_world(story)


def test_a_node_that_wins_while_its_log_is_replaced_leads_with_the_new_one() -> None:
    async def story(world: LogWorld) -> None:
        await world.found(2)
        second = world.node(2)
        await add(second, 1)
        await world.settle()
        second.log.begin_anew()
        while not second.log.health().is_beginning_anew:
            await asyncio.sleep(0.0001)
        await world.crash(1)
        term = TermPair(7, second.node_id)
        world.number = 7
        second.masters.change(term)
        second.log.lead(term, is_minority=True)
        await asyncio.sleep(1)
        await add(second, 2)
        assert cards(second) == {"test/card-1", "test/card-2"}
        assert second.state.term == 7

    with_world(story)


def test_two_snapshots_are_served_at_once_and_the_others_come_back() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(6)
        await add(first, *range(1, 30))
        await world.settle()
        for number in range(2, 7):
            world.node(number).log.begin_anew()
        most = 0
        async with asyncio.timeout(60):
            while not all(world.node(number).resets for number in range(2, 7)):
                await asyncio.sleep(0.0005)
                most = max(most, first.log.health().n_snapshots_served)
        assert most == 2
        await world.settle()
        assert agree(world)

    with_world(story)


# ---- Hashes ------------------------------------------------------------------------------------


def test_idle_nodes_compare_their_states_and_one_that_differs_begins_anew() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(3)
        await add(first, 1, 2)
        await world.settle()
        third = world.node(3)
        state = third.state
        spoilt = state.model_copy(update={"cards": {}})
        third.log.replica.reset(spoilt)
        await asyncio.sleep(10)
        health = third.log.health()
        assert health.n_divergences == 1
        assert health.last_divergence is not None
        assert "differ" in health.last_divergence.message
        await world.settle()
        assert agree(world)
        assert world.node(2).log.health().n_divergences == 0
        assert first.log.state_hash[0] == first.state.seq
        await asyncio.sleep(30)
        assert third.log.health().n_divergences == 1

    with_world(story)


def test_an_idle_cluster_writes_nothing() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(3)
        await world.settle()
        await asyncio.sleep(10)
        seq = first.log.appended.seq
        n_syncs = [world.disk_of(a_node_id(number)).n_syncs for number in (1, 2, 3)]
        await asyncio.sleep(60)
        assert first.log.appended.seq == seq
        assert [world.disk_of(a_node_id(number)).n_syncs for number in (1, 2, 3)] == n_syncs

    with_world(story)


# ---- Stopping ----------------------------------------------------------------------------------


def test_a_stop_sees_to_the_end_of_what_was_decided_and_refuses_what_comes() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(2)
        world.disk_of(a_node_id(2)).sync_delay_s = 0.5
        submitted = asyncio.ensure_future(first.log.submit(an_added_card(1)))
        await asyncio.sleep(0.01)
        closing = asyncio.ensure_future(first.log.close())
        await asyncio.sleep(0.01)
        with pytest.raises(SkulkError) as refused:
            await first.log.submit(an_added_card(2))
        assert refused.value.code == "cluster.stopping"
        assert (await submitted).durable == "member"
        await closing
        await world.crash(1)

    with_world(story)


def test_a_log_starts_with_all_that_was_committed_when_it_was_stopped() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(1)
        await add(first, 1, 2, 3)
        state = first.state
        await world.stop(1)
        first = await world.start(1)
        assert first.state == first.log.appended == state

    with_world(story)
