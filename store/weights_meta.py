"""What the header of a weights file means: architecture, dimensions, cache geometry, split set."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from protocol.cards import CacheGeometry
from protocol.errors import StoreError
from store.gguf import GgufDocument, GgufValue, Skipped, read_gguf

FILE_TYPES: Final[dict[int, str]] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
}
"""Source: llama.h, `llama_ftype`."""

MAX_LAYERS: Final = 4_096
MAX_DIMENSION: Final = 1 << 20
MAX_HEADS: Final = 4_096
MAX_HEAD_LENGTH: Final = 65_536
MAX_CONTEXT: Final = 1 << 26
MAX_SPLITS: Final = 512
_STATE_ELEMENT_BYTES: Final = 4
_POOLS_TO_SCORE: Final = 4
"""The `pooling_type` of a model that scores how well a document answers a query."""
"""Recurrent state is kept in float32."""
_FAMILY: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentShape:
    """Dimensions of the state-space layers, where a model has any."""

    conv_kernel: int
    inner_size: int
    state_size: int
    group_count: int

    @property
    def bytes_per_layer(self) -> int:
        """State of one sequence in one layer: the convolution's window, and the state proper."""
        window = (self.conv_kernel - 1) * (self.inner_size + 2 * self.group_count * self.state_size)
        return (max(0, window) + self.inner_size * self.state_size) * _STATE_ELEMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """What placement and cards need to know of a GGUF file.

    Numbers that a header leaves out are 0 where 0 says so, else derived as llama.cpp derives them.
    """

    architecture: str
    name: str | None
    license: str | None
    kind: str
    """`model`, `adapter`, `mmproj` and others: only a `model` can be served by itself."""
    context_length: int
    block_count: int
    embedding_length: int
    head_count: int
    kv_heads_per_layer: tuple[int, ...]
    """One entry a layer; 0 where the layer keeps no key-value cache."""
    key_length: int
    value_length: int
    recurrent: RecurrentShape | None
    quantization: str | None
    has_chat_template: bool
    takes_tools: bool
    """The chat template mentions tools; without that, what a client offers is dropped silently."""
    thinks: bool
    """The chat template has a place for thoughts."""
    takes_thinking_switch: bool
    """The chat template asks whether to have any."""
    eos_token_id: int | None
    bos_token_id: int | None
    pooling: bool
    """The file says how to pool: it makes embeddings, or scores documents."""
    scores: bool
    """It pools to a score."""
    split_no: int
    """Zero-based."""
    split_count: int
    """1 for a file that is whole."""
    n_tensors: int
    tensor_bytes: int
    file_bytes: int

    @property
    def head_count_kv(self) -> int:
        """The widest layer's."""
        return max(self.kv_heads_per_layer, default=0)


def read_gguf_header(path: Path) -> GgufHeader:
    """Read what the header of a GGUF file means. Blocking.

    Raises:
        StoreError: As `store.gguf.read_gguf`; `store.gguf_invalid` also when a dimension is
            missing or beyond any model.
    """
    return header_of(read_gguf(path), str(path))


def header_of(document: GgufDocument, name: str) -> GgufHeader:
    """Interpret a header.

    Args:
        document: As read.
        name: Of the file; named in errors.

    Raises:
        StoreError: `store.gguf_invalid`.
    """
    fields = _Fields(document.metadata, name)
    split_count = fields.number("split.count", 1, MAX_SPLITS, default=1)
    split_no = fields.number("split.no", 0, MAX_SPLITS - 1, default=0)
    if split_no >= split_count:
        raise _invalid(name, f"it says it is part {split_no + 1} of {split_count}")
    if split_no > 0 and "general.architecture" not in document.metadata:
        return _further_part(document, split_no, split_count)
    return _whole(document, fields, split_no, split_count)


def cache_geometry(header: GgufHeader) -> CacheGeometry:
    """Give the dimensions of the cache, never less than the engine will take.

    Layers with fewer heads than the widest count as the widest, and a sliding window counts as
    full attention: the planner may refuse what would just fit, and never admits what does not.
    """
    n_attention = sum(1 for heads in header.kv_heads_per_layer if heads > 0)
    recurrent_bytes = 0
    if header.recurrent is not None:
        # Hybrids give attention layers their heads and recurrent ones 0; where every layer has
        # heads, every layer has both.
        n_recurrent = header.block_count - n_attention or header.block_count
        recurrent_bytes = n_recurrent * header.recurrent.bytes_per_layer
    return CacheGeometry(
        n_attention_layers=n_attention,
        n_kv_heads=header.head_count_kv,
        key_length=header.key_length,
        value_length=header.value_length,
        recurrent_bytes_per_slot=recurrent_bytes,
    )


