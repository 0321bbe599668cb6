import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.cards import ModelCard
from protocol.commands import Command, CommandReply, ReportDownload
from protocol.errors import ClusterError, ConfigError, RequestError, SkulkError, StoreError
from protocol.ids import CommandId
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.runtime.choices import ChoicesFile, KeptChoices
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.simulated_disk import SimulatedDisk
from skulkd.runtime.tasks import Tasks, sleep
from skulkd.runtime.virtual_time import VirtualLoop, run_virtual
from skulkd.worker.pauses import Pauses
from skulkd.worker.reporter import Reporter
from skulkd.worker.transfers import Transfers
from store.progress import TransferProgress
from tests.support.builders import (
    MODEL,
    a_card,
    a_command_id,
    a_facts_report,
    a_node_id,
)


class FakeGateway:
    """A master that is away for the first `n_away` calls, and refuses what it is told to."""

    def __init__(self, *, n_away: int = 0, refused: SkulkError | None = None) -> None:
        self.n_away = n_away
        self.refused = refused
        self.taken: list[Command] = []
        self.n_minted = 0

    def mint_command_id(self) -> CommandId:
        self.n_minted += 1
        return a_command_id(self.n_minted)

    async def submit(self, command: Command) -> CommandReply:
        if self.n_away:
            self.n_away -= 1
            raise ClusterError("cluster.no_master", "nobody is master")
        if self.refused is not None:
            error, self.refused = self.refused, None
            raise error
        self.taken.append(command)
        return CommandReply(command_id=command.command_id, term=1, seq=1, durable="local")


def _fail(story: str, _error: BaseException) -> None:
    raise AssertionError(story)


def test_reports_wait_for_a_master_and_keep_their_order() -> None:
    gateway = FakeGateway(n_away=5)

    async def story() -> None:
        tasks = Tasks("test", on_death=_fail)
        reporter = Reporter(gateway, tasks)
        reports = [a_facts_report(command=number) for number in range(3)]
        for report in reports:
            reporter.put(report)
        await reporter.wait_idle()
        assert gateway.taken == reports
        await tasks.close(1.0)

    run_virtual(story, limit_s=60.0)


def test_a_refused_report_is_dropped_and_the_next_one_goes() -> None:
    gateway = FakeGateway(refused=RequestError("request.invalid", "too late"))

    async def story() -> None:
        tasks = Tasks("test", on_death=_fail)
        reporter = Reporter(gateway, tasks)
        reporter.put(a_facts_report(command=1))
        reporter.put(a_facts_report(command=2))
        await reporter.wait_idle()
        assert gateway.taken == [a_facts_report(command=2)]
        await tasks.close(1.0)

    run_virtual(story, limit_s=60.0)


def test_a_report_that_waits_already_is_not_put_twice() -> None:
    gateway = FakeGateway(n_away=1)

    async def story() -> None:
        tasks = Tasks("test", on_death=_fail)
        reporter = Reporter(gateway, tasks)
        reporter.put(a_facts_report(command=1), key="facts")
        reporter.put(a_facts_report(command=2), key="facts")
        await reporter.wait_idle()
        reporter.put(a_facts_report(command=3), key="facts")
        await reporter.wait_idle()
        assert gateway.taken == [a_facts_report(command=1), a_facts_report(command=3)]
        await tasks.close(1.0)

    run_virtual(story, limit_s=60.0)


@dataclass(frozen=True)
class FakeArtifact:
    entry: Path = Path("/models/x.gguf")
    projector: Path | None = None
    size_bytes: int = 100


class FakeStore:
    """Fetches in four steps of a second; fails or finds as the test says."""

    def __init__(self, *, error: StoreError | None = None) -> None:
        self.error = error
        self.found: FakeArtifact | None = None
        self.waited: tuple[tuple[int, int | None], ...] = ()
        self.n_cancelled = 0
        self.n_begun = 0

    def locate(self, card: ModelCard) -> FakeArtifact | None:
        return self.found

    async def ensure(
        self, card: ModelCard, progress: Callable[[TransferProgress], None] | None = None
    ) -> FakeArtifact:
        assert progress is not None
        self.n_begun += 1
        for done_bytes, total_bytes in self.waited:
            progress(
                TransferProgress(
                    phase="wait",
                    done_bytes=done_bytes,
                    total_bytes=total_bytes,
                    rate_bytes_s=None,
                    eta_s=None,
                    source="peer nabc/den",
                )
            )
        try:
            for done_bytes in (25, 50, 75, 100):
                progress(
                    TransferProgress(
                        phase="download" if done_bytes < 100 else "verify",
                        done_bytes=done_bytes,
                        total_bytes=100,
                        rate_bytes_s=25,
                        eta_s=1,
                        source="the index",
                    )
                )
                await sleep(1.0)
        except asyncio.CancelledError:
            self.n_cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        self.found = FakeArtifact()
        return self.found


