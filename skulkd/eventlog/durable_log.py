"""Events on disk: folds the journal into a state at start, and makes new events durable.

Stands between the log's roles, which know events and states, and the journal, which knows bytes.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, final

from pydantic import TypeAdapter

from protocol.clock import Clock
from protocol.codec import decode_trusted_values, pack, unpack
from protocol.errors import ClusterError, ConfigError, SkulkError
from protocol.events import EVENT, Event, SequencedEvent
from protocol.ids import ClusterId, CommandId
from protocol.state import STATE_SCHEMA, ClusterState
from skulkd.core.apply import apply, initial_state
from skulkd.eventlog.commit_file import CommitMark, read_commit_mark
from skulkd.eventlog.journal import Journal, JournalHealth, JournalLimits, StateImage
from skulkd.eventlog.journal_recovery import Recovered
from skulkd.eventlog.records import (
    MAX_STATE_BYTES,
    ZERO_CHAIN,
    EncodedRecord,
    JournalRecord,
    Snapshot,
    encode_body,
)
from skulkd.runtime.disk import Disk
from skulkd.runtime.tasks import Tasks

N_REMEMBERED: Final = 4096
"""Of the newest records a start keeps the bytes, for members that lack them."""

_log = logging.getLogger(__name__)

_STATE: Final[TypeAdapter[ClusterState]] = TypeAdapter(ClusterState)


@final
class StateFold:
    """The state that grows while the journal is replayed.

    Args:
        cluster_id: Whose history it is.
        read_mark: Says how far it was known to be committed. Asked once, before anything is folded.
    """

    def __init__(
        self, cluster_id: ClusterId, read_mark: Callable[[], CommitMark | None] | None = None
    ) -> None:
        self.state = initial_state(cluster_id)
        self._read_mark = read_mark
        self._mark: CommitMark | None = None
        self._mark_seq = -1
        """Behind it events are kept apart; -1 where all there is counts as committed."""
        self._committed: ClusterState | None = None
        self._behind: list[tuple[SequencedEvent, ClusterState]] = []
        self._newest: deque[tuple[JournalRecord, bytes]] = deque(maxlen=N_REMEMBERED)
        self._base_chain = ZERO_CHAIN

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Begin with the state of a snapshot."""
        self._begin()
        self.state = unpack_state(snapshot.state)
        self._base_chain = snapshot.chain
        if self._mark is not None and self._mark.seq <= snapshot.seq:
            # What came before a snapshot is not there to begin with.
            self._mark_seq, self._committed = snapshot.seq, self.state

    def on_record(self, record: JournalRecord, chain: bytes) -> None:
        """Fold one record."""
        self._begin()
        # The record's checksum and chain cover these bytes: they are as this journal wrote them.
        event = EVENT.validate_python(decode_trusted_values(record.event))
        sequenced = sequenced_of(record, event)
        self.state = apply(self.state, sequenced)
        newest = self._newest
        if len(newest) == N_REMEMBERED:
            self._base_chain = newest[0][1]
        newest.append((record, chain))
        if 0 <= self._mark_seq <= record.seq:
            self._note(sequenced, chain)

    def result(self) -> "RecoveredLog":
        """Give what there is, with what was not known to be committed apart from the rest."""
        newest = [
            EncodedRecord(record.seq, encode_body(record), chain) for record, chain in self._newest
        ]
        if self._committed is None:
            return RecoveredLog(self.state, (), self._base_chain, newest)
        return RecoveredLog(self._committed, tuple(self._behind), self._base_chain, newest)

    def _begin(self) -> None:
        if self._read_mark is not None:
            self._mark, self._read_mark = self._read_mark(), None
            if self._mark is not None:
                self._mark_seq = self._mark.seq
                if self._mark_seq == 0:
                    self._committed = self.state

    def _note(self, sequenced: SequencedEvent, chain: bytes) -> None:
        if self._committed is not None:
            self._behind.append((sequenced, self.state))
        elif self._mark == CommitMark(sequenced.seq, chain):
            self._committed = self.state
        else:
            # The mark is of another history; what it meant is not known any more.
            self._mark_seq = -1


class RecoveredLog(NamedTuple):
    """What a replay found."""

    committed: ClusterState
    """As far as it was known to be committed."""
    behind: tuple[tuple[SequencedEvent, ClusterState], ...]
    """What follows, each event with the state after it."""
    base_chain: bytes
    """Before the first of `newest`."""
    newest: list[EncodedRecord]
    """The last records of the log, committed or not."""


def sequenced_of(record: JournalRecord, event: Event) -> SequencedEvent:
    """Give a record's event with its place."""
    cause = record.cause
    command_id = None if cause is None else CommandId(cause)
    return SequencedEvent(record.term, record.seq, record.at_ms, command_id, event)


def unpack_state(data: bytes) -> ClusterState:
    """Decode a packed state, and bring an older one up to today's schema.

    Raises:
        ConfigError: `config.downgrade` when a newer build wrote it.
        ProtocolError: `protocol.bad_frame`, `protocol.too_large`.
    """
    state = unpack(_STATE, data, max_bytes=MAX_STATE_BYTES, max_values=None)
    if state.state_schema > STATE_SCHEMA:
        raise ConfigError(
            "config.downgrade",
            f"the saved state has schema {state.state_schema}, this build reads {STATE_SCHEMA}",
            remediation="Run the newer build again, or start with an empty home.",
        )
    return state if state.state_schema == STATE_SCHEMA else _upcast(state)


