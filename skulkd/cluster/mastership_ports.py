"""What mastership is connected to, and what it tells about itself."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from protocol.clock import BootClock, Clock
from protocol.commands import AdmitMember, Command, CommandReply
from protocol.ids import CommandId, NodeId
from protocol.peer_messages import TermPair
from skulkd.cluster.roles import ElectedLog
from skulkd.cluster.transport import LinkState, Transport
from skulkd.core.tenure import Role
from skulkd.core.voting import TermVote
from skulkd.runtime.rounds import Rounds


class VoteKeeper(Protocol):
    """Where promises are durable; every call blocks. `eventlog.journal_term.TermFile` is one."""

    def read(self) -> TermVote:
        """Give what was last promised.

        Raises:
            ClusterError: `cluster.journal_corrupt`; it cannot be known.
            OSError: The disk cannot be read.
        """
        ...

    def write(self, vote: TermVote) -> None:
        """Make a promise durable.

        Raises:
            OSError: It is not.
            ClusterError: `cluster.journal_corrupt`; the file has been damaged since.
        """
        ...

    def write_anew(self, vote: TermVote) -> None:
        """Put a promise in place of a damaged file.

        Raises:
            OSError: It is not durable.
        """
        ...


class MastershipClock(Clock, BootClock, Protocol):
    """Boot time for leases, wall time for invitations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MastershipPorts:
    """What mastership is connected to."""

    transport: Transport
    log: ElectedLog
    keeper: VoteKeeper
    clock: MastershipClock
    submit: Callable[[Command], Awaitable[CommandReply]]
    """Has a command decided, wherever the master is."""
    mint: Callable[[], CommandId]
    own_entry: Callable[[CommandId], AdmitMember]
    """What this node says of itself, to be a present member again."""
    rounds: Rounds = field(default_factory=Rounds)
    """Begun whenever elections look around."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSeen:
    """How this node sees a member."""

    node_id: NodeId
    is_alive: bool
    silent_s: float | None
    link: LinkState
    boot_id: str | None
    commit_seq: int | None
    number: int | None
    """Of the term that it follows, or the highest that it knows."""
    master: NodeId | None
    """Whom it follows."""
    unheard: tuple[NodeId, ...]
    is_lagging: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionSeen:
    """What mastership knows, for diagnostics."""

    role: Role
    term: TermPair | None
    is_minority: bool
    known_number: int
    promise: TermVote | None
    """None while this node does not know what it promised."""
    last_master: NodeId | None
    is_lagging: bool
    n_elections: int
    """How often this node's master or term has changed since the start."""
    n_dropped: int
    """Messages that came faster than they were handled."""
    n_undecodable: int
    members: tuple[MemberSeen, ...]
    problems: tuple[str, ...]
