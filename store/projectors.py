"""Projectors: the files beside models by which these are shown images."""

from pathlib import Path
from typing import Final

from protocol.cards import LocalPart
from protocol.errors import StoreError
from store.gguf import read_gguf, unreadable
from store.weights_meta import GgufHeader

PROJECTOR_NAME: Final = "mmproj.gguf"
"""Of a local model's projector, in a store."""
_MARK: Final = "mmproj"
_MAX_LOOKED_AT: Final = 16


def projector_beside(model: Path, header: GgufHeader) -> LocalPart | None:
    """Find the projector that lies beside a model and was made for its width. Blocking.

    Of several that fit none is taken: which one is meant cannot be told from their names.

    Args:
        model: Its first file.
        header: Of that file.
    """
    if header.pooling or _MARK in model.name.lower():
        return None
    try:
        beside = sorted(model.parent.glob("*.gguf"))
    except OSError:
        return None
    marked = [path for path in beside if _MARK in path.name.lower()][:_MAX_LOOKED_AT]
    fitting = [path for path in marked if _fits(path, header.embedding_length)]
    return local_part(fitting[0]) if len(fitting) == 1 else None


def local_part(path: Path) -> LocalPart:
    """Describe a file as it is now.

    Raises:
        StoreError: `store.not_found`, `store.disk_failed`.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    return LocalPart(path=str(path), size_bytes=found.st_size, modified_ns=found.st_mtime_ns)


def _fits(path: Path, embedding_length: int) -> bool:
    """Say whether a file is a projector of images to embeddings of this width."""
    try:
        metadata = read_gguf(path).metadata
    except StoreError:
        return False  # not one that could be used, whatever else is wrong with it
    return (
        metadata.get("general.architecture") == "clip"
        and metadata.get("clip.has_vision_encoder") is True
        and metadata.get("clip.vision.projection_dim") == embedding_length
    )
