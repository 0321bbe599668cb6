"""The master's pen, for one term: decides commands, gives events their place, commits them.

A command is decided on the end of the log, committed or not. Its events are journalled here and
sent to the members at the same time; only what is committed reaches the replica and the caller.
What comes while a disk syncs is written together by the next sync (group commit).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final, Literal, NamedTuple, final

from protocol.clock import Clock
from protocol.codec import pack
from protocol.commands import Command, CommandReply
from protocol.errors import SkulkError
from protocol.events import ClusterFounded, Event, MasterElected, SequencedEvent
from protocol.ids import CommandId, NodeId
from protocol.peer_messages import TermPair
from protocol.readings import Readings
from protocol.state import ClusterState, CommandResult, Policy
from skulkd.cluster.roles import MasterView
from skulkd.core.apply import apply, repeated
from skulkd.core.decide import decide
from skulkd.core.senders import check_sender
from skulkd.eventlog import refusals
from skulkd.eventlog.commit_rule import Durable, OtherCopy, OwnCopy, committed_seq, durable_of
from skulkd.eventlog.log_tail import LogTail
from skulkd.eventlog.member_feeds import MemberFeeds
from skulkd.eventlog.records import EncodedRecord, JournalRecord, chain_after, encode_body
from skulkd.eventlog.replica import Placed

MAX_UNCOMMITTED: Final = 4096
"""Decided commands that may wait to be committed; the next one is refused."""

_VOTER_EVENTS: Final = frozenset(
    {"member_joined", "member_left", "member_returned", "member_removed"}
)
_NO_READINGS: Final = Readings()
_LOOKING: Final = frozenset(
    {"place_instance", "move_instance", "wake_instance", "report_failure", "repair_instance"}
)
"""Commands whose decision looks at readings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadingLimits:
    """How long the master waits; the defaults are for use, others are for tests."""

    commit_wait_s: float = 8.0
    """A caller hears after this long that its command is not committed."""
    stall_s: float = 3.0
    """In availability, a member that is alive and makes nothing durable is waited for so long."""


_VoteChange = Literal["voters", "policy"]


class _Waiting(NamedTuple):
    """A tuple, because each command makes one."""

    seq: int
    """What is waited for is committed with it."""
    until_s: float
    committed: asyncio.Future[Durable]
    """Of one caller, who may give it up; what it waits for goes on."""
    command_id: CommandId | None = None
    """Of the command that was decided up to there."""


@dataclass(slots=True)
class _Progress:
    durable_seq: int = 0
    moved_s: float = 0.0
    """When it last became more."""
    is_stalled: bool = False
    """It did not, for so long that it is not waited for until it does."""


