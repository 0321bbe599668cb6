"""Drives one runner: executes what `core.lifecycle` asks for, and tells it what happened.

The machine decides; nothing here does. Inputs are handed over on the event loop, effects start
tasks and never hand over an input themselves, so the machine is never entered twice.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, replace
from typing import Final, assert_never, final

from protocol.cards import ModelCard
from protocol.clock import Clock
from protocol.commands import ReportFailure, ReportMemory, ReportPhase
from protocol.errors import ErrorBody, RunnerError, SkulkError
from protocol.ids import NodeId
from protocol.instances import LaunchRecord, Phase
from protocol.nodes import EngineFacts
from protocol.placements import Plan
from protocol.readings import MAX_WAITING, InstanceReading, WaitingTask
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.cluster.tunnels import Serve
from skulkd.core.lifecycle import (
    ArtifactReady,
    CancelStep,
    Deadlines,
    DeviceLost,
    Drained,
    Effect,
    FailureReached,
    FetchArtifact,
    GroupGone,
    Hung,
    Input,
    Loaded,
    PhaseReached,
    ProbeAnswered,
    ProbeEngine,
    Progressed,
    RankLost,
    RefuseRequests,
    RunnerMachine,
    RunnerSpec,
    SignalGroup,
    Spawned,
    SpawnProcess,
    StageArtifact,
    Staged,
    StepFailed,
    Stop,
    WatchLoad,
)
from skulkd.core.reconcile import DesiredRunner, ObservedRunner, RunnerKey
from skulkd.core.runner_errors import Exited
from skulkd.core.throughput import PERIOD_S
from skulkd.runtime.pacing import Paced
from skulkd.runtime.tasks import Tasks, run_blocking, sleep, timeout
from skulkd.worker import steps
from skulkd.worker.boot_memory import BootMeter, Measured
from skulkd.worker.engine_run import EngineRun, EngineServices
from skulkd.worker.launchers.base import EngineProcess
from skulkd.worker.reporter import Reporter
from skulkd.worker.serving import Serving

_log = logging.getLogger(__name__)

Step = Callable[[], Coroutine[None, None, Input]]
"""Made when its task runs: one that is cancelled before then leaves no coroutine behind."""

_REPORTED: Final[frozenset[Phase]] = frozenset(
    {"download", "stage", "spawn", "load", "probe", "ready"}
)
"""The end of a runner is told otherwise: a failure as such, a stop by reconcile."""
LOAD_PERIOD_S: Final = 0.05
"""Between two readings of the load: told twice a request, they took a tenth of its processor time,
and peers hear of them five times a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerServices:
    """What all runners of a worker share."""

    node_id: NodeId
    clock: Clock
    tasks: Tasks
    engines: EngineServices
    oom_kills: Callable[[], int | None]
    """Counts the processes that the kernel killed for want of memory."""
    reporter: Reporter
    table: ReadingsTable
    deadlines: Deadlines
    on_trapped: Callable[[EngineFacts], None]
    """Told of a build that this processor cannot execute, as its first model has shown."""


