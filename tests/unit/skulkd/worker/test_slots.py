import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from engines.base import EngineStatistics, LoadStatus
from protocol.data_frames import Frame, TakeChunk
from protocol.errors import EngineError, ErrorBody, SkulkError
from protocol.ids import ModelId
from protocol.tasks import ChatMessage, ChatTask
from skulkd.core.meters import QUEUE_BOUNDS_S, Histogram
from skulkd.runtime.clock import LoopClock, SystemClock
from skulkd.runtime.virtual_time import run_virtual
from skulkd.worker.slots import SlotLimits, Slots
from tests.support.builders import a_command_id
from tests.support.text_engines import NoVectors
from tests.support.turns import run, settle


class CountingClient(NoVectors):
    """Counts prompts as the test says; serves nothing."""

    def __init__(self, prompt_tokens: int | None = 10) -> None:
        self.prompt_tokens = prompt_tokens
        self.n_counts = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def count_tokens(self, task: ChatTask) -> int:
        self.n_counts += 1
        await self.may_answer.wait()
        if self.prompt_tokens is None:
            raise EngineError("engine.unsupported", "cannot count")
        return self.prompt_tokens

    async def load_status(self) -> LoadStatus:
        return LoadStatus(loaded=True)

    def chat(self, task: ChatTask, take: TakeChunk | None = None) -> AsyncGenerator[Frame]:
        raise AssertionError("slots do not chat")

    async def statistics(self) -> EngineStatistics:
        return EngineStatistics(slots=1, slots_busy=0, context_tokens=1)

    async def close(self) -> None:
        return


def a_task(*, content: str = "x", max_tokens: int | None = 100) -> ChatTask:
    return ChatTask(
        command_id=a_command_id(),
        model_id=ModelId("a/b"),
        messages=(ChatMessage(role="user", content=content),),
        max_tokens=max_tokens,
    )


def slots_of(
    client: CountingClient, *, slots: int = 1, context_tokens: int = 4096, max_queued: int = 4
) -> Slots:
    limits = SlotLimits(slots=slots, context_tokens=context_tokens, max_queued=max_queued)
    return Slots(limits, client, SystemClock())


@asynccontextmanager
async def admitted(slots: Slots, task: ChatTask) -> AsyncGenerator[ChatTask]:
    admission = await slots.acquire(task)
    try:
        yield admission.task
    finally:
        slots.release(admission)


