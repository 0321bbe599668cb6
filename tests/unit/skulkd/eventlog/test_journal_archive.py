import asyncio
import contextlib
import errno
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from protocol.codec import encode_values
from skulkd.eventlog.journal import Journal
from skulkd.eventlog.journal_archive import N_ARCHIVES_KEPT, archive_journal
from skulkd.eventlog.records import Snapshot
from skulkd.runtime import failpoints
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.disk import Disk
from skulkd.runtime.simulated_disk import SimulatedDisk
from skulkd.runtime.tasks import Tasks
from skulkd.runtime.virtual_time import run_virtual
from tests.support.journal_log import CLUSTER, DIRECTORY, Log, event_of
from tests.support.simulated_power import PoweredDisk

N_OLD, N_NEW = 50, 40
SNAPSHOT = Snapshot(
    cluster_id=CLUSTER,
    term=9,
    seq=N_NEW,
    at_ms=7,
    chain=b"another history!",
    state=encode_values(tuple(event_of(seq) for seq in range(1, N_NEW + 1))),
)
STEPS = (
    "journal.before_snapshot",
    "journal.after_snapshot",
    "journal.before_segment",
    "journal.after_segment",
    "journal.before_archive",
    "journal.after_archive",
)
Story = Callable[[Log, Journal], Coroutine[Any, Any, None]]


@pytest.fixture(name="arm")
def arm_a_step() -> Iterator[Callable[[str, Callable[[], None]], None]]:
    yield failpoints.arm
    failpoints.disarm_all()


def _die(story: str, error: BaseException) -> None:
    raise AssertionError(story) from error


def live(disk: Disk, story: Story) -> Log:
    async def main() -> Log:
        tasks = Tasks("eventlog", on_death=_die)
        log = Log()
        journal = await log.open(disk, LoopClock(asyncio.get_running_loop()), tasks)
        await story(log, journal)
        await journal.close()
        await tasks.close(1.0)
        return log

    return run_virtual(main)


async def nothing(log: Log, journal: Journal) -> None:
    del log, journal


async def write_old(log: Log, journal: Journal) -> None:
    await journal.append(log.next_records(N_OLD))


async def replace(log: Log, journal: Journal, *, keeps_old: bool = True) -> None:
    def switch() -> None:
        assert (journal.seq, journal.chain) == (N_NEW, SNAPSHOT.chain)
        log.events = [event_of(seq) for seq in range(1, N_NEW + 1)]

    await journal.replace(SNAPSHOT, keeps_old=keeps_old, on_done=switch)


def a_disk_with_a_history() -> SimulatedDisk:
    disk = SimulatedDisk()
    live(disk, write_old)
    return disk


def archives(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.list(DIRECTORY.parent) if "archive" in name]


def test_the_new_history_goes_on_behind_its_snapshot_and_the_old_one_is_kept() -> None:
    disk = a_disk_with_a_history()

    async def story(log: Log, journal: Journal) -> None:
        await replace(log, journal)
        assert (await journal.append(log.next_records(3))).is_durable
        assert journal.durable_seq == N_NEW + 3

    live(disk, story)
    assert live(disk, nothing).holds_exactly(N_NEW + 3)
    assert archives(disk) == ["journal.archive-000001"]
    disk.rename(DIRECTORY, DIRECTORY.with_name("journal.elsewhere"))
    disk.rename(DIRECTORY.with_name("journal.archive-000001"), DIRECTORY)
    assert live(disk, nothing).holds_exactly(N_OLD)


def test_an_old_history_that_is_not_wanted_is_removed() -> None:
    disk = a_disk_with_a_history()
    live(disk, lambda log, journal: replace(log, journal, keeps_old=False))
    assert disk.list(DIRECTORY.parent) == ("journal",)


