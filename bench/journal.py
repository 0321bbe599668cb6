"""The event log on this machine's real disk: what a committed command costs, and a start.

A command's latency is compared with one bare write and fdatasync of as many bytes, taken in turn:
the difference is ours, the rest is the disk's.
"""

import asyncio
import hashlib
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from bench.harness import ROOT, Result, percentile
from protocol.codec import pack
from protocol.commands import ReportDownload
from protocol.events import DownloadEnded, Event, InstancePlaced, RunnerPhaseChanged
from protocol.ids import ModelId, NodeId, cluster_id_of, command_id_of, node_id_of
from protocol.instances import PHASE_ORDER, RunnerStatus
from protocol.state import DownloadOutcome
from skulkd.eventlog.durable_log import StateFold
from skulkd.eventlog.journal_files import JournalFiles
from skulkd.eventlog.journal_recovery import Recovery
from skulkd.eventlog.records import (
    ZERO_CHAIN,
    JournalRecord,
    SegmentHeader,
    encode_header,
    encode_record,
)
from skulkd.runtime.clock import SystemClock
from skulkd.runtime.disk import Disk, RealDisk
from skulkd.runtime.simulated_disk import SimulatedDisk
from skulkd.runtime.tasks import Tasks
from tests.support.builders import a_node_id, an_instance
from tests.support.lone_log import LoneLog

N_ROUNDS: Final = 300
CONCURRENCIES: Final = (1, 32, 1000)
N_COMMANDS: Final = 3000
"""Committed at each concurrency."""
N_REPLAYED: Final = 80_000
RECOVERY_BYTES: Final = 48 << 20

NODE: Final[NodeId] = node_id_of(b"bench" * 7)
CLUSTER: Final = cluster_id_of(b"a cluster that is measured")
MODEL: Final = ModelId("org/model:Q4_K_M")

Submit = Callable[[], Awaitable[None]]


def _die(story: str, error: BaseException) -> None:
    raise SystemExit(story) from error


def _command(number: int) -> ReportDownload:
    return ReportDownload(
        command_id=command_id_of(NODE, hashlib.sha256(b"%d" % number).digest()),
        node_id=NODE,
        model_id=MODEL,
        size_bytes=number,
    )


async def _with_log(
    disk: Disk, directory: Path, measure: Callable[[Submit], Awaitable[list[float]]]
) -> list[float]:
    """Run a measurement on a whole master: decide, journal, apply, answer."""
    tasks = Tasks("bench", on_death=_die)
    clock = SystemClock()
    lone = await LoneLog.open(
        disk, directory, node_id=NODE, cluster_id=CLUSTER, number=1, clock=clock, tasks=tasks
    )
    numbers = iter(range(1, 1 << 30))

    async def submit() -> None:
        await lone.log.submit(_command(next(numbers)))

    seen = await measure(submit)
    await lone.close()
    await tasks.close(5.0)
    return seen


def _bare_sync_ms(directory: Path) -> Callable[[], float]:
    fd = os.open(directory / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    data = bytes(300)

    def once() -> float:
        began_s = time.perf_counter()
        os.write(fd, data)
        os.fdatasync(fd)
        return (time.perf_counter() - began_s) * 1000

    return once


def _latencies(disk: Disk, directory: Path, bare: Callable[[], float]) -> tuple[list[float], ...]:
    """Give the latency in ms of each command and of each bare sync, taken in turn."""
    bare_ms: list[float] = []

    async def measure(submit: Submit) -> list[float]:
        seen: list[float] = []
        for _ in range(N_ROUNDS):
            began_s = time.perf_counter()
            await submit()
            seen.append((time.perf_counter() - began_s) * 1000)
            bare_ms.append(bare())
        return seen

    return asyncio.run(_with_log(disk, directory, measure)), bare_ms


def _commands_per_s(directory: Path, concurrency: int) -> float:
    n_each = N_COMMANDS // concurrency if concurrency > 1 else N_ROUNDS

    async def measure(submit: Submit) -> list[float]:
        async def client() -> None:
            for _ in range(n_each):
                await submit()

        began_s = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(concurrency)))
        seconds = time.perf_counter() - began_s
        return [concurrency * n_each / seconds]

    return asyncio.run(_with_log(RealDisk(), directory, measure))[0]


def _write_segment(directory: Path) -> int:
    """Write one long segment of typical records; return how many."""
    directory.mkdir()
    event = pack(
        DownloadEnded(
            outcome=DownloadOutcome(
                node_id=NODE, model_id=MODEL, at_ms=1_800_000_000_000, size_bytes=1 << 33
            )
        )
    )
    cause = command_id_of(NODE, bytes(20))
    chain, n_bytes, seq = ZERO_CHAIN, 0, 0
    with (directory / f"segment-{1:020d}.log").open("wb") as file:
        file.write(encode_header(SegmentHeader(cluster_id=CLUSTER, first_seq=1, chain=chain)))
        while n_bytes < RECOVERY_BYTES:
            seq += 1
            record = JournalRecord(1, seq, 1_800_000_000_000 + seq, cause, event)
            data, chain = encode_record(record, chain, seq - 1)
            n_bytes += file.write(data)
    return seq


