"""Whom a node asks for files, how often, and whom it blames."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from protocol.cards import HubSource, ModelCard
from protocol.errors import StoreError
from protocol.ids import Digest, ModelId, NodeId
from store.fetch import FetchPolicy
from store.layout import StoreLayout
from store.peer_pull import PeerPolicy, PeerSources
from store.progress import TransferProgress
from store.service import InstalledArtifact, Store, artifact_key
from store.sources.peer import (
    PeerBusyError,
    PeerError,
    PeerFile,
    PeerTransfer,
    peer_error,
)
from tests.support.wheel_builder import (
    MEMBER,
    FixedResolver,
    card_of,
    sha256,
    tiny_model,
    write_wheel,
)

MEMBERS = {MEMBER: tiny_model(200_000)}
CONTENT = MEMBERS[MEMBER]
CARD = card_of(MEMBERS)
HUB_CARD = CARD.model_copy(
    update={"source": HubSource(repository=ModelId("org/repo"), revision="0" * 40)}
)
A, B, C = (NodeId(letter * 17) for letter in "abc")
OWN = NodeId("b" + "z" * 16)
PIECE = 10_000

Piece = Callable[[int, bytes], bytes]
"""Gets an offset and the right bytes; gives what is sent, or raises."""


@dataclass
class Node:
    """One other node, as scripted."""

    content: bytes = CONTENT
    send: Piece = lambda _offset, content: content
    refuse: PeerError | None = None
    n_asked: int = 0
    offsets: list[int] = field(default_factory=list[int])


@dataclass
class Lease:
    node: Node
    files: tuple[PeerFile, ...]

    async def read(self, index: int, offset: int) -> AsyncGenerator[tuple[memoryview, ...]]:
        assert index == 0
        self.node.offsets.append(offset)
        while offset < len(self.node.content):
            right = self.node.content[offset : offset + PIECE]
            yield (memoryview(self.node.send(offset, right)),)
            offset += len(right)


class Bench:
    """A store, the other nodes, and time that passes while the store sleeps."""

    def __init__(self, tmp_path: Path) -> None:
        wheel = write_wheel(tmp_path / "index", MEMBERS)
        self.resolver = FixedResolver(wheel.as_uri(), sha256(wheel.read_bytes()))
        self.layout = StoreLayout(tmp_path / "models")
        self.now_s = 0.0
        self.nodes: dict[NodeId, Node] = {}
        self.transfers: dict[NodeId, PeerTransfer] = {}
        self.untold: set[NodeId] = set()
        """Whose holdings have not come round yet."""
        self.at: list[tuple[float, Callable[[], object]]] = []
        self.shown: list[TransferProgress] = []

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for due_s, call in [item for item in self.at if item[0] <= self.now_s]:
            self.at.remove((due_s, call))
            call()
        await asyncio.sleep(0)

    def store(self, *, offline: bool = False, policy: PeerPolicy | None = None) -> Store:
        sources = PeerSources(node_id=OWN, files=self, holdings=self, policy=policy or PeerPolicy())
        return Store(
            self.layout,
            clock=self,
            offline=offline,
            peers=sources,
            resolver=self.resolver,
            policy=FetchPolicy(backoff_s=0.0),
            sleep=self.sleep,
            free_bytes=lambda: 1 << 40,
        )

    def ensure(self, store: Store, card: ModelCard = CARD) -> InstalledArtifact:
        return asyncio.run(store.ensure(card, self.shown.append))

    @asynccontextmanager
    async def open(self, node_id: NodeId, key: Digest) -> AsyncGenerator[Lease]:
        assert key in {artifact_key(CARD), artifact_key(HUB_CARD)}
        node = self.nodes[node_id]
        node.n_asked += 1
        if node.refuse is not None:
            raise node.refuse
        file = PeerFile(path=MEMBER, size_bytes=len(node.content), sha256=sha256(node.content))
        yield Lease(node, (file,))

    def has_peers(self) -> bool:
        return bool(self.nodes)

    def holders(self, key: Digest) -> tuple[NodeId, ...]:
        del key
        untold = {*self.transfers, *self.untold}
        return tuple(node for node in self.nodes if node not in untold)

    def fetchers(self, model_id: ModelId) -> tuple[PeerTransfer, ...]:
        assert model_id == CARD.model_id
        return tuple(self.transfers.values())

    def name_of(self, node_id: NodeId) -> str:
        return f"name-{node_id[:1]}"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def break_at(offset: int) -> Piece:
    def send(at: int, content: bytes) -> bytes:
        if at >= offset:
            raise PeerError(peer_error(A, "the link to it is silent"))
        return content

    return send


def corrupt(_offset: int, content: bytes) -> bytes:
    return b"\0" + content[1:]


def lie_then_break(offset: int, content: bytes) -> bytes:
    return corrupt(offset, break_at(50_000)(offset, content))


def busy(done_bytes: int = 0, total_bytes: int = 0) -> PeerBusyError:
    return PeerBusyError(
        peer_error(A, "it serves as many transfers as it may"),
        retry_after_s=2.0,
        done_bytes=done_bytes,
        total_bytes=total_bytes,
    )


def fetching(node_id: NodeId, phase: str = "download", done_bytes: int = 0) -> PeerTransfer:
    return PeerTransfer(node_id=node_id, phase=phase, done_bytes=done_bytes, total_bytes=None)


def test_b16_a_second_holder_goes_on_where_the_first_broke(bench: Bench) -> None:
    bench.nodes = {A: Node(send=break_at(50_000)), B: Node()}
    bench.ensure(bench.store())
    assert bench.nodes[B].offsets == [50_000]
    assert bench.now_s == pytest.approx(0)
    assert bench.resolver.n_asked == 0


def test_a_holder_that_breaks_without_a_new_byte_is_left_after_three_tries(bench: Bench) -> None:
    bench.nodes = {A: Node(send=break_at(0))}
    bench.ensure(bench.store())
    assert bench.nodes[A].n_asked == 3
    # One and two seconds between, then a look at whether another fetches.
    assert bench.now_s == pytest.approx(1 + 2 + 1.5)
    assert bench.resolver.n_asked == 1


def test_a_holder_that_gets_on_each_time_is_asked_again(bench: Bench) -> None:
    node = Node()
    broken_at = 0

    def send(offset: int, content: bytes) -> bytes:
        nonlocal broken_at
        if offset > broken_at:
            broken_at = offset
            raise PeerError(peer_error(A, "the link to it is silent"))
        return content

    node.send = send
    bench.nodes = {A: node}
    bench.ensure(bench.store(offline=True))
    assert node.n_asked > 10
    assert node.offsets == sorted(node.offsets)


def test_a_peer_whose_bytes_alone_made_a_wrong_file_is_not_asked_for_a_while(
    bench: Bench,
) -> None:
    store = bench.store(offline=True)
    bench.nodes = {A: Node(send=corrupt)}
    with pytest.raises(StoreError) as refused:
        bench.ensure(store)
    assert refused.value.code == "store.digest_mismatch"
    with pytest.raises(StoreError) as refused:
        bench.ensure(store)
    assert refused.value.code == "store.offline"
    assert bench.nodes[A].n_asked == 1
    bench.nodes[A].send = Node().send
    bench.now_s += 601
    bench.ensure(store)


def test_nobody_is_blamed_for_a_wrong_file_that_several_gave(bench: Bench) -> None:
    bench.nodes = {A: Node(send=lie_then_break), B: Node()}
    bench.ensure(bench.store())
    # From then on a file comes whole from one node.
    assert bench.nodes[A].offsets == [0, 0]
    assert bench.nodes[B].offsets == [50_000, 0]
    assert bench.resolver.n_asked == 0


def test_nobody_is_blamed_for_a_wrong_rest_of_an_earlier_run(bench: Bench) -> None:
    bench.nodes = {A: Node(send=lie_then_break)}
    with pytest.raises(StoreError):
        bench.ensure(bench.store(offline=True))
    bench.nodes = {B: Node()}
    bench.ensure(bench.store(offline=True))
    assert bench.nodes[B].offsets == [50_000, 0]


def test_after_three_wrong_files_no_peer_is_asked_any_more(bench: Bench) -> None:
    bench.nodes = {node: Node(send=corrupt) for node in (A, B, C, NodeId("d" * 17))}
    bench.ensure(bench.store())
    assert sum(node.n_asked for node in bench.nodes.values()) == 3
    assert bench.resolver.n_asked == 1


def test_of_a_hubs_model_the_first_list_decides_and_another_is_passed_over(bench: Bench) -> None:
    other = tiny_model(100_000)
    bench.nodes = {
        A: Node(send=break_at(50_000)),
        B: Node(content=other),
    }
    bench.at = [(1.0, lambda: setattr(bench.nodes[A], "send", Node().send))]
    artifact = bench.ensure(bench.store(), HUB_CARD)
    assert artifact.entry.read_bytes() == CONTENT
    assert (bench.nodes[A].n_asked, bench.nodes[B].n_asked) == (2, 1)


def test_a_peer_that_is_busy_is_waited_for(bench: Bench) -> None:
    bench.nodes = {A: Node(refuse=busy())}
    bench.at = [(60.0, lambda: setattr(bench.nodes[A], "refuse", None))]
    bench.ensure(bench.store())
    assert bench.resolver.n_asked == 0
    assert (bench.shown[0].phase, bench.shown[0].source) == ("wait", f"peer {A}/name-a")
    assert 60 <= bench.now_s < 65


def test_another_holder_is_asked_before_a_busy_one_is_waited_for(bench: Bench) -> None:
    bench.nodes = {A: Node(refuse=busy()), B: Node()}
    bench.ensure(bench.store())
    assert bench.now_s == pytest.approx(0)


def test_a_peer_that_stays_busy_is_left_for_the_cards_own_source(bench: Bench) -> None:
    bench.nodes = {A: Node(refuse=busy())}
    bench.ensure(bench.store())
    assert bench.resolver.n_asked == 1
    assert 600 <= bench.now_s < 620


def test_a_peer_that_hashes_first_is_waited_for_as_long_as_it_gets_on(bench: Bench) -> None:
    node = Node(refuse=busy(1, 100))
    bench.nodes = {A: node}
    bench.at = [
        (float(at), lambda at=at: setattr(node, "refuse", busy(at, 5_000)))
        for at in range(100, 4_000, 100)
    ]
    bench.at.append((4_000.0, lambda: setattr(node, "refuse", None)))
    bench.ensure(bench.store())
    assert bench.resolver.n_asked == 0
    waited = [item.done_bytes for item in bench.shown if item.phase == "wait"]
    assert waited == sorted(waited)
    assert waited[-1] == 3_900


def test_without_another_source_a_busy_peer_is_waited_for_without_limit(bench: Bench) -> None:
    bench.nodes = {A: Node(refuse=busy())}
    bench.at = [(3_000.0, lambda: setattr(bench.nodes[A], "refuse", None))]
    bench.ensure(bench.store(offline=True))
    assert bench.now_s >= 3_000


def test_the_waiting_of_before_does_not_count_when_a_peer_is_busy_again(bench: Bench) -> None:
    node = Node(refuse=busy())
    bench.nodes = {A: node}

    def give_slowly_and_break(offset: int, content: bytes) -> bytes:
        if offset < 50_000:
            return content
        bench.now_s += 700
        node.refuse, node.send = busy(), Node().send
        bench.at.append((bench.now_s + 10, lambda: setattr(node, "refuse", None)))
        raise PeerError(peer_error(A, "the link to it is silent"))

    node.send = give_slowly_and_break
    bench.at = [(1.0, lambda: setattr(node, "refuse", None))]
    bench.ensure(bench.store())
    assert bench.resolver.n_asked == 0


# Others that fetch. This node's id lies between B and C.


def ends(bench: Bench, node_id: NodeId) -> Callable[[], object]:
    return lambda: bench.transfers.pop(node_id)


def test_a_node_that_fetches_is_waited_for_and_asked_when_it_has_ended(bench: Bench) -> None:
    bench.nodes = {C: Node()}
    bench.transfers = {C: fetching(C)}
    bench.at = [(40.0, ends(bench, C))]
    bench.ensure(bench.store())
    assert bench.resolver.n_asked == 0
    assert 40 <= bench.now_s < 42


@pytest.mark.parametrize(("node_id", "n_downloads"), [(A, 0), (C, 1)])
def test_of_two_that_look_the_lower_id_goes_on(
    bench: Bench, node_id: NodeId, n_downloads: int
) -> None:
    bench.nodes = {node_id: Node()}
    bench.transfers = {node_id: fetching(node_id, "look")}
    bench.at = [(30.0, ends(bench, node_id))]
    bench.ensure(bench.store())
    assert bench.resolver.n_asked == n_downloads


def test_a_node_that_has_ended_is_asked_before_its_holdings_come_round(bench: Bench) -> None:
    bench.nodes = {C: Node()}
    bench.untold = {C}
    bench.transfers = {C: fetching(C)}
    bench.at = [(40.0, ends(bench, C))]
    bench.ensure(bench.store())
    assert bench.resolver.n_asked == 0


def test_a_node_that_had_nothing_is_asked_again_when_it_has_fetched(bench: Bench) -> None:
    gone = PeerError(peer_error(C, "it does not have the files"), is_final=True)
    bench.nodes = {C: Node(refuse=gone)}
    bench.at = [
        (1.0, lambda: bench.transfers.update({C: fetching(C)})),
        (39.0, lambda: setattr(bench.nodes[C], "refuse", None)),
        (40.0, ends(bench, C)),
    ]
    bench.ensure(bench.store())
    assert bench.resolver.n_asked == 0


def test_a_holder_that_comes_up_ends_the_wait_for_another(bench: Bench) -> None:
    bench.nodes = {A: Node()}
    bench.transfers = {A: fetching(A)}
    bench.at = [(10.0, lambda: bench.nodes.update({B: Node()}))]
    bench.ensure(bench.store())
    assert bench.nodes[B].n_asked == 1
    assert bench.now_s < 12


def test_after_a_wait_in_vain_a_node_looks_again(bench: Bench) -> None:
    gone = PeerError(peer_error(C, "it does not have the files"), is_final=True)
    bench.nodes = {A: Node(), C: Node(refuse=gone)}
    # C fetches, fails, and a second later A, whose id is lower, is about to fetch.
    bench.transfers = {A: fetching(A, "wait")}
    bench.at = [
        (1.0, lambda: bench.transfers.update({C: fetching(C)})),
        (30.0, ends(bench, C)),
        (32.0, lambda: bench.transfers.update({A: fetching(A, "look")})),
        (60.0, ends(bench, A)),
    ]
    bench.ensure(bench.store())
    assert bench.resolver.n_asked == 0
    assert 60 <= bench.now_s < 62


def test_a_node_that_waits_itself_is_not_waited_for(bench: Bench) -> None:
    bench.nodes = {A: Node()}
    bench.transfers = {A: fetching(A, "wait")}
    bench.ensure(bench.store())
    assert bench.resolver.n_asked == 1
    assert bench.now_s == pytest.approx(1.5)


def test_a_node_that_does_not_get_on_is_waited_for_ninety_seconds(bench: Bench) -> None:
    bench.nodes = {A: Node()}
    bench.transfers = {A: fetching(A, done_bytes=7)}
    bench.ensure(bench.store())
    assert bench.resolver.n_asked == 1
    assert bench.now_s == pytest.approx(90 + 1.5, abs=1)


def test_progress_of_the_other_prolongs_the_wait_and_is_shown(bench: Bench) -> None:
    bench.nodes = {A: Node()}
    bench.transfers = {A: fetching(A)}

    def get_on(at: int) -> Callable[[], object]:
        return lambda: bench.transfers.update({A: fetching(A, done_bytes=at)})

    bench.at = [(float(at), get_on(at)) for at in range(60, 600, 60)]
    bench.at.append((600.0, ends(bench, A)))
    bench.ensure(bench.store())
    assert bench.resolver.n_asked == 0
    assert max(item.done_bytes for item in bench.shown if item.phase == "wait") == 540


def test_alone_a_node_fetches_at_once(bench: Bench) -> None:
    bench.ensure(bench.store())
    assert bench.now_s == pytest.approx(0)
    assert bench.resolver.n_asked == 1
