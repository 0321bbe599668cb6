"""The daemon's home directory: private, local, writable, and one daemon's alone."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from protocol.errors import ConfigError
from skulkd.runtime.disk import Disk, DiskLock

MOUNTS_FILE: Final = Path("/proc/self/mounts")

NETWORK_FILE_SYSTEMS: Final = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "fuse.ceph-fuse",
        "fuse.davfs",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.juicefs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "orangefs",
        "smb",
        "smb3",
        "smbfs",
    }
)
"""By their names in the mount table. On these a lock or a sync may mean nothing."""

_OCTAL_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_MAX_NOTE_BYTES: Final = 200


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """An opened home; this process holds its lock until `close`."""

    path: Path
    lock: DiskLock

    @property
    def journal(self) -> Path:
        """Where the event log lies."""
        return self.path / "journal"

    @property
    def logs(self) -> Path:
        """Where log files lie."""
        return self.path / "logs"

    @property
    def identity_file(self) -> Path:
        """The node's key and names."""
        return self.path / "identity.json"

    def close(self) -> None:
        """Let another daemon in; idempotent."""
        self.lock.release()


def open_home(disk: Disk, path: Path, *, pid: int, mounts: str | None = None) -> Home:
    """Make the home where it is missing, check it, and lock it.

    Args:
        disk: Where it lies.
        path: Absolute.
        pid: This process, for whoever finds the lock held.
        mounts: The text of the mount table; None where there is none (macOS), and then no file
            system is refused.

    Raises:
        ConfigError: `config.home_unusable`, `config.home_network_fs`, `config.home_locked`.
    """
    if mounts is not None:
        refuse_network_file_system(path, mounts)
    try:
        disk.make_private_directory(path)
        lock = disk.try_lock(path / "lock", str(pid).encode())
    except OSError as error:
        raise _unusable(path, error) from error
    if lock is None:
        raise _locked(disk, path)
    home = Home(path=path, lock=lock)
    try:
        # Taking the lock has shown that files can be written; a full disk shows here.
        disk.make_private_directory(home.logs)
    except OSError as error:
        home.close()
        raise _unusable(path, error) from error
    return home


def read_mounts() -> str | None:
    """Give the text of this machine's mount table, or None where there is none."""
    try:
        return MOUNTS_FILE.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None


def refuse_network_file_system(path: Path, mounts: str) -> None:
    """Check that `path` is on a local disk.

    Raises:
        ConfigError: `config.home_network_fs`.
    """
    resolved = path.resolve()
    found = file_system_of(resolved, mounts)
    if found is None:
        return
    mount_point, kind = found
    if kind in NETWORK_FILE_SYSTEMS:
        raise ConfigError(
            "config.home_network_fs",
            f"the home {path} is on a network file system ({kind} at {mount_point})",
            remediation="Choose a directory on a local disk: skulkd --home DIRECTORY.",
            details={"home": str(path), "file_system": kind, "mount_point": str(mount_point)},
        )


def file_system_of(path: Path, mounts: str) -> tuple[Path, str] | None:
    """Find the mount that holds a path: where it is mounted, and its type.

    Args:
        path: Absolute, without links; need not exist.
        mounts: As in /proc/self/mounts; of two mounts at one place the later one holds.
    """
    found: tuple[Path, str] | None = None
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:  # ruff: ignore[magic-value-comparison]  device, place, type
            continue
        mount_point = Path(_OCTAL_ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[1]))
        if not path.is_relative_to(mount_point):
            continue
        if found is None or len(mount_point.parts) >= len(found[0].parts):
            found = mount_point, fields[2]
    return found


def _locked(disk: Disk, path: Path) -> ConfigError:
    try:
        holder = disk.read(path / "lock", max_bytes=_MAX_NOTE_BYTES).decode("ascii", "replace")
    except OSError:
        holder = ""
    who = f"process {holder}" if holder.isdecimal() else "another process"
    return ConfigError(
        "config.home_locked",
        f"the home {path} is in use by {who}",
        remediation="Stop that one, or give this one a home of its own: skulkd --home DIRECTORY.",
        details={"home": str(path), "pid": int(holder) if holder.isdecimal() else None},
    )


def _unusable(path: Path, error: OSError) -> ConfigError:
    reason = error.strerror or str(error)
    return ConfigError(
        "config.home_unusable",
        f"the home {path} cannot be used: {reason}",
        remediation="Make it writable for this user, or choose another: skulkd --home DIRECTORY.",
        details={"home": str(path), "errno": error.errno, "uid": os.getuid()},
    )
