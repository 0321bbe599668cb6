"""What elections and the log ask of each other; `mastership` and `eventlog` meet here.

The log knows what is written and durable; mastership knows who is master. A node is master,
member, or between terms, and is told when that changes, in the order in which it changes.
"""

from collections.abc import Callable
from typing import Protocol

from protocol.ids import NodeId
from protocol.peer_messages import LogPosition, TermPair
from protocol.state import ClusterState


class ElectedLog(Protocol):
    """The log, as elections see it. Every call is quick, and on the event loop."""

    @property
    def appended(self) -> ClusterState:
        """The state after the last appended event, committed or not.

        Its members vote, by its policy.
        """
        ...

    @property
    def durable_position(self) -> LogPosition:
        """Where the part of the log ends that survives the power, in settled and plain terms."""
        ...

    @property
    def chain(self) -> bytes:
        """After `durable_position.seq`; what heartbeats carry with it."""
        ...

    @property
    def commit_seq(self) -> int:
        """The last event that this node knows to be committed."""
        ...

    def on_append(self, watcher: Callable[[], None]) -> None:
        """Add one who is told, in the same turn, when members or settings of `appended` change.

        A member must be dialled and admitted from then on, not only once its joining is committed.
        """
        ...

    def lead(self, term: TermPair, *, is_minority: bool) -> None:
        """Begin to sequence events in a term that this node has won."""
        ...

    def follow(self, term: TermPair) -> None:
        """Take events from this term's master, and from nobody else."""
        ...

    def rest(self) -> None:
        """There is no master: take no commands and no events, decide nothing more."""
        ...

    @property
    def state_hash(self) -> tuple[int, bytes]:
        """The newest hashed state: its seq, and 16 bytes; (0, b"") before there is one."""
        ...

    def journalled(self, member: NodeId, number: int, seq: int, chain: bytes) -> None:
        """On the master: a member that follows it in this term says where its durable log ends.

        Args:
            member: Who says so, by its heartbeat.
            number: Of the term that it follows.
            seq: Its `durable_position.seq`.
            chain: After it. Counts only where it is the master's own: the member may not know
                yet that its log has grown apart.
        """
        ...

    def hear_commit(self, term: TermPair, commit_seq: int, head_seq: int, chain: bytes) -> None:
        """On a member: what the master's heartbeat says of its log.

        A lost batch is noticed by it.

        Args:
            term: Which it leads.
            commit_seq: The last event that it knows to be committed.
            head_seq: Its `durable_position.seq`.
            chain: After it.
        """
        ...

    def hear_hash(self, term: TermPair, seq: int, state_hash: bytes) -> None:
        """On a member: the hash of the master's state after `seq`, 16 bytes.

        One that differs from this node's own is reported, and this node begins anew from the
        master's snapshot.
        """
        ...


class MasterView(Protocol):
    """Who is master, and who is heard, as this node sees it now."""

    @property
    def term(self) -> TermPair | None:
        """The term that this node leads or follows; None while it knows no living master."""
        ...

    @property
    def last_master(self) -> NodeId | None:
        """The last master that was known, for refusals."""
        ...

    @property
    def is_master(self) -> bool:
        """Whether this node may decide now: elected, not fenced, and within its lease."""
        ...

    def is_alive(self, node_id: NodeId) -> bool:
        """Whether a member was heard within the suspicion time; this node always is."""
        ...

    def silent_s(self, node_id: NodeId) -> float | None:
        """How long a member has not been heard; None for one never heard since the start."""
        ...

    def is_reachable(self, node_id: NodeId) -> bool:
        """Whether requests can be sent there: alive, and its link is up both ways."""
        ...

    def on_change(self, watcher: Callable[[], None]) -> None:
        """Add one who is told whenever the term, the role or somebody's liveness changes."""
        ...