class Notes:
    """What a waiting placement is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.done: list[int | None] = []

    def add(self, done_bytes: int | None, _total_bytes: int | None, note: str) -> None:
        self.said.append(note)
        self.done.append(done_bytes)


def a_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_private_directory(Path("/home"))
    return disk


class Bench:
    """Transfers over fakes."""

    def __init__(self, store: FakeStore, *, disk: SimulatedDisk | None = None) -> None:
        clock = LoopClock(asyncio.get_running_loop())
        choices_file = ChoicesFile(disk or a_disk(), Path("/home/choices.json"))
        self.choices = KeptChoices(choices_file, choices_file.read())
        self.gateway = FakeGateway()
        self.table = ReadingsTable()
        self.tasks = Tasks("test", on_death=_fail)
        self.reporter = Reporter(self.gateway, self.tasks)
        self.transfers = Transfers(
            a_node_id(),
            store,
            table=self.table,
            reporter=self.reporter,
            gateway=self.gateway,
            clock=clock,
            tasks=self.tasks,
            pauses=Pauses(a_node_id(), choices=self.choices, table=self.table, clock=clock),
        )

    async def outcomes(self) -> list[tuple[int, str | None]]:
        await self.reporter.wait_idle()
        await self.tasks.close(1.0)
        return [
            (command.size_bytes, None if command.error is None else command.error.code)
            for command in self.gateway.taken
            if isinstance(command, ReportDownload)
        ]


def test_a_pull_shows_progress_and_reports_how_it_ended() -> None:
    async def story() -> None:
        bench = Bench(FakeStore())
        assert bench.transfers.pull(a_card())
        assert not bench.transfers.pull(a_card())
        await sleep(1.5)
        reading = bench.table.readings.transfers[a_node_id(), MODEL]
        assert (reading.done_bytes, reading.total_bytes, reading.eta_s) == (50, 100, 1)
        assert bench.transfers.pulled() == (MODEL,)
        await sleep(3.0)
        assert bench.table.readings.transfers == {}
        assert bench.transfers.pulled() == ()
        assert await bench.outcomes() == [(100, None)]

    run_virtual(story, limit_s=60.0)


def test_a_cancelled_pull_reports_nothing_and_leaves_a_placement_waiting() -> None:
    async def story() -> None:
        store = FakeStore()
        bench = Bench(store)
        bench.transfers.pull(a_card())
        placing = bench.tasks.start(bench.transfers.ensure(a_card()), name="place")
        await sleep(1.5)
        assert await bench.transfers.cancel_pull(MODEL)
        assert not await bench.transfers.cancel_pull(MODEL)
        assert store.n_cancelled == 1
        assert (a_node_id(), MODEL) in bench.table.readings.transfers
        assert (await placing).size_bytes == 100
        assert await bench.outcomes() == [(100, None)]

    run_virtual(story, limit_s=60.0)


def test_a_failed_fetch_is_reported_and_raised_to_who_waits() -> None:
    async def story() -> None:
        bench = Bench(FakeStore(error=StoreError("store.stalled", "no byte for 60 s")))
        with pytest.raises(StoreError, match="no byte"):
            await bench.transfers.ensure(a_card())
        bench.transfers.pull(a_card())
        await sleep(5.0)
        assert await bench.outcomes() == [(0, "store.stalled"), (0, "store.stalled")]

    run_virtual(story, limit_s=60.0)


def test_files_that_are_here_are_neither_fetched_nor_reported() -> None:
    async def story() -> None:
        store = FakeStore()
        store.found = FakeArtifact()
        bench = Bench(store)
        notes = Notes()
        artifact = await bench.transfers.ensure(a_card(), notes.add)
        assert artifact == FakeArtifact()
        assert notes.said == []
        assert await bench.outcomes() == []

    run_virtual(story, limit_s=60.0)


def test_phases_after_the_download_still_show_that_something_moves() -> None:
    async def story() -> None:
        bench = Bench(FakeStore())
        notes = Notes()
        await bench.transfers.ensure(a_card(), notes.add)
        assert notes.said == ["download from the index"] * 3 + ["verify, 100%"]
        await bench.tasks.close(1.0)

    run_virtual(story, limit_s=60.0)


def test_the_bytes_of_a_node_that_is_waited_for_do_not_count_as_ours() -> None:
    async def story() -> None:
        store = FakeStore()
        store.waited = ((10, 40), (7_000, None))
        bench = Bench(store)
        notes = Notes()
        await bench.transfers.ensure(a_card(), notes.add)
        assert notes.said[:2] == [
            "waiting for peer nabc/den, 25%",
            "waiting for peer nabc/den, 7000 bytes",
        ]
        assert notes.done[:3] == [None, None, 25]
        await bench.tasks.close(1.0)

    run_virtual(story, limit_s=60.0)


# ---- Pauses ----


def test_a_paused_pull_fetches_nothing_says_who_and_when_and_goes_on() -> None:
    async def story() -> None:
        store = FakeStore()
        bench = Bench(store)
        bench.transfers.pull(a_card())
        await sleep(1.5)
        assert await bench.transfers.pause(MODEL, "loopback")
        assert store.n_cancelled == 1
        assert await bench.transfers.pause(MODEL, "another")
        reading = bench.table.readings.transfers[a_node_id(), MODEL]
        assert (reading.phase, reading.done_bytes, reading.total_bytes) == ("paused", 50, 100)
        assert reading.paused is not None
        assert reading.paused.by == "loopback"
        await sleep(3600.0)
        assert store.n_begun == 1
        assert await bench.transfers.resume(a_card())
        assert not await bench.transfers.resume(a_card())
        await sleep(5.0)
        assert store.n_begun == 2
        assert bench.table.readings.transfers == {}
        assert await bench.outcomes() == [(100, None)]

    run_virtual(story, limit_s=7200.0)


def test_a_placement_is_told_each_minute_that_it_waits_for_a_paused_transfer() -> None:
    async def story() -> None:
        notes = Notes()
        bench = Bench(FakeStore())
        placing = bench.tasks.start(bench.transfers.ensure(a_card(), notes.add), name="place")
        await sleep(1.5)
        assert await bench.transfers.pause(MODEL, "ops")
        await sleep(150.0)
        assert notes.said[-3:] == [
            f"waiting for a paused transfer (by ops, {minutes} min ago): skulk store resume {MODEL}"
            for minutes in (0, 1, 2)
        ]
        await bench.transfers.resume(a_card())
        assert (await placing).size_bytes == 100
        assert await bench.outcomes() == [(100, None)]

    run_virtual(story, limit_s=600.0)


def test_a_pause_outlives_the_daemon_and_its_stop() -> None:
    async def story() -> None:
        disk = a_disk()
        before = Bench(FakeStore(), disk=disk)
        before.transfers.pull(a_card())
        await sleep(1.5)
        assert await before.transfers.pause(MODEL, "ops")
        await before.transfers.end_pulls()
        await before.outcomes()

        store = FakeStore()
        after = Bench(store, disk=disk)
        after.transfers.pauses.show_all()
        reading = after.table.readings.transfers[a_node_id(), MODEL]
        assert (reading.phase, reading.done_bytes) == ("paused", 50)
        placing = after.tasks.start(after.transfers.ensure(a_card()), name="place")
        await sleep(60.0)
        assert store.n_begun == 0
        assert await after.transfers.resume(a_card())
        assert (await placing).size_bytes == 100
        await after.outcomes()

    run_virtual(story, limit_s=600.0)


def test_resuming_what_nobody_waits_for_pulls_it() -> None:
    async def story() -> None:
        bench = Bench(FakeStore())
        placing = bench.tasks.start(bench.transfers.ensure(a_card()), name="place", essential=False)
        await sleep(1.5)
        assert await bench.transfers.pause(MODEL, "ops")
        placing.cancel()
        await asyncio.wait([placing])
        assert (a_node_id(), MODEL) in bench.table.readings.transfers
        assert await bench.transfers.resume(a_card())
        assert bench.transfers.pulled() == (MODEL,)
        await sleep(5.0)
        assert await bench.outcomes() == [(100, None)]

    run_virtual(story, limit_s=600.0)


def test_a_pause_that_loses_the_race_against_the_end_is_no_pause() -> None:
    async def story() -> None:
        disk = a_disk()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        disk.stall = loop.stall_job
        bench = Bench(FakeStore(), disk=disk)
        assert not await bench.transfers.pause(MODEL, "ops")
        bench.transfers.pull(a_card())
        await sleep(3.5)
        disk.sync_delay_s = 2.0
        assert not await bench.transfers.pause(MODEL, "ops")
        assert bench.choices.now.paused == ()
        assert bench.table.readings.transfers == {}
        assert await bench.outcomes() == [(100, None)]

    run_virtual(story, limit_s=60.0)


def test_a_cancelled_pause_is_given_up_unless_a_placement_waits() -> None:
    async def story() -> None:
        bench = Bench(FakeStore())
        bench.transfers.pull(a_card())
        await sleep(1.5)
        await bench.transfers.pause(MODEL, "ops")
        assert await bench.transfers.cancel_pull(MODEL)
        assert bench.table.readings.transfers == {}
        assert not await bench.transfers.resume(a_card())

        placing = bench.tasks.start(bench.transfers.ensure(a_card()), name="place")
        await sleep(0.5)
        await bench.transfers.pause(MODEL, "ops")
        assert not await bench.transfers.cancel_pull(MODEL)
        assert bench.transfers.pauses.get(MODEL) is not None
        await bench.transfers.resume(a_card())
        assert (await placing).size_bytes == 100
        await bench.outcomes()

    run_virtual(story, limit_s=60.0)


def test_a_failing_disk_leaves_the_transfer_running() -> None:
    async def story() -> None:
        disk = a_disk()
        bench = Bench(FakeStore(), disk=disk)
        bench.transfers.pull(a_card())
        await sleep(1.5)
        disk.write_error = OSError(errno.EIO, "the disk fails")
        with pytest.raises(ConfigError):
            await bench.transfers.pause(MODEL, "ops")
        await sleep(5.0)
        assert await bench.outcomes() == [(100, None)]

    run_virtual(story, limit_s=60.0)
