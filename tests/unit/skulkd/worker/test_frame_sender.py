import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from protocol.data_frames import Chunk, Failed, Started
from protocol.data_wire import MAX_FRAMES, Frames, unpack_message, unpack_payload
from protocol.errors import ErrorBody
from protocol.frame_wire import pack_frame
from skulkd.cluster.data_link import DataLinks
from skulkd.cluster.simulated import NetworkFaults, SimulatedNetwork
from skulkd.runtime.tasks import Tasks, sleep
from skulkd.runtime.virtual_time import run_virtual
from skulkd.worker.frame_sender import PACE_S, FrameQueue, FrameSender
from tests.support.builders import a_node_id

API, WORKER = a_node_id(1), a_node_id(2)


class Bench:
    """A sender, and what arrives of it, with the time."""

    def __init__(self, network: SimulatedNetwork) -> None:
        receiver, transport = network.attach(API), network.attach(WORKER)
        network.introduce_all()
        self.tasks = Tasks("test", on_death=lambda story, _: None)
        self.sender = FrameSender(DataLinks(transport, self.tasks))
        self.payloads: list[tuple[float, list[Frames]]] = []
        receiver.on_receive("data", lambda _, payload: self._take(payload))

    def _take(self, payload: bytes) -> None:
        messages = [unpack_message(item) for item in unpack_payload(payload)]
        frames = [message for message in messages if isinstance(message, Frames)]
        self.payloads.append((asyncio.get_running_loop().time(), frames))

    @property
    def messages(self) -> list[Frames]:
        return [message for _, messages in self.payloads for message in messages]

    def put(self, queue: FrameQueue, text: str) -> None:
        self.sender.put(queue, pack_frame(Chunk(text)), is_urgent=False)


def run(story: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        rng = random.Random(1)
        still = NetworkFaults(min_delay_s=0.0, max_delay_s=0.0)
        bench = Bench(SimulatedNetwork(rng, still))
        await sleep(1)
        await story(bench)
        await bench.tasks.close(1)

    run_virtual(main, limit_s=60)


def a_queue(stream: int = 1, credit_bytes: int = 1 << 20) -> FrameQueue:
    return FrameQueue(API, stream, credit_bytes)


def test_the_first_frames_leave_at_once_and_later_ones_wait_for_company() -> None:
    async def story(bench: Bench) -> None:
        queue, began_s = a_queue(), asyncio.get_running_loop().time()
        for index in range(8):
            bench.put(queue, str(index))
            await sleep(PACE_S / 4)
        await sleep(PACE_S)
        times = [at_s - began_s for at_s, _ in bench.payloads]
        assert times[0] < PACE_S / 10
        assert times[1] < PACE_S / 2
        assert [len(message.frames) for message in bench.messages][:2] == [1, 1]
        assert len(bench.payloads) <= 5
        assert [message.number for message in bench.messages] == [*range(len(bench.messages))]
        texts = [frame for message in bench.messages for frame in message.frames]
        assert texts == [Chunk(str(index)) for index in range(8)]

    run(story)


def test_the_last_frame_takes_along_what_waits() -> None:
    async def story(bench: Bench) -> None:
        queue, other = a_queue(1), a_queue(2)
        for text in "ab":
            bench.put(queue, text)
            bench.put(other, text)
            await sleep(PACE_S)
        bench.put(other, "c")
        bench.put(queue, "c")
        bench.sender.end(queue, ErrorBody(code="engine.gone", message="it died"))
        began_s = asyncio.get_running_loop().time()
        await sleep(PACE_S)
        at_s, messages = bench.payloads[-1]
        assert at_s - began_s < PACE_S / 10
        assert {message.stream for message in messages} == {1, 2}
        last = next(message for message in messages if message.stream == 1)
        assert isinstance(last.frames[-1], Failed)

    run(story)


def test_urgent_frames_that_keep_coming_hold_nothing_back() -> None:
    async def story(bench: Bench) -> None:
        for stream in range(100):
            bench.sender.put(a_queue(stream), pack_frame(Started()), is_urgent=True)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert len(bench.payloads) > 30

    run(story)


def test_much_is_sent_in_several_messages() -> None:
    async def story(bench: Bench) -> None:
        queue = a_queue()
        for _ in range(10):
            bench.put(queue, "x" * 50_000)
        for _ in range(MAX_FRAMES + 10):
            bench.put(queue, "y")
        await sleep(0.1)
        assert max(len(message.frames) for message in bench.messages) <= MAX_FRAMES
        assert len(bench.messages) >= 6
        texts = [frame for message in bench.messages for frame in message.frames]
        assert len(texts) == 10 + MAX_FRAMES + 10

    run(story)


def test_a_queue_is_spent_once_its_credit_is_used_and_not_before() -> None:
    async def story(bench: Bench) -> None:
        queue = a_queue(credit_bytes=100)
        bench.put(queue, "x" * 60)
        assert not queue.is_spent
        bench.put(queue, "x" * 60)
        assert queue.is_spent
        await sleep(0.1)
        assert queue.is_spent
        queue.credit_bytes = 1000
        assert not queue.is_spent

    run(story)


def test_what_was_dropped_is_not_sent() -> None:
    async def story(bench: Bench) -> None:
        queue = a_queue()
        bench.put(queue, "x")
        bench.sender.drop(queue)
        await sleep(0.1)
        assert bench.payloads == []

    run(story)
