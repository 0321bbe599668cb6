"""Small file systems in memory, for tests that run in a mount namespace of their own."""

import shutil
import subprocess
from pathlib import Path
from typing import Literal


def mount_small_disk(path: Path, size_mib: int) -> None:
    """Mount an empty file system of that size over an empty directory."""
    _run("mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=0700", "skulk-test", str(path))


def remount(path: Path, mode: Literal["ro", "rw"]) -> None:
    """Make a file system read-only, or writable again."""
    _run("mount", "-o", f"remount,{mode}", str(path))


def unmount(path: Path) -> None:
    """Take a file system away, also while something in it is open."""
    _run("umount", "--lazy", str(path))


def _run(program: str, *arguments: str) -> None:
    found = shutil.which(program)
    assert found is not None, f"{program} is not installed"
    subprocess.run([found, *arguments], check=True, timeout=10)
