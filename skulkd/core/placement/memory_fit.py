"""The arithmetic of memory on one node: what a share takes, what is there, what is spoken for.

    needed    = weights + kv_cache + overhead
    fits when   needed <= available - reserved

Every number belongs to one node and one pool; nothing is summed over nodes or devices. A pool is
`ram` (the engine computes on the CPU), `vram` (a card's own memory: the one with the most free) or
`unified` (a GPU that takes its memory out of the RAM, under its own limit).

`reserved` covers what the readings cannot show. A placement that has not loaded yet is in no
reading; one that is loading is in it by what it has loaded. Weights that an engine has mapped from
a file count as reclaimable, so that they may not be missing from `available` even when the model
serves; nothing tells from outside whether they are. Therefore

    reserved = max(what placements have still to load,
                   available + needs of all placements - total of the pool, 0)

The second term says: whatever a reading claims, the placements together never exceed the pool. What
a loaded model shows in the reading is not subtracted a second time. The limit of this: beside
mapped weights, memory that other programs hold is not seen by the second term.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from protocol.cards import (
    BackendTag,
    Compute,
    EngineName,
    ModelCard,
    is_encoder,
    projector_bytes,
    text_tokens,
)
from protocol.ids import NodeId
from protocol.images import MAX_IMAGES_PIXELS
from protocol.instances import Instance
from protocol.nodes import Accelerator, EngineFacts, NodeFacts
from protocol.placements import MemoryArithmetic, ShardAssignment
from protocol.readings import NodeReading, Readings
from protocol.state import ClusterState
from skulkd.core.model_capabilities import sees

Pool = Literal["ram", "vram", "unified"]
Layers = tuple[int, int]
"""A half-open range of layers."""

MIB: Final = 1 << 20
OVERHEAD_FLOOR_BYTES: Final = 256 * MIB
"""Process and compute buffers of a build whose own figure was not measured."""
SCRIPTED_OVERHEAD_BYTES: Final = 64 * MIB
"""A bare interpreter with a small HTTP server, when it was not measured."""
OVERHEAD_PERCENT: Final[dict[EngineName, int]] = {
    "scripted": 0,
    "llama_server": 10,
    "llama_cpp": 10,
    "mlx": 30,
    "vllm": 30,
}
"""Of the weights: activations, compute buffers, allocator slack. The original's x1.10 and x1.30."""
FALLBACK_VOCABULARY: Final = 262_144
"""Bytes a unit of `hidden_size` that the ends of a split model take while no header says it: the
largest usual vocabulary with a byte a weight, or half of it twice."""
FALLBACK_HEAD_WIDTH: Final = 128
"""Assumed width of a key or value head when no header said it; the usual one today."""
KV_ELEMENT_BYTES: Final = 2  # fp16
_PIXEL_BYTES: Final = 3
_NO_WINDOW: Final = 1 << 30
_VOCABULARY_BYTES: Final = 2 * 4 * 152_064
"""Of a token in a batch for vectors: two rows of float32, of the largest usual vocabulary."""
_LAYER_NUMBERS: Final = 16
"""Of a token in an encoder's batch: float32 values that a layer holds, in hidden sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one node would hold of a model, without the context that is still to be chosen."""

    weights_bytes: int
    overhead_bytes: int
    kv_bytes_per_token: int
    kv_fixed_bytes: int
    """Cache that does not grow with the context: recurrent state, one a slot."""
    measured_overhead_bytes: Mapping[int, int] = field(default_factory=dict[int, int])
    """By window: the overhead of boots that were measured with exactly that one."""

    def overhead_with(self, context_tokens: int) -> int:
        """What it takes beside weights and cache: as measured with this window, else estimated."""
        return self.measured_overhead_bytes.get(context_tokens, self.overhead_bytes)

    def needed_bytes(self, context_tokens: int) -> int:
        """What the share takes with so much context."""
        beside = self.weights_bytes + self.overhead_with(context_tokens)
        return beside + self.kv_cache_bytes(context_tokens)

    def kv_cache_bytes(self, context_tokens: int) -> int:
        """The cache's part. All slots share one pool of `context_tokens` tokens."""
        return self.kv_bytes_per_token * context_tokens + self.kv_fixed_bytes

    def max_context(self, free_bytes: int) -> int:
        """The most tokens whose cache fits into `free_bytes` beside the rest; negative if none.

        A window between two that fit may have been measured to take more, and then does not.
        """
        return max(
            self._estimated_max_context(free_bytes),
            *(tokens for tokens in self.measured_overhead_bytes if self.fits(tokens, free_bytes)),
            -1,
        )

    def fits(self, context_tokens: int, free_bytes: int) -> bool:
        """Say whether the share fits with so much context."""
        return self.needed_bytes(context_tokens) <= free_bytes

    def _estimated_max_context(self, free_bytes: int) -> int:
        left = free_bytes - self.weights_bytes - self.overhead_bytes - self.kv_fixed_bytes
        if left < 0:
            return -1
        return left // self.kv_bytes_per_token if self.kv_bytes_per_token else 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one placed share takes of a pool of its node."""

    pool: Pool
    needed_bytes: int
    unseen_bytes: int
    """The part that readings cannot show yet."""
    is_settling: bool
    """The instance is being stopped, or was put to sleep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """What one pool of one node has for a further share."""

    pool: Pool
    available_bytes: int
    reserved_bytes: int
    settling_bytes: int
    """Held by instances that are being stopped or unloaded; it comes back soon."""
    total_bytes: int | None
    """What the pool has in all, where that is known."""

    @property
    def free_bytes(self) -> int:
        """What a further share may take."""
        return self.available_bytes - self.reserved_bytes


def share_of(
    card: ModelCard,
    engine: EngineFacts,
    *,
    slots: int,
    layers: Layers | None = None,
    has_ends: bool = True,
    n_parts: int = 1,
) -> Share:
    """Compute what a model, or some of its layers, takes on one node with this engine build.

    Args:
        card: The model.
        engine: The build that would hold the share.
        slots: Requests served at a time.
        layers: The share's layers, half-open; None is the whole model.
        has_ends: Whether the share holds what is no layer: the table of tokens, the output, a
            projector, and the buffers of a whole text or an image. Of a model without ends only
            the layers count, as on the donors of a pool.
        n_parts: Into how many equal parts each layer and its cache are cut, of which this is one.
    """
    n_layers = card.n_layers if layers is None else layers[1] - layers[0]
    weights = _part(_layer_bytes(card, n_layers), 1, n_parts)
    if has_ends:
        weights += _ends_bytes(card) if n_layers < card.n_layers or n_parts > 1 else 0
        weights += projector_bytes(card) if sees(card, engine.engine) else 0
    per_token, fixed = _cache(card, n_layers)
    floor = engine.overhead_bytes or _default_floor(engine.engine)
    overhead = max(floor, weights * OVERHEAD_PERCENT[engine.engine] // 100)
    if has_ends:
        overhead += _batch_bytes(card) + _image_bytes(card, engine)
    return Share(
        weights_bytes=weights,
        overhead_bytes=overhead,
        kv_bytes_per_token=_part(per_token, 1, n_parts),
        kv_fixed_bytes=_part(fixed, 1, n_parts) * slots,
    )


def _layer_bytes(card: ModelCard, n_layers: int) -> int:
    """Give the weights of so many layers, as if there were nothing but layers: never too few."""
    weights = card.storage_size.in_bytes
    if card.scripted is not None:
        weights = card.scripted.memory_bytes or weights
    return _part(weights, n_layers, card.n_layers)


def _ends_bytes(card: ModelCard) -> int:
    """Give what the table of tokens and the output take, as far as no header has said it."""
    if card.scripted is not None:
        return 0
    return min(card.storage_size.in_bytes, card.hidden_size * FALLBACK_VOCABULARY)


def _part(amount: int, part: int, whole: int) -> int:
    """Divide, and round up."""
    return -(-amount * part // whole)


def _batch_bytes(card: ModelCard) -> int:
    """Give what a batch takes in which a text is seen whole, to make a vector of it."""
    if card.scripted is not None or {"TextEmbedding", "TextRerank"}.isdisjoint(card.tasks):
        return 0
    n_tokens = text_tokens(card, card.context_length or _NO_WINDOW)
    if is_encoder(card):
        return n_tokens * _LAYER_NUMBERS * 4 * card.hidden_size
    return n_tokens * _VOCABULARY_BYTES


def _image_bytes(card: ModelCard, engine: EngineFacts) -> int:
    """Give what it takes to look at images: one request's decoded, and the projector's buffers.

    The buffers grow with an image's patches and the projector's width, as its weights do.
    """
    if card.scripted is not None or not sees(card, engine.engine):
        return 0
    return MAX_IMAGES_PIXELS * _PIXEL_BYTES + projector_bytes(card)


def claims_by_node(state: ClusterState, readings: Readings) -> dict[NodeId, list[Claim]]:
    """Collect what is placed, by node; what failed for good or is asleep holds nothing."""
    claims: dict[NodeId, list[Claim]] = {}
    for instance in state.instances.values():
        if instance.failure is not None and instance.failure.final:
            continue
        for shard in instance.plan.shards:
            if instance.desired == "asleep" and not _may_be_loaded(instance, shard):
                continue
            claim = _claim(instance, shard, readings)
            claims.setdefault(shard.node_id, []).append(claim)
    return claims


def lack_in_all_bytes(state: ClusterState, shard: ShardAssignment) -> int:
    """Say by how much a share and all that is placed beside it exceed their pool; 0 if they fit.

    Looks at what the pool has in all and not at readings, so it holds whatever is loaded by now.
    A pool of unknown size refuses nothing.
    """
    member = state.members.get(shard.node_id)
    if member is None or member.facts is None:
        return 0
    total_bytes = _total(member.facts, shard.memory.pool)
    if total_bytes is None:
        return 0
    placed_bytes = sum(
        claim.needed_bytes
        for claim in claims_by_node(state, Readings()).get(shard.node_id, [])
        if not claim.is_settling and _same_memory(claim.pool, shard.memory.pool)
    )
    return max(0, placed_bytes + shard.memory.needed_bytes - total_bytes)


def arithmetic(share: Share, memory: PoolMemory, context_tokens: int) -> MemoryArithmetic:
    """Write the sum out, as plans and refusals carry it."""
    return MemoryArithmetic(
        weights_bytes=share.weights_bytes,
        kv_cache_bytes=share.kv_cache_bytes(context_tokens),
        overhead_bytes=share.overhead_with(context_tokens),
        reserved_bytes=memory.reserved_bytes,
        available_bytes=memory.available_bytes,
        pool=memory.pool,
        kv_bytes_per_token=share.kv_bytes_per_token,
        context_tokens=context_tokens,
    )


def pool_memory(
    facts: NodeFacts, compute: Compute, reading: NodeReading, claims: Iterable[Claim]
) -> PoolMemory | None:
    """Look up the pool that a backend with this compute takes its memory from.

    Args:
        facts: Of the node.
        compute: Of the backend.
        reading: The node's last one.
        claims: What is placed on the node.

    Returns:
        None while the reading lacks the figure: unknown is not zero.
    """
    found = _observed(facts, compute, reading)
    if found is None:
        return None
    pool, observed_bytes, total_bytes = found
    unseen = live = settling = 0
    for claim in claims:
        if not _same_memory(claim.pool, pool):
            continue
        if claim.is_settling:
            settling += claim.needed_bytes
        else:
            live += claim.needed_bytes
            unseen += claim.unseen_bytes
    beyond_total = observed_bytes + live - total_bytes if total_bytes is not None else 0
    return PoolMemory(
        pool=pool,
        available_bytes=observed_bytes,
        reserved_bytes=max(unseen, beyond_total, 0),
        settling_bytes=settling,
        total_bytes=total_bytes,
    )


def compute_of(backend: BackendTag) -> Compute:
    """Read the compute out of a full backend tag."""
    computes: dict[str, Compute] = {
        "cpu": "cpu",
        "cuda": "cuda",
        "rocm": "rocm",
        "vulkan": "vulkan",
        "metal": "metal",
    }
    return computes[backend.partition("-")[2]]


def devices_of(facts: NodeFacts, compute: Compute) -> list[tuple[int, Accelerator]]:
    """Find the accelerators that this compute can use, with their place in the readings."""
    numbered = list(enumerate(facts.accelerators))
    exact = [(index, device) for index, device in numbered if device.compute == compute]
    if exact or compute != "vulkan":
        return exact
    return [(index, device) for index, device in numbered if device.vendor != "apple"]


def _default_floor(engine: EngineName) -> int:
    return SCRIPTED_OVERHEAD_BYTES if engine == "scripted" else OVERHEAD_FLOOR_BYTES


def _cache(card: ModelCard, n_layers: int) -> tuple[int, int]:
    """Bytes of cache that so many layers take: of a token, and of a slot.

    Which layers attend and which recur is not known; any of them may be those with more.
    """
    geometry = card.gguf_cache_geometry
    if geometry is not None:
        n_attending = geometry.n_attention_layers
        per_token = geometry.kv_bytes_per_token(KV_ELEMENT_BYTES)
        per_slot = geometry.recurrent_bytes_per_slot
        if n_layers == card.n_layers:
            return per_token, per_slot
        n_recurrent = max(1, card.n_layers - n_attending)
        return (
            _part(per_token, min(n_layers, n_attending), max(1, n_attending)),
            _part(per_slot, min(n_layers, n_recurrent), n_recurrent),
        )
    if card.scripted is not None:
        return 0, 0
    width = card.hidden_size
    if card.num_key_value_heads is not None:
        width = min(width, card.num_key_value_heads * FALLBACK_HEAD_WIDTH)
    return n_layers * 2 * width * KV_ELEMENT_BYTES, 0


def _observed(
    facts: NodeFacts, compute: Compute, reading: NodeReading
) -> tuple[Pool, int, int | None] | None:
    """Pool, bytes available now, and bytes in all, where they are known."""
    ram = reading.memory_available_bytes
    if compute == "cpu":
        if ram is None:
            return None
        return "ram", min(ram, facts.memory_bytes), facts.memory_bytes
    devices = devices_of(facts, compute)
    discrete = [
        (index, device)
        for index, device in devices
        if not device.unified and device.memory_bytes is not None
    ]
    if discrete:
        return _discrete(discrete, reading)
    # A GPU whose tool names no memory of its own lives off the RAM, as does one nobody has seen
    # and an operator has declared: the RAM bounds what it can take.
    if ram is None:
        return None
    limits = [facts.memory_bytes]
    limits.extend(device.memory_bytes for _, device in devices if device.memory_bytes is not None)
    free = [_free(reading, index) for index, _ in devices]
    observed = min([ram, *limits, *(figure for figure in free if figure is not None)])
    return "unified", observed, min(limits)


def _discrete(
    devices: list[tuple[int, Accelerator]], reading: NodeReading
) -> tuple[Pool, int, int | None] | None:
    best: tuple[int, int | None] | None = None
    for index, device in devices:
        free = _free(reading, index)
        if free is not None and (best is None or free > best[0]):
            best = free, device.memory_bytes
    return None if best is None else ("vram", *best)


def _free(reading: NodeReading, index: int) -> int | None:
    devices = reading.accelerators
    return devices[index].free_bytes if index < len(devices) else None


def _claim(instance: Instance, shard: ShardAssignment, readings: Readings) -> Claim:
    needed = max(shard.memory.needed_bytes, _measured_bytes(instance, shard))
    return Claim(
        pool=shard.memory.pool,
        needed_bytes=needed,
        unseen_bytes=max(0, needed - _seen_bytes(instance, shard, readings, needed)),
        is_settling=instance.desired != "running",
    )


def _measured_bytes(instance: Instance, shard: ShardAssignment) -> int:
    memories = (runner.memory for runner in instance.runners if runner.rank == shard.rank)
    return max((memory.total_bytes for memory in memories if memory is not None), default=0)


def _may_be_loaded(instance: Instance, shard: ShardAssignment) -> bool:
    """Say whether a sleeping instance's runner may be there still: nobody has said it is gone."""
    return any(
        runner.rank == shard.rank and runner.phase not in {"stopped", "failed"}
        for runner in instance.runners
    )


def _seen_bytes(
    instance: Instance, shard: ShardAssignment, readings: Readings, needed_bytes: int
) -> int:
    """Say how much of a share the node's reading shows: what its load has reached."""
    phase = next((r.phase for r in instance.runners if r.rank == shard.rank), "pending")
    if phase == "load":
        progress = readings.progress.get((instance.instance_id, shard.rank))
        if progress is None or progress.phase != "load" or progress.attempt != instance.attempt:
            return 0
        return progress.done_bytes or 0
    # The engine says `loaded` before it is probed: by then all of it is there.
    return needed_bytes if phase in {"probe", "ready"} else 0


def _total(facts: NodeFacts, pool: Pool) -> int | None:
    if pool != "vram":
        return facts.memory_bytes
    devices = [device.memory_bytes for device in facts.accelerators if not device.unified]
    return max((n_bytes for n_bytes in devices if n_bytes is not None), default=None)


def _same_memory(one: Pool, other: Pool) -> bool:
    return one == other or "vram" not in {one, other}
