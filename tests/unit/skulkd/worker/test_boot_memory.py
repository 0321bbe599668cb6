"""When a runner is measured, and what is told of it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from skulkd.runtime.clock import LoopClock
from skulkd.runtime.tasks import Tasks, sleep
from skulkd.runtime.virtual_time import run_virtual
from skulkd.worker.boot_memory import AGAIN_AFTER_S, BootMeter, Measured, measured_boot
from skulkd.worker.launchers.base import ProcessMemory
from tests.support.builders import GIB, MIB, a_card, a_plan, an_engine, some_arithmetic, some_facts
from tests.support.measured_boots import a_boot_key, some_memory


class Bench:
    """A meter whose runner takes what `now_bytes` says."""

    def __init__(self) -> None:
        self.now_bytes: int | None = 400 * MIB
        self.n_looks = 0
        self.told: list[int] = []
        self.tasks = Tasks("test", on_death=self._fail)
        self.meter = BootMeter(
            self._measure,
            lambda measured: self.told.append(measured.memory.total_bytes),
            clock=LoopClock(asyncio.get_running_loop()),
            tasks=self.tasks,
            name="x",
        )

    async def worked(self, now_bytes: int | None, after_s: float = AGAIN_AFTER_S) -> None:
        self.now_bytes = now_bytes
        self.meter.on_load(2)
        await sleep(after_s)
        self.meter.on_load(0)
        await sleep(0.01)

    async def _measure(self) -> Measured | None:
        self.n_looks += 1
        return (
            None if self.now_bytes is None else Measured(a_boot_key(), some_memory(self.now_bytes))
        )

    def _fail(self, story: str, _error: BaseException) -> None:
        raise AssertionError(story)


def run(story: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        bench = Bench()
        await story(bench)
        await bench.tasks.close(1.0)

    run_virtual(main)


def test_it_is_measured_when_ready_and_again_at_rest_after_work_and_growth_is_told() -> None:
    async def story(bench: Bench) -> None:
        bench.meter.on_load(0)
        await sleep(1)
        assert bench.told == [400 * MIB]
        await bench.worked(401 * MIB)
        await bench.worked(430 * MIB)
        await bench.worked(300 * MIB)
        assert bench.told == [400 * MIB, 430 * MIB]
        assert bench.n_looks == 4

    run(story)


def test_at_rest_and_in_quick_succession_nothing_is_measured() -> None:
    async def story(bench: Bench) -> None:
        for _ in range(5):
            bench.meter.on_load(0)
            await sleep(AGAIN_AFTER_S)
        assert bench.n_looks == 1
        for _ in range(10):
            await bench.worked(500 * MIB, after_s=1)
        assert bench.n_looks == 2

    run(story)


def test_a_report_is_said_again_and_what_nothing_tells_is_not_said() -> None:
    async def story(bench: Bench) -> None:
        bench.now_bytes = None
        bench.meter.on_load(0)
        await sleep(1)
        bench.meter.report_again()
        assert bench.told == []
        await bench.worked(400 * MIB)
        bench.meter.report_again()
        assert bench.told == [400 * MIB] * 2

    run(story)


def test_the_memory_of_a_gpu_is_in_no_process() -> None:
    card = a_card()
    held = ProcessMemory(mapped_bytes=0, private_bytes=GIB)
    for pool, is_told in (("ram", True), ("vram", False), ("unified", False)):
        memory = some_arithmetic().model_copy(update={"pool": pool})
        made = a_plan(card, backend="llama_server-cpu", memory=memory)
        seen = measured_boot(card, made, made.shards[0], an_engine(), some_facts(), held)
        assert (seen is not None) == is_told
