"""The durable log of this node: group commit, rotation, and honesty when the disk fails.

One writer. Whatever arrives while it writes and syncs goes into its next batch, so a lone record
costs one sync and a thousand at once cost two. A file whose write or sync failed is sealed: the
kernel may have thrown the bytes away and called them clean, so a second sync proves nothing. From
then on records are *counted*, not written, and said to be so, until a snapshot of the whole state
and a new segment behind it are durable.

The journal knows events as bytes and the state as something that can be packed.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, final

from protocol.clock import Clock
from protocol.ids import ClusterId
from skulkd.eventlog.commit_file import CommitMark
from skulkd.eventlog.journal_files import JournalFiles
from skulkd.eventlog.journal_recovery import OnRecord, OnSnapshot, Recovered, Recovery
from skulkd.eventlog.records import (
    EncodedRecord,
    JournalRecord,
    Snapshot,
    chain_after,
    encode_body,
    frame_record,
)
from skulkd.runtime import failpoints
from skulkd.runtime.disk import AppendFile, Disk
from skulkd.runtime.tasks import Tasks, run_blocking, run_blocking_in, timeout

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLimits:
    """The journal's sizes and times; the defaults are for use, others are for tests."""

    max_segment_bytes: int = 16 << 20
    """From this size a segment is closed behind a snapshot: it bounds how long a start takes."""
    max_batch_bytes: int = 4 << 20
    """What one sync carries at most, so that a flood cannot make one write last."""
    max_waiting_bytes: int = 64 << 20
    """What may wait for a disk that hangs; beyond it the journal counts."""
    retry_s: float = 5.0
    """How long after a failure the disk is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateImage:
    """The state after the last appended record; immutable, so it is packed in a thread."""

    term: int
    seq: int
    at_ms: int
    pack: Callable[[], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Durability:
    """What became of an append."""

    seq: int
    """Of its last record."""
    is_durable: bool
    """True: synced, survives the power. False: counted only, the disk has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalHealth:
    """How the journal is, for health and telemetry."""

    mode: Literal["durable", "counting"]
    reason: str
    """Why it counts; empty while durable."""
    n_unwritten: int
    """Records that are in no file and no snapshot."""
    waiting_s: float
    """How long the running write has taken; a disk that hangs shows here first."""
    n_waiting_bytes: int
    n_syncs: int
    segment_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Append:
    data: bytes
    n_records: int
    last_seq: int
    done: asyncio.Future[Durability]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    path: Path
    file: AppendFile


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """A place in the log where one segment ends and another may begin."""

    image: StateImage
    chain: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Succession:
    """Another history that shall take this one's place."""

    snapshot: Snapshot
    keeps_old: bool
    on_done: Callable[[], None]
    done: asyncio.Future[None]


