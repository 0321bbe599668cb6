"""A runner's supervisor with its real deadlines, in virtual time, over a process that is a fake."""

import asyncio
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from engines.base import (
    Endpoint,
    EngineClient,
    EngineDescription,
    EngineStatistics,
    LaunchSpec,
    LoadSpec,
    LoadStatus,
)
from protocol.commands import Command, CommandReply, ReportFailure, ReportPhase
from protocol.data_frames import Chunk, Failed, Finished, Frame, Started, TakeChunk, Usage
from protocol.errors import EngineError, RunnerError
from protocol.ids import CommandId, NodeId
from protocol.instances import Phase
from protocol.placements import Plan
from protocol.readings import InstanceReading, Reading, ReadingKey
from protocol.tasks import ChatMessage, ChatTask
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.core.lifecycle import Deadlines
from skulkd.core.meters import queue_waits
from skulkd.core.reconcile import DesiredRunner, RunnerKey
from skulkd.runtime.choices import Choices, ChoicesFile, KeptChoices
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.simulated_disk import SimulatedDisk
from skulkd.runtime.tasks import Tasks, sleep
from skulkd.runtime.virtual_time import run_virtual
from skulkd.worker.engine_run import EngineServices
from skulkd.worker.launchers.base import (
    EngineProcess,
    ExitStatus,
    LaunchOwner,
    ProcessRecord,
    ProcessUsage,
)
from skulkd.worker.pauses import Pauses
from skulkd.worker.reporter import Reporter
from skulkd.worker.steps import ANSWER_S, Artifact, MemoryGate
from skulkd.worker.supervisor import RunnerServices, RunnerSupervisor
from skulkd.worker.transfers import Transfers
from tests.support.builders import (
    MIB,
    a_command_id,
    a_digest,
    a_node_id,
    a_plan,
    a_scripted_card,
    an_engine,
    an_instance_id,
    some_arithmetic,
)
from tests.support.text_engines import NoVectors

CARD = a_scripted_card(size_bytes=100 * MIB)
LIMIT_S = 7200.0


@dataclass
class Script:
    """How the fake engine behaves; times in seconds from its spawn."""

    spawn_s: float = 0.02
    spawn_error: RunnerError | None = None
    load_s: float = 1.0
    progress_every_s: float | None = 0.1
    answer_s: float = 0.1
    words: int = 0
    """Of an answer, ten a second."""
    dies_at_s: float | None = None
    dies_of: ExitStatus = field(default_factory=lambda: ExitStatus(exit_code=3))
    heeds: frozenset[signal.Signals] = frozenset({signal.SIGTERM, signal.SIGKILL})
    gone_after_s: float = 0.01


class FakeProcess:
    """A process by script: it loads, answers, dies and heeds signals as that says."""

    pid = 4711

    def __init__(self, script: Script, owner: LaunchOwner) -> None:
        self.script = script
        self.record = ProcessRecord(
            launch_id="0" * 32, owner=owner, argv_digest=a_digest("argv"), log_path="/log"
        )
        self.exit_status: ExitStatus | None = None
        self.signals: list[tuple[float, str]] = []
        self._loop = asyncio.get_running_loop()
        self._spawned_s = self._loop.time()
        self._exited = asyncio.Event()
        if script.dies_at_s is not None:
            self._loop.call_later(script.dies_at_s, self._die, script.dies_of)

    @property
    def age_s(self) -> float:
        return self._loop.time() - self._spawned_s

    @property
    def is_loaded(self) -> bool:
        return self.age_s >= self.script.load_s

    async def wait_exit(self) -> ExitStatus:
        await self._exited.wait()
        assert self.exit_status is not None
        return self.exit_status

    async def wait_gone(self) -> None:
        await self._exited.wait()
        await sleep(self.script.gone_after_s)

    def signal_group(self, number: signal.Signals) -> None:
        self.signals.append((round(self._loop.time(), 1), number.name))
        if number in self.script.heeds:
            self._loop.call_soon(self._die, ExitStatus(signal=number.name))

    async def stop(self, grace_s: float) -> ExitStatus:
        raise AssertionError("the machine escalates, not the process")

    def owns_listener(self, port: int) -> bool:
        return True

    def usage(self) -> ProcessUsage:
        every_s = self.script.progress_every_s
        steps = 0 if every_s is None else int(self.age_s / every_s)
        return ProcessUsage(resident_bytes=(10 + 2 * steps) * MIB)

    def log_tail(self) -> tuple[str, ...]:
        return ("loading", "still loading")

    def _die(self, status: ExitStatus) -> None:
        if self.exit_status is None:
            self.exit_status = status
            self._exited.set()


