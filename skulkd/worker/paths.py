"""Where the worker keeps its things in a home, and where engines' sockets lie."""

import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocol.errors import ConfigError
from skulkd.worker.launchers.base import LauncherPaths

SOCKETS_MAX_BYTES: Final = 50
"""A socket's whole path may have 103 bytes on macOS and 107 on Linux; its name takes 40."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPaths:
    """The worker's directories."""

    launcher: LauncherPaths
    sockets: Path


def worker_paths(home: Path, environment: Mapping[str, str]) -> WorkerPaths:
    """Choose the directories. The home's own, but for sockets where the home's path is too long."""
    launcher = LauncherPaths(records=home / "launches", logs=home / "logs" / "engines")
    inside = home / "run"
    if len(os.fsencode(inside)) <= SOCKETS_MAX_BYTES:
        return WorkerPaths(launcher=launcher, sockets=inside)
    digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    name = f"skulk-{os.getuid()}-{digest}"
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    bases = [runtime] if runtime.startswith("/") else []
    for base in (*bases, tempfile.gettempdir(), "/tmp"):  # ruff: ignore[hardcoded-temp-file]  made private below, and refused when it is not ours
        sockets = Path(base) / name
        if len(os.fsencode(sockets)) <= SOCKETS_MAX_BYTES:
            return WorkerPaths(launcher=launcher, sockets=sockets)
    raise AssertionError("the last base is short enough")


def make_sockets_directory(path: Path) -> None:
    """Make the directory of sockets, private to this user.

    Raises:
        ConfigError: `config.home_unusable` when somebody else has made it, or it cannot be made.
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise ConfigError(
                "config.home_unusable",
                f"{path}, where the sockets of engines go, belongs to somebody else",
                remediation="Remove it, or choose a home with a shorter path, which then holds "
                "the sockets itself.",
            )
        path.chmod(0o700)
    except OSError as error:
        raise ConfigError(
            "config.home_unusable",
            f"{path}, where the sockets of engines go, cannot be made: {error}",
            remediation="Make its parent directory writable.",
        ) from error
