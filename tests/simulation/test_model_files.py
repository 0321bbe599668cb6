"""Model files between nodes, in virtual time: resume, lies, waiting, and one download for all."""

import asyncio
from collections.abc import Callable
from itertools import starmap
from pathlib import Path

import pytest

import store.service
from protocol.cards import ModelCard
from protocol.errors import StoreError
from skulkd.cluster.file_server import FileServerSettings
from skulkd.cluster.simulated import NetworkFaults
from store.importer import card_from_gguf
from store.progress import TransferProgress
from store.service import artifact_key
from tests.support.file_nodes import (
    CARD,
    MODEL,
    TOTAL,
    FileCluster,
    FileNode,
    Index,
    NodeOptions,
    content_at,
    holder,
    run_files,
)


def staged(node: FileNode) -> int:
    folder = node.layout.staging_path(artifact_key(CARD))
    return sum(path.stat().st_size for path in folder.rglob("*.partial"))


def interrupt_at(node: FileNode, n_bytes: int, cut: Callable[[], object]) -> None:
    """Do something once so many bytes are shown to be here."""
    done: list[TransferProgress] = []

    def watch(progress: TransferProgress) -> None:
        if progress.phase == "download" and progress.done_bytes >= n_bytes and not done:
            done.append(progress)
            asyncio.get_running_loop().call_soon(cut)

    node.on_progress = watch


def test_a_model_comes_from_the_node_that_has_it(tmp_path: Path) -> None:
    async def scenario(cluster: FileCluster) -> None:
        index = Index(tmp_path)
        first = await holder(cluster, 0, index)
        second = cluster.add(1, NodeOptions(resolver=index))
        await asyncio.sleep(1)
        artifact = await second.ensure(CARD)
        assert content_at(second) == MODEL
        assert artifact.manifest.source == f"peer {first.node_id}/{first.node_id[:4]}"
        assert index.n_asked == 1
        assert first.server.n_sent_bytes == TOTAL
        assert {phase for phase, _ in second.phases()} == {"download", "verify"}
        assert not second.layout.staging_path(artifact_key(CARD)).exists()
        assert second.store.problems() == ()
        await asyncio.sleep(0.1)
        assert first.server.n_transfers == 0

    run_files(scenario, tmp_path)


def test_an_offline_node_takes_files_from_peers_and_from_nowhere_else(tmp_path: Path) -> None:
    async def scenario(cluster: FileCluster) -> None:
        index = Index(tmp_path)
        alone = cluster.add(1, NodeOptions(offline=True, resolver=index))
        with pytest.raises(StoreError) as refused:
            await alone.ensure(CARD)
        assert refused.value.code == "store.offline"
        await holder(cluster, 0, index)
        await alone.ensure(CARD)
        assert content_at(alone) == MODEL
        assert index.n_asked == 1

    run_files(scenario, tmp_path)


def test_a_node_without_downloads_fetches_nothing_from_peers(tmp_path: Path) -> None:
    async def scenario(cluster: FileCluster) -> None:
        first = await holder(cluster, 0, Index(tmp_path))
        second = cluster.add(1, NodeOptions(downloads_enabled=False))
        await asyncio.sleep(1)
        with pytest.raises(StoreError) as refused:
            await second.ensure(CARD)
        assert refused.value.code == "store.downloads_disabled"
        assert first.server.n_sent_bytes == 0

    run_files(scenario, tmp_path)


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelCard:
    """A card of a file that lies where only the node that serves it sees it."""
    path = tmp_path / "mine.gguf"
    path.write_bytes(MODEL)
    card = card_from_gguf(path)

    def not_on_this_machine(*_: object, **__: object) -> None:
        raise StoreError("store.incomplete", f"{path} is not complete: no such file")

    monkeypatch.setattr(store.service, "in_place", not_on_this_machine)
    return card


