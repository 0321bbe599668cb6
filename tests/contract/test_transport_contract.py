"""What every transport promises. The simulated twin is the first of two."""

import asyncio
import random
from collections import UserList
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, get_args

import pytest
import uvloop

from protocol.envelope import MAX_PAYLOAD_BYTES, MAX_QUEUED_BYTES, PLANE_PORT, Plane
from protocol.ids import NodeId, node_id_of
from skulkd.cluster.curve_keys import make_key_pair
from skulkd.cluster.lanes import INBOX_AHEAD, LANES, PLANE_LANE
from skulkd.cluster.simulated import NetworkFaults, SimulatedNetwork
from skulkd.cluster.transport import LinkState, Peer, Transport
from skulkd.runtime.tasks import sleep, timeout
from skulkd.runtime.virtual_time import run_virtual
from tests.support.real_transports import introduce, real_nodes, until_up

PLANES: tuple[Plane, ...] = get_args(Plane)
REFUSING: tuple[Plane, ...] = ("control", "events", "data", "files")
REPLACING: tuple[Plane, ...] = ("election", "telemetry")
WITHIN_S = 20.0
KERNEL_BYTES = 16 << 20
KEYS = [make_key_pair() for _ in range(3)]
IDS = sorted(node_id_of(keys.public_key) for keys in KEYS)


@dataclass
class Inbox:
    got: dict[tuple[NodeId, Plane], list[bytes]] = field(
        default_factory=dict[tuple[NodeId, Plane], list[bytes]]
    )

    def of(self, sender: NodeId, plane: Plane) -> list[bytes]:
        """What has come so far, and what will."""
        return self.got.setdefault((sender, plane), [])

    def count(self, sender: NodeId, plane: Plane) -> int:
        return len(self.got.get((sender, plane), ()))

    def listen(self, transport: Transport) -> None:
        for plane in PLANES:
            transport.on_receive(plane, self._receiver(plane))

    def _receiver(self, plane: Plane) -> Callable[[NodeId, bytes], None]:
        return lambda sender, payload: self.got.setdefault((sender, plane), []).append(payload)


class Nodes(UserList[Transport]):
    """The transports, and how they name each other."""

    def __init__(self, transports: Iterable[Transport], peers: Iterable[Peer]) -> None:
        super().__init__(transports)
        self._peers = {peer.node_id: peer for peer in peers}

    def name(self, number: int, *others: int) -> None:
        """Let one name exactly these."""
        self[number].set_peers({IDS[other]: self._peers[IDS[other]] for other in others})


Scenario = Callable[[Nodes, list[Inbox]], Coroutine[Any, Any, None]]
Runner = Callable[[Scenario], None]


def _simulated(scenario: Scenario) -> None:
    async def main() -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        network = SimulatedNetwork(random.Random(5), NetworkFaults(max_delay_s=0.05))
        transports = Nodes(
            [network.attach(node_id) for node_id in IDS], [network.peer(one) for one in IDS]
        )
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


N_AHEAD = {
    plane: LANES[PLANE_LANE[plane]].n_ahead
    + INBOX_AHEAD[PLANE_PORT[plane]]
    + KERNEL_BYTES // MAX_PAYLOAD_BYTES[plane]
    for plane in PLANES
}
"""What may be on its way beyond the queue: with ZeroMQ at either end, and in the kernel."""


def _zmq(scenario: Scenario) -> None:
    _zmq_on(asyncio.new_event_loop, scenario)


def _zmq_on_uvloop(scenario: Scenario) -> None:
    """As in a daemon."""
    _zmq_on(uvloop.new_event_loop, scenario)


def _zmq_on(loop_factory: Callable[[], asyncio.AbstractEventLoop], scenario: Scenario) -> None:
    async def main() -> None:
        async with real_nodes() as made:
            nodes = sorted((made.make(keys) for keys in KEYS), key=lambda node: node.node_id)
            inboxes = [Inbox() for _ in IDS]
            for node, inbox in zip(nodes, inboxes, strict=True):
                inbox.listen(node.transport)
                await node.open()
            introduce(*nodes)
            await until_up(*nodes)
            transports = Nodes([node.transport for node in nodes], [node.peer() for node in nodes])
            await scenario(transports, inboxes)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


@pytest.fixture(params=[_simulated, _zmq, _zmq_on_uvloop], ids=["simulated", "zmq", "uvloop"])
def run(request: pytest.FixtureRequest) -> Runner:
    return request.param


