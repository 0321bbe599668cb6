"""Two nodes' data planes over the real transport, in one process."""

import asyncio
import os
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from protocol.ids import NodeId
from protocol.state import ClusterState
from skulkd.cluster.curve_keys import make_key_pair
from skulkd.cluster.transport import Peer
from skulkd.cluster.zmq_transport import ZmqTransport
from skulkd.runtime.clock import SystemClock
from tests.support.builders import a_cluster_id, a_plan, a_state, an_instance
from tests.support.data_nodes import DataNode

_HOST: Final = "127.0.0.1"
_UP_S: Final = 10.0


@asynccontextmanager
async def two_zmq_nodes() -> AsyncGenerator[tuple[DataNode, DataNode]]:
    """Give two nodes that are connected; instance 2 is on the second."""
    keys = [make_key_pair() for _ in range(2)]
    transports = [
        ZmqTransport(
            pair,
            boot_id=os.urandom(8).hex(),
            build="test",
            cluster_id=a_cluster_id,
            clock=SystemClock(),
            rng=random.Random(pair.public_key),  # ruff: ignore[suspicious-non-cryptographic-random-usage]  spreads pauses
            on_death=_die,
        )
        for pair in keys
    ]
    state = _state(transports[1].node_id)
    asked, server = (DataNode(transport, state) for transport in transports)
    try:
        ports = [await transport.open([_HOST], 0) for transport in transports]
        peers = {
            transport.node_id: Peer(
                node_id=transport.node_id,
                public_key=pair.public_key,
                addresses=(f"{_HOST}:{port}",),
            )
            for transport, pair, port in zip(transports, keys, ports, strict=True)
        }
        for transport in transports:
            transport.set_peers(peers)
        async with asyncio.timeout(_UP_S):
            while not all(transport.peers() for transport in transports):
                await asyncio.sleep(0.01)
        yield asked, server
    finally:
        for node in (asked, server):
            await node.close()


def _state(server: NodeId) -> ClusterState:
    plan = a_plan()
    shard = plan.shards[0].model_copy(update={"node_id": server})
    return a_state(instances=[an_instance(2, plan=plan.model_copy(update={"shards": (shard,)}))])


def _die(story: str, error: BaseException) -> None:
    raise AssertionError(story) from error
