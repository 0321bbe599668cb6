"""What every benchmark shares: goals and verdicts, fair order, medians, CPU time of processes.

A benchmark is a module with `run() -> list[Result]`. It compares with something measured in the
same run (the engine asked directly, the disk written directly), because absolute times of a shared
machine mean little. CPU time is preferred over wall time for the same reason.
"""

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, final

import psutil

ROOT: Final = Path(__file__).parent.parent
Unit = Literal[
    "µs", "ms", "s", "ratio", "1/s", "bytes/s", "MB/s", "events/s", "MB", "% of a core", "frames"
]  # fmt: skip
Verdict = Literal["stretch", "gate", "missed"]

QUIET_LOAD: Final = 0.5
"""Load average of the last minute above which a result is noisy: somebody else is computing."""
QUIET_STEAL_RATIO: Final = 0.02
"""Share of time that the hypervisor gave to others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One measured goal.

    `gate` must hold on a quiet machine, `stretch` is the ambition. `better` says which way.
    """

    goal: str
    """The goal's id and, after a space, the case: `P9 c=8`."""
    metric: str
    unit: Unit
    gate: float
    stretch: float
    seen: float
    better: Literal["lower", "higher"] = "lower"
    detail: str = ""
    """How it came about: the two sides, spread, rounds."""
    sides: Mapping[str, float] = field(default_factory=dict[str, float])
    """The same of others, measured in turn with `seen`, in the same unit."""

    @property
    def verdict(self) -> Verdict:
        """Which of the two marks it reaches."""
        sign = 1 if self.better == "lower" else -1
        if sign * self.seen <= sign * self.stretch:
            return "stretch"
        return "gate" if sign * self.seen <= sign * self.gate else "missed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Medians of rounds, and how far they lie apart."""

    median: float
    low_quartile: float
    high_quartile: float

    def __str__(self) -> str:
        return f"{self.median:.3g} [{self.low_quartile:.3g}, {self.high_quartile:.3g}]"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sides measured in turn, one value a round each."""

    a: list[float] = field(default_factory=list[float])
    b: list[float] = field(default_factory=list[float])

    def difference(self) -> Spread:
        """B minus A, round by round."""
        return spread([b - a for a, b in zip(self.a, self.b, strict=True)])

    def ratio(self) -> Spread:
        """B over A, round by round."""
        return spread([b / a for a, b in zip(self.a, self.b, strict=True)])


def spread(values: Sequence[float]) -> Spread:
    """Give median and quartiles of at least two values."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median=middle, low_quartile=low, high_quartile=high)


def percentile(values: Sequence[float], percent: int) -> float:
    """Give the value below which `percent` of at least two values lie."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def interleaved(a: Callable[[], float], b: Callable[[], float], *, rounds: int) -> Pair:
    """Measure two sides A-B-B-A-A-B…, so that drift of the machine meets both alike."""
    pair = Pair()
    for index in range(rounds):
        for side in ("ab", "ba")[index % 2]:
            if side == "a":
                pair.a.append(a())
            else:
                pair.b.append(b())
    return pair


def cpu_seconds(root_pid: int, *, descendants: bool = True) -> float:
    """Add up user and system time of a process, by default with all below it, alive or reaped."""
    root = psutil.Process(root_pid)
    if not descendants:
        times = root.cpu_times()
        return times.user + times.system
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # its parent has reaped it and carries its time from now on
        total += times.user + times.system + times.children_user + times.children_system
    return total


@final
class OthersShare:
    """How much of this machine's processors others take while something is measured."""

    def __init__(self) -> None:
        self._began = self._looked()

    def ratio(self) -> float:
        """Give their part of all processor time since the beginning, 0.0 to 1.0."""
        busy_s, own_s, now_s = (
            now - then for now, then in zip(self._looked(), self._began, strict=True)
        )
        return max(0.0, busy_s - own_s) / (now_s * (os.cpu_count() or 1))

    @staticmethod
    def _looked() -> tuple[float, float, float]:
        times = psutil.cpu_times()
        busy_s = sum(times) - times.idle - getattr(times, "iowait", 0.0)
        busy_s -= getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        return busy_s, cpu_seconds(os.getpid()), time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where and under which load a run was made."""

    machine_class: str
    """Results of one class may be compared: `linux-x86_64-2cpu`."""
    kernel: str
    python: str
    cpu: str
    memory_gib: int
    commit: str
    load_before: float
    steal_before_ratio: float

    @property
    def is_noisy(self) -> bool:
        """Was somebody else computing when the run began?"""
        return self.load_before > QUIET_LOAD or self.steal_before_ratio > QUIET_STEAL_RATIO


def this_machine() -> Machine:
    """Look at the machine; takes a second for the share of stolen time."""
    cpu_times = psutil.cpu_times_percent(interval=1.0)
    return Machine(
        machine_class=f"{platform.system().lower()}-{platform.machine()}-{os.cpu_count()}cpu",
        kernel=platform.release(),
        python=platform.python_version(),
        cpu=_cpu_model(),
        memory_gib=round(psutil.virtual_memory().total / 2**30),
        commit=_commit(),
        load_before=round(os.getloadavg()[0], 2),
        steal_before_ratio=round(getattr(cpu_times, "steal", 0.0) / 100, 4),
    )


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str:
    answer = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # ruff: ignore[start-process-with-partial-path]  a developer's tool
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip() or "unknown"
