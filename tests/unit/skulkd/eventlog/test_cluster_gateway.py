import asyncio

import pytest

from protocol.errors import ClusterError, PlacementError, SkulkError
from protocol.peer_messages import TermPair
from skulkd.eventlog.cluster_gateway import GatewayLimits
from tests.support.builders import a_command_id, a_node_id, an_added_card, an_instance_id
from tests.support.simulated_logs import LogWorld, add, agree, cards, code_of, with_world


def test_command_ids_carry_the_node_and_never_repeat() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(1)
        minted = {first.gateway.mint_command_id() for _ in range(100)}
        assert len(minted) == 100
        assert {command_id.partition("-")[0] for command_id in minted} == {first.node_id[1:7]}

    with_world(story)


def test_a_command_waits_for_a_master_and_then_says_who_was_the_last_one() -> None:
    async def story(world: LogWorld) -> None:
        await world.found(3)
        second = world.node(2)
        await world.crash(1)
        world.rest(2)
        world.rest(3)
        began_s = world.clock.monotonic_s()
        with pytest.raises(ClusterError) as refused:
            await second.submit(an_added_card(1))
        assert refused.value.code == "cluster.no_master"
        assert a_node_id(1) in refused.value.message
        assert world.clock.monotonic_s() - began_s == pytest.approx(8.0, abs=0.1)

    with_world(story)


def test_a_command_that_waits_is_taken_by_the_master_that_comes() -> None:
    async def story(world: LogWorld) -> None:
        await world.found(3)
        second = world.node(2)
        await world.crash(1)
        world.rest(2)
        world.rest(3)
        submitted = asyncio.ensure_future(second.submit(an_added_card(1)))
        await asyncio.sleep(3)
        assert not submitted.done()
        world.elect()
        await asyncio.sleep(0.5)
        assert submitted.done()
        assert (await submitted).term == world.number

    with_world(story)


def test_a_master_that_was_late_for_a_moment_is_asked_though_nobody_was_told_of_it() -> None:
    async def story(world: LogWorld) -> None:
        await world.found(2)
        second = world.node(2)
        term, second.masters.term = second.masters.term, None
        submitted = asyncio.ensure_future(second.submit(an_added_card(1)))
        await asyncio.sleep(0.1)
        second.masters.term = term
        async with asyncio.timeout(0.3):
            assert (await submitted).durable == "member"

    with_world(story)


def test_a_refusal_of_the_master_comes_through_at_once() -> None:
    from protocol.commands import StopInstance

    async def story(world: LogWorld) -> None:
        await world.found(2)
        stop = StopInstance(command_id=a_command_id(9), instance_id=an_instance_id())
        began_s = world.clock.monotonic_s()
        with pytest.raises(PlacementError) as refused:
            await world.node(2).submit(stop)
        assert refused.value.code == "placement.not_live"
        assert world.clock.monotonic_s() - began_s < 0.5

    with_world(story)


def test_a_master_that_hangs_is_left_for_the_next_one_at_once() -> None:
    async def story(world: LogWorld) -> None:
        await world.found(3)
        third = world.node(3)
        world.network.partition({a_node_id(1)}, {a_node_id(2), a_node_id(3)})
        submitted = asyncio.ensure_future(third.submit(an_added_card(1)))
        await asyncio.sleep(1)
        world.elect({2, 3})
        async with asyncio.timeout(0.1):
            assert (await submitted).term == world.number

    with_world(story)


def test_nobody_waits_for_the_answer_of_a_master_that_is_heard_no_more() -> None:
    async def story(world: LogWorld) -> None:
        await world.found(3)
        third = world.node(3)
        world.network.partition({a_node_id(1)}, {a_node_id(2), a_node_id(3)})
        waiting = [asyncio.ensure_future(third.submit(an_added_card(n))) for n in range(1, 100)]
        await asyncio.sleep(1)
        world.rest(3)
        await asyncio.sleep(0)
        world.elect({2, 3})
        async with asyncio.timeout(0.1):
            replies = await asyncio.gather(*waiting)
        assert {reply.term for reply in replies} == {world.number}
        assert not any(reply.repeated for reply in replies)

    with_world(story)


