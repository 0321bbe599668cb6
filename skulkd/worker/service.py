"""The worker of one node: makes real what the state wants here, and serves what is ready.

It is driven by the state's events and by a tick a second; `core.reconcile` decides. Nothing is
started before `start` is called: a node that has lost its own port must not start engines.
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, assert_never, final

from engines.base import Engine
from engines.registry import engine_of
from protocol.cards import BackendTag, EngineName
from protocol.clock import Clock
from protocol.commands import (
    ReportFacts,
    ReportPhase,
    RetryInstance,
    SleepInstance,
    WakeInstance,
)
from protocol.data_frames import Failed, Frame, TakeChunk
from protocol.errors import ErrorBody, RunnerError, error_of
from protocol.events import SequencedEvent
from protocol.ids import CommandId, InstanceId, ModelId, NodeId
from protocol.nodes import EngineFacts, NodeFacts, Role
from protocol.placements import MemoryArithmetic
from protocol.readings import NoDownloads, PhaseProgress
from protocol.state import ClusterState
from protocol.tasks import ChatTask, VectorTask
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.cluster.tunnels import Serve, Target, Tunnels
from skulkd.core.facts import builds_at_work, derive, lost_computes, remember, without_build
from skulkd.core.lifecycle import Deadlines
from skulkd.core.meters import queue_waits
from skulkd.core.reconcile import (
    ENDED_PHASES,
    Action,
    ForgetRunner,
    GoToSleep,
    RenewAttempt,
    ReportAgain,
    ReportGone,
    RunnerKey,
    StartRunner,
    StopRunner,
    WakeAgain,
    desired_runners,
    reconcile,
)
from skulkd.eventlog.gateway import CommandGateway, StateView
from skulkd.runtime.choices import KeptChoices
from skulkd.runtime.disk import Disk
from skulkd.runtime.rounds import Rounds
from skulkd.runtime.tasks import OnDeath, Tasks, run_blocking, timeout
from skulkd.worker.accelerators import AcceleratorProbe
from skulkd.worker.engine_run import EngineServices
from skulkd.worker.launchers.base import Launcher, MakeLauncher
from skulkd.worker.launchers.child import ChildLauncher
from skulkd.worker.machine import Machine, MachineView
from skulkd.worker.paths import make_sockets_directory, worker_paths
from skulkd.worker.pauses import Pauses
from skulkd.worker.probes import ProbeSettings, probe_node
from skulkd.worker.rank_group import GroupServices
from skulkd.worker.readings import JournalStatus, NodeMeters, NodeReadings
from skulkd.worker.reporter import Reporter
from skulkd.worker.run import run_bounded
from skulkd.worker.serving import Serving
from skulkd.worker.steps import ArtifactStore, MemoryGate
from skulkd.worker.supervisor import RunnerServices, RunnerSupervisor
from skulkd.worker.token_budget import DEFAULT_MAX_OUTPUT_TOKENS
from skulkd.worker.tombstones import Tombstones
from skulkd.worker.transfers import Transfers

_log = logging.getLogger(__name__)

TICK_S: Final = 1.0
"""Between two looks when nothing happens, a little more or less: they go with the node's rounds."""
_TICK_SLACK_S: Final = 0.7
CLOSE_S: Final = 8.0
_SETTLE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What the node's settings say to its worker."""

    node_id: NodeId
    home: Path
    models_dir: Path
    environment: Mapping[str, str]
    """Of the daemon; engines inherit a short list of it."""
    build: str
    """Version of this daemon."""
    role: Role = "full"
    """A `management` node is measured, and runs nothing: what was placed on it waits."""
    backends: tuple[BackendTag, ...] | None = None
    llama_server_bin: Path | None = None
    engine_threads: int | None = None
    """Of each engine, when an operator has set it."""
    no_downloads: NoDownloads | None = None
    """Why this node fetches no model files; None where it does."""
    max_output_tokens: int = DEFAULT_MAX_OUTPUT_TOKENS
    deadlines: Deadlines = field(default_factory=Deadlines)


