"""A card for a GGUF file that is already on this machine; the file stays where it is."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocol.cards import (
    LicenseSection,
    LocalSource,
    ModelCard,
    ModelTask,
    PlacementSection,
    ReasoningSection,
    RelativePath,
    StorageSize,
    ToolingSection,
    VisionSection,
)
from protocol.errors import ErrorCode, StoreError
from protocol.ids import MODEL_ID_MAX_CHARS, ModelId, parse_model_id
from store.manifest import incomplete
from store.projectors import PROJECTOR_NAME, local_part, projector_beside
from store.weights_meta import MAX_SPLITS, GgufHeader, cache_geometry, read_gguf_header

GENERATOR: Final = "skulk models import"
_SPLIT_NAME: Final = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf")
_UNNAMEABLE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_UNPATHABLE: Final = re.compile(r"[^A-Za-z0-9._+-]+")
_SEGMENT_CHARS: Final = 96
_STEM_CHARS: Final = 120
_TEXT_CHARS: Final = 400
_CAPABILITIES: Final[dict[ModelTask, str]] = {
    "TextGeneration": "text",
    "TextEmbedding": "embedding",
    "TextRerank": "rerank",
}
_BACKENDS: Final = ("llama_server", "llama_cpp")
_NOT_ALL_THERE: Final[frozenset[ErrorCode]] = frozenset({"store.gguf_truncated", "store.not_found"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitName:
    """The name of one part of a split set."""

    stem: str
    number: int
    """From 1."""
    count: int

    def of(self, number: int) -> str:
        """Name another part of the set."""
        return f"{self.stem}-{number:05d}-of-{self.count:05d}.gguf"


def split_name(name: str) -> SplitName | None:
    """Read a file name as that of a part; nothing when it is none."""
    match = _SPLIT_NAME.fullmatch(name)
    if match is None:
        return None
    return SplitName(stem=match["stem"], number=int(match["no"]), count=int(match["count"]))


def card_from_gguf(path: Path, model_id: ModelId | None = None) -> ModelCard:
    """Make a card that uses a GGUF file where it lies. Blocking; reads headers only.

    Any part of a split set stands for the set: the card names part 1.

    Args:
        path: Links are followed, and kept as they are.
        model_id: What operators will type; default: from the file's name.

    Raises:
        StoreError: `store.gguf_invalid`, `store.gguf_truncated`, `store.not_found`,
            `store.disk_failed`; `store.card_invalid` for a path that no card can hold;
            `store.incomplete` naming the part of a split set that is missing or cut short.
    """
    _check_is_text(path)
    first, parts = _parts_of(path.absolute())
    headers = [_checked_part(part, number) for number, part in enumerate(parts, start=1)]
    header = headers[0]
    if header.split_count != len(parts):
        raise incomplete(
            str(first),
            f"its header says part {header.split_no + 1} of {header.split_count}, "
            f"its name says {len(parts)} in all",
        )
    sources = [local_part(part) for part in parts]
    projector = projector_beside(first, header)
    chosen = model_id or model_id_of(first.name)
    task = _task(header)
    return ModelCard(
        model_id=chosen,
        n_layers=header.block_count,
        hidden_size=header.embedding_length,
        num_key_value_heads=header.head_count_kv or None,
        supports_tensor=False,
        tasks=(task,),
        storage_size=StorageSize(in_bytes=sum(part.size_bytes for part in sources)),
        family=header.architecture,
        quantization=header.quantization,
        base_model=_text(header.name),
        capabilities=(_CAPABILITIES[task], *(("vision",) if projector else ())),
        context_length=header.context_length,
        gguf_file=_UNPATHABLE.sub("_", first.name).lstrip(".-+")[:_SEGMENT_CHARS] or "model.gguf",
        gguf_cache_geometry=cache_geometry(header),
        placement=PlacementSection(
            compatible_backends=_BACKENDS, backend_preference=(_BACKENDS[0],)
        ),
        reasoning=ReasoningSection(
            supports_toggle=header.takes_thinking_switch,
            format="token_delimited" if header.thinks else "none",
        ),
        tooling=ToolingSection(supports_tool_calling=header.takes_tools),
        license=LicenseSection(name=_text(header.license)),
        source=LocalSource(
            path=sources[0].path,
            size_bytes=sources[0].size_bytes,
            modified_ns=sources[0].modified_ns,
            further_parts=tuple(sources[1:]),
            projector=projector,
        ),
        vision=None
        if projector is None
        else VisionSection(
            projector_file=PROJECTOR_NAME,
            projector_size=StorageSize(in_bytes=projector.size_bytes),
        ),
        generator=GENERATOR,
    )


def part_names(source: LocalSource) -> tuple[RelativePath, ...]:
    """Name the files of a local source as they are to be called in a store.

    Parts of a split set keep what an engine finds them by. Different paths may give one name, but
    never within one set.
    """
    paths = (source.path, *(part.path for part in source.further_parts))
    last = () if source.projector is None else (PROJECTOR_NAME,)
    if len(paths) == 1:
        return (_plain_name(Path(source.path).name.removesuffix(".gguf"), ".gguf"), *last)
    split = split_name(Path(source.path).name)
    stem = "model" if split is None else split.stem
    names = tuple(
        _plain_name(stem, f"-{number:05d}-of-{len(paths):05d}.gguf")
        for number in range(1, len(paths) + 1)
    )
    return (*names, *last)


def _plain_name(stem: str, ending: str) -> RelativePath:
    return (_UNPATHABLE.sub("_", stem).lstrip(".-+")[:_STEM_CHARS] or "model") + ending


def model_id_of(name: str, *, owner: str | None = None) -> ModelId:
    """Make a model id of a file's or folder's name.

    Args:
        name: `.gguf` and the number of a part are left out.
        owner: Of the model, where the place it was found in names one.
    """
    split = split_name(name)
    stem = split.stem if split is not None else name.removesuffix(".gguf")
    segments = [_segment(part) for part in (owner, stem) if part is not None]
    return parse_model_id("/".join(segments)[:MODEL_ID_MAX_CHARS])


def _segment(text: str) -> str:
    return _UNNAMEABLE.sub("-", text).lstrip(".-")[:_SEGMENT_CHARS].rstrip("-") or "model"


def _check_is_text(path: Path) -> None:
    """Refuse a name that a card, which is text, could not hold, nor the system open."""
    name = str(path)
    try:
        name.encode()
    except UnicodeEncodeError:
        problem = "bytes that are not UTF-8"
    else:
        if "\0" not in name:
            return
        problem = "a null character"
    raise StoreError(
        "store.card_invalid",
        f"the path {name!a} has {problem}",
        remediation="Rename the file, or import a link to it with a plain name.",
    )


def _parts_of(path: Path) -> tuple[Path, list[Path]]:
    split = split_name(path.name)
    if split is None:
        return path, [path]
    if not 1 <= split.number <= split.count <= MAX_SPLITS:
        raise incomplete(str(path), f"part {split.number} of {split.count} cannot be")
    parts = [path.with_name(split.of(number)) for number in range(1, split.count + 1)]
    return parts[0], parts


def _checked_part(path: Path, number: int) -> GgufHeader:
    try:
        header = read_gguf_header(path)
    except StoreError as error:
        split = split_name(path.name)
        if error.code in _NOT_ALL_THERE and split is not None:
            what = f"part {number} of {split.count}"
            raise incomplete(str(path), f"{what}: {error.message}") from error
        raise
    if header.split_no != number - 1:
        raise incomplete(
            str(path), f"its header says part {header.split_no + 1}, its name says {number}"
        )
    return header


def _task(header: GgufHeader) -> ModelTask:
    if header.scores:
        return "TextRerank"
    return "TextEmbedding" if header.pooling else "TextGeneration"


def _text(value: str | None) -> str | None:
    return None if value is None else value[:_TEXT_CHARS]
