"""The manifest of an artifact: what proves that it is complete, and that nobody changed it since.

An artifact is complete when its manifest is there and each file still has the identity that was
recorded when its digest was verified: device, inode, size and time of change. That is looked up
without reading the weights, so placing a verified model hashes nothing.
"""

import hashlib
import os
import stat
from pathlib import Path
from typing import Annotated, Final, Literal, final

from pydantic import Field, ValidationError

from protocol.base import FrozenModel
from protocol.cards import AbsolutePath, RelativePath
from protocol.errors import StoreError
from protocol.ids import DigestField, ModelIdField
from store.layout import (
    FILES,
    MANIFEST,
    create_beneath,
    open_beneath,
    stat_beneath,
    sync_directory,
)

MAX_MANIFEST_BYTES: Final = 1024 * 1024
HASH_CHUNK_BYTES: Final = 4 * 1024 * 1024
STEP_BYTES: Final = 32 * 1024 * 1024
SCHEMA: Final = 1


@final
class FileIdentity(FrozenModel):
    """What changes when a file is replaced or written to."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int


@final
class ManifestFile(FrozenModel):
    """One verified file."""

    path: RelativePath | AbsolutePath
    """Relative to the artifact's `files`; absolute for a file that is used where it lies."""
    size_bytes: Annotated[int, Field(ge=0)]
    sha256: DigestField | None
    """Absent for a file that is used where it lies: its owner never said what it should be."""
    identity: FileIdentity


@final
class Manifest(FrozenModel):
    """What an artifact consists of.

    Invariant: written after every file in it was verified and made durable.
    """

    schema_number: Literal[1] = SCHEMA
    model_id: ModelIdField
    source: Annotated[str, Field(max_length=4096)]
    """Where the bytes came from, in words."""
    entry: RelativePath | AbsolutePath
    """The file that the engine is given; one of `files`."""
    files: Annotated[tuple[ManifestFile, ...], Field(min_length=1, max_length=1024)]
    verified_at_ms: int

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)


def identity_of(found: os.stat_result) -> FileIdentity:
    """Give the identity of a file from what `stat` says."""
    return FileIdentity(
        device=found.st_dev,
        inode=found.st_ino,
        size_bytes=found.st_size,
        modified_ns=found.st_mtime_ns,
    )


def read_manifest(directory: int) -> Manifest | None:
    """Read the manifest in an open artifact directory.

    Returns:
        Nothing when there is none, or it is not one: such an artifact is not complete.
    """
    return read_document(directory, MANIFEST)