ProbeNode = Callable[[ProbeSettings, MachineView, AcceleratorProbe], Awaitable[NodeFacts]]
"""`worker.probes.probe_node`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSurroundings:
    """What the rest of the daemon gives to its worker, and the machine that it runs on."""

    gateway: CommandGateway
    view: StateView
    store: ArtifactStore
    table: ReadingsTable
    clock: Clock
    disk: Disk
    choices: KeptChoices
    journal: Callable[[], JournalStatus]
    on_death: OnDeath
    engine_of: Callable[[EngineName], Engine] = engine_of
    machine: MachineView = field(default_factory=Machine)
    probe: ProbeNode = probe_node
    make_launcher: MakeLauncher = ChildLauncher
    make_sockets_directory: Callable[[Path], None] = make_sockets_directory
    rounds: Rounds = field(default_factory=Rounds)
    has_master: Callable[[], bool] = lambda: True
    """Whether this node knows a living master; what may run on without one says its policy."""
    tunnels: Tunnels | None = None
    """Carry what the ranks of one model say; without them only whole models run here."""
    # ruff: ignore[suspicious-non-cryptographic-random-usage]  picks ports
    rng: random.Random = field(default_factory=random.Random)
    owner: str = "worker"
    """How the names of its tasks begin."""


@final
class WorkerService:
    """Implements `skulkd.api.ports.Inference`; runs engines, transfers, probes and readings.

    Built on the event loop of the main thread, which is where engines are spawned from.

    Args:
        settings: What this node is told.
        around: What the daemon gives.
    """

    def __init__(self, settings: WorkerSettings, around: WorkerSurroundings) -> None:
        self._settings = settings
        self._around = around
        self._tasks = Tasks(around.owner, on_death=around.on_death)
        self._paths = worker_paths(settings.home, settings.environment)
        self._machine = around.machine
        self._accelerators = AcceleratorProbe(run_bounded)
        self._facts: NodeFacts | None = None
        self._probing: asyncio.Task[None] | None = None
        """A further look at the machine."""
        self._runners: dict[RunnerKey, RunnerSupervisor] = {}
        self._tombstones = Tombstones()
        self._wake = asyncio.Event()
        self._master_seen_s = around.clock.monotonic_s()
        self._is_closing = False
        self._unsubscribe: Callable[[], None] | None = None
        self._launcher: Launcher = around.make_launcher(
            paths=self._paths.launcher,
            disk=around.disk,
            tasks=self._tasks,
            environment=settings.environment,
        )
        meters = NodeMeters(
            machine=self._machine,
            disk=around.disk,
            models_dir=settings.models_dir,
            accelerators=self._accelerators,
            journal=around.journal,
            no_downloads=settings.no_downloads,
        )
        self._readings = NodeReadings(
            settings.node_id, meters, around.table, around.clock, rounds=around.rounds
        )
        self._reporter = Reporter(around.gateway, self._tasks)
        self.transfers: Final = Transfers(
            settings.node_id,
            around.store,
            table=around.table,
            reporter=self._reporter,
            gateway=around.gateway,
            clock=around.clock,
            tasks=self._tasks,
            pauses=Pauses(
                settings.node_id, choices=around.choices, table=around.table, clock=around.clock
            ),
        )
        self._ram = MemoryGate(self._available_ram_bytes, around.clock)
        self._host = MemoryGate(self._available_host_bytes, around.clock)
        self._vram = MemoryGate(self._available_vram_bytes, around.clock)
        self.queue_waits: Final = queue_waits()
        """How long requests to the engines here have waited for a slot."""
        self._services = self._runner_services()

    @property
    def facts(self) -> NodeFacts | None:
        """What the probe pass found; None until it has ended."""
        return self._facts

    async def disown(self) -> None:
        """Take back what an earlier daemon has reported of runners here: they ended with it.

        To be called before clients can ask: they would be sent to an engine that is not there.
        """
        desired = desired_runners(self._around.view.state, self._settings.node_id)
        for action in reconcile(desired, ()):
            if isinstance(action, RenewAttempt):
                await self._around.gateway.submit(self._renewal(action))

    def start(self) -> None:
        """Begin; to be called once the node's own port has answered as this node.

        Raises:
            ConfigError: `config.home_unusable`.
        """
        self._around.make_sockets_directory(self._paths.sockets)
        self._readings.start(self._tasks)
        self.transfers.pauses.show_all()
        self._tasks.start(self._run(), name="reconcile")

    def chat(
        self, instance_id: InstanceId, task: ChatTask, take: TakeChunk | None = None
    ) -> AsyncGenerator[Frame]:
        """Serve one task; see `skulkd.api.ports.Inference`."""
        serving = self._admitting(instance_id, task.command_id)
        return _only(serving) if isinstance(serving, ErrorBody) else serving.chat(task, take)

    def vectors(self, instance_id: InstanceId, task: VectorTask) -> AsyncGenerator[Frame]:
        """Serve one task for vectors; see `skulkd.api.ports.Inference`."""
        serving = self._admitting(instance_id, task.command_id)
        return _only(serving) if isinstance(serving, ErrorBody) else serving.vectors(task)

    async def count_tokens(self, instance_id: InstanceId, task: ChatTask) -> int:
        """Count a task's prompt; see `skulkd.api.ports.TokenCounts`."""
        serving = self._serving(instance_id)
        if serving is None:
            raise error_of(self._not_here(instance_id))
        return await serving.count_tokens(task)

    def cancel(self, command_id: CommandId) -> bool:
        """End a task with `request.cancelled`, also one that arrives within the next 60 s."""
        for runner in self._runners.values():
            if runner.serving is not None and runner.serving.cancel(command_id, _cancelled()):
                return True
        self._tombstones.add(command_id, now=self._around.clock.monotonic_s())
        return False

    def in_use(self) -> frozenset[ModelId]:
        """List the models whose files a runner here has open or is about to."""
        return frozenset(
            runner.card.model_id
            for runner in self._runners.values()
            if runner.observed.phase not in ENDED_PHASES
        )

    async def close(self, timeout_s: float = CLOSE_S) -> tuple[str, ...]:
        """End every stream, transfer and engine, in parallel; return once all are gone.

        Returns:
            What was not gone within `timeout_s`, in words; empty when all is well.
        """
        self._is_closing = True
        if self._unsubscribe is not None:
            self._unsubscribe()
        error = _stopping()
        for runner in self._runners.values():
            runner.stop(error)
        late: tuple[str, ...] = ()
        try:
            async with timeout(timeout_s):
                await self.transfers.end_pulls()
                for runner in list(self._runners.values()):
                    await runner.wait_ended()
        except TimeoutError:
            late = tuple(
                f"engine of {runner.key.instance_id}"
                for runner in self._runners.values()
                if not runner.has_ended
            )
        if self._around.tunnels is not None:
            self._around.tunnels.close()
        await self._launcher.wait_settled(_SETTLE_S)
        return late + await self._tasks.close(_SETTLE_S)

    async def _run(self) -> None:
        await self._end_orphans()
        await self._probe()
        self._unsubscribe = self._around.view.subscribe(self._on_event, self._on_reset)
        while not self._is_closing:
            self._wake.clear()
            self._reconcile()
            tick = self._around.rounds.call(
                self._wake.set, soonest_s=TICK_S - 0.1, latest_s=TICK_S + _TICK_SLACK_S
            )
            try:
                await self._wake.wait()
            finally:
                tick.cancel()

    async def _end_orphans(self) -> None:
        for record in await run_blocking(self._launcher.orphans):
            try:
                await self._launcher.adopt(record)
            except RunnerError as error:
                _log.error("%s", error.message, extra={"code": error.code})

    def probe_again(self) -> None:
        """Look at this machine anew, as after it has slept: a GPU may be gone.

        Nothing while it is being looked at already.
        """
        if self._facts is not None and not self._is_closing and self._probing is None:
            probing = self._tasks.start(self._probe(), name="probe again", essential=False)
            self._probing = probing
            probing.add_done_callback(self._on_probed)

    def _on_probed(self, _probing: asyncio.Task[None]) -> None:
        self._probing = None

    async def _probe(self) -> None:
        settings, around = self._settings, self._around
        probes = ProbeSettings(
            environment=settings.environment,
            llama_server_bin=settings.llama_server_bin,
            declared_backends=settings.backends,
            models_dir=settings.models_dir,
            build=settings.build,
        )
        found = await around.probe(probes, self._machine, self._accelerators)
        facts = remember(found, self._facts)
        self._facts = facts
        self._readings.set_devices(facts.accelerators)
        self._report_facts(facts)
        names = ", ".join(device.name for device in facts.lost_accelerators)
        for runner in self._runners.values():
            runner.lose_devices(lost_computes(facts), names)

    def _on_trapped(self, build: EngineFacts) -> None:
        """Take the build out of use until the next probe, and say so to the cluster."""
        if self._facts is not None:
            self._facts = without_build(self._facts, build)
            self._report_facts(self._facts)

    def _report_facts(self, facts: NodeFacts) -> None:
        settings = self._settings
        self._reporter.put(
            ReportFacts(
                command_id=self._around.gateway.mint_command_id(),
                node_id=settings.node_id,
                facts=facts,
                capabilities=derive(facts, role=settings.role),
            )
        )

    def _on_event(self, _event: SequencedEvent, _state: ClusterState) -> None:
        self._wake.set()

    def _on_reset(self, _state: ClusterState) -> None:
        """Another history took this node's place: what was reported in its own is lost."""
        if self._facts is not None:
            self._report_facts(self._facts)
        for runner in self._runners.values():
            runner.report_again()
        self._wake.set()

    def _reconcile(self) -> None:
        now = self._around.clock.monotonic_s()
        if self._around.has_master():
            self._master_seen_s = now
        desired = desired_runners(
            self._around.view.state,
            self._settings.node_id,
            masterless_s=now - self._master_seen_s,
        )
        observed = [runner.observed for runner in self._runners.values()]
        for action in reconcile(desired, observed):
            self._act(action)

    def _act(self, action: Action) -> None:
        gateway = self._around.gateway
        match action:
            case StartRunner() if self._settings.role == "management":
                self._show_waiting(action.runner.key)
            case StartRunner():
                runner = RunnerSupervisor(action.runner, self._services, self._wake.set)
                self._runners[action.runner.key] = runner
                runner.start()
            case StopRunner():
                self._runners[action.key].drain(action.drain_s)
            case ForgetRunner():
                del self._runners[action.key]
                self._around.table.drop_runner(
                    self._settings.node_id, action.key.instance_id, action.key.rank
                )
            case ReportGone():
                report = ReportPhase(
                    command_id=gateway.mint_command_id(),
                    instance_id=action.key.instance_id,
                    node_id=self._settings.node_id,
                    rank=action.key.rank,
                    attempt=action.key.attempt,
                    phase="stopped",
                )
                self._reporter.put(report, key=("gone", action.key))
            case ReportAgain():
                self._runners[action.key].report_again()
            case RenewAttempt():
                self._reporter.put(self._renewal(action), key=("renew", action))
            case GoToSleep():
                sleep = SleepInstance(
                    command_id=gateway.mint_command_id(),
                    instance_id=action.instance_id,
                    attempt=action.attempt,
                )
                self._reporter.put(sleep, key=("sleep", action))
            case WakeAgain():
                wake = WakeInstance(
                    command_id=gateway.mint_command_id(), instance_id=action.instance_id
                )
                self._reporter.put(wake, key=("wake", action))
            case _:
                assert_never(action)

    def _renewal(self, action: RenewAttempt) -> RetryInstance:
        return RetryInstance(
            command_id=self._around.gateway.mint_command_id(),
            instance_id=action.instance_id,
            after_attempt=action.after_attempt,
        )

    def _show_waiting(self, key: RunnerKey) -> None:
        """Say why a runner that was placed here before does not start now."""
        table, now = self._around.table, self._around.clock.monotonic_s()
        shown = table.readings.progress.get((key.instance_id, key.rank))
        if shown is None or shown.attempt != key.attempt:
            waiting = PhaseProgress(
                instance_id=key.instance_id,
                node_id=self._settings.node_id,
                rank=key.rank,
                attempt=key.attempt,
                phase="pending",
                since_s=now,
                at_s=now,
                note="this node runs no models now (--no-worker)",
            )
            table.put_progress(waiting)

    def _admitting(self, instance_id: InstanceId, command_id: CommandId) -> Serving | ErrorBody:
        """Give what serves a new task of an instance, or why nothing does."""
        if self._tombstones.take(command_id, now=self._around.clock.monotonic_s()):
            return _cancelled()
        return self._serving(instance_id) or self._not_here(instance_id)

    def _serving(self, instance_id: InstanceId) -> Serving | None:
        for key, runner in self._runners.items():
            if key.instance_id == instance_id and runner.serving is not None:
                return runner.serving
        return None

    def _not_here(self, instance_id: InstanceId) -> ErrorBody:
        if self._is_closing:
            return _stopping()
        return ErrorBody(
            code="engine.gone",
            message=f"instance {instance_id} is not ready on this node",
            remediation="Ask again: `skulk ps` shows where it is and how far.",
            retry_after_s=1,
        )

    def _runner_services(self) -> RunnerServices:
        settings, around = self._settings, self._around
        engines = EngineServices(
            clock=around.clock,
            launcher=self._launcher,
            engine_of=around.engine_of,
            transfers=self.transfers,
            gateway=around.gateway,
            builds=self._builds,
            facts=lambda: self._facts,
            memory=self._memory_gate,
            host_memory=self._host,
            n_threads=self._n_threads,
            sockets=self._paths.sockets,
            default_max_tokens=settings.max_output_tokens,
            queue_waits=self.queue_waits,
            groups=self._group_services(),
        )
        return RunnerServices(
            node_id=settings.node_id,
            clock=around.clock,
            tasks=self._tasks,
            engines=engines,
            oom_kills=self._machine.oom_kills,
            reporter=self._reporter,
            table=around.table,
            deadlines=settings.deadlines,
            on_trapped=self._on_trapped,
        )

    def _group_services(self) -> GroupServices | None:
        around = self._around
        if around.tunnels is None:
            return None
        around.tunnels.serve(self._way_in)
        return GroupServices(
            tunnels=around.tunnels,
            tasks=self._tasks,
            rng=around.rng,
            state=lambda: around.view.state,
        )

    def _way_in(self, peer: NodeId, target: Target) -> Serve | None:
        """Let a stream in that leads to a rank here, of an instance that its opener is part of."""
        instance = self._around.view.state.instances.get(target.instance_id)
        runner = self._runners.get(RunnerKey(target.instance_id, target.rank, target.attempt))
        if instance is None or runner is None or instance.attempt != target.attempt:
            return None
        return runner.way_in(peer)

    def _builds(self) -> tuple[EngineFacts, ...]:
        return () if self._facts is None else builds_at_work(self._facts)

    def _n_threads(self) -> int:
        """Share the processors among the engines that run or are about to, or as was set."""
        if self._settings.engine_threads is not None:
            return self._settings.engine_threads
        alive = [r for r in self._runners.values() if r.observed.phase not in ENDED_PHASES]
        n_cpus = 1 if self._facts is None else self._facts.n_cpus
        return max(1, n_cpus // max(1, len(alive)))

    def _memory_gate(self, memory: MemoryArithmetic) -> MemoryGate:
        return self._vram if memory.pool == "vram" else self._ram

    def _available_ram_bytes(self) -> int | None:
        return self._machine.memory().available_bytes

    def _available_host_bytes(self) -> int | None:
        now = self._machine.memory()
        return now.available_bytes + now.swap_free_bytes

    def _available_vram_bytes(self) -> int | None:
        reading = self._around.table.readings.nodes.get(self._settings.node_id)
        devices = () if reading is None else reading.accelerators
        free = [device.free_bytes for device in devices if device.free_bytes is not None]
        return max(free, default=None)


async def _only(error: ErrorBody) -> AsyncGenerator[Frame]:
    yield Failed(error)


def _cancelled() -> ErrorBody:
    return ErrorBody(code="request.cancelled", message="the request was cancelled")


def _stopping() -> ErrorBody:
    return ErrorBody(
        code="cluster.stopping",
        message="this node is stopping",
        remediation="Ask another node, or try again when it is back.",
        retry_after_s=5,
    )