def test_a_death_before_any_call_to_the_disk_leaves_the_old_history_or_the_new_one() -> None:
    outcomes: list[int] = []
    for n_calls in range(1000):
        disk = a_disk_with_a_history()
        power = PoweredDisk(disk)

        async def story(log: Log, journal: Journal, power: PoweredDisk = power) -> None:
            power.calls_left = n_calls  # ruff: ignore[function-uses-loop-variable]  run at once
            with contextlib.suppress(OSError):
                await replace(log, journal)

        live(power, story)
        is_done = power.calls_left is not None and power.calls_left >= 0
        disk.crash()
        seen = live(disk, nothing)
        assert seen.holds_exactly(N_OLD) or seen.holds_exactly(N_NEW)
        assert live(disk, nothing).seq == seen.seq
        assert not any("next" in name for name in disk.list(DIRECTORY.parent))
        outcomes.append(seen.seq)
        if is_done:
            break
    assert len(outcomes) > 10
    assert outcomes == sorted(outcomes, reverse=True), "once the new one is found it stays"
    assert outcomes[0] == N_OLD
    assert outcomes[-1] == N_NEW


@pytest.mark.parametrize("step", STEPS)
def test_a_disk_that_fails_at_a_step_leaves_the_old_history_in_use(
    step: str, arm: Callable[[str, Callable[[], None]], None]
) -> None:
    disk = a_disk_with_a_history()

    async def story(log: Log, journal: Journal) -> None:
        def fail() -> None:
            raise OSError(errno.EIO, step)

        arm(step, fail)
        with pytest.raises(OSError, match=step):
            await replace(log, journal)
        failpoints.disarm_all()
        assert (journal.seq, log.seq) == (N_OLD, N_OLD)
        assert (await journal.append(log.next_records(1))).is_durable

    live(disk, story)
    assert live(disk, nothing).holds_exactly(N_OLD + 1)


def test_a_journal_that_counts_writes_again_after_it_was_replaced() -> None:
    disk = a_disk_with_a_history()

    async def story(log: Log, journal: Journal) -> None:
        disk.sync_error = OSError(errno.EIO, "input/output error")
        assert not (await journal.append(log.next_records(1))).is_durable
        assert journal.is_counting
        disk.sync_error = None
        await replace(log, journal)
        assert not journal.is_counting
        assert (await journal.append(log.next_records(1))).is_durable

    live(disk, story)
    assert live(disk, nothing).holds_exactly(N_NEW + 1)


def test_what_waits_when_it_is_replaced_is_dropped_and_said_to_be() -> None:
    disk = a_disk_with_a_history()

    async def story(log: Log, journal: Journal) -> None:
        disk.sync_delay_s = 1.0
        written = journal.append(log.next_records(1))
        await asyncio.sleep(0.5)
        waiting = journal.append(log.next_records(1))
        await replace(log, journal)
        assert (await written).is_durable
        assert not (await waiting).is_durable

    live(disk, story)
    assert live(disk, nothing).holds_exactly(N_NEW)


def test_archiving_frees_the_name_and_keeps_the_last_two() -> None:
    disk = SimulatedDisk()
    disk.make_private_directory(DIRECTORY.parent)
    assert archive_journal(disk, DIRECTORY) is None
    for number in range(1, 5):
        live(disk, write_old)
        aside = archive_journal(disk, DIRECTORY)
        assert aside == DIRECTORY.with_name(f"journal.archive-{number:06d}")
        assert len(archives(disk)) <= N_ARCHIVES_KEPT
    assert archives(disk) == ["journal.archive-000003", "journal.archive-000004"]


def test_archiving_leaves_no_half_made_successor_behind() -> None:
    disk = a_disk_with_a_history()
    disk.make_private_directory(DIRECTORY.with_name("journal.next"))
    disk.replace(DIRECTORY.with_name("journal.next") / "file", b"half")
    archive_journal(disk, DIRECTORY)
    assert disk.list(DIRECTORY.parent) == ("journal.archive-000001",)
    assert live(disk, nothing).seq == 0
