import asyncio
import errno
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from protocol.errors import ClusterError, ConfigError, ProtocolError
from skulkd.eventlog import journal_recovery, records
from skulkd.eventlog.journal import Durability, Journal, JournalLimits
from skulkd.eventlog.records import MAX_EVENT_BYTES, JournalRecord
from skulkd.runtime import failpoints
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.simulated_disk import SimulatedDisk
from skulkd.runtime.tasks import Tasks, sleep
from skulkd.runtime.virtual_time import VirtualLoop, run_virtual
from tests.support.journal_log import DIRECTORY, Log

SMALL = JournalLimits(max_segment_bytes=2_000, max_batch_bytes=500, retry_s=5.0)


class Bench:
    """One simulated disk over several lives of a journal."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.deaths: list[str] = []

    async def live(
        self,
        story: Callable[[Log, Journal], Coroutine[Any, Any, None]],
        *,
        limits: JournalLimits | None = None,
        is_closed: bool = True,
    ) -> Log:
        """Open the journal, run a story, and close it or pull the plug."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.disk.stall = loop.stall_job
        tasks = Tasks("eventlog", on_death=lambda story, _: self.deaths.append(story))
        log = Log()
        journal = await log.open(self.disk, LoopClock(loop), tasks, limits=limits)
        await story(log, journal)
        if is_closed:
            await journal.close()
            await journal.close()
        else:
            self.disk.crash()
        await tasks.close(1.0)
        assert self.deaths == []
        return log

    def reopened(self, limits: JournalLimits | None = None) -> Log:
        async def look(log: Log, journal: Journal) -> None:
            del log, journal

        return run_virtual(lambda: self.live(look, limits=limits))


async def _append(log: Log, journal: Journal, n_records: int = 1) -> Durability:
    return await journal.append(log.next_records(n_records))


def test_what_was_appended_comes_back_after_a_close_and_after_a_crash() -> None:
    bench = Bench()

    async def story(log: Log, journal: Journal) -> None:
        for _ in range(5):
            durability = await _append(log, journal, 4)
            assert durability == Durability(seq=log.seq, is_durable=True)

    run_virtual(lambda: bench.live(story))
    run_virtual(lambda: bench.live(story, is_closed=False), seed=1)
    log = bench.reopened()
    assert log.holds_exactly(40)
    assert log.recovered is not None
    assert (log.recovered.seq, log.recovered.n_records, log.recovered.snapshot_seq) == (40, 40, 0)
    assert log.recovered.quarantined == ()


def test_an_unacknowledged_append_may_be_lost_but_leaves_no_trace() -> None:
    bench = Bench()

    async def story(log: Log, journal: Journal) -> None:
        await _append(log, journal, 3)
        journal.append(log.next_records(2))

    run_virtual(lambda: bench.live(story, is_closed=False))
    assert bench.reopened().holds_exactly(3)


def test_what_arrives_during_a_sync_shares_the_next_one() -> None:
    bench = Bench()
    bench.disk.sync_delay_s = 0.004

    async def story(log: Log, journal: Journal) -> None:
        results = await asyncio.gather(*(_append(log, journal) for _ in range(1000)))
        assert all(result.is_durable for result in results)
        assert journal.health().n_syncs <= 2
        assert asyncio.get_running_loop().time() < 0.02

    run_virtual(lambda: bench.live(story))
    assert bench.disk.n_syncs <= 2
    assert bench.reopened().holds_exactly(1000)


def test_no_append_is_answered_before_its_sync_ends() -> None:
    bench = Bench()
    bench.disk.sync_delay_s = 2.0

    async def story(log: Log, journal: Journal) -> None:
        done = journal.append(log.next_records(1))
        await sleep(1.5)
        assert not done.done()
        assert journal.health().waiting_s == pytest.approx(1.5)
        assert (await done).is_durable
        assert journal.health().waiting_s == 0

    run_virtual(lambda: bench.live(story))


