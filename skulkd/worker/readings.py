"""Measuring this node: memory, disk, processors, accelerators and the lag of the event loop.

A measurement that does not come back (a dead network mount, a driver that waits) costs its own
value, which is then unknown, and nothing else.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, final

from protocol.clock import Clock
from protocol.ids import NodeId
from protocol.nodes import Accelerator
from protocol.readings import NodeReading, NoDownloads
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.runtime.disk import Disk
from skulkd.runtime.tasks import Tasks, run_blocking, sleep, timeout
from skulkd.worker.accelerators import AcceleratorProbe
from skulkd.worker.machine import MachineView

_log = logging.getLogger(__name__)

T = TypeVar("T")

PERIOD_S: Final = 2.0
LAG_SAMPLES: Final = 4
"""Within one period; the longest lag of them is given."""
_MEASURE_TIMEOUT_S: Final = 1.5
_ACCELERATORS_EVERY_S: Final = 10.0
"""nvidia-smi costs 50 ms of processor time and more."""


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
    """

    def __init__(
        self, node_id: NodeId, meters: NodeMeters, table: ReadingsTable, clock: Clock
    ) -> None:
        self._node_id = node_id
        self._meters = meters
        self._table = table
        self._clock = clock
        self._devices: tuple[Accelerator, ...] = ()
        self._free_bytes: tuple[int | None, ...] = ()
        self._measured_accelerators_at_s = float("-inf")
        self._running: set[str] = set()
        self._failing: set[str] = set()
        self._lag_s: float | None = None

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
        memory = await self._bounded("memory", meters.machine.memory)
        disk_free_bytes = await self._bounded(
            "disk", lambda: meters.disk.free_bytes(meters.models_dir)
        )
        await self._measure_accelerators(None if memory is None else memory.available_bytes)
        journal = meters.journal()
        reading = NodeReading(
            node_id=self._node_id,
            at_s=self._clock.monotonic_s(),
            memory_available_bytes=None if memory is None else memory.available_bytes,
            accelerator_free_bytes=self._free_bytes,
            disk_free_bytes=disk_free_bytes,
            cpu_ratio=meters.machine.cpu_ratio(),
            loop_lag_s=self._lag_s,
            journal_durable=journal.durable,
            journal_unwritten=journal.unwritten,
            no_downloads=meters.no_downloads,
        )
        self._table.put_node(reading)
        return reading

    async def _run(self) -> None:
        while True:
            await self.measure()
            self._lag_s = await self._longest_lag_s()

    async def _longest_lag_s(self) -> float:
        longest_s = 0.0
        pause_s = PERIOD_S / LAG_SAMPLES
        for _ in range(LAG_SAMPLES):
            began_s = self._clock.monotonic_s()
            await sleep(pause_s)
            longest_s = max(longest_s, self._clock.monotonic_s() - began_s - pause_s)
        return longest_s

    async def _measure_accelerators(self, host_available_bytes: int | None) -> None:
        now = self._clock.monotonic_s()
        if not self._devices:
            self._free_bytes = ()
            return
        if now - self._measured_accelerators_at_s >= _ACCELERATORS_EVERY_S:
            self._measured_accelerators_at_s = now
            self._free_bytes = await self._meters.accelerators.free_bytes(self._devices)
        self._free_bytes = tuple(
            host_available_bytes if device.unified else free_bytes
            for device, free_bytes in zip(self._devices, self._free_bytes, strict=True)
        )

    async def _bounded(self, name: str, measure: Callable[[], T]) -> T | None:
        """Measure in a thread; None when that fails or takes too long.

        A call that hangs keeps its thread, so no second one is made until it has come back.
        """

        def call() -> T:
            try:
                return measure()
            finally:
                self._running.discard(name)

        if name in self._running:
            return None
        self._running.add(name)
        try:
            async with timeout(_MEASURE_TIMEOUT_S):
                value = await run_blocking(call)
        except TimeoutError:
            self._complain(name, f"no answer within {_MEASURE_TIMEOUT_S} s")
        except (OSError, ValueError, KeyError) as error:
            self._complain(name, str(error))
        else:
            self._failing.discard(name)
            return value
        return None

    def _complain(self, name: str, problem: str) -> None:
        if name not in self._failing:
            self._failing.add(name)
            _log.warning("%s of this node is unknown: %s", name, problem)
