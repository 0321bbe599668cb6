"""A disk as one daemon sees it: with the daemon's death, everything it still asks for fails."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import final

from skulkd.runtime.disk import AppendFile, Disk, DiskLock


@final
class PoweredDisk:
    """Implements `skulkd.runtime.disk.Disk` for one life of a node.

    Threads of a dead daemon do not write; here their jobs may still be in the loop's queue.

    Args:
        disk: The disk, which outlives the node.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._is_on = True
        self.calls_left: int | None = None
        """After so many more calls the daemon dies; None is never."""
        self.on_death: Callable[[], None] | None = None
        """Called when it does, inside the call that is one too many."""

    def cut(self) -> None:
        """End this life's access."""
        self._is_on = False

    def open_append(self, path: Path) -> AppendFile:
        """Open for appending; a crash of the disk beneath closes what was opened before."""
        return self._live.open_append(path)

    def read(self, path: Path, *, max_bytes: int) -> bytes:
        """Read a whole file."""
        return self._live.read(path, max_bytes=max_bytes)

    def size_bytes(self, path: Path) -> int:
        """Measure a file."""
        return self._live.size_bytes(path)

    def replace(self, path: Path, data: bytes) -> None:
        """Give a file a new content."""
        self._live.replace(path, data)

    def rename(self, source: Path, target: Path) -> None:
        """Rename."""
        self._live.rename(source, target)

    def truncate(self, path: Path, size_bytes: int) -> None:
        """Cut."""
        self._live.truncate(path, size_bytes)

    def list(self, directory: Path) -> tuple[str, ...]:
        """Name the entries."""
        return self._live.list(directory)

    def remove(self, path: Path) -> None:
        """Remove."""
        self._live.remove(path)

    def make_private_directory(self, path: Path) -> None:
        """Create with parents."""
        self._live.make_private_directory(path)

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        self._live.remove_directory(path)

    def free_bytes(self, path: Path) -> int:
        """Say what still fits."""
        return self._live.free_bytes(path)

    def try_lock(self, path: Path, note: bytes) -> DiskLock | None:
        """Take a lock."""
        return self._live.try_lock(path, note)

    @property
    def _live(self) -> Disk:
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0 and self._is_on:
                self._is_on = False
                if self.on_death is not None:
                    self.on_death()
        if not self._is_on:
            raise OSError(errno.EIO, "the daemon is dead")
        return self._disk
