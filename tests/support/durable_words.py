"""What nodes say to others to be on their disks, held against the disks."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from protocol.envelope import Plane
from protocol.errors import ClusterError
from protocol.ids import ClusterId, NodeId
from protocol.peer_messages import (
    Campaign,
    ElectionMessage,
    Heartbeat,
    Journalled,
    Vote,
    unpack_control,
    unpack_election,
)
from skulkd.core.voting import TermVote
from skulkd.eventlog.journal_term import TermFile
from skulkd.runtime.simulated_disk import SimulatedDisk


def promised_by(sender: NodeId, receiver: NodeId, message: ElectionMessage) -> TermVote | None:
    """Give the promise that a message rests on; None where it rests on none."""
    match message:
        case Campaign(is_trial=False):
            return TermVote(term=message.number, voted_for=sender)
        case Vote(is_trial=False, denial=""):
            return TermVote(term=message.number, voted_for=receiver)
        case _:
            return None


def is_kept(promise: TermVote, disk: SimulatedDisk, path: Path) -> bool:
    """Say whether a promise would still be known after a loss of the power."""
    try:
        # A replaced file is durable at once; its caller hears of it later.
        kept = TermFile(disk, path).read()
    except ClusterError:
        return False  # damaged
    return kept == promise or kept.term > promise.term


@dataclass(slots=True, kw_only=True)
class _Life:
    cluster_id: ClusterId
    archives: tuple[str, ...]
    """Journals that had been put aside when it began."""
    said_seq: int = 0
    """Up to which event it has said its log to be durable."""


@final
class DurableWords:
    """Listens to all that the nodes of one history say.

    Args:
        disks: Where each node keeps what it says to be durable.
        home: Where in each.
        problems: Gets what does not hold.
    """

    def __init__(
        self, disks: Mapping[NodeId, SimulatedDisk], home: Path, problems: list[str]
    ) -> None:
        self._disks = disks
        self._home: Final = home
        self._problems = problems
        self._lives: dict[NodeId, _Life] = {}
        self._heard: dict[NodeId, bytes] = {}
        """The last heartbeat of each: most repeat it."""

    def on_payload(self, sender: NodeId, receiver: NodeId, plane: Plane, payload: bytes) -> None:
        """Take what one node sends to another."""
        if plane == "election" and self._heard.get(sender) != payload:
            self._hear(sender, receiver, unpack_election(payload), payload)
        elif plane == "control":
            frame = unpack_control(payload)
            if isinstance(frame, Journalled):
                self._note_seq(sender, frame.seq)

    def on_begin(self, node_id: NodeId, cluster_id: ClusterId, seq: int) -> None:
        """See that a node knows again what it said in its life before.

        Args:
            node_id: Which node.
            cluster_id: Whose log it has now.
            seq: How far that goes.
        """
        names = self._disks[node_id].list(self._home)
        archives = tuple(name for name in names if ".archive-" in name)
        before = self._lives.get(node_id)
        self._lives[node_id] = _Life(cluster_id=cluster_id, archives=archives)
        if before is None or (before.cluster_id, before.archives) != (cluster_id, archives):
            return  # it has another log, and the old one lies beside it
        if seq < before.said_seq:
            self._problems.append(
                f"{node_id} said that its log was durable to seq {before.said_seq}, and came back "
                f"with {seq}"
            )

    def _hear(
        self, sender: NodeId, receiver: NodeId, message: ElectionMessage, payload: bytes
    ) -> None:
        if isinstance(message, Heartbeat):
            self._heard[sender] = payload
            self._note_seq(sender, message.position.seq)
        promise = promised_by(sender, receiver, message)
        if promise is not None and not is_kept(promise, self._disks[sender], self._home / "term"):
            self._problems.append(f"{sender} says {message}, and its disk does not know of it")

    def _note_seq(self, sender: NodeId, seq: int) -> None:
        life = self._lives.get(sender)
        if life is not None:
            life.said_seq = max(life.said_seq, seq)
