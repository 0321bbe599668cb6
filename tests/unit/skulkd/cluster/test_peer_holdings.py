"""What readings say about the files of other nodes."""

import random

from protocol.ids import Digest, ModelId, NodeId, node_id_of
from protocol.readings import Holding, HoldingsReading, Readings, TransferReading
from skulkd.cluster.peer_holdings import ReadHoldings
from skulkd.cluster.simulated import SimulatedNetwork
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual

KEY, OTHER = Digest("0" * 64), Digest("1" * 64)
MODEL = ModelId("tiny")
IDS = [node_id_of(bytes([number]) * 32) for number in range(6)]


def holding(node_id: NodeId, key: Digest = KEY) -> HoldingsReading:
    held = Holding(model_id=MODEL, digest=key, size_bytes=1)
    return HoldingsReading(node_id=node_id, at_s=0.0, holdings=(held,))


def transfer(node_id: NodeId, model_id: ModelId = MODEL) -> TransferReading:
    return TransferReading(
        node_id=node_id,
        model_id=model_id,
        at_s=0.0,
        phase="download",
        done_bytes=5,
        total_bytes=9,
        rate_bytes_s=None,
        eta_s=None,
        source="package tiny 1.0",
    )


def seen_by(node_id: NodeId, readings: Readings, gone: NodeId | None = None) -> ReadHoldings:
    async def main() -> ReadHoldings:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        network = SimulatedNetwork(random.Random(1))
        transports = {other: network.attach(other) for other in IDS}
        network.introduce_all()
        if gone is not None:
            await transports[gone].close()
        await sleep(1)
        return ReadHoldings(
            transports[node_id], readings=lambda: readings, name_of=lambda node: f"name of {node}"
        )

    return run_virtual(main)


def test_holders_are_those_that_hold_it_and_can_be_reached() -> None:
    readings = Readings(
        holdings={
            IDS[0]: holding(IDS[0]),
            IDS[1]: holding(IDS[1]),
            IDS[2]: holding(IDS[2], OTHER),
            IDS[3]: holding(IDS[3]),
        }
    )
    found = seen_by(IDS[0], readings, gone=IDS[3])
    assert found.holders(KEY) == (IDS[1],)
    assert found.holders(OTHER) == (IDS[2],)
    assert found.has_peers()
    assert found.name_of(IDS[1]) == f"name of {IDS[1]}"


def test_not_every_node_asks_the_same_node_first() -> None:
    readings = Readings(holdings={node_id: holding(node_id) for node_id in IDS})
    first = {seen_by(node_id, readings).holders(KEY)[0] for node_id in IDS}
    assert len(first) > 1


def test_fetchers_are_the_others_that_fetch_this_model() -> None:
    readings = Readings(
        transfers={
            (IDS[0], MODEL): transfer(IDS[0]),
            (IDS[1], MODEL): transfer(IDS[1]),
            (IDS[2], ModelId("other")): transfer(IDS[2], ModelId("other")),
            (IDS[3], MODEL): transfer(IDS[3]),
        }
    )
    (found,) = seen_by(IDS[0], readings, gone=IDS[3]).fetchers(MODEL)
    assert (found.node_id, found.phase) == (IDS[1], "download")
    assert (found.done_bytes, found.total_bytes) == (5, 9)
