"""A runner's supervisor with its real deadlines, in virtual time, over a process that is a fake."""

import signal
from collections.abc import AsyncIterator
from typing import Literal

import pytest

from engines.base import (
    LaunchSpec,
    LoadSpec,
)
from protocol.commands import ReportPhase
from protocol.data_frames import Failed, Finished, Frame, Started
from protocol.errors import RunnerError
from protocol.ids import NodeId
from protocol.instances import Phase
from protocol.readings import InstanceReading, Reading, ReadingKey
from skulkd.runtime.tasks import sleep
from skulkd.worker.launchers.base import ExitStatus
from skulkd.worker.steps import ANSWER_S
from tests.support.builders import (
    MIB,
    a_plan,
    an_instance_id,
    some_arithmetic,
)
from tests.support.runner_bench import (
    CARD,
    Bench,
    Script,
    a_chat_task,
    run,
)


@pytest.mark.parametrize(("pool", "is_refused"), [("vram", True), ("ram", False)])
def test_a_model_on_a_gpu_needs_some_memory_of_its_machine_too(
    pool: Literal["vram", "ram"], is_refused: bool
) -> None:
    async def story() -> None:
        memory = some_arithmetic().model_copy(update={"pool": pool})
        bench = Bench(Script(), plan=a_plan(CARD, slots=4, memory=memory), host_bytes=64 * MIB)
        if is_refused:
            _, failure = await bench.failure()
            assert (failure.phase, failure.error.code) == ("stage", "runner.no_memory")
        else:
            await bench.wait_ready()
            bench.runner.stop()
            await bench.runner.wait_ended()
        await bench.close()

    run(story)


@pytest.mark.parametrize("hangs", ["in a request", "wholly"])
def test_b29_busy_is_not_dead_and_an_engine_that_answers_nobody_is_ended(
    hangs: Literal["in a request", "wholly"],
) -> None:
    async def story() -> None:
        bench = Bench(Script())
        await bench.wait_ready()
        assert bench.runner.serving is not None
        bench.engine.hangs = hangs
        for number in (98, 99):
            frames = [frame async for frame in bench.runner.serving.chat(a_chat_task(number))]
            assert isinstance(frames[-1], Failed)
            assert frames[-1].error.code == "engine.gone"
        if hangs == "wholly":
            _, failure = await bench.failure()
            assert (failure.was_ready, failure.error.code) == (True, "engine.gone")
            assert "answers no question either" in failure.error.message
            assert bench.engine.process is not None
            assert bench.engine.process.signals[0][1] == "SIGTERM"
        else:
            await sleep(2 * ANSWER_S)
            assert bench.runner.observed.phase == "ready"
            bench.runner.stop()
            await bench.runner.wait_ended()
        await bench.close()

    run(story)


def test_b34_an_engine_ends_when_what_it_computes_on_is_gone_and_no_other_does() -> None:
    async def story() -> None:
        bench = Bench(Script())
        await bench.wait_ready()
        bench.runner.lose_devices({"cuda", "vulkan"}, "RTX 4080")
        await sleep(10.0)
        assert bench.runner.observed.phase == "ready"
        bench.runner.lose_devices({"cpu"}, "the device of this plan")
        _, failure = await bench.failure()
        assert (failure.was_ready, failure.error.code) == (True, "engine.gone")
        assert "the device of this plan" in failure.error.message
        await bench.close()

    run(story)


@pytest.mark.parametrize(("ended_by", "is_told"), [("SIGILL", True), ("SIGKILL", False)])
def test_a_build_that_traps_with_its_first_model_is_told(ended_by: str, is_told: bool) -> None:
    async def story() -> None:
        bench = Bench(Script(dies_at_s=0.5, dies_of=ExitStatus(signal=ended_by)))
        await bench.failure()
        assert bool(bench.trapped) == is_told
        await bench.close()

    run(story)


def test_phases_are_reported_in_order_and_the_launch_with_ready() -> None:
    async def story() -> None:
        bench = Bench(Script())
        await bench.wait_ready()
        await bench.reporter.wait_idle()
        assert bench.phases == ["download", "stage", "spawn", "load", "probe", "ready"]
        ready = bench.reports[-1][1]
        assert isinstance(ready, ReportPhase)
        assert ready.launch is not None
        # The engine said that it runs with fewer slots than were planned.
        assert (ready.pid, ready.launch.slots) == (4711, 2)
        assert 1000 <= ready.launch.load_ms < 2000
        assert bench.table.readings.instances[an_instance_id()].slots == 2
        bench.runner.stop()
        await bench.runner.wait_ended()
        assert bench.engine.n_closed == 1
        await bench.close()

    run(story)


