"""What every transport promises. The simulated twin is the first of two."""

import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, get_args

import pytest

from protocol.envelope import MAX_PAYLOAD_BYTES, MAX_QUEUED_BYTES, Plane
from protocol.ids import NodeId, node_id_of
from skulkd.cluster.simulated import NetworkFaults, SimulatedNetwork
from skulkd.cluster.transport import Transport
from skulkd.runtime.tasks import sleep, timeout
from skulkd.runtime.virtual_time import run_virtual

PLANES: tuple[Plane, ...] = get_args(Plane)
REFUSING: tuple[Plane, ...] = ("control", "events", "data", "files")
REPLACING: tuple[Plane, ...] = ("election", "telemetry")
WITHIN_S = 10.0
IDS = sorted(node_id_of(bytes([number]) * 32) for number in range(3))


@dataclass
class Inbox:
    got: dict[tuple[NodeId, Plane], list[bytes]] = field(
        default_factory=dict[tuple[NodeId, Plane], list[bytes]]
    )

    def listen(self, transport: Transport) -> None:
        for plane in PLANES:
            transport.on_receive(plane, self._receiver(plane))

    def _receiver(self, plane: Plane) -> Callable[[NodeId, bytes], None]:
        return lambda sender, payload: self.got.setdefault((sender, plane), []).append(payload)


Scenario = Callable[[list[Transport], list[Inbox]], Coroutine[Any, Any, None]]
Runner = Callable[[Scenario], None]


def _simulated(scenario: Scenario) -> None:
    async def main() -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        network = SimulatedNetwork(random.Random(5), NetworkFaults(max_delay_s=0.05))
        transports: list[Transport] = [network.attach(node_id) for node_id in IDS]
        inboxes = [Inbox() for _ in IDS]
        for transport, inbox in zip(transports, inboxes, strict=True):
            inbox.listen(transport)
        network.introduce_all()
        await _until(lambda: all(len(transport.peers()) == 2 for transport in transports))
        await scenario(transports, inboxes)
        for transport in transports:
            await transport.close()

    for seed in range(3):
        run_virtual(main, seed=seed)


@pytest.fixture(params=[_simulated], ids=["simulated"])
def run(request: pytest.FixtureRequest) -> Runner:
    return request.param


async def _until(condition: Callable[[], bool]) -> None:
    async with timeout(WITHIN_S):
        while not condition():
            await sleep(0.01)


async def _settle() -> None:
    await sleep(1)


def test_everyone_sees_the_others(run: Runner) -> None:
    async def scenario(transports: list[Transport], inboxes: list[Inbox]) -> None:
        for transport, node_id in zip(transports, IDS, strict=True):
            assert transport.node_id == node_id
            assert transport.peers() == tuple(other for other in IDS if other != node_id)

    run(scenario)


def test_payloads_arrive_in_order_named_by_sender_and_apart_by_plane(run: Runner) -> None:
    async def scenario(transports: list[Transport], inboxes: list[Inbox]) -> None:
        for number in range(50):
            for plane in PLANES:
                assert transports[0].send(IDS[2], plane, bytes([number])) is None
                assert transports[1].send(IDS[2], plane, bytes([number, 1])) is None
        await _settle()
        for plane in PLANES:
            assert inboxes[2].got[IDS[0], plane] == [bytes([n]) for n in range(50)]
            assert inboxes[2].got[IDS[1], plane] == [bytes([n, 1]) for n in range(50)]
        assert inboxes[0].got == {}

    run(scenario)


def test_a_node_may_send_to_itself(run: Runner) -> None:
    async def scenario(transports: list[Transport], inboxes: list[Inbox]) -> None:
        assert transports[0].send(IDS[0], "control", b"me") is None
        assert inboxes[0].got == {}, "never inside the call"
        await _settle()
        assert inboxes[0].got == {(IDS[0], "control"): [b"me"]}

    run(scenario)


def test_an_unknown_peer_is_refused(run: Runner) -> None:
    async def scenario(transports: list[Transport], inboxes: list[Inbox]) -> None:
        assert transports[0].send(node_id_of(b"x" * 32), "control", b"") == "unknown_peer"

    run(scenario)


def test_a_payload_over_the_planes_limit_is_refused_and_one_at_it_arrives(run: Runner) -> None:
    async def scenario(transports: list[Transport], inboxes: list[Inbox]) -> None:
        for plane in PLANES:
            longest = bytes(MAX_PAYLOAD_BYTES[plane])
            assert transports[0].send(IDS[1], plane, longest + b"x") == "too_large"
            assert transports[0].send(IDS[1], plane, longest) is None
        await _settle()
        assert {plane for _, plane in inboxes[1].got} == set(PLANES)

    run(scenario)


@pytest.mark.parametrize("plane", REFUSING)
def test_a_full_plane_refuses_and_holds_up_no_other(run: Runner, plane: Plane) -> None:
    async def scenario(transports: list[Transport], inboxes: list[Inbox]) -> None:
        payload = bytes(MAX_PAYLOAD_BYTES[plane])
        n_taken = 0
        while (refusal := transports[0].send(IDS[1], plane, payload)) is None:
            n_taken += 1
            assert n_taken * len(payload) <= MAX_QUEUED_BYTES[plane]
        assert refusal == "queue_full"
        for other in PLANES:
            if other != plane:
                assert transports[0].send(IDS[1], other, b"free") is None
        assert transports[0].send(IDS[2], plane, payload) is None
        await _settle()
        assert len(inboxes[1].got[IDS[0], plane]) == n_taken
        assert transports[0].send(IDS[1], plane, payload) is None

    run(scenario)


@pytest.mark.parametrize("plane", REPLACING)
def test_a_full_plane_of_news_keeps_the_newest(run: Runner, plane: Plane) -> None:
    async def scenario(transports: list[Transport], inboxes: list[Inbox]) -> None:
        size = MAX_PAYLOAD_BYTES[plane]
        for number in range(50):
            assert transports[0].send(IDS[1], plane, bytes([number]) * size) is None
        await _settle()
        got = [payload[0] for payload in inboxes[1].got[IDS[0], plane]]
        assert got == sorted(got)
        assert got[-1] == 49

    run(scenario)


@pytest.mark.parametrize("plane", REPLACING)
def test_a_newer_payload_of_a_key_supersedes_the_queued_one(run: Runner, plane: Plane) -> None:
    async def scenario(transports: list[Transport], inboxes: list[Inbox]) -> None:
        for number in range(100):
            assert transports[0].send(IDS[1], plane, b"a%d" % number, key="a") is None
            assert transports[0].send(IDS[1], plane, b"b%d" % number, key="b") is None
        await _settle()
        got = inboxes[1].got[IDS[0], plane]
        assert [item for item in got if item.startswith(b"a")][-1] == b"a99"
        assert [item for item in got if item.startswith(b"b")][-1] == b"b99"
        assert len(got) < 200

    run(scenario)


def test_a_closed_transport_takes_and_gives_nothing(run: Runner) -> None:
    async def scenario(transports: list[Transport], inboxes: list[Inbox]) -> None:
        assert transports[0].send(IDS[1], "control", b"late") is None
        await transports[1].close()
        await transports[1].close()
        assert transports[1].send(IDS[0], "control", b"") == "closed"
        assert transports[1].peers() == ()
        await _settle()
        assert inboxes[1].got == {}

    run(scenario)
