"""The end of this node's log: what is appended, what of it is durable, and what is committed.

Master and member work on the same tail, one after the other. The master decides on `appended`; both
append to it, and both let the replica follow as far as the log is committed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import final

from protocol.peer_messages import LogPosition
from protocol.state import ClusterState
from skulkd.eventlog.commit_file import CommitMark
from skulkd.eventlog.durable_log import DurableLog
from skulkd.eventlog.recent_records import RecentRecords
from skulkd.eventlog.records import EncodedRecord, Snapshot
from skulkd.eventlog.replica import Placed, Replica

_log = logging.getLogger(__name__)


@final
class LogTail:
    """See the module.

    Args:
        log: The journal, as it was opened: nothing appended since.
        appended: The state after its last event.
        replica: At the state that `log.recovered.committed` says.
    """

    def __init__(self, log: DurableLog, appended: ClusterState, replica: Replica) -> None:
        self._log = log
        self.replica = replica
        self.appended = appended
        """The state after the last appended event."""
        recovered = log.recovered
        first_seq = recovered.newest[0].seq if recovered.newest else log.seq + 1
        self.recent = RecentRecords(first_seq - 1, recovered.base_chain)
        self.recent.extend(recovered.newest)
        self._pending: deque[Placed] = deque(recovered.behind)
        """Appended and not committed, as far as it is behind `_held` or the replica."""
        self._held: ClusterState | None = None
        """A snapshot that is newer than what is known to be committed."""
        self.commit_seq = replica.state.seq
        """The last event that is known to be committed."""
        self.durable = (_position(appended), log.chain)
        """Where the durable part of the log ends, and the chain there."""
        self._undurable: deque[tuple[ClusterState, bytes]] = deque()
        """The state after each append that is not durable, and the chain there."""
        self._watchers: list[Callable[[], None]] = []
        self._on_durable: Callable[[], None] | None = None
        self._switched: asyncio.Event | None = None
        log.on_progress(self._on_progress)

    @property
    def seq(self) -> int:
        """Of the last appended event."""
        return self.recent.seq

    @property
    def chain(self) -> bytes:
        """After it."""
        return self.recent.chain

    @property
    def durable_seq(self) -> int:
        """Of the last event that survives the power."""
        return self.durable[0].seq

    @property
    def is_failing(self) -> bool:
        """Whether the disk fails, so that what is appended is not getting durable."""
        return self._log.is_failing

    @property
    def is_switching(self) -> bool:
        """Whether the log is being replaced by a snapshot: nothing may be appended now."""
        return self._switched is not None

    @property
    def is_behind_snapshot(self) -> bool:
        """Whether the replica still shows what was there before a snapshot took its place."""
        return self._held is not None

    @property
    def commit_mark(self) -> CommitMark | None:
        """How far the log is committed, with the chain there; None where that is not kept."""
        seq = min(self.commit_seq, self.seq)
        chain = self.recent.chain_at(seq)
        return None if chain is None else CommitMark(seq, chain)

    def on_change(self, watcher: Callable[[], None]) -> None:
        """Add one who is told, in the same turn, when members or settings of `appended` change."""
        self._watchers.append(watcher)

    def on_durable(self, watcher: Callable[[], None]) -> None:
        """Name who is told when more is durable or the disk begins to fail; the last one named."""
        self._on_durable = watcher

    def append(self, records: Sequence[EncodedRecord], placed: Sequence[Placed]) -> None:
        """Add the next records to the log.

        Args:
            records: At least one.
            placed: The same events.
        """
        # ruff: ignore[assert]  both roles look before they append
        assert self._switched is None, "a log that is being replaced does not grow"
        before, self.appended = self.appended, placed[-1][1]
        self._log.append(records, self.appended)
        self.recent.extend(records)
        self._pending.extend(placed)
        self._undurable.append((self.appended, records[-1].chain))
        self._tell_change(before)

    def commit(self, seq: int) -> bool:
        """Let the replica follow up to `seq`, at most to the end of the log.

        Returns:
            Whether more is committed than before.
        """
        seq = min(seq, self.seq)
        if seq <= self.commit_seq:
            return False
        self.commit_seq = seq
        if self._held is not None:
            if self._held.seq > seq:
                return True
            held, self._held = self._held, None
            self.replica.reset(held)
        pending = self._pending
        # They follow each other without a gap, so that their number tells how many there are.
        n_committed = min(len(pending), seq + 1 - pending[0][0].seq) if pending else 0
        if n_committed > 0:
            self.replica.advance([pending.popleft() for _ in range(n_committed)])
        return True

    async def replace(self, snapshot: Snapshot, state: ClusterState) -> None:
        """Give this log up for one that begins with a snapshot of the master's.

        The replica keeps its state until the snapshot's is known to be committed.

        Args:
            snapshot: Of the same cluster.
            state: The same, unpacked.

        Raises:
            OSError: The log is as it was.
        """
        # ruff: ignore[assert]  one member's catching up at a time
        assert self._switched is None, "the log is being replaced already"
        self._switched = asyncio.Event()
        try:
            await self._log.replace(
                snapshot,
                state,
                keeps_old=self.seq > 0,
                on_done=lambda: self._switch(snapshot, state),
            )
        finally:
            self._switched.set()
            self._switched = None

    async def wait_switched(self) -> None:
        """Wait while the log is being replaced."""
        while self._switched is not None:
            await self._switched.wait()

    async def keep_commit_mark(self) -> None:
        """Remember on the disk how far the log is committed."""
        mark = self.commit_mark
        if mark is not None and self._switched is None:
            await self._log.keep_commit_mark(mark)

    def _switch(self, snapshot: Snapshot, state: ClusterState) -> None:
        before, self.appended = self.appended, state
        self.recent.reset(snapshot.seq, snapshot.chain)
        self._pending.clear()
        self._undurable.clear()
        self._held = state
        self.durable = (_position(state), snapshot.chain)
        self.commit_seq = min(self.commit_seq, state.seq - 1)
        _log.info("the log goes on from a snapshot of the master's at seq %d", state.seq)
        self._tell_change(before)

    def _on_progress(self) -> None:
        durable_seq, undurable = self._log.durable_seq, self._undurable
        newest: tuple[ClusterState, bytes] | None = None
        while undurable and undurable[0][0].seq <= durable_seq:
            newest = undurable.popleft()
        if newest is not None:
            self.durable = _position(newest[0]), newest[1]
        if self._on_durable is not None:
            self._on_durable()

    def _tell_change(self, before: ClusterState) -> None:
        after = self.appended
        if before.members is not after.members or before.settings is not after.settings:
            for watcher in self._watchers:
                watcher()


def _position(state: ClusterState) -> LogPosition:
    return LogPosition(state.settled_term, state.settled_seq, state.term, state.seq)
