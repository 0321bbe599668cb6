"""What a node serves of its files, to how many, and when it stops."""

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from itertools import starmap
from pathlib import Path
from typing import Any

from protocol.cards import LocalSource, ModelCard
from protocol.envelope import Plane
from protocol.files_wire import (
    ArtifactOpened,
    AskLater,
    CloseArtifact,
    FileRequest,
    FilesFrame,
    OpenArtifact,
    RangeContent,
    ReadRange,
    TransferRefused,
    pack_files,
    unpack_files,
)
from protocol.ids import Digest, NodeId, node_id_of
from skulkd.cluster.file_client import FileClient
from skulkd.cluster.file_plane import FilePlane
from skulkd.cluster.file_server import FileServer, FileServerSettings, OfferedFiles
from skulkd.cluster.simulated import SimulatedNetwork
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual
from store.offers import Offer, UnhashedOffer
from store.rate_limit import RateLimit
from store.service import Store, artifact_key
from tests.support.direct_peers import holding_store
from tests.support.wheel_builder import MEMBER, card_of, tiny_model

FILES: Plane = "files"
OWN, PEER, OTHER = (node_id_of(bytes([number]) * 32) for number in range(3))
CONTENT = tiny_model(100_000)
CARDS = [card_of({MEMBER: CONTENT}, model_id=f"tiny{number}") for number in range(4)]
KEYS = [artifact_key(card) for card in CARDS]
PIECE = 10_000


