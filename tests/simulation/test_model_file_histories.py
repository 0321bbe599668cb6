"""Seeded histories of nodes that all want one model, through kills, cuts, loss and restarts."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.errors import StoreError
from skulkd.cluster.file_server import FileServerSettings
from skulkd.cluster.simulated import NetworkFaults
from skulkd.runtime.tasks import sleep
from store.layout import StoreLayout
from tests.support.file_nodes import (
    CARD,
    MEMBERS,
    MODEL,
    FileCluster,
    FileNode,
    Index,
    NodeOptions,
    run_files,
)

N_NODES = 5
STORM_S = 60.0
SETTINGS = FileServerSettings(max_transfers=2)


class Story:
    """The nodes of one history, and what befalls them."""

    def __init__(self, cluster: FileCluster, folder: Path) -> None:
        self._cluster = cluster
        self._rng = cluster.rng
        self._index = Index(folder, delay_s=2.0)
        self._wishes: dict[int, asyncio.Task[None]] = {}
        self.nodes: dict[int, FileNode] = {}
        self.n_kills = 0
        self.n_forgotten = 0

    @property
    def n_downloads(self) -> int:
        return self._index.n_asked

    def start(self, number: int) -> None:
        """Start a node, which goes on wanting the model until it has it."""
        # One of them could not get it from elsewhere.
        offline = number == N_NODES - 1
        options = NodeOptions(
            resolver=self._index, server=SETTINGS, rate_bytes_s=2_000_000, offline=offline
        )
        node = self.nodes[number] = self._cluster.add(number, options)
        node.store.recover()
        wish = asyncio.get_running_loop().create_task(self._want(node))
        self._wishes[number] = wish

    async def _want(self, node: FileNode, *, anew: bool = False) -> None:
        if anew:
            await node.store.remove(CARD.model_id)
            self.n_forgotten += 1
        await sleep(self._rng.uniform(0, 5))
        while True:
            try:
                await node.ensure(CARD)
            except StoreError:
                await sleep(3.0)
            else:
                return

    async def kill(self, number: int) -> None:
        """End a node's process."""
        wish = self._wishes.pop(number)
        wish.cancel()
        await asyncio.wait([wish])
        await self._cluster.kill(self.nodes.pop(number))
        self.n_kills += 1

    async def storm(self) -> None:
        """Let things befall them."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + STORM_S
        deeds: list[Callable[[], object]] = [
            self._cluster.network.heal_all,
            self._part,
            self._lose,
            self._restart_one,
            self._forget_one,
            self._forget_one,
        ]
        while loop.time() < until_s:
            await sleep(self._rng.uniform(0.2, 3.0))
            if self._rng.random() < 0.25 and len(self.nodes) > 2:
                await self.kill(self._rng.choice(sorted(self.nodes)))
            self._rng.choice(deeds)()
            self.look()
        self._cluster.network.heal_all()
        self._cluster.network.faults = NetworkFaults()
        for number in range(N_NODES):
            if number not in self.nodes:
                self.start(number)

    def _part(self) -> None:
        ids = [node.node_id for node in self.nodes.values()]
        self._rng.shuffle(ids)
        cut = self._rng.randrange(len(ids))
        self._cluster.network.partition(ids[:cut], ids[cut:])

    def _lose(self) -> None:
        ratio = self._rng.choice([0.0, 0.02, 0.2])
        self._cluster.network.faults = NetworkFaults(
            loss_ratio=ratio, duplicate_ratio=ratio, max_delay_s=0.05
        )

    def _restart_one(self) -> None:
        gone = sorted(set(range(N_NODES)) - set(self.nodes))
        if gone:
            self.start(self._rng.choice(gone))

    def _forget_one(self) -> None:
        """Delete the model where it is, and want it again."""
        having = [number for number in sorted(self.nodes) if self._wishes[number].done()]
        if len(having) > 1:
            number = self._rng.choice(having)
            wish = self._want(self.nodes[number], anew=True)
            self._wishes[number] = asyncio.get_running_loop().create_task(wish)

    def look(self) -> None:
        """See that nothing passes for complete that is not."""
        for node in self.nodes.values():
            located = node.store.locate(CARD)
            assert located is None or located.entry.read_bytes() == MODEL
            for path in _complete_files(node.layout):
                assert path.read_bytes() in MEMBERS.values()

    async def all_have_it(self) -> None:
        """Wait until everybody has what it wants."""
        await asyncio.gather(*self._wishes.values())
        self.look()
        assert all(node.store.locate(CARD) is not None for node in self.nodes.values())
        for node in self.nodes.values():
            assert node.store.problems() == ()
            assert node.layout.staging_keys() == []


def _complete_files(layout: StoreLayout) -> list[Path]:
    return [path for path in layout.models_dir.glob("artifacts/*/files/**/*") if path.is_file()]


@pytest.mark.parametrize("seed", range(15))
def test_everybody_has_the_whole_model_in_the_end(tmp_path: Path, seed: int) -> None:
    async def scenario(cluster: FileCluster) -> None:
        story = Story(cluster, tmp_path)
        for number in range(N_NODES):
            story.start(number)
        await story.storm()
        await story.all_have_it()
        assert story.n_downloads <= N_NODES + story.n_kills + story.n_forgotten
        await sleep(60)
        assert [node.server.n_transfers for node in story.nodes.values()] == [0] * N_NODES

    run_files(scenario, tmp_path, seed=seed)
