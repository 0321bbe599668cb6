"""The rest of the daemon, as the API sees it: in memory, scripted, remembering what was asked."""

import asyncio
import hashlib
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from protocol.cards import (
    EngineName,
    ModelCard,
    PlacementSection,
    ScriptedSection,
    StorageSize,
    ToolingSection,
    card_digest,
)
from protocol.clock import Clock
from protocol.commands import Command, CommandReply
from protocol.data_frames import Chunk, Failed, Finished, Frame, Started, TakeChunk, Usage
from protocol.errors import ErrorBody, SkulkError
from protocol.events import Event, SequencedEvent
from protocol.ids import (
    ClusterId,
    CommandId,
    Digest,
    InstanceId,
    ModelId,
    NodeId,
    command_id_of,
)
from protocol.instances import Instance, InstanceFailure, Phase, RunnerStatus
from protocol.nodes import Member, NodeHealth
from protocol.placements import (
    MemoryArithmetic,
    PlacementOutcome,
    PlacementRequest,
    Plan,
    ShardAssignment,
)
from protocol.readings import Readings
from protocol.state import ClusterState
from protocol.tasks import ChatTask, VectorTask
from skulkd.api.cancels import CancelHere, Cancels
from skulkd.api.dependencies import ApiDependencies, NodeFace
from skulkd.api.image_fetch import RemoteImages
from skulkd.api.request_meters import RequestMeters
from skulkd.api.sse import StreamLimits
from skulkd.api.streams import KeepLimits
from skulkd.core.link_probe import ProbeRun
from skulkd.core.meters import queue_waits
from skulkd.runtime.clock import SystemClock
from skulkd.runtime.tasks import Tasks
from tests.support.fake_cluster import FakeAdmin, FakeCluster, FakeLogs, FakePeers
from tests.support.fake_models import FakeModels
from tests.support.text_engines import vectors_answer

NODE: Final = NodeId("naaaaaaaaaaaaaaaa")
CLUSTER: Final = ClusterId("kaaaaaaaaaaaaaaaa")
MODEL: Final = ModelId("test/scripted")
USAGE: Final = Usage(prompt_tokens=7, completion_tokens=3)


@final
@dataclass(frozen=True)
class Pause:
    """Seconds of silence in a script."""

    seconds: float


ScriptItem = Frame | Pause | asyncio.Event
"""A frame to give, a pause, or an event to wait for."""


def make_card(model_id: str = MODEL, **changes: object) -> ModelCard:
    """Make the card of a scripted text model."""
    card = ModelCard(
        model_id=ModelId(model_id),
        n_layers=2,
        hidden_size=8,
        supports_tensor=False,
        tasks=("TextGeneration",),
        storage_size=StorageSize(in_bytes=1000),
        context_length=4096,
        placement=PlacementSection(compatible_backends=("scripted",)),
        tooling=ToolingSection(supports_tool_calling=True),
        scripted=ScriptedSection(),
    )
    return card.model_copy(update=changes)


def make_plan(card: ModelCard, *, context_tokens: int = 512, plan: str = "1") -> Plan:
    """Make a plan for one node, on the engine that can do most."""
    memory = MemoryArithmetic(
        weights_bytes=1000,
        kv_cache_bytes=200,
        overhead_bytes=30,
        reserved_bytes=0,
        available_bytes=5000,
        pool="ram",
        kv_bytes_per_token=1,
        context_tokens=context_tokens,
    )
    shard = ShardAssignment(rank=0, node_id=NODE, layer_start=0, layer_end=2, memory=memory)
    return Plan(
        plan_id=Digest(plan * 64),
        model_id=card.model_id,
        card_digest=card_digest(card),
        shape="single",
        engine="llama_server",
        backend="llama_server-cpu",
        context_tokens=context_tokens,
        slots=1,
        shards=(shard,),
    )


