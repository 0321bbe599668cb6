"""Measuring what a link carries, between simulated nodes in virtual time."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from protocol.errors import ClusterError
from protocol.files_wire import (
    FILLING_HEADER_BYTES,
    MAX_FILLING_BYTES,
    CloseFilling,
    FilesFrame,
    Filling,
    FillingRefused,
    ReadFilling,
    pack_files,
    pack_filling,
    unpack_files,
)
from protocol.ids import NodeId
from skulkd.cluster.link_probes import LinkProbes
from skulkd.cluster.simulated import NetworkFaults, SimulatedNetwork
from skulkd.core.link_probe import PROBE_BYTES
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import a_node_id


class Node:
    def __init__(self, network: SimulatedNetwork, number: int) -> None:
        self.node_id = a_node_id(number)
        self.transport = network.attach(self.node_id)
        self.is_serving = False
        self.n_given_bytes = 0
        self.probes = LinkProbes(
            self.transport,
            # ruff: ignore[suspicious-non-cryptographic-random-usage]  numbers
            rng=random.Random(number),
            is_serving=lambda: self.is_serving,
            name_of=lambda node_id: f"node {node_id[:4]}",
        )
        self.transport.on_receive("files", self._on_payload)

    def _on_payload(self, sender: NodeId, payload: bytes) -> None:
        frame = unpack_files(payload)
        if isinstance(frame, ReadFilling):
            self.n_given_bytes += frame.n_bytes
        assert isinstance(frame, ReadFilling | CloseFilling | Filling | FillingRefused)
        self.probes.on_frame(sender, frame)


Story = Callable[[SimulatedNetwork, list[Node]], Coroutine[Any, Any, None]]


def run(story: Story, *, rate_bytes_s: float | None = 10e6, n_nodes: int = 3) -> None:
    for seed in range(3):

        async def main(seed: int = seed) -> None:
            # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
            network = SimulatedNetwork(
                random.Random(seed), NetworkFaults(rate_bytes_s=rate_bytes_s)
            )
            nodes = [Node(network, number + 1) for number in range(n_nodes)]
            network.introduce_all()
            await sleep(2)
            await story(network, nodes)

        run_virtual(main, seed=seed, limit_s=600)


@pytest.mark.parametrize("rate_bytes_s", [200e3, 10e6, 125e6])
def test_the_rate_of_a_link_is_measured_within_bounds(rate_bytes_s: float) -> None:
    async def story(_network: SimulatedNetwork, nodes: list[Node]) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        rate = await nodes[0].probes.measure(nodes[1].node_id, even_busy=False)
        assert rate.bytes_s == pytest.approx(rate_bytes_s, rel=0.1)
        assert rate.n_bytes <= PROBE_BYTES
        assert loop.time() - began_s < 2.0
        assert nodes[1].n_given_bytes == rate.n_bytes

    run(story, rate_bytes_s=rate_bytes_s)


def test_a_peer_that_dies_meanwhile_ends_the_measurement_at_once_and_the_next_one_works() -> None:
    async def story(network: SimulatedNetwork, nodes: list[Node]) -> None:
        asyncio.get_running_loop().call_later(0.2, network.detach, nodes[1].node_id)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(ClusterError) as failed:
            await nodes[0].probes.measure(nodes[1].node_id, even_busy=False)
        assert failed.value.code == "cluster.peer_unreachable"
        assert nodes[1].node_id[:4] in failed.value.message
        assert asyncio.get_running_loop().time() - began_s < 10.0
        await nodes[0].probes.measure(nodes[2].node_id, even_busy=False)

    run(story)


def test_a_node_that_serves_is_not_measured_unless_one_insists() -> None:
    async def story(_network: SimulatedNetwork, nodes: list[Node]) -> None:
        for busy in nodes[:2]:
            busy.is_serving = True
            with pytest.raises(ClusterError) as refused:
                await nodes[0].probes.measure(nodes[1].node_id, even_busy=False)
            assert refused.value.code == "cluster.probe_disturbs"
            assert busy.node_id[:4] in refused.value.message
            await nodes[0].probes.measure(nodes[1].node_id, even_busy=True)
            busy.is_serving = False

    run(story)


@pytest.mark.parametrize("busy", [0, 1])
def test_a_request_that_comes_meanwhile_ends_the_measurement(busy: int) -> None:
    async def story(_network: SimulatedNetwork, nodes: list[Node]) -> None:
        def begin_serving() -> None:
            nodes[busy].is_serving = True

        asyncio.get_running_loop().call_later(0.2, begin_serving)
        with pytest.raises(ClusterError) as refused:
            await nodes[0].probes.measure(nodes[1].node_id, even_busy=False)
        assert refused.value.code == "cluster.probe_disturbs"

    run(story)


def test_of_two_measurements_that_would_share_a_node_one_waits_for_the_other() -> None:
    async def story(_network: SimulatedNetwork, nodes: list[Node]) -> None:
        first, second, third = nodes
        rates = await asyncio.gather(
            first.probes.measure(second.node_id, even_busy=False),
            third.probes.measure(second.node_id, even_busy=False),
            second.probes.measure(first.node_id, even_busy=False),
        )
        assert all(rate.bytes_s == pytest.approx(10e6, rel=0.1) for rate in rates)

    run(story)


def test_a_node_that_measures_for_long_is_waited_for_some_seconds_only() -> None:
    async def story(_network: SimulatedNetwork, nodes: list[Node]) -> None:
        first, second, third = nodes
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + 6.0

        def ask() -> None:
            frame = ReadFilling(7, 0, 1, even_busy=False)
            third.transport.send(second.node_id, "files", pack_files(frame))
            if loop.time() < ends_s:
                loop.call_later(0.5, ask)

        ask()
        await sleep(0.1)
        with pytest.raises(ClusterError) as refused:
            await first.probes.measure(second.node_id, even_busy=False)
        assert refused.value.code == "cluster.probe_busy"
        assert loop.time() < ends_s - 2.0
        await sleep(7.0)
        await first.probes.measure(second.node_id, even_busy=False)

    run(story)


def test_a_node_that_asks_for_more_than_a_measurement_takes_gets_no_more() -> None:
    async def story(network: SimulatedNetwork, nodes: list[Node]) -> None:
        given: list[FilesFrame] = []
        greedy = network.attach(nodes[0].node_id)
        network.introduce_all()
        await sleep(2)
        greedy.on_receive("files", lambda _sender, payload: given.append(unpack_files(payload)))
        n_pieces = PROBE_BYTES // MAX_FILLING_BYTES + 3
        for number in range(n_pieces):
            await sleep(0.05)
            frame = ReadFilling(7, number, MAX_FILLING_BYTES, even_busy=False)
            greedy.send(nodes[1].node_id, "files", pack_files(frame))
        await sleep(5)
        fillings = [frame for frame in given if isinstance(frame, Filling)]
        assert sum(frame.n_bytes for frame in fillings) <= PROBE_BYTES
        assert given[-1] == FillingRefused(7, "too_much")

    run(story, rate_bytes_s=None)


def test_bytes_that_mean_nothing_are_as_long_as_was_asked_for() -> None:
    payload = pack_filling(5, 9, 1000)
    assert len(payload) == FILLING_HEADER_BYTES + 1000
    assert unpack_files(payload) == Filling(5, 9, 1000)
