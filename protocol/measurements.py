"""Measured boots: what a model was seen to take, under what it holds for.

A prediction of memory is a sum of figures that somebody once measured on another machine. What a
boot really took here is better, as long as it is looked up under exactly what it was measured for.
"""

import hashlib
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from protocol.base import FrozenModel
from protocol.cards import Compute, EngineName
from protocol.ids import Digest, DigestField, InstanceIdField
from protocol.placements import ContextTokens, Shape, Slots

MEASUREMENTS_KEPT = 256
"""In the state; the one that was renewed the longest time ago goes first."""
BOOTS_KEPT = 4
"""Of one measurement: a figure that no boot has reached since is forgotten."""

_Bytes = Annotated[int, Field(ge=0, le=1 << 50)]
_Words = Annotated[str, StringConstraints(max_length=200)]


class BootKey(FrozenModel):
    """What a measurement holds for. Made by `core.placement.measured.boot_key` and nowhere else."""

    weights: DigestField
    """Of the files that are loaded; see `protocol.cards.weights_digest`."""
    engine: EngineName
    build: _Words
    """Provider and version."""
    compute: Compute
    device: _Words
    """Name of the accelerator, or architecture of the CPU."""
    context_tokens: ContextTokens
    slots: Slots
    shape: Shape
    rank: Annotated[int, Field(ge=0, le=127)]
    n_ranks: Annotated[int, Field(ge=1, le=128)]
    layer_start: Annotated[int, Field(ge=0, le=4096)]
    layer_end: Annotated[int, Field(ge=0, le=4096)]
    """Half-open; the layers of the share."""

    def digest(self) -> Digest:
        """Give the name under which the state keeps what was measured."""
        return Digest(hashlib.sha256(b"skulk boot\0" + self.model_dump_json().encode()).hexdigest())


class MeasuredMemory(FrozenModel):
    """What one share was seen to take of its pool, at the most since it was loaded."""

    total_bytes: _Bytes
    mapped_bytes: _Bytes = 0
    """Of it: weights that are mapped from their files."""
    cache_bytes: _Bytes | None = None
    """Of it: the cache, where the engine tells."""
    source: Literal["process", "device", "engine"]
    """Who told: the kernel of the process, the driver of the device, or the engine's own log."""


class MeasuredBoot(FrozenModel):
    """What one boot took."""

    instance_id: InstanceIdField
    attempt: Annotated[int, Field(ge=0)]
    memory: MeasuredMemory


class MemoryMeasurement(FrozenModel):
    """The last boots under one key, oldest first."""

    key: BootKey
    boots: Annotated[tuple[MeasuredBoot, ...], Field(min_length=1, max_length=BOOTS_KEPT)]
    at_ms: int
    """When the last one was reported."""

    @property
    def total_bytes(self) -> int:
        """The most that any of them took: what the next one is predicted to take."""
        return max(boot.memory.total_bytes for boot in self.boots)
