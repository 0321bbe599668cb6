import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from protocol.data_wire import (
    Cancel,
    DataMessage,
    Taken,
    ToApi,
    ToWorker,
    pack_message,
    pack_payload,
    unpack_message,
    unpack_payload,
)
from protocol.envelope import Plane
from protocol.ids import NodeId
from skulkd.cluster.data_link import MAX_WAITING_BYTES, PAYLOAD_BYTES, DataLinks
from skulkd.cluster.transport import LinkState, OnLink, OnReceive, Peer, Refusal
from skulkd.runtime.tasks import Tasks
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import a_node_id

OWN, PEER, OTHER = a_node_id(1), a_node_id(2), a_node_id(3)


class FakeTransport:
    """Takes payloads, or refuses them as told."""

    def __init__(self) -> None:
        self.sent: list[tuple[NodeId, bytes]] = []
        self.refusal: Refusal | None = None
        self.has_room = asyncio.Event()
        self.receive: OnReceive = lambda peer, payload: None
        self.link_changed: OnLink = lambda peer, state: None

    @property
    def node_id(self) -> NodeId:
        return OWN

    def peers(self) -> tuple[NodeId, ...]:
        return (PEER, OTHER)

    def link(self, peer: NodeId) -> LinkState:
        return "up"

    def set_peers(self, peers: Mapping[NodeId, Peer]) -> None:
        raise AssertionError

    def send(
        self, peer: NodeId, plane: Plane, payload: bytes, *, key: str | None = None
    ) -> Refusal | None:
        if self.refusal is not None and peer == PEER:
            return self.refusal
        self.sent.append((peer, payload))
        return None

    def on_receive(self, plane: Plane, receiver: OnReceive) -> None:
        self.receive = receiver

    def on_link(self, watcher: OnLink) -> None:
        self.link_changed = watcher

    async def wait_room(self, peer: NodeId, plane: Plane) -> None:
        await self.has_room.wait()

    async def close(self) -> None:
        return

    def numbers(self, peer: NodeId = PEER) -> list[int]:
        """The streams of the cancels sent to a peer, in order."""
        messages = [
            unpack_message(item)
            for to, payload in self.sent
            if to == peer
            for item in unpack_payload(payload)
        ]
        return [message.stream for message in messages if isinstance(message, Cancel)]


class Side:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.got: list[tuple[NodeId, DataMessage, int]] = []
        self.broken: list[tuple[NodeId, str]] = []
        self.open: set[NodeId] = set()

    def on_message(self, peer: NodeId, message: ToApi | ToWorker, n_bytes: int) -> None:
        self.got.append((peer, message, n_bytes))

    def on_broken(self, peer: NodeId, reason: str) -> None:
        self.broken.append((peer, reason))

    def open_peers(self) -> set[NodeId]:
        return self.open


class Bench:
    def __init__(self) -> None:
        self.transport = FakeTransport()
        self.tasks = Tasks("test", on_death=lambda story, _: None)
        self.links = DataLinks(self.transport, self.tasks)
        self.api, self.worker = Side(), Side()
        self.links.serve_api(self.api)
        self.links.serve_worker(self.worker)

    def cancel(self, number: int, peer: NodeId = PEER) -> None:
        self.links.post(peer, pack_message(Cancel(number)))


