import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from skulkd.runtime.clock import LoopClock
from skulkd.runtime.tasks import Tasks, run_blocking, run_blocking_in, sleep, timeout
from skulkd.runtime.virtual_time import (
    JOB_DELAY_S,
    DeadlockError,
    TimeLimitError,
    VirtualLoop,
    run_virtual,
)


def _no_death(story: str, error: BaseException) -> None:
    raise AssertionError(story) from error


def test_time_jumps_to_the_next_deadline_and_is_exact_without_a_seed() -> None:
    async def main() -> list[float]:
        clock = LoopClock(asyncio.get_running_loop(), epoch_ms=5_000)
        seen = [clock.monotonic_s()]
        await sleep(3600)
        seen.append(clock.monotonic_s())
        assert clock.wall_ms() == 5_000 + 3_600_000
        return seen

    assert run_virtual(main) == [0.0, 3600.0]


def test_ten_thousand_seconds_of_timers_all_fire() -> None:
    async def main() -> tuple[int, float]:
        n_ticks = 0
        for _ in range(10_000):
            await sleep(1)
            n_ticks += 1
        return n_ticks, asyncio.get_running_loop().time()

    assert run_virtual(main) == (10_000, pytest.approx(10_000))


async def _shell(rounds: int) -> list[str]:
    """Queues, timeouts, gather, tasks, blocking calls: what shells are made of."""
    story: list[str] = []
    queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
    tasks = Tasks("shell", on_death=_no_death)
    lock = asyncio.Lock()

    async def produce(who: int) -> None:
        for n in range(rounds):
            await sleep(0.01)
            await queue.put(who * 1000 + n)

    async def consume(name: str) -> None:
        while True:
            item = await queue.get()
            async with lock:
                value = await run_blocking(int.__mul__, item, 2)
                story.append(f"{name}{value}")

    for name in "ab":
        tasks.start(consume(name), name=f"consume {name}")
    await asyncio.gather(*(produce(who) for who in range(3)))
    with pytest.raises(TimeoutError):
        async with timeout(5):
            await asyncio.Event().wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 5)
    assert await tasks.close(1.0) == ()
    return story


def test_a_shell_gives_the_same_story_for_the_same_seed_and_others_for_others() -> None:
    stories = {tuple(run_virtual(lambda: _shell(20), seed=seed)) for seed in range(5)}
    again = {tuple(run_virtual(lambda: _shell(20), seed=seed)) for seed in range(5)}
    assert stories == again
    assert len(stories) > 1
    assert {frozenset(item[1:] for item in story) for story in stories} == {
        frozenset(str(2 * (who * 1000 + n)) for who in range(3) for n in range(20))
    }


def test_the_same_shell_runs_on_the_ordinary_loop() -> None:
    async def main() -> int:
        async with timeout(20):
            queue: asyncio.Queue[int] = asyncio.Queue()
            await queue.put(await run_blocking(lambda: 7))
            return await queue.get()

    assert asyncio.run(main()) == run_virtual(main) == 7


def test_waiting_for_what_cannot_happen_is_a_deadlock_that_names_the_task() -> None:
    async def main() -> None:
        tasks = Tasks("node", on_death=_no_death)
        tasks.start(asyncio.Event().wait(), name="stuck")
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError, match="node/stuck"):
        run_virtual(main)


def test_a_run_past_its_limit_ends() -> None:
    async def main() -> None:
        while True:
            await sleep(1)

    with pytest.raises(TimeLimitError):
        run_virtual(main, limit_s=100)


def test_a_blocking_call_sees_no_loop_and_its_error_reaches_the_caller() -> None:
    def job() -> None:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        raise OSError(28, "full")

    async def main() -> None:
        with pytest.raises(OSError, match="full"):
            await run_blocking(job)
        assert asyncio.get_running_loop().time() <= 2 * JOB_DELAY_S + 1e-5

    run_virtual(main, seed=3)


def test_a_stalled_job_answers_late_while_others_go_on() -> None:
    async def main() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        seen: list[tuple[str, float]] = []
        with ThreadPoolExecutor(1) as pool:
            slow = asyncio.ensure_future(run_blocking_in(pool, lambda: loop.stall_job(2.0)))
            await sleep(1)
            seen.append(("ticked", loop.time()))
            await slow
            seen.append(("stalled", loop.time()))
        return seen

    assert run_virtual(main) == [("ticked", 1.0), ("stalled", 2.0)]


def test_a_cancelled_wait_for_a_job_does_not_disturb_the_loop() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        with pytest.raises(TimeoutError):
            async with timeout(1):
                await run_blocking(loop.stall_job, 5.0)
        await sleep(10)
        return loop.time()

    assert run_virtual(main) == pytest.approx(11.0)


def test_two_timers_of_one_instant_come_in_either_order() -> None:
    async def main() -> str:
        order: list[str] = []

        async def say(word: str) -> None:
            await sleep(1)
            order.append(word)

        await asyncio.gather(say("a"), say("b"))
        return "".join(order)

    assert {run_virtual(main, seed=seed) for seed in range(30)} == {"ab", "ba"}
