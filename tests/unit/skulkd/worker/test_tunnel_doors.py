"""Ranks that reach each other over ports of their own machines, on real sockets."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from protocol.ids import NodeId
from protocol.placements import Plan
from skulkd.cluster.file_client import FileClient
from skulkd.cluster.file_plane import FilePlane
from skulkd.cluster.file_server import FileServer
from skulkd.cluster.simulated import SimulatedNetwork
from skulkd.cluster.tunnels import Serve, Target, Tunnels
from skulkd.core.reconcile import RunnerKey
from skulkd.runtime.tasks import Tasks
from skulkd.worker.tunnel_doors import FIRST_PORT, HOST, LAST_PORT, RankWays
from store.offers import Offer, UnhashedOffer
from tests.support.builders import a_node_id, a_plan, an_instance_id

NEAR, FAR = a_node_id(1), a_node_id(2)
OWN_GROUP = 4711
WAIT_S = 10.0


class NoOffers:
    def open(self, key: object) -> Offer | UnhashedOffer | None:
        del key
        return None


def a_plan_of_two() -> Plan:
    one = a_plan()
    (first,) = one.shards
    second = first.model_copy(update={"rank": 1, "node_id": FAR})
    return one.model_copy(update={"shape": "rpc", "shards": (first, second)})


class Pair:
    """A driver's and a donor's ways, without any engine."""

    def __init__(self, tasks: Tasks, network: SimulatedNetwork) -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  ports
        rng = random.Random()
        self.lost: list[tuple[int, str]] = []
        self.is_own = True
        self.network = network
        self.is_linked = lambda: network.link(NEAR, FAR) == network.link(FAR, NEAR) == "up"
        self.tunnels: dict[NodeId, Tunnels] = {}
        ways: list[RankWays] = []
        for rank, node_id in enumerate((NEAR, FAR)):
            transport = network.attach(node_id)
            tunnels = self.tunnels[node_id] = Tunnels(transport, rng=rng)
            server = FileServer(transport, NoOffers(), on_death=lambda _story, _error: None)
            client = FileClient(transport, rng=rng)
            FilePlane(transport, server=server, client=client, tunnels=tunnels)
            ways.append(
                RankWays(
                    tunnels,
                    tasks,
                    RunnerKey(an_instance_id(), rank, 1),
                    a_plan_of_two(),
                    rng=rng,
                    on_lost=lambda rank, why: self.lost.append((rank, why)),
                    owns_connection=lambda group, _port: self.is_own and group == OWN_GROUP,
                )
            )
        self.near, self.far = ways
        network.introduce_all()

    def admit(self, peer: NodeId, _target: Target) -> Serve | None:
        return self.far.serve if self.far.is_reached_by(peer) else None


@asynccontextmanager
async def a_pair() -> AsyncGenerator[tuple[Pair, int, int]]:
    """Give ways that are open, the port behind which the donor is reached, and the donor's own."""
    deaths: list[str] = []
    tasks = Tasks("test", on_death=lambda story, _error: deaths.append(story))
    # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
    pair = Pair(tasks, SimulatedNetwork(random.Random(1)))
    while not pair.is_linked():
        await asyncio.sleep(0.01)
    pair.tunnels[FAR].serve(pair.admit)
    (_, behind), (_, own) = await pair.near.open((0, 1)), await pair.far.open(())
    for ways in (pair.near, pair.far):
        ways.set_process(OWN_GROUP)
    try:
        yield pair, behind, own
    finally:
        pair.near.close()
        pair.far.close()
        for tunnels in pair.tunnels.values():
            tunnels.close()
        assert await tasks.close(WAIT_S) == ()
        for _ in range(10):  # what has been closed goes in the next turns of the loop
            await asyncio.sleep(0)
        assert deaths == []


def play(story: Callable[[Pair, int, int], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with a_pair() as (pair, behind, own), asyncio.timeout(WAIT_S):
            await story(pair, behind, own)

    asyncio.run(main())


@asynccontextmanager
async def an_echo(port: int) -> AsyncGenerator[asyncio.Server]:
    """Have an engine that says what it hears, in capitals, and ends when its client does."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while said := await reader.read(1 << 16):
            if said == b"die":
                break
            writer.write(said.upper())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, HOST, port)
    try:
        yield server
    finally:
        server.close()


def test_what_an_engine_says_to_a_port_reaches_the_other_rank_and_back() -> None:
    async def story(pair: Pair, behind: int, own: int) -> None:
        assert FIRST_PORT <= behind <= LAST_PORT
        async with an_echo(own):
            reader, writer = await asyncio.open_connection(HOST, behind)
            said = b"tensor" * 100_000
            writer.write(said)
            assert await reader.readexactly(len(said)) == said.upper()
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
            assert pair.lost == []

    play(story)


def test_a_process_that_is_not_the_engine_reaches_nothing() -> None:
    async def story(pair: Pair, behind: int, own: int) -> None:
        pair.is_own = False
        async with an_echo(own):
            reader, writer = await asyncio.open_connection(HOST, behind)
            writer.write(b"let me in")
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        assert len(pair.tunnels[NEAR]) == len(pair.tunnels[FAR]) == 0
        assert pair.lost == []

    play(story)


def test_a_rank_that_closes_first_is_lost() -> None:
    async def story(pair: Pair, behind: int, own: int) -> None:
        async with an_echo(own):
            reader, writer = await asyncio.open_connection(HOST, behind)
            writer.write(b"die")
            assert await reader.read() == b""
            assert pair.lost == [(1, "its engine has closed the connection")]
            writer.close()

    play(story)


def test_a_rank_that_is_not_there_is_lost() -> None:
    async def story(pair: Pair, behind: int, _own: int) -> None:
        _, writer = await asyncio.open_connection(HOST, behind)
        while not pair.lost:
            await asyncio.sleep(0.01)
        assert pair.lost == [(1, "the engine there is gone")]
        writer.close()

    play(story)


def test_a_node_that_is_lost_is_told_once_however_many_connections_there_are() -> None:
    async def story(pair: Pair, behind: int, own: int) -> None:
        async with an_echo(own):
            opened = [await asyncio.open_connection(HOST, behind) for _ in range(3)]
            for reader, writer in opened:
                writer.write(b"x")
                assert await reader.readexactly(1) == b"X"
            pair.network.cut(NEAR, FAR)
            while not pair.lost:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            assert [rank for rank, _ in pair.lost] == [1]
            for _, writer in opened:
                writer.close()

    play(story)


def test_closed_ways_take_no_connection() -> None:
    async def story(pair: Pair, behind: int, own: int) -> None:
        async with an_echo(own):
            reader, writer = await asyncio.open_connection(HOST, behind)
            writer.write(b"x")
            assert await reader.readexactly(1) == b"X"
            pair.near.close()
            await asyncio.sleep(0.05)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(HOST, behind)
            assert pair.lost == []
            writer.close()

    play(story)
