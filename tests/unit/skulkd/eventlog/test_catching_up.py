import asyncio
import errno

from protocol.ids import NodeId
from protocol.peer_messages import EventBatch, EventRange, FetchEvents, TermPair, pack_frame
from skulkd.cluster.simulated import NetworkFaults
from skulkd.core.apply import state_hash
from skulkd.eventlog.early_events import MAX_EARLY_BYTES
from tests.support.builders import a_node_id, an_added_card
from tests.support.simulated_logs import JOURNAL, LogWorld, add, agree, cards, with_world

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


def test_a_master_that_owes_events_and_sends_none_is_not_asked_without_pause() -> None:
    asked: list[int] = []

    async def nothing(sender: NodeId, request: FetchEvents) -> EventRange:
        del sender
        asked.append(request.after_seq)
        head_seq = request.after_seq + 9
        return EventRange(outcome="events", number=request.number, head_seq=head_seq)

    async def story(world: LogWorld) -> None:
        first = await world.found(2)
        first.calls.serve(FetchEvents, nothing)
        world.network.faults = NetworkFaults(loss_ratio=0.7)
        submitted = asyncio.ensure_future(add(first, *range(1, 30)))
        while not asked:
            await asyncio.sleep(0.1)
        world.network.faults = NetworkFaults()
        await asyncio.sleep(20)
        submitted.cancel()
        assert 1 < len(asked) < 60

    with_world(story)


def test_a_log_that_differs_is_reported_given_up_and_kept_aside() -> None:
    async def story(world: LogWorld) -> None:
        await world.found(3)
        await world.settle()
        first, second = world.node(1), world.node(2)
        agreed_seq = first.log.appended.seq
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
        assert (last.seq, last.n_discarded, last.term) == (agreed_seq, 3, term.number)
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


def test_commands_that_wait_for_a_member_do_not_keep_it_from_catching_up() -> None:
    async def story(world: LogWorld) -> None:
        await world.found(2)
        second = world.node(2)
        await world.settle()
        world.network.faults = NetworkFaults(loss_ratio=1.0)
        lost = asyncio.ensure_future(world.node(1).log.submit(an_added_card(999)))
        await asyncio.sleep(0.01)
        world.network.faults = NetworkFaults()
        waiting = [asyncio.ensure_future(second.submit(an_added_card(n))) for n in range(1, 129)]
        async with asyncio.timeout(1.5):
            replies = await asyncio.gather(lost, *waiting)
        assert {reply.durable for reply in replies} == {"member"}

    with_world(story)


def test_nothing_looks_for_late_events_once_the_node_has_ended() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(2)
        second = world.node(2)
        await world.settle()
        term = first.masters.term
        assert term is not None
        failures: list[dict[str, object]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: failures.append(context))
        seq = second.log.commit_seq
        second.log.hear_commit(term, seq, seq + 1, bytes(16))
        await world.crash(2)
        await asyncio.sleep(5)
        assert failures == []

    with_world(story)


def test_events_that_come_before_word_of_their_master_are_taken_once_it_is_followed() -> None:
    async def story(world: LogWorld) -> None:
        await world.found(3)
        await world.settle()
        second, third = world.node(2), world.node(3)
        await world.crash(1)
        world.rest(2)
        world.rest(3)
        term = TermPair(2, second.node_id)
        world.number = 2
        second.masters.change(term)
        second.log.lead(term, is_minority=False)
        submitted = asyncio.ensure_future(second.submit(an_added_card(1)))
        await asyncio.sleep(0.05)
        assert not submitted.done()
        third.masters.change(term)
        third.log.follow(term)
        async with asyncio.timeout(0.05):
            assert (await submitted).durable == "member"
        assert not third.log.health().is_catching_up

    with_world(story)


def test_only_so_many_events_are_kept_for_a_master_that_is_not_followed() -> None:
    async def story(world: LogWorld) -> None:
        await world.found(3)
        await world.settle()
        second, third = world.node(2), world.node(3)
        seq, chain = third.log.appended.seq, third.log.chain
        for number in (*range(5, 200), *[200] * 50):
            batch = EventBatch(number, second.node_id, seq, chain, seq, (bytes(100_000),))
            second.transport.send(third.node_id, "events", pack_frame(batch))
            await asyncio.sleep(0.01)
        assert 0 < third.log._early.n_bytes <= MAX_EARLY_BYTES  # pyright: ignore[reportPrivateUsage]  nothing else tells
        await add(world.node(1), 1)
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
        assert health.last_divergence.is_of_states
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