def test_how_fast_it_answers_is_told_while_it_does_and_nothing_at_rest() -> None:
    async def story() -> None:
        bench = Bench(Script(words=300))
        await bench.wait_ready()
        told: list[tuple[float, float | None]] = []

        def on_reading(_node: NodeId, _key: ReadingKey, reading: Reading | None) -> None:
            if isinstance(reading, InstanceReading):
                told.append((bench.loop.time(), reading.tokens_per_s))

        bench.table.subscribe(on_reading)
        serving = bench.runner.serving
        assert serving is not None
        frames = [frame async for frame in serving.chat(a_chat_task())]
        assert len(frames) == 302
        ended_s = bench.loop.time()
        await sleep(60)
        rates = [rate for at_s, rate in told if ended_s - 20 < at_s < ended_s]
        assert len(rates) <= 11  # every two seconds, however many tokens there are
        assert all(rate is not None and 8 <= rate <= 12 for rate in rates)
        last_s, last = told[-1]
        assert last == pytest.approx(0.0)
        assert last_s < ended_s + 12  # and then it is silent
        bench.runner.stop()
        await bench.runner.wait_ended()
        await bench.close()

    run(story)


def test_a_runner_that_stops_in_an_answer_leaves_nothing_behind_that_tells() -> None:
    async def story() -> None:
        bench = Bench(Script(words=10_000))
        await bench.wait_ready()
        serving = bench.runner.serving
        assert serving is not None
        answer = serving.chat(a_chat_task())
        assert await anext(answer) == Started(1)
        bench.runner.stop()
        assert isinstance([frame async for frame in answer][-1], Failed)
        await bench.runner.wait_ended()
        await bench.close()

    run(story)


async def collect(frames: AsyncIterator[Frame]) -> list[Frame]:
    return [frame async for frame in frames]


def test_a_drained_runner_ends_its_answer_whole_and_then_at_once() -> None:
    async def story() -> None:
        bench = Bench(Script(words=300))
        await bench.wait_ready()
        serving = bench.runner.serving
        assert serving is not None
        answer = serving.chat(a_chat_task())
        frames = [await anext(answer)]
        bench.runner.drain(60.0)
        (late,) = await collect(serving.chat(a_chat_task(98)))
        assert isinstance(late, Failed)
        assert (late.error.code, late.error.retry_after_s) == ("engine.draining", 1)
        await sleep(20.0)
        bench.runner.drain(60.0)
        assert bench.runner.observed.phase == "ready"
        frames += await collect(answer)
        assert len(frames) == 302
        assert isinstance(frames[-1], Finished)
        ended_s = bench.loop.time()
        await bench.runner.wait_ended()
        assert bench.loop.time() - ended_s < 1.0
        await bench.close()

    run(story)


def test_what_has_not_ended_at_the_deadline_of_a_drain_ends_with_an_error_that_says_so() -> None:
    async def story() -> None:
        bench = Bench(Script(words=10_000))
        await bench.wait_ready()
        serving = bench.runner.serving
        assert serving is not None
        answer = serving.chat(a_chat_task())
        assert await anext(answer) == Started(1)
        begun_s = bench.loop.time()
        for _ in range(3):  # as each look of the worker says it
            bench.runner.drain(30.0)
            await sleep(1.0)
        last = (await collect(answer))[-1]
        assert isinstance(last, Failed)
        assert last.error.code == "engine.gone"
        assert "time that its requests had to end was over" in last.error.message
        assert bench.loop.time() - begun_s == pytest.approx(30.0)
        await bench.runner.wait_ended()
        await bench.close()

    run(story)


def test_a_drain_of_what_answers_nobody_is_a_stop_and_a_stop_cuts_a_drain_short() -> None:
    async def story() -> None:
        idle = Bench(Script())
        at_s = await idle.wait_ready()
        idle.runner.drain(60.0)
        await idle.runner.wait_ended()
        assert idle.loop.time() - at_s < 1.0
        await idle.close()
        busy = Bench(Script(words=10_000))
        await busy.wait_ready()
        serving = busy.runner.serving
        assert serving is not None
        answer = serving.chat(a_chat_task())
        assert await anext(answer) == Started(1)
        busy.runner.drain(60.0)
        busy.runner.stop()
        last = (await collect(answer))[-1]
        assert isinstance(last, Failed)
        assert last.error.message == "the instance was stopped"
        await busy.runner.wait_ended()
        await busy.close()

    run(story)