def test_a_batch_is_bounded() -> None:
    bench = Bench()
    bench.disk.sync_delay_s = 0.01

    async def story(log: Log, journal: Journal) -> None:
        await asyncio.gather(*(_append(log, journal) for _ in range(20)))

    run_virtual(lambda: bench.live(story, limits=JournalLimits(max_batch_bytes=300)))
    assert bench.disk.n_syncs > 5
    assert bench.reopened().holds_exactly(20)


def test_closing_writes_what_waits() -> None:
    bench = Bench()

    async def story(log: Log, journal: Journal) -> None:
        for _ in range(10):
            journal.append(log.next_records(1))

    run_virtual(lambda: bench.live(story))
    assert bench.reopened().holds_exactly(10)


def test_a_cancelled_wait_takes_nothing_back() -> None:
    bench = Bench()

    async def story(log: Log, journal: Journal) -> None:
        journal.append(log.next_records(1)).cancel()
        assert (await _append(log, journal)).is_durable

    run_virtual(lambda: bench.live(story))
    assert bench.reopened().holds_exactly(2)


def test_a_full_segment_ends_behind_a_snapshot_and_old_ones_go() -> None:
    bench = Bench()

    async def story(log: Log, journal: Journal) -> None:
        for _ in range(100):
            await _append(log, journal, 2)

    run_virtual(lambda: bench.live(story, limits=SMALL), seed=4)
    names = bench.disk.list(DIRECTORY)
    segments = [name for name in names if name.startswith("segment")]
    snapshots = [name for name in names if name.startswith("snapshot")]
    assert len(segments) == len(snapshots) == 2
    assert len(names) == 4
    log = bench.reopened()
    assert log.holds_exactly(200)
    assert log.recovered is not None
    assert log.recovered.n_records < 40, "a start replays one segment only"


def test_rotation_under_a_flood_loses_nothing() -> None:
    async def story(log: Log, journal: Journal) -> None:
        async def client() -> None:
            for _ in range(30):
                assert (await _append(log, journal)).is_durable
                await sleep(0.001)

        await asyncio.gather(*(client() for _ in range(20)))

    for seed in range(10):
        bench = Bench()
        bench.disk.sync_delay_s = 0.004
        run_virtual(partial(bench.live, story, limits=SMALL, is_closed=False), seed=seed)
        assert bench.reopened().holds_exactly(600)


def test_a_rotten_snapshot_is_put_aside_and_the_older_one_used() -> None:
    bench = Bench()

    async def story(log: Log, journal: Journal) -> None:
        for _ in range(100):
            await _append(log, journal, 2)

    run_virtual(lambda: bench.live(story, limits=SMALL))
    newest = [name for name in bench.disk.list(DIRECTORY) if name.startswith("snapshot")][-1]
    bench.disk.flip_bit(DIRECTORY / newest, 50, 3)
    log = bench.reopened()
    assert log.holds_exactly(200)
    assert log.recovered is not None
    [aside] = log.recovered.quarantined
    assert aside.file == f"{newest}.quarantine-1"


def test_a_snapshot_longer_than_any_state_is_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()

    async def story(log: Log, journal: Journal) -> None:
        for _ in range(100):
            await _append(log, journal, 2)

    run_virtual(lambda: bench.live(story, limits=SMALL))
    newest = [name for name in bench.disk.list(DIRECTORY) if name.startswith("snapshot")][-1]
    bench.disk.replace(DIRECTORY / newest, bytes(1 << 20))
    monkeypatch.setattr(journal_recovery, "MAX_STATE_BYTES", 1 << 19)
    log = bench.reopened()
    assert log.holds_exactly(200)
    assert log.recovered is not None
    [aside] = log.recovered.quarantined
    assert (aside.file, aside.n_bytes) == (f"{newest}.quarantine-1", 1 << 20)