@final
class RunnerSupervisor:
    """One attempt of one rank.

    Args:
        desired: What the state wants.
        services: What it shares with the others.
        on_ended: Called once, when nothing of it is left.
    """

    def __init__(
        self, desired: DesiredRunner, services: RunnerServices, on_ended: Callable[[], None]
    ) -> None:
        self._key = desired.key
        self._card: ModelCard = desired.card
        self._plan: Plan = desired.plan
        self._services = services
        self._on_ended = on_ended
        self._machine = RunnerMachine(
            RunnerSpec(
                key=desired.key,
                node_id=services.node_id,
                size_bytes=desired.card.storage_size.in_bytes,
                delay_s=desired.delay_s,
            ),
            now=services.clock.monotonic_s(),
            deadlines=services.deadlines,
        )
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self._step: asyncio.Task[None] | None = None
        self._run = EngineRun(
            desired.key,
            desired.plan,
            desired.card,
            services.engines,
            on_lost=lambda error: self._give(RankLost(error=error)),
        )
        self._boot_meter = BootMeter(
            self._run.measure_memory,
            self._put_memory,
            clock=services.clock,
            tasks=services.tasks,
            name=desired.key.instance_id,
        )
        self._probed: Serving | None = None
        self._serving: Serving | None = None
        self._spawned_at_s = 0.0
        self._report: ReportPhase | ReportFailure | None = None
        """The last one."""
        self._said_at_s = 0.0
        self._stop_error = _stopped()
        self._load_changed = Paced(self._put_load, LOAD_PERIOD_S)
        self._look: asyncio.Task[None] | None = None
        """Whether the engine is there still."""
        self._meter: asyncio.Task[None] | None = None
        """Tells how fast the engine is, while it answers."""

    def report_again(self) -> None:
        """Say anew how far this runner is: what was said before may be in no log any more."""
        if self._report is not None:
            command_id = self._services.engines.gateway.mint_command_id()
            self._put(self._report.model_copy(update={"command_id": command_id}))
            self._boot_meter.report_again()

    @property
    def key(self) -> RunnerKey:
        """Which attempt of which rank this is."""
        return self._key

    @property
    def card(self) -> ModelCard:
        """What it runs."""
        return self._card

    @property
    def observed(self) -> ObservedRunner:
        """Where it stands, for `reconcile`."""
        phase, serving = self._machine.phase, self._serving
        now = self._services.clock.monotonic_s()
        said_s = 0.0 if self._services.reporter.is_sending else now - self._said_at_s
        seen = ObservedRunner(key=self._key, phase=phase, said_s=said_s)
        if serving is None:
            return seen
        since_s = serving.idle_since_s
        if since_s is None:
            return replace(seen, is_busy=True)
        return replace(seen, idle_s=now - since_s, keep_s=serving.keep_s)

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it is left."""
        return self._ended.is_set()

    @property
    def serving(self) -> Serving | None:
        """The way to its engine, while it is ready."""
        return self._serving

    def start(self) -> None:
        """Begin."""
        self._services.tasks.start(self._keep_time(), name=f"runner {self._key.instance_id}")

    def lose_devices(self, computes: Collection[str], names: str) -> None:
        """End the engine if what it computes on is gone: it may go on with the CPU unasked.

        Args:
            computes: What nothing here can compute on any more, such as `cuda`.
            names: Of the devices.
        """
        if steps.compute_of(self._plan) in computes:
            self._give(DeviceLost(name=names))

    def stop(self, error: ErrorBody | None = None) -> None:
        """End the runner in whatever phase it is; its streams end with `error`. Idempotent."""
        self._stop_error = error or _stopped()
        self._give(Stop())

    def way_in(self, peer: NodeId) -> Serve | None:
        """Say who serves a stream of another node to this rank; None when it may not come."""
        return self._run.way_in(peer)

    def drain(self, drain_s: float) -> None:
        """End the runner once it has answered what it has, at the latest in `drain_s` seconds.

        Idempotent: the time counts from the first call, and a later one may only shorten it.
        """
        if self._serving is None or not self._serving.n_open:
            self.stop()
        else:
            self._stop_error = _out_of_time()
            self._give(Stop(drain_s=drain_s))

    async def wait_ended(self) -> None:
        """Wait until nothing of it is left."""
        await self._ended.wait()

    async def _keep_time(self) -> None:
        clock = self._services.clock
        while not self._machine.ended:
            deadline = self._machine.deadline
            self._changed.clear()
            try:
                async with timeout(
                    None if deadline is None else max(0.0, deadline - clock.monotonic_s())
                ):
                    await self._changed.wait()
            except TimeoutError:
                self._apply(self._machine.tick(now=clock.monotonic_s()))
        await self._finish()

    def _give(self, given: Input) -> None:
        if self._machine.ended:
            return
        self._apply(self._machine.handle(given, now=self._services.clock.monotonic_s()))
        self._changed.set()

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._execute(effect)
        now = self._services.clock.monotonic_s()
        self._services.table.put_progress(self._machine.progress(now=now))

    def _execute(self, effect: Effect) -> None:
        match effect:
            case PhaseReached():
                self._on_phase(effect)
            case FailureReached():
                self._on_failure(effect)
            case CancelStep():
                # A spawn cannot be called back: its end is awaited and then torn down.
                if effect.phase != "spawn" and self._step is not None:
                    self._step.cancel()
            case SignalGroup():
                if self._run.process is not None:
                    self._run.process.signal_group(signal.Signals[effect.signal])
            case RefuseRequests():
                if self._serving is not None:
                    self._serving.drain(_draining(), lambda: self._give(Drained()))
            case _:
                self._begin_step(effect)

    def _begin_step(
        self, effect: FetchArtifact | StageArtifact | SpawnProcess | WatchLoad | ProbeEngine
    ) -> None:
        match effect:
            case FetchArtifact():
                self._begin("download", self._fetch)
            case StageArtifact():
                self._begin("stage", self._stage)
            case SpawnProcess():
                self._begin("spawn", self._spawn)
            case WatchLoad():
                self._begin("load", self._load)
            case ProbeEngine():
                self._begin("probe", self._probe)
            case _:
                assert_never(effect)

    def _begin(self, phase: Phase, step: Step) -> None:
        name = f"{phase} {self._key.instance_id}"
        self._step = self._services.tasks.start(
            self._run_step(phase, step), name=name, essential=False
        )

    async def _run_step(self, phase: Phase, step: Step) -> None:
        try:
            done = await step()
        except SkulkError as error:
            self._give(StepFailed(phase=phase, error=error.body()))
        # ruff: ignore[blind-except]  a bug costs this instance, with its story, and not the node
        except Exception as error:
            _log.exception("a bug in phase %s", phase)
            self._give(StepFailed(phase=phase, error=_bug(error)))
        else:
            self._give(done)

    async def _fetch(self) -> Input:
        if self._run.needs_files:
            await self._services.engines.transfers.ensure(self._card, self._progressed)
        return ArtifactReady()

    async def _stage(self) -> Input:
        await self._run.stage(
            lambda note: self._progressed(None, None, note), self._services.deadlines.group_s
        )
        return Staged()

    async def _spawn(self) -> Input:
        oom_kills = self._services.oom_kills()
        self._spawned_at_s = self._services.clock.monotonic_s()
        process = await self._run.spawn()
        self._services.tasks.start(
            self._watch(process, oom_kills), name=f"watch {process.pid}", essential=False
        )
        return Spawned(pid=process.pid)

    async def _load(self) -> Input:
        size_bytes = self._card.storage_size.in_bytes
        await self._run.load(
            lambda progress: self._progressed(progress.done_bytes, size_bytes, progress.note)
        )
        return Loaded()

    async def _probe(self) -> Input:
        self._probed = await self._run.probe(self._load_changed)
        return ProbeAnswered()

    def _progressed(self, done_bytes: int | None, total_bytes: int | None, note: str) -> None:
        self._give(Progressed(done_bytes=done_bytes, total_bytes=total_bytes, note=note))

    async def _watch(self, process: EngineProcess, oom_kills_before: int | None) -> None:
        status = await process.wait_exit()
        log_tail = await run_blocking(process.log_tail)
        oom_kills = self._services.oom_kills()
        self._give(
            Exited(
                exit_code=status.exit_code,
                signal=status.signal,
                oom_killed=(oom_kills or 0) > (oom_kills_before or 0),
                log_tail=log_tail,
            )
        )
        while not await self._is_gone(process):
            pass
        self._give(GroupGone())

    async def _is_gone(self, process: EngineProcess) -> bool:
        try:
            await process.wait_gone()
        except RunnerError as error:
            _log.error("%s", error.message, extra={"command_id": self._key.instance_id})
            return False
        return True

    def _on_phase(self, reached: PhaseReached) -> None:
        if reached.phase == "ready":
            self._serving = self._probed
            if self._serving is not None:
                self._serving.when_gone(self._look_for_life)
            self._put_load()
        elif reached.phase not in _REPORTED:
            self._end_serving(self._stop_error)
        if reached.phase not in _REPORTED:
            return
        key, services = self._key, self._services
        self._put(
            ReportPhase(
                command_id=services.engines.gateway.mint_command_id(),
                instance_id=key.instance_id,
                node_id=services.node_id,
                rank=key.rank,
                attempt=key.attempt,
                phase=reached.phase,
                pid=reached.pid,
                launch=self._launch_record() if self._serving is not None else None,
            )
        )

    def _look_for_life(self) -> None:
        """See whether an engine that was silent to one request is there; one look at a time."""
        if self._look is None or self._look.done():
            self._look = self._services.tasks.start(
                self._see_if_hung(), name=f"look at {self._key.instance_id}", essential=False
            )

    async def _see_if_hung(self) -> None:
        """Busy is not dead: an engine that gets on with any request is left alone."""
        if await self._run.is_answering() or self._serving is None:
            return
        if not self._serving.throughput.rate(self._services.clock.monotonic_s()):
            self._give(Hung())

    def _on_failure(self, failure: FailureReached) -> None:
        key, services = self._key, self._services
        self._end_serving(_gone(failure.error))
        build = self._run.build
        if failure.error.code == "engine.cpu_unsupported" and build is not None:
            services.on_trapped(build)
        log_tail = failure.log_tail
        if not log_tail and self._run.process is not None:
            log_tail = self._run.process.log_tail()
        _log.warning(
            "runner failed in phase %s: %s",
            failure.phase,
            failure.error.message,
            extra={"command_id": key.instance_id, "code": failure.error.code},
        )
        self._put(
            ReportFailure(
                command_id=services.engines.gateway.mint_command_id(),
                instance_id=key.instance_id,
                node_id=services.node_id,
                rank=key.rank,
                attempt=key.attempt,
                phase=failure.phase,
                error=failure.error,
                exit_code=failure.exit_code,
                signal=failure.signal,
                log_tail=log_tail,
                was_ready=failure.was_ready,
            )
        )

    def _put(self, report: ReportPhase | ReportFailure) -> None:
        self._report = report
        self._said_at_s = self._services.clock.monotonic_s()
        self._services.reporter.put(report)

    def _put_memory(self, measured: Measured) -> None:
        key, services = self._key, self._services
        services.reporter.put(
            ReportMemory(
                command_id=services.engines.gateway.mint_command_id(),
                instance_id=key.instance_id,
                node_id=services.node_id,
                rank=key.rank,
                attempt=key.attempt,
                key=measured.key,
                memory=measured.memory,
            )
        )

    def _launch_record(self) -> LaunchRecord:
        clock = self._services.clock
        return self._run.launch_record(
            ready_at_ms=clock.wall_ms(),
            load_ms=round((clock.monotonic_s() - self._spawned_at_s) * 1000),
        )

    def _put_load(self) -> None:
        serving = self._serving
        if serving is None:
            return
        services = self._services
        self._boot_meter.on_load(serving.slots.n_running)
        services.table.put_instance(
            InstanceReading(
                instance_id=self._key.instance_id,
                node_id=services.node_id,
                at_s=services.clock.monotonic_s(),
                in_flight=serving.slots.n_running,
                queued=serving.slots.n_queued,
                slots=serving.slots.slots,
                tokens_per_s=serving.throughput.rate(services.clock.monotonic_s()),
                waiting=tuple(
                    WaitingTask(
                        asker=place.asker, waited_s=place.waited_s, expected_s=place.expected_s
                    )
                    for place in serving.slots.places(MAX_WAITING)
                ),
                idle_since_s=serving.idle_since_s,
                keep_s=serving.keep_s,
                answer_tokens_per_s=serving.throughput.answer_rate,
            )
        )
        if self._meter is None and serving.slots.n_running:
            self._meter = services.tasks.start(
                self._measure(serving), name=f"meter {self._key.instance_id}", essential=False
            )

    async def _measure(self, serving: Serving) -> None:
        """Tell the rate now and then while there is one; at rest nothing is told."""
        try:
            is_moving = True
            while is_moving and self._serving is serving:
                await sleep(PERIOD_S)
                clock = self._services.clock
                is_moving = (
                    serving.slots.n_running > 0
                    or serving.throughput.rate(clock.monotonic_s()) > 0.0
                )
                self._put_load()
        finally:
            self._meter = None

    def _end_serving(self, error: ErrorBody) -> None:
        serving, self._serving = self._serving, None
        self._load_changed.cancel()
        if self._meter is not None:
            self._meter.cancel()
        if self._look is not None:
            self._look.cancel()
        if serving is not None:
            serving.close(error)

    async def _finish(self) -> None:
        await self._run.close()
        self._ended.set()
        self._on_ended()


def _stopped() -> ErrorBody:
    return ErrorBody(
        code="engine.gone",
        message="the instance was stopped",
        remediation="Ask again: another instance of the model may serve it.",
    )


def _out_of_time() -> ErrorBody:
    return ErrorBody(
        code="engine.gone",
        message="the instance was stopped, and the time that its requests had to end was over",
        remediation="Ask again: another instance of the model may serve it. `skulk stop --drain` "
        "and `skulk node drain --deadline` give more time.",
    )


def _draining() -> ErrorBody:
    return ErrorBody(
        code="engine.draining",
        message="the instance is being stopped: it ends what it is answering, and takes no more",
        remediation="Ask again: another instance of the model may serve it.",
        retry_after_s=1,
    )


def _gone(cause: ErrorBody) -> ErrorBody:
    return ErrorBody(
        code="engine.gone",
        message=f"the engine is gone: {cause.message}",
        remediation="Ask again once the instance is ready; `skulk ps` shows why it failed.",
        details={"cause": cause.code},
        retry_after_s=2,
    )


def _bug(error: Exception) -> ErrorBody:
    return ErrorBody(
        code="internal.bug",
        message=f"{type(error).__name__}: {error}",
        remediation="Report it with the daemon's log, which holds the traceback.",
    )
