import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from engines.base import EngineStatistics, LoadStatus
from protocol.data_frames import Chunk, Failed, Finished, Frame, Started, TakeChunk, Usage
from protocol.errors import ErrorBody
from protocol.ids import ModelId
from protocol.tasks import KEEP_ALWAYS, ChatMessage, ChatTask
from skulkd.runtime.clock import SystemClock
from skulkd.worker.serving import OpenStream, Serving, StreamEndedError
from skulkd.worker.slots import SlotLimits, Slots
from tests.support.builders import a_command_id
from tests.support.text_engines import NoVectors
from tests.support.turns import run, settle

STOPPING = ErrorBody(code="cluster.stopping", message="stopping")
CANCELLED = ErrorBody(code="request.cancelled", message="cancelled")
DONE = Finished("stop", Usage(1, 1))


class FakeEngine(NoVectors):
    """Says one word, then waits until it may finish; knows whether its stream was closed."""

    def __init__(self) -> None:
        self.may_finish = asyncio.Event()
        self.n_open = 0

    async def chat(self, task: ChatTask, take: TakeChunk | None = None) -> AsyncGenerator[Frame]:
        self.n_open += 1
        try:
            yield Started(1)
            if take is None or not take(Chunk(text="word")):
                yield Chunk(text="word")
            await self.may_finish.wait()
            yield DONE
        finally:
            self.n_open -= 1

    async def load_status(self) -> LoadStatus:
        return LoadStatus(loaded=True)

    async def count_tokens(self, task: ChatTask) -> int:
        return 1

    async def statistics(self) -> EngineStatistics:
        return EngineStatistics(slots=1, slots_busy=0, context_tokens=1)

    async def close(self) -> None:
        return


def serving_of(engine: FakeEngine, *, slots: int = 1) -> Serving:
    limits = SlotLimits(slots=slots, context_tokens=4096)
    return Serving(engine, Slots(limits, engine, SystemClock()), SystemClock())


def a_task(number: int = 1) -> ChatTask:
    return ChatTask(
        command_id=a_command_id(number),
        model_id=ModelId("a/b"),
        messages=(ChatMessage(role="user", content="x"),),
        max_tokens=10,
    )


async def collect(frames: AsyncIterator[Frame]) -> list[Frame]:
    return [frame async for frame in frames]


def test_frames_pass_through_in_order_to_the_engines_own_terminal() -> None:
    async def story() -> None:
        engine = FakeEngine()
        engine.may_finish.set()
        serving = serving_of(engine)
        assert await collect(serving.chat(a_task())) == [Started(1), Chunk(text="word"), DONE]
        assert (serving.n_open, serving.slots.n_running) == (0, 0)

    run(story)


def test_how_long_it_stays_is_what_the_last_task_that_was_admitted_has_said() -> None:
    async def story() -> None:
        engine = FakeEngine()
        serving = serving_of(engine)
        first = asyncio.create_task(collect(serving.chat(a_task(1).changed({"keep_s": 30}))))
        queued = asyncio.create_task(collect(serving.chat(a_task(2).changed({"keep_s": 5}))))
        await settle()
        assert serving.keep_s is None, "it counts from the end of the answer"
        serving.cancel(a_command_id(2), CANCELLED)
        await queued
        assert serving.keep_s is None, "nothing was served"
        engine.may_finish.set()
        await first
        assert serving.keep_s == 30
        await collect(serving.chat(a_task(3)))
        assert serving.keep_s == 30, "a task that does not speak of it leaves it"

    run(story)


def test_a_task_without_a_word_is_answered_at_once_and_says_how_long_it_stays() -> None:
    async def story() -> None:
        engine = FakeEngine()
        idle: list[float | None] = []
        serving = Serving(
            engine,
            Slots(SlotLimits(slots=1, context_tokens=4096), engine, SystemClock()),
            SystemClock(),
            on_idle=lambda: idle.append(serving.idle_since_s),
        )
        words = a_task().changed({"messages": (), "keep_s": KEEP_ALWAYS})
        assert await collect(serving.chat(words)) == [Finished("stop", Usage(0, 0))]
        assert (serving.keep_s, engine.n_open, len(idle)) == (KEEP_ALWAYS, 0, 1)

    run(story)