class FakeEngine(NoVectors):
    """Engine, client and launcher in one: all of them speak to one process."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.process: FakeProcess | None = None
        self.n_closed = 0
        self.hangs: Literal["in a request", "wholly"] | None = None
        """Says nothing to a request; nor, wholly, how it is."""

    def describe(self) -> EngineDescription:
        raise AssertionError("nobody asks")

    def launch(self, spec: LoadSpec) -> LaunchSpec:
        return LaunchSpec(argv=("engine",), endpoint=Endpoint(socket_path=spec.socket_path))

    def connect(self, spec: LoadSpec, endpoint: Endpoint) -> EngineClient:
        return self

    async def spawn(self, spec: LaunchSpec, owner: LaunchOwner) -> EngineProcess:
        await sleep(self.script.spawn_s)
        if self.script.spawn_error is not None:
            raise self.script.spawn_error
        self.process = FakeProcess(self.script, owner)
        return self.process

    def orphans(self) -> tuple[ProcessRecord, ...]:
        return ()

    async def adopt(self, record: ProcessRecord) -> EngineProcess | None:
        return None

    async def wait_settled(self, timeout_s: float) -> None:
        return

    async def load_status(self) -> LoadStatus:
        assert self.process is not None
        if self.hangs == "wholly":
            await asyncio.Event().wait()
        return LoadStatus(loaded=self.process.is_loaded)

    async def chat(self, task: ChatTask, take: TakeChunk | None = None) -> AsyncGenerator[Frame]:
        await sleep(self.script.answer_s)
        if self.hangs is not None and (task.max_tokens or 0) > 1:
            raise EngineError("engine.gone", "the engine sent nothing for 600 s")
        yield Started(1)
        for _ in range(self.script.words if (task.max_tokens or 0) > 1 else 0):
            await sleep(0.1)
            yield Chunk(text="word ")
        yield Finished("length", Usage(1, max(1, self.script.words)))

    async def count_tokens(self, task: ChatTask) -> int:
        return 1

    async def statistics(self) -> EngineStatistics:
        return EngineStatistics(slots=2, slots_busy=0, context_tokens=4096)

    async def close(self) -> None:
        self.n_closed += 1


class NoStore:
    def locate(self, card: object) -> None:
        raise AssertionError("a script has no files")

    async def ensure(self, card: object, progress: object = None) -> Artifact:
        raise AssertionError("a script has no files")


def no_pauses(table: ReadingsTable, clock: LoopClock) -> Pauses:
    choices = KeptChoices(ChoicesFile(SimulatedDisk(), Path("/choices.json")), Choices())
    return Pauses(a_node_id(), choices=choices, table=table, clock=clock)


class Bench:
    """One supervisor and what it reports."""

    def __init__(
        self,
        script: Script,
        *,
        delay_s: float = 0.0,
        plan: Plan | None = None,
        host_bytes: int = 1 << 40,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.engine = FakeEngine(script)
        self.reports: list[tuple[float, Command]] = []
        self.table = ReadingsTable()
        self.tasks = Tasks("test", on_death=self._fail)
        self.n_minted = 0
        self.n_ended = 0
        clock = LoopClock(self.loop)
        self.reporter = Reporter(self, self.tasks)
        gate = MemoryGate(lambda: 1 << 40, clock)
        engines = EngineServices(
            clock=clock,
            launcher=self.engine,
            engine_of=lambda _name: self.engine,
            transfers=Transfers(
                a_node_id(),
                NoStore(),
                table=self.table,
                reporter=self.reporter,
                gateway=self,
                clock=clock,
                tasks=self.tasks,
                pauses=no_pauses(self.table, clock),
            ),
            gateway=self,
            builds=lambda: (an_engine("scripted"),),
            memory=lambda _memory: gate,
            host_memory=MemoryGate(lambda: host_bytes, clock),
            n_threads=lambda: 2,
            sockets=Path("/nowhere"),
            default_max_tokens=64,
            queue_waits=queue_waits(),
        )
        services = RunnerServices(
            node_id=a_node_id(),
            clock=clock,
            tasks=self.tasks,
            engines=engines,
            oom_kills=lambda: 0,
            reporter=self.reporter,
            table=self.table,
            deadlines=Deadlines(),
        )
        desired = DesiredRunner(
            key=RunnerKey(an_instance_id(), 0, 1),
            wish="running",
            plan=plan or a_plan(CARD, slots=4),
            card=CARD,
            delay_s=delay_s,
        )
        self.runner = RunnerSupervisor(desired, services, self._ended)
        self.runner.start()

    def mint_command_id(self) -> CommandId:
        self.n_minted += 1
        return a_command_id(self.n_minted)

    async def submit(self, command: Command) -> CommandReply:
        self.reports.append((self.loop.time(), command))
        return CommandReply(command_id=command.command_id, term=1, seq=1, durable="local")

    @property
    def phases(self) -> list[Phase]:
        return [c.phase for _, c in self.reports if isinstance(c, ReportPhase)]

    async def failure(self) -> tuple[float, ReportFailure]:
        await self.runner.wait_ended()
        await self.reporter.wait_idle()
        ((at_s, report),) = [(t, c) for t, c in self.reports if isinstance(c, ReportFailure)]
        return at_s, report

    async def wait_ready(self) -> float:
        while self.runner.observed.phase != "ready":
            assert not self.runner.has_ended
            await sleep(0.05)
        return self.loop.time()

    async def close(self) -> None:
        assert self.runner.has_ended
        assert self.n_ended == 1
        assert await self.tasks.close(1.0) == ()

    def _ended(self) -> None:
        self.n_ended += 1

    def _fail(self, story: str, _error: BaseException) -> None:
        raise AssertionError(story)


def a_chat_task(number: int = 99) -> ChatTask:
    return ChatTask(
        command_id=a_command_id(number),
        model_id=CARD.model_id,
        messages=(ChatMessage(role="user", content="x"),),
        max_tokens=1000,
    )


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_virtual(story, limit_s=LIMIT_S)


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
