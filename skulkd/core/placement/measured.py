"""What earlier boots took, as the estimator uses it; pure.

`boot_key` is the one way to say what a measurement holds for: the worker reports under it, and the
planner looks it up by it. A boot that was measured under exactly the same key is predicted as it
was. For another window or number of slots the figure says only that the overhead beside weights and
cache has been as high as that, so it lifts the estimate and never lowers it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from protocol.cards import Compute, ModelCard, weights_digest
from protocol.ids import Digest
from protocol.measurements import BootKey, MeasuredMemory, MemoryMeasurement
from protocol.nodes import EngineFacts, NodeFacts
from protocol.placements import MemoryArithmetic, Plan, Shape, ShardAssignment
from skulkd.core.placement.memory_fit import Layers, Share, devices_of, share_of

Measurements = tuple[MemoryMeasurement, ...]
NOTHING_MEASURED: Final[Measurements] = ()
_ANY_WINDOW: Final = 256
_BUILD_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which part of a model a share is; the whole one unless it is said."""

    shape: Shape = "single"
    rank: int = 0
    n_ranks: int = 1
    layers: Layers
    """Half-open."""


def place_of(made: Plan, shard: ShardAssignment) -> Place:
    """Give the place of one of a plan's shards."""
    return Place(
        shape=made.shape,
        rank=shard.rank,
        n_ranks=len(made.shards),
        layers=(shard.layer_start, shard.layer_end),
    )


def boot_key(
    card: ModelCard,
    engine: EngineFacts,
    facts: NodeFacts,
    *,
    compute: Compute,
    context_tokens: int,
    slots: int,
    place: Place,
) -> BootKey:
    """Say what a measurement of a share holds for.

    Args:
        card: The model.
        engine: The build that loads it.
        facts: Of the node.
        compute: What it computes on.
        context_tokens: The window.
        slots: Requests served at a time.
        place: Which part of the model it is.
    """
    return BootKey(
        weights=weights_digest(card),
        engine=engine.engine,
        build=f"{engine.provider} {engine.version}"[:_BUILD_CHARACTERS],
        compute=compute,
        device=_device(facts, compute),
        context_tokens=context_tokens,
        slots=slots,
        shape=place.shape,
        rank=place.rank,
        n_ranks=place.n_ranks,
        layer_start=place.layers[0],
        layer_end=place.layers[1],
    )


def of_card(measurements: Mapping[Digest, MemoryMeasurement], card: ModelCard) -> Measurements:
    """Pick what was measured of a model's files."""
    if not measurements:
        return NOTHING_MEASURED
    weights = weights_digest(card)
    return tuple(one for one in measurements.values() if one.key.weights == weights)


def estimate(
    card: ModelCard,
    engine: EngineFacts,
    facts: NodeFacts,
    *,
    compute: Compute,
    slots: int,
    measurements: Measurements = NOTHING_MEASURED,
) -> Share:
    """Say what a whole model takes on a node: the one estimator, whoever asks.

    Args:
        card: The model.
        engine: The build that would load it.
        facts: Of the node.
        compute: What it computes on.
        slots: Requests served at a time.
        measurements: Of this card's files; see `of_card`.
    """
    share = share_of(card, engine, slots=slots)
    if not measurements:
        return share
    sought = boot_key(
        card,
        engine,
        facts,
        compute=compute,
        context_tokens=_ANY_WINDOW,
        slots=slots,
        place=Place(layers=(0, card.n_layers)),
    )
    return _with_measured(share, card, engine, sought, measurements)


def held_by_process(
    planned: MemoryArithmetic, *, mapped_bytes: int, private_bytes: int
) -> MeasuredMemory:
    """Say what a process holds whose model computes on the CPU.

    Weights that are mapped from their files count as far as they are mapped, since what is not
    resident now is read again. Where an engine has laid them out anew in memory of its own, the
    mapped copy is not needed any more, and the kernel drops it when it must.

    Args:
        planned: Tells such a copy from what else there is.
        mapped_bytes: Mapped from the model's files, resident or not.
        private_bytes: All else that is resident.
    """
    beside = private_bytes - planned.kv_cache_bytes - planned.overhead_bytes
    mapped = 0 if 2 * beside >= planned.weights_bytes else mapped_bytes
    return MeasuredMemory(total_bytes=mapped + private_bytes, mapped_bytes=mapped, source="process")


def _with_measured(
    share: Share,
    card: ModelCard,
    engine: EngineFacts,
    sought: BootKey,
    measurements: Measurements,
) -> Share:
    overhead_bytes = share.overhead_bytes
    exact: dict[int, int] = {}
    for one in measurements:
        key = one.key
        same_slots = key.model_copy(update={"context_tokens": sought.context_tokens})
        if same_slots.model_copy(update={"slots": sought.slots}) != sought:
            continue
        other = share if same_slots == sought else share_of(card, engine, slots=key.slots)
        beside = one.total_bytes - other.weights_bytes - other.kv_cache_bytes(key.context_tokens)
        if same_slots == sought:
            exact[key.context_tokens] = max(0, beside)
        overhead_bytes = max(overhead_bytes, beside)
    return replace(share, overhead_bytes=overhead_bytes, measured_overhead_bytes=exact)


def _device(facts: NodeFacts, compute: Compute) -> str:
    if compute == "cpu":
        return facts.arch
    return next((device.name for _, device in devices_of(facts, compute)), "")
