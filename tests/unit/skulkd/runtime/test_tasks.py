import asyncio
import logging

import pytest

from skulkd.runtime.tasks import Tasks, dump_story, run_blocking, sleep, timeout
from skulkd.runtime.virtual_time import run_virtual


class _Deaths:
    def __init__(self) -> None:
        self.stories: list[tuple[str, BaseException]] = []

    def __call__(self, story: str, error: BaseException) -> None:
        self.stories.append((story, error))


async def _fail() -> None:
    await sleep(0.1)
    raise ValueError("out of cheese")


def test_an_essential_task_that_dies_tells_its_story() -> None:
    deaths = _Deaths()

    async def main() -> None:
        tasks = Tasks("worker", on_death=deaths)
        tasks.start(_fail(), name="reconcile")
        await sleep(1)
        assert tasks.names() == ()

    run_virtual(main)
    [(story, error)] = deaths.stories
    assert "task worker/reconcile of worker died of ValueError: out of cheese" in story
    assert "in _fail" in story
    assert isinstance(error, ValueError)


def test_another_task_that_dies_costs_only_itself_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    deaths = _Deaths()

    async def main() -> None:
        tasks = Tasks("worker", on_death=deaths)
        task = tasks.start(_fail(), name="once", essential=False)
        with pytest.raises(ValueError, match="cheese"):
            await task

    with caplog.at_level(logging.ERROR):
        run_virtual(main)
    assert deaths.stories == []
    assert "worker/once" in caplog.text


def test_close_cancels_all_waits_for_them_and_starts_no_more() -> None:
    deaths = _Deaths()
    ended: list[str] = []

    async def live(name: str, farewell_s: float) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await sleep(farewell_s)
            ended.append(name)

    async def main() -> None:
        tasks = Tasks("api", on_death=deaths)
        tasks.start(live("a", 0.2), name="a")
        tasks.start(live("b", 0.1), name="b")
        await sleep(1)
        assert tasks.names() == ("api/a", "api/b")
        assert await tasks.close(1.0) == ()
        assert ended == ["b", "a"]
        with pytest.raises(RuntimeError, match="api is closed"):
            tasks.start(live("c", 0), name="c")

    run_virtual(main)
    assert deaths.stories == []


@pytest.mark.leaves_tasks
def test_close_names_who_does_not_end_in_time(caplog: pytest.LogCaptureFixture) -> None:
    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await sleep(60)

    async def main() -> float:
        tasks = Tasks("api", on_death=_Deaths())
        tasks.start(stubborn(), name="stubborn")
        await sleep(0)
        assert await tasks.close(2.0) == ("api/stubborn",)
        return asyncio.get_running_loop().time()

    with caplog.at_level(logging.ERROR):
        assert run_virtual(main) == pytest.approx(2.0)
    assert "in stubborn" in caplog.text


def test_a_task_may_close_its_own_owner() -> None:
    async def main() -> None:
        tasks = Tasks("node", on_death=_Deaths())

        async def stop() -> str:
            await tasks.close(1.0)
            return "stopped"

        other = tasks.start(asyncio.Event().wait(), name="other")
        assert await tasks.start(stop(), name="stop") == "stopped"
        assert other.cancelled()

    run_virtual(main)


def test_a_death_while_closing_is_logged_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    deaths = _Deaths()

    async def clumsy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("tripped over the cat")

    async def main() -> None:
        tasks = Tasks("api", on_death=deaths)
        tasks.start(clumsy(), name="clumsy")
        await sleep(0)
        await tasks.close(1.0)

    with caplog.at_level(logging.ERROR):
        run_virtual(main)
    assert deaths.stories == []
    assert "tripped over the cat" in caplog.text


def test_the_story_shows_every_await_of_every_task_and_every_thread() -> None:
    async def inner() -> None:
        await asyncio.Event().wait()

    async def outer() -> None:
        await inner()

    async def main() -> str:
        tasks = Tasks("worker", on_death=_Deaths())
        tasks.start(outer(), name="nested")
        await sleep(0)
        story = dump_story()
        await tasks.close(1.0)
        return story

    story = asyncio.run(main())
    assert "task worker/nested" in story
    assert story.index("in outer") < story.index("in inner")
    assert "MainThread" in story
    assert "0 tasks" in dump_story()


def test_timeout_and_blocking_calls_run_on_a_real_loop() -> None:
    async def main() -> int:
        with pytest.raises(TimeoutError):
            async with timeout(0.01):
                await asyncio.Event().wait()
        async with timeout(None):
            return await run_blocking(int, "2a", base=16)

    assert asyncio.run(main()) == 42
