"""What a node has promised in elections: a number is voted in once, whatever the disk does; pure.

The highest number in which a vote was ever to be saved is spent, whether the disk took it or not:
after a failed write nobody knows what is there. A node whose file cannot be read knows nothing of
its promises; it may promise again once it has heard every other voter.
"""

from dataclasses import dataclass
from typing import Final, final

from protocol.ids import NodeId
from skulkd.core.election_effects import SaveVote
from skulkd.core.voting import TermVote

SAVE_S: Final = 2.0
"""A voter whose disk takes longer says so."""


@dataclass(slots=True, kw_only=True)
class _Saving:
    vote: TermVote
    since_s: float
    is_answered: bool = False
    """The candidate has been told that the disk does not answer."""


@final
class Promises:
    """The promises of one node.

    Args:
        kept: What is durable; None when that cannot be read.
    """

    def __init__(self, kept: TermVote | None) -> None:
        self._kept = kept
        self._spent = 0 if kept is None else kept.term
        self._is_damaged = kept is None
        self._saving: _Saving | None = None

    @property
    def kept(self) -> TermVote | None:
        """What is durable; None while that is unknown."""
        return self._kept

    @property
    def spent(self) -> int:
        """The highest number in which this node may have voted."""
        return self._spent

    @property
    def floor(self) -> int:
        """No lower term may be followed any more."""
        kept = 0 if self._kept is None else self._kept.term
        return kept if self._saving is None else max(kept, self._saving.vote.term)

    @property
    def is_saving(self) -> bool:
        """Whether a promise is on its way to the disk; there is one at a time."""
        return self._saving is not None

    def has_voted(self, number: int, candidate: NodeId) -> bool:
        """Say whether this very vote is durable."""
        return self._kept == TermVote(term=number, voted_for=candidate)

    def is_under_way(self, number: int, candidate: NodeId) -> bool:
        """Say whether this very vote is being saved."""
        vote = TermVote(term=number, voted_for=candidate)
        return self._saving is not None and self._saving.vote == vote

    def is_free(self, number: int, candidate: NodeId) -> bool:
        """Say whether this node may vote for a candidate in a number."""
        is_new = number > self._spent or self.has_voted(number, candidate)
        return is_new and self._saving is None

    def is_stuck(self, *, now: float) -> bool:
        """Say whether the disk has not answered for so long that nothing can be promised."""
        return self._saving is not None and now >= self._saving.since_s + SAVE_S

    def save(self, vote: TermVote, *, now: float) -> SaveVote:
        """Begin to make a promise; the caller has asked `is_free`."""
        self._spent = vote.term
        self._saving = _Saving(vote=vote, since_s=now)
        return SaveVote(vote=vote, replaces_damaged=self._is_damaged)

    def saved(self, vote: TermVote, *, is_durable: bool) -> bool:
        """Note how it ended; says whether a candidate still waits for the answer."""
        saving, self._saving = self._saving, None
        if saving is None or saving.vote != vote:
            message = f"nobody asked to save {vote}"
            raise AssertionError(message)
        if is_durable:
            self._kept = vote
            self._is_damaged = False
        return not saving.is_answered

    def late(self, *, now: float) -> TermVote | None:
        """Give the promise that the disk takes too long for; once for each."""
        saving = self._saving
        if saving is None or saving.is_answered or not self.is_stuck(now=now):
            return None
        saving.is_answered = True
        return saving.vote

    def recall(self, known_number: int) -> None:
        """Begin to promise again: nothing was promised beyond this number."""
        if self._kept is None and self._saving is None:
            self._spent = max(self._spent, known_number)
            self._kept = TermVote(term=self._spent)