def make_instance(
    phase: Phase = "ready",
    *,
    card: ModelCard | None = None,
    number: int = 1,
    context_tokens: int = 512,
) -> Instance:
    """Make an instance whose only runner is in a phase; `failed` comes with its story."""
    card = card or make_card()
    instance_id = InstanceId(command_id_of(NODE, bytes([number]) * 20))
    runner = RunnerStatus(rank=0, node_id=NODE, attempt=1, phase=phase, since_ms=1)
    failure = None
    if phase == "failed":
        failure = InstanceFailure(
            instance_id=instance_id,
            model_id=card.model_id,
            node_id=NODE,
            attempt=1,
            phase="load",
            error=ErrorBody(code="runner.exited", message="exit status 3", remediation="read it"),
            exit_code=3,
            log_tail=("boom",),
            at_ms=1,
            final=True,
        )
    return Instance(
        instance_id=instance_id,
        model_id=card.model_id,
        plan=make_plan(card, context_tokens=context_tokens),
        card=card,
        runners=(runner,),
        failure=failure,
        placed_at_ms=1,
    )


def on_engine(instance: Instance, engine: EngineName) -> Instance:
    """Give an instance that runs on another engine."""
    plan = instance.plan.model_copy(update={"engine": engine, "backend": engine})
    return instance.model_copy(update={"plan": plan})


def make_state(*instances: Instance, **changes: object) -> ClusterState:
    """Make the state of a cluster of one."""
    state = ClusterState(
        cluster_id=CLUSTER,
        term=1,
        seq=5,
        master=NODE,
        members={NODE: Member(node_id=NODE, name="alpha", public_key="0" * 64)},
        instances={item.instance_id: item for item in instances},
    )
    return state.model_copy(update=changes)


@final
class FakeGateway:
    """Accepts commands, or refuses them as told."""

    def __init__(self) -> None:
        self.submitted: list[Command] = []
        self.refusal: SkulkError | None = None
        self.held: asyncio.Event | None = None
        """Waited for before a command is answered."""
        self._n_minted = 0

    def mint_command_id(self) -> CommandId:
        self._n_minted += 1
        return command_id_of(NODE, hashlib.sha256(b"%d" % self._n_minted).digest())

    async def submit(self, command: Command) -> CommandReply:
        self.submitted.append(command)
        if self.held is not None:
            await self.held.wait()
        if self.refusal is not None:
            raise self.refusal
        return CommandReply(command_id=command.command_id, term=1, seq=6, durable="local")


