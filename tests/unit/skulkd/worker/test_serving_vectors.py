"""Serving tasks for vectors: slots, batches, and how each ends."""

import asyncio
from collections.abc import AsyncIterator

from protocol.data_frames import Chunk, Failed, Finished, Frame, Started, Usage
from protocol.errors import EngineError, ErrorBody
from protocol.tasks import EmbeddingTask, RerankTask
from skulkd.runtime.clock import SystemClock
from skulkd.worker.serving import Serving
from skulkd.worker.slots import SlotLimits, Slots
from tests.support.builders import MODEL, a_command_id
from tests.support.text_engines import TextEngine, score_of, vector_of
from tests.support.turns import run, settle

CANCELLED = ErrorBody(code="request.cancelled", message="cancelled")
STOPPING = ErrorBody(code="cluster.stopping", message="stopping")


def serving_of(
    engine: TextEngine, *, slots: int = 1, context_tokens: int = 4096, max_queued: int = 4
) -> Serving:
    limits = SlotLimits(
        slots=slots,
        context_tokens=context_tokens,
        text_tokens=context_tokens,
        max_queued=max_queued,
    )
    return Serving(engine, Slots(limits, engine, SystemClock()), SystemClock())


def a_task(number: int = 1, *texts: str) -> EmbeddingTask:
    return EmbeddingTask(
        command_id=a_command_id(number), model_id=MODEL, texts=texts or ("a fox", "the sea")
    )


async def collect(frames: AsyncIterator[Frame]) -> list[Frame]:
    return [frame async for frame in frames]


def test_each_text_has_its_vector_in_order_and_usage_is_the_sum() -> None:
    async def story() -> None:
        serving = serving_of(TextEngine())
        vectors = (vector_of("a fox"), vector_of("the sea"))
        assert await collect(serving.vectors(a_task())) == [
            Started(),
            Chunk(vectors=vectors),
            Finished("stop", Usage(4, 0)),
        ]
        assert (serving.n_open, serving.slots.n_running) == (0, 0)

    run(story)


def test_texts_that_do_not_fit_together_are_read_one_batch_after_the_other() -> None:
    async def story() -> None:
        engine = TextEngine()
        texts = ("a fox", "the sea", "the red fox")
        frames = await collect(serving_of(engine, context_tokens=32).vectors(a_task(1, *texts)))
        assert engine.batches == [("a fox", "the sea"), ("the red fox",)]
        got = [vector for frame in frames if isinstance(frame, Chunk) for vector in frame.vectors]
        assert got == [vector_of(text) for text in texts]
        assert frames[-1] == Finished("stop", Usage(7, 0))

    run(story)


def test_documents_are_scored_by_the_query() -> None:
    async def story() -> None:
        documents = ("the sea", "a fox")
        task = RerankTask(
            command_id=a_command_id(), model_id=MODEL, query="a fox", documents=documents
        )
        frames = await collect(serving_of(TextEngine()).vectors(task))
        assert frames[1] == Chunk(vectors=tuple(score_of("a fox", text) for text in documents))

    run(story)


def test_a_text_that_is_too_long_takes_no_slot_and_asks_the_engine_for_nothing() -> None:
    async def story() -> None:
        engine = TextEngine()
        serving = serving_of(engine, context_tokens=16)
        (failed,) = await collect(serving.vectors(a_task(1, "word " * 20)))
        assert isinstance(failed, Failed)
        assert failed.error.code == "request.context_length_exceeded"
        assert (engine.batches, serving.n_open, serving.slots.n_running) == ([], 0, 0)

    run(story)


def test_a_cancel_ends_who_reads_and_who_waits_and_frees_the_slot_first() -> None:
    async def story() -> None:
        engine = TextEngine()
        engine.may_answer.clear()
        serving = serving_of(engine)
        reading = asyncio.create_task(collect(serving.vectors(a_task(1))))
        waiting = asyncio.create_task(collect(serving.vectors(a_task(2))))
        await settle()
        assert (engine.n_open, serving.slots.n_running, serving.slots.n_queued) == (1, 1, 1)
        assert serving.cancel(a_command_id(2), CANCELLED)
        assert await waiting == [Failed(CANCELLED)]
        assert serving.cancel(a_command_id(1), CANCELLED)
        assert await reading == [Started(), Failed(CANCELLED)]
        assert (engine.n_open, serving.slots.n_running, serving.n_open) == (0, 0, 0)

    run(story)


def test_a_client_that_closes_its_stream_frees_the_engine() -> None:
    async def story() -> None:
        engine = TextEngine()
        serving = serving_of(engine)
        frames = serving.vectors(a_task())
        assert await anext(frames) == Started()
        await frames.aclose()
        assert (engine.n_open, serving.slots.n_running, serving.n_open) == (0, 0, 0)

    run(story)


def test_what_the_engine_says_is_the_terminal() -> None:
    async def story() -> None:
        engine = TextEngine()
        engine.fails = EngineError("engine.gone", "it died")
        serving = serving_of(engine)
        frames = await collect(serving.vectors(a_task()))
        assert frames == [Started(), Failed(engine.fails.body())]
        assert serving.slots.n_running == 0

    run(story)


def test_a_full_queue_is_busy_and_a_closed_one_says_why() -> None:
    async def story() -> None:
        engine = TextEngine()
        engine.may_answer.clear()
        serving = serving_of(engine, max_queued=1)
        tasks = [asyncio.create_task(collect(serving.vectors(a_task(n)))) for n in (1, 2)]
        await settle()
        (busy,) = await collect(serving.vectors(a_task(3)))
        assert isinstance(busy, Failed)
        assert (busy.error.code, busy.error.retry_after_s) == ("engine.busy", 2)
        (doubled,) = await collect(serving.vectors(a_task(1)))
        assert isinstance(doubled, Failed)
        assert doubled.error.code == "request.invalid"
        serving.close(STOPPING)
        assert [(await task)[-1] for task in tasks] == [Failed(STOPPING)] * 2
        assert await collect(serving.vectors(a_task(4))) == [Failed(STOPPING)]

    run(story)


def test_a_draining_engine_finishes_what_it_reads_and_refuses_what_comes() -> None:
    async def story() -> None:
        engine = TextEngine()
        engine.may_answer.clear()
        serving = serving_of(engine)
        reading = asyncio.create_task(collect(serving.vectors(a_task(1))))
        await settle()
        drained = asyncio.Event()
        serving.drain(STOPPING, drained.set)
        assert await collect(serving.vectors(a_task(2))) == [Failed(STOPPING)]
        assert not drained.is_set()
        engine.may_answer.set()
        assert isinstance((await reading)[-1], Finished)
        assert drained.is_set()

    run(story)
