"""Who gets a vote, which master is obeyed, and when a campaign is won: rules without memory; pure.

The policies differ in whom a candidate needs. `quorum`: a majority of all voters, so that two
campaigns of one number cannot both be won. `availability`: every voter that is alive and hears the
candidate, whatever their number. Then what is durable on the master and on one other member that
is alive outlives the master: that other has a say in who follows it.

A term that half of the voters or fewer elected is a *minority's*. It never displaces the master
that a majority elected and that lives: most often the few were merely cut off. Which of two
histories is kept is decided by their settled parts first.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, Literal, final

from protocol.ids import NodeId
from protocol.peer_messages import Denial, Heartbeat, LogPosition, TermPair
from protocol.state import ClusterState, Policy
from skulkd.core.member_decisions import voters_of

MAX_NUMBER: Final = 1 << 48
"""A greater number comes from a bug and is ignored: one more a millisecond lasts 8,900 years."""

Settled = tuple[int, int]
"""The first half of a `LogPosition`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermVote:
    """The highest term that this node has taken part in, and whom it voted for in it."""

    term: int = 0
    voted_for: NodeId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLook:
    """What elections have to know of the log, at one moment."""

    members: AbstractSet[NodeId]
    voters: AbstractSet[NodeId]
    removed: AbstractSet[NodeId]
    policy: Policy
    durable: LogPosition
    """What a candidate offers and what a voter holds against it. Nothing behind it was ever
    acknowledged, so that no commit counts on it; and a node whose disk fails would otherwise deny
    everybody for the sake of events that only its memory has."""
    head: LogPosition
    """After the last appended event."""
    ends_in_minority: bool
    """The last event's term is a minority's."""


def look_at(state: ClusterState, durable: LogPosition) -> LogLook:
    """Take from the appended state what elections need."""
    return LogLook(
        members=state.members.keys(),
        voters=voters_of(state),
        removed=state.removed.keys(),
        policy=state.settings.policy,
        durable=durable,
        head=LogPosition(state.settled_term, state.settled_seq, state.term, state.seq),
        ends_in_minority=state.is_minority_term,
    )


def electorate(log: LogLook, node_id: NodeId, *, is_founder: bool) -> frozenset[NodeId]:
    """Name those whose votes count for a node.

    A node that has left and is back counts itself: adding one voter keeps any two majorities
    overlapping. Where all have left, whoever is back may vote.

    Args:
        log: The node's.
        node_id: Who counts.
        is_founder: A log without members is the beginning of its own cluster, not of a guest's.
    """
    if not log.members:
        return frozenset({node_id}) if is_founder else frozenset()
    voters = frozenset(log.voters or log.members)
    return voters | {node_id} if node_id in log.members else voters


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A node says that it is master."""

    pair: TermPair
    is_minority: bool
    settled: Settled
    """How far its log is settled."""


def claim_of(sender: NodeId, heartbeat: Heartbeat) -> Claim | None:
    """Give what a heartbeat claims for its sender."""
    if heartbeat.master != sender:
        return None
    return Claim(
        pair=TermPair(heartbeat.number, sender),
        is_minority=heartbeat.is_minority,
        settled=heartbeat.position[:2],
    )


def displaces(new: Claim, old: Claim) -> bool:
    """Say whether a master is obeyed in place of another one that lives."""
    if new.pair <= old.pair:
        return False
    if not new.is_minority:
        return True
    if new.settled != old.settled:
        return new.settled > old.settled
    return old.is_minority


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Who asks for a vote, as the voter knows it."""

    node_id: NodeId
    position: LogPosition
    leads_settled: bool
    """It lives, and claims a term that a majority elected."""


def outranks(candidate: Candidate, master: Claim, standard: Settled) -> bool:
    """Say whether a candidate may be voted for though another master is heard.

    Args:
        candidate: Who asks.
        master: Whom the voter obeys, or the voter itself.
        standard: How far that master's log is settled, as far as the voter knows.
    """
    if candidate.node_id == master.pair.master:
        return True
    if candidate.position.settled_term > master.pair.number:
        return True  # a majority has elected somebody since
    if not master.is_minority:
        return False
    settled = candidate.position[:2]
    return settled > standard or (settled == standard and candidate.leads_settled)


def is_fresh(candidate: Candidate, log: LogLook) -> bool:
    """Say whether a candidate's log is at least as fresh as the voter's.

    What a minority added is no reason to deny the living master that a majority elected: it would
    stay split off for ever.
    """
    if candidate.position >= log.durable:
        return True
    may_yield = log.ends_in_minority and candidate.leads_settled
    return may_yield and candidate.position[:2] >= log.durable[:2]


Stage = Literal["trial", "saving", "vote"]
"""Asking what would be; making the own vote durable; asking for votes."""


@final
@dataclass(slots=True, kw_only=True)
class Ballot:
    """A campaign of this node, and what was answered."""

    number: int
    stage: Stage
    is_handover: bool
    ends_s: float
    ask_again_s: float
    granted: set[NodeId]
    abstained: set[NodeId] = field(default_factory=set[NodeId])
    denied: dict[NodeId, Denial] = field(default_factory=dict[NodeId, Denial])

    def note(self, voter: NodeId, denial: Denial) -> None:
        """Take an answer; a voter may change its mind while it is asked again."""
        self.granted.discard(voter)
        self.denied.pop(voter, None)
        if not denial:
            self.granted.add(voter)
        elif denial == "disk":
            self.abstained.add(voter)
        else:
            self.denied[voter] = denial

    def unanswered(self, voters: AbstractSet[NodeId]) -> tuple[NodeId, ...]:
        """Name those who have not said anything, sorted."""
        silent = voters - self.granted - self.abstained - self.denied.keys()
        return tuple(sorted(silent))

    def outcome(
        self, voters: AbstractSet[NodeId], near: AbstractSet[NodeId], policy: Policy
    ) -> Literal["open", "won", "lost"]:
        """Say how it stands.

        Args:
            voters: All of them, the candidate among them.
            near: Those that are alive and hear the candidate, without itself.
            policy: Whom it needs.
        """
        n_votes = len(self.granted & voters)
        if policy == "quorum":
            if is_majority(n_votes, len(voters)):
                return "won"
            possible = (self.granted | near) & voters - self.denied.keys() - self.abstained
            return "open" if is_majority(len(possible), len(voters)) else "lost"
        needed = near & voters
        if needed & self.denied.keys():
            return "lost"
        return "open" if needed - self.granted - self.abstained else "won"


def is_majority(n_votes: int, n_voters: int) -> bool:
    """Say whether these are more than half."""
    return 2 * n_votes > n_voters