@final
class FakeState:
    """A replica that a test sets."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.events: list[SequencedEvent] = []
        self.subscribers: list[Callable[[SequencedEvent, ClusterState], None]] = []
        self.resetters: list[Callable[[ClusterState], None]] = []

    def subscribe(
        self,
        on_event: Callable[[SequencedEvent, ClusterState], None],
        on_reset: Callable[[ClusterState], None] | None = None,
    ) -> Callable[[], None]:
        self.subscribers.append(on_event)
        if on_reset is not None:
            self.resetters.append(on_reset)

        def unsubscribe() -> None:
            self.subscribers.remove(on_event)
            if on_reset is not None:
                self.resetters.remove(on_reset)

        return unsubscribe

    def reset(self, state: ClusterState) -> None:
        """Replace the state as a new snapshot does."""
        self.state = state
        for on_reset in list(self.resetters):
            on_reset(state)

    def recent(self, after_seq: int, limit: int) -> tuple[SequencedEvent, ...]:
        return tuple(item for item in self.events if item.seq > after_seq)[:limit]

    def commit(self, event: Event) -> None:
        """Append an event and tell the subscribers; the state itself stays as set."""
        item = SequencedEvent(
            term=1, seq=len(self.events) + 1, at_ms=9, command_id=None, event=event
        )
        self.events.append(item)
        for on_event in list(self.subscribers):
            on_event(item, self.state)


@final
class FakePlacements:
    """Answers every preview with the outcome a test set."""

    def __init__(self) -> None:
        self.outcome = PlacementOutcome()
        self.asked: list[PlacementRequest] = []
        self.held: asyncio.Event | None = None

    async def preview(self, request: PlacementRequest, *, wait_s: float) -> PlacementOutcome:
        self.asked.append(request)
        if self.held is not None:
            await self.held.wait()
        return self.outcome


@final
class FakeInference:
    """Gives the frames of a script, per instance or for all."""

    def __init__(self) -> None:
        self.script: Sequence[ScriptItem] = plain_answer("Hello", " world")
        self.vector_script: Sequence[ScriptItem] | None = None
        """What `vectors` gives; None is what follows from the texts."""
        self.scripts: dict[InstanceId, Sequence[ScriptItem]] = {}
        self.script_of: Callable[[ChatTask], Sequence[ScriptItem]] | None = None
        """Where set, it goes before the others."""
        self.tasks: list[ChatTask] = []
        self.vector_tasks: list[VectorTask] = []
        self.served: list[InstanceId] = []
        self.running: dict[CommandId, asyncio.Event] = {}
        self.n_closed_early = 0
        self._n_chunks = 0
        self.cancelled: list[CommandId] = []
        self.counted: list[tuple[InstanceId, ChatTask]] = []

    def chat(
        self, instance_id: InstanceId, task: ChatTask, take: TakeChunk | None = None
    ) -> AsyncGenerator[Frame]:
        self.tasks.append(task)
        return self._play(instance_id, task.command_id, self._script(instance_id, task), take)

    def vectors(self, instance_id: InstanceId, task: VectorTask) -> AsyncGenerator[Frame]:
        self.vector_tasks.append(task)
        plain = self.vector_script or vectors_answer(task)
        script = self.scripts.get(instance_id, plain)
        return self._play(instance_id, task.command_id, script, None)

    async def _play(
        self,
        instance_id: InstanceId,
        command_id: CommandId,
        script: Sequence[ScriptItem],
        take: TakeChunk | None,
    ) -> AsyncGenerator[Frame]:
        self.served.append(instance_id)
        cancelled = self.running[command_id] = asyncio.Event()
        is_over = False
        try:
            for item in script:
                if isinstance(item, Pause | asyncio.Event):
                    if await _wait(item, cancelled):
                        is_over = True
                        yield Failed(ErrorBody(code="request.cancelled", message="cancelled"))
                        return
                    continue
                is_over = isinstance(item, Finished | Failed)
                if isinstance(item, Chunk):
                    self._n_chunks += 1
                    # Every other one, so that each test sees both ways.
                    if take is not None and self._n_chunks % 2 == 0 and take(item):
                        continue
                yield item
        finally:
            del self.running[command_id]
            if not is_over:
                self.n_closed_early += 1

    def _script(self, instance_id: InstanceId, task: ChatTask) -> Sequence[ScriptItem]:
        if self.script_of is not None:
            return self.script_of(task)
        return self.scripts.get(instance_id, self.script)

    async def count_tokens(self, instance_id: InstanceId, task: ChatTask) -> int:
        self.counted.append((instance_id, task))
        return USAGE.prompt_tokens

    def cancel(self, command_id: CommandId) -> bool:
        cancelled = self.running.get(command_id)
        if cancelled is None:
            return False
        self.cancelled.append(command_id)
        cancelled.set()
        return True


async def _wait(item: Pause | asyncio.Event, cancelled: asyncio.Event) -> bool:
    """Wait for the item or the cancellation; says whether it was the latter."""
    waiting: asyncio.Future[bool] = asyncio.ensure_future(
        asyncio.sleep(item.seconds, True) if isinstance(item, Pause) else item.wait()
    )
    cancelling = asyncio.ensure_future(cancelled.wait())
    try:
        await asyncio.wait({waiting, cancelling}, return_when=asyncio.FIRST_COMPLETED)
        return cancelled.is_set()
    finally:
        waiting.cancel()
        cancelling.cancel()


def plain_answer(*texts: str, reason: str = "stop") -> list[ScriptItem]:
    """Script an answer that says these pieces."""
    finish = "length" if reason == "length" else "stop"
    return [Started(7), *(Chunk(text) for text in texts), Finished(finish, USAGE)]


@final
class FakeHealth:
    """Health as a test sets it."""

    def __init__(self) -> None:
        self.nodes: dict[NodeId, NodeHealth] = {NODE: NodeHealth(level="ok")}

    def node_health(self) -> Mapping[NodeId, NodeHealth]:
        return self.nodes


@final
@dataclass
class FakeReadings:
    """Readings as a test sets them."""

    readings: Readings = field(default_factory=Readings)


@final
class FakeListeners:
    """Remembers what was opened."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, bool]] = []
        self.further_names: set[str] = set()

    async def open_api(self, host: str, *, persist: bool) -> tuple[str, ...]:
        self.opened.append((host, persist))
        return self.urls()

    async def close_api(self) -> tuple[str, ...]:
        self.opened.clear()
        return self.urls()

    def urls(self) -> tuple[str, ...]:
        return ("http://127.0.0.1:1", *(f"http://{host}:1" for host, _ in self.opened))

    def base_urls(self) -> tuple[str, ...]:
        return ("http://alpha.tailnet.example:1",) if self.opened else ()

    def names(self) -> frozenset[str]:
        return frozenset(self.further_names)


