"""Real transports on loopback, for tests; each is closed when its test ends, however it ends."""

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from protocol.envelope import WIRE_VERSION
from protocol.ids import ClusterId, NodeId, cluster_id_of
from skulkd.cluster.addresses import join_address
from skulkd.cluster.curve_keys import make_key_pair
from skulkd.cluster.transport import Peer
from skulkd.cluster.zmq_transport import ZmqTransport
from skulkd.runtime.clock import SystemClock
from skulkd.runtime.identity import KeyPair
from skulkd.runtime.tasks import sleep, timeout

CLUSTER = cluster_id_of(b"a cluster of tests")
HOST = "127.0.0.1"


class RealNode:
    """A transport, and how others name it."""

    def __init__(
        self, keys: KeyPair, *, boot_id: str, build: str, cluster_id: ClusterId, wire: int
    ) -> None:
        self.keys = keys
        self.cluster_id = cluster_id
        self.deaths: list[str] = []
        self.transport = ZmqTransport(
            keys,
            boot_id=boot_id,
            build=build,
            wire=wire,
            cluster_id=lambda: self.cluster_id,
            clock=SystemClock(),
            # ruff: ignore[suspicious-non-cryptographic-random-usage]  spreads ports and pauses
            rng=random.Random(),
            on_death=lambda story, _: self.deaths.append(story),
        )

    @property
    def node_id(self) -> NodeId:
        return self.transport.node_id

    async def open(self, host: str = HOST, base_port: int = 0) -> None:
        await self.transport.open([host], base_port)

    def address(self, host: str = HOST) -> str:
        assert self.transport.base_port is not None
        return join_address(host, self.transport.base_port)

    def peer(self, *addresses: str) -> Peer:
        return Peer(
            node_id=self.node_id,
            public_key=self.keys.public_key,
            addresses=addresses or (self.address(),),
        )

    def name(self, *others: "RealNode") -> None:
        self.transport.set_peers({other.node_id: other.peer() for other in others})


class RealNodes:
    """Those of one test."""

    def __init__(self) -> None:
        self._nodes: list[RealNode] = []

    def make(
        self,
        keys: KeyPair | None = None,
        *,
        boot_id: str = "b1",
        build: str = "test",
        cluster_id: ClusterId = CLUSTER,
        wire: int = WIRE_VERSION,
    ) -> RealNode:
        node = RealNode(
            keys or make_key_pair(),
            boot_id=boot_id,
            build=build,
            cluster_id=cluster_id,
            wire=wire,
        )
        self._nodes.append(node)
        return node

    async def mesh(self, n_nodes: int) -> list[RealNode]:
        """Give that many nodes whose links are all up."""
        nodes = [self.make() for _ in range(n_nodes)]
        for node in nodes:
            await node.open()
        introduce(*nodes)
        await until_up(*nodes)
        return nodes

    async def close(self) -> None:
        for node in self._nodes:
            await node.transport.close()
        assert [node.deaths for node in self._nodes if node.deaths] == []


@asynccontextmanager
async def real_nodes() -> AsyncGenerator[RealNodes]:
    """Give a place to make nodes in."""
    nodes = RealNodes()
    try:
        yield nodes
    finally:
        await nodes.close()


def introduce(*nodes: RealNode) -> None:
    """Let everybody name the others."""
    for node in nodes:
        node.name(*(other for other in nodes if other is not node))


async def until_up(*nodes: RealNode, within_s: float = 10.0) -> None:
    """Wait until every link between them is up."""
    async with timeout(within_s):
        while not all(len(node.transport.peers()) == len(nodes) - 1 for node in nodes):
            await sleep(0.005)