async def _until(condition: Callable[[], bool]) -> None:
    async with timeout(WITHIN_S):
        while not condition():
            await sleep(0.01)


async def _settle() -> None:
    await sleep(0.3)


def test_everyone_sees_the_others(run: Runner) -> None:
    async def scenario(transports: Nodes, inboxes: list[Inbox]) -> None:
        for transport, node_id in zip(transports, IDS, strict=True):
            assert transport.node_id == node_id
            assert transport.peers() == tuple(other for other in IDS if other != node_id)

    run(scenario)


def test_payloads_arrive_in_order_named_by_sender_and_apart_by_plane(run: Runner) -> None:
    async def scenario(transports: Nodes, inboxes: list[Inbox]) -> None:
        for number in range(50):
            for plane in PLANES:
                assert transports[0].send(IDS[2], plane, bytes([number])) is None
                assert transports[1].send(IDS[2], plane, bytes([number, 1])) is None
        await _until(
            lambda: all(
                inboxes[2].count(sender, plane) == 50 for sender in IDS[:2] for plane in PLANES
            )
        )
        for plane in PLANES:
            assert inboxes[2].got[IDS[0], plane] == [bytes([n]) for n in range(50)]
            assert inboxes[2].got[IDS[1], plane] == [bytes([n, 1]) for n in range(50)]
        assert inboxes[0].got == {}

    run(scenario)


def test_a_node_may_send_to_itself(run: Runner) -> None:
    async def scenario(transports: Nodes, inboxes: list[Inbox]) -> None:
        assert transports[0].send(IDS[0], "control", b"me") is None
        assert inboxes[0].got == {}, "never inside the call"
        await _until(lambda: bool(inboxes[0].got))
        assert inboxes[0].got == {(IDS[0], "control"): [b"me"]}

    run(scenario)


def test_an_unknown_peer_is_refused(run: Runner) -> None:
    async def scenario(transports: Nodes, inboxes: list[Inbox]) -> None:
        assert transports[0].send(node_id_of(b"x" * 32), "control", b"") == "unknown_peer"

    run(scenario)


def test_a_payload_over_the_planes_limit_is_refused_and_one_at_it_arrives(run: Runner) -> None:
    async def scenario(transports: Nodes, inboxes: list[Inbox]) -> None:
        for plane in PLANES:
            longest = bytes(MAX_PAYLOAD_BYTES[plane])
            assert transports[0].send(IDS[1], plane, longest + b"x") == "too_large"
            assert transports[0].send(IDS[1], plane, longest) is None
        await _until(lambda: {plane for _, plane in inboxes[1].got} == set(PLANES))

    run(scenario)


@pytest.mark.parametrize("plane", REFUSING)
def test_a_full_plane_refuses_and_holds_up_no_other(run: Runner, plane: Plane) -> None:
    n_ahead = N_AHEAD[plane] if run is not _simulated else 0

    async def scenario(transports: Nodes, inboxes: list[Inbox]) -> None:
        payload = bytes(MAX_PAYLOAD_BYTES[plane])
        n_taken = 0
        while (refusal := transports[0].send(IDS[1], plane, payload)) is None:
            n_taken += 1
            n_queued = n_taken - n_ahead
            assert n_queued * len(payload) <= MAX_QUEUED_BYTES[plane]
        assert refusal == "queue_full"
        for other in PLANES:
            if other != plane:
                assert transports[0].send(IDS[1], other, b"free") is None
        assert transports[0].send(IDS[2], plane, payload) is None
        await _until(lambda: inboxes[1].count(IDS[0], plane) == n_taken)
        assert transports[0].send(IDS[1], plane, payload) is None

    run(scenario)


@pytest.mark.parametrize("plane", REPLACING)
def test_a_full_plane_of_news_keeps_the_newest(run: Runner, plane: Plane) -> None:
    async def scenario(transports: Nodes, inboxes: list[Inbox]) -> None:
        size = MAX_PAYLOAD_BYTES[plane]
        for number in range(50):
            assert transports[0].send(IDS[1], plane, bytes([number]) * size) is None
        got = inboxes[1].of(IDS[0], plane)
        await _until(lambda: bool(got) and got[-1][0] == 49)
        assert got == sorted(got)

    run(scenario)


