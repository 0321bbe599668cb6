"""Peers that lie, stay silent or send garbage: what they cost the node that asks them."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.files_wire import (
    ArtifactOpened,
    FilesFrame,
    OfferedFile,
    OpenArtifact,
    ReadRange,
    pack_content,
    pack_files,
)
from tests.support.file_nodes import (
    CARD,
    IDS,
    MEMBERS,
    MODEL,
    TOTAL,
    FileCluster,
    Index,
    LyingPeer,
    NodeOptions,
    content_at,
    holder,
    run_files,
)
from tests.support.wheel_builder import sha256

FILES = tuple(OfferedFile(path, len(content), sha256(content)) for path, content in MEMBERS.items())


def honest(frame: FilesFrame) -> list[bytes]:
    match frame:
        case OpenArtifact(request_id=request_id):
            return [pack_files(ArtifactOpened(request_id, FILES))]
        case ReadRange(request_id=request_id, file_index=index, offset=offset, n_bytes=n_bytes):
            content = list(MEMBERS.values())[index][offset : offset + n_bytes]
            return [pack_content(request_id, index, offset, content)]
        case _:
            return []


def wrong_bytes(frame: FilesFrame) -> list[bytes]:
    answers = honest(frame)
    if isinstance(frame, ReadRange):
        return [answers[0][:-1] + bytes([answers[0][-1] ^ 1])]
    return answers


def wrong_list(frame: FilesFrame) -> list[bytes]:
    if isinstance(frame, OpenArtifact):
        files = tuple(file._replace(size_bytes=1 << 40) for file in FILES)
        return [pack_files(ArtifactOpened(frame.request_id, files))]
    return honest(frame)


def too_much(frame: FilesFrame) -> list[bytes]:
    answers = honest(frame)
    if isinstance(frame, ReadRange):
        endless = pack_content(frame.request_id, frame.file_index, 1 << 30, b"x" * 60_000)
        return [answers[0], *[endless] * 20]
    return answers


def too_long(frame: FilesFrame) -> list[bytes]:
    return [answer + b"x" * isinstance(frame, ReadRange) for answer in honest(frame)]


def no_frames(frame: FilesFrame) -> list[bytes]:
    return [b"\xc1 garbage"] if isinstance(frame, ReadRange) else honest(frame)


def nothing(frame: FilesFrame) -> list[bytes]:
    return [] if isinstance(frame, ReadRange) else honest(frame)


@pytest.mark.parametrize("lie", [wrong_bytes, wrong_list, too_much, too_long])
def test_a_peer_that_lies_costs_one_try_and_is_not_asked_again(
    tmp_path: Path, lie: Callable[[FilesFrame], list[bytes]]
) -> None:
    async def scenario(cluster: FileCluster) -> None:
        index = Index(tmp_path)
        victim = cluster.add(1, NodeOptions(resolver=index))
        liar = LyingPeer(cluster, 0, CARD, lie)
        await asyncio.sleep(1)
        await victim.ensure(CARD)
        assert content_at(victim) == MODEL
        assert index.n_asked == 1
        assert liar.n_opened() == 1
        assert sum(isinstance(frame, ReadRange) for frame in liar.asked) <= TOTAL // 65_536 + 2
        await victim.store.remove(CARD.model_id)
        await victim.ensure(CARD)
        assert liar.n_opened() == 1
        await victim.store.remove(CARD.model_id)
        await asyncio.sleep(700)
        await victim.ensure(CARD)
        assert liar.n_opened() == 2

    run_files(scenario, tmp_path)


@pytest.mark.parametrize("silence", [no_frames, nothing])
def test_a_peer_that_gives_nothing_is_left_after_a_bounded_time(
    tmp_path: Path, silence: Callable[[FilesFrame], list[bytes]]
) -> None:
    async def scenario(cluster: FileCluster) -> None:
        victim = cluster.add(1, NodeOptions(resolver=Index(tmp_path)))
        silent = LyingPeer(cluster, 0, CARD, silence)
        await asyncio.sleep(1)
        began_s = asyncio.get_running_loop().time()
        await victim.ensure(CARD)
        assert asyncio.get_running_loop().time() - began_s < 100
        assert silent.n_opened() == 3
        assert content_at(victim) == MODEL

    run_files(scenario, tmp_path)


def test_wrong_bytes_of_one_peer_do_not_put_the_blame_on_another(tmp_path: Path) -> None:
    """The file that an honest peer ends, and a liar began, is fetched anew, from the honest one."""

    async def scenario(cluster: FileCluster) -> None:
        honest_node = await holder(cluster, 0, Index(tmp_path))
        n_read = 0

        def lie_then_refuse(frame: FilesFrame) -> list[bytes]:
            nonlocal n_read
            n_read += isinstance(frame, ReadRange)
            return wrong_bytes(frame) if n_read <= 16 else []

        victim = cluster.add(1, NodeOptions(offline=True))
        liar = LyingPeer(cluster, 2, CARD, lie_then_refuse)
        await asyncio.sleep(1)
        await victim.ensure(CARD)
        assert content_at(victim) == MODEL
        assert liar.node_id == IDS[2]
        assert honest_node.server.n_sent_bytes >= TOTAL

    run_files(scenario, tmp_path)


def test_random_frames_stop_nothing(tmp_path: Path) -> None:
    async def scenario(cluster: FileCluster) -> None:
        first = await holder(cluster, 0, Index(tmp_path))
        second = cluster.add(1, NodeOptions(offline=True))
        await asyncio.sleep(1)
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        rng = random.Random(7)
        noise = cluster.add(2).transport

        async def disturb() -> None:
            while True:
                for node in (first, second):
                    noise.send(node.node_id, "files", rng.randbytes(rng.randrange(64)))
                await asyncio.sleep(0.001)

        disturbing = asyncio.get_running_loop().create_task(disturb())
        await second.ensure(CARD)
        disturbing.cancel()
        assert content_at(second) == MODEL
        assert first.plane.n_bad_frames(IDS[2]) > 0

    run_files(scenario, tmp_path)
