"""Instances: a placed model, its shards, its runners, and how far they have come."""

from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.base import FrozenModel
from protocol.cards import ModelCard
from protocol.errors import ErrorBody
from protocol.ids import DigestField, InstanceIdField, ModelIdField, NodeIdField
from protocol.measurements import MeasuredMemory
from protocol.placements import PlacementRequest, Plan

MAX_DRAIN_MS: Final = 24 * 3600 * 1000
MIN_TTL_MS: Final = 1000
MAX_TTL_MS: Final = 7 * 24 * 3600 * 1000
MAX_TTL_S: Final = MAX_TTL_MS // 1000
"""Of an on-demand instance: a week."""
DEFAULT_TTL_S: Final = 600
"""Where neither a placement nor the cluster's settings say another time."""
DEFAULT_LOST_AFTER_S: Final = 30
MAX_AWAY_S: Final = 7 * 24 * 3600
REPAIRS_KEPT: Final = 8
"""Of each instance."""

Phase = Literal[
    "asleep",
    "pending",
    "download",
    "stage",
    "spawn",
    "load",
    "probe",
    "ready",
    "stopping",
    "stopped",
    "failed",
]
"""In the order a runner goes through them; `stopping`, `stopped` and `failed` end it. `asleep` is
an on-demand instance that nobody has asked for: only an instance is, never a runner."""

PHASE_ORDER: Final[tuple[Phase, ...]] = (
    "pending",
    "download",
    "stage",
    "spawn",
    "load",
    "probe",
    "ready",
)
LOADING_PHASES: frozenset[Phase] = frozenset(PHASE_ORDER[:-1])

DesiredPhase = Literal["running", "asleep", "stopped"]

DrainMs = Annotated[int, Field(ge=0, le=MAX_DRAIN_MS)]
"""How long what an instance is answering may take to end, once it is to stop."""

RoomPriority = Annotated[int, Field(ge=-100, le=100)]
"""Which on-demand instance makes room first: the lowest; none does for one with a lower one."""
TtlSeconds = Annotated[int, Field(ge=1, le=MAX_TTL_S)]
"""The same, as operators say it."""
TtlMs = Annotated[int, Field(ge=MIN_TTL_MS, le=MAX_TTL_MS)]
"""How long an on-demand instance stays loaded after the end of its last request."""


AwayMs = Annotated[int, Field(ge=1000, le=MAX_AWAY_S * 1000)]


class DisconnectPolicy(FrozenModel):
    """What becomes of an instance when it cannot go on where it is, or nobody can be asked."""

    lost_after_ms: AwayMs = DEFAULT_LOST_AFTER_S * 1000
    """One of its nodes may be silent for so long before another place is looked for."""
    replace: bool = True
    """It may be put on other nodes without an operator's word."""
    stop_after_ms: AwayMs | None = None
    """A node that hears no master for so long stops it. None: it serves on, however long."""


class RunnerStatus(FrozenModel):
    """Where one rank's process stands; reported by its node, idempotent by (attempt, phase)."""

    rank: Annotated[int, Field(ge=0, le=127)]
    node_id: NodeIdField
    attempt: Annotated[int, Field(ge=0)]
    phase: Phase
    since_ms: int
    pid: int | None = None
    memory: Annotated[MeasuredMemory | None, Field(exclude_if=lambda seen: seen is None)] = None
    """What it was seen to take once it was ready; None until then, and where nothing tells."""


class InstanceFailure(FrozenModel):
    """Why an instance failed: what the process said and how it ended."""

    instance_id: InstanceIdField
    model_id: ModelIdField
    node_id: NodeIdField | None
    attempt: int
    phase: Phase
    error: ErrorBody
    exit_code: int | None = None
    signal: str | None = None
    log_tail: Annotated[tuple[str, ...], Field(max_length=20)] = ()
    """The last lines of the engine's log, oldest first."""
    at_ms: int
    final: bool
    """No further attempt follows until an operator acts."""


class LaunchRecord(FrozenModel):
    """The launch that last became ready: what a restart repeats."""

    context_tokens: int
    slots: int
    argv_digest: DigestField
    ready_at_ms: int
    load_ms: int


class Repair(FrozenModel):
    """One time that an instance was put on other nodes because it could not go on."""

    at_ms: int
    attempt: Annotated[int, Field(ge=0)]
    """The one that could not go on."""
    error: ErrorBody
    """Why not."""
    at_fault: Annotated[tuple[NodeIdField, ...], Field(max_length=128)]
    """The nodes that this was about; they are avoided for a while."""
    from_nodes: Annotated[tuple[NodeIdField, ...], Field(max_length=128)]
    to_nodes: Annotated[tuple[NodeIdField, ...], Field(max_length=128)]


class Replacement(FrozenModel):
    """The instance that a moved one takes the place of, and how."""

    instance_id: InstanceIdField
    stop_first: bool = False
    """The old one is stopped before this one is started, not once this one is ready."""
    drain_ms: DrainMs


class Instance(FrozenModel):
    """A desired placement and what is known of its runners."""

    instance_id: InstanceIdField
    model_id: ModelIdField
    plan: Plan
    card: ModelCard
    """The card as it was when the plan was made; the plan names its digest."""
    desired: DesiredPhase = "running"
    drain_ms: DrainMs = 0
    """Once it is to stop: it takes no further request, and ends when it has answered those that it
    has, at the latest after this time. Each of its nodes counts from when it hears of it."""
    ttl_ms: TtlMs | None = None
    """Of an on-demand instance: it is loaded when a request asks for it, and sleeps again after so
    long without one. None: it is loaded for as long as it is placed."""
    pinned: bool = False
    """It stays loaded, and no drain of a node takes it along."""
    priority: RoomPriority = 0
    made_room_for: ModelIdField | None = None
    """While it sleeps: the model that it was unloaded for; None when its time to live was over."""
    attempt: int = 1
    breaker_cleared_ms: int = 0
    """Failures up to here do not count any more; an operator's word."""
    runners: tuple[RunnerStatus, ...] = ()
    failure: InstanceFailure | None = None
    launch: LaunchRecord | None = None
    placed_at_ms: int
    replaces: Replacement | None = None
    """Invariant: set exactly while the instance that this one takes the place of is there."""
    moved_from: Annotated[tuple[NodeIdField, ...], Field(max_length=128)] = ()
    """The nodes of the instance that this one took the place of."""
    request: PlacementRequest | None = None
    """What was asked for: every later plan keeps to it. None for what was placed before requests
    were kept: then window and slots of the plan stand for it."""
    disconnect: DisconnectPolicy = DisconnectPolicy()
    repairs: Annotated[tuple[Repair, ...], Field(max_length=REPAIRS_KEPT)] = ()
    """The newest last."""

    @property
    def phase(self) -> Phase:
        """The phase of the whole: failed if any rank is, else the least advanced rank's."""
        if self.failure is not None and self.failure.final:
            return "failed"
        if self.desired != "running":
            return "stopping" if self.desired == "stopped" else "asleep"
        if len(self.runners) < len(self.plan.shards):
            return "pending"
        reached = {runner.phase for runner in self.runners}
        for phase in PHASE_ORDER:
            if phase in reached:
                return phase
        return "pending"