@pytest.mark.parametrize("failure", ["sync", "write", "full"])
def test_a_failing_disk_is_counted_said_and_healed_without_a_false_promise(failure: str) -> None:
    bench = Bench()

    def break_disk() -> None:
        if failure == "sync":
            bench.disk.sync_error = OSError(errno.EIO, "bad sector")
        elif failure == "write":
            bench.disk.write_error = OSError(errno.EIO, "bad sector")
        else:
            bench.disk.capacity_bytes = bench.disk.used_bytes + 10

    def mend_disk() -> None:
        bench.disk.sync_error = bench.disk.write_error = None
        bench.disk.capacity_bytes = 1 << 30

    async def story(log: Log, journal: Journal) -> None:
        await _append(log, journal, 3)
        break_disk()
        assert await _append(log, journal, 2) == Durability(seq=5, is_durable=False)
        assert await _append(log, journal) == Durability(seq=6, is_durable=False)
        health = journal.health()
        assert (health.mode, health.n_unwritten) == ("counting", 3)
        assert ("full" if failure == "full" else "bad sector") in health.reason
        await sleep(12)
        assert journal.health().mode == "counting"
        mend_disk()
        await sleep(6)
        health = journal.health()
        assert (health.mode, health.reason, health.n_unwritten) == ("durable", "", 0)
        assert await _append(log, journal) == Durability(seq=7, is_durable=True)

    run_virtual(lambda: bench.live(story, is_closed=False), seed=2)
    log = bench.reopened()
    assert log.holds_exactly(7)
    assert log.recovered is not None
    assert log.recovered.snapshot_seq == 6
    assert log.recovered.quarantined == ()


def test_a_crash_while_counting_brings_back_what_was_acknowledged() -> None:
    bench = Bench()

    async def story(log: Log, journal: Journal) -> None:
        await _append(log, journal, 3)
        bench.disk.sync_error = OSError(errno.EIO, "bad sector")
        await _append(log, journal, 2)

    run_virtual(lambda: bench.live(story, is_closed=False))
    bench.disk.sync_error = None
    assert bench.reopened().holds_exactly(3)


def test_closing_while_counting_ends() -> None:
    bench = Bench()

    async def story(log: Log, journal: Journal) -> None:
        bench.disk.sync_error = OSError(errno.EIO, "bad sector")
        await _append(log, journal, 2)

    run_virtual(lambda: bench.live(story), limit_s=20)


def test_a_disk_that_is_full_at_the_start_does_not_keep_the_journal_from_opening() -> None:
    bench = Bench()
    bench.disk.make_private_directory(DIRECTORY)
    bench.disk.capacity_bytes = 0

    async def story(log: Log, journal: Journal) -> None:
        assert journal.health().mode == "counting"
        assert not (await _append(log, journal)).is_durable
        bench.disk.capacity_bytes = 1 << 20
        await sleep(6)
        assert (await _append(log, journal)).is_durable

    run_virtual(lambda: bench.live(story))
    assert bench.reopened().holds_exactly(2)


def test_more_than_may_wait_for_a_hanging_disk_is_counted_until_it_moves() -> None:
    bench = Bench()
    bench.disk.sync_delay_s = 60.0
    limits = JournalLimits(max_waiting_bytes=2_000)

    async def story(log: Log, journal: Journal) -> None:
        first = journal.append(log.next_records(1))
        await sleep(1)
        rest = [journal.append(log.next_records(1)) for _ in range(60)]
        assert rest[0].done()
        assert journal.health().mode == "counting"
        assert journal.health().n_waiting_bytes <= 2_000
        bench.disk.sync_delay_s = 0.0
        assert (await first).is_durable
        results = await asyncio.gather(*rest)
        assert not any(result.is_durable for result in results)
        await sleep(6)
        assert (await _append(log, journal)).is_durable

    run_virtual(lambda: bench.live(story, limits=limits, is_closed=False))
    assert bench.reopened().holds_exactly(62)


