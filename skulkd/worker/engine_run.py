"""One engine process from its plan to its last client: what to launch, with what, and its client.

Holds what the phases of a runner hand on to one another; knows no lifecycle.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, final

from engines.base import (
    Engine,
    EngineClient,
    EngineStatistics,
    Group,
    LaunchSpec,
    LoadSpec,
)
from protocol.cards import EngineName, ModelCard, text_tokens
from protocol.clock import Clock
from protocol.errors import EngineError, ErrorBody, SkulkError
from protocol.ids import NodeId
from protocol.instances import LaunchRecord
from protocol.nodes import EngineFacts, NodeFacts
from protocol.placements import MemoryArithmetic, Plan
from skulkd.cluster.tunnels import Serve
from skulkd.core.meters import ByModel, Histogram
from skulkd.core.reconcile import RunnerKey
from skulkd.eventlog.gateway import CommandGateway
from skulkd.runtime.tasks import run_blocking, sleep, timeout
from skulkd.worker import steps
from skulkd.worker.boot_memory import Measured, measured_boot
from skulkd.worker.launchers.base import EngineProcess, Launcher, LaunchOwner
from skulkd.worker.rank_group import GroupServices, RankGroup, is_donor
from skulkd.worker.serving import Serving
from skulkd.worker.slots import SlotLimits, Slots
from skulkd.worker.token_budget import TemplateSize, image_size
from skulkd.worker.transfers import Transfers

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineServices:
    """What it takes to run engines; the same for all of a worker."""

    clock: Clock
    launcher: Launcher
    engine_of: Callable[[EngineName], Engine]
    transfers: Transfers
    gateway: CommandGateway
    """Mints ids of requests and reports."""
    builds: Callable[[], tuple[EngineFacts, ...]]
    """What the last probe pass found, best first."""
    facts: Callable[[], NodeFacts | None]
    """What it found of the machine."""
    memory: Callable[[MemoryArithmetic], steps.MemoryGate]
    """Watches over the pool that a share is taken from."""
    host_memory: steps.MemoryGate
    """Watches over RAM and free swap."""
    n_threads: Callable[[], int]
    """How many threads one more engine should use."""
    sockets: Path
    """A directory of mode 0700, at most 50 bytes long."""
    default_max_tokens: int
    queue_waits: ByModel[Histogram]
    """How long requests wait for a slot."""
    groups: GroupServices | None = None
    """What it takes to run one rank of several; None on a node that runs whole models only."""


@final
class EngineRun:
    """The engine of one attempt; its methods are called in the order in which they stand.

    Args:
        key: Which attempt of which rank.
        plan: What was planned.
        card: What is to run.
        services: What it takes.
        on_lost: Told once when another rank of the instance is lost.
    """

    def __init__(
        self,
        key: RunnerKey,
        plan: Plan,
        card: ModelCard,
        services: EngineServices,
        on_lost: Callable[[ErrorBody], None],
    ) -> None:
        self._key = key
        self._plan = plan
        self._card = card
        self._shard = next(shard for shard in plan.shards if shard.rank == key.rank)
        self._services = services
        self._on_lost = on_lost
        self._group: RankGroup | None = None
        self._engine: Engine | None = None
        self._spec: LoadSpec | None = None
        self._launch: LaunchSpec | None = None
        self._client: EngineClient | None = None
        self._slots: Slots | None = None
        self.process: EngineProcess | None = None

    @property
    def needs_files(self) -> bool:
        """Whether this rank reads the model's files."""
        return steps.needs_files(self._card) and not is_donor(self._plan, self._key.rank)

    async def stage(self, on_wait: Callable[[str], None], group_s: float) -> None:
        """Find the files, wait for memory and donors, and settle what will be launched.

        Args:
            on_wait: Told what is awaited.
            group_s: How long the donors may take.

        Raises:
            StoreError: `store.incomplete`.
            RunnerError: `runner.no_memory`, `runner.rank_lost`, `runner.spawn_failed`.
            EngineError: `engine.unavailable`, `engine.unsupported`.
        """
        services, key = self._services, self._key
        engine_name = self._plan.engine
        files = steps.EngineFiles(steps.NO_FILE)
        if self.needs_files:
            files = await steps.find_files(services.transfers.store, self._card, engine_name)
        memory = self._shard.memory
        await services.memory(memory).wait(memory.needed_bytes, on_wait)
        if memory.pool == "vram":
            # Without swap, what is missing here costs another process of this machine its life.
            await services.host_memory.wait(steps.HOST_BYTES, on_wait)
        build = steps.choose_build(self._plan, services.builds(), key.rank)
        group = None
        if len(self._plan.shards) > 1:
            group = await self._join_group(build, on_wait, group_s)
        spec = LoadSpec(
            card=self._card,
            entry_path=files.entry,
            projector_path=files.projector,
            context_tokens=self._plan.context_tokens,
            slots=self._plan.slots,
            compute=steps.compute_of(self._plan, key.rank),
            n_threads=services.n_threads(),
            socket_path=services.sockets / f"{key.instance_id}-{key.rank}.{key.attempt}.sock",
            build=build,
            group=group,
        )
        spec.socket_path.unlink(missing_ok=True)
        engine = services.engine_of(engine_name)
        self._engine, self._spec, self._launch = engine, spec, engine.launch(spec)

    async def spawn(self) -> EngineProcess:
        """Start the process.

        Raises:
            RunnerError: `runner.spawn_failed`.
        """
        key = self._key
        owner = LaunchOwner(
            instance_id=key.instance_id,
            rank=key.rank,
            attempt=key.attempt,
            engine=self._plan.engine,
        )
        self.process = await self._services.launcher.spawn(_set(self._launch), owner)
        if self._group is not None:
            self._group.ways.set_process(self.process.pid)
        return self.process

    async def load(self, on_progress: Callable[[steps.LoadProgress], None]) -> None:
        """Wait until the model is loaded; for how long is not decided here.

        Raises:
            EngineError: `engine.request_failed`.
        """
        endpoint = _set(self._launch).endpoint
        if is_donor(self._plan, self._key.rank):
            await steps.wait_listening(_set(self.process), _set(endpoint.port))
            return
        client = _set(self._engine).connect(_set(self._spec), endpoint)
        self._client = client
        size_bytes = self._card.storage_size.in_bytes
        await steps.wait_loaded(client, _set(self.process), size_bytes, on_progress)

    async def probe(self, on_load: Callable[[], None]) -> Serving | None:
        """Send one real request; then clients may come. None for a donor, which takes none.

        Args:
            on_load: Called when the number of running or waiting tasks has changed, and when the
                last one has ended.

        Raises:
            RunnerError: `runner.probe_failed`.
        """
        if is_donor(self._plan, self._key.rank):
            return None
        services, client = self._services, _set(self._client)
        await steps.check_listener(_set(self.process), _set(self._launch).endpoint)
        command_id = services.gateway.mint_command_id()
        statistics = await steps.probe(client, self._card, command_id)
        template = await steps.measure_template(client, self._card, command_id)
        limits = self._limits(statistics, template)
        self._slots = Slots(
            limits,
            client,
            services.clock,
            on_load,
            waits=services.queue_waits.of(self._card.model_id),
        )
        return Serving(client, self._slots, services.clock, on_load)

    async def is_answering(self) -> bool:
        """Ask the engine how it is; False when nothing comes of it within steps.ANSWER_S."""
        try:
            async with timeout(steps.ANSWER_S):
                while not await self._says_how_it_is():
                    await sleep(steps.ANSWER_PAUSE_S)
        except TimeoutError:
            return False
        return True

    async def _says_how_it_is(self) -> bool:
        try:
            await _set(self._client).load_status()
        except SkulkError:
            return False
        return True

    def way_in(self, peer: NodeId) -> Serve | None:
        """Say who serves a stream of another node to this rank; None when it may not come."""
        ways = None if self._group is None else self._group.ways
        return ways.serve if ways is not None and ways.is_reached_by(peer) else None

    async def measure_memory(self) -> Measured | None:
        """Say what the process takes now; None where nothing tells.

        A script has no weights. Of several ranks the driver maps what its donors hold, too.
        """
        facts, spec = self._services.facts(), _set(self._spec)
        if facts is None or self._card.scripted is not None or len(self._plan.shards) > 1:
            return None
        held = await run_blocking(_set(self.process).memory, spec.entry_path)
        if held is None:
            return None
        return measured_boot(self._card, self._plan, self._shard, spec.build, facts, held)

    @property
    def build(self) -> EngineFacts | None:
        """Which build serves the model; None before that is settled."""
        return None if self._spec is None else self._spec.build

    def launch_record(self, *, ready_at_ms: int, load_ms: int) -> LaunchRecord:
        """Say what became ready, so that a restart can repeat it."""
        return LaunchRecord(
            context_tokens=self._plan.context_tokens,
            slots=_set(self._slots).slots,
            argv_digest=_set(self.process).record.argv_digest,
            ready_at_ms=ready_at_ms,
            load_ms=load_ms,
        )

    async def close(self) -> None:
        """Let go of what is left, once the process is gone."""
        if self._group is not None:
            self._group.ways.close()
        if self._client is not None:
            await self._client.close()
        if self._spec is not None:
            await run_blocking(self._spec.socket_path.unlink, missing_ok=True)
        if self.process is not None:
            self._services.memory(self._shard.memory).on_runner_ended()

    async def _join_group(
        self, build: EngineFacts, on_wait: Callable[[str], None], group_s: float
    ) -> Group:
        groups = self._services.groups
        if groups is None:
            raise EngineError(
                "engine.unsupported",
                f"this node runs whole models only, and this is rank {self._key.rank} of several",
                remediation="Place the model on one node, or on others.",
            )
        group = self._group = RankGroup(groups, self._key, self._plan, self._on_lost)
        made = await group.join()
        if self._plan.shape == "rpc" and self._key.rank == 0:
            group.check_builds(build)
            await group.wait_donors(group_s, on_wait)
        return made

    def _limits(self, statistics: EngineStatistics | None, template: TemplateSize) -> SlotLimits:
        """Take what was planned, or the less that the engine really runs with."""
        slots, context_tokens = self._plan.slots, self._plan.context_tokens
        if statistics is not None:
            slots = min(slots, statistics.slots) or slots
            context_tokens = min(context_tokens, statistics.context_tokens) or context_tokens
        return SlotLimits(
            slots=slots,
            context_tokens=context_tokens,
            default_max_tokens=self._services.default_max_tokens,
            template=template,
            images=image_size(self._card.family),
            text_tokens=text_tokens(self._card, context_tokens),
        )


def _set(value: T | None) -> T:
    """Give what an earlier phase must have set."""
    if value is None:
        raise AssertionError("an earlier phase sets this")
    return value
