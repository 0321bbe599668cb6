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
from dataclasses import dataclass, replace
from typing import Final

from protocol.ids import NodeId
from protocol.peer_messages import Heartbeat, LogPosition, TermPair
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


def can_follow(
    claim: Claim, old: Claim | None, log: LogLook, *, floor: int, is_mutual: bool
) -> bool:
    """Say whether a node obeys a master that it has not obeyed so far.

    Args:
        claim: The master's.
        old: Of the master that it leads or follows.
        log: Its own.
        floor: No lower number may be followed.
        is_mutual: The master hears this node.
    """
    if claim.pair.number < max(floor, log.head.term):
        return False
    if claim.is_minority and (not is_mutual or claim.settled < log.head[:2]):
        return False  # it could not be told anything; or it would take a settled past away
    if old is None or claim.pair.master == old.pair.master:
        return old is None or claim.pair > old.pair
    return displaces(claim, replace(old, settled=standard_of(old, log)))


def standard_of(master: Claim, log: LogLook) -> Settled:
    """Give how far a master's log is settled, as far as one that obeys it knows."""
    return max(master.settled, log.head[:2])


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
    if candidate.position.term > master.pair.number:
        return True  # it has been a minority's itself since, and can follow this one no more
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


def is_majority(n_votes: int, n_voters: int) -> bool:
    """Say whether these are more than half."""
    return 2 * n_votes > n_voters
