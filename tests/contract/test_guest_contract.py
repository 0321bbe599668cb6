"""What every door for guests promises, and every guest that dials one."""

import asyncio
import random
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
import uvloop

from protocol.errors import ClusterError
from protocol.ids import node_id_of
from skulkd.cluster.curve_keys import make_key_pair
from skulkd.cluster.guests import GuestDialler, GuestDoor, GuestReply
from skulkd.cluster.simulated import SimulatedNetwork
from skulkd.cluster.zmq_guest_dialler import ZmqGuestDialler
from skulkd.runtime.identity import KeyPair
from skulkd.runtime.virtual_time import run_virtual
from tests.support.real_transports import real_nodes

HOST_KEYS, OTHER_KEYS, GUEST, EXPIRED = (make_key_pair() for _ in range(4))


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """A node with a door, and a way to it."""

    door: GuestDoor
    address: str
    nowhere: str
    """Where nobody listens."""
    dialler: GuestDialler

    async def ask(
        self,
        payload: bytes = b"hello",
        *,
        guest: KeyPair = GUEST,
        server: KeyPair = HOST_KEYS,
        address: str | None = None,
        timeout_s: float = 5.0,
    ) -> bytes:
        return await self.dialler.ask(
            address or self.address,
            server_key=server.public_key,
            guest=guest,
            payload=payload,
            timeout_s=timeout_s,
        )

    async def stage_of(
        self,
        *,
        guest: KeyPair = GUEST,
        server: KeyPair = HOST_KEYS,
        address: str | None = None,
        timeout_s: float = 5.0,
    ) -> object:
        with pytest.raises(ClusterError) as caught:
            await self.ask(guest=guest, server=server, address=address, timeout_s=timeout_s)
        assert caught.value.code == "cluster.join_failed"
        assert caught.value.remediation
        return caught.value.details["stage"]


Scenario = Callable[[House], Coroutine[Any, Any, None]]
Runner = Callable[[Scenario], None]


def _simulated(scenario: Scenario) -> None:
    async def main() -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        network = SimulatedNetwork(random.Random(5))
        host = network.attach(node_id_of(HOST_KEYS.public_key), public_key=HOST_KEYS.public_key)
        guest_id = node_id_of(OTHER_KEYS.public_key)
        network.attach(guest_id, is_open=False)
        await scenario(
            House(
                door=host,
                address=network.peer(host.node_id).addresses[0],
                nowhere="10.99.0.1:12416",
                dialler=network.guest_dialler(guest_id),
            )
        )
        await host.close()

    run_virtual(main, seed=1)


def _zmq(scenario: Scenario) -> None:
    _zmq_on(asyncio.new_event_loop, scenario)


def _zmq_on_uvloop(scenario: Scenario) -> None:
    """As in a daemon."""
    _zmq_on(uvloop.new_event_loop, scenario)


def _zmq_on(loop_factory: Callable[[], asyncio.AbstractEventLoop], scenario: Scenario) -> None:
    async def main() -> None:
        async with real_nodes() as made:
            host = made.make(HOST_KEYS)
            await host.open()
            with socket.socket() as closed:
                closed.bind(("127.0.0.1", 0))
                await scenario(
                    House(
                        door=host.transport,
                        address=host.address(),
                        nowhere=f"127.0.0.1:{closed.getsockname()[1]}",
                        dialler=ZmqGuestDialler(),
                    )
                )

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


@pytest.fixture(params=[_simulated, _zmq, _zmq_on_uvloop], ids=["simulated", "zmq", "uvloop"])
def run(request: pytest.FixtureRequest) -> Runner:
    return request.param


def _echo(name: str, address: str, payload: bytes, reply: GuestReply) -> None:
    assert address
    reply(name.encode() + b" " + payload)


def test_a_guest_is_known_by_its_keys_name_and_is_answered(run: Runner) -> None:
    async def scenario(house: House) -> None:
        house.door.on_guest(_echo)
        house.door.set_guest_keys({GUEST.public_key: "i-1"})
        assert await house.ask(b"one") == b"i-1 one"
        assert await house.ask(b"two") == b"i-1 two"
        assert house.door.strangers() == ()

    run(scenario)


def test_the_longest_payload_goes_both_ways(run: Runner) -> None:
    async def scenario(house: House) -> None:
        house.door.on_guest(lambda _name, _address, payload, reply: reply(payload))
        house.door.set_guest_keys({GUEST.public_key: "i-1"})
        longest = bytes(64 << 10)
        assert await house.ask(longest) == longest

    run(scenario)


def test_a_key_that_is_not_or_no_longer_named_is_refused_and_listed(run: Runner) -> None:
    async def scenario(house: House) -> None:
        house.door.on_guest(_echo)
        house.door.set_guest_keys({EXPIRED.public_key: "old"})
        assert await house.stage_of() == "key_refused"
        house.door.set_guest_keys({GUEST.public_key: "i-1"})
        assert await house.stage_of(guest=EXPIRED) == "key_refused"
        assert await house.ask() == b"i-1 hello"
        strangers = house.door.strangers()
        assert [one.public_key for one in strangers] == [EXPIRED.public_key, GUEST.public_key]
        for one in strangers:
            assert one.n_tries >= 1
            assert one.address
            assert one.reason
            assert one.first_s <= one.last_s

    run(scenario)


def test_a_guest_speaks_to_the_expected_node_or_to_nobody(run: Runner) -> None:
    async def scenario(house: House) -> None:
        house.door.on_guest(_echo)
        house.door.set_guest_keys({GUEST.public_key: "i-1"})
        assert await house.stage_of(server=OTHER_KEYS, timeout_s=1.5) == "not_the_server"

    run(scenario)


def test_where_nobody_listens_is_said(run: Runner) -> None:
    async def scenario(house: House) -> None:
        assert await house.stage_of(address=house.nowhere) == "nobody_listens"

    run(scenario)


def test_a_door_that_does_not_answer_is_said_too(run: Runner) -> None:
    async def scenario(house: House) -> None:
        house.door.on_guest(lambda _name, _address, _payload, _reply: None)
        house.door.set_guest_keys({GUEST.public_key: "i-1"})
        assert await house.stage_of(timeout_s=0.5) == "no_answer"

    run(scenario)
