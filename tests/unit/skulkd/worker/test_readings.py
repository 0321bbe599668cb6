import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from protocol.nodes import Accelerator
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.runtime.clock import LoopClock, SystemClock
from skulkd.runtime.disk import RealDisk
from skulkd.runtime.rounds import Rounds
from skulkd.runtime.tasks import Tasks, sleep
from skulkd.runtime.virtual_time import run_virtual
from skulkd.worker import readings as readings_module
from skulkd.worker.accelerators import AcceleratorProbe
from skulkd.worker.machine import Machine
from skulkd.worker.readings import JournalStatus, NodeMeters, NodeReadings
from skulkd.worker.run import CompletedRun
from tests.support.builders import a_node_id

T = TypeVar("T")


async def no_tool(argv: Sequence[str], timeout_s: float, max_output: int) -> CompletedRun:
    raise AssertionError("no tool is asked")


def meters_in(directory: Path) -> NodeMeters:
    return NodeMeters(
        machine=Machine(),
        disk=RealDisk(),
        models_dir=directory,
        accelerators=AcceleratorProbe(no_tool, directory),
        journal=lambda: JournalStatus(durable=False, unwritten=7),
    )


def test_a_reading_tells_what_moves_on_this_node(tmp_path: Path) -> None:
    table = ReadingsTable()
    node = NodeReadings(a_node_id(), meters_in(tmp_path), table, SystemClock())
    reading = asyncio.run(node.measure())
    assert table.readings.nodes == {a_node_id(): reading}
    assert reading.memory_available_bytes
    assert reading.disk_free_bytes
    assert (reading.journal_durable, reading.journal_unwritten) == (False, 7)


def test_an_unmeasurable_disk_is_unknown_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = ReadingsTable()
    meters = replace(meters_in(tmp_path), models_dir=tmp_path / "gone")
    node = NodeReadings(a_node_id(), meters, table, SystemClock())

    async def twice() -> None:
        assert (await node.measure()).disk_free_bytes is None
        assert (await node.measure()).memory_available_bytes

    asyncio.run(twice())
    assert len(caplog.records) == 1


class HangingDisk:
    """A disk on a dead mount."""

    def __init__(self) -> None:
        self.n_calls = 0
        self.may_answer = threading.Event()

    def free_bytes(self, path: Path) -> int:
        self.n_calls += 1
        self.may_answer.wait(20)
        return 5


def test_a_hanging_measurement_takes_one_thread_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings_module, "_MEASURE_TIMEOUT_S", 0.05)
    disk = HangingDisk()
    meters = replace(meters_in(tmp_path), disk=disk)  # pyright: ignore[reportArgumentType]  the one call that is made
    node = NodeReadings(a_node_id(), meters, ReadingsTable(), SystemClock())

    async def story() -> None:
        for _ in range(3):
            reading = await node.measure()
            assert reading.disk_free_bytes is None
            assert reading.memory_available_bytes, "the disk costs nothing but its own value"
        assert disk.n_calls == 1
        disk.may_answer.set()
        async with asyncio.timeout(5):
            while (await node.measure()).disk_free_bytes != 5:
                await asyncio.sleep(0.01)

    asyncio.run(story())


def test_unified_memory_is_the_hosts(tmp_path: Path) -> None:
    device = Accelerator(
        index=0, vendor="amd", name="GPU", compute="rocm", unified=True, seen_by="test"
    )
    node = NodeReadings(a_node_id(), meters_in(tmp_path), ReadingsTable(), SystemClock())
    node.set_devices((device,))
    reading = asyncio.run(node.measure())
    assert [one.free_bytes for one in reading.accelerators] == [reading.memory_available_bytes]


class Calls:
    """Counts the threads that are asked for something."""

    def __init__(self) -> None:
        self.n_calls = 0

    async def run_blocking(self, call: Callable[[T], None], argument: T) -> None:
        self.n_calls += 1
        call(argument)


def test_a_node_at_rest_is_measured_by_one_thread_with_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls()
    monkeypatch.setattr(readings_module, "run_blocking", calls.run_blocking)

    async def story() -> None:
        rounds, table = Rounds(), ReadingsTable()
        clock = LoopClock(asyncio.get_running_loop())
        node = NodeReadings(a_node_id(), meters_in(tmp_path), table, clock, rounds=rounds)
        tasks = Tasks("test", on_death=lambda _story, _error: None)
        node.start(tasks)
        measured_s = set[float]()
        table.subscribe(lambda _node_id, _key, _reading: measured_s.add(clock.monotonic_s()))
        round_s = {0.0}  # the first measurement waits for none
        for _ in range(42):
            await sleep(0.501)
            round_s.add(clock.monotonic_s())
            rounds.begin(late_s=0.07)
        await sleep(0.1)
        assert measured_s <= round_s
        assert len(measured_s) == calls.n_calls == 11
        assert table.readings.nodes[a_node_id()].loop_lag_s == pytest.approx(0.07)
        await tasks.close(1)

    run_virtual(story)
