"""The member's side, for one term: takes its master's events, and notices when the logs differ.

Every batch says where it continues. What this log has already is compared and skipped, what it
lacks is appended, and anything else starts catching up: what follows is asked for, and where the
logs do not agree, or the master keeps the missing events no more, its snapshot takes their place.
What arrives meanwhile waits, within bounds.

Invariant: `_agreed_seq` is a position up to which this log is known to be the master's. Only that
much is ever said to be durable, or taken as committed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from pydantic import ValidationError

from protocol.codec import decode_values
from protocol.errors import ClusterError, ProtocolError, SkulkError
from protocol.events import EVENT, Event
from protocol.peer_messages import (
    EventBatch,
    EventRange,
    FetchEvents,
    Journalled,
    TermPair,
    pack_frame,
)
from protocol.state import ClusterState
from skulkd.cluster.calls import PeerCalls
from skulkd.cluster.transport import Transport
from skulkd.core.apply import apply
from skulkd.eventlog.divergence import DivergenceReport
from skulkd.eventlog.durable_log import sequenced_of
from skulkd.eventlog.log_tail import LogTail
from skulkd.eventlog.records import EncodedRecord, Snapshot, chain_after, decode_body
from skulkd.eventlog.replica import Placed
from skulkd.eventlog.snapshots import fetch_snapshot
from skulkd.runtime.tasks import Tasks, sleep

MAX_BUFFERED_BYTES: Final = 4 << 20
"""Of batches that arrive while this node catches up; beyond it they are dropped and fetched."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowingLimits:
    """How a member waits; the defaults are for use, others are for tests."""

    fetch_s: float = 3.0
    """For one answer of the master."""
    grace_s: float = 0.3
    """A heartbeat may overtake the events that it speaks of by so much."""
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0
    """Between tries to catch up; doubled each time."""


