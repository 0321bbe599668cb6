"""Streams between ranks on two nodes, on a simulated network in virtual time."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from protocol.envelope import Plane
from protocol.errors import ClusterError
from protocol.files_wire import pack_files, unpack_files
from protocol.ids import InstanceId, NodeId, node_id_of
from protocol.tunnel_wire import (
    WINDOW_BYTES,
    OpenTunnel,
    TunnelData,
    TunnelReset,
    pack_tunnel_data,
)
from skulkd.cluster.file_client import FileClient
from skulkd.cluster.file_plane import FilePlane
from skulkd.cluster.file_server import FileServer
from skulkd.cluster.simulated import NetworkFaults, SimulatedNetwork
from skulkd.cluster.tunnels import MAX_STREAMS, Serve, Target, Tunnels, TunnelStream
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual
from store.offers import Offer, UnhashedOffer
from tests.support.builders import an_instance_id

NEAR, FAR, STRANGER = (node_id_of(bytes([number]) * 32) for number in range(3))
TARGET = Target(InstanceId(an_instance_id()), 2, 1)
CONTENT = bytes(range(256)) * 20_000


class NoOffers:
    def open(self, key: object) -> Offer | UnhashedOffer | None:
        del key
        return None


class Bench:
    """A node with rank 0, one with rank 1, and one that has none."""

    def __init__(self, faults: NetworkFaults) -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        rng = random.Random(7)
        self.network = SimulatedNetwork(rng, faults)
        self.tunnels: dict[NodeId, Tunnels] = {}
        self.transports = {node: self.network.attach(node) for node in (NEAR, FAR, STRANGER)}
        for node, transport in self.transports.items():
            self.tunnels[node] = Tunnels(transport, rng=rng)
            server = FileServer(transport, NoOffers(), on_death=lambda _story, _error: None)
            FilePlane(
                transport,
                server=server,
                client=FileClient(transport, rng=rng),
                tunnels=self.tunnels[node],
            )
        self.network.introduce_all()
        self.network.watcher = self._watch
        self.n_sent: dict[NodeId, int] = {}
        self.served: list[TunnelStream] = []
        self.tunnels[FAR].serve(self._admit)

    def _watch(self, sender: NodeId, receiver: NodeId, plane: Plane, payload: bytes) -> None:
        del receiver
        if plane == "files":
            self.n_sent[sender] = self.n_sent.get(sender, 0) + len(payload)

    def _admit(self, peer: NodeId, target: Target) -> Serve | None:
        return self.served.append if (peer, target) == (NEAR, TARGET) else None

    async def pair(self) -> tuple[TunnelStream, TunnelStream]:
        """Have the two ends of one stream."""
        near = self.tunnels[NEAR].open(FAR, TARGET)
        await near.write(b"hello")
        await sleep(1)
        far = self.served[-1]
        assert bytes(await far.read()) == b"hello"
        return near, far


def play(
    story: Callable[[Bench], Coroutine[Any, Any, None]], faults: NetworkFaults | None = None
) -> None:
    async def main() -> None:
        bench = Bench(faults or NetworkFaults())
        await sleep(1)
        await story(bench)
        for tunnels in bench.tunnels.values():
            tunnels.close()
            assert len(tunnels) == 0

    run_virtual(main, seed=1, limit_s=600.0)


async def read_all(stream: TunnelStream) -> bytes:
    pieces: list[bytes] = []
    while piece := await stream.read():
        pieces.append(bytes(piece))
    return b"".join(pieces)


def start(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(coroutine)


async def is_broken(stream: TunnelStream, why: str) -> None:
    with pytest.raises(ClusterError, match=why) as broke:
        await stream.read()
    assert broke.value.code == "cluster.link_lost"


def test_bytes_go_both_ways_at_a_time_and_the_stream_is_gone_when_both_have_ended() -> None:
    async def story(bench: Bench) -> None:
        near, far = await bench.pair()

        async def say(stream: TunnelStream, content: bytes) -> None:
            await stream.write(content)
            stream.end()

        saying = [start(say(near, CONTENT)), start(say(far, CONTENT[::-1]))]
        there, back = await asyncio.gather(read_all(far), read_all(near))
        assert (there, back) == (CONTENT, CONTENT[::-1])
        assert all(task.done() for task in saying)
        await sleep(5)
        assert [len(tunnels) for tunnels in bench.tunnels.values()] == [0, 0, 0]

    play(story, NetworkFaults(min_delay_s=0.001, max_delay_s=0.02))


def test_a_direction_that_has_ended_leaves_the_other_open() -> None:
    async def story(bench: Bench) -> None:
        near, far = await bench.pair()
        near.end()
        assert await read_all(far) == b""
        await sleep(10)
        await far.write(b"late")
        far.end()
        assert await read_all(near) == b"late"

    play(story)


def test_an_engine_that_takes_nothing_stops_its_sender_at_one_window() -> None:
    async def story(bench: Bench) -> None:
        near, far = await bench.pair()
        writing = start(near.write(CONTENT))
        await sleep(30)
        assert not writing.done()
        n_sent = bench.n_sent[NEAR]
        assert WINDOW_BYTES <= n_sent < WINDOW_BYTES + (64 << 10)
        reading = asyncio.get_running_loop().create_task(read_all(far))
        await writing
        near.end()
        assert await reading == CONTENT

    play(story)


@pytest.mark.parametrize("end", [NEAR, FAR])
def test_a_reset_ends_reading_and_writing_on_the_other_side(end: NodeId) -> None:
    async def story(bench: Bench) -> None:
        near, far = await bench.pair()
        ending, other = (near, far) if end == NEAR else (far, near)
        reading = start(is_broken(other, "the engine there is gone"))
        await sleep(1)
        ending.reset()
        await reading
        with pytest.raises(ClusterError):
            await other.write(b"more")
        assert [len(tunnels) for tunnels in bench.tunnels.values()] == [0, 0, 0]

    play(story)


def test_a_peer_that_is_lost_breaks_its_streams_on_both_sides() -> None:
    async def story(bench: Bench) -> None:
        near, far = await bench.pair()
        bench.network.cut(NEAR, FAR)
        await is_broken(near, "the link to it is silent")
        await is_broken(far, "the link to it is silent")
        with pytest.raises(ClusterError):
            bench.tunnels[NEAR].open(FAR, TARGET)

    play(story)


def test_a_node_without_a_rank_of_the_attempt_reaches_nothing() -> None:
    async def story(bench: Bench) -> None:
        for node, target in (
            (STRANGER, TARGET),
            (NEAR, TARGET._replace(attempt=1)),
            (NEAR, TARGET._replace(rank=0)),
        ):
            stream = bench.tunnels[node].open(FAR, target)
            await is_broken(stream, "it runs no such rank for this node")
        assert bench.served == []

    play(story)


def test_no_peer_opens_more_streams_than_are_kept() -> None:
    async def story(bench: Bench) -> None:
        streams = [bench.tunnels[NEAR].open(FAR, TARGET) for _ in range(MAX_STREAMS + 1)]
        await is_broken(streams[-1], "too many streams")
        assert len(bench.served) == MAX_STREAMS

    play(story)


@pytest.mark.parametrize("seed", range(6))
def test_a_lossy_network_gives_the_right_bytes_or_an_error_never_a_gap(seed: int) -> None:
    async def story(bench: Bench) -> None:
        bench.network.faults = NetworkFaults(
            min_delay_s=0.001,
            max_delay_s=0.05,
            loss_ratio=(0.0, 0.01, 0.05)[seed % 3],
            duplicate_ratio=0.2,
        )
        for _ in range(4):
            near = bench.tunnels[NEAR].open(FAR, TARGET)
            n_before = len(bench.served)

            async def say(near: TunnelStream = near) -> None:
                try:
                    await near.write(CONTENT[:1_500_000])
                    near.end()
                except ClusterError:
                    return

            saying = start(say())
            await sleep(1)
            if len(bench.served) > n_before:
                try:
                    assert await read_all(bench.served[-1]) == CONTENT[:1_500_000]
                except ClusterError:
                    assert seed % 3
                bench.served[-1].end()
            async with asyncio.timeout(60):
                await saying
            near.reset()
            await sleep(20)

    play(story)


def test_a_last_piece_that_is_lost_is_noticed_although_nothing_follows() -> None:
    async def story(bench: Bench) -> None:
        near, far = await bench.pair()
        bench.network.faults = NetworkFaults(loss_ratio=1.0)
        await near.write(b"lost")
        bench.network.faults = NetworkFaults()
        await is_broken(far, "bytes were lost")
        await is_broken(near, "bytes were lost")

    play(story)


def test_a_peer_that_sends_beyond_the_window_is_cut_off() -> None:
    async def story(bench: Bench) -> None:
        bench.tunnels[NEAR].close()
        transport = bench.transports[NEAR]
        transport.send(FAR, "files", pack_files(OpenTunnel(5, *TARGET)))
        piece = bytes(64 << 10)
        for number in range(WINDOW_BYTES // len(piece) + 1):
            offset = number * len(piece)
            frame = pack_tunnel_data(5, by_opener=True, offset=offset, content=piece)
            transport.send(FAR, "files", frame)
        await sleep(1)
        await is_broken(bench.served[0], "bytes were lost")

    play(story)


def test_bytes_of_a_stream_that_is_not_there_are_answered_with_its_end() -> None:
    async def story(bench: Bench) -> None:
        got: list[object] = []
        bench.transports[NEAR].on_receive(
            "files", lambda _, packed: got.append(unpack_files(packed))
        )
        frame = pack_tunnel_data(5, by_opener=True, offset=0, content=b"x")
        bench.transports[NEAR].send(FAR, "files", frame)
        await sleep(1)
        assert got == [TunnelReset(5, by_opener=False, reason="unknown")]
        assert isinstance(unpack_files(frame), TunnelData)

    play(story)