def test_appending_out_of_order_or_after_the_end_is_a_bug() -> None:
    bench = Bench()

    async def story(log: Log, journal: Journal) -> None:
        with pytest.raises(RuntimeError, match="seq 2 was appended where 1"):
            journal.append([JournalRecord(1, 2, 0, None, b"")])
        with pytest.raises(RuntimeError, match="nothing"):
            journal.append([])
        with pytest.raises(ProtocolError) as caught:
            journal.append([JournalRecord(1, 1, 0, None, bytes(MAX_EVENT_BYTES + 1))])
        assert caught.value.code == "protocol.too_large"
        await _append(log, journal)
        await journal.close()
        with pytest.raises(RuntimeError, match="closed"):
            journal.append(log.next_records(1))

    run_virtual(lambda: bench.live(story))


def test_an_image_that_is_not_at_the_end_of_the_log_is_a_bug_that_ends_the_writer() -> None:
    bench = Bench()

    async def story(log: Log, journal: Journal) -> None:
        await _append(log, journal)
        log.events += [b"", b"in the state too early"]
        with pytest.raises(asyncio.CancelledError):
            await journal.append([JournalRecord(1, 2, 0, None, b"")])

    with pytest.raises(AssertionError):
        run_virtual(lambda: bench.live(story, limits=JournalLimits(max_segment_bytes=1)))
    assert "the state is at seq 3 and the journal at 2" in bench.deaths[0]


def test_a_newer_schema_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()

    async def story(log: Log, journal: Journal) -> None:
        await _append(log, journal)

    monkeypatch.setattr(records, "SCHEMA", 2)
    run_virtual(lambda: bench.live(story))
    monkeypatch.undo()
    before = bench.disk.read(DIRECTORY / bench.disk.list(DIRECTORY)[0], max_bytes=10_000)
    with pytest.raises(ConfigError) as caught:
        bench.reopened()
    assert caught.value.code == "config.downgrade"
    assert "schema 2" in caught.value.message
    assert bench.disk.read(DIRECTORY / bench.disk.list(DIRECTORY)[0], max_bytes=10_000) == before


def test_the_journal_of_another_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()

    async def story(log: Log, journal: Journal) -> None:
        await _append(log, journal)

    run_virtual(lambda: bench.live(story))
    monkeypatch.setattr("tests.support.journal_log.CLUSTER", "kaaaaaaaaaaaaaaaa")
    with pytest.raises(ClusterError, match="belongs to cluster"):
        bench.reopened()


def test_a_missing_segment_is_refused() -> None:
    bench = Bench()

    async def story(log: Log, journal: Journal) -> None:
        for _ in range(100):
            await _append(log, journal, 2)

    run_virtual(lambda: bench.live(story, limits=SMALL))
    for name in bench.disk.list(DIRECTORY):
        if name.startswith("snapshot"):
            bench.disk.remove(DIRECTORY / name)
    with pytest.raises(ClusterError, match="are missing") as caught:
        bench.reopened()
    assert caught.value.code == "cluster.journal_corrupt"


@pytest.mark.parametrize(
    "point",
    [
        "journal.before_write",
        "journal.before_sync",
        "journal.after_sync",
        "journal.before_snapshot",
        "journal.after_snapshot",
        "journal.before_segment",
        "journal.after_segment",
        "journal.before_prune",
    ],
)
@pytest.mark.parametrize("nth", [1, 3])
def test_an_error_at_any_step_never_loses_what_was_acknowledged(point: str, nth: int) -> None:
    bench = Bench()
    acknowledged: list[int] = []
    n_failures: list[int] = []

    def fail() -> None:
        n_failures.append(1)
        raise OSError(errno.EIO, "fail point")

    async def story(log: Log, journal: Journal) -> None:
        failpoints.arm(point, fail, nth=nth)
        for _ in range(150):
            if (await _append(log, journal, 2)).is_durable:
                acknowledged.append(log.seq)
            await sleep(0.2)

    try:
        run_virtual(lambda: bench.live(story, limits=SMALL, is_closed=False), seed=nth)
    finally:
        failpoints.disarm_all()
    assert n_failures
    assert bench.reopened().holds_exactly(300)
    assert acknowledged[-1] == 300