FACE: Final = NodeFace(
    node_id=NODE, name="alpha", hostname="alpha.lan", boot_id="boot1", version="0.1.0"
)


@final
class NobodyElse:
    """Implements `Cancels` for a node without peers."""

    def __init__(self) -> None:
        self._here: list[CancelHere] = []

    def add_here(self, cancel_here: CancelHere) -> None:
        """Name one more part of this node."""
        self._here.append(cancel_here)

    def cancel_here(self, command_id: CommandId) -> bool:
        """Ask the parts of this node."""
        return any(cancel_here(command_id) for cancel_here in self._here)

    async def cancel_elsewhere(self, command_id: CommandId) -> bool:
        """Nobody can be asked."""
        del command_id
        return False


@final
class FakeProbes:
    """Implements `Probes`: takes note of what is to be measured, and measures nothing."""

    def __init__(self) -> None:
        self.last: ProbeRun | None = None
        self.asked: list[tuple[tuple[tuple[NodeId, NodeId], ...], bool]] = []
        self.error: SkulkError | None = None

    async def start(self, pairs: tuple[tuple[NodeId, NodeId], ...], *, even_busy: bool) -> ProbeRun:
        """Begin, or refuse."""
        if self.error is not None:
            raise self.error
        self.asked.append((pairs, even_busy))
        self.last = ProbeRun(began_ms=1, pairs=pairs)
        return self.last


@final
class FakeDaemon:
    """All ports together, with one ready instance of one model."""

    def __init__(self, *instances: Instance) -> None:
        self.face = FACE
        self.clock: Clock = SystemClock()
        self.deaths: list[str] = []
        self.gateway = FakeGateway()
        self.state = FakeState(make_state(*(instances or (make_instance(),))))
        self.readings = FakeReadings()
        self.health = FakeHealth()
        self.placements = FakePlacements()
        self.inference = FakeInference()
        self.unreachable: set[NodeId] = set()
        self.models = FakeModels(NODE, make_card())
        self.listeners = FakeListeners()
        self.cluster = FakeCluster(self.state)
        self.logs = FakeLogs()
        self.admin = FakeAdmin()
        self.peers = FakePeers()
        self.images = RemoteImages()
        self.allowed_hosts: tuple[str, ...] = ()
        self.allowed_origins: tuple[str, ...] | None = None
        self.max_concurrent_requests = 64
        self.max_held_body_bytes = 64 << 20
        self.stream_limits = StreamLimits()
        self.keep_limits = KeepLimits()
        self.cancels: Cancels = NobodyElse()
        self.probes = FakeProbes()
        self.queue_waits = queue_waits()

    def dependencies(self, tasks: Tasks) -> ApiDependencies:
        """Plug everything in."""
        return ApiDependencies(
            face=self.face,
            clock=self.clock,
            tasks=tasks,
            gateway=self.gateway,
            state=self.state,
            readings=self.readings,
            health=self.health,
            placements=self.placements,
            inference=self.inference,
            counts=self.inference,
            is_reachable=lambda node_id: node_id not in self.unreachable,
            models=self.models,
            listeners=self.listeners,
            cluster=self.cluster,
            logs=self.logs,
            admin=self.admin,
            peers=self.peers,
            random=random.Random(7),  # ruff: ignore[suspicious-non-cryptographic-random-usage] - seeded
            images=self.images,
            allowed_hosts=self.allowed_hosts,
            allowed_origins=self.allowed_origins,
            max_concurrent_requests=self.max_concurrent_requests,
            max_held_body_bytes=self.max_held_body_bytes,
            facts_wait_s=0.05,
            stream_limits=self.stream_limits,
            keep_limits=self.keep_limits,
            cancels=self.cancels,
            probes=self.probes,
            meters=RequestMeters(self.clock),
            queue_waits=self.queue_waits,
        )
