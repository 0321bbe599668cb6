"""Measuring this node: memory, disk, processors, accelerators and the lag of the event loop.

A measurement that does not come back (a dead network mount, a driver that waits) costs its own
value, which is then unknown, and nothing else. It is done with the node's rounds, and in one go:
to wake a node at rest costs more than to measure it.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, final

from protocol.clock import Clock
from protocol.ids import NodeId
from protocol.nodes import Accelerator
from protocol.readings import AcceleratorReading, NodeReading, NoDownloads
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.runtime.disk import Disk
from skulkd.runtime.rounds import Rounds
from skulkd.runtime.tasks import Tasks, run_blocking, timeout
from skulkd.worker.accelerators import AcceleratorProbe
from skulkd.worker.machine import MachineView

_log = logging.getLogger(__name__)

T = TypeVar("T")

PERIOD_S: Final = 2.0
_SOONEST_S: Final = PERIOD_S - 0.1
"""Rounds are not quite as regular as a clock."""
_LATEST_S: Final = PERIOD_S + 0.7
_MEASURE_TIMEOUT_S: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStatus:
    """Whether the journal still reaches the disk."""

    durable: bool
    unwritten: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMeters:
    """Where measurements come from."""

    machine: MachineView
    disk: Disk
    models_dir: Path
    accelerators: AcceleratorProbe
    journal: Callable[[], JournalStatus]
    no_downloads: NoDownloads | None = None
    """A setting, which others plan with."""


@final
class NodeReadings:
    """Measures this node every two seconds into a table.

    Args:
        node_id: This node.
        meters: What is measured.
        table: Where the readings go.
        clock: Stamps them.
        rounds: With which it is done, and whose lateness is the lag of the event loop.
    """

    def __init__(
        self,
        node_id: NodeId,
        meters: NodeMeters,
        table: ReadingsTable,
        clock: Clock,
        *,
        rounds: Rounds | None = None,
    ) -> None:
        self._node_id = node_id
        self._meters = meters
        self._table = table
        self._clock = clock
        self._rounds = rounds or Rounds()
        self._memory = _Measurement("memory", meters.machine.memory)
        self._disk = _Measurement("disk", lambda: meters.disk.free_bytes(meters.models_dir))
        self._devices: tuple[Accelerator, ...] = ()
        self._accelerators: tuple[AcceleratorReading, ...] = ()
        self._measured: tuple[AcceleratorReading, ...] = ()
        self._measured_accelerators_at_s = float("-inf")
        self._failing: set[str] = set()

    def set_devices(self, devices: tuple[Accelerator, ...]) -> None:
        """Measure these accelerators from now on."""
        self._devices = devices
        self._measured_accelerators_at_s = float("-inf")

    def start(self, tasks: Tasks) -> None:
        """Measure until the tasks' owner closes them."""
        tasks.start(self._run(), name="readings")

    async def measure(self) -> NodeReading:
        """Measure once, and put the reading into the table."""
        meters = self._meters
        # The disk is the one that may hang, so it comes last.
        await self._measure_host((self._memory, self._disk))
        memory = self._memory.value
        await self._measure_accelerators(None if memory is None else memory.available_bytes)
        journal = meters.journal()
        reading = NodeReading(
            node_id=self._node_id,
            at_s=self._clock.monotonic_s(),
            memory_available_bytes=None if memory is None else memory.available_bytes,
            accelerators=self._accelerators,
            disk_free_bytes=self._disk.value,
            cpu_ratio=meters.machine.cpu_ratio(),
            loop_lag_s=self._rounds.take_lag_s(),
            journal_durable=journal.durable,
            journal_unwritten=journal.unwritten,
            no_downloads=meters.no_downloads,
        )
        self._table.put_node(reading)
        return reading

    async def _run(self) -> None:
        while True:
            await self.measure()
            await self._rounds.wait(soonest_s=_SOONEST_S, latest_s=_LATEST_S)

    async def _measure_accelerators(self, host_available_bytes: int | None) -> None:
        now = self._clock.monotonic_s()
        if not self._devices:
            self._accelerators = ()
            return
        probe = self._meters.accelerators
        if now - self._measured_accelerators_at_s >= probe.measure_every_s:
            self._measured_accelerators_at_s = now
            self._measured = await probe.measure(self._devices)
        self._accelerators = tuple(
            replace(measured, free_bytes=_lesser(measured.free_bytes, host_available_bytes))
            if device.unified
            else measured
            for device, measured in zip(self._devices, self._measured, strict=True)
        )

    async def _measure_host(self, measurements: "Sequence[_Measurement[Any]]") -> None:
        """Measure in a thread, one after the other; what fails or takes too long is unknown."""
        asked = [one for one in measurements if one.begin()]
        try:
            async with timeout(_MEASURE_TIMEOUT_S):
                await run_blocking(_run_all, asked)
        except TimeoutError:
            pass  # what is late says so itself
        for one in asked:
            problem = one.problem_now()
            if problem is None:
                self._failing.discard(one.name)
            else:
                self._complain(one.name, problem)

    def _complain(self, name: str, problem: str) -> None:
        if name not in self._failing:
            self._failing.add(name)
            _log.warning("%s of this node is unknown: %s", name, problem)


@final
class _Measurement(Generic[T]):
    """One thing that is measured again and again, in a thread that it may keep.

    Args:
        name: For complaints.
        measure: Blocks.
    """

    def __init__(self, name: str, measure: Callable[[], T]) -> None:
        self.name: Final = name
        self._measure = measure
        self._is_running = False
        self._value: T | None = None
        self._problem: str | None = None

    @property
    def value(self) -> T | None:
        """What was measured last; None when it failed, or has not come back."""
        return None if self._is_running else self._value

    def begin(self) -> bool:
        """Forget the last value; returns whether `run` is to be called.

        A call that hangs keeps its thread, so no second one is made until it has come back.
        """
        if self._is_running:
            return False
        self._is_running, self._value, self._problem = True, None, None
        return True

    def run(self) -> None:
        """Measure, in the thread."""
        try:
            self._value = self._measure()
        except (OSError, ValueError, KeyError) as error:
            self._problem = str(error)
        finally:
            self._is_running = False

    def problem_now(self) -> str | None:
        """Say why there is no value; None when there is one."""
        return f"no answer within {_MEASURE_TIMEOUT_S} s" if self._is_running else self._problem


def _lesser(one: int | None, other: int | None) -> int | None:
    return min((value for value in (one, other) if value is not None), default=None)


def _run_all(measurements: "Sequence[_Measurement[Any]]") -> None:
    for one in measurements:
        one.run()
