"""Whole masterships on a simulated network: who is master, through cuts, crashes and silence."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from protocol.state import Policy
from skulkd.cluster.simulated import NetworkFaults
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual
from tests.support.elected_nodes import ElectedCluster, ElectedNode

POLICIES: tuple[Policy, ...] = ("availability", "quorum")
Story = Callable[[ElectedCluster], Coroutine[Any, Any, None]]


def tell(
    story: Story,
    n_nodes: int,
    *,
    seed: int = 0,
    policy: Policy = "availability",
    faults: NetworkFaults | None = None,
    priorities: Mapping[int, int] | None = None,
) -> None:
    """Run a story on a started cluster that has a master."""

    async def main() -> None:
        cluster = ElectedCluster(
            n_nodes, seed=seed, policy=policy, faults=faults, priorities=priorities
        )
        await cluster.start()
        await cluster.wait_agreed(limit_s=15.0)
        await sleep(1.0)
        await story(cluster)
        await cluster.close()

    try:
        run_virtual(main, seed=seed, limit_s=600)
    except BaseException as error:
        error.add_note(f"seed {seed}, {n_nodes} nodes, {policy}")
        raise


def master_and_others(cluster: ElectedCluster) -> tuple[ElectedNode, list[ElectedNode]]:
    (master,) = cluster.masters()
    return master, [node for node in cluster.on() if node is not master]


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("n_nodes", [1, 2, 3, 5, 7])
def test_a_cluster_that_starts_elects_one_master_and_keeps_it(n_nodes: int, policy: Policy) -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, _ = master_and_others(cluster)
        assert now() < 5.0
        await sleep(120.0)
        assert cluster.masters() == [master]
        assert len(cluster.elections) == 1

    for seed in range(3):
        tell(story, n_nodes, seed=seed, policy=policy)


def test_a_cluster_of_one_elects_itself_at_once() -> None:
    async def main() -> None:
        cluster = ElectedCluster(1)
        await cluster.start()
        assert await cluster.wait_agreed() < 0.1
        await cluster.close()

    run_virtual(main)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("n_nodes", [3, 4, 5, 7])
def test_a_killed_master_is_replaced_within_a_second(n_nodes: int, policy: Policy) -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, _ = master_and_others(cluster)
        await master.crash()
        assert await cluster.wait_agreed() < 1.0, cluster.story()
        assert len(cluster.elections) == 2

    for seed in range(12):
        tell(story, n_nodes, seed=seed, policy=policy)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("n_nodes", [3, 5, 7])
def test_a_silent_master_is_replaced_within_three_seconds(n_nodes: int, policy: Policy) -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, others = master_and_others(cluster)
        cluster.partition([master.number], [node.number for node in others])
        numbers = [node.number for node in others]
        assert await cluster.wait_agreed(numbers) < 3.0, cluster.story()
        if policy == "quorum":
            assert not master.mastership.is_master
            assert master.mastership.last_master == master.node_id

    for seed in range(8):
        tell(story, n_nodes, seed=seed, policy=policy)


def test_the_survivor_of_two_takes_over_from_a_process_that_ended_and_waits_for_a_silent_one() -> (
    None
):
    async def story(cluster: ElectedCluster) -> None:
        master, (other,) = master_and_others(cluster)
        cluster.partition([master.number], [other.number])
        await sleep(9.0)
        assert cluster.masters() == [master]
        cluster.network.heal_all()
        await sleep(5.0)
        assert cluster.masters() == [master]
        await master.crash()
        assert await cluster.wait_agreed() < 1.0
        await master.start()
        await cluster.wait_agreed()
        await sleep(2.0)
        assert cluster.masters() == [other]
        assert not other.mastership.seen().is_minority, "its term is settled by a majority"
        assert len(cluster.elections) == 2

    for seed in range(8):
        tell(story, 2, seed=seed)


@pytest.mark.parametrize("n_nodes", [2, 4])
def test_what_half_elected_gives_way_to_the_settled_master_that_lived(n_nodes: int) -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, others = master_and_others(cluster)
        half = n_nodes // 2
        here = [master.number, *(node.number for node in others[: half - 1])]
        there = [node.number for node in others[half - 1 :]]
        cluster.partition(here, there)
        await cluster.wait_agreed(there, limit_s=15.0)
        assert len(cluster.masters()) == 2
        usurper = next(node for node in cluster.masters() if node is not master)
        assert usurper.mastership.seen().is_minority
        await sleep(3.0)
        cluster.network.heal_all()
        assert await cluster.wait_agreed(limit_s=10.0) < 5.0
        await sleep(5.0)
        assert cluster.masters() == [master], cluster.story()
        assert not master.mastership.seen().is_minority
        assert len(cluster.elections) == 3
        assert usurper.log.n_discarded > 0
        assert usurper.log.entries == master.log.entries

    for seed in range(8):
        tell(story, n_nodes, seed=seed)


@pytest.mark.parametrize("n_nodes", [3, 5])
def test_a_loner_never_displaces_the_others_master(n_nodes: int) -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, others = master_and_others(cluster)
        loner = others[0]
        for _ in range(3):
            cluster.partition([loner.number], [n for n in cluster.nodes if n != loner.number])
            await sleep(14.0)
            assert master.mastership.is_master
            cluster.network.heal_all()
            await cluster.wait_agreed(limit_s=10.0)
            await sleep(2.0)
            assert cluster.masters() == [master], cluster.story()
            for node in others[1:]:
                assert "lead" not in " ".join(node.log.story)
                assert node.log.n_discarded == 0

    for seed in range(6):
        tell(story, n_nodes, seed=seed)


def test_a_bridge_keeps_one_master_when_it_hears_both_sides() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, others = master_and_others(cluster)
        bridge, *rest = others
        far = [node.number for node in rest[1:]]
        near = [master.number, rest[0].number]
        for one in near:
            for other in far:
                a, b = cluster.ids(one, other)
                cluster.network.cut(a, b)
                cluster.network.cut(b, a)
        await sleep(40.0)
        assert cluster.masters() == [master], cluster.story()
        assert len(cluster.elections) == 1
        assert bridge.mastership.term is not None
        cluster.network.heal_all()
        await cluster.wait_agreed()
        assert cluster.masters() == [master]

    for policy in POLICIES:
        for seed in range(4):
            tell(story, 5, seed=seed, policy=policy)


def test_one_way_cuts_start_no_elections_while_the_master_hears_and_is_heard_by_most() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, others = master_and_others(cluster)
        cluster.network.cut(master.node_id, others[0].node_id)
        await sleep(30.0)
        assert cluster.masters() == [master]
        cluster.network.heal_all()
        await sleep(10.0)
        cluster.network.cut(others[0].node_id, master.node_id)
        await sleep(30.0)
        assert cluster.masters() == [master]
        cluster.network.heal_all()
        await cluster.wait_agreed()
        assert len(cluster.elections) == 1

    for policy in POLICIES:
        for seed in range(4):
            tell(story, 3, seed=seed, policy=policy)


def test_a_master_that_nobody_hears_is_replaced() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, others = master_and_others(cluster)
        for node in others:
            cluster.network.cut(master.node_id, node.node_id)
        await cluster.wait_agreed([node.number for node in others], limit_s=10.0)
        await sleep(2.0)
        assert master not in cluster.masters()
        cluster.network.heal_all()
        await cluster.wait_agreed()
        assert len(cluster.elections) == 2

    for policy in POLICIES:
        for seed in range(6):
            tell(story, 3, seed=seed, policy=policy)


@pytest.mark.parametrize("period_s", [1.0, 3.0, 8.0, 13.0])
@pytest.mark.parametrize("n_nodes", [2, 3])
def test_a_flapping_link_brings_at_most_two_elections_a_minute(
    n_nodes: int, period_s: float
) -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, others = master_and_others(cluster)
        a, b = master.node_id, others[0].node_id
        n_before = len(cluster.elections)
        ends_s = now() + 60.0
        while now() < ends_s:
            cluster.network.cut(a, b)
            cluster.network.cut(b, a)
            await sleep(period_s)
            cluster.network.heal_all()
            await sleep(min(period_s, 3.0))
        assert len(cluster.elections) - n_before <= 2, cluster.story()

    for policy in POLICIES:
        for seed in range(3):
            tell(story, n_nodes, seed=seed, policy=policy)


def test_a_master_that_flaps_as_a_whole_is_replaced_once() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, others = master_and_others(cluster)
        for _ in range(10):
            cluster.partition([master.number], [node.number for node in others])
            await sleep(3.0)
            cluster.network.heal_all()
            await sleep(3.0)
        assert len(cluster.elections) <= 3, cluster.story()

    for policy in POLICIES:
        for seed in range(4):
            tell(story, 3, seed=seed, policy=policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_node_of_higher_rank_that_comes_back_does_not_depose_the_master(
    policy: Policy,
) -> None:
    async def story(cluster: ElectedCluster) -> None:
        first = cluster.nodes[3]
        assert cluster.masters() == [first], "the highest rank starts first"
        await first.crash()
        await cluster.wait_agreed()
        (second,) = cluster.masters()
        await first.start()
        await sleep(30.0)
        assert cluster.masters() == [second]
        assert len(cluster.elections) == 2

    for seed in range(6):
        tell(story, 3, seed=seed, policy=policy, priorities={3: 100, 1: 0})


def test_a_whole_cluster_that_restarts_has_a_master_soon_and_loses_nothing() -> None:
    async def story(cluster: ElectedCluster) -> None:
        for node in cluster.on():
            await node.crash()
        for node in cluster.nodes.values():
            await node.start()
            await sleep(cluster.rng.uniform(0.0, 1.0))
        assert await cluster.wait_agreed() < 8.0

    for policy in POLICIES:
        for seed in range(6):
            tell(story, 5, seed=seed, policy=policy)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("n_nodes", [3, 4, 5])
def test_what_one_other_living_member_has_outlives_the_master(n_nodes: int, policy: Policy) -> None:
    async def story(cluster: ElectedCluster) -> None:
        cluster.keeps_committed = True
        for _ in range(4):
            (master,) = cluster.masters()
            for _ in range(cluster.rng.randrange(8, 30)):
                master.log.append_something()
                await sleep(cluster.rng.uniform(0.0, 0.1))
            await master.crash()
            await cluster.wait_agreed()
            await master.start()
            await cluster.wait_agreed()
            await sleep(1.5)
        assert len(cluster.committed) > 10

    faults = NetworkFaults(min_delay_s=0.0005, max_delay_s=0.05)
    for seed in range(5):
        tell(story, n_nodes, seed=seed, policy=policy, faults=faults)


def test_elections_bear_a_lossy_network_that_repeats_itself() -> None:
    async def story(cluster: ElectedCluster) -> None:
        for _ in range(3):
            master, _ = master_and_others(cluster)
            await master.crash()
            await cluster.wait_agreed(limit_s=20.0)
            await master.start()
            await cluster.wait_agreed(limit_s=20.0)
            await sleep(5.0)

    faults = NetworkFaults(min_delay_s=0.001, max_delay_s=0.08, loss_ratio=0.1, duplicate_ratio=0.1)
    for policy in POLICIES:
        for seed in range(6):
            tell(story, 3, seed=seed, policy=policy, faults=faults)
