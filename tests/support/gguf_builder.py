"""Tiny GGUF files that are valid to the byte, for readers to read and to choke on."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

Value = int | float | bool | str | list[int] | list[str]

ALIGNMENT = 32
F32 = 0


@dataclass
class Tensor:
    name: str
    dimensions: tuple[int, ...] = (32, 4)
    kind: int = F32

    @property
    def n_bytes(self) -> int:
        total = 4
        for dimension in self.dimensions:
            total *= dimension
        return total


def _two_tensors() -> list[Tensor]:
    return [Tensor("token_embd.weight"), Tensor("output.weight")]


@dataclass
class GgufBuilder:
    """A llama of two layers unless told otherwise; `metadata` overrides, None removes."""

    metadata: Mapping[str, Value | None] = field(default_factory=dict[str, Value | None])
    tensors: list[Tensor] = field(default_factory=_two_tensors)
    version: int = 3
    architecture: str = "llama"

    def fields(self) -> dict[str, Value]:
        name = self.architecture
        base: dict[str, Value | None] = {
            "general.architecture": name,
            "general.name": "Tiny",
            "general.file_type": 0,
            f"{name}.block_count": 2,
            f"{name}.context_length": 2048,
            f"{name}.embedding_length": 64,
            f"{name}.attention.head_count": 4,
            f"{name}.attention.head_count_kv": 2,
            "tokenizer.ggml.tokens": ["<s>", "</s>", "a", "b"],
            "tokenizer.ggml.eos_token_id": 1,
            "tokenizer.chat_template": "{{ messages }}",
        }
        merged = {**base, **self.metadata}
        return {key: value for key, value in merged.items() if value is not None}

    def build(self) -> bytes:
        fields = self.fields()
        out = bytearray(b"GGUF")
        out += struct.pack("<IQQ", self.version, len(self.tensors), len(fields))
        for key, value in fields.items():
            out += text(key) + typed(value)
        offset = 0
        for tensor in self.tensors:
            out += text(tensor.name) + struct.pack("<I", len(tensor.dimensions))
            out += b"".join(struct.pack("<Q", n) for n in tensor.dimensions)
            out += struct.pack("<IQ", tensor.kind, offset)
            offset = align(offset + tensor.n_bytes)
        out += b"\0" * (align(len(out)) - len(out))
        return bytes(out) + bytes(offset)

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.build())
        return path


def align(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def typed(value: Value) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + text(value)
        case list():
            if value and isinstance(value[0], str):
                body = b"".join(text(str(item)) for item in value)
                return struct.pack("<IIQ", 9, 8, len(value)) + body
            body = b"".join(struct.pack("<I", int(item)) for item in value)
            return struct.pack("<IIQ", 9, 4, len(value)) + body


def write_split_set(folder: Path, stem: str, count: int) -> list[Path]:
    """Write a whole split set, as llama.cpp's gguf-split names and marks its parts."""
    paths: list[Path] = []
    for number in range(1, count + 1):
        marks: dict[str, Value | None] = {
            "split.no": number - 1,
            "split.count": count,
            "split.tensors.count": 2 * count,
        }
        if number > 1:
            marks |= dict.fromkeys(GgufBuilder().fields())
        path = folder / f"{stem}-{number:05d}-of-{count:05d}.gguf"
        tensors = [Tensor(f"blk.{number}.a"), Tensor(f"blk.{number}.b")]
        paths.append(GgufBuilder(metadata=marks, tensors=tensors).write(path))
    return paths
