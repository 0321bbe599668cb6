"""Readings between simulated nodes, in virtual time."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

import pytest

from protocol.ids import ModelId, NodeId
from protocol.readings import (
    AcceleratorReading,
    InstanceReading,
    NodeReading,
    PhaseProgress,
    Reading,
    ReadingKey,
    TransferReading,
)
from protocol.telemetry_wire import MAX_KEYS, pack_reading
from skulkd.cluster.link_echoes import ECHO_S
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.cluster.simulated import NetworkFaults, SimulatedNetwork, SimulatedTransport
from skulkd.cluster.telemetry import MIN_INTERVAL_S, REFRESH_S, TTL_S, Telemetry, is_news
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.rounds import Rounds
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import a_node_id, an_instance_id


class Node:
    def __init__(self, transport: SimulatedTransport, *, rounds: Rounds | None = None) -> None:
        self.node_id = transport.node_id
        self.transport = transport
        self.table = ReadingsTable()
        self.clock = LoopClock(asyncio.get_running_loop())
        self.telemetry = Telemetry(transport, self.table, self.clock, rounds=rounds)
        self.n_heard = 0
        self.table.subscribe(self._count)

    def _count(self, node_id: NodeId, key: ReadingKey, reading: Reading | None) -> None:
        self.n_heard += node_id != self.node_id

    def reading(self, free_bytes: int = 1) -> NodeReading:
        now = self.clock.monotonic_s()
        return NodeReading(node_id=self.node_id, at_s=now, memory_available_bytes=free_bytes)

    def progress(self, done_bytes: int = 0) -> PhaseProgress:
        now = self.clock.monotonic_s()
        return PhaseProgress(
            instance_id=an_instance_id(),
            node_id=self.node_id,
            rank=0,
            attempt=1,
            phase="load",
            since_s=now - 3,
            at_s=now,
            done_bytes=done_bytes,
        )

    async def die(self) -> None:
        self.telemetry.close()
        await self.transport.close()


Story = Callable[[SimulatedNetwork, list[Node]], Coroutine[Any, Any, None]]


def run(story: Story, *, n_nodes: int = 3, seeds: int = 2) -> None:
    for seed in range(seeds):

        async def main(seed: int = seed) -> None:
            # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
            network = SimulatedNetwork(random.Random(seed))
            nodes = [Node(network.attach(a_node_id(n + 1))) for n in range(n_nodes)]
            network.introduce_all()
            await sleep(2)
            await story(network, nodes)
            for node in nodes:
                await node.die()

        run_virtual(main, seed=seed, limit_s=600)


def test_every_node_knows_what_each_has_put() -> None:
    async def story(network: SimulatedNetwork, nodes: list[Node]) -> None:
        put = {node.node_id: node.reading(number) for number, node in enumerate(nodes)}
        for node in nodes:
            node.table.put_node(put[node.node_id])
        await sleep(0.1)
        for node in nodes:
            seen = node.table.readings.nodes
            assert {other: reading.memory_available_bytes for other, reading in seen.items()} == {
                other: reading.memory_available_bytes for other, reading in put.items()
            }

    run(story)


def test_times_are_told_as_ages() -> None:
    async def story(network: SimulatedNetwork, nodes: list[Node]) -> None:
        nodes[0].table.put_progress(nodes[0].progress())
        told_s = nodes[0].clock.monotonic_s()
        await sleep(0.5)
        (seen,) = nodes[1].table.readings.progress.values()
        assert told_s <= seen.at_s < told_s + 0.1
        assert told_s - 3 <= seen.since_s < told_s - 2.9

    run(story)


def test_many_changes_of_one_reading_are_told_five_times_a_second_and_the_last_arrives() -> None:
    async def story(network: SimulatedNetwork, nodes: list[Node]) -> None:
        for number in range(200):
            nodes[0].table.put_progress(nodes[0].progress(number))
            await sleep(0.01)
        await sleep(0.5)
        assert nodes[1].n_heard <= 2 / MIN_INTERVAL_S + 2
        (seen,) = nodes[1].table.readings.progress.values()
        assert seen.done_bytes == 199

    run(story)


def test_a_change_is_told_at_once() -> None:
    async def story(network: SimulatedNetwork, nodes: list[Node]) -> None:
        nodes[0].table.put_node(nodes[0].reading())
        await sleep(0.002)
        assert nodes[0].node_id in nodes[1].table.readings.nodes

    run(story)


def test_what_has_been_dropped_goes_everywhere() -> None:
    async def story(network: SimulatedNetwork, nodes: list[Node]) -> None:
        model = ModelId("org/name")
        transfer = TransferReading(
            node_id=nodes[0].node_id,
            model_id=model,
            at_s=0.0,
            phase="download",
            done_bytes=1,
            total_bytes=None,
            rate_bytes_s=None,
            eta_s=None,
            source="hub",
        )
        nodes[0].table.put_transfer(transfer)
        nodes[0].table.put_transfer(replace(transfer, done_bytes=2))
        await sleep(0.01)
        assert len(nodes[1].table.readings.transfers) == 1
        nodes[0].table.drop_transfer(nodes[0].node_id, model)
        await sleep(1)
        assert nodes[1].table.readings.transfers == {}

    run(story)


def test_a_node_that_comes_hears_what_was_put_before_at_once() -> None:
    async def story(network: SimulatedNetwork, nodes: list[Node]) -> None:
        nodes[0].table.put_progress(nodes[0].progress())
        await nodes[2].die()
        await sleep(1)
        nodes[2] = Node(network.attach(nodes[2].node_id))
        network.introduce_all()
        while nodes[0].transport.link(nodes[2].node_id) != "up":
            await sleep(0.01)
        await sleep(0.01)
        assert len(nodes[2].table.readings.progress) == 1

    run(story)


def test_what_was_put_before_telemetry_began_is_told_too() -> None:
    async def story(network: SimulatedNetwork, nodes: list[Node]) -> None:
        await nodes[2].die()
        await sleep(1)
        transport = network.attach(nodes[2].node_id)
        late = Node(transport)
        late.telemetry.close()
        late.table.put_node(late.reading())
        late.telemetry = Telemetry(transport, late.table, late.clock)
        nodes[2] = late
        network.introduce_all()
        await sleep(REFRESH_S)
        assert late.node_id in nodes[0].table.readings.nodes

    run(story)


def test_a_lost_reading_is_said_again() -> None:
    async def story(network: SimulatedNetwork, nodes: list[Node]) -> None:
        network.faults = NetworkFaults(loss_ratio=1.0)
        nodes[0].table.put_progress(nodes[0].progress())
        await sleep(1)
        assert nodes[1].table.readings.progress == {}
        network.faults = NetworkFaults()
        await sleep(REFRESH_S + 5)
        assert len(nodes[1].table.readings.progress) == 1

    run(story)


def test_what_is_said_again_is_said_with_a_round() -> None:
    async def story(network: SimulatedNetwork, nodes: list[Node]) -> None:
        rounds = Rounds()
        node = Node(network.attach(a_node_id(9)), rounds=rounds)
        network.introduce_all()
        await sleep(1)
        node.table.put_node(node.reading())
        await sleep(1)
        heard_s: list[float] = []
        nodes[0].table.subscribe(lambda _node_id, _key, _reading: heard_s.append(loop.time()))
        loop, rounds_s = asyncio.get_running_loop(), list[float]()
        for _ in range(80):
            await sleep(0.5)
            rounds_s.append(loop.time())
            rounds.begin()
        assert len(heard_s) == 4
        for at_s in heard_s:
            assert min(abs(at_s - round_s) for round_s in rounds_s) < 0.1
        await node.die()

    run(story, n_nodes=1)


def test_what_is_no_longer_renewed_is_forgotten_and_ones_own_is_not() -> None:
    async def story(network: SimulatedNetwork, nodes: list[Node]) -> None:
        for node in nodes:
            node.table.put_node(node.reading())
        await sleep(1)
        network.partition([nodes[0].node_id], [node.node_id for node in nodes[1:]])
        await sleep(TTL_S - 2)
        assert nodes[0].node_id in nodes[1].table.readings.nodes
        await sleep(9)
        assert nodes[0].table.readings.nodes.keys() == {nodes[0].node_id}
        assert nodes[1].table.readings.nodes.keys() == {node.node_id for node in nodes[1:]}

    run(story)


def test_a_member_that_goes_takes_its_readings_along() -> None:
    async def story(network: SimulatedNetwork, nodes: list[Node]) -> None:
        for node in nodes:
            node.table.put_node(node.reading())
        nodes[0].table.put_progress(nodes[0].progress())
        await sleep(1)
        await nodes[0].die()
        nodes[1].telemetry.forget(nodes[0].node_id)
        assert nodes[0].node_id not in nodes[1].table.readings.nodes
        assert nodes[1].table.readings.progress == {}
        assert nodes[2].node_id in nodes[1].table.readings.nodes

    run(story)


def test_whoever_stops_listening_keeps_nothing_of_others() -> None:
    async def story(network: SimulatedNetwork, nodes: list[Node]) -> None:
        for node in nodes:
            node.table.put_node(node.reading())
        await sleep(1)
        nodes[0].telemetry.close()
        assert nodes[0].table.readings.nodes.keys() == {nodes[0].node_id}

    run(story)


def test_a_node_tells_at_most_256_readings_and_more_are_not_taken() -> None:
    async def story(network: SimulatedNetwork, nodes: list[Node]) -> None:
        def reading(number: int) -> InstanceReading:
            return InstanceReading(
                instance_id=an_instance_id(number),
                node_id=nodes[0].node_id,
                at_s=0.0,
                in_flight=0,
                queued=0,
                slots=1,
            )

        for number in range(300):
            nodes[0].table.put_instance(reading(number))
        await sleep(1)
        assert len(nodes[1].table.readings.instances) == MAX_KEYS
        beyond = pack_reading(reading(400), now=0.0)
        nodes[0].transport.send(nodes[1].node_id, "telemetry", beyond)
        await sleep(1)
        assert len(nodes[1].table.readings.instances) == MAX_KEYS
        assert nodes[1].telemetry.n_refused == 1

    run(story, seeds=1)


def test_what_cannot_be_read_changes_nothing() -> None:
    async def story(network: SimulatedNetwork, nodes: list[Node]) -> None:
        nodes[0].transport.send(nodes[1].node_id, "telemetry", b"\xc1")
        nodes[0].table.put_node(nodes[0].reading())
        await sleep(1)
        assert nodes[1].telemetry.n_refused == 1
        assert nodes[0].node_id in nodes[1].table.readings.nodes

    run(story)


def test_a_still_cluster_says_little() -> None:
    async def story(network: SimulatedNetwork, nodes: list[Node]) -> None:
        for node in nodes:
            node.table.put_node(node.reading())
            node.table.put_progress(node.progress())
        await sleep(1)
        before = network.n_sent
        await sleep(60)
        # Two readings of three nodes to two peers, every 10 s; and a word there and back.
        said = 3 * 2 * 60 * (2 / REFRESH_S + 2 / ECHO_S)
        assert network.n_sent - before <= said * 1.1

    run(story)


def _free_there(nodes: list[Node]) -> int | None:
    return nodes[1].table.readings.nodes[nodes[0].node_id].memory_available_bytes


def test_what_moves_little_is_told_with_the_refresh_and_not_before() -> None:
    async def story(network: SimulatedNetwork, nodes: list[Node]) -> None:
        nodes[0].table.put_node(nodes[0].reading(1_000_000))
        await sleep(1)
        before = network.n_sent
        for step in range(1, 10):
            nodes[0].table.put_node(nodes[0].reading(1_000_000 + 1000 * step))
            await sleep(0.3)
        assert network.n_sent == before
        assert _free_there(nodes) == 1_000_000
        await sleep(REFRESH_S + 5)
        assert _free_there(nodes) == 1_009_000

    run(story)


def test_small_moves_add_up_to_news() -> None:
    async def story(network: SimulatedNetwork, nodes: list[Node]) -> None:
        for step in range(4):
            nodes[0].table.put_node(nodes[0].reading(1_000_000 + 4000 * step))
            await sleep(0.3)
        assert _free_there(nodes) == 1_012_000

    run(story)


BUSY: Final = AcceleratorReading(
    free_bytes=100, busy_ratio=0.5, watts=200.0, celsius=60.0, mhz=2500.0
)


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_available_bytes": 980},
        {"memory_available_bytes": None},
        {"disk_free_bytes": 480},
        {"accelerators": (replace(BUSY, free_bytes=90),)},
        {"accelerators": (BUSY, BUSY)},
        {"accelerators": (replace(BUSY, busy_ratio=0.7),)},
        {"accelerators": (replace(BUSY, celsius=70.0),)},
        {"accelerators": (replace(BUSY, watts=None),)},
        {"cpu_ratio": 0.2},
        {"loop_lag_s": 0.2},
        {"journal_durable": False},
        {"journal_unwritten": 1},
        {"no_downloads": "offline"},
    ],
    ids=str,
)
def test_what_matters_is_news(changes: dict[str, Any]) -> None:
    told = NodeReading(
        node_id=a_node_id(1),
        at_s=1.0,
        memory_available_bytes=1000,
        disk_free_bytes=500,
        accelerators=(BUSY,),
        cpu_ratio=0.0,
        loop_lag_s=0.0,
    )
    assert not is_news(replace(told, at_s=3.0), told)
    assert not is_news(replace(told, accelerators=(replace(BUSY, mhz=300.0),)), told)
    assert is_news(replace(told, at_s=3.0, **changes), told)
    assert is_news(told, None)