@final
class FollowingTerm:
    """One term of another node; made by `ClusterLog.follow`.

    Args:
        term: Whose events are taken.
        tail: This node's log.
        calls: Asks the master.
        transport: Tells the master what is durable here.
        report: Gets divergences.
        tasks: Owns what waits and catches up.
        limits: How long is waited.
    """

    def __init__(
        self,
        *,
        term: TermPair,
        tail: LogTail,
        calls: PeerCalls,
        transport: Transport,
        report: DivergenceReport,
        tasks: Tasks,
        limits: FollowingLimits,
    ) -> None:
        self._term = term
        self._tail = tail
        self._calls = calls
        self._transport = transport
        self._report = report
        self._tasks = tasks
        self._limits = limits
        self._agreed_seq = 0
        self._heard_commit_seq = 0
        self._said_seq = 0
        self._needs_snapshot = False
        self._catching_up: asyncio.Task[None] | None = None
        self._buffer: deque[tuple[EventBatch, int]] = deque()
        self._n_buffered_bytes = 0
        self._look: asyncio.Task[None] | None = None
        """Looks again, a moment later, for events that a heartbeat spoke of."""
        self._is_ended = False
        self.n_garbage = 0
        """Batches whose records do not decode."""
        if tail.is_switching:
            self._catch_up()

    @property
    def term(self) -> TermPair:
        """The term."""
        return self._term

    @property
    def is_catching_up(self) -> bool:
        """Whether this log is known to lack events, or to differ."""
        return self._catching_up is not None

    def on_batch(self, batch: EventBatch, n_bytes: int) -> None:
        """Take a batch of this term's master."""
        if self._catching_up is not None:
            self._keep(batch, n_bytes)
        elif not self._take(batch):
            self._keep(batch, n_bytes)
            self._catch_up()

    def hear_commit(self, commit_seq: int, head_seq: int, chain: bytes) -> None:
        """Take what the master's heartbeat says of its log."""
        if self._catching_up is not None:
            return
        tail = self._tail
        if head_seq > tail.seq:
            if self._look is None:
                self._look = self._tasks.start(self._look_again(head_seq), name="look again")
        else:
            own = tail.recent.chain_at(head_seq)
            if own is not None and own != chain:
                self._catch_up()
                return
            if own is not None:
                self._agree(head_seq)
        self._commit(commit_seq)

    def on_durable(self) -> None:
        """Tell the master how far this log is durable, if that is more than it knows."""
        seq = min(self._tail.durable_seq, self._agreed_seq)
        if seq > self._said_seq and not self._is_ended:
            payload = pack_frame(Journalled(self._term.number, seq))
            master = self._term.master
            if self._transport.send(master, "control", payload, key="journalled") is None:
                self._said_seq = seq

    def has_masters_state(self, seq: int) -> bool:
        """Say whether what the replica shows after `seq` comes from the master's own events."""
        is_whole = self._catching_up is None and not self._tail.is_behind_snapshot
        return is_whole and seq <= self._agreed_seq

    def begin_anew(self) -> None:
        """Give this log up for the master's snapshot."""
        self._needs_snapshot = True
        self._catch_up()

    def end(self) -> None:
        """Take nothing more. A snapshot that is taking the log's place goes on."""
        self._is_ended = True
        self._buffer.clear()
        if self._look is not None:
            self._look.cancel()
        if self._catching_up is not None:
            self._catching_up.cancel()

    # ---- Taking events ----

    def _take(self, batch: EventBatch) -> bool:
        """Compare and append; False when this log must catch up first."""
        tail = self._tail
        if tail.is_switching or tail.recent.chain_at(batch.prev_seq) != batch.prev_chain:
            # An old batch that was sent twice may begin before what is kept.
            return batch.prev_seq + len(batch.records) < min(tail.recent.base_seq, self._agreed_seq)
        chain, seq = batch.prev_chain, batch.prev_seq
        fresh: list[EncodedRecord] = []
        for body in batch.records:
            seq += 1
            chain = chain_after(chain, body)
            if seq > tail.seq:
                fresh.append(EncodedRecord(seq, body, chain))
            elif tail.recent.chain_at(seq) != chain:
                return False
        if fresh:
            try:
                placed = self._decode(fresh)
            except ProtocolError as error:
                self._count_garbage(error)
                return True
            tail.append(fresh, placed)
        self._agree(seq)
        self._commit(batch.commit_seq)
        return True

    def _decode(self, records: Sequence[EncodedRecord]) -> list[Placed]:
        """Decode records, each once, and fold them.

        Raises:
            ProtocolError: `protocol.bad_frame`, `protocol.too_large`.
        """
        state = self._tail.appended
        placed: list[Placed] = []
        for encoded in records:
            record = decode_body(encoded.body)
            if record.seq != encoded.seq or not state.term <= record.term <= self._term.number:
                raise _bad_record(encoded.seq, f"it says term {record.term}, seq {record.seq}")
            try:
                event: Event = EVENT.validator.validate_python(decode_values(record.event))
            except ValidationError as error:
                raise _bad_record(encoded.seq, str(error)[:300]) from error
            sequenced = sequenced_of(record, event)
            state = apply(state, sequenced)
            placed.append((sequenced, state))
        return placed

    def _agree(self, seq: int) -> None:
        if seq > self._agreed_seq:
            self._agreed_seq = seq
            self.on_durable()

    def _commit(self, commit_seq: int) -> None:
        self._heard_commit_seq = max(self._heard_commit_seq, commit_seq)
        self._tail.commit(min(self._heard_commit_seq, self._agreed_seq))

    def _keep(self, batch: EventBatch, n_bytes: int) -> None:
        self._buffer.append((batch, n_bytes))
        self._n_buffered_bytes += n_bytes
        while self._n_buffered_bytes > MAX_BUFFERED_BYTES:
            self._n_buffered_bytes -= self._buffer.popleft()[1]

    async def _look_again(self, head_seq: int) -> None:
        await sleep(self._limits.grace_s)
        self._look = None
        if self._tail.seq < head_seq and self._catching_up is None:
            self._catch_up()

    def _count_garbage(self, error: ProtocolError) -> None:
        self.n_garbage += 1
        if self.n_garbage == 1:
            _log.error("dropped events of the master %s: %s", self._term.master, error.message)

    # ---- Catching up ----

    def _catch_up(self) -> None:
        if self._catching_up is None and not self._is_ended:
            self._catching_up = self._tasks.start(self._run(), name="catch up")

    async def _run(self) -> None:
        pause_s = self._limits.first_pause_s
        while True:
            try:
                await self._tail.wait_switched()
                is_done = await self._fetch()
            except SkulkError as error:
                _log.info("catching up with %s waits: %s", self._term.master, error.message)
                is_done = None
            if is_done and not self._needs_snapshot and self._drain():
                break
            if is_done is None:
                await sleep(pause_s)
                pause_s = min(2 * pause_s, self._limits.longest_pause_s)
            else:
                pause_s = self._limits.first_pause_s
        self._catching_up = None

    def _drain(self) -> bool:
        """Take what has waited; False when something is still missing before the last of it."""
        waited, self._buffer = self._buffer, deque()
        self._n_buffered_bytes = 0
        is_whole = True
        for batch, _ in waited:
            is_whole = self._take(batch)
        return is_whole

    async def _fetch(self) -> bool:
        """Ask once for what follows; True when that is all there is.

        Raises:
            SkulkError: The master could not be asked, refused, or this disk failed.
        """
        if self._needs_snapshot:
            await self._begin_anew()
        tail = self._tail
        before = tail.seq
        answer = await self._ask(before, tail.chain)
        if answer.outcome != "events":
            if answer.outcome == "diverged":
                await self._report_divergence()
            self._needs_snapshot = True
            return False
        batch = EventBatch(
            number=answer.number,
            master=self._term.master,
            prev_seq=before,
            prev_chain=tail.chain,
            commit_seq=answer.commit_seq,
            records=answer.records,
        )
        is_owed = bool(answer.records) or before < answer.head_seq
        if not self._take(batch) or (is_owed and tail.seq == before):
            raise _bad_record(before + 1, "the range that the master sent cannot be taken")
        return tail.seq >= answer.head_seq

    async def _ask(self, seq: int, chain: bytes) -> EventRange:
        number = self._term.number
        request = FetchEvents(number=number, after_seq=seq, after_chain=chain)
        answer = await self._calls.ask(self._term.master, request, timeout_s=self._limits.fetch_s)
        if not isinstance(answer, EventRange) or answer.number != number:
            raise _bad_record(seq + 1, "the answer is no range of this term")
        return answer

    async def _report_divergence(self) -> None:
        """Find the last position at which both logs agree, looking back twice as far each time."""
        tail, back = self._tail, 1
        agreed_seq = tail.recent.base_seq
        while tail.seq - back > tail.recent.base_seq:
            seq = tail.seq - back
            chain = tail.recent.chain_at(seq)
            if chain is None:
                break
            answer = await self._ask(seq, chain)
            if answer.outcome == "events":
                agreed_seq = self._agreed_within(seq, chain, answer.records)
                break
            back *= 2
        self._report.logs_differ(
            term=self._term.number, seq=agreed_seq, n_discarded=tail.seq - agreed_seq
        )

    def _agreed_within(self, seq: int, chain: bytes, bodies: Sequence[bytes]) -> int:
        for body in bodies:
            chain = chain_after(chain, body)
            if self._tail.recent.chain_at(seq + 1) != chain:
                break
            seq += 1
        return seq

    async def _begin_anew(self) -> None:
        """Put the master's snapshot in this log's place.

        Raises:
            SkulkError: It could not be fetched; `cluster.not_durable`, this disk does not take it.
        """
        tail, term = self._tail, self._term
        snapshot, state = await fetch_snapshot(
            self._calls, term.master, term.number, tail.appended.cluster_id
        )
        # Not to be left half way by the end of the term: the disk's steps go on in any case.
        error = await asyncio.shield(
            self._tasks.start(_replaced(tail, snapshot, state), name="replace the log")
        )
        if error is not None:
            raise ClusterError(
                "cluster.not_durable",
                f"this node cannot begin anew from its master's snapshot: {error}",
                remediation="Look at the disk that holds the home; it is tried again.",
                retry_after_s=5,
            ) from error
        self._needs_snapshot = False
        self._agreed_seq = self._said_seq = 0
        self._agree(tail.seq)
        self._commit(0)


async def _replaced(tail: LogTail, snapshot: Snapshot, state: ClusterState) -> OSError | None:
    try:
        await tail.replace(snapshot, state)
    except OSError as error:
        return error
    return None


def _bad_record(seq: int, reason: str) -> ProtocolError:
    return ProtocolError(
        "protocol.bad_frame",
        f"the master's record {seq} cannot be taken: {reason}",
        remediation="Run the same build on all nodes; if they do, report this.",
    )