@final
class LeadingTerm:
    """One term of this node; made by `ClusterLog.lead`.

    Args:
        term: Persisted before this; higher than every term in the log.
        is_minority: Half of the voters or fewer elected it.
        tail: The log's end.
        feeds: Sends to the members.
        masters: Who is alive, and whether this node may still decide.
        readings: Gives the newest readings, which `decide` plans with.
        clock: Stamps events; the stamp never steps back within the log.
        limits: How long is waited.
    """

    def __init__(
        self,
        *,
        term: TermPair,
        is_minority: bool,
        tail: LogTail,
        feeds: MemberFeeds,
        masters: MasterView,
        readings: Callable[[], Readings],
        clock: Clock,
        limits: LeadingLimits,
    ) -> None:
        self._term = term
        self._is_minority = is_minority
        self._tail = tail
        self._feeds = feeds
        self._masters = masters
        self._readings = readings
        self._clock = clock
        self._limits = limits
        # Asking for the running loop is a system call, and each command would ask.
        self._loop = asyncio.get_running_loop()
        self._first_seq = tail.seq + 1
        self._voters_changed_seq = 0
        """Of the last event that changed who votes, or how."""
        self._progress: dict[NodeId, _Progress] = {}
        self._decided: deque[_Waiting] = deque()
        """Commands that are not committed, in order."""
        self._decided_seqs: dict[CommandId, int] = {}
        """The same, by id."""
        self._recent_ids = {result.command_id for result in tail.appended.recent_results}
        """Of the state's recent results: a new command is not compared with each of them."""
        self._watching: list[_Waiting] = []
        """Whoever else waits, for any seq."""
        self._waits_since_s: float | None = None
        """Since when something durable here waits for others."""
        self._has_ended = False
        self._is_stopping = False

    @property
    def term(self) -> TermPair:
        """The term."""
        return self._term

    def begin(self) -> None:
        """Open the term with its first events."""
        events: list[Event] = []
        if self._tail.seq == 0:
            events.append(ClusterFounded(cluster_id=self._tail.appended.cluster_id))
        events.append(MasterElected(master=self._term.master, is_minority=self._is_minority))
        self._place(events, at_ms=self._stamp_ms(), command_id=None)
        self._voters_changed_seq = self._tail.seq
        self.advance()

    async def submit(self, command: Command, *, sender: NodeId) -> CommandReply:
        """Decide a command and wait until it is committed; idempotent by its id.

        Cancelling the wait does not take the command back.

        Args:
            command: What is asked.
            sender: Which member asks.

        Raises:
            SkulkError: What `check_sender` and `decide` refuse with; `cluster.no_master`, the term
                is over; `cluster.no_quorum`, `cluster.not_durable`, it is not committed in time,
                and may still be: the same command again tells; `cluster.stopping`.
        """
        command_id = command.command_id
        until_s = self._clock.monotonic_s() + self._limits.commit_wait_s
        while True:
            self._refuse_if_unable()
            seq = self._decided_seqs.get(command_id)
            if seq is not None:
                durable = await self._wait_committed(seq, until_s)
                return self._reply(command_id, self._term.number, seq, durable, is_repeated=True)
            result = self._result_of(command_id)
            if result is not None:
                durable = await self._wait_committed(result.seq, until_s)
                return self._reply(command_id, result.term, result.seq, durable, is_repeated=True)
            at_ms = self._stamp_ms()
            events = self._events_of(command, sender, at_ms)
            change = _vote_change(events, self._tail.appended.settings.policy)
            if change is None or not self._must_wait(change):
                decided = self._decide(command_id, events, at_ms=at_ms, until_s=until_s)
                if change is not None:
                    self._note_vote_change()
                seq, durable = decided.seq, await decided.committed
                return self._reply(command_id, self._term.number, seq, durable, is_repeated=False)
            await self._wait_committed(self._voters_changed_seq, until_s)

    def journalled(self, member: NodeId, seq: int) -> None:
        """Take note that a member's log is durable up to `seq`, and agrees there."""
        progress = self._progress.setdefault(member, _Progress())
        if seq <= progress.durable_seq:
            return
        progress.durable_seq = min(seq, self._tail.seq)
        progress.moved_s = self._clock.monotonic_s()
        progress.is_stalled = False
        self._feeds.on_durable(member, seq)
        self.advance()

    def agrees(self, seq: int, chain: bytes) -> bool:
        """Say whether a log that has this chain after `seq` agrees with the master's."""
        return self._tail.recent.chain_at(seq) == chain

    def advance(self) -> None:
        """Look again how far the log is committed, and answer those who waited for it."""
        if self._has_ended or not self._masters.is_master:
            return
        tail = self._tail
        if tail.commit_seq == tail.seq:
            self._waits_since_s = None
            return
        own, others = self._own_copy(), self._other_copies()
        policy = tail.appended.settings.policy
        if tail.commit(committed_seq(policy, own, others, first_seq=self._first_seq)):
            self._answer(own, others)
            self._feeds.soon()
        if self._kept_seq <= tail.commit_seq:
            self._waits_since_s = None
        elif self._waits_since_s is None:
            self._waits_since_s = self._clock.monotonic_s()

    def tick(self) -> None:
        """Look at what time alone changes."""
        self._give_up_late()
        self._note_stalled()
        self._feeds.soon()
        self.advance()

    def refuse_from_now_on(self) -> None:
        """Take no more commands; what has been decided goes on."""
        self._is_stopping = True

    def end(self) -> None:
        """The term is over: nothing more is decided or committed here.

        Callers hear `cluster.no_master`. What they wait for may still be committed by the next
        master: the same command again tells.
        """
        self._has_ended = True
        self._feeds.close()
        for item in (*self._decided, *self._watching):
            _fail(item.committed, self._ended())
        self._decided.clear()
        self._watching.clear()
        self._decided_seqs.clear()

    async def drain(self) -> None:
        """Wait until what has been decided is committed, or the term ends."""
        if self._decided:
            with suppress(SkulkError):
                await self._wait_committed(self._decided[-1].seq, inf)

    def _result_of(self, command_id: CommandId) -> CommandResult | None:
        state = self._tail.appended
        is_known = command_id in self._recent_ids or command_id in state.results
        return repeated(state, command_id) if is_known else None

    def _events_of(self, command: Command, sender: NodeId, now_ms: int) -> tuple[Event, ...]:
        state = self._tail.appended
        check_sender(state, sender, command)
        if command.kind not in _LOOKING:
            return decide(state, _NO_READINGS, command, now_ms=now_ms)
        return decide(
            state,
            self._readings(),
            command,
            now_ms=now_ms,
            now_s=self._clock.monotonic_s(),
            unheard=self._unheard(state),
        )

    def _unheard(self, state: ClusterState) -> frozenset[NodeId]:
        return frozenset(
            node_id for node_id in state.members if not self._masters.is_alive(node_id)
        )

    def _refuse_if_unable(self) -> None:
        if self._has_ended:
            raise self._ended()
        if self._is_stopping:
            raise refusals.stopping()
        if not self._masters.is_master:
            raise refusals.no_master(
                self._masters.last_master, why="this node may not decide as master now"
            )
        if len(self._decided) >= MAX_UNCOMMITTED:
            n_waiting = len(self._decided)
            raise refusals.not_durable(n_waiting, "decided commands wait for the disk")

    def _ended(self) -> SkulkError:
        return refusals.no_master(self._masters.last_master, why="this node is not master any more")

    def _must_wait(self, change: _VoteChange) -> bool:
        """Say whether a change of who votes, or how, comes before an earlier one is committed.

        Two majorities of voters that differ by one node always share a node; with two changes at
        once they need not.

        Source: D. Ongaro (2014), section 4.1, with the amendment that a change also waits until
        its master's first event is committed.
        """
        tail = self._tail
        if change == "voters" and tail.appended.settings.policy != "quorum":
            return False
        return tail.commit_seq < self._voters_changed_seq

    def _decide(
        self, command_id: CommandId, events: Sequence[Event], *, at_ms: int, until_s: float
    ) -> _Waiting:
        if events:
            self._place(events, at_ms=at_ms, command_id=command_id)
        seq = self._tail.seq
        committed: asyncio.Future[Durable] = self._loop.create_future()
        decided = _Waiting(seq, until_s, committed, command_id)
        self._decided.append(decided)
        self._decided_seqs[command_id] = seq
        if seq <= self._tail.commit_seq:
            self._answer(self._own_copy(), self._other_copies())
        return decided

    def _note_vote_change(self) -> None:
        """Take note that the last event changed who votes, or how."""
        self._voters_changed_seq = self._tail.seq
        # With fewer voters, what waited may be committed now.
        self.advance()

    def _place(self, events: Sequence[Event], *, at_ms: int, command_id: CommandId | None) -> None:
        """Give events their place, and send them on their way to disks and members."""
        tail = self._tail
        state, chain, number = tail.appended, tail.chain, self._term.number
        records: list[EncodedRecord] = []
        placed: list[Placed] = []
        for event in events:
            seq = state.seq + 1
            body = encode_body(JournalRecord(number, seq, at_ms, command_id, pack(event)))
            chain = chain_after(chain, body)
            records.append(EncodedRecord(seq, body, chain))
            sequenced = SequencedEvent(number, seq, at_ms, command_id, event)
            state = apply(state, sequenced)
            placed.append((sequenced, state))
        tail.append(records, placed)
        if len(state.recent_results) <= 1:
            # The others were merged into the window.
            self._recent_ids = {result.command_id for result in state.recent_results}
        elif command_id is not None:
            self._recent_ids.add(command_id)
        self._feeds.soon()

    def _answer(self, own: OwnCopy, others: Sequence[OtherCopy]) -> None:
        """Answer those whose events are committed."""
        commit_seq, decided = self._tail.commit_seq, self._decided
        newest = durable_of(commit_seq, own, others)

        def answer(item: _Waiting) -> None:
            if not item.committed.done():
                # Nothing rests on less than what comes behind it.
                is_member = newest == "member"
                item.committed.set_result(
                    newest if is_member else durable_of(item.seq, own, others)
                )

        while decided and decided[0].seq <= commit_seq:
            item = decided.popleft()
            if item.command_id is not None:
                self._decided_seqs.pop(item.command_id, None)
            answer(item)
        if self._watching:
            for item in self._watching:
                if item.seq <= commit_seq:
                    answer(item)
            self._watching = [item for item in self._watching if item.seq > commit_seq]

    async def _wait_committed(self, seq: int, until_s: float) -> Durable:
        if seq <= self._tail.commit_seq:
            return durable_of(seq, self._own_copy(), self._other_copies())
        committed: asyncio.Future[Durable] = self._loop.create_future()
        self._watching.append(_Waiting(seq=seq, until_s=until_s, committed=committed))
        return await committed

    def _give_up_late(self) -> None:
        """Tell those who have waited too long; what they wait for goes on."""
        now_s = self._clock.monotonic_s()
        for items in (self._decided, self._watching):
            for item in items:
                if now_s >= item.until_s:
                    _fail(item.committed, self._late())
        self._watching = [item for item in self._watching if not item.committed.done()]

    def _own_copy(self) -> OwnCopy:
        tail = self._tail
        member = tail.appended.members.get(self._term.master)
        # Before the first admission there is no member at all, and this node is the cluster.
        is_voter = not tail.appended.members if member is None else member.is_voter
        return OwnCopy(
            head_seq=tail.seq,
            durable_seq=tail.durable_seq,
            is_failing=tail.is_failing,
            is_voter=is_voter,
            is_alone=not tail.appended.members.keys() - {self._term.master},
        )

    def _other_copies(self) -> list[OtherCopy]:
        copies: list[OtherCopy] = []
        for node_id, member in self._tail.appended.members.items():
            if node_id == self._term.master or not member.is_voter:
                continue
            progress = self._progress.get(node_id) or _Progress()
            is_waited_for = not progress.is_stalled and self._masters.is_alive(node_id)
            copies.append(OtherCopy(durable_seq=progress.durable_seq, is_waited_for=is_waited_for))
        return copies

    @property
    def _kept_seq(self) -> int:
        """Up to where this node has done what it can."""
        return self._tail.seq if self._tail.is_failing else self._tail.durable_seq

    def _note_stalled(self) -> None:
        """Find members that are alive, lack something, and make nothing durable for too long."""
        if self._waits_since_s is None:
            return
        now_s = self._clock.monotonic_s()
        for node_id in self._tail.appended.members:
            progress = self._progress.setdefault(node_id, _Progress())
            waited_s = now_s - max(self._waits_since_s, progress.moved_s)
            if progress.durable_seq < self._kept_seq and waited_s >= self._limits.stall_s:
                progress.is_stalled = True

    def _stamp_ms(self) -> int:
        return max(self._clock.wall_ms(), self._tail.appended.at_ms)

    def _reply(
        self, command_id: CommandId, term: int, seq: int, durable: Durable, *, is_repeated: bool
    ) -> CommandReply:
        return CommandReply.unchecked(
            {
                "command_id": command_id,
                "term": term,
                "seq": seq,
                "durable": durable,
                "repeated": is_repeated,
            }
        )

    def _late(self) -> SkulkError:
        state = self._tail.appended
        if state.settings.policy == "quorum":
            return refusals.no_quorum(state, self._masters)
        n_waiting = self._tail.seq - self._tail.commit_seq
        return refusals.not_durable(
            n_waiting, f"events are not committed after {self._limits.commit_wait_s:g} s"
        )


def _fail(committed: "asyncio.Future[Durable]", error: SkulkError) -> None:
    if not committed.done():
        committed.set_exception(error)
        # Whoever gave up waiting does not look at it any more.
        committed.exception()


def _vote_change(events: Sequence[Event], policy: Policy) -> _VoteChange | None:
    """Say whether events change how is voted, or else who votes."""
    change: _VoteChange | None = None
    for event in events:
        if event.kind == "settings_changed" and event.settings.policy != policy:
            return "policy"
        if event.kind in _VOTER_EVENTS:
            change = "voters"
    return change
