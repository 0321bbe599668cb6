"""A log whose state is the list of its events, and a journal that keeps it."""

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from protocol.clock import Clock
from protocol.codec import decode_trusted_values, encode_values
from protocol.ids import ClusterId, cluster_id_of
from skulkd.eventlog.journal import Journal, JournalLimits, StateImage
from skulkd.eventlog.journal_recovery import Recovered
from skulkd.eventlog.records import JournalRecord, Snapshot
from skulkd.runtime.disk import Disk
from skulkd.runtime.tasks import Tasks

DIRECTORY = Path("/home/journal")
CLUSTER: ClusterId = cluster_id_of(b"a cluster of tests")


def event_of(seq: int) -> bytes:
    """The event that every test writes at `seq`; its length varies."""
    return struct.pack("<Q", seq) * (1 + seq % 5)


def record_of(seq: int) -> JournalRecord:
    cause = None if seq % 3 == 0 else f"abcdef-{seq:020d}"
    return JournalRecord(
        term=1 + seq // 50, seq=seq, at_ms=1000 + seq, cause=cause, event=event_of(seq)
    )


@dataclass
class Log:
    """What was appended or recovered; its image is the whole list."""

    events: list[bytes] = field(default_factory=list[bytes])
    recovered: Recovered | None = None

    @property
    def seq(self) -> int:
        return len(self.events)

    def image(self) -> StateImage:
        events = tuple(self.events)
        return StateImage(
            term=1 + self.seq // 50,
            seq=self.seq,
            at_ms=1000 + self.seq,
            pack=lambda: encode_values(events),
        )

    def on_snapshot(self, snapshot: Snapshot) -> None:
        assert self.events == []
        self.events = list(cast("tuple[bytes, ...]", decode_trusted_values(snapshot.state)))
        assert self.seq == snapshot.seq

    def on_record(self, record: JournalRecord, chain: bytes) -> None:
        del chain
        assert record.seq == self.seq + 1, "records come without a gap"
        assert record == record_of(record.seq), "a record comes back as it was written"
        self.events.append(record.event)

    async def open(
        self,
        disk: Disk,
        clock: Clock,
        tasks: Tasks,
        *,
        directory: Path = DIRECTORY,
        limits: JournalLimits | None = None,
    ) -> Journal:
        journal, self.recovered = await Journal.open(
            disk,
            directory,
            cluster_id=CLUSTER,
            image=self.image,
            on_snapshot=self.on_snapshot,
            on_record=self.on_record,
            clock=clock,
            tasks=tasks,
            limits=limits,
        )
        assert journal.seq == self.seq
        return journal

    def next_records(self, n_records: int) -> list[JournalRecord]:
        """Take the next records into the state; append them in the same turn."""
        records = [record_of(self.seq + 1 + n) for n in range(n_records)]
        self.events += [record.event for record in records]
        return records

    def holds_exactly(self, n_events: int) -> bool:
        return self.events == [event_of(seq) for seq in range(1, n_events + 1)]