@pytest.mark.parametrize("plane", REPLACING)
def test_a_newer_payload_of_a_key_supersedes_the_queued_one(run: Runner, plane: Plane) -> None:
    async def scenario(transports: Nodes, inboxes: list[Inbox]) -> None:
        for number in range(100):
            assert transports[0].send(IDS[1], plane, b"a%d" % number, key="a") is None
            assert transports[0].send(IDS[1], plane, b"b%d" % number, key="b") is None
        got = inboxes[1].of(IDS[0], plane)
        await _until(lambda: b"a99" in got and b"b99" in got)
        for name in (b"a", b"b"):
            numbers = [int(item[1:]) for item in got if item.startswith(name)]
            assert numbers == sorted(numbers)
        if run is _simulated:  # on a real network the first ones may have left at once
            assert len(got) < 200

    run(scenario)


def test_a_closed_transport_takes_and_gives_nothing(run: Runner) -> None:
    async def scenario(transports: Nodes, inboxes: list[Inbox]) -> None:
        assert transports[0].send(IDS[1], "control", b"late") is None
        await transports[1].close()
        await transports[1].close()
        assert transports[1].send(IDS[0], "control", b"") == "closed"
        assert transports[1].peers() == ()
        await _settle()
        assert inboxes[1].got == {}

    run(scenario)


def _changes(transport: Transport) -> list[tuple[NodeId, LinkState]]:
    seen: list[tuple[NodeId, LinkState]] = []
    transport.on_link(lambda peer, state: seen.append((peer, state)))
    return seen


def test_a_link_is_up_and_one_to_a_node_that_is_not_named_is_connecting(run: Runner) -> None:
    async def scenario(transports: Nodes, inboxes: list[Inbox]) -> None:
        assert transports[0].link(IDS[1]) == transports[0].link(IDS[2]) == "up"
        assert transports[0].link(node_id_of(b"x" * 32)) == "connecting"

    run(scenario)


def test_a_node_that_ends_is_refused_and_the_others_are_told_once(run: Runner) -> None:
    async def scenario(transports: Nodes, inboxes: list[Inbox]) -> None:
        seen = [_changes(transports[number]) for number in (0, 2)]
        await transports[1].close()
        await _until(lambda: all((IDS[1], "refused") in one for one in seen))
        assert {peer for one in seen for peer, _ in one} == {IDS[1]}
        assert transports[0].link(IDS[1]) == "refused"
        assert transports[0].send(IDS[1], "control", b"") == "no_link"
        assert transports[0].peers() == (IDS[2],)

    run(scenario)


def test_a_peer_that_is_named_no_more_is_silent_and_the_others_notice_nothing(
    run: Runner,
) -> None:
    async def scenario(transports: Nodes, inboxes: list[Inbox]) -> None:
        seen = _changes(transports[0]), _changes(transports[2])
        assert transports[1].send(IDS[0], "control", b"under way") is None
        transports.name(0, 2)
        assert transports[0].send(IDS[1], "control", b"") == "unknown_peer"
        assert transports[0].peers() == (IDS[2],)
        await _until(lambda: transports[1].link(IDS[0]) == "connecting")
        assert transports[1].send(IDS[0], "control", b"") == "no_link"
        assert transports[2].send(IDS[0], "control", b"free") is None
        await _until(lambda: inboxes[0].count(IDS[2], "control") == 1)
        assert inboxes[0].count(IDS[1], "control") == 0
        assert seen == ([], [])
        transports.name(0, 1, 2)
        await _until(lambda: transports[0].link(IDS[1]) == transports[1].link(IDS[0]) == "up")

    run(scenario)


def test_a_producer_that_waits_for_room_loses_nothing(run: Runner) -> None:
    async def scenario(transports: Nodes, inboxes: list[Inbox]) -> None:
        payloads = [bytes([number]) * (1 << 20) for number in range(60)]
        async with timeout(WITHIN_S):
            for payload in payloads:
                while transports[0].send(IDS[1], "files", payload) is not None:
                    await transports[0].wait_room(IDS[1], "files")
        got = inboxes[1].of(IDS[0], "files")
        await _until(lambda: len(got) == len(payloads))
        assert got == payloads

    run(scenario)


def test_nobody_waits_for_room_with_a_peer_that_is_gone_or_unknown(run: Runner) -> None:
    async def scenario(transports: Nodes, inboxes: list[Inbox]) -> None:
        while transports[0].send(IDS[1], "files", bytes(1 << 20)) is None:
            pass
        transports.name(0, 2)
        async with timeout(1):
            await transports[0].wait_room(IDS[1], "files")
            await transports[0].wait_room(node_id_of(b"x" * 32), "files")
            await transports[0].wait_room(IDS[2], "files")

    run(scenario)