def test_an_imported_file_goes_to_a_node_where_its_path_means_nothing(
    tmp_path: Path, imported: ModelCard
) -> None:
    async def scenario(cluster: FileCluster) -> None:
        owner, other = cluster.add(0), cluster.add(1)
        with pytest.raises(StoreError, match="no other node that can be reached has its files"):
            await other.ensure(imported)
        owner.store.catalog.add(imported)
        await asyncio.sleep(1)
        artifact = await other.ensure(imported)
        assert artifact.entry.read_bytes() == MODEL
        assert artifact.entry.is_relative_to(other.layout.models_dir)
        assert other.store.locate(imported) == artifact
        assert other.store.problems() == ()
        # The owner had to hash it first, and keeps what it found.
        assert "wait" in {phase for phase, _ in other.phases()}
        third = cluster.add(2)
        await cluster.kill(other)
        await asyncio.sleep(1)
        await third.ensure(imported)
        assert "wait" not in {phase for phase, _ in third.phases()}

    run_files(scenario, tmp_path)


def test_an_imported_file_that_changes_is_not_served(tmp_path: Path, imported: ModelCard) -> None:
    async def scenario(cluster: FileCluster) -> None:
        owner, other = cluster.add(0), cluster.add(1)
        owner.store.catalog.add(imported)
        await asyncio.sleep(1)
        (tmp_path / "mine.gguf").write_bytes(b"GGUF other")
        with pytest.raises(StoreError, match="no other node that can be reached has its files"):
            await other.ensure(imported)

    run_files(scenario, tmp_path)


