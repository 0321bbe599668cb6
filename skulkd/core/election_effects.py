"""What the election machine wants done; executed in order by `cluster.mastership`."""

from dataclasses import dataclass

from protocol.ids import NodeId
from protocol.peer_messages import ElectionMessage, Heartbeat, TermPair
from skulkd.core.voting import TermVote


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a message to each of these."""

    to: tuple[NodeId, ...]
    message: ElectionMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """Send a heartbeat now."""

    to: NodeId | None = None
    """None is every member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveVote:
    """Make a promise durable; answer VoteSaved."""

    vote: TermVote
    replaces_damaged: bool
    """What is there cannot be read, and it is known what it cannot have said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """This node is master of a term now."""

    term: TermPair
    is_minority: bool
    n_votes: int
    n_voters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """This node follows the master of a term now."""

    term: TermPair


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """There is no master to follow, and this node is none."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Journalled:
    """A member that follows this master's term says where its durable log ends."""

    member: NodeId
    number: int
    seq: int
    chain: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HearCommit:
    """The master says how far its log reaches and is committed, and what state it gives."""

    term: TermPair
    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverEnded:
    """Somebody else is master, or nothing came of it."""

    target: NodeId
    is_done: bool
    reason: str
    """Why not; empty when it is done."""


Effect = Send | Beat | SaveVote | Lead | Follow | Rest | Journalled | HearCommit | HandoverEnded