def test_a_command_that_the_old_master_decided_too_happens_once() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(3)
        second, third = world.node(2), world.node(3)
        third.log.rest()
        world.network.cut(first.node_id, second.node_id)
        submitted = asyncio.ensure_future(third.submit(an_added_card(1)))
        await asyncio.sleep(0.2)
        assert "test/card-1" in first.log.appended.cards, "the old master has decided it"
        assert cards(first) == set(), "and nobody else knows"
        world.network.cut(first.node_id, third.node_id)
        assert world.elect({2, 3}) is not first
        assert (await submitted).term == world.number
        world.network.heal_all()
        await asyncio.sleep(3)
        term = second.masters.term
        assert term is not None
        world.follow(1, term)
        await world.settle()
        assert agree(world)
        assert cards(first) == {"test/card-1"}
        for node in (second, third):
            added = [
                one for one in node.log.replica.recent(0, 99) if one.event.kind == "card_added"
            ]
            assert [one.term for one in added] == [world.number]

    with_world(story)


def test_as_many_commands_are_under_way_to_a_master_as_it_takes_and_the_others_wait() -> None:
    async def story(world: LogWorld) -> None:
        await world.found(2)
        replies = await asyncio.gather(
            *(world.node(2).submit(an_added_card(number)) for number in range(1, 301))
        )
        assert len({reply.seq for reply in replies}) == 300

    with_world(story)


def test_a_master_that_hung_and_is_no_more_is_told_as_no_master_and_not_as_a_timeout() -> None:
    async def story(world: LogWorld) -> None:
        await world.found(3)
        third = world.node(3)
        world.network.partition({a_node_id(1)}, {a_node_id(2), a_node_id(3)})
        submitted = asyncio.ensure_future(third.submit(an_added_card(1)))
        await asyncio.sleep(4)
        world.rest(2)
        world.rest(3)
        assert await code_of(submitted) == "cluster.no_master"

    with_world(story)


def test_two_nodes_that_take_each_other_for_the_master_end_in_a_refusal() -> None:
    async def story(world: LogWorld) -> None:
        world.gateway_limits = GatewayLimits(master_wait_s=2.0)
        await world.found(2)
        second = world.node(2)
        world.rest(1)
        second.masters.change(TermPair(9, a_node_id(1)))
        assert await code_of(asyncio.ensure_future(second.submit(an_added_card(1)))) == (
            "cluster.no_master"
        )

    with_world(story)


def test_patience_may_run_out_in_the_very_turn_in_which_the_master_changes() -> None:
    async def story(world: LogWorld) -> None:
        world.gateway_limits = GatewayLimits(master_wait_s=1.0)
        await world.found(3)
        second = world.node(2)
        world.network.partition({a_node_id(1)}, {a_node_id(2), a_node_id(3)})
        submitted = asyncio.ensure_future(second.submit(an_added_card(1)))
        await asyncio.sleep(0.5)
        (patience,) = second.gateway._asking  # pyright: ignore[reportPrivateUsage]
        patience._on_timeout()  # type: ignore[attr-defined]  # its timer, in this turn
        second.masters.change(None)
        assert await code_of(submitted) == "cluster.no_master"

    with_world(story)


def test_a_gateway_that_is_closed_ends_what_waits_for_a_master() -> None:
    async def story(world: LogWorld) -> None:
        await world.found(2)
        second = world.node(2)
        await world.crash(1)
        world.rest(2)
        submitted = asyncio.ensure_future(second.submit(an_added_card(1)))
        await asyncio.sleep(0.5)
        second.gateway.close()
        await asyncio.sleep(0)
        with pytest.raises(SkulkError) as refused:
            await submitted
        assert refused.value.code == "cluster.stopping"

    with_world(story)


def test_a_replica_that_lags_holds_an_answer_up_for_a_moment_only() -> None:
    async def story(world: LogWorld) -> None:
        first = await world.found(3)
        third = world.node(3)
        world.network.cut(first.node_id, third.node_id)
        await add(first, 1)
        assert cards(third) == set()
        world.network.heal_all()
        await add(third, 2)
        assert cards(third) == {"test/card-1", "test/card-2"}
        second = world.node(2)
        began_s = world.clock.monotonic_s()
        second.log.rest()
        await second.submit(an_added_card(3))
        assert world.clock.monotonic_s() - began_s == pytest.approx(2.0, abs=0.2)
        assert "test/card-3" not in cards(second)

    with_world(story)
