"""What was predicted of memory beside what was measured, as clients read it. Pure."""

from collections.abc import Mapping

from protocol.cards import ModelCard, weights_digest
from protocol.control_api import MemoryView
from protocol.ids import Digest
from protocol.instances import Instance, RunnerStatus
from protocol.measurements import MemoryMeasurement
from protocol.models_api import BootView


def runner_memory(instance: Instance, runner: RunnerStatus) -> MemoryView | None:
    """Show what a runner takes beside what its plan said; None until it was measured."""
    seen = runner.memory
    shard = next((one for one in instance.plan.shards if one.rank == runner.rank), None)
    if seen is None or shard is None:
        return None
    predicted_bytes = shard.memory.needed_bytes
    return MemoryView(
        predicted_bytes=predicted_bytes,
        measured_bytes=seen.total_bytes,
        mapped_bytes=seen.mapped_bytes,
        cache_bytes=seen.cache_bytes,
        error_percent=error_percent(predicted_bytes, seen.total_bytes),
        source=seen.source,
    )


def error_percent(predicted_bytes: int, measured_bytes: int) -> float:
    """Say by how much a prediction was too large, in percent of the truth; negative: too small."""
    if not measured_bytes:
        return 0.0
    return round(100 * (predicted_bytes - measured_bytes) / measured_bytes, 1)


def boot_views(
    measurements: Mapping[Digest, MemoryMeasurement], card: ModelCard
) -> tuple[BootView, ...]:
    """List what boots of a model's files have taken, the newest first."""
    if not measurements:
        return ()
    weights = weights_digest(card)
    return tuple(
        BootView(
            build=one.key.build,
            compute=one.key.compute,
            device=one.key.device,
            context_tokens=one.key.context_tokens,
            slots=one.key.slots,
            layers=(one.key.layer_start, one.key.layer_end),
            measured_bytes=one.total_bytes,
            n_boots=len(one.boots),
            at_ms=one.at_ms,
        )
        for one in reversed(tuple(measurements.values()))
        if one.key.weights == weights
    )
