"""Measuring a link over the real transport: encrypted, on the connection of the files."""

import asyncio
import random

from protocol.files_wire import CloseFilling, Filling, FillingRefused, ReadFilling, unpack_files
from protocol.ids import NodeId
from skulkd.cluster.link_probes import LinkProbes
from skulkd.core.link_probe import PROBE_BYTES
from tests.support.real_transports import RealNode, real_nodes


def probing(node: RealNode) -> LinkProbes:
    probes = LinkProbes(
        node.transport,
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  numbers of measurements
        rng=random.Random(1),
        is_serving=lambda: False,
        name_of=lambda node_id: node_id,
    )

    def take(sender: NodeId, payload: bytes) -> None:
        frame = unpack_files(payload)
        assert isinstance(frame, ReadFilling | CloseFilling | Filling | FillingRefused)
        probes.on_frame(sender, frame)

    node.transport.on_receive("files", take)
    return probes


def test_each_direction_of_a_real_link_is_measured_over_the_files_plane() -> None:
    async def main() -> None:
        async with real_nodes() as nodes:
            first, second = await nodes.mesh(2)
            one, other = probing(first), probing(second)
            there = await one.measure(second.node_id, even_busy=False)
            back = await other.measure(first.node_id, even_busy=False)
            for rate in (there, back):
                assert 0 < rate.n_bytes <= PROBE_BYTES
                assert rate.bytes_s > 1e6
            info = first.transport.peer_info(second.node_id)
            assert info is not None
            assert info.planes["files"].n_received_bytes >= there.n_bytes

    asyncio.run(main())