def test_chunks_that_are_taken_where_they_arrive_count_as_those_that_pass() -> None:
    async def story() -> None:
        engine = FakeEngine()
        engine.may_finish.set()
        serving = serving_of(engine)
        taken: list[Frame] = []
        frames = serving.chat(a_task(), lambda chunk: taken.append(chunk) is None)
        assert await collect(frames) == [Started(1), DONE]
        assert taken == [Chunk(text="word")]
        assert serving.throughput.n_frames == 3

    run(story)


def test_a_cancel_ends_streams_and_waiters_and_frees_their_slots_first() -> None:
    async def story() -> None:
        engine = FakeEngine()
        serving = serving_of(engine)
        streaming = asyncio.create_task(collect(serving.chat(a_task(1))))
        waiting = asyncio.create_task(collect(serving.chat(a_task(2))))
        await settle()
        assert (serving.slots.n_running, serving.slots.n_queued) == (1, 1)
        assert serving.cancel(a_command_id(2), CANCELLED)
        assert await waiting == [Failed(CANCELLED)]
        assert serving.cancel(a_command_id(1), CANCELLED)
        assert (await streaming)[-1] == Failed(CANCELLED)
        assert (engine.n_open, serving.slots.n_running, serving.n_open) == (0, 0, 0)
        assert not serving.cancel(a_command_id(1), CANCELLED)

    run(story)


def test_the_slot_is_free_before_the_client_has_taken_the_terminal() -> None:
    async def story() -> None:
        engine = FakeEngine()
        serving = serving_of(engine)
        frames = serving.chat(a_task())
        assert await anext(frames) == Started(1)
        serving.cancel(a_command_id(1), CANCELLED)
        assert await anext(frames) == Failed(CANCELLED)
        assert (engine.n_open, serving.slots.n_running) == (0, 0)
        await frames.aclose()

    run(story)


def test_a_client_that_closes_its_stream_frees_the_engine() -> None:
    async def story() -> None:
        engine = FakeEngine()
        serving = serving_of(engine)
        frames = serving.chat(a_task())
        await anext(frames)
        assert engine.n_open == 1
        await frames.aclose()
        assert (engine.n_open, serving.slots.n_running) == (0, 0)

    run(story)


def test_closing_ends_all_and_refuses_what_comes_later() -> None:
    async def story() -> None:
        engine = FakeEngine()
        serving = serving_of(engine, slots=2)
        streams = [asyncio.create_task(collect(serving.chat(a_task(n)))) for n in (1, 2, 3)]
        await settle()
        serving.close(STOPPING)
        assert [(await stream)[-1] for stream in streams] == [Failed(STOPPING)] * 3
        assert await collect(serving.chat(a_task(4))) == [Failed(STOPPING)]

    run(story)


def test_draining_serves_those_that_run_and_wait_and_tells_when_the_last_has_ended() -> None:
    async def story() -> None:
        engine = FakeEngine()
        serving = serving_of(engine)
        running, waiting = [asyncio.create_task(collect(serving.chat(a_task(n)))) for n in (1, 2)]
        await settle()
        told: list[int] = []
        serving.drain(STOPPING, lambda: told.append(serving.n_open))
        assert await collect(serving.chat(a_task(3))) == [Failed(STOPPING)]
        assert told == []
        engine.may_finish.set()
        assert (await running)[-1] == (await waiting)[-1] == DONE
        assert told == [0]

    run(story)


def test_a_cancelled_client_stays_cancelled_also_when_its_stream_ends_at_the_same_time() -> None:
    async def story() -> None:
        serving = serving_of(FakeEngine())
        client = asyncio.create_task(collect(serving.chat(a_task())))
        await settle()
        serving.cancel(a_command_id(1), CANCELLED)
        client.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client
        assert serving.n_open == 0

    run(story)


def test_a_cancellation_from_elsewhere_is_not_taken_for_an_end() -> None:
    async def story() -> None:
        stream = OpenStream()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await stream.wait(asyncio.Event().wait())
        stream.end(STOPPING)
        with pytest.raises(StreamEndedError):
            await stream.wait(asyncio.Event().wait())
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    run(story)
