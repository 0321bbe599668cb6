"""Where the journal's files lie, and the durable steps that create, cut and remove them.

A segment after the first begins behind a snapshot of everything before it, so a start reads one
snapshot and one segment. The one before is kept too, in case the snapshot rots; and as long as a
snapshot holds more than is known to be committed, so is all that a start needs to begin before it.
"""

import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, final

from protocol.ids import ClusterId
from skulkd.eventlog.commit_file import CommitMark, read_commit_mark, write_commit_mark
from skulkd.eventlog.journal_archive import (
    finish_succession,
    put_aside,
    remove_tree,
    successor_of,
)
from skulkd.eventlog.records import SegmentHeader, Snapshot, encode_header, encode_snapshot
from skulkd.runtime import failpoints
from skulkd.runtime.disk import TEMPORARY_SUFFIX, AppendFile, Disk

_log = logging.getLogger(__name__)

N_SEGMENTS_KEPT: Final = 2

_SEGMENT_NAME: Final = re.compile(r"segment-(\d{20})\.log")
_SNAPSHOT_NAME: Final = re.compile(r"snapshot-(\d{20})\.msgpack")


@final
class JournalFiles:
    """The directory of one journal. Every call blocks and may raise `OSError`.

    Args:
        disk: Where it lies.
        directory: Whose files are the journal's alone.
        cluster_id: Stands in every file.
    """

    def __init__(self, disk: Disk, directory: Path, cluster_id: ClusterId) -> None:
        self.disk = disk
        self.directory = directory
        self.cluster_id = cluster_id
        self._marked_seq: int | None = None
        """How far the log is known to be committed; None where that is not kept."""

    def prepare(self) -> None:
        """Make the directory, and finish or clear away what a crash left half done."""
        finish_succession(self.disk, self.directory)
        self.disk.make_private_directory(self.directory)
        for name in self.disk.list(self.directory):
            if name.endswith(TEMPORARY_SUFFIX):
                self.disk.remove(self.directory / name)

    def segments(self) -> tuple[tuple[int, Path], ...]:
        """List the segments with the seq that each begins with, oldest first."""
        return self._numbered(_SEGMENT_NAME)

    def snapshots(self) -> tuple[tuple[int, Path], ...]:
        """List the snapshots with the seq that each reaches, oldest first."""
        return self._numbered(_SNAPSHOT_NAME)

    def read_commit_mark(self) -> CommitMark | None:
        """Give how far the log was known to be committed."""
        mark = read_commit_mark(self.disk, self.directory)
        self._marked_seq = None if mark is None else mark.seq
        return mark

    def keep_commit_mark(self, mark: CommitMark) -> None:
        """Remember how far the log is committed, durably."""
        write_commit_mark(self.disk, self.directory, mark)
        self._marked_seq = mark.seq

    def _numbered(self, pattern: re.Pattern[str]) -> tuple[tuple[int, Path], ...]:
        names = self.disk.list(self.directory)
        matches = [match for match in map(pattern.fullmatch, names) if match is not None]
        return tuple(sorted((int(match[1]), self.directory / match[0]) for match in matches))

    def publish_snapshot(self, snapshot: Snapshot) -> None:
        """Put a snapshot in place, durably and at once."""
        failpoints.hit("journal.before_snapshot")
        path = self.directory / f"snapshot-{snapshot.seq:020d}.msgpack"
        self.disk.replace(path, encode_snapshot(snapshot))
        failpoints.hit("journal.after_snapshot")

    def create_segment(self, *, first_seq: int, chain: bytes) -> tuple[Path, AppendFile]:
        """Create the segment that goes on at `first_seq`, with its header durable."""
        failpoints.hit("journal.before_segment")
        path = self.directory / f"segment-{first_seq:020d}.log"
        header = encode_header(
            SegmentHeader(cluster_id=self.cluster_id, first_seq=first_seq, chain=chain)
        )
        if (first_seq, path) in self.segments() and self.disk.size_bytes(path) > len(header):
            # Left by a start that could not put a bad tail aside: nothing in it was acknowledged.
            self.quarantine_file(path)
        self.disk.replace(path, header)
        failpoints.hit("journal.after_segment")
        return path, self.disk.open_append(path)

    def succeed(self, snapshot: Snapshot, *, keeps_old: bool) -> tuple[Path, AppendFile]:
        """Put a history that begins with `snapshot` in this one's place, at once and durably.

        Args:
            snapshot: Of the same cluster.
            keeps_old: The old one is put aside; False removes it.

        Raises:
            OSError: The old history is in its place, unless the directory is missing: then the
                next start finds the new one.
        """
        successor = JournalFiles(self.disk, successor_of(self.directory), self.cluster_id)
        remove_tree(self.disk, successor.directory)
        self.disk.make_private_directory(successor.directory)
        successor.publish_snapshot(snapshot)
        path, file = successor.create_segment(first_seq=snapshot.seq + 1, chain=snapshot.chain)
        file.close()
        # Not everything behind the snapshot is committed because no file says otherwise.
        mark = CommitMark(snapshot.seq, snapshot.chain)
        successor.keep_commit_mark(mark)
        failpoints.hit("journal.before_archive")
        aside = put_aside(self.disk, self.directory)
        try:
            failpoints.hit("journal.after_archive")
            self.disk.rename(successor.directory, self.directory)
        except OSError:
            self.disk.rename(aside, self.directory)
            raise
        failpoints.hit("journal.after_succession")
        self._marked_seq = mark.seq
        if not keeps_old:
            remove_tree(self.disk, aside)
        path = self.directory / path.name
        return path, self.disk.open_append(path)

    def is_in_place(self) -> bool:
        """Say whether the directory has its name; false after a succession that went half way.

        A disk that cannot even tell is no place either; it raises nothing.
        """
        try:
            self.disk.list(self.directory)
        except OSError:
            return False
        return True

    def prune(self) -> None:
        """Remove what the kept segments do not need; a failure costs space only."""
        try:
            for path in self._unneeded():
                failpoints.hit("journal.before_prune")
                self.disk.remove(path)
        except OSError:
            _log.warning("cannot remove old files of %s", self.directory, exc_info=True)

    def _unneeded(self) -> list[Path]:
        segments = self.segments()
        base_seq = segments[-N_SEGMENTS_KEPT:][0][0] - 1
        snapshots = self.snapshots()
        if self._marked_seq is not None:
            committed = [seq for seq, _ in snapshots if seq <= self._marked_seq]
            base_seq = min(base_seq, committed[-1] if committed else 0)
        old = [path for first_seq, path in segments if first_seq <= base_seq]
        return old + [path for seq, path in snapshots if seq < base_seq]

    def quarantine_tail(self, path: Path, good_bytes: int, tail: bytes) -> Path:
        """Copy a segment's bad tail aside, then cut it off."""
        aside = self._quarantine_name(path)
        self.disk.replace(aside, tail)
        failpoints.hit("journal.before_truncate")
        self.disk.truncate(path, good_bytes)
        return aside

    def quarantine_file(self, path: Path) -> Path:
        """Move a whole file aside."""
        aside = self._quarantine_name(path)
        self.disk.rename(path, aside)
        return aside

    def _quarantine_name(self, path: Path) -> Path:
        taken: Iterable[str] = self.disk.list(self.directory)
        number = sum(name.startswith(f"{path.name}.quarantine-") for name in taken) + 1
        return path.with_name(f"{path.name}.quarantine-{number}")
