"""The runner child's loop, with an engine that counts instead of computing."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path

import pytest

from engines.base import EngineStatistics
from engines.in_process import Report
from engines.runner_client import RunnerClient
from engines.runner_wire import read_message
from protocol.data_frames import Chunk, Failed, Finished, Frame, Started, Usage
from protocol.errors import EngineError, ProtocolError, RequestError
from protocol.frame_wire import unpack_frame
from protocol.tasks import ChatTask
from skulkd.runner.loop import RunnerLoop
from tests.support.engine_process import a_task, failed, frames_of, short_directory, text_of
from tests.support.patience import allowed_s

OVER = Finished("stop", Usage(1, 3))


class CountingEngine:
    """Says as many numbers as a task allows, a step each, once it may."""

    def __init__(self, *, may_load: threading.Event | None = None) -> None:
        self.may_load = may_load
        self.fails_loading: Exception | None = None
        self.fails_in_step: Exception | None = None
        self.left: dict[int, int] = {}
        self.cancelled: list[int] = []
        self.threads: set[int] = set()

    @property
    def has_work(self) -> bool:
        return bool(self.left)

    def load(self, report: Report) -> None:
        if self.fails_loading is not None:
            raise self.fails_loading
        report(0.5, "counting to one")
        if self.may_load is not None:
            self.may_load.wait(allowed_s(10))

    def submit(self, request_id: int, task: ChatTask) -> None:
        if task.messages[0].content == "refuse":
            raise RequestError("request.invalid", "no")
        self.left[request_id] = task.max_tokens or 0

    def cancel(self, request_id: int) -> None:
        if self.left.pop(request_id, None) is not None:
            self.cancelled.append(request_id)

    def step(self) -> list[tuple[int, Frame]]:
        self.threads.add(threading.get_ident())
        if self.fails_in_step is not None:
            raise self.fails_in_step
        frames: list[tuple[int, Frame]] = []
        for request_id, n_left in tuple(self.left.items()):
            self.left[request_id] = n_left - 1
            frames.append((request_id, Chunk(str(n_left)) if n_left else OVER))
            if not n_left:
                del self.left[request_id]
        return frames

    def count_tokens(self, task: ChatTask) -> int:
        return self.count_text(task.messages[0].content)

    def count_text(self, text: str) -> int:
        return len(text.split())

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(slots=4, slots_busy=len(self.left), context_tokens=64)


def served(engine: CountingEngine, story: Callable[[RunnerClient, Path], Awaitable[None]]) -> None:
    """Run the loop for as long as a story lasts."""

    async def run() -> None:
        with short_directory() as directory, ThreadPoolExecutor(1) as executor:
            path = directory / "runner.sock"
            serving = asyncio.create_task(RunnerLoop(path, lambda: engine, executor).run())
            client = RunnerClient(path)
            async with asyncio.timeout(allowed_s(10)):
                while not (await client.load_status()).note and not path.exists():
                    await asyncio.sleep(0.01)
                await story(client, path)
            # A step that fails is how the engine's thread is ended here.
            engine.fails_in_step = RuntimeError("the end of the test")
            ending = asyncio.create_task(frames_of(client, a_task(max_tokens=1)))
            assert await serving != 0
            await client.close()
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)

    asyncio.run(run())


async def until_loaded(client: RunnerClient) -> None:
    while not (await client.load_status()).loaded:
        await asyncio.sleep(0.01)


def test_questions_are_answered_in_one_thread_beside_the_answers() -> None:
    engine = CountingEngine()

    async def story(client: RunnerClient, path: Path) -> None:
        await until_loaded(client)
        assert path.stat().st_mode & 0o077 == 0
        tasks = [a_task(max_tokens=3), a_task(max_tokens=5)]
        three, five = await asyncio.gather(*(frames_of(client, task) for task in tasks))
        assert (text_of(three), three[-1]) == ("321", OVER)
        assert text_of(five) == "54321"
        assert await client.count_text("a b c") == 3
        assert await client.count_tokens(a_task("d e")) == 2
        seen = await client.statistics()
        assert (seen.slots, seen.slots_busy, seen.context_tokens) == (4, 0, 64)
        assert len(engine.threads) == 1
        assert engine.threads != {threading.get_ident()}

    served(engine, story)


def test_a_load_is_told_as_far_as_it_is_and_answers_nothing_before() -> None:
    may_load = threading.Event()

    async def story(client: RunnerClient, _path: Path) -> None:
        while (seen := await client.load_status()).note != "counting to one":
            await asyncio.sleep(0.01)
        assert (seen.loaded, seen.done_ratio) == (False, 0.5)
        assert failed(await frames_of(client, a_task())).error.code == "engine.busy"
        with pytest.raises(EngineError):
            await client.statistics()
        may_load.set()
        await until_loaded(client)

    served(CountingEngine(may_load=may_load), story)


def test_an_answer_that_nobody_waits_for_is_cancelled() -> None:
    engine = CountingEngine()

    async def story(client: RunnerClient, _path: Path) -> None:
        await until_loaded(client)
        async with aclosing(client.chat(a_task(max_tokens=10_000_000))) as frames:
            assert isinstance(await anext(frames), Chunk)
        while (await client.statistics()).slots_busy:
            await asyncio.sleep(0.01)
        assert len(engine.cancelled) == 1

    served(engine, story)


def test_a_refusal_is_the_only_frame_and_costs_nobody_else_anything() -> None:
    async def story(client: RunnerClient, _path: Path) -> None:
        await until_loaded(client)
        refused, counted = await asyncio.gather(
            frames_of(client, a_task("refuse")), frames_of(client, a_task(max_tokens=2))
        )
        assert [type(frame) for frame in refused] == [Failed]
        assert failed(refused).error.code == "request.invalid"
        assert text_of(counted) == "21"

    served(CountingEngine(), story)


@pytest.mark.parametrize(
    "sent", [b"\x7f\xff\xff\xff", b"\x00\x00\x00\x01\x01", b"\x00\x00\x00\x02\x91\xa1"]
)
def test_what_is_no_question_is_refused_or_dropped(sent: bytes) -> None:
    async def story(client: RunnerClient, path: Path) -> None:
        await until_loaded(client)
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(sent)
        writer.write_eof()
        try:
            frame = unpack_frame(await read_message(reader))
        except (EOFError, ProtocolError):
            frame = Started()
        assert not isinstance(frame, Chunk | Finished)
        writer.close()
        assert await client.count_text("a b") == 2, "it serves on"

    served(CountingEngine(), story)


def test_a_load_that_fails_ends_the_process_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> int:
        engine = CountingEngine()
        engine.fails_loading = EngineError("engine.request_failed", "weights.safetensors: torn")
        with short_directory() as directory, ThreadPoolExecutor(1) as executor:
            return await RunnerLoop(directory / "runner.sock", lambda: engine, executor).run()

    assert asyncio.run(run()) == 1
    assert "the model cannot be loaded: weights.safetensors: torn" in caplog.text
