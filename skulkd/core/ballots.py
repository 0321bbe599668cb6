"""One campaign of a node: whom it asks, what they answer, and when it is decided; pure."""

from dataclasses import dataclass, field
from typing import Final, Literal, final

from protocol.ids import NodeId
from protocol.peer_messages import Campaign, Denial
from skulkd.core.election_effects import Send
from skulkd.core.sight import Sight
from skulkd.core.voting import is_majority

ASK_AGAIN_S: Final = 0.4
Outcome = Literal["open", "won", "lost"]
Stage = Literal["trial", "saving", "vote"]
"""Asking what would be; making the own vote durable; asking for votes."""


@final
@dataclass(slots=True, kw_only=True)
class Ballot:
    """A campaign, and what was answered."""

    number: int
    stage: Stage
    is_handover: bool
    ends_s: float
    ask_again_s: float
    granted: set[NodeId]
    abstained: set[NodeId] = field(default_factory=set[NodeId])
    """They cannot promise anything, and say that they would."""
    denied: dict[NodeId, Denial] = field(default_factory=dict[NodeId, Denial])

    def note(self, voter: NodeId, denial: Denial) -> None:
        """Take an answer; a voter may change its mind when it is asked again."""
        self.granted.discard(voter)
        self.denied.pop(voter, None)
        if not denial:
            self.granted.add(voter)
        elif denial == "disk":
            self.abstained.add(voter)
        else:
            self.denied[voter] = denial

    def ask(self, sight: Sight, *, now: float) -> list[Send]:
        """Ask those who live and have not said anything."""
        self.ask_again_s = now + ASK_AGAIN_S
        silent = sight.alive(now=now) - self.granted - self.abstained - self.denied.keys()
        if not silent:
            return []
        campaign = Campaign(
            number=self.number,
            is_trial=self.stage == "trial",
            position=sight.log.durable,
            is_handover=self.is_handover,
        )
        return [Send(to=tuple(sorted(silent)), message=campaign)]

    def outcome(self, sight: Sight, *, may_be_few: bool, now: float) -> Outcome:
        """Say how it stands.

        Args:
            sight: Who votes, who is near, and by which policy.
            may_be_few: Half of the voters or fewer may decide it.
            now: Boot time in seconds.
        """
        if self.stage == "saving":
            return "open"
        voters, near = sight.voters(), sight.near(now=now)
        is_many = is_majority(len(self.granted & voters), len(voters))
        if sight.log.policy == "quorum":
            possible = (self.granted | near) & voters - self.denied.keys() - self.abstained
            is_possible = is_majority(len(possible), len(voters))
            return "won" if is_many else "open" if is_possible else "lost"
        if near & self.denied.keys():
            return "lost"
        if near - self.granted - self.abstained:
            return "open"
        return "won" if is_many or may_be_few or self.is_handover else "lost"
