"""How a node asks another for files: again when nothing comes, and not for ever."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pytest

from protocol.envelope import Plane
from protocol.files_wire import (
    ArtifactOpened,
    AskLater,
    CloseArtifact,
    FilesFrame,
    OfferedFile,
    OpenArtifact,
    ReadRange,
    RefusalReason,
    TransferRefused,
    pack_content,
    pack_files,
    unpack_files,
)
from protocol.ids import Digest, NodeId, node_id_of
from skulkd.cluster.file_client import FileClient, FileClientSettings
from skulkd.cluster.file_plane import FilePlane
from skulkd.cluster.file_server import FileServer
from skulkd.cluster.simulated import SimulatedNetwork
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual
from store.offers import Offer, UnhashedOffer
from store.sources.peer import PeerBusyError, PeerError

FILES: Plane = "files"
OWN, PEER, OTHER = (node_id_of(bytes([number]) * 32) for number in range(3))
KEY = Digest("0" * 64)
CONTENT = bytes(range(256)) * 100
PIECE = 1000
SETTINGS = FileClientSettings(range_bytes=PIECE, window_bytes=8 * PIECE)

Answers = Callable[[FilesFrame], list[bytes]]


def honest(frame: FilesFrame) -> list[bytes]:
    match frame:
        case OpenArtifact(request_id=request_id):
            file = OfferedFile("model.gguf", len(CONTENT), KEY)
            return [pack_files(ArtifactOpened(request_id, (file,)))]
        case ReadRange(request_id, index, offset, n_bytes):
            return [pack_content(request_id, index, offset, CONTENT[offset : offset + n_bytes])]
        case _:
            return []


class NoOffers:
    def open(self, key: Digest) -> Offer | UnhashedOffer | None:
        del key
        return None


class Bench:
    """A client, and two nodes that answer it as the test says."""

    def __init__(self, answers: Answers) -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        rng = random.Random(3)
        self.network = SimulatedNetwork(rng)
        own = self.network.attach(OWN)
        self.client = FileClient(own, rng=rng, settings=SETTINGS)
        server = FileServer(own, NoOffers(), on_death=lambda _story, _error: None)
        FilePlane(own, server=server, client=self.client)
        self.answers = answers
        self.asked: list[FilesFrame] = []
        self.peer, self.other = (self.network.attach(node_id) for node_id in (PEER, OTHER))
        self.peer.on_receive(FILES, self._on_payload)
        self.network.introduce_all()

    def _on_payload(self, _sender: NodeId, payload: bytes) -> None:
        frame = unpack_files(payload)
        self.asked.append(frame)
        for answer in self.answers(frame):
            self.peer.send(OWN, FILES, answer)

    async def fetch(self, offset: int = 0, got: list[bytes] | None = None) -> bytes:
        """Read the file from an offset on; `got` is filled as it comes."""
        got = [] if got is None else got
        async with (
            self.client.open(PEER, KEY) as lease,
            aclosing(lease.read(0, offset)) as pieces,
        ):
            async for contents in pieces:
                got += [bytes(content) for content in contents]
        return b"".join(got)


def play(answers: Answers, story: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        bench = Bench(answers)
        await sleep(1)
        await story(bench)

    run_virtual(main, seed=1, limit_s=600.0)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_a_file_comes_from_an_offset_on_and_the_transfer_is_closed() -> None:
    async def story(bench: Bench) -> None:
        assert await bench.fetch(5_500) == CONTENT[5_500:]
        await sleep(1)
        assert isinstance(bench.asked[-1], CloseArtifact)

    play(honest, story)


def test_a_question_that_is_lost_is_asked_again() -> None:
    seen: set[FilesFrame] = set()

    def second_time_only(frame: FilesFrame) -> list[bytes]:
        if frame in seen:
            return honest(frame)
        seen.add(frame)
        return []

    async def story(bench: Bench) -> None:
        assert await bench.fetch() == CONTENT

    play(second_time_only, story)


@pytest.mark.parametrize(("silent", "after_s"), [(OpenArtifact, 10), (ReadRange, 20)])
def test_a_peer_that_says_nothing_is_given_up(silent: type[FilesFrame], after_s: float) -> None:
    def answers(frame: FilesFrame) -> list[bytes]:
        return [] if isinstance(frame, silent) else honest(frame)

    async def story(bench: Bench) -> None:
        began_s = now_s()
        with pytest.raises(PeerError, match="it sent nothing for") as failed:
            await bench.fetch()
        assert after_s <= now_s() - began_s < after_s + 5
        assert not failed.value.is_final

    play(answers, story)


def test_what_another_node_sends_in_the_peers_name_is_dropped() -> None:
    def answers(frame: FilesFrame) -> list[bytes]:
        if isinstance(frame, OpenArtifact):
            for forged in honest(frame):
                benches[0].other.send(OWN, FILES, forged)
            return []
        return honest(frame)

    benches: list[Bench] = []

    async def story(bench: Bench) -> None:
        benches.append(bench)
        with pytest.raises(PeerError, match="it sent nothing for"):
            await bench.fetch()

    play(answers, story)


def test_a_link_that_breaks_ends_the_transfer_at_once_and_keeps_what_has_come() -> None:
    async def story(bench: Bench) -> None:
        ended: list[asyncio.Task[None]] = []

        def end_the_peer() -> None:
            ended.append(asyncio.get_running_loop().create_task(bench.peer.close()))

        def answers(frame: FilesFrame) -> list[bytes]:
            if isinstance(frame, ReadRange) and frame.offset >= 10 * PIECE:
                asyncio.get_running_loop().call_later(0.1, end_the_peer)
                return []
            return honest(frame)

        bench.answers = answers
        got: list[bytes] = []
        began_s = now_s()
        with pytest.raises(PeerError, match="the link to it is") as failed:
            await bench.fetch(got=got)
        assert now_s() - began_s < SETTINGS.ask_again_s
        assert ended
        assert b"".join(got) == CONTENT[: 10 * PIECE]
        assert not failed.value.is_final

    play(honest, story)


@pytest.mark.parametrize(("reason", "is_final"), [("unknown", True), ("not_open", False)])
def test_a_refusal_says_whether_to_ask_again(reason: RefusalReason, is_final: bool) -> None:
    def answers(frame: FilesFrame) -> list[bytes]:
        if isinstance(frame, OpenArtifact):
            return [pack_files(TransferRefused(frame.request_id, reason))]
        return []

    async def story(bench: Bench) -> None:
        with pytest.raises(PeerError) as refused:
            await bench.fetch()
        assert refused.value.is_final == is_final

    play(answers, story)


def test_a_busy_peer_says_when_to_ask_again() -> None:
    def answers(frame: FilesFrame) -> list[bytes]:
        if isinstance(frame, OpenArtifact):
            return [pack_files(AskLater(frame.request_id, "verifying", 2500, 7, 9))]
        return []

    async def story(bench: Bench) -> None:
        with pytest.raises(PeerBusyError) as busy:
            await bench.fetch()
        assert busy.value.retry_after_s == pytest.approx(2.5)
        assert (busy.value.done_bytes, busy.value.total_bytes) == (7, 9)

    play(answers, story)


def test_a_node_that_is_not_named_cannot_be_asked() -> None:
    async def story(bench: Bench) -> None:
        with pytest.raises(PeerError, match="unknown_peer"):
            async with bench.client.open(node_id_of(b"nobody"), KEY):
                pass

    play(honest, story)


def test_a_transfer_that_is_given_up_half_way_leaves_nothing_behind() -> None:
    async def story(bench: Bench) -> None:
        async with bench.client.open(PEER, KEY) as lease:
            async with aclosing(lease.read(0, 0)) as pieces:
                assert await anext(pieces)
            # What was on its way is of no use to the next reading of the same file.
            async with aclosing(lease.read(0, 20_000)) as pieces:
                got = [b"".join(contents) async for contents in pieces]
            assert b"".join(got) == CONTENT[20_000:]

    play(honest, story)
