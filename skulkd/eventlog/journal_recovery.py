"""Reads a journal back after whatever happened to it.

Two cases must never be confused. A *tail* that is torn or rotten held nothing that anybody was
promised, or nothing behind it tells otherwise: it goes to quarantine, and the log ends before it.
*Rot in the middle* would lose acknowledged records in silence: it is refused by name, and the
files stay as they are.

The replay begins with the newest snapshot of which all is known to be committed, so that who reads
along can tell the rest. Where that cannot be had any more, it begins with the newest one.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from protocol.errors import ClusterError
from skulkd.eventlog.journal_files import JournalFiles
from skulkd.eventlog.records import (
    MAX_STATE_BYTES,
    ZERO_CHAIN,
    DamagedError,
    JournalRecord,
    SegmentHeader,
    SegmentScan,
    Snapshot,
    decode_header,
    decode_snapshot,
    has_record_behind,
    later_record_proves,
)
from skulkd.runtime.disk import AppendFile

MAX_SEGMENT_FILE_BYTES: Final = 256 << 20
"""A segment is closed at a small part of this; a longer file is not ours."""

OnSnapshot = Callable[[Snapshot], None]
OnRecord = Callable[[JournalRecord, bytes], None]
"""Called with a record and the chain after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """Bytes that were put aside, and can be looked at there."""

    file: str
    n_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """Where the log ends, and what it took to find out."""

    term: int
    seq: int
    chain: bytes
    snapshot_seq: int
    """Of the snapshot that the replay began with; 0 when there was none."""
    n_records: int
    """Replayed behind the snapshot."""
    n_bytes: int
    """Read in all."""
    quarantined: tuple[Quarantined, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _BadTail:
    path: Path
    good_bytes: int
    """Zero when not even the header holds."""
    tail: bytes
    reason: str


@final
class Recovery:
    """One pass over a journal's files. Blocks.

    Args:
        files: Whose; prepared.
        on_snapshot: Gets the snapshot to begin with, if there is one.
        on_record: Gets each record behind it, in order.
    """

    def __init__(
        self, files: JournalFiles, *, on_snapshot: OnSnapshot, on_record: OnRecord
    ) -> None:
        self._files = files
        self._on_snapshot = on_snapshot
        self._on_record = on_record
        self._term = 0
        self._seq = 0
        self._chain = ZERO_CHAIN
        self._snapshot_seq = 0
        self._n_records = 0
        self._n_bytes = 0
        self._bad_snapshots: list[tuple[Path, str]] = []
        self._bad_tail: _BadTail | None = None
        self._open_end: Path | None = None
        self._quarantined: list[Quarantined] = []

    def read(self) -> None:
        """Replay everything; change nothing on the disk.

        Raises:
            ClusterError: `cluster.journal_corrupt`; acknowledged records are damaged or missing.
            ConfigError: `config.downgrade`; a newer daemon wrote the journal.
        """
        snapshot = self._base()
        if snapshot is not None:
            self._term, self._seq, self._chain = snapshot.term, snapshot.seq, snapshot.chain
            self._on_snapshot(snapshot)
        self._snapshot_seq = self._seq
        segments = self._files.segments()
        # Only segments that hold something behind the snapshot are read: the last one that begins
        # at or before its end, and all later ones.
        starts = [first_seq for first_seq, _ in segments if first_seq <= self._seq + 1]
        wanted = [item for item in segments if item[0] >= max(starts, default=0)]
        for number, (first_seq, path) in enumerate(wanted, start=1):
            self._read_segment(path, first_seq, is_last=number == len(wanted))

    def repair(self) -> None:
        """Put aside what is bad, so that the log ends where `read` found its end.

        Raises:
            OSError: The disk does not allow it; what was read stands all the same.
        """
        for path, reason in self._bad_snapshots:
            n_bytes = self._files.disk.size_bytes(path)
            self._note(self._files.quarantine_file(path), n_bytes, reason)
        self._bad_snapshots.clear()
        bad = self._bad_tail
        if bad is None:
            return
        if bad.good_bytes:
            aside = self._files.quarantine_tail(bad.path, bad.good_bytes, bad.tail)
        else:
            aside = self._files.quarantine_file(bad.path)
        self._note(aside, len(bad.tail), bad.reason)
        self._bad_tail = None

    def open_end(self) -> tuple[Path, AppendFile]:
        """Open the segment that goes on where the log ends; create it where there is none.

        Raises:
            OSError: The disk does not allow it.
        """
        if self._open_end is not None:
            return self._open_end, self._files.disk.open_append(self._open_end)
        return self._files.create_segment(first_seq=self._seq + 1, chain=self._chain)

    def result(self) -> Recovered:
        """Say where the log ends."""
        return Recovered(
            term=self._term,
            seq=self._seq,
            chain=self._chain,
            snapshot_seq=self._snapshot_seq,
            n_records=self._n_records,
            n_bytes=self._n_bytes,
            quarantined=tuple(self._quarantined),
        )

    def _note(self, aside: Path, n_bytes: int, reason: str) -> None:
        self._quarantined.append(Quarantined(file=aside.name, n_bytes=n_bytes, reason=reason))

    def _base(self) -> Snapshot | None:
        newest, mark = self._newest_snapshot(), self._files.read_commit_mark()
        if newest is None or mark is None or newest.seq <= mark.seq:
            return newest
        older = self._newest_snapshot(at_most=mark.seq)
        return older if self._leads_to(newest, 0 if older is None else older.seq) else newest

    def _leads_to(self, snapshot: Snapshot, base_seq: int) -> bool:
        """Say whether segments hold everything from behind `base_seq` up to a later snapshot."""
        segments = [item for item in self._files.segments() if item[0] <= snapshot.seq]
        starts = [first_seq for first_seq, _ in segments if first_seq <= base_seq + 1]
        if not starts:
            return False
        seq, chain = starts[-1] - 1, None
        for _, path in segments[len(starts) - 1 :]:
            data = self._files.disk.read(path, max_bytes=MAX_SEGMENT_FILE_BYTES)
            try:
                header, start = decode_header(data)
            except DamagedError:
                return False
            if header.first_seq != seq + 1 or (chain is not None and header.chain != chain):
                return False
            scan = SegmentScan(data, start, header)
            for record in scan:
                if record.seq == snapshot.seq:
                    return scan.chain == snapshot.chain
            seq, chain = scan.next_seq - 1, scan.chain
        return False

    def _newest_snapshot(self, *, at_most: int | None = None) -> Snapshot | None:
        for seq, path in reversed(self._files.snapshots()):
            if at_most is not None and seq > at_most:
                continue
            try:
                data = self._files.disk.read(path, max_bytes=MAX_STATE_BYTES + 4096)
            except OSError as error:
                if error.errno != errno.EFBIG:
                    raise
                self._bad_snapshots.append((path, "it is longer than any state"))
                continue
            self._n_bytes += len(data)
            try:
                snapshot = decode_snapshot(data)
            except DamagedError as error:
                self._bad_snapshots.append((path, str(error)))
                continue
            self._require_cluster(path, snapshot.cluster_id)
            if snapshot.seq != seq:
                raise self._corrupt(path, f"it holds seq {snapshot.seq}")
            return snapshot
        return None

    def _read_segment(self, path: Path, first_seq: int, *, is_last: bool) -> None:
        data = self._files.disk.read(path, max_bytes=MAX_SEGMENT_FILE_BYTES)
        self._n_bytes += len(data)
        if is_last and not data:
            return
        try:
            header, start = decode_header(data)
        except DamagedError as error:
            if not is_last or has_record_behind(data, 0):
                raise self._corrupt(path, f"{error}, and good records follow") from error
            self._bad_tail = _BadTail(path=path, good_bytes=0, tail=data, reason=str(error))
            return
        self._require_link(path, header, first_seq)
        scan = SegmentScan(data, start, header)
        for record in scan:
            if record.seq > self._seq:
                self._seq, self._term = record.seq, record.term
                self._n_records += 1
                self._on_record(record, scan.chain)
        if scan.next_seq == self._seq + 1:
            self._chain = scan.chain
        if scan.fault is not None:
            self._meet_fault(path, data, scan, is_last=is_last)
        if is_last and scan.next_seq == self._seq + 1:
            self._open_end = path

    def _meet_fault(self, path: Path, data: bytes, scan: SegmentScan, *, is_last: bool) -> None:
        where = f"at byte {scan.end} of {len(data)}, seq {scan.next_seq}, {scan.fault}"
        if not is_last:
            raise self._corrupt(path, f"{where}, and a later segment exists")
        if later_record_proves(data, scan.end, scan.next_seq):
            raise self._corrupt(path, f"{where}, and later records show it was durable")
        self._bad_tail = _BadTail(
            path=path, good_bytes=scan.end, tail=data[scan.end :], reason=where
        )

    def _require_link(self, path: Path, header: SegmentHeader, first_seq: int) -> None:
        self._require_cluster(path, header.cluster_id)
        if header.first_seq != first_seq:
            raise self._corrupt(path, f"its header says it begins at seq {header.first_seq}")
        if first_seq > self._seq + 1:
            raise self._corrupt(path, f"records {self._seq + 1} to {first_seq - 1} are missing")
        if first_seq == self._seq + 1 and header.chain != self._chain:
            raise self._corrupt(path, "it does not continue the history before it")

    def _require_cluster(self, path: Path, cluster_id: str) -> None:
        if cluster_id != self._files.cluster_id:
            raise self._corrupt(
                path, f"it belongs to cluster {cluster_id}, not to {self._files.cluster_id}"
            )

    def _corrupt(self, path: Path, reason: str) -> ClusterError:
        directory = self._files.directory
        return ClusterError(
            "cluster.journal_corrupt",
            f"the journal file {path} is damaged: {reason}",
            remediation=(
                f"Nothing was changed. Restore {directory} from a copy, or move it away "
                f"(mv {directory} {directory}.damaged) to start with an empty history."
            ),
            details={"file": str(path)},
        )
