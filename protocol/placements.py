"""Placement: what is asked, what is planned, and the arithmetic that decides.

Bytes are integers everywhere. A plan is complete: a worker can carry it out without asking again.
"""

from typing import Annotated, Literal

from pydantic import Field

from protocol.base import FrozenModel
from protocol.cards import BackendTag, EngineName
from protocol.errors import ErrorBody
from protocol.ids import DigestField, ModelIdField, NodeIdField

Shape = Literal["single", "pipeline", "tensor", "rpc"]
"""How a model is spread: one node; MLX pipeline or tensor over a ring; llama.cpp RPC pooling."""

ContextTokens = Annotated[int, Field(ge=256, le=1 << 24)]
Slots = Annotated[int, Field(ge=1, le=256)]

ArithmeticTerm = Literal["weights", "kv_cache", "overhead", "reserved", "available"]


class PlacementRequest(FrozenModel):
    """What an operator asks for; everything left out is the planner's choice."""

    model_id: ModelIdField
    nodes: Annotated[tuple[NodeIdField, ...], Field(max_length=128)] = ()
    """Only these nodes, when given."""
    excluded_nodes: Annotated[tuple[NodeIdField, ...], Field(max_length=128)] = ()
    min_nodes: Annotated[int, Field(ge=1, le=128)] = 1
    shape: Shape | None = None
    backend: BackendTag | None = None
    context_tokens: ContextTokens | None = None
    slots: Slots | None = None


class MemoryArithmetic(FrozenModel):
    """Why a share fits on a node, or by how much it does not.

    Invariant: `needed_bytes` = weights + kv_cache + overhead; it fits when
    `needed_bytes <= available_bytes - reserved_bytes`.
    """

    weights_bytes: int
    kv_cache_bytes: int
    overhead_bytes: int
    reserved_bytes: int
    """Claimed by placements that telemetry does not show yet."""
    available_bytes: int
    pool: Literal["ram", "vram", "unified"]
    kv_bytes_per_token: int
    context_tokens: int

    @property
    def needed_bytes(self) -> int:
        """What this share takes."""
        return self.weights_bytes + self.kv_cache_bytes + self.overhead_bytes

    @property
    def headroom_bytes(self) -> int:
        """What is left after it; negative when it does not fit."""
        return self.available_bytes - self.reserved_bytes - self.needed_bytes


class ShardAssignment(FrozenModel):
    """One node's share of an instance."""

    rank: Annotated[int, Field(ge=0, le=127)]
    node_id: NodeIdField
    layer_start: int
    layer_end: int
    """Half-open: layers `layer_start` to `layer_end - 1`."""
    memory: MemoryArithmetic
    backend: Annotated[BackendTag | None, Field(exclude_if=lambda tag: tag is None)] = None
    """What this share computes with, where it is not the plan's backend."""


class RankSpeed(FrozenModel):
    """How fast one rank reads what a token needs of it."""

    rank: Annotated[int, Field(ge=0, le=127)]
    read_bytes: Annotated[int, Field(ge=1)]
    rate_bytes_s: Annotated[int, Field(ge=1)]
    is_measured: bool
    """By what ran on the node; else it is what is typical of its hardware."""


class PredictedSpeed(FrozenModel):
    """How long a token is expected to take, when one answer is generated at a time."""

    compute_us: Annotated[int, Field(ge=1)]
    link_us: Annotated[int, Field(ge=0)] = 0
    links_measured: bool = True
    ranks: Annotated[tuple[RankSpeed, ...], Field(max_length=128)] = ()

    @property
    def tokens_per_s(self) -> float:
        """The same as a rate."""
        return 1_000_000 / (self.compute_us + self.link_us)

    @property
    def is_measured(self) -> bool:
        """Whether it rests on measurements alone; else it may be wrong by a factor of two."""
        return self.links_measured and all(rank.is_measured for rank in self.ranks)


class Plan(FrozenModel):
    """A complete placement.

    `plan_id` is a digest of request and assignment (model, card, backend, nodes, layers, context,
    slots), not of readings, which always move.
    """

    plan_id: DigestField
    model_id: ModelIdField
    card_digest: DigestField
    shape: Shape
    engine: EngineName
    backend: BackendTag
    """Of rank 0, which takes the requests."""
    context_tokens: int
    slots: int
    shards: Annotated[tuple[ShardAssignment, ...], Field(min_length=1, max_length=128)]
    context_limited_by: str = ""
    """What kept the context below what the model offers, in words; empty when nothing did."""
    alternative: bool = False
    download_bytes: int = 0
    """What would have to be fetched first."""
    speed: Annotated[PredictedSpeed | None, Field(exclude_if=lambda speed: speed is None)] = None
    """As it was predicted when the plan was made; None where it could not be told."""


class SmallestChange(FrozenModel):
    """The least an operator has to change for the refused plan to fit."""

    kind: Literal["context_tokens", "free_memory", "other_node", "none"]
    context_tokens: int | None = None
    free_bytes: int | None = None
    text: str


class Refusal(FrozenModel):
    """Why one candidate cannot hold the model."""

    node_id: NodeIdField | None
    error: ErrorBody
    term: ArithmeticTerm | None = None
    """The term of the arithmetic that broke, when memory did."""
    memory: MemoryArithmetic | None = None
    smallest_change: SmallestChange | None = None


class PlacementOutcome(FrozenModel):
    """What the planner answers: plans in order of preference, and a refusal for each other node."""

    plans: tuple[Plan, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    missing_facts: tuple[str, ...] = ()
    """Facts still arriving (`memory of n…`); with these the answer is 503, not 400."""
