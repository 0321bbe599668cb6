"""What the election machine is told."""

from dataclasses import dataclass

from protocol.ids import NodeId
from protocol.peer_messages import ElectionMessage
from skulkd.core.voting import TermVote


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionSpec:
    """What the machine has to know of its node."""

    node_id: NodeId
    boot_id: str
    priority: int = 50
    """0 to 100; a higher one campaigns earlier."""
    is_founder: bool = False
    """A log without members begins this node's own cluster; a guest's waits for its master."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A message came."""

    sender: NodeId
    message: ElectionMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSeen:
    """The way to a peer changed."""

    peer: NodeId
    is_refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteSaved:
    """A `SaveVote` ended."""

    vote: TermVote
    is_durable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginHandover:
    """An operator wants another master, or this one leaves."""

    target: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginLeaving:
    """This node stops or sleeps soon: it campaigns no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FallAsleep:
    """The machine is about to be suspended: this node takes no part until it wakes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeUp:
    """The machine is awake again, or was not suspended after all."""


Input = Heard | LinkSeen | VoteSaved | BeginHandover | BeginLeaving | FallAsleep | WakeUp
