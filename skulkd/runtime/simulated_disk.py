"""A disk in memory that forgets what was not synced, fills up, stalls and fails on demand.

It is as cruel as a real one may be: after a failed sync the bytes still read back, and never become
durable however often sync is called again. What it does not simulate: a name that is lost although
its call returned, because `RealDisk` syncs the directory each time.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from skulkd.runtime.disk import AppendFile, DiskLock, too_big

_DEFAULT_CAPACITY_BYTES: Final = 1 << 40


@dataclass(slots=True)
class _File:
    """Invariant: `durable` holds what survives a crash; `live[dirty_from:]` waits for a sync."""

    durable: bytearray = field(default_factory=bytearray)
    live: bytearray = field(default_factory=bytearray)
    dirty_from: int = 0


@final
class SimulatedDisk:
    """A disk that a test owns.

    Args:
        stall: Called with the seconds that a slow sync takes; `VirtualLoop.stall_job`.
    """

    def __init__(self, *, stall: Callable[[float], None] | None = None) -> None:
        self._files: dict[Path, _File] = {}
        self._directories: set[Path] = {Path("/")}
        self._locks: dict[Path, _Lock] = {}
        self.stall = stall
        """Called with the seconds that a slow sync takes."""
        self._n_crashes = 0
        self.capacity_bytes = _DEFAULT_CAPACITY_BYTES
        """What fits in all; lower it to fill the disk."""
        self.sync_error: OSError | None = None
        """Raised by each sync of a file, and each replacing of one, while it is set."""
        self.write_error: OSError | None = None
        """Raised by each write while it is set, after half of the bytes."""
        self.sync_delay_s = 0.0
        """How long a sync takes, and the replacing of a file."""
        self.n_syncs = 0
        """Syncs of appended files so far, failed ones included."""

    # What only a simulated disk can do.

    def crash(self, *, n_unsynced_bytes_kept: int = 0) -> None:
        """Lose the power: un-synced bytes, open handles and locks are gone.

        Args:
            n_unsynced_bytes_kept: How many of each file's un-synced bytes had reached the medium by
                themselves; the rest is torn off, at whatever byte that is.
        """
        self._n_crashes += 1
        self._locks.clear()
        for file in self._files.values():
            kept = file.live[file.dirty_from : file.dirty_from + n_unsynced_bytes_kept]
            if kept:
                file.durable = _patched(file.durable, file.dirty_from, kept)
            file.live = bytearray(file.durable)
            file.dirty_from = len(file.live)

    def flip_bit(self, path: Path, byte_index: int, bit: int) -> None:
        """Let one bit of a file rot, on the medium and in what is read."""
        file = self._file(path)
        file.live[byte_index] ^= 1 << bit
        if byte_index < len(file.durable):
            file.durable[byte_index] ^= 1 << bit

    @property
    def used_bytes(self) -> int:
        """What all files hold."""
        return sum(len(file.live) for file in self._files.values())

    # The interface.

    def open_append(self, path: Path) -> AppendFile:
        """Open for appending."""
        if path not in self._files:
            self._require_directory(path.parent)
            self._files[path] = _File()
        return _SimulatedAppendFile(self, self._files[path])

    def read(self, path: Path, *, max_bytes: int) -> bytes:
        """Read a whole file of bounded size."""
        live = self._file(path).live
        if len(live) > max_bytes:
            raise too_big(path, max_bytes)
        return bytes(live)

    def size_bytes(self, path: Path) -> int:
        """Measure a file."""
        return len(self._file(path).live)

    def replace(self, path: Path, data: bytes) -> None:
        """Give a file a new content, all or nothing."""
        self._require_directory(path.parent)
        if self.write_error is not None:
            raise self.write_error
        if self.used_bytes + len(data) > self.capacity_bytes:
            raise OSError(errno.ENOSPC, "simulated disk is full", str(path))
        self._sync()
        self._files[path] = _File(bytearray(data), bytearray(data), len(data))

    def rename(self, source: Path, target: Path) -> None:
        """Rename."""
        if source in self._directories:
            self._rename_directory(source, target)
            return
        self._files[target] = self._file(source)
        if source != target:
            del self._files[source]

    def truncate(self, path: Path, size_bytes: int) -> None:
        """Cut."""
        file = self._file(path)
        if size_bytes > len(file.live):
            raise OSError(errno.EINVAL, "simulated files are only cut shorter", str(path))
        del file.live[size_bytes:]
        file.durable = bytearray(file.live)
        file.dirty_from = size_bytes

    def list(self, directory: Path) -> tuple[str, ...]:
        """Name the entries."""
        self._require_directory(directory)
        return tuple(sorted(self._entries(directory)))

    def _entries(self, directory: Path) -> set[str]:
        names = {path.name for path in self._files if path.parent == directory}
        return names | {path.name for path in self._directories if path.parent == directory != path}

    def remove(self, path: Path) -> None:
        """Remove."""
        self._files.pop(path, None)

    def _rename_directory(self, source: Path, target: Path) -> None:
        if self._entries(target):
            raise OSError(errno.ENOTEMPTY, "the directory is not empty", str(target))
        for path in [path for path in self._files if path.is_relative_to(source)]:
            self._files[target / path.relative_to(source)] = self._files.pop(path)
        inside = {path for path in self._directories if path.is_relative_to(source)}
        self._directories -= inside
        self._directories |= {target / path.relative_to(source) for path in inside}

    def make_private_directory(self, path: Path) -> None:
        """Create with parents."""
        self._directories |= {path, *path.parents}

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        if self._entries(path):
            raise OSError(errno.ENOTEMPTY, "the directory is not empty", str(path))
        self._directories.discard(path)

    def free_bytes(self, path: Path) -> int:
        """Say what still fits."""
        del path
        return max(0, self.capacity_bytes - self.used_bytes)

    def try_lock(self, path: Path, note: bytes) -> DiskLock | None:
        """Take a lock that a crash drops."""
        if path in self._locks:
            return None
        self.replace(path, note)
        lock = _Lock(self._locks, path)
        self._locks[path] = lock
        return lock

    def _file(self, path: Path) -> _File:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path)) from None

    def _require_directory(self, path: Path) -> None:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))

    # What an open file asks of its disk.

    def crash_count(self) -> int:
        """Count crashes, so that a handle knows it is from before one."""
        return self._n_crashes

    def take_sync(self) -> None:
        """Count a sync, let it take its time, and fail it if that is due."""
        self.n_syncs += 1
        self._sync()

    def _sync(self) -> None:
        if self.sync_delay_s and self.stall is not None:
            self.stall(self.sync_delay_s)
        if self.sync_error is not None:
            raise self.sync_error


@final
class _SimulatedAppendFile:
    def __init__(self, disk: SimulatedDisk, file: _File) -> None:
        self._disk = disk
        self._file = file
        self._crash_count = disk.crash_count()
        self._is_open = True

    @property
    def size_bytes(self) -> int:
        return len(self._file.live)

    def write(self, data: bytes) -> None:
        self._require_open()
        if self._disk.write_error is not None:
            self._file.live += data[: len(data) // 2]
            raise self._disk.write_error
        room = max(0, self._disk.capacity_bytes - self._disk.used_bytes)
        self._file.live += data[:room]
        if len(data) > room:
            raise OSError(errno.ENOSPC, "simulated disk is full")

    def sync(self) -> None:
        self._require_open()
        file = self._file
        try:
            self._disk.take_sync()
        except OSError:
            file.dirty_from = len(file.live)
            raise
        file.durable = _patched(file.durable, file.dirty_from, file.live[file.dirty_from :])
        file.dirty_from = len(file.live)

    def close(self) -> None:
        self._is_open = False

    def _require_open(self) -> None:
        if not self._is_open or self._crash_count != self._disk.crash_count():
            raise OSError(errno.EBADF, "the file is closed")


@final
class _Lock:
    def __init__(self, held: "dict[Path, _Lock]", path: Path) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        if self._held.get(self._path) is self:
            del self._held[self._path]


def _patched(content: bytearray, start: int, data: bytearray) -> bytearray:
    """Write `data` at `start`; a gap before it is zeros, as a file system would show it."""
    return content.ljust(start, b"\0")[:start] + data
