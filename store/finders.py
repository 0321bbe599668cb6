"""Models that other programs have already put on this machine.

Finding looks at names and sizes only; nothing is opened but Ollama's small manifests. Every walk is
bounded in depth and count, and enters no linked directory.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from protocol.errors import RequestError
from protocol.ids import ModelId, parse_model_id
from store.importer import model_id_of, split_name

FinderKind = Literal["hf", "ollama", "lmstudio", "llamacpp"]

MAX_DEPTH: Final = 6
MAX_ENTRIES: Final = 100_000
MAX_OLLAMA_MANIFEST_BYTES: Final = 256 * 1024
_QUANT: Final = re.compile(
    r"(?:^|[-._])(I?Q\d(?:_[0-9A-Z]+)*|TQ\d_\d|BF16|F16|F32|MXFP4)(?=[-._]|$)", re.IGNORECASE
)
_OLLAMA_MODEL: Final = "application/vnd.ollama.image.model"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """A file that `card_from_gguf` can be asked about."""

    kind: FinderKind
    path: Path
    model_id: ModelId
    """Proposed: what the other program calls it."""
    size_bytes: int
    """Of the file; of a split set, of its first part."""


class _Foreign(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _OllamaLayer(_Foreign):
    media_type: Annotated[str, Field(alias="mediaType", max_length=200)]
    digest: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


class _OllamaManifest(_Foreign):
    layers: Annotated[tuple[_OllamaLayer, ...], Field(max_length=256)] = ()


def default_roots(
    kind: FinderKind, *, home: Path, environment: Mapping[str, str]
) -> tuple[Path, ...]:
    """Say where a program keeps its models, by its own rules."""
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    match kind:
        case "hf":
            hub_home = Path(environment.get("HF_HOME") or cache / "huggingface")
            return (Path(environment.get("HF_HUB_CACHE") or hub_home / "hub"),)
        case "ollama":
            named = environment.get("OLLAMA_MODELS")
            service = Path("/usr/share/ollama/.ollama/models")
            return (Path(named),) if named else (home / ".ollama" / "models", service)
        case "lmstudio":
            return (home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models")
        case "llamacpp":
            named = environment.get("LLAMA_CACHE")
            mac = home / "Library" / "Caches" / "llama.cpp"
            return (Path(named),) if named else (cache / "llama.cpp", mac)


def find_models(
    kind: FinderKind,
    *,
    home: Path,
    environment: Mapping[str, str],
    roots: tuple[Path, ...] | None = None,
) -> tuple[FoundModel, ...]:
    """Find the GGUF models that a program keeps on this machine. Blocking.

    Each file is given once, however many names it has, and a split set by its first part.

    Args:
        kind: Whose.
        home: Of the user whose models are meant.
        environment: Of that user; the program's own variables are honoured.
        roots: In place of the usual ones.
    """
    places = roots or default_roots(kind, home=home, environment=environment)
    found: dict[tuple[int, int], FoundModel] = {}
    for root in places:
        for path, model_id in _candidates(kind, root):
            if not _is_text(path):
                continue  # Nobody could be told its name, nor give it back.
            try:
                status = path.stat()
            except OSError:
                continue  # A link whose target is gone, or is not ours to see: not a model here.
            model = FoundModel(kind=kind, path=path, model_id=model_id, size_bytes=status.st_size)
            found.setdefault((status.st_dev, status.st_ino), model)
    return tuple(sorted(found.values(), key=lambda model: (model.model_id, str(model.path))))


def _is_text(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _candidates(kind: FinderKind, root: Path) -> Iterator[tuple[Path, ModelId]]:
    if kind == "ollama":
        yield from _ollama(root)
        return
    for path in _gguf_files(root):
        owner, name = _owner_and_name(kind, path.relative_to(root).parts)
        yield path, _with_quant(model_id_of(name, owner=owner), path.name)


def _owner_and_name(kind: FinderKind, parts: tuple[str, ...]) -> tuple[str | None, str]:
    """Read owner and name out of where a file lies."""
    match (kind, *parts):
        case ("hf", folder, _, *_) if folder.startswith("models--"):
            owner, _, name = folder.removeprefix("models--").partition("--")
            return (owner, name) if name else (None, owner)
        case ("lmstudio", owner, name, _, *_):
            return owner, name
        case _:
            return None, "/".join(parts[-1:])


def _with_quant(model_id: ModelId, file_name: str) -> ModelId:
    """Tell the quants of one repository apart."""
    match = _QUANT.search(file_name.removesuffix(".gguf"))
    if match is None or match[1].lower() in model_id.lower():
        return model_id
    try:
        return parse_model_id(f"{model_id}:{match[1]}")
    except RequestError:
        return model_id  # Too long with it: the quants of such a name are told apart by path.


def _files_below(root: Path) -> Iterator[Path]:
    """Give the files of a tree in order, no deeper and no more than is bearable."""
    n_entries = 0
    for folder, folders, files in os.walk(root):
        folders.sort()
        if len(Path(folder).relative_to(root).parts) >= MAX_DEPTH:
            folders.clear()
        for name in sorted(files):
            n_entries += 1
            if n_entries > MAX_ENTRIES:
                return
            yield Path(folder) / name


def _gguf_files(root: Path) -> Iterator[Path]:
    for path in _files_below(root):
        split = split_name(path.name)
        later_part = split is not None and split.number > 1
        # A projector is half of a vision model, and no model by itself.
        if path.name.endswith(".gguf") and not later_part and "mmproj" not in path.name.lower():
            yield path


def _ollama(root: Path) -> Iterator[tuple[Path, ModelId]]:
    manifests = root / "manifests"
    for path in _files_below(manifests):
        model_id = _ollama_id(path.relative_to(manifests).parts)
        blob = _ollama_blob(path)
        if model_id is not None and blob is not None:
            yield root / "blobs" / f"sha256-{blob}", model_id


def _ollama_id(names: tuple[str, ...]) -> ModelId | None:
    match names:
        case ("registry.ollama.ai", "library", model, tag):
            text = f"{model}:{tag}"
        case ("registry.ollama.ai", owner, model, tag):
            text = f"{owner}/{model}:{tag}"
        case (registry, *path, model, tag):
            text = "/".join((registry, *path, f"{model}:{tag}"))
        case _:
            return None
    try:
        return parse_model_id(text)
    except RequestError:
        return None  # Not a name that can be typed here; the file can be imported by path.


def _ollama_blob(manifest: Path) -> str | None:
    """Give the digest of the weights that a manifest names."""
    try:
        if not manifest.is_file():
            return None  # Opening a named pipe would wait for whoever writes to it.
        with manifest.open("rb") as file:
            content = file.read(MAX_OLLAMA_MANIFEST_BYTES)
        parsed = _OllamaManifest.model_validate(json.loads(content))
    except (OSError, ValueError, RecursionError, ValidationError):
        return None  # Not Ollama's: there is nothing to find behind it.
    layers = [layer for layer in parsed.layers if layer.media_type == _OLLAMA_MODEL]
    return layers[0].digest.removeprefix("sha256:") if len(layers) == 1 else None
