"""Model files that are already on this machine, and are used where they lie.

They belong to somebody else: they are looked at, never moved, linked, or written to. Links are
followed, since the caches of other programs are made of them.
"""

import stat
from pathlib import Path

from protocol.cards import LocalPart, LocalSource
from protocol.errors import StoreError
from protocol.ids import ModelId
from store.manifest import Manifest, ManifestFile, identity_of, incomplete


def in_place(model_id: ModelId, source: LocalSource, *, now_ms: int) -> Manifest:
    """Describe the files of a local source as an artifact, if they are as they were at import.

    Reads no file.

    Raises:
        StoreError: `store.incomplete`, naming the file and what differs.
    """
    first = LocalPart(
        path=source.path, size_bytes=source.size_bytes, modified_ns=source.modified_ns
    )
    last = () if source.projector is None else (source.projector,)
    return Manifest(
        model_id=model_id,
        source="this machine, in place",
        entry=source.path,
        files=tuple(_look_at(part) for part in (first, *source.further_parts, *last)),
        verified_at_ms=now_ms,
    )


def _look_at(part: LocalPart) -> ManifestFile:
    try:
        found = Path(part.path).stat()
    except OSError as error:
        raise _changed(part.path, error.strerror or "cannot be read") from error
    if not stat.S_ISREG(found.st_mode):
        raise _changed(part.path, "it is not a regular file")
    if found.st_size != part.size_bytes:
        raise _changed(
            part.path, f"it has {found.st_size} bytes, {part.size_bytes} when it was imported"
        )
    if part.modified_ns not in {0, found.st_mtime_ns}:
        raise _changed(part.path, "it was written to since it was imported")
    return ManifestFile(
        path=part.path,
        size_bytes=found.st_size,
        sha256=None,
        identity=identity_of(found),
    )


def _changed(path: str, problem: str) -> StoreError:
    error = incomplete(path, problem)
    error.remediation = f"Put the file back, or import it again: `skulk models import {path}`."
    return error