def _upcast(state: ClusterState) -> ClusterState:
    """Schema 1 knew clusters of one only: all that was ever decided was decided by a majority."""
    return state.model_copy(
        update={
            "state_schema": STATE_SCHEMA,
            "settled_term": state.term,
            "settled_seq": state.seq,
        }
    )


@final
class DurableLog:
    """The journal of this node, in events; made by `open`, ended by `close`."""

    def __init__(self, fold: StateFold) -> None:
        self._appended = fold.state
        self._newest = fold.state
        self._unsent: list[EncodedRecord] = []
        self._journal: Journal | None = None
        self.recovered = fold.result()
        """What the replay found; of use until the log goes on."""

    @classmethod
    async def open(
        cls,
        disk: Disk,
        directory: Path,
        *,
        cluster_id: ClusterId,
        clock: Clock,
        tasks: Tasks,
        limits: JournalLimits | None = None,
    ) -> "tuple[DurableLog, ClusterState, Recovered]":
        """Replay the journal into a state, and open it for new events.

        Raises:
            ClusterError: `cluster.journal_corrupt`.
            ConfigError: `config.downgrade`; `config.home_unusable` when it cannot be read.
        """
        fold = StateFold(cluster_id, partial(read_commit_mark, disk, directory))
        log = cls(fold)
        try:
            log._journal, recovered = await Journal.open(
                disk,
                directory,
                cluster_id=cluster_id,
                image=log._image,
                on_snapshot=fold.on_snapshot,
                on_record=fold.on_record,
                clock=clock,
                tasks=tasks,
                limits=limits,
            )
        except OSError as error:
            raise ConfigError(
                "config.home_unusable",
                f"the journal in {directory} cannot be read: {error}",
                remediation="Make the directory readable for the user that runs skulkd.",
            ) from error
        except SkulkError:
            raise
        except ValueError as error:
            raise ClusterError(
                "cluster.journal_corrupt",
                f"a record in {directory} does not decode: {error}",
                remediation="Move the directory away to start anew; keep it to find out why.",
            ) from error
        log._appended, log.recovered = fold.state, fold.result()
        for lost in recovered.quarantined:
            _log.warning("put %d bytes aside as %s: %s", lost.n_bytes, lost.file, lost.reason)
        if recovered.seq == 0:
            await log.keep_commit_mark(CommitMark(0, ZERO_CHAIN))
        return log, fold.state, recovered

    @property
    def seq(self) -> int:
        """Of the last event that the journal was handed."""
        return self._open_journal().seq

    @property
    def chain(self) -> bytes:
        """After it."""
        return self._open_journal().chain

    @property
    def durable_seq(self) -> int:
        """Of the last event that survives the power."""
        return self._open_journal().durable_seq

    @property
    def is_failing(self) -> bool:
        """Whether the disk has failed, so that what is appended is only counted."""
        return self._open_journal().is_counting

    def on_progress(self, watcher: Callable[[], None]) -> None:
        """Name who is told when more is durable, or the disk begins to fail; the last one named."""
        self._open_journal().on_progress = watcher

    def append(self, records: Sequence[EncodedRecord], state: ClusterState) -> None:
        """Add records to the log; those of one turn of the loop go to the journal together.

        Args:
            records: The next ones.
            state: After the last of them.
        """
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._send)
        self._unsent.extend(records)
        self._newest = state

    async def replace(
        self,
        snapshot: Snapshot,
        state: ClusterState,
        *,
        keeps_old: bool,
        on_done: Callable[[], None],
    ) -> None:
        """Begin anew from a snapshot, durably and at once; see `Journal.replace`.

        Args:
            snapshot: What the journal begins with.
            state: The same, unpacked.
            keeps_old: Put the old history aside rather than remove it.
            on_done: Called on the event loop in the turn in which the log becomes the new one.

        Raises:
            OSError: The old history stands.
        """

        def switch() -> None:
            self._appended = state
            on_done()

        self._unsent.clear()
        await self._open_journal().replace(snapshot, keeps_old=keeps_old, on_done=switch)

    async def keep_commit_mark(self, mark: CommitMark) -> None:
        """Remember how far the log is committed; a disk that fails costs only the hint."""
        try:
            await self._open_journal().keep_commit_mark(mark)
        except OSError as error:
            _log.info("cannot note that the log is committed up to %d: %s", mark.seq, error)

    def health(self) -> JournalHealth:
        """Say how the journal is."""
        return self._open_journal().health()

    async def close(self) -> None:
        """Write what waits and close the files; waits as long as the disk takes."""
        self._send()
        await self._open_journal().close()

    def _send(self) -> None:
        """Hand the journal what was appended in this turn, and the state that includes it."""
        if self._unsent and self._journal is not None and not self._journal.is_closing:
            self._journal.append_encoded(self._unsent)
            self._appended = self._newest
        self._unsent = []

    def _image(self) -> StateImage:
        state = self._appended
        return StateImage(
            term=state.term, seq=state.seq, at_ms=state.at_ms, pack=partial(pack, state)
        )

    def _open_journal(self) -> Journal:
        # ruff: ignore[assert]  `open` is the only way to make a log
        assert self._journal is not None, "the log is open"
        return self._journal
