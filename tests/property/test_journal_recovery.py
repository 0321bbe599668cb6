"""A journal damaged at any byte gives the last good record or a refusal by name, never silence."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ClusterError
from skulkd.eventlog.journal import Journal, JournalLimits
from skulkd.eventlog.journal_files import JournalFiles
from skulkd.eventlog.journal_recovery import Recovered, Recovery
from skulkd.eventlog.records import ZERO_CHAIN, Snapshot, decode_header
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.simulated_disk import SimulatedDisk
from skulkd.runtime.tasks import Tasks
from skulkd.runtime.virtual_time import VirtualLoop, run_virtual
from tests.support.journal_log import CLUSTER, DIRECTORY, Log, record_of

N_RECORDS = 12


def _die(story: str, error: BaseException) -> None:
    raise AssertionError(story) from error


def _write(batches: list[int], *, limits: JournalLimits | None = None) -> SimulatedDisk:
    """Append batches of records, each synced before the next."""
    disk = SimulatedDisk()

    async def main() -> None:
        tasks = Tasks("eventlog", on_death=_die)
        log = Log()
        clock = LoopClock(asyncio.get_running_loop())
        journal: Journal = await log.open(disk, clock, tasks, limits=limits)
        for n_records in batches:
            await journal.append(log.next_records(n_records))
        await journal.close()
        await tasks.close(1.0)

    run_virtual(main)
    return disk


def _last_segment(disk: SimulatedDisk) -> Path:
    return DIRECTORY / [name for name in disk.list(DIRECTORY) if name.startswith("segment")][-1]


def _with(disk: SimulatedDisk, path: Path, data: bytes) -> SimulatedDisk:
    other = SimulatedDisk()
    other.make_private_directory(DIRECTORY)
    for name in disk.list(DIRECTORY):
        other.replace(DIRECTORY / name, disk.read(DIRECTORY / name, max_bytes=1 << 20))
    other.replace(path, data)
    return other


def _recover(disk: SimulatedDisk) -> tuple[Log, Recovered]:
    log = Log()
    files = JournalFiles(disk, DIRECTORY, CLUSTER)
    recovery = Recovery(files, on_snapshot=log.on_snapshot, on_record=log.on_record)
    recovery.read()
    recovery.repair()
    _, file = recovery.open_end()
    file.close()
    return log, recovery.result()


def _record_ends(data: bytes) -> list[int]:
    _, offset = decode_header(data)
    ends = [offset]
    while offset < len(data):
        offset += 8 + int.from_bytes(data[offset : offset + 4], "little")
        ends.append(offset)
    return ends


@pytest.fixture(scope="module")
def singles() -> SimulatedDisk:
    return _write([1] * N_RECORDS)


def test_a_cut_at_every_byte_recovers_the_records_before_it(singles: SimulatedDisk) -> None:
    path = _last_segment(singles)
    data = singles.read(path, max_bytes=1 << 20)
    ends = _record_ends(data)
    assert len(ends) == N_RECORDS + 1
    for cut in range(len(data) + 1):
        disk = _with(singles, path, data[:cut])
        log, recovered = _recover(disk)
        n_whole = sum(end <= cut for end in ends[1:])
        assert log.holds_exactly(n_whole)
        n_lost = cut - max((end for end in ends if end <= cut), default=0)
        assert [aside.n_bytes for aside in recovered.quarantined] == ([n_lost] if n_lost else [])
        again, recovered_again = _recover(disk)
        assert again.holds_exactly(n_whole)
        assert recovered_again.quarantined == ()


@pytest.mark.parametrize("mask", [0x01, 0x10, 0x80, 0xFF])
def test_a_flip_at_every_byte_loses_the_last_record_or_is_refused(
    singles: SimulatedDisk, mask: int
) -> None:
    path = _last_segment(singles)
    data = singles.read(path, max_bytes=1 << 20)
    last_start = _record_ends(data)[-2]
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= mask
        disk = _with(singles, path, bytes(flipped))
        if position >= last_start:
            log, recovered = _recover(disk)
            assert log.holds_exactly(N_RECORDS - 1)
            [aside] = recovered.quarantined
            kept = disk.read(DIRECTORY / aside.file, max_bytes=1 << 20)
            assert kept == bytes(flipped[last_start:])
        else:
            with pytest.raises(ClusterError) as caught:
                _recover(disk)
            assert caught.value.code == "cluster.journal_corrupt"
            assert disk.read(path, max_bytes=1 << 20) == bytes(flipped), "the file is kept"


def test_a_hole_in_the_last_unacknowledged_batch_is_a_torn_tail_not_rot() -> None:
    # Pages of one write may reach the medium in any order: good records behind the hole prove
    # nothing when they belong to the same sync.
    disk = _write([3, 5])
    path = _last_segment(disk)
    data = bytearray(disk.read(path, max_bytes=1 << 20))
    ends = _record_ends(bytes(data))
    data[ends[4] : ends[5]] = bytes(ends[5] - ends[4])
    log, recovered = _recover(_with(disk, path, bytes(data)))
    assert log.holds_exactly(4)
    assert [aside.n_bytes for aside in recovered.quarantined] == [len(data) - ends[4]]


def test_rot_in_a_segment_before_the_last_is_refused() -> None:
    disk = _write([1] * 60, limits=JournalLimits(max_segment_bytes=2_000))
    segments = [name for name in disk.list(DIRECTORY) if name.startswith("segment")]
    newest = max(name for name in disk.list(DIRECTORY) if name.startswith("snapshot"))
    disk.remove(DIRECTORY / newest)
    assert len(segments) == 2
    path = DIRECTORY / segments[0]
    disk.flip_bit(path, disk.size_bytes(path) - 1, 0)
    with pytest.raises(ClusterError, match="a later segment exists"):
        _recover(disk)


def test_rot_before_the_snapshots_end_does_not_hide_records_behind_it() -> None:
    # A kill between publishing a snapshot and creating its segment: the old segment goes on.
    disk = _write([1] * 21)
    path = _last_segment(disk)
    _, recovered = _recover(disk)
    snapshot = Snapshot(
        cluster_id=CLUSTER, term=1, seq=20, at_ms=0, chain=ZERO_CHAIN, state=_state_of(20)
    )
    JournalFiles(disk, DIRECTORY, CLUSTER).publish_snapshot(snapshot)
    log, _ = _recover(disk)
    assert log.holds_exactly(recovered.seq)
    ends = _record_ends(disk.read(path, max_bytes=1 << 20))
    disk.flip_bit(path, ends[10] - 1, 0)
    with pytest.raises(ClusterError, match="seq 10"):
        _recover(disk)


def _state_of(n_events: int) -> bytes:
    log = Log()
    log.next_records(n_events)
    return log.image().pack()


def test_a_segment_in_the_wrong_place_is_refused() -> None:
    disk = _write([1] * 5)
    path = _last_segment(disk)
    disk.rename(path, path.with_name(f"segment-{7:020d}.log"))
    with pytest.raises(ClusterError, match="begins at seq 1"):
        _recover(disk)


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    damage=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 1 << 16),
    is_small=st.booleans(),
)
def test_any_damage_gives_a_prefix_or_a_refusal_and_a_recovered_log_goes_on(
    batches: list[int], damage: list[tuple[int, int]], cut: int, *, is_small: bool
) -> None:
    limits = JournalLimits(max_segment_bytes=700) if is_small else None
    disk = _write(batches, limits=limits)
    path = _last_segment(disk)
    data = bytearray(disk.read(path, max_bytes=1 << 20))
    for position, mask in damage:
        data[position % len(data)] ^= mask
    disk = _with(disk, path, bytes(data[: len(data) - cut % (len(data) + 1)]))
    try:
        log, recovered = _recover(disk)
    except ClusterError as error:
        if error.code != "cluster.journal_corrupt":
            raise
        return
    assert log.holds_exactly(log.seq)
    assert log.seq <= sum(batches)
    assert recovered.seq == log.seq

    async def go_on() -> int:
        tasks = Tasks("eventlog", on_death=_die)
        again = Log()
        clock = LoopClock(asyncio.get_running_loop())
        journal = await again.open(disk, clock, tasks, limits=limits)
        assert again.events == log.events
        assert (await journal.append(again.next_records(2))).is_durable
        await journal.close()
        await tasks.close(1.0)
        return again.seq

    n_events = run_virtual(go_on)
    final, _ = _recover(disk)
    assert final.holds_exactly(n_events)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_crash_at_any_moment_keeps_what_was_acknowledged(data: st.DataObject) -> None:
    """The power goes at a drawn virtual time; any part of the un-synced bytes is on the medium."""
    seed = data.draw(st.integers(0, 1 << 16))
    crash_s = data.draw(st.floats(0, 0.5))
    n_kept = data.draw(st.integers(0, 400))
    disk = SimulatedDisk()
    acknowledged: list[int] = []
    limits = JournalLimits(max_segment_bytes=1_000, max_batch_bytes=400)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        disk.stall = loop.stall_job
        disk.sync_delay_s = 0.003
        tasks = Tasks("eventlog", on_death=_die)
        log = Log()
        journal = await log.open(disk, LoopClock(loop), tasks, limits=limits)

        async def client() -> None:
            while True:
                done = await journal.append(log.next_records(1 + log.seq % 3))
                if done.is_durable:
                    acknowledged.append(done.seq)

        for number in range(3):
            tasks.start(client(), name=f"client {number}")
        await asyncio.sleep(crash_s)
        disk.crash(n_unsynced_bytes_kept=n_kept)
        await tasks.close(1.0)

    run_virtual(main, seed=seed)
    log, _ = _recover(disk)
    assert log.holds_exactly(log.seq)
    assert log.seq >= max(acknowledged, default=0)


def test_record_of_is_what_the_log_checks_against() -> None:
    assert record_of(3).cause is None
    assert record_of(4).cause is not None
