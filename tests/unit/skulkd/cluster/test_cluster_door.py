import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from protocol.errors import ConfigError
from protocol.ids import node_id_of
from skulkd.cluster.addresses import ClusterAddress, InterfaceAddress, MachineAddresses
from skulkd.cluster.closed_transport import ClosedTransport
from skulkd.cluster.cluster_door import ClusterDoor, DoorParts, DoorSettings
from skulkd.cluster.discovery import Announcement, Discovery, Sighting
from skulkd.cluster.simulated import SimulatedNetwork
from skulkd.cluster.simulated_discovery import SimulatedMedium
from skulkd.runtime.tasks import Tasks, sleep
from skulkd.runtime.virtual_time import run_virtual

KEYS = [bytes([number]) * 32 for number in (1, 2)]
ME, OTHER = (node_id_of(key) for key in KEYS)
LAN = InterfaceAddress(interface="eth0", host="10.0.0.1", prefix=24)
WIFI = InterfaceAddress(interface="eth0", host="10.0.0.9", prefix=24)
ON_LAN = MachineAddresses(addresses=(LAN,), default_interface="eth0")
ON_WIFI = MachineAddresses(addresses=(WIFI,), default_interface="eth0")


@dataclass
class World:
    """One node's surroundings."""

    machine: MachineAddresses = ON_LAN
    told: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    seen: list[Sighting] = field(default_factory=list[Sighting])

    def __post_init__(self) -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        rng = random.Random(3)
        self.network = SimulatedNetwork(rng)
        self.medium = SimulatedMedium(rng)
        self.transport = ClosedTransport(ME)
        self.tasks = Tasks("test", on_death=lambda story, _: pytest.fail(story))

    def door(self, *, discovery: Callable[[], Discovery] | None = None) -> ClusterDoor:
        return ClusterDoor(
            self.transport,
            DoorSettings(address=ClusterAddress(host=None, base_port=12416)),
            DoorParts(
                load=lambda: None,
                make_transport=lambda: self.network.attach(ME),
                make_discovery=discovery,
                read_machine=lambda: self.machine,
            ),
            announce=lambda base_port: an_announcement(0, base_port),
            tasks=self.tasks,
            on_addresses=self.told.append,
            on_sighting=self.seen.append,
        )


def run(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        world = World()
        await scenario(world)
        await world.transport.close()
        await world.tasks.close(1.0)

    run_virtual(main, seed=1)


def test_a_door_that_was_never_opened_has_no_port_and_no_transport() -> None:
    async def scenario(world: World) -> None:
        door = world.door()
        assert door.base_port is None
        assert door.bound == ()
        assert not world.transport.is_open

    run(scenario)


def test_neighbours_are_those_on_a_link_that_the_node_listens_on() -> None:
    async def scenario(world: World) -> None:
        door = world.door()
        assert not door.is_neighbour("10.0.0.7"), "it listens nowhere yet"
        await door.open()
        assert door.is_neighbour("10.0.0.7")
        assert not door.is_neighbour("10.0.1.7")
        assert not door.is_neighbour("127.0.0.1")
        assert not door.is_neighbour("a-name")

    run(scenario)


def test_opening_listens_on_the_default_routes_interface_and_says_where() -> None:
    async def scenario(world: World) -> None:
        door = world.door()
        assert await door.open() == 12416
        assert door.bound == ("10.0.0.1",)
        assert world.told == [("10.0.0.1:12416",)]
        assert world.transport.is_open

    run(scenario)


def test_opening_twice_opens_once() -> None:
    async def scenario(world: World) -> None:
        door = world.door()
        assert await door.open() == await door.open()
        assert len(world.told) == 1

    run(scenario)


def test_an_address_that_changes_is_followed_and_told() -> None:
    async def scenario(world: World) -> None:
        door = world.door()
        await door.open()
        world.machine = ON_WIFI
        await sleep(20)
        assert door.bound == ("10.0.0.9",)
        assert world.told[-1] == ("10.0.0.9:12416",)

    run(scenario)


def test_neighbours_are_seen_and_the_node_is_announced_once_open() -> None:
    async def scenario(world: World) -> None:
        other = world.medium.attach(OTHER)
        heard: list[Sighting] = []
        other.on_sighting(heard.append)
        other.set_addresses((InterfaceAddress(interface="eth0", host="10.0.0.2", prefix=24),))
        other.announce(an_announcement(1))
        door = world.door(discovery=lambda: world.medium.attach(ME))
        await sleep(5)
        assert not heard
        await door.open()
        await sleep(5)
        assert [one.node_id for one in world.seen] == [OTHER]
        assert [one.node_id for one in heard] == [ME]
        await door.close()
        await other.close()

    run(scenario)


def test_a_port_that_is_taken_leaves_the_door_closed() -> None:
    async def scenario(world: World) -> None:
        door = world.door()
        busy = ConfigError("config.port_busy", "port 12416 is taken", remediation="another")

        async def refuse(*_: object) -> int:
            raise busy

        transport = world.network.attach(ME)
        transport.open = refuse  # type: ignore[method-assign]
        world.network.attach = lambda _: transport  # type: ignore[method-assign]
        with pytest.raises(ConfigError):
            await door.open()
        assert door.base_port is None
        assert not world.transport.is_open

    run(scenario)


def an_announcement(index: int, base_port: int = 12416) -> Announcement:
    key = KEYS[index]
    return Announcement(
        node_id=node_id_of(key), public_key=key, cluster_hash="a" * 16, base_port=base_port
    )