def _recovery_seconds(directory: Path) -> tuple[float, float]:
    """Give the CPU and the wall seconds of reading a journal back."""

    def skip(*_: object) -> None:
        """The fold into a state is P23's."""

    files = JournalFiles(RealDisk(), directory, CLUSTER)
    recovery = Recovery(files, on_snapshot=skip, on_record=skip)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    recovery.read()
    return time.process_time() - cpu_s, time.perf_counter() - began_s


def _latency_rows(root: Path) -> list[Result]:
    durable, bare = _latencies(RealDisk(), root / "durable", _bare_sync_ms(root))
    memory, _ = _latencies(SimulatedDisk(), root / "memory", lambda: 0.0)
    rates = {n: _commands_per_s(root / f"c{n}", n) for n in CONCURRENCIES}
    group = "commands/s " + ", ".join(f"c={n}: {rate:,.0f}" for n, rate in rates.items())
    bare_p50, bare_p99 = percentile(bare, 50), percentile(bare, 99)
    beside = f"bare fdatasync in turn {bare_p50:.2f}/{bare_p99:.2f} ms"
    metric = "command to durable, one node"
    return [
        Result(
            goal="P22 p50",
            metric=metric,
            unit="ms",
            gate=10,
            stretch=6,
            seen=percentile(durable, 50),
            detail=f"{beside}; {group}",
        ),
        Result(
            goal="P22 p99",
            metric=metric,
            unit="ms",
            gate=25,
            stretch=15,
            seen=percentile(durable, 99),
            detail=beside,
        ),
        Result(
            goal="P22 memory",
            metric="the same without a disk, p50",
            unit="ms",
            gate=2,
            stretch=1,
            seen=percentile(memory, 50),
            detail="decide, encode, two thread hops, apply, answer",
        ),
    ]


def _recovery_row(root: Path) -> Result:
    directory = root / "recovery"
    n_records = _write_segment(directory)
    # From the page cache it is all computing: CPU time is what a quiet machine's wall would show.
    seconds, wall_s = min(_recovery_seconds(directory) for _ in range(5))
    return Result(
        goal="P24",
        metric="log recovery",
        unit="MB/s",
        gate=100,
        stretch=300,
        better="higher",
        seen=RECOVERY_BYTES / seconds / 1e6,
        detail=f"{n_records / seconds:,.0f} records/s of {RECOVERY_BYTES / n_records:.0f} bytes, "
        f"by CPU time, best of 5; by the wall {RECOVERY_BYTES / wall_s / 1e6:.0f} MB/s; "
        "the chain's hash and msgpack are a third each",
    )


def _replayed_events() -> list[Event]:
    """One instance, and what is reported of it and of downloads, as a journal mostly holds it."""
    instance = an_instance()
    changes: list[Event] = [
        RunnerPhaseChanged(
            instance_id=instance.instance_id,
            runner=RunnerStatus(
                rank=0, node_id=a_node_id(), attempt=1, phase=phase, since_ms=1_800_000_000_000
            ),
        )
        for phase in PHASE_ORDER
    ]
    ended = DownloadEnded(
        outcome=DownloadOutcome(
            node_id=a_node_id(), model_id=MODEL, at_ms=1_800_000_000_000, size_bytes=1 << 33
        )
    )
    return [InstancePlaced(instance=instance), *([*changes, ended] * (N_REPLAYED // 8))]


def _replay_seconds(directory: Path) -> tuple[float, float]:
    """Give the CPU and the wall seconds of folding a journal into a state."""
    fold = StateFold(CLUSTER)
    files = JournalFiles(RealDisk(), directory, CLUSTER)
    recovery = Recovery(files, on_snapshot=fold.on_snapshot, on_record=fold.on_record)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    recovery.read()
    seconds = time.process_time() - cpu_s, time.perf_counter() - began_s
    assert fold.state.instances, "the replay has folded what was written"
    return seconds


def _replay_row(root: Path) -> Result:
    events = _replayed_events()
    directory = root / "replay"
    directory.mkdir()
    chain = ZERO_CHAIN
    with (directory / f"segment-{1:020d}.log").open("wb") as file:
        file.write(encode_header(SegmentHeader(cluster_id=CLUSTER, first_seq=1, chain=chain)))
        for seq, event in enumerate(events, start=1):
            cause = command_id_of(NODE, hashlib.sha256(b"%d" % seq).digest())
            record = JournalRecord(1, seq, 1_800_000_000_000 + seq, cause, pack(event))
            data, chain = encode_record(record, chain, seq - 1)
            file.write(data)
    seconds, wall_s = min(_replay_seconds(directory) for _ in range(3))
    return Result(
        goal="P23",
        metric="replay of the journal into a state",
        unit="events/s",
        gate=60_000,
        stretch=200_000,
        better="higher",
        seen=len(events) / seconds,
        detail=f"{len(events):,} events, read, checked, decoded and applied; by CPU time, best of "
        f"3; by the wall {len(events) / wall_s:,.0f}",
    )


def run() -> list[Result]:
    """Measure the journal rows, on the file system that holds the repository."""
    with tempfile.TemporaryDirectory(dir=ROOT, prefix=".bench-journal-") as name:
        root = Path(name)
        return [*_latency_rows(root), _replay_row(root), _recovery_row(root)]
