"""What skulkd asks of a disk, as an interface with two implementations.

Every call blocks: shells make them in a thread. Everything that changes a name (create, replace,
rename, remove) is durable when it returns; appended bytes are durable only after `sync`. Files are
private (0600), directories too (0700). Errors are `OSError`s; the caller, who knows what the file
meant, wraps them.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from pathlib import Path
from typing import Final, Protocol, final

_PRIVATE: Final = 0o700
TEMPORARY_SUFFIX: Final = ".tmp"
"""Ends the name of a file that is being replaced; a crash may leave one behind."""


class AppendFile(Protocol):
    """A file that grows at its end."""

    @property
    def size_bytes(self) -> int:
        """The length, with everything that was written."""
        ...

    def write(self, data: bytes) -> None:
        """Append all of `data`; on error an unknown prefix of it may be in the file."""
        ...

    def sync(self) -> None:
        """Make everything written durable.

        After an error the kernel may have thrown the bytes away and called them clean: never retry
        on this file.
        """
        ...

    def close(self) -> None:
        """Release the file without a sync; idempotent."""
        ...


class DiskLock(Protocol):
    """A lock that ends with `release` or with the process."""

    def release(self) -> None:
        """Give the lock back; idempotent."""
        ...


class Disk(Protocol):
    """Files and directories, blocking."""

    def open_append(self, path: Path) -> AppendFile:
        """Open a file for appending; create it, durably, where it is missing."""
        ...

    def read(self, path: Path, *, max_bytes: int) -> bytes:
        """Read a whole file; `OSError` with EFBIG when it is longer than `max_bytes`."""
        ...

    def size_bytes(self, path: Path) -> int:
        """Measure a file."""
        ...

    def replace(self, path: Path, data: bytes) -> None:
        """Give a file a new content: after a crash at any moment it holds the old or the new."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename within one directory: a file over whatever had the name, a directory to a new one.

        Open files stay open under their new name.
        """
        ...

    def truncate(self, path: Path, size_bytes: int) -> None:
        """Cut a file, durably."""
        ...

    def list(self, directory: Path) -> tuple[str, ...]:
        """Name what a directory holds, sorted."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file; one that is not there is no error."""
        ...

    def make_private_directory(self, path: Path) -> None:
        """Create a directory with its parents; itself 0700, also where it was there already."""
        ...

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory; one that is not there is no error."""
        ...

    def free_bytes(self, path: Path) -> int:
        """Measure what an unprivileged user may still write on the file system of `path`."""
        ...

    def try_lock(self, path: Path, note: bytes) -> DiskLock | None:
        """Lock a file and write `note` into it; None, with the file unchanged, when it is held."""
        ...


@final
class RealDisk:
    """The machine's disk."""

    def open_append(self, path: Path) -> AppendFile:
        """Open for appending."""
        return _RealAppendFile(path)

    def read(self, path: Path, *, max_bytes: int) -> bytes:
        """Read a whole file of bounded size."""
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise too_big(path, max_bytes)
        return data

    def size_bytes(self, path: Path) -> int:
        """Measure a file."""
        return path.stat().st_size

    def replace(self, path: Path, data: bytes) -> None:
        """Write aside, sync, rename, sync the directory."""
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        fd = os.open(temporary, flags, 0o600)
        try:
            _write_all(fd, data)
            _sync(fd)
        except OSError:
            # Above all to give the space back when the disk is full.
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        finally:
            os.close(fd)
        self.rename(temporary, path)

    def rename(self, source: Path, target: Path) -> None:
        """Rename and sync the directory."""
        source.replace(target)
        _sync_directory(target.parent)

    def truncate(self, path: Path, size_bytes: int) -> None:
        """Cut and sync."""
        fd = os.open(path, os.O_WRONLY)
        try:
            os.ftruncate(fd, size_bytes)
            _sync(fd)
        finally:
            os.close(fd)

    def list(self, directory: Path) -> tuple[str, ...]:
        """Name the entries."""
        return tuple(sorted(entry.name for entry in directory.iterdir()))

    def remove(self, path: Path) -> None:
        """Remove and sync the directory."""
        path.unlink(missing_ok=True)
        _sync_directory(path.parent)

    def make_private_directory(self, path: Path) -> None:
        """Create, then tighten."""
        path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        if stat.S_IMODE(path.stat().st_mode) != _PRIVATE:
            path.chmod(_PRIVATE)
        _sync_directory(path.parent)

    def remove_directory(self, path: Path) -> None:
        """Remove and sync the directory above."""
        with contextlib.suppress(FileNotFoundError):
            path.rmdir()
        _sync_directory(path.parent)

    def free_bytes(self, path: Path) -> int:
        """Ask the file system."""
        return shutil.disk_usage(path).free

    def try_lock(self, path: Path, note: bytes) -> DiskLock | None:
        """Take a BSD lock, which the kernel drops with the process, however that ends."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:
            os.close(fd)
            raise
        try:
            os.ftruncate(fd, 0)
            _write_all(fd, note)
        except OSError:
            os.close(fd)
            raise
        return _RealLock(fd)


@final
class _RealAppendFile:
    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
        try:
            self._fd = os.open(path, flags)
        except FileNotFoundError:
            self._fd = os.open(path, flags | os.O_CREAT, 0o600)
            _sync_directory(path.parent)
        self._size_bytes = os.fstat(self._fd).st_size
        self._is_open = True

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def write(self, data: bytes) -> None:
        _write_all(self._fd, data)
        self._size_bytes += len(data)

    def sync(self) -> None:
        _sync(self._fd, data_only=True)
        if os.fstat(self._fd).st_nlink == 0:
            # What no name leads to is on no disk, as far as the next start is concerned.
            raise FileNotFoundError(errno.ENOENT, "deleted while it was written")

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            os.close(self._fd)


@final
class _RealLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_held = True

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            os.close(self._fd)


def too_big(path: Path, max_bytes: int) -> OSError:
    """Say that a file is longer than its reader allows."""
    return OSError(errno.EFBIG, f"longer than {max_bytes} bytes", str(path))


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync(fd: int, *, data_only: bool = False) -> None:
    # macOS answers fsync from the drive's cache; F_FULLFSYNC is what reaches the medium there.
    full_sync: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:
        fcntl.fcntl(fd, full_sync)
    elif data_only:
        os.fdatasync(fd)
    else:
        os.fsync(fd)
