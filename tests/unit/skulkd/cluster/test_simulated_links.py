import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from protocol.envelope import WIRE_VERSION
from protocol.ids import NodeId, node_id_of
from skulkd.cluster.simulated import SimulatedNetwork, SimulatedTransport
from skulkd.cluster.transport import LinkState, Peer
from skulkd.runtime.tasks import sleep, timeout
from skulkd.runtime.virtual_time import run_virtual

KEYS = [bytes([number]) * 32 for number in range(3)]
A, B, C = (node_id_of(key) for key in KEYS)

Seen = list[tuple[float, NodeId, LinkState]]


class _Net:
    """Three nodes that name each other, and what the first has seen of its links."""

    def __init__(self, seed: int = 0) -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        self.network = SimulatedNetwork(random.Random(seed))
        self.nodes = {node_id_of(key): self.attach(key) for key in KEYS}
        self.seen: Seen = []
        self.nodes[A].on_link(lambda peer, state: self.seen.append((_now(), peer, state)))

    def attach(self, key: bytes, wire: int = WIRE_VERSION) -> SimulatedTransport:
        return self.network.attach(node_id_of(key), public_key=key, wire=wire)

    async def open_links(self) -> None:
        self.network.introduce_all()
        await sleep(1)
        self.seen.clear()

    def states_of(self, peer: NodeId) -> list[LinkState]:
        return [state for _, one, state in self.seen if one == peer]


def _now() -> float:
    return asyncio.get_running_loop().time()


def _run(scenario: Callable[[_Net], Coroutine[Any, Any, None]], seed: int = 0) -> None:
    async def main() -> None:
        net = _Net(seed)
        await scenario(net)

    run_virtual(main, seed=seed)


@pytest.mark.parametrize("seed", range(5))
def test_a_process_that_ends_is_refused_at_once_and_back_when_it_runs_again(seed: int) -> None:
    async def scenario(net: _Net) -> None:
        await net.open_links()
        began_s = _now()
        net.network.detach(B)
        assert net.nodes[A].link(B) == "up"
        await sleep(3)
        assert net.states_of(B) == ["refused"]
        assert net.seen[0][0] - began_s < 0.06
        assert net.nodes[A].send(B, "control", b"") == "no_link"
        assert net.nodes[A].peers() == (C,)
        net.nodes[B] = net.attach(KEYS[1])
        net.network.introduce_all()
        await sleep(2)
        assert net.states_of(B) == ["refused", "up"]
        assert net.states_of(C) == []

    _run(scenario, seed)


def test_a_restart_that_nobody_could_see_is_seen_all_the_same() -> None:
    async def scenario(net: _Net) -> None:
        await net.open_links()
        net.attach(KEYS[1])
        net.network.introduce_all()
        await sleep(2)
        assert net.states_of(B) == ["refused", "up"]

    _run(scenario)


@pytest.mark.parametrize("direction", [(A, B), (B, A)])
def test_a_cut_in_either_direction_is_silence_to_both_after_five_seconds(
    direction: tuple[NodeId, NodeId],
) -> None:
    async def scenario(net: _Net) -> None:
        await net.open_links()
        net.network.cut(*direction)
        await sleep(4.9)
        assert net.nodes[A].link(B) == net.nodes[B].link(A) == "up"
        await sleep(1.2)
        assert net.nodes[A].link(B) == net.nodes[B].link(A) == "silent"
        net.network.heal(*direction)
        await sleep(1.1)
        assert net.nodes[A].link(B) == net.nodes[B].link(A) == "up"
        assert net.states_of(C) == []

    _run(scenario)


def test_a_cut_shorter_than_the_silence_breaks_nothing() -> None:
    async def scenario(net: _Net) -> None:
        await net.open_links()
        net.network.partition([A], [B, C])
        await sleep(4)
        net.network.heal_all()
        await sleep(10)
        assert net.seen == []

    _run(scenario)


