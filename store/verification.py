"""Hashes an artifact's files again, one after the other, and says of each what it is now.

Nothing is deleted or changed by looking. What was found damaged is written beside the manifest, and
from then on the artifact counts as none, until its files are fetched again or found well.
"""

import errno
import hashlib
import os
import stat
from contextlib import suppress
from typing import Annotated, Final, Literal, final

from pydantic import Field, ValidationError

from protocol.base import FrozenModel
from protocol.ids import Digest
from store.layout import (
    ARTIFACTS,
    FILES,
    StoreLayout,
    directory_beneath,
    names_in,
    open_beneath,
    sync_directory,
)
from store.manifest import (
    HASH_CHUNK_BYTES,
    ManifestFile,
    identity_of,
    read_manifest,
    write_durably,
    write_manifest,
)

FileState = Literal["ok", "wrong_hash", "wrong_size", "missing", "unexpected"]
STEP_BYTES: Final = 8 << 20
"""Hashed between two looks at whether it is still wanted."""
DAMAGES: Final = "damaged.json"
_MAX_DAMAGES_BYTES: Final = 1 << 20
_MAX_UNEXPECTED: Final = 100
_MAX_NAMED: Final = 3
_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""Nothing has the name, or a link does, which the store never makes."""


class CheckedFile(FrozenModel):
    """One file of an artifact, and what it is now."""

    path: Annotated[str, Field(max_length=4096)]
    state: FileState
    size_bytes: int | None = None
    """As it is; None where it is missing."""


class Damages(FrozenModel):
    """What a verification has found wrong with an artifact."""

    at_ms: int
    files: Annotated[tuple[CheckedFile, ...], Field(min_length=1, max_length=1024)]


def read_damages(directory: int) -> Damages | None:
    """Read what is wrong with an open artifact; None when nothing was found to be."""
    try:
        descriptor = open_beneath(directory, DAMAGES, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file, suppress(ValidationError):
        return Damages.model_validate_json(file.read(_MAX_DAMAGES_BYTES))
    return None


def damage_of(damages: Damages) -> str:
    """Name what is damaged, and how."""
    shown = damages.files[:_MAX_NAMED]
    named = ", ".join(f"{one.path} ({one.state.replace('_', ' ')})" for one in shown)
    n_more = len(damages.files) - len(shown)
    more = f" and {n_more} more" if n_more else ""
    return f"its files are damaged: {named}{more}"


def forget_damages(directory: int) -> None:
    """Let an open artifact count again.

    Raises:
        OSError: The disk refuses.
    """
    with suppress(FileNotFoundError):
        os.unlink(DAMAGES, dir_fd=directory)
        sync_directory(directory)


@final
class ArtifactCheck:
    """The check of one artifact. All methods block; one caller at a time.

    Args:
        layout: Of the volume.
        key: Of the artifact.

    Raises:
        OSError: There is no such artifact.
        LookupError: It has no manifest that could be held against it.
    """

    def __init__(self, layout: StoreLayout, key: Digest) -> None:
        with layout.opened(ARTIFACTS, key) as directory:
            manifest = read_manifest(directory)
            if manifest is None:
                raise LookupError(key)
            self._directory = os.dup(directory)
        self.manifest: Final = manifest
        self.results: list[CheckedFile] = []
        self._well: list[ManifestFile] = []
        self._descriptor = -1
        self._hash = hashlib.sha256()
        self._offset = 0
        self._settled_bytes = 0

    @property
    def total_bytes(self) -> int:
        """Of all files, as they should be."""
        return self.manifest.size_bytes

    @property
    def done_bytes(self) -> int:
        """How much of that has been looked at."""
        return self._settled_bytes + self._offset

    def step(self) -> bool:
        """Hash some more; returns whether more is to come.

        Raises:
            OSError: The disk fails.
        """
        if len(self.results) == len(self.manifest.files):
            return False
        file = self.manifest.files[len(self.results)]
        if self._descriptor < 0 and not self._open(file):
            return len(self.results) < len(self.manifest.files)
        for _ in range(STEP_BYTES // HASH_CHUNK_BYTES):
            chunk = os.pread(self._descriptor, HASH_CHUNK_BYTES, self._offset)
            if not chunk:
                self._end(file)
                break
            self._hash.update(chunk)
            self._offset += len(chunk)
        return len(self.results) < len(self.manifest.files)

    def settle(self, *, now_ms: int) -> tuple[CheckedFile, ...]:
        """Write down what was found, once no step is left, and give it.

        Well, the artifact counts again, with the identities that its files have now. Files that do
        not belong there are told, and are no damage.

        Raises:
            OSError: The disk refuses.
        """
        damaged = tuple(one for one in self.results if one.state != "ok")
        if damaged:
            found = Damages(at_ms=now_ms, files=damaged)
            write_durably(self._directory, DAMAGES, found.model_dump_json().encode())
        else:
            write_manifest(
                self._directory, self.manifest.model_copy(update={"files": tuple(self._well)})
            )
            forget_damages(self._directory)
        known = {file.path for file in self.manifest.files}
        with directory_beneath(self._directory, [FILES]) as files:
            unexpected = [one for one in _files_in(files, "") if one.path not in known]
        return (*self.results, *unexpected[:_MAX_UNEXPECTED])

    def close(self) -> None:
        """Close what is open. Idempotent."""
        self._shut()
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def _open(self, file: ManifestFile) -> bool:
        """Open the next file; False where its result stands without being read."""
        try:
            flags = os.O_RDONLY | os.O_NONBLOCK
            self._descriptor = open_beneath(self._directory, f"{FILES}/{file.path}", flags)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise  # a file that cannot be looked at now is not damaged
            self._note(file, "missing", None)
            return False
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != file.size_bytes:
            self._note(file, "wrong_size", found.st_size)
            return False
        self._hash, self._offset = hashlib.sha256(), 0
        return True

    def _end(self, file: ManifestFile) -> None:
        found = os.fstat(self._descriptor)
        if found.st_size != file.size_bytes:
            self._note(file, "wrong_size", found.st_size)
        elif self._hash.hexdigest() != file.sha256:
            self._note(file, "wrong_hash", found.st_size)
        else:
            self._well.append(file.model_copy(update={"identity": identity_of(found)}))
            self._note(file, "ok", found.st_size)

    def _note(self, file: ManifestFile, state: FileState, size_bytes: int | None) -> None:
        self._shut()
        self._offset = 0
        self._settled_bytes += file.size_bytes
        self.results.append(CheckedFile(path=file.path, state=state, size_bytes=size_bytes))

    def _shut(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _files_in(directory: int, parent: str) -> list[CheckedFile]:
    found: list[CheckedFile] = []
    for name in sorted(names_in(directory)):
        known = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISDIR(known.st_mode):
            with directory_beneath(directory, [name]) as inner:
                found += _files_in(inner, f"{parent}{name}/")
        else:
            path = f"{parent}{name}"
            found.append(CheckedFile(path=path, state="unexpected", size_bytes=known.st_size))
    return found