def _whole(
    document: GgufDocument, fields: "_Fields", split_no: int, split_count: int
) -> GgufHeader:
    architecture = fields.text("general.architecture")
    if architecture is None or _FAMILY.fullmatch(architecture) is None:
        raise _invalid(fields.name, f"general.architecture is {repr(architecture)[:60]}")
    kind = fields.text("general.type") or "model"
    prefix = f"{architecture}."
    if kind != "model":
        raise _invalid(fields.name, f"it holds a {kind[:40]}, not a model")
    n_layers = fields.number(prefix + "block_count", 1, MAX_LAYERS)
    width = fields.number(prefix + "embedding_length", 1, MAX_DIMENSION)
    pooling = fields.number(prefix + "pooling_type", 0, 16, default=0)
    heads = max(fields.per_layer(prefix + "attention.head_count", n_layers, default=0))
    kv_heads = _kv_heads(fields, prefix, n_layers, heads)
    template = fields.text("tokenizer.chat_template") or ""
    head_length = width // heads if heads else 0
    return GgufHeader(
        architecture=architecture,
        name=fields.text("general.name"),
        license=fields.text("general.license"),
        kind=kind,
        context_length=fields.number(prefix + "context_length", 0, MAX_CONTEXT, default=0),
        block_count=n_layers,
        embedding_length=width,
        head_count=heads,
        kv_heads_per_layer=kv_heads,
        key_length=fields.number(
            prefix + "attention.key_length", 0, MAX_HEAD_LENGTH, default=head_length
        ),
        value_length=fields.number(
            prefix + "attention.value_length", 0, MAX_HEAD_LENGTH, default=head_length
        ),
        recurrent=_recurrent(fields, prefix),
        quantization=FILE_TYPES.get(
            fields.number("general.file_type", 0, 1 << 16, default=1 << 16)
        ),
        has_chat_template=fields.has("tokenizer.chat_template"),
        takes_tools="tools" in template,
        thinks="<think>" in template,
        takes_thinking_switch="enable_thinking" in template,
        eos_token_id=fields.optional("tokenizer.ggml.eos_token_id", 1 << 31),
        bos_token_id=fields.optional("tokenizer.ggml.bos_token_id", 1 << 31),
        pooling=pooling > 0,
        scores=pooling == _POOLS_TO_SCORE,
        split_no=split_no,
        split_count=split_count,
        n_tensors=document.n_tensors,
        tensor_bytes=document.tensor_bytes,
        file_bytes=document.file_bytes,
    )


def _further_part(document: GgufDocument, split_no: int, split_count: int) -> GgufHeader:
    """Parts after the first may hold tensors only; their dimensions stand in part 1."""
    return GgufHeader(
        architecture="",
        name=None,
        license=None,
        kind="model",
        context_length=0,
        block_count=0,
        embedding_length=0,
        head_count=0,
        kv_heads_per_layer=(),
        key_length=0,
        value_length=0,
        recurrent=None,
        quantization=None,
        has_chat_template=False,
        takes_tools=False,
        thinks=False,
        takes_thinking_switch=False,
        eos_token_id=None,
        bos_token_id=None,
        pooling=False,
        scores=False,
        split_no=split_no,
        split_count=split_count,
        n_tensors=document.n_tensors,
        tensor_bytes=document.tensor_bytes,
        file_bytes=document.file_bytes,
    )


def _kv_heads(fields: "_Fields", prefix: str, n_layers: int, heads: int) -> tuple[int, ...]:
    kv_heads = fields.per_layer(prefix + "attention.head_count_kv", n_layers, default=heads)
    interval = fields.number(prefix + "full_attention_interval", 0, MAX_LAYERS, default=0)
    if interval > 1 and len(set(kv_heads)) == 1:
        # Every interval-th layer attends; the others are recurrent.
        return tuple(n if (layer + 1) % interval == 0 else 0 for layer, n in enumerate(kv_heads))
    return kv_heads


def _recurrent(fields: "_Fields", prefix: str) -> RecurrentShape | None:
    if not fields.has(prefix + "ssm.inner_size"):
        return None
    return RecurrentShape(
        conv_kernel=fields.number(prefix + "ssm.conv_kernel", 0, 4_096, default=0),
        inner_size=fields.number(prefix + "ssm.inner_size", 0, MAX_DIMENSION),
        state_size=fields.number(prefix + "ssm.state_size", 0, MAX_HEAD_LENGTH, default=0),
        group_count=fields.number(prefix + "ssm.group_count", 0, MAX_HEADS, default=0),
    )


@final
class _Fields:
    """Metadata read by type and bound, so that no lie goes further than here."""

    def __init__(self, metadata: dict[str, GgufValue], name: str) -> None:
        self._metadata = metadata
        self.name = name

    def has(self, key: str) -> bool:
        return key in self._metadata

    def text(self, key: str) -> str | None:
        value = self._metadata.get(key)
        if value is None or isinstance(value, Skipped):
            return None
        if not isinstance(value, str):
            raise _invalid(self.name, f"{key} is not text")
        return value

    def number(self, key: str, least: int, most: int, *, default: int | None = None) -> int:
        value = self._metadata.get(key)
        if value is None:
            if default is None:
                raise _invalid(self.name, f"{key} is missing")
            return default
        return self._bounded(key, value, least, most)

    def optional(self, key: str, most: int) -> int | None:
        return self.number(key, 0, most) if key in self._metadata else None

    def per_layer(self, key: str, n_layers: int, *, default: int) -> tuple[int, ...]:
        value = self._metadata.get(key, default)
        if not isinstance(value, tuple):
            return (self._bounded(key, value, 0, MAX_HEADS),) * n_layers
        if len(value) < n_layers:
            raise _invalid(self.name, f"{key} has {len(value)} entries for {n_layers} layers")
        return tuple(self._bounded(key, item, 0, MAX_HEADS) for item in value[:n_layers])

    def _bounded(self, key: str, value: GgufValue, least: int, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _invalid(self.name, f"{key} is {_shown(value)}, not {least} to {most}")
        return value


def _shown(value: GgufValue) -> str:
    return repr(value)[:60]


def _invalid(name: str, problem: str) -> StoreError:
    return StoreError(
        "store.gguf_invalid",
        f"{name} is not a usable GGUF file: {problem}",
        remediation="Check that this is the model's .gguf file, and fetch it again.",
    )
