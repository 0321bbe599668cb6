import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from protocol.ids import ClusterId, NodeId, node_id_of
from skulkd.cluster.addresses import InterfaceAddress
from skulkd.cluster.discovery import Announcement, Discovery, Sighting, cluster_hash_of
from skulkd.cluster.simulated_discovery import SimulatedDiscovery, SimulatedMedium
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual

CLUSTER = cluster_hash_of(ClusterId("k" + "a" * 16))


def _key(number: int) -> bytes:
    return bytes([number]) * 32


def _id(number: int) -> NodeId:
    return node_id_of(_key(number))


def _link(number: int, net: str = "192.0.2") -> InterfaceAddress:
    return InterfaceAddress(interface="eth0", host=f"{net}.{number}", prefix=24)


def _announcement(number: int, base_port: int = 12416) -> Announcement:
    return Announcement(
        node_id=_id(number), public_key=_key(number), cluster_hash=CLUSTER, base_port=base_port
    )


def _node(medium: SimulatedMedium, number: int, net: str = "192.0.2") -> SimulatedDiscovery:
    discovery = medium.attach(_id(number))
    discovery.announce(_announcement(number))
    discovery.set_addresses([_link(number, net)])
    return discovery


def _ids(discovery: Discovery) -> set[NodeId]:
    return {one.node_id for one in discovery.sightings()}


def _run(
    scenario: Callable[[SimulatedMedium], Coroutine[Any, Any, None]], *, loss_ratio: float = 0.0
) -> None:
    for seed in range(3):
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        medium = SimulatedMedium(random.Random(seed), loss_ratio=loss_ratio)
        run_virtual(lambda medium=medium: scenario(medium), seed=seed)


def test_neighbours_find_one_another_and_strangers_on_other_links_do_not() -> None:
    async def scenario(medium: SimulatedMedium) -> None:
        nodes = [_node(medium, number) for number in (1, 2, 3)]
        away = _node(medium, 4, "198.51.100")
        await sleep(2.0)
        for number, node in enumerate(nodes, start=1):
            assert _ids(node) == {_id(other) for other in (1, 2, 3)} - {_id(number)}
        assert _ids(away) == set()
        assert nodes[0].sightings()[0].addresses[0].startswith("192.0.2.")
        assert (nodes[0].status().state, nodes[0].status().warning) == ("on", "")

    _run(scenario)


def test_a_latecomer_that_only_listens_is_answered_within_a_second() -> None:
    async def scenario(medium: SimulatedMedium) -> None:
        _node(medium, 1)
        await sleep(60.0)
        listener = medium.attach(_id(2))
        told: list[tuple[float, Sighting]] = []
        began_s = asyncio.get_running_loop().time()
        loop = asyncio.get_running_loop()
        listener.on_sighting(lambda sighting: told.append((loop.time() - began_s, sighting)))
        listener.set_addresses([_link(2)])
        await sleep(1.0)
        assert [sighting.public_key for _, sighting in told] == [_key(1)]
        assert told[0][0] < 0.5

    _run(scenario)


def test_loss_delays_and_does_not_prevent() -> None:
    async def scenario(medium: SimulatedMedium) -> None:
        nodes = [_node(medium, number) for number in (1, 2, 3)]
        await sleep(10.0)
        assert [len(_ids(node)) for node in nodes] == [2, 2, 2]

    _run(scenario, loss_ratio=0.3)


def test_what_changes_is_told() -> None:
    async def scenario(medium: SimulatedMedium) -> None:
        one, other = _node(medium, 1), _node(medium, 2)
        await sleep(2.0)
        one.announce(_announcement(1, base_port=9000))
        await sleep(2.0)
        assert other.sightings()[0].addresses == ("192.0.2.1:9000",)
        one.set_addresses([_link(7)])
        await sleep(2.0)
        assert other.sightings()[0].addresses == ("192.0.2.7:9000",)
        one.set_addresses([])
        assert (one.status().state, one.sightings()) == ("waiting", ())

    _run(scenario)


def test_who_says_goodbye_is_forgotten_and_who_dies_is_not() -> None:
    async def scenario(medium: SimulatedMedium) -> None:
        watcher, leaves, dies, falls_silent = (_node(medium, number) for number in (1, 2, 3, 4))
        await sleep(2.0)
        await leaves.close()
        await leaves.close()
        medium.detach(dies)
        falls_silent.announce(None)
        await sleep(10.0)
        assert _ids(watcher) == {_id(3)}

    _run(scenario)


def test_a_one_way_cut_makes_one_side_deaf() -> None:
    async def scenario(medium: SimulatedMedium) -> None:
        medium.cut(_id(1), _id(2))
        one, other = _node(medium, 1), _node(medium, 2)
        await sleep(10.0)
        # The one hears announcements of the other; its questions do not get there.
        assert (_ids(one), _ids(other)) == ({_id(2)}, set())
        medium.heal_all()
        one.announce(_announcement(1, base_port=9000))
        await sleep(2.0)
        assert _ids(other) == {_id(1)}

    _run(scenario)


def test_discovery_that_fails_says_why_and_comes_back() -> None:
    async def scenario(medium: SimulatedMedium) -> None:
        medium.break_down(_id(1), "permission denied")
        one, other = _node(medium, 1), _node(medium, 2)
        await sleep(10.0)
        assert (one.status().state, one.status().warning) == ("failed", "permission denied")
        assert (_ids(one), _ids(other)) == (set(), set())
        medium.mend(_id(1))
        await sleep(2.0)
        assert (_ids(one), _ids(other)) == ({_id(2)}, {_id(1)})
        assert one.status().state == "on"

    _run(scenario)


def test_a_node_that_is_not_disturbed_sends_nothing() -> None:
    async def scenario(medium: SimulatedMedium) -> None:
        nodes = [_node(medium, number) for number in range(1, 21)]
        await sleep(60.0)
        before = [node.status().n_sent for node in nodes]
        await sleep(3600.0)
        assert [node.status().n_sent for node in nodes] == before

    _run(scenario)
