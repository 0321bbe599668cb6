"""Several ways to one engine, measured in turn: asked directly, through the daemon, through peers.

Each way through something is compared with the same engine asked directly over the same kind of
socket, round by round. Two set-ups: isolated, where engines have one core and whatever stands
before them shares the other with the load generator; and contended, where nothing is pinned.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final, Generic, Literal, TypeVar

import psutil

from bench.harness import Result, spread
from bench.load import Job, Outcome
from bench.sides import Ask, LoadGenerator

Setup = Literal["isolated", "contended"]
T = TypeVar("T")

N_ROUNDS: Final = 7
PEER_EVERY: Final = 3
"""Peers take part in the first of so many rounds: some need a hundred times as long for one."""
OURS: Final = "skulk"
FLOOR: Final = "engine"
PEER_FLOOR: Final = "engine over TCP"
CEILING_RATIO: Final = 0.9
"""What comes closer to the engine's own limit says nothing about whoever stands before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way to the engine."""

    name: str
    generator: LoadGenerator
    job: Callable[[str, Ask], Job]
    """Takes a model's id, and what is asked."""
    pids: tuple[int, ...] = ()
    """Whose processor time it costs, the engine left out; with all below them where `is_peer`."""
    floor: str = ""
    """The side that it is compared with; empty for those that are asked directly."""

    @property
    def is_peer(self) -> bool:
        """It is not ours, or is there for those that are not."""
        return PEER_FLOOR in {self.name, self.floor}

    def ask(self, model_id: str, ask: Ask) -> Outcome:
        """Ask this way.

        Raises:
            RuntimeError: An answer was not 200, or a connection broke.
        """
        return self.generator(self.job(model_id, ask))

    def cpu_s(self) -> float:
        """Give the processor time so far."""
        return sum(map(thread_seconds, self._processes()))

    def pin(self, cores: Iterable[int]) -> None:
        """Have it run on these cores alone."""
        for pid in self._processes():
            pin(pid, cores)

    def _processes(self) -> tuple[int, ...]:
        if not self.is_peer:
            return self.pids
        below = (psutil.Process(pid).children(recursive=True) for pid in self.pids)
        return (*self.pids, *(child.pid for children in below for child in children))


@dataclass(slots=True)
class Turns(Generic[T]):
    """What each side gave, by round."""

    by_side: dict[str, dict[int, T]] = field(default_factory=dict[str, dict[int, T]])

    def values(self, side: str) -> list[T]:
        """Give a side's values in the order of rounds."""
        return list(self.by_side[side].values())

    def map(self, convert: "Callable[[T], float]") -> "Turns[float]":
        """Give a number for each value."""
        return Turns(
            {
                name: {number: convert(value) for number, value in rounds.items()}
                for name, rounds in self.by_side.items()
            }
        )


def in_turn(sides: Iterable[Side], measure: Callable[[Side], T]) -> Turns[T]:
    """Measure A-B-C-C-B-A, so that drift of the machine meets all alike.

    A peer that fails has no value for that round, and says so; any other side's failure is raised.
    """
    ordered = tuple(sides)
    turns: Turns[T] = Turns({side.name: {} for side in ordered})
    for number in range(N_ROUNDS):
        for side in ordered if number % 2 == 0 else reversed(ordered):
            if side.is_peer and number % PEER_EVERY:
                continue
            try:
                turns.by_side[side.name][number] = measure(side)
            except RuntimeError as error:
                if side.floor != PEER_FLOOR:
                    raise
                print(f"{side.name} failed: {error}", flush=True)
    return turns


def added(sides: Iterable[Side], turns: Turns[float]) -> dict[str, list[float]]:
    """Give what each side adds to its floor, by round; nothing for the floors themselves."""
    return _compared(sides, turns, float.__sub__)


def ratios(sides: Iterable[Side], turns: Turns[float]) -> dict[str, list[float]]:
    """Give each side's values over its floor's, by round."""
    return _compared(sides, turns, float.__truediv__)


def _compared(
    sides: Iterable[Side], turns: Turns[float], compare: Callable[[float, float], float]
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for side in sides:
        if side.floor and turns.by_side[side.name]:
            floor = turns.by_side[side.floor]
            rounds = turns.by_side[side.name]
            found[side.name] = [compare(value, floor[number]) for number, value in rounds.items()]
    return found


def medians(seen: Mapping[str, list[float]]) -> dict[str, float]:
    """Give the median of each side."""
    return {name: median(values) for name, values in seen.items()}


def counted(sides: Iterable[Side], turns: Turns[float]) -> dict[str, list[float]]:
    """Give the values themselves, of those sides that are no floor."""
    return {
        side.name: turns.values(side.name)
        for side in sides
        if side.floor and turns.by_side[side.name]
    }


def result(
    goal: str,
    metric: str,
    unit: Literal["ms", "µs", "ratio", "1/s"],
    marks: tuple[float, float],
    seen: Mapping[str, list[float]],
    detail: str,
    *,
    better: Literal["lower", "higher"] = "lower",
) -> Result:
    """Make a row of what all sides gave, ours judged."""
    own = seen[OURS]
    shown = str(spread(own)) if len(own) > 1 else f"{own[0]:.3g}"
    return Result(
        goal=goal,
        metric=metric,
        unit=unit,
        gate=marks[0],
        stretch=marks[1],
        seen=median(own),
        better=better,
        detail=f"{shown}; {detail}",
        sides=medians(seen),
    )


def thread_seconds(pid: int) -> float:
    """Give the processor time of a process's threads by the scheduler's account, in nanoseconds.

    What `/proc/PID/stat` tells is rounded to hundredths of a second, which is a tenth of a round.
    """
    total_ns = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # it has ended meanwhile
            total_ns += int(thread.read_text().split()[0])
    if total_ns:
        return total_ns / 1e9
    times = psutil.Process(pid).cpu_times()  # no such account on this system
    return times.user + times.system


def pin(pid: int, cores: Iterable[int]) -> None:
    """Have all threads of a process, and those that it starts, run on these cores alone."""
    if not hasattr(os, "sched_setaffinity"):
        return
    wanted = set(cores)
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            os.sched_setaffinity(int(thread.name), wanted)


def cores_of(setup: Setup) -> tuple[set[int], set[int]]:
    """Give the cores of engines, and those of everything else."""
    if not hasattr(os, "sched_getaffinity"):
        return set(), set()
    cores = sorted(os.sched_getaffinity(0))
    if setup == "contended" or len(cores) == 1:
        return set(cores), set(cores)
    return {cores[0]}, {cores[1]}