@final
class Journal:
    """An open journal; made by `open`, ended by `close`."""

    def __init__(
        self,
        *,
        files: JournalFiles,
        segment: _Segment | None,
        counting_reason: str,
        recovered: Recovered,
        image: Callable[[], StateImage],
        clock: Clock,
        tasks: Tasks,
        limits: JournalLimits,
    ) -> None:
        self._files = files
        self._segment = segment
        self._image = image
        self._clock = clock
        self._limits = limits
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._seq = recovered.seq
        self._chain = recovered.chain
        self._durable_seq = recovered.seq
        self._writing: list[_Append] = []
        self._waiting: list[_Append] = []
        self._n_waiting_bytes = 0
        self._wake = asyncio.Event()
        self._write_began_s: float | None = None
        self._counting_reason = counting_reason
        self._n_unwritten = 0
        self._n_syncs = 0
        self._is_closing = False
        self._succession: _Succession | None = None
        self.on_progress: Callable[[], None] | None = None
        """Called on the event loop when more is durable, or the disk has begun to fail."""
        self._writer = tasks.start(self._write_forever(), name="journal writer")

    @classmethod
    async def open(
        cls,
        disk: Disk,
        directory: Path,
        *,
        cluster_id: ClusterId,
        image: Callable[[], StateImage],
        on_snapshot: OnSnapshot,
        on_record: OnRecord,
        clock: Clock,
        tasks: Tasks,
        limits: JournalLimits | None = None,
    ) -> "tuple[Journal, Recovered]":
        """Replay the journal in `directory`, then open it for appending.

        The replay runs in a thread, and calls back there while this call waits. A disk that cannot
        be written does not keep the journal from opening: it starts out counting.

        Args:
            disk: Where it lies.
            directory: Its own; made when missing.
            cluster_id: Whose history it is.
            image: Gives the state after the last appended record: the journal calls it on the
                event loop, at a moment when everything appended must be in it.
            on_snapshot: Gets the state to begin with, unless the history begins at its beginning.
            on_record: Gets each record behind it.
            clock: Times waits.
            tasks: Owns the writer.
            limits: Sizes and times.

        Raises:
            ClusterError: `cluster.journal_corrupt`.
            ConfigError: `config.downgrade`.
            OSError: The disk cannot even be read.
        """
        files = JournalFiles(disk, directory, cluster_id)
        recovery = Recovery(files, on_snapshot=on_snapshot, on_record=on_record)
        segment, reason = await run_blocking(_recover, files, recovery)
        recovered = recovery.result()
        journal = cls(
            files=files,
            segment=segment,
            counting_reason=reason,
            recovered=recovered,
            image=image,
            clock=clock,
            tasks=tasks,
            limits=limits or JournalLimits(),
        )
        return journal, recovered

    @property
    def seq(self) -> int:
        """Of the last appended record."""
        return self._seq

    @property
    def chain(self) -> bytes:
        """Of the last appended record."""
        return self._chain

    @property
    def durable_seq(self) -> int:
        """Of the last record that survives the power, in a segment or in a snapshot."""
        return self._durable_seq

    @property
    def is_closing(self) -> bool:
        """Whether it takes no more records."""
        return self._is_closing

    @property
    def is_counting(self) -> bool:
        """Whether the disk has failed, so that records are only counted."""
        return bool(self._counting_reason)

    def append(self, records: Sequence[JournalRecord]) -> asyncio.Future[Durability]:
        """Encode records and add them to the log; see `append_encoded`.

        Raises:
            ProtocolError: `protocol.too_large`; nothing was added.
            RuntimeError: See `append_encoded`.
        """
        encoded: list[EncodedRecord] = []
        chain = self._chain
        for record in records:
            body = encode_body(record)
            chain = chain_after(chain, body)
            encoded.append(EncodedRecord(record.seq, body, chain))
        return self.append_encoded(encoded)

    def append_encoded(self, records: Sequence[EncodedRecord]) -> asyncio.Future[Durability]:
        """Add records to the log; they are in order from this call on.

        Must be called in the same turn of the loop in which `image` begins to include them.
        Cancelling the future takes nothing back.

        Returns:
            A future that is done after the sync, or at once while the journal counts.

        Raises:
            RuntimeError: The records do not continue the log, or it is closed: a bug.
        """
        if self._is_closing or not records:
            message = "nothing to append" if not records else "the journal is closed"
            raise RuntimeError(message)
        data = self._frame(records)
        self._seq, self._chain = records[-1].seq, records[-1].chain
        done: asyncio.Future[Durability] = asyncio.get_running_loop().create_future()
        entry = _Append(data=data, n_records=len(records), last_seq=self._seq, done=done)
        if self._counting_reason and self._write_began_s is None:
            self._count([entry])
            return done
        self._waiting.append(entry)
        self._n_waiting_bytes += len(data)
        if self._n_waiting_bytes > self._limits.max_waiting_bytes:
            self._counting_reason = f"{self._n_waiting_bytes} bytes wait for a disk that hangs"
            self._count_waiting()
        self._wake.set()
        return done

    def health(self) -> JournalHealth:
        """Say how the journal is."""
        began_s = self._write_began_s
        return JournalHealth(
            mode="counting" if self._counting_reason else "durable",
            reason=self._counting_reason,
            n_unwritten=self._n_unwritten,
            waiting_s=0.0 if began_s is None else self._clock.monotonic_s() - began_s,
            n_waiting_bytes=self._n_waiting_bytes,
            n_syncs=self._n_syncs,
            segment_bytes=0 if self._segment is None else self._segment.file.size_bytes,
        )

    async def close(self) -> None:
        """Take no more records, write what waits, and close the file; idempotent.

        Waits as long as the disk takes: bound it with a timeout.
        """
        self._is_closing = True
        self._wake.set()
        await asyncio.wait({self._writer})
        if self._segment is not None:
            self._segment.file.close()
        self._thread.shutdown(wait=False)

    async def replace(
        self, snapshot: Snapshot, *, keeps_old: bool, on_done: Callable[[], None]
    ) -> None:
        """Put a history that begins with `snapshot` in this one's place, durably and at once.

        A crash at any moment leaves the one or the other. What waits to be written belongs to the
        old history and is dropped. Append nothing while this runs.

        Args:
            snapshot: Of the same cluster.
            keeps_old: The old history is put aside (`journal_archive`); False removes it.
            on_done: Called on the event loop in the turn in which `seq` and `chain` become the
                snapshot's; `image` must give its state from then on.

        Raises:
            OSError: The disk does not allow it; the old history stands.
            RuntimeError: The journal is closed.
        """
        if self._is_closing or self._succession is not None:
            message = "the journal is closed, or being replaced already"
            raise RuntimeError(message)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._succession = _Succession(
            snapshot=snapshot, keeps_old=keeps_old, on_done=on_done, done=done
        )
        self._wake.set()
        await asyncio.shield(done)

    async def keep_commit_mark(self, mark: CommitMark) -> None:
        """Remember on the disk how far this history is committed; nothing while it is replaced.

        Raises:
            OSError: The mark before it stands.
        """
        if self._succession is None and not self._is_closing:
            await run_blocking_in(self._thread, partial(self._files.keep_commit_mark, mark))

    def _frame(self, records: Sequence[EncodedRecord]) -> bytes:
        first = self._seq + 1
        if records[0].seq != first or records[-1].seq != self._seq + len(records):
            message = f"seq {records[0].seq} was appended where {first} should follow"
            raise RuntimeError(message)
        durable_seq = self._durable_seq
        return b"".join([frame_record(record, durable_seq) for record in records])

    async def _write_forever(self) -> None:
        try:
            while not (self._is_closing and (self._counting_reason or not self._waiting)):
                if self._succession is not None:
                    await self._succeed(self._succession)
                elif self._counting_reason:
                    await self._pause()
                    await self._resume()
                elif self._waiting:
                    await self._write_batch()
                else:
                    self._wake.clear()
                    await self._wake.wait()
        finally:
            for entry in (*self._writing, *self._waiting):
                entry.done.cancel()
            if self._succession is not None:
                self._succession.done.cancel()

    async def _pause(self) -> None:
        try:
            async with timeout(self._limits.retry_s):
                while not self._is_closing and self._succession is None:
                    self._wake.clear()
                    await self._wake.wait()
        except TimeoutError:
            return

    async def _write_batch(self) -> None:
        segment = self._segment
        # ruff: ignore[assert]  the invariant of durable mode
        assert segment is not None, "a durable journal has an open segment"
        good_bytes = segment.file.size_bytes
        is_full = good_bytes >= self._limits.max_segment_bytes
        cut = self._take_cut() if is_full else None
        data = self._take_batch(everything=is_full)
        self._write_began_s = self._clock.monotonic_s()
        try:
            await self._commit(segment, data)
            good_bytes += len(data)
            if cut is not None:
                self._segment = await self._begin_segment(cut)
                segment.file.close()
        except OSError as error:
            self._counting_reason = f"{segment.path.name}: {error}"
        finally:
            self._write_began_s = None
        if self._counting_reason:
            await self._seal(segment, good_bytes)

    def _take_batch(self, *, everything: bool) -> bytes:
        """Move what the next sync carries from waiting to writing, and give its bytes.

        Args:
            everything: The segment ends behind this batch: nothing that the image holds may come
                after it.
        """
        n_entries, n_bytes = 0, 0
        for entry in self._waiting:
            n_bytes += len(entry.data)
            if n_entries and not everything and n_bytes > self._limits.max_batch_bytes:
                break
            n_entries += 1
        self._writing, self._waiting = self._waiting[:n_entries], self._waiting[n_entries:]
        data = b"".join(entry.data for entry in self._writing)
        self._n_waiting_bytes -= len(data)
        return data

    async def _commit(self, segment: _Segment, data: bytes) -> None:
        await run_blocking_in(self._thread, partial(_write_and_sync, segment.file, data))
        self._n_syncs += 1
        self._durable_seq = self._writing[-1].last_seq
        self._settle(self._writing, is_durable=True)
        self._writing = []
        self._tell_progress()

    async def _seal(self, segment: _Segment, good_bytes: int) -> None:
        """Count from now on, and cut the file back to what it durably holds, if it can be."""
        _log.error("the journal counts instead of writing: %s", self._counting_reason)
        if self._segment is not None and self._segment is not segment:
            self._segment.file.close()
        self._segment = None
        self._count(self._writing)
        self._writing = []
        self._count_waiting()
        await run_blocking_in(self._thread, partial(_seal, self._files.disk, segment, good_bytes))

    async def _resume(self) -> None:
        if self._is_closing or self._succession is not None:
            return
        n_unwritten = self._n_unwritten
        cut = self._take_cut()
        # From here on appends wait: they are behind the image and belong to the new segment.
        self._write_began_s = self._clock.monotonic_s()
        try:
            segment = await self._begin_segment(cut)
        except OSError as error:
            self._counting_reason = f"{self._files.directory.name}: {error}"
            self._count_waiting()
            return
        finally:
            self._write_began_s = None
        if self._n_unwritten != n_unwritten:
            # So many came meanwhile that some were counted: they are a gap behind the image.
            segment.file.close()
            return
        self._segment = segment
        self._durable_seq = cut.image.seq
        self._counting_reason = ""
        self._n_unwritten = 0
        _log.warning("the journal writes again, from a snapshot at seq %d on", cut.image.seq)
        self._tell_progress()

    async def _succeed(self, succession: _Succession) -> None:
        """Run a succession; no batch is being written now."""
        before, snapshot = self._segment, succession.snapshot
        self._write_began_s = self._clock.monotonic_s()
        call = partial(self._files.succeed, snapshot, keeps_old=succession.keeps_old)
        try:
            path, file = await run_blocking_in(self._thread, call)
        except OSError as error:
            self._succession = None
            if before is not None and not await run_blocking_in(
                self._thread, self._files.is_in_place
            ):
                self._counting_reason = f"{self._files.directory.name}: {error}"
                self._segment = None
                before.file.close()
                self._count_waiting()
            _settle_with(succession.done, error)
            return
        finally:
            self._write_began_s = None
        if before is not None:
            before.file.close()
        self._segment = _Segment(path=path, file=file)
        self._count_waiting()
        self._counting_reason, self._n_unwritten = "", 0
        self._seq = self._durable_seq = snapshot.seq
        self._chain = snapshot.chain
        self._succession = None
        succession.on_done()
        _settle_with(succession.done, None)

    def _take_cut(self) -> _Cut:
        """Take the state at the end of the log: a new segment can begin behind it."""
        if self._seq == 0:
            nothing = StateImage(term=0, seq=0, at_ms=0, pack=bytes)
            return _Cut(image=nothing, chain=self._chain)
        image = self._image()
        if image.seq != self._seq:
            message = f"the state is at seq {image.seq} and the journal at {self._seq}"
            raise RuntimeError(message)
        return _Cut(image=image, chain=self._chain)

    async def _begin_segment(self, cut: _Cut) -> _Segment:
        return await run_blocking_in(self._thread, partial(_begin_segment, self._files, cut))

    def _count_waiting(self) -> None:
        self._count(self._waiting)
        self._waiting = []
        self._n_waiting_bytes = 0

    def _count(self, entries: Sequence[_Append]) -> None:
        self._n_unwritten += sum(entry.n_records for entry in entries)
        self._settle(entries, is_durable=False)
        self._tell_progress()

    def _tell_progress(self) -> None:
        if self.on_progress is not None:
            self.on_progress()

    def _settle(self, entries: Sequence[_Append], *, is_durable: bool) -> None:
        for entry in entries:
            if not entry.done.done():
                entry.done.set_result(Durability(seq=entry.last_seq, is_durable=is_durable))


