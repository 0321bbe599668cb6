"""Who is heard, as one node sees it: silence, refusals, goodbyes, and copied identities; pure.

Silence only counts while this node itself was looking: time in which its loop stood still accuses
nobody. What was really heard and when is kept beside it, for the lease.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, final

from protocol.ids import NodeId
from protocol.peer_messages import Heartbeat

LEFTOVER_S: Final = 1.0
"""So long after a refused connection, heartbeats of the same process are what was still on its way
when it ended; later ones say that it lives behind a closed port."""
BOOTS_KEPT_S: Final = 10.0
"""Two boot ids that take turns within this time are two processes on one key."""


@dataclass(slots=True)
class _Peer:
    heard_s: float | None = None
    counted_s: float = 0.0
    """`heard_s`, moved on over the times in which this node did not look."""
    heartbeat: Heartbeat | None = None
    hears_us: bool = False
    refused_s: float | None = None
    """Since when nobody listens there; None while somebody does or the link was never open."""
    has_left: bool = False
    boots: dict[str, float] = field(default_factory=dict[str, float])
    """When each boot id was last heard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateBoot:
    """Two processes say that they are the same node."""

    node_id: NodeId
    boot_ids: tuple[str, str]
    seen_s: float


@final
class Peers:
    """The other nodes, as they are heard.

    Args:
        node_id: This node.
        boot_id: Of this process.
    """

    def __init__(self, node_id: NodeId, boot_id: str) -> None:
        self._node_id = node_id
        self._boot_id = boot_id
        self._peers: dict[NodeId, _Peer] = {}
        self._duplicates: dict[NodeId, DuplicateBoot] = {}

    def hear(self, sender: NodeId, *, now: float) -> None:
        """Note a message meant for this node alone: only those that hear it are written to.

        It revives nobody that is known to be gone.
        """
        peer = self._peers.setdefault(sender, _Peer())
        if peer.refused_s is None and not peer.has_left:
            peer.heard_s = peer.counted_s = now
            peer.hears_us = True

    def hear_heartbeat(self, sender: NodeId, heartbeat: Heartbeat, *, now: float) -> bool:
        """Note a heartbeat.

        Returns:
            False for one that says nothing about the present: from this node itself, from another
            process on its key, or left over from a process that has ended.
        """
        if sender == self._node_id:
            if heartbeat.boot_id != self._boot_id:
                self._note_duplicate(sender, self._boot_id, heartbeat.boot_id, now)
            return False
        peer = self._peers.setdefault(sender, _Peer())
        former = peer.heartbeat
        is_same = former is not None and former.boot_id == heartbeat.boot_id
        if peer.refused_s is not None and is_same and now - peer.refused_s < LEFTOVER_S:
            return False
        self._note_boot(sender, peer, heartbeat.boot_id, now)
        peer.heard_s = peer.counted_s = now
        peer.heartbeat = heartbeat
        peer.hears_us = self._node_id not in heartbeat.unheard
        peer.refused_s = None
        peer.has_left = False
        return True

    def hear_farewell(self, sender: NodeId) -> None:
        """Note a goodbye; the next heartbeat takes it back."""
        self._peers.setdefault(sender, _Peer()).has_left = True

    def see_link(self, peer: NodeId, *, is_refused: bool, now: float) -> None:
        """Note how the way to a peer is."""
        known = self._peers.setdefault(peer, _Peer())
        if not is_refused:
            known.refused_s = None
        elif known.refused_s is None:
            known.refused_s = now
            known.counted_s = -math.inf

    def excuse(self, *, looked_s: float, suspicion_s: float, now: float) -> None:
        """Let the time since `looked_s` count as nobody's silence."""
        for peer in self._peers.values():
            if peer.heard_s is not None and looked_s - peer.counted_s <= suspicion_s:
                peer.counted_s = min(now, peer.counted_s + now - looked_s)

    def forget(self, removed: Iterable[NodeId]) -> None:
        """Keep nothing of nodes that are out for good."""
        for node_id in removed:
            self._peers.pop(node_id, None)
            self._duplicates.pop(node_id, None)

    def is_alive(self, node_id: NodeId, *, suspicion_s: float, now: float) -> bool:
        """Say whether a node was heard of late, and is not known to be gone since."""
        if node_id == self._node_id:
            return True
        peer = self._peers.get(node_id)
        if peer is None or peer.heard_s is None or peer.has_left or peer.refused_s is not None:
            return False
        return now - peer.counted_s <= suspicion_s

    def alive_of(
        self, nodes: Iterable[NodeId], *, suspicion_s: float, now: float
    ) -> tuple[NodeId, ...]:
        """Pick out, in their order, those that `is_alive` says are."""
        is_alive = self.is_alive
        return tuple(node for node in nodes if is_alive(node, suspicion_s=suspicion_s, now=now))

    def next_suspect_s(self, *, suspicion_s: float, now: float) -> float | None:
        """Give the time until which all that are alive are so, should nobody be heard till then."""
        return min(
            (
                peer.counted_s + suspicion_s
                for node_id, peer in self._peers.items()
                if node_id != self._node_id
                and self.is_alive(node_id, suspicion_s=suspicion_s, now=now)
            ),
            default=None,
        )

    def hears_us(self, node_id: NodeId) -> bool:
        """Say whether a node's last message shows that it hears this one."""
        peer = self._peers.get(node_id)
        return peer is not None and peer.hears_us

    def is_gone(self, node_id: NodeId) -> bool:
        """Say whether a node is known to have ended, not merely silent."""
        peer = self._peers.get(node_id)
        return peer is not None and (peer.has_left or peer.refused_s is not None)

    def has_left(self, node_id: NodeId) -> bool:
        """Say whether a node said goodbye."""
        peer = self._peers.get(node_id)
        return peer is not None and peer.has_left

    def refused_s(self, node_id: NodeId, *, now: float) -> float | None:
        """Say for how long nobody has listened there; None when somebody does."""
        peer = self._peers.get(node_id)
        return None if peer is None or peer.refused_s is None else now - peer.refused_s

    def silent_s(self, node_id: NodeId, *, now: float) -> float | None:
        """Say for how long a node has really been silent; None for one never heard."""
        peer = self._peers.get(node_id)
        return None if peer is None or peer.heard_s is None else now - peer.heard_s

    def counted_s(self, node_id: NodeId) -> float | None:
        """Say from when on a node's silence counts; None for one never heard."""
        peer = self._peers.get(node_id)
        return None if peer is None or peer.heard_s is None else peer.counted_s

    def heartbeat(self, node_id: NodeId) -> Heartbeat | None:
        """Give a node's last heartbeat."""
        peer = self._peers.get(node_id)
        return None if peer is None else peer.heartbeat

    def duplicates(self, *, now: float) -> tuple[DuplicateBoot, ...]:
        """List the nodes that were two processes within the last ten seconds."""
        return tuple(
            found for found in self._duplicates.values() if now - found.seen_s <= BOOTS_KEPT_S
        )

    def _note_boot(self, sender: NodeId, peer: _Peer, boot_id: str, now: float) -> None:
        """Notice an old boot id that is heard again behind a newer one."""
        current = None if peer.heartbeat is None else peer.heartbeat.boot_id
        if current is not None and boot_id != current and boot_id in peer.boots:
            self._note_duplicate(sender, boot_id, current, now)
        peer.boots[boot_id] = now
        if len(peer.boots) > 1:
            kept = {boot: s for boot, s in peer.boots.items() if now - s <= BOOTS_KEPT_S}
            peer.boots = kept

    def _note_duplicate(self, node_id: NodeId, one: str, other: str, now: float) -> None:
        first, second = sorted((one, other))
        self._duplicates[node_id] = DuplicateBoot(
            node_id=node_id, boot_ids=(first, second), seen_s=now
        )
