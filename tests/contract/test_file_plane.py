"""Model files over the real transport: encrypted, between threads, through the loss of a node."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from protocol.errors import StoreError
from protocol.ids import Digest, ModelId, NodeId
from skulkd.cluster.file_client import FileClient
from skulkd.cluster.file_plane import FilePlane
from skulkd.cluster.file_server import FileServer
from skulkd.runtime.clock import SystemClock
from skulkd.runtime.tasks import sleep
from store.layout import StoreLayout
from store.peer_pull import PeerSources
from store.progress import TransferProgress
from store.rate_limit import RateLimit
from store.service import Store
from store.sources.peer import PeerTransfer
from tests.support.direct_peers import holding_store
from tests.support.real_transports import RealNode, real_nodes
from tests.support.wheel_builder import MEMBER, card_of, tiny_model

MEMBERS = {MEMBER: tiny_model(12_000_000), "tiny_model/extra.bin": b"extra" * 1000}
CARD = card_of(MEMBERS)
TOTAL = sum(len(content) for content in MEMBERS.values())


class KnownHolders:
    """Says that certain nodes hold everything, as far as they can be reached."""

    def __init__(self, node: RealNode, holders: list[RealNode]) -> None:
        self._node = node
        self._holders = [holder.node_id for holder in holders]

    def has_peers(self) -> bool:
        return bool(self._node.transport.peers())

    def holders(self, key: Digest) -> tuple[NodeId, ...]:
        del key
        return tuple(node for node in self._holders if node in self._node.transport.peers())

    def fetchers(self, model_id: ModelId) -> tuple[PeerTransfer, ...]:
        del model_id
        return ()

    def name_of(self, node_id: NodeId) -> str:
        return node_id


@asynccontextmanager
async def serving(
    node: RealNode, store: Store, rate_bytes_s: int | None
) -> AsyncGenerator[FileServer]:
    """Let a node serve its store."""
    server = FileServer(
        node.transport,
        store.offers,
        on_death=lambda story, _: node.deaths.append(story),
        limit=RateLimit(SystemClock(), rate_bytes_s=rate_bytes_s),
    )
    # ruff: ignore[suspicious-non-cryptographic-random-usage]  numbers of transfers
    client = FileClient(node.transport, rng=random.Random())
    FilePlane(node.transport, server=server, client=client)
    try:
        yield server
    finally:
        await server.close()


def taking_store(node: RealNode, holders: list[RealNode], folder: Path) -> Store:
    """Make a store that takes from the holders, and from nowhere else."""
    # ruff: ignore[suspicious-non-cryptographic-random-usage]  numbers of transfers
    client = FileClient(node.transport, rng=random.Random())
    peers = PeerSources(node_id=node.node_id, files=client, holdings=KnownHolders(node, holders))
    clock = SystemClock()
    store = Store(StoreLayout(folder / "taken"), clock=clock, offline=True, peers=peers)
    server = FileServer(
        node.transport, store.offers, on_death=lambda story, _: node.deaths.append(story)
    )
    FilePlane(node.transport, server=server, client=client)
    return store


@asynccontextmanager
async def holders_and_taker(
    folder: Path, rate_bytes_s: int | None = None
) -> AsyncGenerator[tuple[list[RealNode], list[FileServer], Store]]:
    """Have two nodes with the model, and the store of one without."""
    async with AsyncExitStack() as stack:
        first, second, taker = await (await stack.enter_async_context(real_nodes())).mesh(3)
        servers: list[FileServer] = []
        for number, node in enumerate((first, second)):
            models = folder / f"holder{number}"
            held = holding_store(models, CARD, tuple(MEMBERS.values()), SystemClock())
            servers.append(await stack.enter_async_context(serving(node, held, rate_bytes_s)))
        yield [first, second], servers, taking_store(taker, [first, second], folder)


def test_a_model_goes_from_node_to_node(tmp_path: Path) -> None:
    async def main() -> None:
        async with holders_and_taker(tmp_path) as (_, servers, store):
            artifact = await store.ensure(CARD)
            assert artifact.entry.read_bytes() == MEMBERS[MEMBER]
            assert [server.n_sent_bytes for server in servers] == [TOTAL, 0]

    asyncio.run(main())


def test_a_holder_that_is_lost_in_the_middle_costs_no_byte_that_is_here(tmp_path: Path) -> None:
    async def main() -> None:
        async with holders_and_taker(tmp_path, 10_000_000) as (nodes, servers, store):
            lost: list[asyncio.Task[None]] = []

            def lose(progress: TransferProgress) -> None:
                if progress.done_bytes >= TOTAL // 3 and not lost:
                    closing = asyncio.get_running_loop().create_task(nodes[0].transport.close())
                    lost.append(closing)

            artifact = await store.ensure(CARD, lose)
            await lost[0]
            assert artifact.entry.read_bytes() == MEMBERS[MEMBER]
            assert TOTAL // 3 <= servers[0].n_sent_bytes < TOTAL
            assert servers[1].n_sent_bytes <= TOTAL - TOTAL // 3

    asyncio.run(main())


def test_a_transfer_that_is_given_up_ends_on_both_sides(tmp_path: Path) -> None:
    async def main() -> None:
        async with holders_and_taker(tmp_path, 1_000_000) as (_, servers, store):
            fetching = asyncio.get_running_loop().create_task(store.ensure(CARD))
            while not servers[0].n_sent_bytes:
                await sleep(0.01)
            fetching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await fetching
            async with asyncio.timeout(5):
                while servers[0].n_transfers:
                    await sleep(0.01)
            assert store.transfers() == ()

    asyncio.run(main())


def test_without_a_holder_that_can_be_reached_it_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with holders_and_taker(tmp_path) as (nodes, _, store):
            for node in nodes:
                await node.transport.close()
            with pytest.raises(StoreError) as refused:
                async with asyncio.timeout(20):
                    await store.ensure(CARD)
            assert refused.value.code in {"store.offline", "store.source_unavailable"}

    asyncio.run(main())
