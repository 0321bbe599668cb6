import asyncio
import random

from protocol.ids import NodeId, node_id_of
from skulkd.cluster.simulated import NetworkFaults, SimulatedNetwork
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual

A, B, C = (node_id_of(bytes([number]) * 32) for number in range(3))


def _network(seed: int = 0, **faults: float) -> SimulatedNetwork:
    # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
    return SimulatedNetwork(random.Random(seed), NetworkFaults(**faults))


async def _open_links(network: SimulatedNetwork) -> None:
    network.introduce_all()
    await sleep(1)


def _flood(seed: int, **faults: float) -> list[bytes]:
    async def main() -> list[bytes]:
        network = _network(seed, **faults)
        sender, receiver = network.attach(A), network.attach(B)
        await _open_links(network)
        got: list[bytes] = []
        receiver.on_receive("data", lambda _, payload: got.append(payload))
        for number in range(1000):
            sender.send(B, "data", number.to_bytes(2, "big"))
            await sleep(0.0001)
        await sleep(10)
        assert network.n_sent == 1000
        assert network.n_delivered == len(got)
        return got

    return run_virtual(main, seed=seed)


def test_loss_and_duplication_are_as_asked_in_order_and_repeat_with_the_seed() -> None:
    got = _flood(1, loss_ratio=0.3, duplicate_ratio=0.1)
    assert 600 < len(set(got)) < 850
    assert 50 < len(got) - len(set(got)) < 150
    assert got == sorted(got)
    assert got == _flood(1, loss_ratio=0.3, duplicate_ratio=0.1)
    assert got != _flood(2, loss_ratio=0.3, duplicate_ratio=0.1)


def test_delay_stays_within_its_bounds() -> None:
    async def main() -> tuple[float, float]:
        network = _network(min_delay_s=0.2, max_delay_s=0.4)
        sender, receiver = network.attach(A), network.attach(B)
        await _open_links(network)
        loop_times: list[float] = []
        receiver.on_receive("data", lambda _, _payload: loop_times.append(_now()))
        for _ in range(100):
            began_s = _now()
            sender.send(B, "data", b"")
            await sleep(1)
            loop_times[-1] -= began_s
        return min(loop_times), max(loop_times)

    shortest, longest = run_virtual(main)
    assert 0.2 <= shortest < 0.25
    assert 0.35 < longest <= 0.401


def _now() -> float:
    return asyncio.get_running_loop().time()


def test_cuts_are_one_way_and_partitions_are_not() -> None:
    async def main() -> None:
        network = _network()
        nodes = {node_id: network.attach(node_id) for node_id in (A, B, C)}
        await _open_links(network)
        heard: set[tuple[NodeId, NodeId]] = set()
        for node_id, node in nodes.items():
            node.on_receive(
                "election", lambda sender, _, receiver=node_id: heard.add((sender, receiver))
            )

        async def who_hears_whom() -> set[tuple[NodeId, NodeId]]:
            heard.clear()
            for node_id, node in nodes.items():
                for peer in nodes.keys() - {node_id}:
                    assert node.send(peer, "election", node_id.encode()) is None
            await sleep(1)
            return set(heard)

        everything = await who_hears_whom()
        assert len(everything) == 6
        network.cut(A, B)
        assert await who_hears_whom() == everything - {(A, B)}
        network.heal(A, B)
        network.partition([A], [B, C])
        assert await who_hears_whom() == {(B, C), (C, B)}
        network.heal_all()
        assert await who_hears_whom() == everything

    run_virtual(main, seed=1)


def test_a_restarted_node_gets_nothing_that_was_meant_for_its_former_life() -> None:
    async def main() -> None:
        network = _network()
        sender, before = network.attach(A), network.attach(B)
        await _open_links(network)
        assert sender.send(B, "control", b"old") is None
        after = network.attach(B)
        await before.close()
        got: list[bytes] = []
        after.on_receive("control", lambda _, payload: got.append(payload))
        await _open_links(network)
        assert sender.send(B, "control", b"new") is None
        await sleep(1)
        assert got == [b"new"]
        assert network.n_lost == 1

    run_virtual(main)
