"""What a node is in the present term: master, member, or neither; pure."""

from dataclasses import replace
from typing import Literal, final

from protocol.ids import NodeId
from protocol.peer_messages import TermPair
from skulkd.core.sight import LEASE_S, Sight
from skulkd.core.voting import Claim

Role = Literal["resting", "member", "master"]


@final
class Tenure:
    """The role of one node, and the term that it leads or follows.

    Args:
        node_id: The node.
        sight: What it sees.
    """

    def __init__(self, node_id: NodeId, sight: Sight) -> None:
        self._me = node_id
        self._sight = sight
        self._role: Role = "resting"
        self._claim: Claim | None = None
        self._last_master: NodeId | None = None
        self._had_lease = True
        self._highest = TermPair(0, node_id)

    @property
    def role(self) -> Role:
        """What this node is."""
        return self._role

    @property
    def claim(self) -> Claim | None:
        """Of the master that it obeys, or its own; None while it is resting."""
        return self._claim

    @property
    def master(self) -> NodeId | None:
        """Whom it obeys, or itself."""
        return None if self._claim is None else self._claim.pair.master

    @property
    def last_master(self) -> NodeId | None:
        """The last master that was known."""
        return self._last_master

    @property
    def is_minority(self) -> bool:
        """Whether the term is a minority's."""
        return self._claim is not None and self._claim.is_minority

    @property
    def led_number(self) -> int | None:
        """The number of the term that this node leads; None when it leads none."""
        return self._claim.pair.number if self._role == "master" and self._claim else None

    def enter(self, role: Role, claim: Claim | None) -> None:
        """Take a role; the claim is None for a resting node, and for it alone."""
        self._role = role
        self._claim = claim
        self._had_lease = True
        if claim is not None:
            self._last_master = claim.pair.master

    def renew(self, claim: Claim) -> None:
        """Take the newest claim of the same term."""
        self._claim = claim

    def hear_claim(self, pair: TermPair) -> None:
        """Note a term that somebody claims to lead."""
        self._highest = max(self._highest, pair)

    def is_outbid(self, known_number: int) -> bool:
        """Say whether a higher term is known than the one that is led or followed."""
        if self._claim is None:
            return False
        return known_number > self._claim.pair.number or self._highest > self._claim.pair

    def learn_from_log(self) -> None:
        """On the master: its log says how far it is settled, and whether its term is by now."""
        claim, log = self._claim, self._sight.log
        if claim is not None and claim.is_minority and log.head.term == claim.pair.number:
            self._claim = replace(claim, is_minority=log.ends_in_minority, settled=log.head[:2])

    def has_lease_changed(self, *, now: float) -> bool:
        """On the master: say, once, that it has lost its lease or has it again."""
        if self._has_lease(now=now) == self._had_lease:
            return False
        self._had_lease = not self._had_lease
        return True

    def is_leading(self, *, now: float) -> bool:
        """Say whether this node is master, awake, and within its lease; true to the moment."""
        is_awake = now - self._sight.looked_s <= LEASE_S
        return is_awake and self._has_lease(now=now)

    def _has_lease(self, *, now: float) -> bool:
        number = self.led_number
        return number is not None and self._sight.has_lease(number, now=now)

    def term(self, *, now: float) -> TermPair | None:
        """Give the term that is led or followed; None without a living master."""
        if self._claim is None:
            return None
        if self._role == "master":
            is_there = self.is_leading(now=now)
        else:
            is_there = self._sight.is_alive(self._claim.pair.master, now=now)
        return self._claim.pair if is_there else None

    def followers(self, *, now: float) -> frozenset[NodeId]:
        """Name the other voters that follow this master's term."""
        if self._role != "master" or self._claim is None:
            return frozenset()
        pair, sight = self._claim.pair, self._sight
        return frozenset(v for v in sight.others() if sight.follows(v, pair, now=now))
