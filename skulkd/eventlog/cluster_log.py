"""The replicated log of one node: master, member or between terms; implements `ElectedLog`.

It owns this node's end of the log and, one after the other, the role that works on it. Mastership
says which; what peers send reaches the role that it is for, or is counted and dropped.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from protocol.clock import Clock
from protocol.commands import Command, CommandReply
from protocol.errors import ProtocolError
from protocol.ids import NodeId
from protocol.peer_messages import (
    CommandAnswer,
    EventRange,
    FetchEvents,
    FetchSnapshotChunk,
    Journalled,
    LogPosition,
    OpenSnapshot,
    PeerAnswer,
    SubmitCommand,
    TermPair,
    unpack_events,
)
from protocol.readings import Readings
from protocol.state import ClusterState
from skulkd.cluster.peer_calls import ControlCalls
from skulkd.cluster.roles import MasterView
from skulkd.cluster.transport import LinkState, Transport
from skulkd.eventlog import refusals
from skulkd.eventlog.divergence import Divergence, DivergenceReport
from skulkd.eventlog.durable_log import DurableLog
from skulkd.eventlog.early_events import EarlyEvents
from skulkd.eventlog.following import FollowingLimits, FollowingTerm
from skulkd.eventlog.leading import LeadingLimits, LeadingTerm
from skulkd.eventlog.log_tail import LogTail
from skulkd.eventlog.member_feeds import MemberFeeds
from skulkd.eventlog.replica import Replica
from skulkd.eventlog.snapshots import SnapshotShelf
from skulkd.eventlog.state_hashes import StateHashes
from skulkd.runtime.rounds import Rounds
from skulkd.runtime.tasks import Tasks

TICK_S: Final = 0.2
"""Between two looks at what time alone changes, at least: they come with the node's rounds."""
LATEST_TICK_S: Final = 0.7
MARK_INTERVAL_S: Final = 5.0
"""Between two notes on the disk of how far the log is committed."""
RANGE_BYTES: Final = 1 << 20
RANGE_RECORDS: Final = 4096
HASH_REPAIR_INTERVAL_S: Final = 600.0
"""A state that differs again so soon is reported and not fetched again: it would not help."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHealth:
    """How replication is on this node, for health and diagnostics."""

    is_catching_up: bool
    """This node knows that it lacks events, or that its log differs."""
    is_beginning_anew: bool
    """A snapshot is taking this log's place."""
    n_snapshots_served: int
    """To members that begin anew, by this node as master."""
    n_uncommitted: int
    n_divergences: int
    last_divergence: Divergence | None
    n_rejected: int
    """Batches of another term or sender than the one obeyed."""
    n_garbage: int
    """Payloads that did not decode."""