def test_ten_minutes_of_loading_with_a_sign_of_life_every_20_seconds_are_left_alone() -> None:
    async def story() -> None:
        bench = Bench(Script(load_s=600.0, progress_every_s=20.0))
        assert 600.0 <= await bench.wait_ready() < 602.0
        bench.runner.stop()
        await bench.runner.wait_ended()
        await bench.close()

    run(story)


def test_a_load_without_a_sign_of_life_is_ended_after_a_minute() -> None:
    async def story() -> None:
        bench = Bench(Script(load_s=600.0, progress_every_s=None))
        at_s, report = await bench.failure()
        assert 60.0 <= at_s < 61.0
        assert report.error.code == "runner.load_stalled"
        assert report.log_tail == ("loading", "still loading")
        await bench.close()

    run(story)


@pytest.mark.parametrize("phase", ["load", "probe", "ready"])
def test_a_death_is_reported_at_once_with_status_and_last_lines(phase: Phase) -> None:
    dies_at_s = {"load": 0.5, "probe": 2.0, "ready": 30.0}[phase]

    async def story() -> None:
        answer_s = 5.0 if phase == "probe" else 0.1
        bench = Bench(Script(dies_at_s=dies_at_s, answer_s=answer_s, gone_after_s=3.0))
        at_s, report = await bench.failure()
        assert at_s - dies_at_s < 0.2
        assert (report.phase, report.exit_code) == (phase, 3)
        assert report.was_ready == (phase == "ready")
        assert report.log_tail == ("loading", "still loading")
        # The memory is free only when the whole group is gone.
        assert bench.loop.time() - at_s > 2.9
        await bench.close()

    run(story)


def test_an_engine_that_does_not_answer_its_first_request_is_ended_after_a_minute() -> None:
    async def story() -> None:
        bench = Bench(Script(answer_s=1000.0))
        at_s, report = await bench.failure()
        assert 60.0 <= at_s < 63.0
        assert report.error.code == "runner.probe_failed"
        await bench.close()

    run(story)


def test_what_ignores_sigterm_is_killed_after_five_seconds_and_again_until_it_is_gone() -> None:
    async def story() -> None:
        bench = Bench(Script(heeds=frozenset({signal.SIGKILL})))
        ready_s = await bench.wait_ready()
        bench.runner.stop()
        await bench.runner.wait_ended()
        assert bench.engine.process is not None
        names = [name for _, name in bench.engine.process.signals]
        assert names == ["SIGTERM", "SIGKILL"]
        assert 5.0 <= bench.loop.time() - ready_s < 5.5
        await bench.close()

    run(story)


def test_a_stop_during_the_spawn_awaits_the_process_and_ends_it() -> None:
    async def story() -> None:
        bench = Bench(Script(spawn_s=3.0))
        await sleep(1.0)
        assert bench.runner.observed.phase == "spawn"
        bench.runner.stop()
        await bench.runner.wait_ended()
        assert bench.engine.process is not None
        assert [name for _, name in bench.engine.process.signals] == ["SIGTERM"]
        assert bench.loop.time() < 4.0
        await bench.close()

    run(story)


def test_a_spawn_that_fails_is_reported_as_it_was_said() -> None:
    async def story() -> None:
        error = RunnerError("runner.spawn_failed", "No such file")
        bench = Bench(Script(spawn_error=error))
        _, report = await bench.failure()
        assert (report.error.code, report.error.message) == ("runner.spawn_failed", "No such file")
        await bench.close()

    run(story)


def test_a_delayed_attempt_waits_and_can_be_stopped_meanwhile() -> None:
    async def story() -> None:
        bench = Bench(Script(), delay_s=25.0)
        await sleep(24.0)
        assert bench.runner.observed.phase == "pending"
        assert bench.reports == []
        bench.runner.stop()
        await bench.runner.wait_ended()
        assert bench.engine.process is None
        await bench.close()

    run(story)


def test_a_bug_in_a_step_costs_the_instance_and_not_the_daemon() -> None:
    async def story() -> None:
        bench = Bench(Script(spawn_error=None))
        bench.engine.launch = _broken  # pyright: ignore[reportAttributeAccessIssue]  a bug, made
        _, report = await bench.failure()
        assert report.error.code == "internal.bug"
        assert report.error.message == "ZeroDivisionError: made"
        await bench.close()

    run(story)


def _broken(_spec: LoadSpec) -> LaunchSpec:
    raise ZeroDivisionError("made")