def run(story: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        bench = Bench()
        await story(bench)
        bench.links.close()
        assert await bench.tasks.close(1) == ()

    run_virtual(main, limit_s=60)


def test_what_one_turn_posts_leaves_in_one_payload_for_each_peer() -> None:
    async def story(bench: Bench) -> None:
        for number in range(3):
            bench.cancel(number)
            bench.cancel(number, OTHER)
        assert bench.transport.sent == []
        await asyncio.sleep(0)
        assert len(bench.transport.sent) == 2
        assert bench.transport.numbers() == bench.transport.numbers(OTHER) == [0, 1, 2]

    run(story)


def test_messages_that_are_too_much_for_one_payload_take_several() -> None:
    async def story(bench: Bench) -> None:
        piece = b"\xc4\xff" + bytes(255)
        for _ in range(PAYLOAD_BYTES // 100):
            bench.links.post(PEER, piece)
        await asyncio.sleep(0)
        sizes = [len(payload) for _, payload in bench.transport.sent]
        assert len(sizes) > 2
        assert max(sizes) < PAYLOAD_BYTES * 1.1

    run(story)


def test_a_full_way_keeps_the_order_and_holds_up_no_other() -> None:
    async def story(bench: Bench) -> None:
        bench.transport.refusal = "queue_full"
        bench.cancel(1)
        await asyncio.sleep(0)
        assert bench.links.is_full(PEER)
        assert not bench.links.is_full(OTHER)
        bench.cancel(2)
        bench.cancel(3, OTHER)
        await asyncio.sleep(0)
        assert bench.transport.numbers(OTHER) == [3]
        bench.transport.refusal = None
        bench.transport.has_room.set()
        await bench.links.wait_room(PEER)
        await asyncio.sleep(0.01)
        assert bench.transport.numbers() == [1, 2]
        assert not bench.links.is_full(PEER)

    run(story)


def test_a_way_that_breaks_drops_what_waits_and_tells_both_sides() -> None:
    async def story(bench: Bench) -> None:
        bench.transport.refusal = "queue_full"
        bench.cancel(1)
        await asyncio.sleep(0)
        waiting = bench.tasks.start(bench.links.wait_room(PEER), name="wait", essential=False)
        bench.transport.link_changed(PEER, "refused")
        await waiting
        for side in (bench.api, bench.worker):
            assert side.broken == [(PEER, "the link to it is refused")]
        bench.transport.refusal = None
        bench.transport.has_room.set()
        await asyncio.sleep(0.01)
        assert bench.transport.numbers() == []

    run(story)


def test_a_peer_that_takes_nothing_of_what_it_asks_for_is_given_up() -> None:
    async def story(bench: Bench) -> None:
        bench.transport.refusal = "queue_full"
        piece = pack_message(Cancel(1)) + bytes(1 << 20)
        for _ in range(MAX_WAITING_BYTES // len(piece)):
            bench.links.post(PEER, piece)
        await asyncio.sleep(0.01)
        assert bench.api.broken == []
        for _ in range(3):
            bench.links.post(PEER, piece)
        await asyncio.sleep(0.01)
        assert bench.worker.broken == [(PEER, "it takes nothing of what it asks for")]
        bench.transport.refusal = None
        bench.transport.has_room.set()
        await asyncio.sleep(0.01)
        assert bench.transport.sent == []

    run(story)


def test_what_has_left_counts_no_more() -> None:
    async def story(bench: Bench) -> None:
        piece = bytes(1 << 20)
        for _ in range(2 * MAX_WAITING_BYTES // len(piece)):
            bench.links.post(PEER, piece)
            await asyncio.sleep(0)
        assert bench.api.broken == []

    run(story)


def test_a_payload_that_is_not_taken_for_want_of_a_link_breaks_the_way() -> None:
    async def story(bench: Bench) -> None:
        bench.transport.refusal = "no_link"
        bench.cancel(1)
        await asyncio.sleep(0)
        assert [peer for peer, _ in bench.api.broken] == [PEER]

    run(story)


def test_a_link_that_opens_breaks_nothing() -> None:
    async def story(bench: Bench) -> None:
        bench.transport.link_changed(PEER, "up")
        assert bench.api.broken == []

    run(story)


def test_each_side_gets_its_messages_with_their_sizes() -> None:
    async def story(bench: Bench) -> None:
        taken, cancel = Taken(1, 2), Cancel(3)
        packed = (pack_message(taken), pack_message(cancel))
        bench.transport.receive(PEER, pack_payload(packed))
        assert bench.api.got == [(PEER, taken, len(packed[0]))]
        assert bench.worker.got == [(PEER, cancel, len(packed[1]))]

    run(story)


def test_nothing_of_a_payload_that_cannot_be_read_is_taken() -> None:
    async def story(bench: Bench) -> None:
        good = pack_message(Cancel(3))
        bench.transport.receive(PEER, pack_payload((good, b"\x93 nonsense")))
        assert bench.worker.got == []
        assert [peer for peer, _ in bench.worker.broken] == [PEER]
        assert bench.links.n_refused == 1

    run(story)


def test_closing_gives_up_every_peer_with_which_anything_is_open() -> None:
    async def story(bench: Bench) -> None:
        bench.api.open = {PEER}
        bench.worker.open = {OTHER}
        bench.links.close()
        assert {peer for peer, _ in bench.api.broken} == {PEER, OTHER}
        bench.api.open = bench.worker.open = set()
        bench.cancel(1)
        await asyncio.sleep(0)
        assert bench.transport.sent == []

    run(story)