class Holder:
    """A request that takes a slot and keeps it until told."""

    def __init__(self, slots: Slots, task: ChatTask) -> None:
        self.admitted: ChatTask | None = None
        self.done = asyncio.Event()
        self.task = asyncio.create_task(self._hold(slots, task))

    async def _hold(self, slots: Slots, task: ChatTask) -> None:
        async with admitted(slots, task) as given:
            self.admitted = given
            await self.done.wait()

    async def finish(self) -> None:
        self.done.set()
        await self.task

    async def cancel(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


def test_the_wait_of_each_task_that_gets_a_slot_is_measured_and_of_no_other() -> None:
    async def story() -> None:
        waits, clock = Histogram(QUEUE_BOUNDS_S), LoopClock(asyncio.get_running_loop())
        limits = SlotLimits(slots=1, context_tokens=4096)
        slots = Slots(limits, CountingClient(), clock, waits=waits)
        holders = [Holder(slots, a_task()) for _ in range(3)]
        await asyncio.sleep(2)
        await holders[1].cancel()
        await holders[0].finish()
        await holders[2].finish()
        assert sum(waits.counts) == 2
        assert waits.total == pytest.approx(2)

    run_virtual(story)


def test_a_cancelled_holder_frees_its_slot_and_a_cancelled_waiter_its_place() -> None:
    async def story() -> None:
        slots = slots_of(CountingClient())
        holders = [Holder(slots, a_task()) for _ in range(3)]
        await settle()
        assert (slots.n_running, slots.n_queued) == (1, 2)
        await holders[1].cancel()
        await holders[0].cancel()
        await settle()
        assert holders[2].admitted is not None
        await holders[2].finish()
        assert (slots.n_running, slots.n_queued) == (0, 0)

    run(story)


def test_a_short_task_is_admitted_without_asking_the_engine() -> None:
    async def story() -> None:
        client = CountingClient()
        async with admitted(slots_of(client), a_task(max_tokens=None)) as given:
            assert given.max_tokens == 4086
            assert client.n_counts == 1  # the default of 4096 does not fit this window
        async with admitted(slots_of(client, context_tokens=8192), a_task(max_tokens=None)) as task:
            assert task.max_tokens == 4096
            assert client.n_counts == 1

    run(story)


def test_a_bound_that_does_not_fit_the_pool_is_counted_and_then_shares_it() -> None:
    async def story() -> None:
        client = CountingClient(prompt_tokens=100)
        slots = slots_of(client, slots=4)
        first = Holder(slots, a_task(max_tokens=2000))
        second = Holder(slots, a_task(content="y" * 1000, max_tokens=1000))
        await settle()
        assert second.admitted is not None
        assert client.n_counts == 1
        await first.finish()
        await second.finish()

    run(story)


def test_a_count_that_fails_leaves_the_queue_as_it_was() -> None:
    async def story() -> None:
        client = CountingClient(prompt_tokens=5000)
        slots = slots_of(client)
        with pytest.raises(SkulkError, match="5000 tokens"):
            async with admitted(slots, a_task(content="y" * 5000)):
                raise AssertionError("admitted")
        assert (slots.n_running, slots.n_queued) == (0, 0)

    run(story)


def test_where_nobody_can_count_a_long_task_runs_alone() -> None:
    async def story() -> None:
        client = CountingClient(prompt_tokens=None)
        slots = slots_of(client, slots=4)
        long, short = Holder(slots, a_task(content="y" * 9000)), Holder(slots, a_task())
        await settle()
        assert long.admitted is not None
        assert long.admitted.max_tokens == 100
        assert short.admitted is None
        await long.finish()
        await short.finish()

    run(story)


def test_waiting_tasks_are_told_with_their_askers_and_waits() -> None:
    async def story() -> None:
        slots = Slots(
            SlotLimits(slots=1, context_tokens=4096),
            CountingClient(),
            LoopClock(asyncio.get_running_loop()),
        )
        tasks = [a_task().model_copy(update={"asker": asker}) for asker in "aaab"]
        holders = [Holder(slots, task) for task in tasks]
        await asyncio.sleep(5.0)
        assert [(place.asker, place.waited_s) for place in slots.places(9)] == [
            ("a", 5.0), ("b", 5.0), ("a", 5.0),
        ]  # fmt: skip
        for holder in holders:
            holder.done.set()
        await asyncio.gather(*(holder.task for holder in holders))
        assert slots.places(9) == ()

    run_virtual(story)


def test_a_full_queue_answers_busy_with_a_time() -> None:
    async def story() -> None:
        slots = slots_of(CountingClient(), max_queued=1)
        holders = [Holder(slots, a_task()) for _ in range(2)]
        await settle()
        with pytest.raises(EngineError) as caught:
            async with admitted(slots, a_task()):
                raise AssertionError("admitted")
        assert caught.value.code == "engine.busy"
        assert caught.value.retry_after_s == 2
        for holder in holders:
            await holder.finish()

    run(story)


def test_closing_refuses_who_waits_or_counts_and_lets_who_runs_go_on() -> None:
    async def story() -> None:
        client = CountingClient()
        slots = slots_of(client, slots=4)
        running = Holder(slots, a_task(max_tokens=3000))
        client.may_answer.clear()
        counting = Holder(slots, a_task(max_tokens=3000))
        waiting = Holder(slots, a_task(max_tokens=3000))
        await settle()
        assert (slots.n_running, slots.n_queued, client.n_counts) == (1, 2, 1)
        slots.close(ErrorBody(code="engine.gone", message="the engine is gone"))
        client.may_answer.set()
        for holder in (counting, waiting):
            with pytest.raises(EngineError, match="gone"):
                await holder.task
        with pytest.raises(EngineError, match="gone"):
            async with admitted(slots, a_task()):
                raise AssertionError("admitted")
        await running.finish()

    run(story)


def test_room_that_comes_free_before_a_task_wakes_up_to_count_is_not_lost() -> None:
    async def story() -> None:
        slots = slots_of(CountingClient(), slots=2)
        running = [await slots.acquire(a_task(max_tokens=1200)) for _ in range(2)]
        waiting = asyncio.create_task(slots.acquire(a_task(max_tokens=3000)))
        await settle()
        slots.release(running[0])  # a slot, but not enough of the pool: the task is to count
        slots.release(running[1])  # the whole pool, before the task has woken up
        admission = await waiting
        assert slots.n_running == 1
        slots.release(admission)
        assert (slots.n_running, slots.n_queued) == (0, 0)

    run(story)


def test_closing_before_a_task_wakes_up_to_count_refuses_it() -> None:
    async def story() -> None:
        client = CountingClient()
        slots = slots_of(client, slots=2)
        running = [await slots.acquire(a_task(max_tokens=1200)) for _ in range(2)]
        waiting = asyncio.create_task(slots.acquire(a_task(max_tokens=3000)))
        await settle()
        slots.release(running[0])
        slots.close(ErrorBody(code="engine.gone", message="gone"))
        with pytest.raises(SkulkError, match="gone"):
            await waiting
        slots.release(running[1])

    run(story)
