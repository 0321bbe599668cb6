"""Events on disk: folds the journal into a state at start, and makes new events durable.

Stands between the sequencer, which knows events and states, and the journal, which knows bytes.
"""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, final

from pydantic import TypeAdapter

from protocol.clock import Clock
from protocol.codec import decode_trusted_values, pack, unpack
from protocol.errors import ClusterError, ConfigError, SkulkError
from protocol.events import EVENT, SequencedEvent
from protocol.ids import ClusterId, CommandId
from protocol.state import STATE_SCHEMA, ClusterState
from skulkd.core.apply import apply, initial_state
from skulkd.eventlog.journal import Journal, JournalHealth, JournalLimits, StateImage
from skulkd.eventlog.journal_recovery import Recovered
from skulkd.eventlog.records import MAX_STATE_BYTES, JournalRecord, Snapshot
from skulkd.eventlog.sequencer import Durability
from skulkd.runtime.disk import Disk
from skulkd.runtime.tasks import Tasks

_log = logging.getLogger(__name__)

_STATE: Final[TypeAdapter[ClusterState]] = TypeAdapter(ClusterState)


@final
class StateFold:
    """The state that grows while the journal is replayed."""

    def __init__(self, cluster_id: ClusterId) -> None:
        self.state = initial_state(cluster_id)

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Begin with the state of a snapshot."""
        self.state = unpack_state(snapshot.state)

    def on_record(self, record: JournalRecord, chain: bytes) -> None:
        """Fold one record."""
        del chain
        # The record's checksum and chain cover these bytes: they are as this journal wrote them.
        event = EVENT.validate_python(decode_trusted_values(record.event))
        sequenced = SequencedEvent(
            term=record.term,
            seq=record.seq,
            at_ms=record.at_ms,
            command_id=None if record.cause is None else CommandId(record.cause),
            event=event,
        )
        self.state = apply(self.state, sequenced)


def unpack_state(data: bytes) -> ClusterState:
    """Decode a packed state.

    Raises:
        ConfigError: `config.downgrade` when a newer build wrote it.
        ProtocolError: `protocol.bad_frame`, `protocol.too_large`.
    """
    state = unpack(_STATE, data, max_bytes=MAX_STATE_BYTES)
    if state.state_schema > STATE_SCHEMA:
        raise ConfigError(
            "config.downgrade",
            f"the saved state has schema {state.state_schema}, this build reads {STATE_SCHEMA}",
            remediation="Run the newer build again, or start with an empty home.",
        )
    return state


@final
class DurableLog:
    """The journal of this node, in events; made by `open`, ended by `close`."""

    def __init__(self, fold: StateFold) -> None:
        self._appended = fold.state
        self._journal: Journal | None = None

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
        fold = StateFold(cluster_id)
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
        log._appended = fold.state
        for lost in recovered.quarantined:
            _log.warning("put %d bytes aside as %s: %s", lost.n_bytes, lost.file, lost.reason)
        return log, fold.state, recovered

    async def commit(self, events: Sequence[tuple[SequencedEvent, ClusterState]]) -> Durability:
        """Make events durable, in order; `memory` while the disk fails."""
        records = [_record(sequenced) for sequenced, _ in events]
        self._appended = events[-1][1]
        durability = await self._open_journal().append(records)
        return "local" if durability.is_durable else "memory"

    def health(self) -> JournalHealth:
        """Say how the journal is."""
        return self._open_journal().health()

    async def close(self) -> None:
        """Write what waits and close the files; waits as long as the disk takes."""
        await self._open_journal().close()

    def _image(self) -> StateImage:
        state = self._appended
        return StateImage(
            term=state.term, seq=state.seq, at_ms=state.at_ms, pack=partial(pack, state)
        )

    def _open_journal(self) -> Journal:
        # ruff: ignore[assert]  `open` is the only way to make a log
        assert self._journal is not None, "the log is open"
        return self._journal


def _record(sequenced: SequencedEvent) -> JournalRecord:
    return JournalRecord(
        term=sequenced.term,
        seq=sequenced.seq,
        at_ms=sequenced.at_ms,
        cause=sequenced.command_id,
        event=pack(sequenced.event),
    )