class StillClock:
    def monotonic_s(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 0


class Asker:
    """A node that asks as the test says, and keeps what it is told."""

    def __init__(self, network: SimulatedNetwork, node_id: NodeId) -> None:
        self.transport = network.attach(node_id)
        self.transport.on_receive(FILES, self._on_payload)
        self.got: list[FilesFrame] = []

    async def ask(self, *requests: FileRequest) -> list[FilesFrame]:
        """Send, and give what has come after a second."""
        self.got = []
        for request in requests:
            assert self.transport.send(OWN, FILES, pack_files(request)) is None
        await sleep(1)
        return self.got

    def _on_payload(self, _sender: NodeId, payload: bytes) -> None:
        self.got.append(unpack_files(payload))


class Bench:
    """A server with four models, and two nodes that ask it."""

    def __init__(
        self,
        folder: Path,
        settings: FileServerSettings,
        wrap: Callable[[OfferedFiles], OfferedFiles] = lambda offers: offers,
    ) -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        rng = random.Random(3)
        self.network = SimulatedNetwork(rng)
        own = self.network.attach(OWN)
        self.store: Store = [
            holding_store(folder / "models", card, (CONTENT,), StillClock()) for card in CARDS
        ][-1]
        self.deaths: list[str] = []
        self.limit = RateLimit(LoopClock(asyncio.get_running_loop()))
        self.server = FileServer(
            own,
            wrap(self.store.offers),
            on_death=lambda story, _: self.deaths.append(story),
            settings=settings,
            limit=self.limit,
        )
        FilePlane(own, server=self.server, client=FileClient(own, rng=rng))
        self.peer, self.other = Asker(self.network, PEER), Asker(self.network, OTHER)
        self.network.introduce_all()


def serve(
    folder: Path,
    story: Callable[[Bench], Coroutine[Any, Any, None]],
    settings: FileServerSettings | None = None,
    wrap: Callable[[OfferedFiles], OfferedFiles] = lambda offers: offers,
) -> None:
    async def main() -> None:
        bench = Bench(folder, settings or FileServerSettings(), wrap)
        await sleep(1)
        await story(bench)
        await bench.server.close()
        assert bench.deaths == []

    for seed in (None, 1):
        run_virtual(main, seed=seed, limit_s=600.0)


def read(request_id: int, offset: int = 0) -> ReadRange:
    return ReadRange(request_id, 0, offset, PIECE)


def refusals(frames: list[FilesFrame]) -> list[str]:
    return [frame.reason for frame in frames if isinstance(frame, TransferRefused)]


def test_files_are_listed_and_read_by_number(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        (opened,) = await bench.peer.ask(OpenArtifact(7, KEYS[0]))
        assert isinstance(opened, ArtifactOpened)
        assert [(file.path, file.size_bytes) for file in opened.files] == [(MEMBER, len(CONTENT))]
        first, second = await bench.peer.ask(read(7, PIECE), read(7))
        assert isinstance(first, RangeContent)
        assert isinstance(second, RangeContent)
        assert (first.offset, second.offset) == (PIECE, 0)
        assert bytes(first.content) == CONTENT[PIECE : 2 * PIECE]

    serve(tmp_path, story)


def test_a_question_that_is_repeated_is_answered_once(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.peer.ask(OpenArtifact(7, KEYS[0]))
        # The first one makes the others wait for the rate.
        bench.limit.change(256 << 10)
        repeated = [read(7), read(7, PIECE)] * 3
        assert len(await bench.peer.ask(read(7, 5 * PIECE), *repeated)) == 3
        # Once it is answered, it may be asked again: the answer may be lost.
        assert len(await bench.peer.ask(read(7))) == 1

    serve(tmp_path, story)


def test_an_opening_that_is_repeated_is_answered_again(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.peer.ask(OpenArtifact(7, KEYS[0]))
        (again,) = await bench.peer.ask(OpenArtifact(7, KEYS[0]))
        assert isinstance(again, ArtifactOpened)
        assert bench.server.n_transfers == 1

    serve(tmp_path, story)


def test_what_is_not_here_and_what_is_not_open_is_refused(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        assert refusals(await bench.peer.ask(OpenArtifact(7, Digest("0" * 64)))) == ["unknown"]
        assert refusals(await bench.peer.ask(read(7))) == ["not_open"]
        await bench.peer.ask(OpenArtifact(8, KEYS[0]))
        # The number of one node means nothing from another.
        assert refusals(await bench.other.ask(read(8))) == ["not_open"]
        assert await bench.peer.ask(CloseArtifact(8)) == []
        assert refusals(await bench.peer.ask(read(8))) == ["not_open"]

    serve(tmp_path, story)


def test_a_piece_outside_the_file_ends_the_transfer(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.peer.ask(OpenArtifact(7, KEYS[0]))
        assert refusals(await bench.peer.ask(read(7, len(CONTENT)))) == ["changed"]
        assert bench.server.n_transfers == 0

    serve(tmp_path, story)


def test_one_node_gets_so_many_transfers_and_all_nodes_so_many(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        *opened, later = await bench.peer.ask(*starmap(OpenArtifact, enumerate(KEYS[:3])))
        if isinstance(opened[0], AskLater):
            # A refusal takes no disk, and may overtake what is opened.
            opened, later = [*opened[1:], later], opened[0]
        assert all(isinstance(frame, ArtifactOpened) for frame in opened)
        assert isinstance(later, AskLater)
        assert (later.reason, later.request_id, later.retry_ms) == ("busy", 2, 2000)
        assert len(await bench.other.ask(OpenArtifact(1, KEYS[0]))) == 1
        (full,) = await bench.other.ask(OpenArtifact(2, KEYS[1]))
        assert isinstance(full, AskLater)
        await bench.peer.ask(CloseArtifact(0))
        (free,) = await bench.other.ask(OpenArtifact(3, KEYS[1]))
        assert isinstance(free, ArtifactOpened)
        assert bench.server.n_transfers == 3

    serve(tmp_path, story, FileServerSettings(max_transfers=3, max_of_peer=2))


def test_who_asks_for_the_same_files_anew_has_given_up_the_earlier_transfer(
    tmp_path: Path,
) -> None:
    async def story(bench: Bench) -> None:
        await bench.peer.ask(OpenArtifact(1, KEYS[0]))
        await bench.peer.ask(OpenArtifact(2, KEYS[0]))
        assert bench.server.n_transfers == 1
        assert refusals(await bench.peer.ask(read(1))) == ["not_open"]

    serve(tmp_path, story)


def test_what_is_closed_while_it_is_opened_is_not_opened(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        assert await bench.peer.ask(OpenArtifact(1, KEYS[0]), CloseArtifact(1)) == []
        assert bench.server.n_transfers == 0

    # Only the seeded schedule lets opening take time.
    async def main() -> None:
        bench = Bench(tmp_path, FileServerSettings())
        await sleep(1)
        await story(bench)
        await bench.server.close()

    run_virtual(main, seed=1, limit_s=60.0)


def test_a_link_that_breaks_ends_its_transfers_and_no_others(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.peer.ask(OpenArtifact(1, KEYS[0]))
        await bench.other.ask(OpenArtifact(1, KEYS[0]))
        await bench.peer.transport.close()
        await sleep(1)
        assert bench.server.n_transfers == 1
        assert len(await bench.other.ask(read(1))) == 1

    serve(tmp_path, story)


class Touching:
    """Offers whose files are written to as soon as they are looked at."""

    def __init__(self, offers: OfferedFiles, path: Path) -> None:
        self._offers = offers
        self._path = path
        self.n_opened = 0

    def open(self, key: Digest) -> Offer | UnhashedOffer | None:
        offer = self._offers.open(key)
        self.n_opened += 1
        os.utime(self._path, ns=(0, self.n_opened))
        return offer


def local_card(path: Path) -> ModelCard:
    """A card of a file in place that may have any time of change."""
    path.write_bytes(CONTENT)
    return card_of({MEMBER: CONTENT}).model_copy(
        update={"source": LocalSource(path=str(path), size_bytes=len(CONTENT))}
    )


def test_files_in_place_are_hashed_before_they_are_given(tmp_path: Path) -> None:
    card = local_card(tmp_path / "mine.gguf")

    async def story(bench: Bench) -> None:
        bench.store.catalog.add(card)
        bench.store.offers.forget(artifact_key(card))
        (later,) = await bench.peer.ask(OpenArtifact(1, artifact_key(card)))
        assert isinstance(later, AskLater)
        assert (later.reason, later.total_bytes) == ("verifying", len(CONTENT))
        (opened,) = await bench.peer.ask(OpenArtifact(2, artifact_key(card)))
        assert isinstance(opened, ArtifactOpened)

    serve(tmp_path, story)


def test_files_that_cannot_be_hashed_are_refused_for_a_minute(tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    card = local_card(path)
    question = OpenArtifact(1, artifact_key(card))

    async def story(bench: Bench) -> None:
        bench.store.catalog.add(card)
        (later,) = await bench.peer.ask(question)
        assert isinstance(later, AskLater)
        assert refusals(await bench.peer.ask(question)) == ["failed"]
        await sleep(61)
        (later,) = await bench.peer.ask(question)
        assert isinstance(later, AskLater)

    serve(tmp_path, story, wrap=lambda offers: Touching(offers, path))


def test_a_server_that_is_closed_answers_nothing(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.peer.ask(OpenArtifact(1, KEYS[0]))
        await bench.server.close()
        assert await bench.peer.ask(OpenArtifact(2, KEYS[1]), read(1)) == []

    serve(tmp_path, story)
