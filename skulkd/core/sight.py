"""What a node sees at a moment: its log, its peers, and whether it looks well itself; pure."""

from typing import Final, final

from protocol.ids import NodeId
from protocol.peer_messages import TermPair
from skulkd.core.election_inputs import ElectionSpec
from skulkd.core.liveness import Peers
from skulkd.core.voting import LogLook, electorate, is_majority

SUSPICION_S: Final = 2.0
"""Four heartbeats."""
LEASE_S: Final = 2.0
LAG_S: Final = 0.5
LAG_REMEMBERED_S: Final = 5.0


@final
class Sight:
    """What a node sees.

    Args:
        spec: The node.
        log: Its log now.
        now: Boot time in seconds, here and everywhere.
    """

    def __init__(self, spec: ElectionSpec, *, log: LogLook, now: float) -> None:
        self._spec = spec
        self._me = spec.node_id
        self.log = log
        self.peers: Final = Peers(spec.node_id, spec.boot_id)
        self.looked_s = now
        self._lagged_s: float | None = None

    def look(self, log: LogLook, *, due_s: float, now: float) -> float:
        """Look anew.

        Args:
            log: The log now.
            due_s: When this look was wanted at the latest; how late it comes is this node's lag.
            now: Boot time in seconds.

        Returns:
            The seconds since the last look.
        """
        gap_s = now - self.looked_s
        if now - due_s > LAG_S:
            suspicion_s = self.suspicion_s(now=self.looked_s)
            self.peers.excuse(looked_s=self.looked_s, suspicion_s=suspicion_s, now=now)
            self._lagged_s = now
        self.looked_s = now
        if log is not self.log and log.removed:
            self.peers.forget(log.removed)
        self.log = log
        return gap_s

    def is_lagging(self, *, now: float) -> bool:
        """Say whether this node's loop was late within the last five seconds."""
        return self._lagged_s is not None and now - self._lagged_s <= LAG_REMEMBERED_S

    def suspicion_s(self, *, now: float) -> float:
        """Give the silence that makes a node suspect."""
        return SUSPICION_S * (2 if self.is_lagging(now=now) else 1)

    def voters(self) -> frozenset[NodeId]:
        """Name those whose votes count."""
        return electorate(self.log, self._me, is_founder=self._spec.is_founder)

    def others(self) -> frozenset[NodeId]:
        """Name the voters beside this node."""
        return self.voters() - {self._me}

    def is_alone(self) -> bool:
        """Say whether this node is the only voter."""
        return self.voters() == frozenset({self._me})

    def is_alive(self, node_id: NodeId, *, now: float) -> bool:
        """Say whether a node was heard within the suspicion time; this node always is."""
        return self.peers.is_alive(node_id, suspicion_s=self.suspicion_s(now=now), now=now)

    def is_near(self, node_id: NodeId, *, now: float) -> bool:
        """Say whether a node is alive and hears this one."""
        is_alive = self.is_alive(node_id, now=now)
        return is_alive and (node_id == self._me or self.peers.hears_us(node_id))

    def near(self, *, now: float) -> frozenset[NodeId]:
        """Name the other voters that are alive and hear this node."""
        return frozenset(voter for voter in self.others() if self.is_near(voter, now=now))

    def alive(self, *, now: float) -> frozenset[NodeId]:
        """Name the other voters that are alive."""
        suspicion_s = self.suspicion_s(now=now)
        return frozenset(self.peers.alive_of(self.others(), suspicion_s=suspicion_s, now=now))

    def unheard(self, *, now: float) -> tuple[NodeId, ...]:
        """Name the members that are not heard, sorted."""
        members, suspicion_s = self.log.members, self.suspicion_s(now=now)
        alive = self.peers.alive_of(members, suspicion_s=suspicion_s, now=now)
        return tuple(sorted(members - {self._me, *alive}))

    def has_majority(self, *, now: float) -> bool:
        """Say whether more than half of the voters are near, this node included."""
        return is_majority(len(self.near(now=now)) + 1, len(self.others()) + 1)

    def is_rest_gone(self, *, now: float) -> bool:
        """Say whether every voter that is not near is known to have ended."""
        near = self.near(now=now)
        return all(voter in near or self.peers.is_gone(voter) for voter in self.others())

    def has_lease(self, number: int, *, now: float) -> bool:
        """Say whether the master of a term may go on deciding.

        In `quorum` a majority must have heard it and be able to follow it.
        """
        if self.log.policy != "quorum":
            return True
        voters = self.voters()
        n_heard = sum(1 for voter in voters if self._renews_lease(voter, number, now))
        return is_majority(n_heard, len(voters))

    def _renews_lease(self, voter: NodeId, number: int, now: float) -> bool:
        if voter == self._me:
            return True
        heartbeat, silent_s = self.peers.heartbeat(voter), self.peers.silent_s(voter, now=now)
        if heartbeat is None or silent_s is None or silent_s > LEASE_S:
            return False
        has_other = heartbeat.number > number and heartbeat.master not in {None, self._me}
        # Back among those who have followed a higher term, a master would decide for nobody.
        return self.peers.hears_us(voter) and not has_other and heartbeat.position.term <= number

    def follows(self, voter: NodeId, pair: TermPair, *, now: float) -> bool:
        """Say whether a node that is alive follows this term."""
        heartbeat = self.peers.heartbeat(voter)
        if heartbeat is None or not self.is_alive(voter, now=now):
            return False
        return (heartbeat.number, heartbeat.master) == pair

    def leads_settled(self, node_id: NodeId, *, now: float) -> bool:
        """Say whether a node that is alive claims a term that a majority elected."""
        heartbeat = self.peers.heartbeat(node_id)
        if heartbeat is None or not self.is_alive(node_id, now=now):
            return False
        return heartbeat.master == node_id and not heartbeat.is_minority

    def has_fresher(self, *, now: float) -> bool:
        """Say whether another voter that is near has a fresher log."""
        heartbeats = (self.peers.heartbeat(voter) for voter in self.near(now=now))
        return any(known is not None and known.position > self.log.durable for known in heartbeats)

    def all_lag(self, *, now: float) -> bool:
        """Say whether others are near, and every one of them lags."""
        heartbeats = [self.peers.heartbeat(voter) for voter in self.near(now=now)]
        return bool(heartbeats) and all(known and known.is_lagging for known in heartbeats)

    def successor(self, *, now: float) -> NodeId | None:
        """Give who could take over best: near, not lagging, with the freshest log."""
        heartbeats = {
            voter: heartbeat
            for voter in self.near(now=now)
            if (heartbeat := self.peers.heartbeat(voter)) is not None and not heartbeat.is_lagging
        }
        return max(heartbeats, key=lambda node: (heartbeats[node].position, node), default=None)
