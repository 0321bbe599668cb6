import asyncio
import errno

import pytest

from protocol.codec import pack
from protocol.commands import ChangeSettings, ReportLeave
from protocol.errors import ClusterError, SkulkError
from protocol.events import MasterElected
from protocol.peer_messages import EventBatch, TermPair, pack_frame
from protocol.state import ClusterSettings
from skulkd.eventlog.leading import MAX_UNCOMMITTED
from skulkd.eventlog.member_feeds import SENT_TOGETHER
from skulkd.eventlog.records import JournalRecord, encode_body
from tests.support.builders import a_command_id, a_node_id, an_added_card, an_admission
from tests.support.simulated_logs import JOURNAL, LogWorld, add, agree, cards, code_of, with_world

QUORUM = ChangeSettings(command_id=a_command_id(8000), settings=ClusterSettings(policy="quorum"))


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


def test_members_begin_to_work_on_a_mass_of_events_before_all_are_decided() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(3)
        before = world.network.n_sent
        n_events = 4 * SENT_TOGETHER + 3
        seen: list[int] = []

        async def submit(number: int) -> None:
            submitting = asyncio.ensure_future(first.log.submit(an_added_card(number)))
            await asyncio.sleep(0)
            seen.append(world.network.n_sent - before)
            await submitting

        await asyncio.gather(*(submit(number) for number in range(1, n_events + 1)))
        assert 2 * 4 in seen, "four parts to each of two members, in the turn that decided them"
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


def test_a_members_word_counts_only_where_its_chain_agrees_and_in_this_term() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(2)
        await world.settle()
        world.network.cut(first.node_id, a_node_id(2))
        submitted = asyncio.ensure_future(first.log.submit(an_added_card(1)))
        await asyncio.sleep(0.2)
        seq, chain = first.log.durable_position.seq, first.log.chain
        first.log.journalled(a_node_id(2), 1, seq, b"another history!")
        first.log.journalled(a_node_id(2), 2, seq, chain)
        first.log.journalled(a_node_id(2), 1, seq + 1, chain)
        assert not submitted.done()
        assert first.log.commit_seq < seq
        first.log.journalled(a_node_id(2), 1, seq, chain)
        assert first.log.commit_seq == seq
        assert (await submitted).durable == "member"

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
        event = pack(MasterElected(master=first.node_id))
        next_seq = second.log.appended.seq + 1
        for body in (
            b"\xc1",
            b"\x95\x01\x02\x03\xc0\xc4\x00",
            world.chance.randbytes(30),
            encode_body(JournalRecord(1, next_seq, 1, "no command id", event)),
            encode_body(JournalRecord(1, next_seq, 1, None, event[:-1])),
            encode_body(JournalRecord(1, next_seq, 1, None, pack(QUORUM))),
            encode_body(JournalRecord(1, next_seq + 1, 1, None, event)),
            encode_body(JournalRecord(9, next_seq, 1, None, event)),
        ):
            seq, chain = second.log.appended.seq, second.log.chain
            batch = EventBatch(*term, seq, chain, seq, (body,))
            first.transport.send(second.node_id, "events", pack_frame(batch))
        await asyncio.sleep(1)
        assert second.log.health().n_garbage == 208
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
        assert a_node_id(2) in error.message, "who is missing is named"
        assert a_node_id(3) in error.message
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


@pytest.mark.parametrize("n_more", [60, 300])
def test_a_snapshot_of_uncommitted_events_is_not_shown_after_a_restart(n_more: int) -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(3)
        await first.submit(QUORUM)
        await add(first, *range(1, 50))
        await world.settle()
        await asyncio.sleep(6)
        shown = cards(first)
        world.partition({1}, {2, 3})
        submitted = [
            asyncio.ensure_future(first.log.submit(an_added_card(1000 + number)))
            for number in range(n_more)
            if not await asyncio.sleep(0.002)
        ]
        await asyncio.sleep(1)
        await world.crash(1)
        for one in submitted:
            one.cancel()
        snapshots = [name for name in world.disk_of(a_node_id(1)).list(JOURNAL) if "snap" in name]
        first = await world.start(1)
        assert len(first.log.appended.cards) == len(shown) + n_more
        assert first.log.appended.seq >= int(snapshots[-1][9:29]) > first.state.seq
        assert cards(first) == shown
        world.heal()
        await asyncio.sleep(2)
        assert world.elect({1, 2, 3}) is first
        await world.settle()
        assert agree(world)
        assert len(cards(world.node(2))) == len(shown) + n_more

    with_world(story)


def test_a_start_does_not_go_back_behind_a_gap_that_a_failed_disk_has_left() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(2)
        await add(first, *range(1, 30))
        await asyncio.sleep(6)
        disk = world.disk_of(first.node_id)
        disk.write_error = disk.sync_error = OSError(errno.EIO, "input/output error")
        await add(first, *range(30, 60))
        disk.write_error = disk.sync_error = None
        async with asyncio.timeout(3):
            while first.log.durable_position.seq < first.log.appended.seq:
                await asyncio.sleep(0.05)
        await add(first, 60)
        seq, state = first.log.appended.seq, first.log.appended
        await world.crash(1)
        first = await world.start(1)
        assert first.log.appended == state
        assert first.log.durable_position.seq == seq

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