@final
class ClusterLog:
    """See the module; made on an open journal, ended by `close`.

    Args:
        log: The journal, as it was opened; closed by whoever opened it, after this.
        appended: The state that opening it gave.
        transport: Carries events.
        calls: Asks and answers peers.
        readings: Gives the newest readings, which `decide` plans with.
        clock: Stamps events and times waits.
        tasks: Owns what runs in the background.
        leading: How long a master waits.
        following: How long a member waits.
        rounds: With which it looks at what time alone changes.
    """

    def __init__(
        self,
        log: DurableLog,
        appended: ClusterState,
        *,
        transport: Transport,
        calls: ControlCalls,
        readings: Callable[[], Readings],
        clock: Clock,
        tasks: Tasks,
        leading: LeadingLimits | None = None,
        following: FollowingLimits | None = None,
        rounds: Rounds | None = None,
    ) -> None:
        self._rounds = rounds or Rounds()
        self._leading_limits = leading or LeadingLimits()
        self._following_limits = following or FollowingLimits()
        self._transport = transport
        self._calls = calls
        self._readings = readings
        self._clock = clock
        self._tasks = tasks
        self.replica: Final = Replica(log.recovered.committed)
        """What is committed; the rooms above read and follow it."""
        self._tail = LogTail(log, appended, self.replica)
        self._report = DivergenceReport(clock)
        self._hashes = StateHashes(
            self.replica,
            clock=clock,
            tasks=tasks,
            is_comparable=self._has_masters_state,
            on_mismatch=self._on_hash_mismatch,
        )
        self._masters: MasterView | None = None
        self._role: LeadingTerm | FollowingTerm | None = None
        self._feeds: MemberFeeds | None = None
        self._shelf: SnapshotShelf | None = None
        self._wanted_lead: tuple[TermPair, bool] | None = None
        """A term that was won while the log was being replaced."""
        self._early = EarlyEvents()
        self._n_rejected = 0
        self._n_garbage = 0
        self._marked_seq = self._tail.commit_seq
        self._mark_due_s = clock.monotonic_s() + MARK_INTERVAL_S
        self._hash_repaired_s = float("-inf")
        self._is_closed = False
        self._tail.on_durable(self._on_durable)
        transport.on_receive("events", self._on_events)
        transport.on_link(self._on_link)
        calls.on_journalled(self._on_journalled)
        calls.serve(SubmitCommand, self._on_submit)
        calls.serve(FetchEvents, self._on_fetch)
        calls.serve(OpenSnapshot, self._on_open_snapshot)
        calls.serve(FetchSnapshotChunk, self._on_fetch_chunk)

    def attach(self, masters: MasterView) -> None:
        """Say who knows who is master and who is alive; once, before the first `lead`."""
        self._masters = masters
        masters.on_change(self._on_masters_change)
        self._tasks.start(self._tick_forever(), name="log tick")

    # ---- What elections see and say ----

    @property
    def appended(self) -> ClusterState:
        """The state after the last appended event, committed or not."""
        return self._tail.appended

    @property
    def durable_position(self) -> LogPosition:
        """Where the part of the log ends that survives the power."""
        return self._tail.durable[0]

    @property
    def chain(self) -> bytes:
        """After `durable_position.seq`."""
        return self._tail.durable[1]

    @property
    def commit_seq(self) -> int:
        """The last event that this node knows to be committed."""
        return self._tail.commit_seq

    @property
    def state_hash(self) -> tuple[int, bytes]:
        """The newest hashed state: its seq, and 16 bytes."""
        return self._hashes.newest

    def on_append(self, watcher: Callable[[], None]) -> None:
        """Add one who is told, in the same turn, when members or settings of `appended` change."""
        self._tail.on_change(watcher)

    def lead(self, term: TermPair, *, is_minority: bool) -> None:
        """Begin to sequence events in a term that this node has won."""
        self._leave_role()
        if self._tail.is_switching:
            self._wanted_lead = (term, is_minority)
            self._tasks.start(self._lead_when_switched(), name="lead later", essential=False)
            return
        self._lead(term, is_minority=is_minority)

    def follow(self, term: TermPair) -> None:
        """Take events from this term's master, and from nobody else."""
        self._leave_role()
        role = self._role = FollowingTerm(
            term=term,
            tail=self._tail,
            calls=self._calls,
            transport=self._transport,
            report=self._report,
            tasks=self._tasks,
            limits=self._following_limits,
        )
        for batch, n_bytes in self._early.take(term):
            role.on_batch(batch, n_bytes)

    def rest(self) -> None:
        """There is no master: take no commands and no events, decide nothing more."""
        self._leave_role()

    def journalled(self, member: NodeId, number: int, seq: int, chain: bytes) -> None:
        """On the master: take a member's word of where its durable log ends, if it agrees there."""
        role = self._role
        if isinstance(role, LeadingTerm) and number == role.term.number and role.agrees(seq, chain):
            role.journalled(member, seq)

    def hear_commit(self, term: TermPair, commit_seq: int, head_seq: int, chain: bytes) -> None:
        """On a member: take what the master's heartbeat says of its log."""
        role = self._role
        if isinstance(role, FollowingTerm) and role.term == term:
            role.hear_commit(commit_seq, head_seq, chain)

    def hear_hash(self, term: TermPair, seq: int, state_hash: bytes) -> None:
        """On a member: compare the master's state with this node's."""
        role = self._role
        if isinstance(role, FollowingTerm) and role.term == term:
            self._hashes.hear(seq, state_hash)

    # ---- What the node asks ----

    async def submit(self, command: Command, *, sender: NodeId | None = None) -> CommandReply:
        """On the master: have a command decided and committed; see `LeadingTerm.submit`.

        Args:
            command: What is asked.
            sender: Which member asks; this node by default.

        Raises:
            ClusterError: `cluster.no_master` where this node is not master.
            SkulkError: See there.
        """
        role = self._role
        if not isinstance(role, LeadingTerm):
            last_master = None if self._masters is None else self._masters.last_master
            raise refusals.no_master(last_master, why="this node is not master")
        return await role.submit(command, sender=sender or self._transport.node_id)

    def begin_anew(self) -> None:
        """On a member: give this log up for the master's, as after a divergence."""
        if isinstance(self._role, FollowingTerm):
            self._role.begin_anew()

    def health(self) -> LogHealth:
        """Say how replication is here."""
        role = self._role
        follows = isinstance(role, FollowingTerm)
        return LogHealth(
            is_catching_up=follows and role.is_catching_up,
            is_beginning_anew=self._tail.is_switching,
            n_snapshots_served=0 if self._shelf is None else self._shelf.n_served,
            n_uncommitted=self._tail.seq - self._tail.commit_seq,
            n_divergences=self._report.n_seen,
            last_divergence=self._report.last,
            n_rejected=self._n_rejected,
            n_garbage=self._n_garbage + (role.n_garbage if follows else 0),
        )

    async def close(self) -> None:
        """Take no more commands, see to the end of what has been decided, and note how far it came.

        Waits as long as disk and members take: bound it with a timeout.
        """
        self._is_closed = True
        if isinstance(self._role, LeadingTerm):
            self._role.refuse_from_now_on()
            await self._role.drain()
        self._leave_role()
        await self._tail.wait_switched()
        await self._keep_mark()

    # ---- Roles ----

    def _leave_role(self) -> None:
        role, self._role, self._wanted_lead = self._role, None, None
        self._feeds = self._shelf = None
        if role is not None:
            role.end()

    def _lead(self, term: TermPair, *, is_minority: bool) -> None:
        # ruff: ignore[assert]  the node attaches it before the first election
        assert self._masters is not None, "mastership is attached"
        feeds = MemberFeeds(term, self._tail, self._transport)
        role = LeadingTerm(
            term=term,
            is_minority=is_minority,
            tail=self._tail,
            feeds=feeds,
            masters=self._masters,
            readings=self._readings,
            clock=self._clock,
            limits=self._leading_limits,
        )
        self._feeds, self._role = feeds, role
        self._shelf = SnapshotShelf(self._tail, self._clock)
        role.begin()

    async def _lead_when_switched(self) -> None:
        await self._tail.wait_switched()
        wanted, self._wanted_lead = self._wanted_lead, None
        if wanted is not None and not self._is_closed:
            self._lead(wanted[0], is_minority=wanted[1])

    # ---- What happens ----

    def _on_durable(self) -> None:
        role = self._role
        if isinstance(role, LeadingTerm):
            role.advance()
        elif role is not None:
            role.on_durable()

    def _on_masters_change(self) -> None:
        if isinstance(self._role, LeadingTerm):
            self._role.advance()

    def _on_link(self, peer: NodeId, state: LinkState) -> None:
        del state
        if self._feeds is not None:
            self._feeds.on_link(peer)

    def _on_events(self, sender: NodeId, payload: bytes) -> None:
        try:
            batch = unpack_events(payload)
        except ProtocolError as error:
            self._n_garbage += 1
            _log.debug("dropped an events payload of %s: %s", sender, error.message)
            return
        role = self._role
        if (
            not isinstance(role, FollowingTerm)
            or (batch.number, batch.master) != role.term
            or sender != batch.master
        ):
            self._n_rejected += 1
            if sender == batch.master and (role is None or batch[:2] > role.term):
                self._early.keep(batch, len(payload))
            return
        role.on_batch(batch, len(payload))

    def _on_journalled(self, member: NodeId, frame: Journalled) -> None:
        role = self._role
        if isinstance(role, LeadingTerm) and frame.number == role.term.number:
            role.journalled(member, frame.seq)

    def _has_masters_state(self, seq: int) -> bool:
        role = self._role
        return isinstance(role, FollowingTerm) and role.has_masters_state(seq)

    def _on_hash_mismatch(self, seq: int, own: bytes, masters: bytes) -> None:
        role = self._role
        if not isinstance(role, FollowingTerm):
            return
        self._report.states_differ(term=role.term.number, seq=seq, own=own, masters=masters)
        now_s = self._clock.monotonic_s()
        if now_s - self._hash_repaired_s >= HASH_REPAIR_INTERVAL_S:
            self._hash_repaired_s = now_s
            self.begin_anew()

    # ---- What peers ask ----

    async def _on_submit(self, sender: NodeId, request: SubmitCommand) -> PeerAnswer:
        return CommandAnswer(reply=await self.submit(request.command, sender=sender))

    async def _on_fetch(self, sender: NodeId, request: FetchEvents) -> PeerAnswer:
        self._require_leading(sender, request.number)
        tail, number = self._tail, request.number
        chain = tail.recent.chain_at(request.after_seq)
        if request.after_seq > tail.seq or (chain is not None and chain != request.after_chain):
            return EventRange(outcome="diverged", number=number)
        records = tail.recent.after(
            request.after_seq, max_bytes=RANGE_BYTES, max_records=RANGE_RECORDS
        )
        if chain is None or records is None:
            return EventRange(outcome="gone", number=number)
        return EventRange(
            outcome="events",
            number=number,
            commit_seq=tail.commit_seq,
            head_seq=tail.seq,
            records=tuple(record.body for record in records),
        )

    async def _on_open_snapshot(self, sender: NodeId, request: OpenSnapshot) -> PeerAnswer:
        return await self._require_leading(sender, request.number).open(sender, request.number)

    async def _on_fetch_chunk(self, sender: NodeId, request: FetchSnapshotChunk) -> PeerAnswer:
        return self._require_leading(sender, None).chunk(sender, request)

    def _require_leading(self, sender: NodeId, number: int | None) -> SnapshotShelf:
        """Refuse a question for another master, or of one that is no member.

        Raises:
            ClusterError: `cluster.no_master`.
        """
        role, shelf = self._role, self._shelf
        is_asked = isinstance(role, LeadingTerm) and number in {None, role.term.number}
        if not is_asked or shelf is None or sender not in self._tail.appended.members:
            last_master = None if self._masters is None else self._masters.last_master
            raise refusals.no_master(last_master, why="this node does not lead that term")
        return shelf

    # ---- Time ----

    async def _tick_forever(self) -> None:
        while True:
            await self._rounds.wait(soonest_s=TICK_S, latest_s=LATEST_TICK_S)
            role = self._role
            if isinstance(role, LeadingTerm):
                role.tick()
            elif role is not None:
                role.on_durable()
            self._hashes.tick()
            if self._clock.monotonic_s() >= self._mark_due_s:
                self._mark_due_s = self._clock.monotonic_s() + MARK_INTERVAL_S
                await self._keep_mark()

    async def _keep_mark(self) -> None:
        seq = self._tail.commit_seq
        if seq != self._marked_seq:
            self._marked_seq = seq
            await self._tail.keep_commit_mark()
