"""A tiny projector for llama-server: untrained weights, so a model sees, and understands nothing.

A vision transformer of one layer of the family of LLaVA, whose output has the width of the model's
embeddings. An image becomes four tokens.
"""

import random
import struct
from pathlib import Path
from typing import Final

from tests.support.gguf_builder import align, text, typed

IMAGE_TOKENS: Final = 4
_SIDE: Final = 28
_PATCH: Final = 14
_WIDTH: Final = 32
_SPREAD: Final = 0.05


def write_projector(path: Path, embedding_length: int, *, seed: int = 7) -> Path:
    """Write the file.

    Args:
        path: Where.
        embedding_length: Of the model that is to see.
        seed: Of the weights.
    """
    # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable weights
    chance = random.Random(seed)
    fields = _fields(embedding_length)
    shapes = _shapes(embedding_length)
    out = bytearray(b"GGUF") + struct.pack("<IQQ", 3, len(shapes), len(fields))
    for key, value in fields.items():
        out += text(key) + value
    weights = bytearray()
    for name, shape in shapes.items():
        out += text(name) + struct.pack("<I", len(shape))
        out += b"".join(struct.pack("<Q", n) for n in shape)
        out += struct.pack("<IQ", 0, len(weights))
        weights += _tensor(name, shape, chance)
        weights += bytes(align(len(weights)) - len(weights))
    out += bytes(align(len(out)) - len(out))
    path.write_bytes(bytes(out + weights))
    return path


def _fields(embedding_length: int) -> dict[str, bytes]:
    plain: dict[str, int | bool | str] = {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "general.file_type": 0,
        "clip.has_vision_encoder": True,
        "clip.projector_type": "mlp",
        "clip.use_gelu": True,
        "clip.vision.image_size": _SIDE,
        "clip.vision.patch_size": _PATCH,
        "clip.vision.embedding_length": _WIDTH,
        "clip.vision.feed_forward_length": _WIDTH,
        "clip.vision.block_count": 1,
        "clip.vision.attention.head_count": 2,
        "clip.vision.projection_dim": embedding_length,
    }
    half = struct.pack("<IIQfff", 9, 6, 3, 0.5, 0.5, 0.5)
    return {
        **{key: typed(value) for key, value in plain.items()},
        "clip.vision.attention.layer_norm_epsilon": struct.pack("<If", 6, 1e-5),
        "clip.vision.image_mean": half,
        "clip.vision.image_std": half,
    }


def _shapes(embedding_length: int) -> dict[str, tuple[int, ...]]:
    wide = embedding_length
    shapes: dict[str, tuple[int, ...]] = {
        "v.class_embd": (_WIDTH,),
        "v.patch_embd.weight": (_PATCH, _PATCH, 3, _WIDTH),
        "v.position_embd.weight": (_WIDTH, (_SIDE // _PATCH) ** 2 + 1),
        "mm.0.weight": (_WIDTH, wide),
        "mm.0.bias": (wide,),
        "mm.2.weight": (wide, wide),
        "mm.2.bias": (wide,),
    }
    for name in ("v.pre_ln", "v.blk.0.ln1", "v.blk.0.ln2"):
        shapes |= {f"{name}.weight": (_WIDTH,), f"{name}.bias": (_WIDTH,)}
    for name in ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_down", "ffn_up"):
        shapes |= {f"v.blk.0.{name}.weight": (_WIDTH, _WIDTH), f"v.blk.0.{name}.bias": (_WIDTH,)}
    return shapes


def _tensor(name: str, shape: tuple[int, ...], chance: random.Random) -> bytes:
    n_values = 1
    for length in shape:
        n_values *= length
    if name.endswith(("ln.weight", "ln1.weight", "ln2.weight")):
        return struct.pack("<f", 1.0) * n_values
    return struct.pack(f"<{n_values}f", *(chance.gauss(0, _SPREAD) for _ in range(n_values)))