def _settle_with(done: "asyncio.Future[None]", error: OSError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _recover(files: JournalFiles, recovery: Recovery) -> tuple[_Segment | None, str]:
    """Read, repair, open; the reason to start counting takes the place of a segment."""
    files.prepare()
    recovery.read()
    try:
        recovery.repair()
        path, file = recovery.open_end()
    except OSError as error:
        _log.exception("the journal cannot be written and starts out counting")
        return None, f"{files.directory.name}: {error}"
    return _Segment(path=path, file=file), ""


def _write_and_sync(file: AppendFile, data: bytes) -> None:
    failpoints.hit("journal.before_write")
    file.write(data)
    failpoints.hit("journal.before_sync")
    file.sync()
    failpoints.hit("journal.after_sync")


def _begin_segment(files: JournalFiles, cut: _Cut) -> _Segment:
    image = cut.image
    if image.seq > 0:
        files.publish_snapshot(
            Snapshot(
                cluster_id=files.cluster_id,
                term=image.term,
                seq=image.seq,
                at_ms=image.at_ms,
                chain=cut.chain,
                state=image.pack(),
            )
        )
    path, file = files.create_segment(first_seq=image.seq + 1, chain=cut.chain)
    files.prune()
    return _Segment(path=path, file=file)


def _seal(disk: Disk, segment: _Segment, good_bytes: int) -> None:
    segment.file.close()
    try:
        disk.truncate(segment.path, good_bytes)
    except OSError:
        # What is cut here was acknowledged to nobody; a start would put it into quarantine.
        _log.warning("cannot cut %s back to %d bytes", segment.path, good_bytes, exc_info=True)
