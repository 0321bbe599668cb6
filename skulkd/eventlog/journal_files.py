"""Where the journal's files lie, and the durable steps that create, cut and remove them.

A segment after the first begins behind a snapshot of everything before it, so a start reads one
snapshot and one segment. The one before is kept too, in case the snapshot rots.
"""

import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, final

from protocol.ids import ClusterId
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

    def prepare(self) -> None:
        """Make the directory, and clear away what a crash left half written."""
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
        old = [path for first_seq, path in segments if first_seq <= base_seq]
        return old + [path for seq, path in self.snapshots() if seq < base_seq]

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
