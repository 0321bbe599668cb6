"""When a node campaigns, how often, and how it stands: one campaign at a time; pure.

Rank and chance spread the first try of those that miss the master at the same moment, and whoever
has just encouraged another lets it go first: with many nodes one of them asks, and not all.
"""

import random
from typing import Final, final

from protocol.ids import NodeId
from skulkd.core.ballots import Ballot

RANK_SPREAD_S: Final = 0.2
"""Between the starts of priority 100 and 0."""
START_JITTER_S: Final = 0.1
FRESHER_FIRST_S: Final = 0.15
"""Added while another voter that is alive has a fresher log."""
TRIAL_S: Final = 1.0
VOTE_S: Final = 3.0
"""Longer than a voter's disk may take."""
FIRST_BACKOFF_S: Final = 0.15
MAX_BACKOFF_S: Final = 4.0
DEFER_S: Final = 0.5
"""So long a node lets the one go first that it has just encouraged."""
MAX_DEFERRALS: Final = 3


@final
class Campaigning:
    """The campaigns of one node.

    Args:
        node_id: The candidate.
        priority: 0 to 100.
        rng: Draws delays.
        now: Boot time in seconds.
    """

    def __init__(self, node_id: NodeId, priority: int, *, rng: random.Random, now: float) -> None:
        self._me = node_id
        self._priority = priority
        self._rng = rng
        self.ballot: Ballot | None = None
        self._start_s: float | None = None
        self._not_before_s = now
        self._n_failed = 0
        self._n_deferred = 0

    @property
    def deadline(self) -> float | None:
        """When something is due; None when nothing is."""
        if self.ballot is not None:
            return min(self.ballot.ends_s, self.ballot.ask_again_s)
        return None if self._start_s is None else max(self._start_s, self._not_before_s)

    def reset(self) -> None:
        """Begin with a clean slate: the node's role has changed."""
        self.ballot = None
        self._start_s = None
        self._n_failed = self._n_deferred = 0

    def want(self, *, has_rivals: bool, has_fresher: bool, now: float) -> bool:
        """Say whether to begin now, while everything speaks for a campaign.

        Args:
            has_rivals: Others may want the same at the same moment.
            has_fresher: Somebody else's log is fresher.
            now: Boot time in seconds.
        """
        if self._start_s is None:
            delay_s = 0.0
            if has_rivals:
                delay_s = RANK_SPREAD_S * (100 - self._priority) / 100
                delay_s += self._rng.uniform(0.0, START_JITTER_S)
                delay_s += FRESHER_FIRST_S if has_fresher else 0.0
            self._start_s = now + delay_s
        return now >= max(self._start_s, self._not_before_s)

    def unwant(self) -> None:
        """Something speaks against a campaign; the next one is delayed anew."""
        self._start_s = None

    def begin(self, number: int, *, is_handover: bool, now: float) -> Ballot:
        """Begin with a trial."""
        self.ballot = Ballot(
            number=number,
            stage="trial",
            is_handover=is_handover,
            ends_s=now + TRIAL_S,
            ask_again_s=now,
            granted={self._me},
        )
        return self.ballot

    def begin_saving(self, ballot: Ballot, *, now: float) -> None:
        """The trial went well: the own vote is on its way to the disk."""
        ballot.stage = "saving"
        ballot.ends_s = ballot.ask_again_s = now + VOTE_S

    def begin_vote(self, ballot: Ballot, *, now: float) -> None:
        """The own vote is durable: ask for the others'."""
        ballot.stage = "vote"
        ballot.granted = {self._me}
        ballot.abstained.clear()
        ballot.denied.clear()
        ballot.ends_s = now + VOTE_S
        ballot.ask_again_s = now

    def lose(self, *, now: float) -> None:
        """Give the campaign up, and wait longer after each."""
        self.ballot = None
        self._start_s = None
        doubled = 2.0 ** min(self._n_failed, 8)
        self._n_failed += 1
        backoff_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * doubled)
        self.hold(backoff_s * self._rng.uniform(0.5, 1.5), now=now)

    def defer(self, wait_s: float, *, now: float) -> None:
        """Let another one go first; not for ever, should nothing come of it."""
        if self._n_deferred < MAX_DEFERRALS:
            self._n_deferred += 1
            self.hold(wait_s + self._rng.uniform(0.0, START_JITTER_S), now=now)

    def hold(self, wait_s: float, *, now: float) -> None:
        """Do not begin before so long."""
        self._not_before_s = max(self._not_before_s, now + wait_s)
