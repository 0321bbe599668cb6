"""What the kernel tells of a process's mappings: weights from files apart from all else.

Linux only: nothing else tells how much of a mapping's memory belongs to a process alone.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

from skulkd.worker.launchers.base import ProcessMemory

_KIB = 1024
_N_HEADER_FIELDS = 6
"""Addresses, permissions, offset, device, inode, path."""


def process_memory(pid: int, model: Path) -> ProcessMemory | None:
    """Measure a process with its children; None when it is gone, or is another user's. Blocks."""
    if sys.platform != "linux":
        return None
    resolved = model.resolve()
    directory = resolved if resolved.is_dir() else resolved.parent
    mapped_bytes = private_bytes = 0
    try:
        children = psutil.Process(pid).children(recursive=True)
        for one in (pid, *(child.pid for child in children)):
            with Path(f"/proc/{one}/smaps").open("r", encoding="utf-8", errors="replace") as lines:
                mapped, private = told_apart(lines, directory)
            mapped_bytes = max(mapped_bytes, mapped)  # children map the same files
            private_bytes += private
    except (psutil.Error, OSError):
        return None
    return ProcessMemory(mapped_bytes=mapped_bytes, private_bytes=private_bytes)


def told_apart(lines: Iterable[str], directory: Path) -> tuple[int, int]:
    """Add up `/proc/PID/smaps`: bytes mapped from files in a directory, and resident bytes beside.

    A page of the model's files that the process has written to is its own, and no weight on disk.
    """
    mapped_kib = private_kib = 0
    is_model = False
    for line in lines:
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            fields = line.split(maxsplit=_N_HEADER_FIELDS - 1)
            path = fields[-1].rstrip("\n") if len(fields) == _N_HEADER_FIELDS else ""
            is_model = path.startswith("/") and Path(path).is_relative_to(directory)
        elif name == "Size:" and is_model:
            mapped_kib += _kib(rest)
        elif name == ("Anonymous:" if is_model else "Pss:"):
            private_kib += _kib(rest)
    return mapped_kib * _KIB, private_kib * _KIB


def _kib(text: str) -> int:
    number = text.split(maxsplit=1)[0]
    return int(number) if number.isdecimal() else 0
