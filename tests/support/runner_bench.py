"""A runner's supervisor over an engine and a process that are fakes, in virtual time."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

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
from protocol.data_frames import Chunk, Finished, Frame, Started, TakeChunk, Usage
from protocol.errors import EngineError, RunnerError
from protocol.ids import CommandId
from protocol.instances import Phase
from protocol.nodes import EngineFacts
from protocol.placements import Plan
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
    ProcessMemory,
    ProcessRecord,
    ProcessUsage,
)
from skulkd.worker.pauses import Pauses
from skulkd.worker.reporter import Reporter
from skulkd.worker.steps import Artifact, MemoryGate
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
    some_facts,
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

    def memory(self, model: Path) -> ProcessMemory | None:
        """Say nothing: it has no mappings."""
        del model

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
        self.trapped: list[EngineFacts] = []
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
            facts=some_facts,
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
            on_trapped=self.trapped.append,
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
