"""Instances: a placed model, its shards, its runners, and how far they have come."""

from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.base import FrozenModel
from protocol.cards import ModelCard
from protocol.errors import ErrorBody
from protocol.ids import DigestField, InstanceIdField, ModelIdField, NodeIdField
from protocol.placements import Plan

MAX_DRAIN_MS: Final = 24 * 3600 * 1000
MIN_TTL_MS: Final = 1000
MAX_TTL_MS: Final = 7 * 24 * 3600 * 1000

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

TtlMs = Annotated[int, Field(ge=MIN_TTL_MS, le=MAX_TTL_MS)]
"""How long an on-demand instance stays loaded after the end of its last request."""


class RunnerStatus(FrozenModel):
    """Where one rank's process stands; reported by its node, idempotent by (attempt, phase)."""

    rank: Annotated[int, Field(ge=0, le=127)]
    node_id: NodeIdField
    attempt: Annotated[int, Field(ge=0)]
    phase: Phase
    since_ms: int
    pid: int | None = None


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