def read_document(directory: int, name: str) -> Manifest | None:
    """Read a manifest that has another name; as `read_manifest`."""
    try:
        descriptor = open_beneath(directory, name, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        content = file.read(MAX_MANIFEST_BYTES + 1)
    if len(content) > MAX_MANIFEST_BYTES:
        return None
    try:
        return Manifest.model_validate_json(content)
    except ValidationError:
        return None


def write_manifest(directory: int, manifest: Manifest) -> None:
    """Write the manifest as the last file of an artifact, atomically and durably.

    Raises:
        OSError: The manifest that was there before, if any, is untouched.
    """
    write_durably(directory, MANIFEST, manifest.model_dump_json(indent=1).encode("utf-8"))


def write_durably(directory: int, name: str, content: bytes) -> None:
    """Replace a small file: whole and durable, or not at all.

    Raises:
        OSError: What was there before is untouched.
    """
    temporary = f"{name}.tmp"
    descriptor = create_beneath(directory, temporary)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    sync_directory(directory)


def first_difference(directory: int, manifest: Manifest) -> str | None:
    """Compare every file's identity with the manifest. Reads no file.

    Returns:
        What differs, in words; nothing when the artifact is as it was verified.
    """
    for file in manifest.files:
        try:
            found = _stat_of(directory, file)
        except OSError as error:
            return f"{file.path} is missing or behind a link ({error.strerror})"
        if not stat.S_ISREG(found.st_mode):
            return f"{file.path} is not a regular file"
        if found.st_size != file.size_bytes:
            return f"{file.path} has {found.st_size} bytes, not {file.size_bytes}"
        if identity_of(found) != file.identity:
            return f"{file.path} was replaced or written to since it was verified"
    return None


@final
class Verification:
    """Hashes the files of an artifact again, in steps. Blocking; one caller at a time.

    Args:
        directory: Descriptor of the artifact; stays open longer than this.
        manifest: What should be there.
    """

    def __init__(self, directory: int, manifest: Manifest) -> None:
        self._directory = directory
        self._manifest = manifest
        self._verified: list[ManifestFile] = []
        self._identity: FileIdentity | None = None
        """Of the open file, before its first byte was read."""
        self._descriptor = -1
        self._hash = hashlib.sha256()
        self._offset = 0
        self._done_bytes = 0

    @property
    def done_bytes(self) -> int:
        """How much is hashed."""
        return self._done_bytes

    @property
    def result(self) -> Manifest:
        """The manifest with present identities, once no step is left; not yet written."""
        return self._manifest.model_copy(update={"files": tuple(self._verified)})

    def step(self) -> bool:
        """Hash the next 32 MiB.

        Returns:
            Whether more is to come.

        Raises:
            StoreError: `store.digest_mismatch`, `store.incomplete`.
            OSError: The disk fails.
        """
        if len(self._verified) == len(self._manifest.files):
            return False
        file = self._manifest.files[len(self._verified)]
        if self._descriptor < 0:
            self._open(file)
        for _ in range(STEP_BYTES // HASH_CHUNK_BYTES):
            chunk = os.pread(self._descriptor, HASH_CHUNK_BYTES, self._offset)
            if not chunk:
                self._end(file)
                break
            self._hash.update(chunk)
            self._offset += len(chunk)
            self._done_bytes += len(chunk)
        return len(self._verified) < len(self._manifest.files)

    def close(self) -> None:
        """Close what is open. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self, file: ManifestFile) -> None:
        flags = os.O_RDONLY | os.O_NONBLOCK
        try:
            self._descriptor = open_beneath(self._directory, f"{FILES}/{file.path}", flags)
        except OSError as error:
            raise incomplete(file.path, error.strerror or "cannot be opened") from error
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != file.size_bytes:
            raise incomplete(file.path, f"{found.st_size} bytes of {file.size_bytes} are there")
        self._hash, self._offset = hashlib.sha256(), 0
        self._identity = identity_of(found)

    def _end(self, file: ManifestFile) -> None:
        found = self._hash.hexdigest()
        if found != file.sha256:
            raise digest_mismatch(file.path, expected=file.sha256 or "none", found=found)
        identity = identity_of(os.fstat(self._descriptor))
        if identity != self._identity:
            # The hash is of bytes that may be gone again: what was read first, above all.
            raise incomplete(file.path, "it was written to while it was verified")
        self._verified.append(file.model_copy(update={"identity": identity}))
        self.close()


def digest_mismatch(name: str, *, expected: str, found: str) -> StoreError:
    """Say that bytes are not those that were promised."""
    return StoreError(
        "store.digest_mismatch",
        f"{name} has SHA-256 {found}, expected {expected}",
        remediation="The bytes were deleted. Pull again; if it happens again, the source serves "
        "other bytes than the card promises.",
        details={"expected": expected, "found": found},
    )


def _stat_of(directory: int, file: ManifestFile) -> os.stat_result:
    if file.path.startswith("/"):
        # In place, as its owner laid it out: hub caches are made of links.
        return Path(file.path).stat()
    return stat_beneath(directory, f"{FILES}/{file.path}")


def incomplete(name: str, problem: str) -> StoreError:
    """Say that a file of an artifact is not all there."""
    return StoreError(
        "store.incomplete",
        f"{name} is not complete: {problem}",
        remediation="Pull the model again (`skulk models pull`).",
        details={"file": name},
    )
