"""What this machine has to give: processors and memory, under the limits set on this process.

Reads /proc and /sys, whose place is an argument so that other machines can be tried; macOS is asked
through psutil. Blocking. An unknown value is None, never 0.
"""

import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, final

import psutil

_V1_LIMIT: Final = "memory.limit_in_bytes"
_V1_NO_LIMIT: Final = 1 << 60
"""A limit above this is how version 1 says that there is none."""
_PIECE_BYTES: Final = 65_536
_MEMORY_LINE: Final = re.compile(r"^(MemTotal|MemAvailable|SwapFree): +(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNow:
    """RAM under cgroup limits; swap is not counted in it."""

    total_bytes: int
    available_bytes: int
    swap_free_bytes: int = 0
    """What more could be taken at the cost of swapping; 0 where there is no swap, or a limit."""
    seen_by: str = ""
    """What says how much there is in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """What kind of processor this is."""

    model: str
    features: tuple[str, ...]
    n_cores: int | None = None
    """Physical cores that this process may run on, whatever its quota."""
    quota: float | None = None
    """Processors' worth of time that its cgroups grant; None where there is no limit."""


class MachineView(Protocol):
    """What the worker asks about the machine that it runs on."""

    def memory(self) -> MemoryNow:
        """Measure RAM: the whole, and what could be taken now without swapping."""
        ...

    def cpu_ratio(self) -> float:
        """Say how busy all processors have been since the last call; 0 to 1."""
        ...

    def n_cpus(self) -> int:
        """Count the processors that an engine may use."""
        ...

    def processor(self) -> Processor:
        """Name the processor and its instruction set extensions."""
        ...

    def oom_kills(self) -> int | None:
        """Count the processes that the kernel has killed for want of memory since it started."""
        ...


@final
class Machine:
    """This machine, or one laid out in files.

    Args:
        root: What stands for `/`.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._proc = root / "proc"
        self._sys = root / "sys"
        self._is_linux = sys.platform == "linux" or root != Path("/")
        self._groups = ""
        self._directories: dict[str, tuple[Path, ...]] = {}
        """Of the cgroups in `_groups`, by controller."""

    def memory(self) -> MemoryNow:
        """Measure RAM: the whole, and what could be taken now without swapping."""
        if not self._is_linux:
            seen = psutil.virtual_memory()
            return MemoryNow(
                total_bytes=seen.total,
                available_bytes=seen.available,
                swap_free_bytes=psutil.swap_memory().free,
                seen_by="the system",
            )
        total_bytes, available_bytes, swap_free_bytes = self._meminfo()
        seen_by = "/proc/meminfo"
        for limit in self._memory_limits():
            if limit.limit_bytes < total_bytes:
                swap_free_bytes = 0  # the group may not be allowed any
                total_bytes, seen_by = limit.limit_bytes, f"limit of cgroup {limit.name}"
            left_bytes = max(0, limit.limit_bytes - limit.used_bytes)
            available_bytes = min(available_bytes, left_bytes)
        return MemoryNow(
            total_bytes=total_bytes,
            available_bytes=available_bytes,
            swap_free_bytes=swap_free_bytes,
            seen_by=seen_by,
        )

    def cpu_ratio(self) -> float:
        """Say how busy all processors have been since the last call; 0 to 1."""
        return psutil.cpu_percent(None) / 100

    def n_cpus(self) -> int:
        """Count the processors that an engine may use: cores in the mask, at most the quota.

        Threads beyond either only wait for one another: siblings of one core share its units, and
        a quota is a throttle that hits all threads of a step at once.
        """
        if not self._is_linux:
            return psutil.cpu_count(logical=False) or os.cpu_count() or 1
        quotas = [int(quota) for quota in self._cpu_quotas()]
        return max(1, min([self._n_cores(), *quotas]))

    def processor(self) -> Processor:
        """Name the processor and its instruction set extensions."""
        if not self._is_linux:
            n_cores = psutil.cpu_count(logical=False)
            return Processor(model=platform.processor(), features=(), n_cores=n_cores)
        fields = _fields(_read(self._proc / "cpuinfo") or "")
        model = fields.get("model name") or fields.get("Model") or fields.get("CPU part", "")
        features = (fields.get("flags") or fields.get("Features") or "").split()
        return Processor(
            model=model,
            features=tuple(sorted(features)),
            n_cores=max(1, self._n_cores()),
            quota=min(self._cpu_quotas(), default=None),
        )

    def oom_kills(self) -> int | None:
        """Count the processes that the kernel has killed for want of memory since it started."""
        if not self._is_linux:
            return None
        for line in (_read(self._proc / "vmstat") or "").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
        return None

    def _meminfo(self) -> tuple[int, int, int]:
        """Give total and available memory, and free swap; they stand in the first lines of many."""
        text = _content(self._proc / "meminfo")
        found = dict(_MEMORY_LINE.findall(text))
        total_kib, available_kib = int(found["MemTotal"]), int(found["MemAvailable"])
        return total_kib * 1024, available_kib * 1024, int(found.get("SwapFree", 0)) * 1024

    def _n_cores(self) -> int:
        """Count the physical cores in this process's mask."""
        allowed = os.sched_getaffinity(0) if sys.platform == "linux" else set[int]()
        return len({self._core_of(cpu) for cpu in allowed})

    def _core_of(self, cpu: int) -> tuple[str, str]:
        topology = self._sys / f"devices/system/cpu/cpu{cpu}/topology"
        package = _read(topology / "physical_package_id")
        core = _read(topology / "core_id")
        return (package or "", core if core is not None else f"cpu{cpu}")

    def _memory_limits(self) -> Iterator["_MemoryLimit"]:
        """Give limit and unreclaimable use of this process's cgroup and of all above it."""
        for directory in self._cgroup_directories("memory"):
            limit_bytes, use = _number(directory / "memory.max"), "memory.current"
            if limit_bytes is None:
                limit_bytes, use = _number(directory / _V1_LIMIT), "memory.usage_in_bytes"
            if limit_bytes is None or limit_bytes > _V1_NO_LIMIT:
                continue
            used_bytes = _number(directory / use)
            if used_bytes is None:
                continue
            # Pages of files that nobody used lately are counted as used, and are free to take.
            yield _MemoryLimit(
                name=f"/{directory.relative_to(self._sys / 'fs/cgroup')}",
                limit_bytes=limit_bytes,
                used_bytes=max(0, used_bytes - _reclaimable_bytes(directory)),
            )

    def _cpu_quotas(self) -> Iterator[float]:
        for directory in self._cgroup_directories("cpu"):
            quota, _, period = (_read(directory / "cpu.max") or "").partition(" ")
            if not quota:
                quota = _read(directory / "cpu.cfs_quota_us") or ""
                period = _read(directory / "cpu.cfs_period_us") or ""
            if quota.isdecimal() and period.isdecimal() and int(quota) > 0 and int(period) > 0:
                yield int(quota) / int(period)

    def _cgroup_directories(self, controller: str) -> tuple[Path, ...]:
        """Give the directories of this process's cgroup for a controller, innermost first."""
        groups = _read(self._proc / "self/cgroup") or ""
        if self._groups != groups:
            self._groups = groups
            self._directories.clear()
        if controller not in self._directories:
            found = self._find_directories(groups, controller)
            self._directories[controller] = tuple(found)
        return self._directories[controller]

    def _find_directories(self, groups: str, controller: str) -> Iterator[Path]:
        mounts = self._sys / "fs/cgroup"
        for line in groups.splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            mount = mounts / controller if controllers else mounts
            inside = Path(path.lstrip("/"))
            # In a container the path may be one that only the host can see: the mount remains.
            yield from (mount / part for part in (inside, *inside.parents))


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemoryLimit:
    name: str
    limit_bytes: int
    used_bytes: int
    """Beside what can be taken back."""


def _reclaimable_bytes(directory: Path) -> int:
    for line in (_read(directory / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name in {"inactive_file", "total_inactive_file"}:
            return int(value)
    return 0


def _fields(text: str) -> dict[str, str]:
    """Read `name : value` lines; of a name that repeats, the first."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text is not None and text.isdecimal() else None


def _read(path: Path) -> str | None:
    try:
        return _content(path).strip()
    except OSError:
        return None


def _content(path: Path) -> str:
    """Read a small file whole; a fifth of what `Path.read_text` costs."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces: list[bytes] = []
        while piece := os.read(descriptor, _PIECE_BYTES):
            pieces.append(piece)
    finally:
        os.close(descriptor)
    return b"".join(pieces).decode("utf-8", "replace")
