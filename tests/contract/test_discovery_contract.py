"""What every discovery promises: mDNS on loopback, and its twin in virtual time."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from protocol.ids import ClusterId, NodeId, node_id_of
from skulkd.cluster.addresses import InterfaceAddress
from skulkd.cluster.discovery import Announcement, Discovery, Sighting, cluster_hash_of
from skulkd.cluster.mdns_discovery import MdnsDiscovery
from skulkd.cluster.simulated_discovery import SimulatedMedium
from skulkd.runtime.tasks import sleep, timeout
from skulkd.runtime.virtual_time import run_virtual
from tests.support.announcements import announcement_of

LOOPBACK = InterfaceAddress(interface="lo", host="127.0.0.1", prefix=8)
PATIENCE_S = 20.0

Make = Callable[[NodeId], Discovery]
Scenario = Callable[[Make], Coroutine[Any, Any, None]]
Runner = Callable[[Scenario], None]


def _simulated(scenario: Scenario) -> None:
    # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
    medium = SimulatedMedium(random.Random(3))
    run_virtual(lambda: scenario(medium.attach), seed=3)


def _mdns(scenario: Scenario) -> None:
    asyncio.run(scenario(MdnsDiscovery))


@pytest.fixture(params=[_simulated, _mdns], ids=["simulated", "mdns"])
def run(request: pytest.FixtureRequest) -> Runner:
    return request.param


class Heard:
    """What one discovery was told."""

    def __init__(self, discovery: Discovery) -> None:
        self.sightings: list[Sighting] = []
        discovery.on_sighting(self.sightings.append)

    async def wait(self, said: Announcement) -> Sighting:
        """Wait until this announcement was heard."""
        address = f"127.0.0.1:{said.base_port}"
        async with timeout(PATIENCE_S):
            while True:
                for sighting in self.sightings:
                    if sighting.node_id == said.node_id and sighting.addresses == (address,):
                        return sighting
                await sleep(0.02)


def test_a_listener_hears_who_announces_and_what_changes(run: Runner) -> None:
    async def scenario(make: Make) -> None:
        said, later = announcement_of(), announcement_of(base_port=9000)
        speaker, listener = make(said.node_id), make(announcement_of(2).node_id)
        heard = Heard(listener)
        own = Heard(speaker)
        listener.set_addresses([LOOPBACK])
        speaker.announce(said)
        speaker.set_addresses([LOOPBACK])
        sighting = await heard.wait(said)
        assert sighting.public_key == said.public_key
        assert (sighting.cluster_hash, sighting.wire) == (said.cluster_hash, said.wire)
        assert node_id_of(sighting.public_key) == sighting.node_id
        speaker.announce(later)
        assert (await heard.wait(later)).addresses == ("127.0.0.1:9000",)
        assert said.node_id in {one.node_id for one in listener.sightings()}
        assert {one.node_id for one in own.sightings} & {said.node_id} == set()
        assert (listener.status().state, listener.status().warning) == ("on", "")
        assert listener.status().hosts == ("127.0.0.1",)
        await speaker.close()
        await listener.close()

    run(scenario)


def test_a_latecomer_hears_who_has_long_been_there(run: Runner) -> None:
    async def scenario(make: Make) -> None:
        said = announcement_of(3)
        speaker = make(said.node_id)
        speaker.announce(said)
        speaker.set_addresses([LOOPBACK])
        await sleep(3.0)
        listener = make(announcement_of(4).node_id)
        heard = Heard(listener)
        began_s = asyncio.get_running_loop().time()
        listener.set_addresses([LOOPBACK])
        await heard.wait(said)
        assert asyncio.get_running_loop().time() - began_s < 5.0
        await speaker.close()
        await listener.close()

    run(scenario)


def test_without_an_address_it_waits_and_says_so(run: Runner) -> None:
    async def scenario(make: Make) -> None:
        discovery = make(announcement_of(5).node_id)
        discovery.announce(announcement_of(5))
        discovery.set_addresses([])
        await sleep(0.05)
        assert discovery.status().state == "waiting"
        assert "no network interface" in discovery.status().warning
        assert discovery.sightings() == ()
        assert discovery.status().n_sent == 0
        await discovery.close()

    run(scenario)


def test_a_cluster_is_known_by_its_hash(run: Runner) -> None:
    async def scenario(make: Make) -> None:
        ours, theirs = (cluster_hash_of(ClusterId("k" + letter * 16)) for letter in "ab")
        said = announcement_of(6, cluster_hash=theirs)
        speaker, listener = make(said.node_id), make(announcement_of(7).node_id)
        heard = Heard(listener)
        listener.set_addresses([LOOPBACK])
        speaker.announce(said)
        speaker.set_addresses([LOOPBACK])
        assert (await heard.wait(said)).cluster_hash == theirs != ours
        await speaker.close()
        await listener.close()

    run(scenario)


def test_closing_twice_is_closing_once(run: Runner) -> None:
    async def scenario(make: Make) -> None:
        discovery = make(announcement_of(8).node_id)
        discovery.announce(announcement_of(8))
        discovery.set_addresses([LOOPBACK])
        await discovery.close()
        await discovery.close()
        discovery.announce(None)
        discovery.set_addresses([])
        assert discovery.status().state != "failed"

    run(scenario)
