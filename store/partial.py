"""A file that is being fetched: bytes so far, their running digest, and what they are part of.

The bytes lie in `<name>.partial`; a sidecar says which digest they are to reach, and what the
origin called that version. `<name>` itself appears by one rename after the digest was verified, so
that a kill at any moment leaves either a partial or the whole. All methods block; one caller at a
time.
"""

import hashlib
import os
from contextlib import suppress
from typing import Annotated, Final, final

from pydantic import Field, ValidationError

from protocol.base import FrozenModel
from protocol.ids import Digest, DigestField
from store.layout import is_own_file, open_beneath, sync_directory
from store.manifest import digest_mismatch, write_durably

REHASH_SLICE_BYTES: Final = 32 * 1024 * 1024
_MAX_SIDECAR_BYTES: Final = 16 * 1024


@final
class Sidecar(FrozenModel):
    """What a partial is part of."""

    sha256: DigestField
    etag: Annotated[str, Field(max_length=1024)] | None = None
    total_bytes: int | None = None


@final
class Partial:
    """One file on its way into staging.

    Args:
        directory: Descriptor of the staging directory; stays open longer than this.
        name: Of the file when it is whole; one component.
        sha256: What it must have then.
    """

    def __init__(self, directory: int, name: str, sha256: Digest) -> None:
        self._directory = directory
        self._name = name
        self._bytes_name = f"{name}.partial"
        self._sidecar_name = f"{name}.partial.json"
        self._sidecar = Sidecar(sha256=sha256)
        self._hash = hashlib.sha256()
        self._hashed_bytes = 0
        self._length = 0
        self._descriptor = -1

    @property
    def length(self) -> int:
        """Bytes on the disk, from the start of the file."""
        return self._length

    @property
    def hashed_bytes(self) -> int:
        """How many of them the running digest has seen."""
        return self._hashed_bytes

    @property
    def etag(self) -> str | None:
        """What the origin called the version that these bytes are from."""
        return self._sidecar.etag

    @property
    def total_bytes(self) -> int | None:
        """Of the whole file, as far as the origin said."""
        return self._sidecar.total_bytes

    def open(self) -> None:
        """Take up what an earlier try left, if it is part of the same file.

        Raises:
            OSError: What lies there is a link or cannot be written.
        """
        flags = os.O_RDWR | os.O_CREAT
        self._descriptor = open_beneath(self._directory, self._bytes_name, flags)
        if not is_own_file(os.fstat(self._descriptor)):
            # A second name on these bytes: whoever holds it would see, or make, every change.
            os.close(self._descriptor)
            os.unlink(self._bytes_name, dir_fd=self._directory)
            self._descriptor = open_beneath(self._directory, self._bytes_name, flags | os.O_EXCL)
        kept = self._read_sidecar()
        if kept is None or kept.sha256 != self._sidecar.sha256:
            self.restart()
            return
        self._sidecar = kept
        self._length = os.fstat(self._descriptor).st_size
        if kept.total_bytes is not None and self._length > kept.total_bytes:
            self.restart()

    def hash_slice(self) -> bool:
        """Bring the running digest 32 MiB nearer to what is on the disk.

        Returns:
            Whether more is to be hashed.
        """
        wanted = min(REHASH_SLICE_BYTES, self._length - self._hashed_bytes)
        done = 0
        while done < wanted:
            chunk = os.pread(self._descriptor, min(1 << 20, wanted - done), self._hashed_bytes)
            if not chunk:
                # Shorter than it was: what is there no longer counts for more.
                self._length = self._hashed_bytes
                return False
            self._hash.update(chunk)
            self._hashed_bytes += len(chunk)
            done += len(chunk)
        return self._hashed_bytes < self._length

    def describe(self, *, total_bytes: int | None, etag: str | None) -> None:
        """Record what the origin says the file is, before its first byte is kept."""
        sidecar = self._sidecar.model_copy(update={"total_bytes": total_bytes, "etag": etag})
        if sidecar != self._sidecar or self._length == 0:
            self._sidecar = sidecar
            write_durably(
                self._directory, self._sidecar_name, sidecar.model_dump_json().encode("utf-8")
            )

    def append(self, *contents: bytes | memoryview) -> None:
        """Add bytes at the end.

        Invariant: everything before them is hashed.
        """
        for content in contents:
            view = memoryview(content)
            while view:
                written = os.pwrite(self._descriptor, view, self._length)
                self._hash.update(view[:written])
                self._length += written
                self._hashed_bytes += written
                view = view[written:]

    def restart(self) -> None:
        """Forget all bytes."""
        os.ftruncate(self._descriptor, 0)
        self._sidecar = Sidecar(sha256=self._sidecar.sha256)
        self._hash = hashlib.sha256()
        self._hashed_bytes = self._length = 0

    def publish(self) -> None:
        """Give the file its name, if its digest is right; else forget its bytes.

        Raises:
            StoreError: `store.digest_mismatch`.
            OSError: The disk refuses; the partial is kept.
        """
        found = self._hash.hexdigest()
        if found != self._sidecar.sha256:
            self.restart()
            raise digest_mismatch(self._name, expected=self._sidecar.sha256, found=found)
        os.fsync(self._descriptor)
        os.replace(
            self._bytes_name, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory
        )
        with suppress(FileNotFoundError):
            os.unlink(self._sidecar_name, dir_fd=self._directory)
        sync_directory(self._directory)

    def close(self) -> None:
        """Close the file; what was appended stays. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read_sidecar(self) -> Sidecar | None:
        try:
            descriptor = open_beneath(self._directory, self._sidecar_name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(_MAX_SIDECAR_BYTES)
        try:
            return Sidecar.model_validate_json(content)
        except ValidationError:
            return None