def test_a_break_of_the_link_costs_no_byte_that_was_here(tmp_path: Path) -> None:
    async def scenario(cluster: FileCluster) -> None:
        index = Index(tmp_path)
        first = await holder(cluster, 0, index)
        second = cluster.add(1, NodeOptions(offline=True))
        await asyncio.sleep(1)

        def cut() -> None:
            cluster.network.cut(first.node_id, second.node_id)
            asyncio.get_running_loop().call_later(10, cluster.network.heal_all)

        interrupt_at(second, TOTAL // 2, cut)
        with pytest.raises(StoreError):
            await second.ensure(CARD)
        assert staged(second) >= TOTAL // 4
        before = staged(second)
        await asyncio.sleep(30)
        sent = first.server.n_sent_bytes
        await second.ensure(CARD)
        assert content_at(second) == MODEL
        assert first.server.n_sent_bytes - sent == TOTAL - before

    run_files(scenario, tmp_path)


def test_what_one_holder_began_another_ends(tmp_path: Path) -> None:
    async def scenario(cluster: FileCluster) -> None:
        index = Index(tmp_path)
        holders = [await holder(cluster, number, index) for number in range(2)]
        third = cluster.add(2, NodeOptions(offline=True))
        await asyncio.sleep(1)

        before = {node.node_id: node.server.n_sent_bytes for node in holders}

        def given(node: FileNode) -> int:
            return node.server.n_sent_bytes - before[node.node_id]

        def kill_the_giver() -> None:
            giver = max(holders, key=given)
            assert 0 < given(giver) < TOTAL
            holders.remove(giver)
            killing.append(asyncio.get_running_loop().create_task(cluster.kill(giver)))

        killing: list[asyncio.Task[None]] = []
        interrupt_at(third, TOTAL // 2, kill_the_giver)
        await third.ensure(CARD)
        await killing[0]
        assert content_at(third) == MODEL
        assert 0 < given(holders[0]) <= TOTAL // 2
        assert index.n_asked == 1

    run_files(scenario, tmp_path)


def test_a_restart_goes_on_from_the_partial(tmp_path: Path) -> None:
    async def scenario(cluster: FileCluster) -> None:
        first = await holder(cluster, 0, Index(tmp_path))
        second = cluster.add(1)
        await asyncio.sleep(1)
        fetching = asyncio.get_running_loop().create_task(second.ensure(CARD))
        interrupt_at(second, TOTAL // 2, fetching.cancel)
        with pytest.raises(asyncio.CancelledError):
            await fetching
        before = staged(second)
        assert before >= TOTAL // 4
        await cluster.kill(second)
        again = cluster.add(1)
        again.store.recover()
        await asyncio.sleep(1)
        sent = first.server.n_sent_bytes
        await again.ensure(CARD)
        assert content_at(again) == MODEL
        assert first.server.n_sent_bytes - sent == TOTAL - before

    run_files(scenario, tmp_path)


@pytest.mark.parametrize("seed", range(12))
def test_a_lossy_network_delivers_the_whole_file(tmp_path: Path, seed: int) -> None:
    async def scenario(cluster: FileCluster) -> None:
        index = Index(tmp_path)
        first = await holder(cluster, 0, index)
        second = cluster.add(1, NodeOptions(offline=True))
        await asyncio.sleep(1)
        cluster.network.faults = NetworkFaults(
            loss_ratio=0.05, duplicate_ratio=0.05, max_delay_s=0.05
        )
        await second.ensure(CARD)
        assert content_at(second) == MODEL
        assert first.server.n_sent_bytes < 2 * TOTAL
        cluster.network.faults = NetworkFaults()

    run_files(scenario, tmp_path, seed=seed)


# One download serves all.


@pytest.mark.parametrize("seed", range(5))
def test_nodes_that_want_a_model_at_one_moment_download_it_once(tmp_path: Path, seed: int) -> None:
    async def scenario(cluster: FileCluster) -> None:
        index = Index(tmp_path, delay_s=20.0)
        nodes = [cluster.add(number, NodeOptions(resolver=index)) for number in range(5)]
        await asyncio.sleep(1)
        delays = [cluster.rng.uniform(0, 5) for _ in nodes]

        async def want(node: FileNode, delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            await node.ensure(CARD)

        await asyncio.gather(*starmap(want, zip(nodes, delays, strict=True)))
        assert all(content_at(node) == MODEL for node in nodes)
        assert index.n_asked == 1
        waited = [node for node in nodes if "wait" in {phase for phase, _ in node.phases()}]
        assert len(waited) == 4

    run_files(scenario, tmp_path, seed=seed)


def test_the_waiting_of_a_node_names_whom_it_waits_for(tmp_path: Path) -> None:
    async def scenario(cluster: FileCluster) -> None:
        index = Index(tmp_path, delay_s=20.0)
        first, second = (cluster.add(number, NodeOptions(resolver=index)) for number in range(2))
        await asyncio.sleep(1)
        fetching = asyncio.get_running_loop().create_task(first.ensure(CARD))
        await asyncio.sleep(5)
        await second.ensure(CARD)
        await fetching
        source = f"peer {first.node_id}/{first.node_id[:4]}"
        assert second.phases() == [("wait", source), ("download", source), ("verify", source)]

    run_files(scenario, tmp_path)


def test_when_the_node_that_fetches_fails_another_fetches(tmp_path: Path) -> None:
    async def scenario(cluster: FileCluster) -> None:
        broken, sound = Index(tmp_path / "a", delay_s=20.0), Index(tmp_path / "b")
        broken.error = StoreError("store.source_unavailable", "no route")
        first = cluster.add(0, NodeOptions(resolver=broken))
        others = [cluster.add(number, NodeOptions(resolver=sound)) for number in (1, 2)]
        await asyncio.sleep(1)
        fetching = asyncio.get_running_loop().create_task(first.ensure(CARD))
        await asyncio.sleep(5)
        await asyncio.gather(*(node.ensure(CARD) for node in others))
        with pytest.raises(StoreError, match="no route"):
            await fetching
        assert all(content_at(node) == MODEL for node in others)
        assert sound.n_asked == 1

    run_files(scenario, tmp_path)


def test_a_node_that_does_not_get_on_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    async def scenario(cluster: FileCluster) -> None:
        stuck = cluster.add(0, NodeOptions(resolver=Index(tmp_path / "a", delay_s=3_000.0)))
        second = cluster.add(1, NodeOptions(resolver=Index(tmp_path / "b")))
        await asyncio.sleep(1)
        fetching = asyncio.get_running_loop().create_task(stuck.ensure(CARD))
        await asyncio.sleep(5)
        began_s = asyncio.get_running_loop().time()
        await second.ensure(CARD)
        assert 90 <= asyncio.get_running_loop().time() - began_s < 120
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching

    run_files(scenario, tmp_path)


# Limits of the server.


def test_more_nodes_than_are_served_at_a_time_wait_and_all_get_it(tmp_path: Path) -> None:
    async def scenario(cluster: FileCluster) -> None:
        index = Index(tmp_path)
        settings = FileServerSettings(max_transfers=2)
        options = NodeOptions(resolver=index, server=settings, rate_bytes_s=1_000_000)
        first = cluster.add(0, options)
        await first.ensure(CARD)
        others = [cluster.add(number, NodeOptions(offline=True)) for number in range(1, 6)]
        await asyncio.sleep(1)
        served: list[int] = []

        async def watch() -> None:
            while True:
                served.append(first.server.n_transfers)
                await asyncio.sleep(0.1)

        watching = asyncio.get_running_loop().create_task(watch())
        await asyncio.gather(*(node.ensure(CARD) for node in others))
        watching.cancel()
        assert all(content_at(node) == MODEL for node in others)
        assert max(served) == 2
        # Who had it by then has served the others.
        assert first.server.n_sent_bytes < 5 * TOTAL

    run_files(scenario, tmp_path)


def test_the_rate_that_is_set_is_kept(tmp_path: Path) -> None:
    async def scenario(cluster: FileCluster) -> None:
        first = cluster.add(0, NodeOptions(resolver=Index(tmp_path), rate_bytes_s=500_000))
        await first.ensure(CARD)
        second = cluster.add(1, NodeOptions(offline=True))
        await asyncio.sleep(1)
        began_s = asyncio.get_running_loop().time()
        await second.ensure(CARD)
        took_s = asyncio.get_running_loop().time() - began_s
        assert TOTAL / 500_000 * 0.9 < took_s < TOTAL / 500_000 * 1.3

    run_files(scenario, tmp_path)


def test_a_transfer_that_asks_for_nothing_is_ended(tmp_path: Path) -> None:
    async def scenario(cluster: FileCluster) -> None:
        first = await holder(cluster, 0, Index(tmp_path))
        second = cluster.add(1)
        await asyncio.sleep(1)
        async with second.client.open(first.node_id, artifact_key(CARD)):
            assert first.server.n_transfers == 1
            await asyncio.sleep(60)
            assert first.server.n_transfers == 0

    run_files(scenario, tmp_path)


def test_no_room_on_the_disk_is_said_before_the_first_byte(tmp_path: Path) -> None:
    async def scenario(cluster: FileCluster) -> None:
        first = await holder(cluster, 0, Index(tmp_path))
        second = cluster.add(1, NodeOptions(free_bytes=lambda: 600 << 20))
        third = cluster.add(2, NodeOptions(free_bytes=lambda: 500 << 20))
        await asyncio.sleep(1)
        await second.ensure(CARD)
        sent = first.server.n_sent_bytes
        with pytest.raises(StoreError) as refused:
            await third.ensure(CARD)
        assert refused.value.code == "store.no_space"
        assert first.server.n_sent_bytes == sent

    run_files(scenario, tmp_path)


def test_a_file_that_was_written_to_is_not_served(tmp_path: Path) -> None:
    async def scenario(cluster: FileCluster) -> None:
        first = await holder(cluster, 0, Index(tmp_path))
        second = cluster.add(1, NodeOptions(offline=True))
        await asyncio.sleep(1)
        artifact = first.store.locate(CARD)
        assert artifact is not None

        def write() -> None:
            with artifact.entry.open("r+b") as file:
                file.write(b"other")

        interrupt_at(second, TOTAL // 2, write)
        with pytest.raises(StoreError, match="no longer as they were verified"):
            await second.ensure(CARD)
        assert second.store.locate(CARD) is None

    run_files(scenario, tmp_path)