def test_a_process_that_ends_behind_a_cut_is_silent_and_refused_once_healed() -> None:
    async def scenario(net: _Net) -> None:
        await net.open_links()
        net.network.partition([A], [B, C])
        net.network.detach(B)
        await sleep(7)
        assert net.states_of(B) == ["silent"]
        net.network.heal_all()
        await sleep(1)
        assert net.states_of(B) == ["silent", "refused"]

    _run(scenario)


def test_what_was_sent_before_a_break_never_arrives() -> None:
    async def scenario(net: _Net) -> None:
        await net.open_links()
        got: list[bytes] = []
        net.nodes[B].on_receive("control", lambda _, payload: got.append(payload))
        net.network.faults = type(net.network.faults)(min_delay_s=9, max_delay_s=9)
        assert net.nodes[A].send(B, "control", b"old") is None
        net.network.cut(A, B)
        await sleep(6.5)
        net.network.heal(A, B)
        await sleep(9)
        assert net.nodes[A].link(B) == "up"
        assert got == []

    _run(scenario)


def test_one_that_never_listened_and_one_without_an_address_are_connecting() -> None:
    async def scenario(net: _Net) -> None:
        nobody = node_id_of(b"x" * 32)
        a, b = net.nodes[A], net.nodes[B]
        a.set_peers(
            {
                nobody: Peer(node_id=nobody, public_key=b"x" * 32, addresses=("10.9.9.9:12416",)),
                B: Peer(node_id=B, public_key=KEYS[1]),
            }
        )
        b.set_peers({A: Peer(node_id=A, public_key=KEYS[0])})
        await sleep(10)
        assert a.link(nobody) == a.link(B) == "connecting"
        b.set_peers({A: net.network.peer(A)})
        await sleep(1)
        assert a.link(B) == "up", "it is answered once it has dialled us"

    _run(scenario)


def test_another_wire_number_is_incompatible_and_gets_nothing() -> None:
    async def scenario(net: _Net) -> None:
        net.attach(KEYS[1], wire=99)
        await net.open_links()
        assert net.nodes[A].link(B) == "incompatible"
        assert net.nodes[A].send(B, "election", b"") == "no_link"

    _run(scenario)


def test_closed_ports_are_dialled_by_nobody_and_dial_nobody() -> None:
    async def scenario(net: _Net) -> None:
        await net.open_links()
        b = net.nodes[B]
        await b.close_ports()
        assert b.base_port is None
        await sleep(2)
        assert net.nodes[A].link(B) == "refused"
        assert b.link(A) == "connecting"
        assert await b.open([net.network.host_of(B)], 0) == b.base_port
        net.network.introduce_all()
        await sleep(2)
        assert net.nodes[A].link(B) == b.link(A) == "up"

    _run(scenario)


def test_room_is_waited_for_and_a_peer_that_goes_frees_who_waits() -> None:
    async def scenario(net: _Net) -> None:
        await net.open_links()
        net.network.faults = type(net.network.faults)(min_delay_s=2, max_delay_s=2)
        a = net.nodes[A]

        async def fill() -> None:
            while a.send(B, "files", bytes(1 << 20)) is None:
                pass

        await fill()
        began_s = _now()
        async with timeout(5):
            await a.wait_room(B, "files")
        assert _now() - began_s > 1.9
        assert a.send(B, "files", bytes(1 << 20)) is None
        await fill()
        net.network.detach(B)
        async with timeout(0.1):
            await a.wait_room(B, "files")

    _run(scenario)


def test_a_run_repeats_with_its_seed() -> None:
    def history(seed: int) -> Seen:
        kept: Seen = []

        async def scenario(net: _Net) -> None:
            net.network.introduce_all()
            for _ in range(3):
                await sleep(1)
                net.network.partition([A], [B, C])
                await sleep(7)
                net.network.heal_all()
            kept.extend(net.seen)

        _run(scenario, seed)
        return kept

    assert history(3) == history(3)
    assert history(3) != history(4)
