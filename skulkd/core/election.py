"""The machine of elections on one node: from silence to a campaign, a term, and its end.

A node is *resting* (it knows no living master), *member* (it follows one) or *master*. A campaign
runs beside that: it asks first what would be (a trial promises nothing), then makes the node's own
vote durable, then asks for votes. Messages are answered in every role.

What holds it together:

- A number is voted in once. The vote is durable before it leaves (`SaveVote`, then `VoteSaved`);
  a disk that fails gives no vote. A node that no longer knows what it promised votes again only
  when it has heard every other voter: who had asked for that vote is among them and says a number
  at least as high.
- Who has voted in a term follows no lower one, so that it acknowledges nothing there: it rests
  from the moment in which it decides to vote.
- A master that is heard keeps its place (`voting.outranks` names the exceptions). Rank moves the
  start of a campaign by some tenths of a second, and nothing else.
- Higher numbers. A claim of a higher term that `voting.displaces` allows makes master and member
  alike obey it. Any other higher number makes a master campaign for a number above it while it goes
  on leading: somebody may have promised not to follow its term any more. A trial's number counts
  for nothing. If such a campaign fails at its last step the master rests.
- Time is boot time. A gap of more than `LEASE_S` between two looks ends a master's role before
  anything else is handled, and `is_master` sees the gap itself. In `quorum` a master that has not
  heard a majority for that long decides nothing, claims nothing and keeps nobody from being
  elected; heard again in time, it goes on in its term. Who has followed a higher term does not
  count as heard. The lease guards answers, not the log: a commit needs a majority anyway.
- Its own lag is how late `tick` comes. A node that lags suspects others half as fast and campaigns
  only when somebody else has turned out to miss the master too.
"""

import random
from typing import Final, assert_never, final

from protocol.ids import NodeId
from protocol.peer_messages import (
    Campaign,
    Denial,
    ElectionMessage,
    Farewell,
    Handover,
    Heartbeat,
    TermPair,
    Vote,
)
from skulkd.core.ballots import Ballot
from skulkd.core.campaigning import DEFER_S, Campaigning
from skulkd.core.election_effects import (
    Beat,
    Effect,
    Follow,
    HearCommit,
    Journalled,
    Lead,
    Rest,
    Send,
)
from skulkd.core.election_inputs import (
    BeginHandover,
    BeginLeaving,
    ElectionSpec,
    FallAsleep,
    Heard,
    Input,
    LinkSeen,
    VoteSaved,
    WakeUp,
)
from skulkd.core.granting import denial_of
from skulkd.core.handing_over import Handovers
from skulkd.core.liveness import Peers
from skulkd.core.patience import Patience
from skulkd.core.promises import Promises
from skulkd.core.sight import LEASE_S, Sight
from skulkd.core.tenure import Role, Tenure
from skulkd.core.voting import (
    MAX_NUMBER,
    Claim,
    LogLook,
    TermVote,
    can_follow,
    claim_of,
    is_majority,
)

HEARTBEAT_S: Final = 0.5
BEAT_GRACE_S: Final = 0.1
"""So much later than due a member says its heartbeat when the master's has not come: it says its
own with the master's, so that all come together and wake a node once, not a hundred times."""
PULSE_S: Final = 0.25
"""The longest time between two looks while something is amiss."""
CALM_PULSE_S: Final = HEARTBEAT_S + BEAT_GRACE_S
"""The same while all is well: no look but those that come with heartbeats, one's own and the
master's. Who falls silent is noticed on time nevertheless."""
LONG_SILENT_S: Final = 20.0
"""Longer than it takes until a silent member counts as lost: then all is well without it."""
_ALONG_S: Final = 0.2
"""So long before a look is due, a heartbeat is reason enough for it."""
_GRAIN_S: Final = 0.001
"""Past the moment from which silence is suspect."""


@final
class ElectionMachine:
    """Elections on one node; see the module.

    Args:
        spec: The node.
        promise: What it has promised durably; None when that cannot be read.
        log: Its log now.
        rng: Draws delays.
        now: Boot time in seconds, here and everywhere.
    """

    def __init__(
        self,
        spec: ElectionSpec,
        *,
        promise: TermVote | None,
        log: LogLook,
        rng: random.Random,
        now: float,
    ) -> None:
        self._spec = spec
        self._me = spec.node_id
        self._sight = Sight(spec, log=log, now=now)
        self._promises = Promises(promise)
        self._campaigning = Campaigning(spec.node_id, spec.priority, rng=rng, now=now)
        self._handovers = Handovers()
        self._known = max(self._promises.spent, log.head.term)
        self._tenure = Tenure(spec.node_id, self._sight)
        self._is_leaving = self._is_asleep = False
        self._patience = Patience(now=now)
        self._beaten_s = self._beat_s = now
        self._deadline = self._pulse_s = now
        self._suspect_s: float | None = None
        """When the next member becomes suspect, unless it is heard before."""
        self._n_looks = 0
        self._effects: list[Effect] = []

    # ---- What is seen from outside ----

    @property
    def deadline(self) -> float:
        """The time at which `tick` wants to be called; how late it comes is this node's lag."""
        return self._deadline

    @property
    def n_looks(self) -> int:
        """How often this node has looked at everything, and not just taken a heartbeat."""
        return self._n_looks

    @property
    def sight(self) -> Sight:
        """What the node sees of the others."""
        return self._sight

    @property
    def peers(self) -> Peers:
        """How the others are heard."""
        return self._sight.peers

    @property
    def tenure(self) -> Tenure:
        """What this node is in the present term."""
        return self._tenure

    @property
    def role(self) -> Role:
        """What this node is."""
        return self._tenure.role

    @property
    def known_number(self) -> int:
        """The highest term number that this node knows."""
        return self._known

    @property
    def promise(self) -> TermVote | None:
        """What it has promised durably; None while that is unknown."""
        return self._promises.kept

    def term(self, *, now: float) -> TermPair | None:
        """Give the term that is led or followed; None without a living master."""
        return self._tenure.term(now=now)

    def is_master(self, *, now: float) -> bool:
        """Say whether this node may decide now; true to the moment, also between two looks."""
        return self._tenure.is_leading(now=now) and not self._handovers.is_paused

    def claimed(self, *, now: float) -> tuple[int, NodeId | None]:
        """Give number and master as heartbeats say them."""
        pair = self.term(now=now)
        return (self._known, None) if pair is None else pair

    # ---- What happens ----

    def start(self, *, now: float) -> None:
        """Begin to look; what lies between this and the making of the machine is nobody's lag."""
        self._sight.looked_s = self._deadline = self._beat_s = now
        self._patience = Patience(now=now)

    def handle(self, given: Input, *, log: LogLook, now: float) -> list[Effect]:
        """Take what happened; returns what to do, in order."""
        self._look(log, now)
        match given:
            case VoteSaved():
                self._vote_saved(given, now)
            case _ if self._me in log.removed:
                pass
            case Heard() if self._is_asleep:
                pass
            case Heard():
                self._hear(given.sender, given.message, now)
                if self._is_quiet(given.message) and now < self._pulse_s - _ALONG_S:
                    return self._done(now)
            case LinkSeen():
                self.peers.see_link(given.peer, is_refused=given.is_refused, now=now)
            case BeginHandover():
                is_master = self.role == "master"
                self._effects += self._handovers.begin(given.target, is_master=is_master, now=now)
            case BeginLeaving() | FallAsleep() | WakeUp():
                self._is_leaving = not isinstance(given, WakeUp)
                self._is_asleep = isinstance(given, FallAsleep)
                if isinstance(given, WakeUp):  # whoever is master is to be heard first
                    self._patience = Patience(now=now)
            case _:
                assert_never(given)
        return self._settle(now)

    def tick(self, *, log: LogLook, now: float) -> list[Effect]:
        """Let time pass; to be called at `deadline`, and harmless before."""
        self._look(log, now)
        return self._settle(now)

    def _look(self, log: LogLook, now: float) -> None:
        """Notice the time in which this node did not look, before anything else."""
        gap_s = self._sight.look(log, due_s=self._deadline, now=now)
        self._known = max(self._known, log.head.term)
        if self.role == "master" and gap_s > LEASE_S:
            self._rest(f"its clock jumped by {gap_s:.1f} s", now, is_certain=False)

    def _is_quiet(self, message: ElectionMessage) -> bool:
        """Say whether nothing can be due after a message that was not due before it.

        Most messages are heartbeats under a settled master, and a hundred nodes send many.
        """
        is_idle = self._campaigning.ballot is None and self._handovers.until_s is None
        is_led = self._tenure.claim is not None and not self._tenure.is_outbid(self._known)
        return isinstance(message, Heartbeat) and is_idle and is_led

    def _settle(self, now: float) -> list[Effect]:
        """Do what is due."""
        if self._me in self._sight.log.removed:
            return self._retire("this node was removed from the cluster", now)
        if self._is_asleep:
            return self._retire("this node goes to sleep", now)
        self._recall_promises()
        claim = self._tenure.claim
        if self.role == "member" and claim is not None:
            self._check_master(claim, now)
        elif self.role == "master":
            self._check_lead(now)
        self._check_promise(now)
        self._check_ballot(now)
        self._check_start(now)
        number = self._tenure.led_number
        self._effects += self._handovers.check(self._sight, number=number, now=now)
        if now >= self._beat_s:
            self._beat(now)
        return self._looked(now)

    def _beat(self, now: float) -> None:
        self._effects.append(Beat())
        self._beaten_s, self._beat_s = now, now + HEARTBEAT_S

    def _beat_along(self, now: float) -> None:
        """Say one's own heartbeat with the master's, but not twice as often as is due."""
        if now - self._beaten_s > HEARTBEAT_S / 2:
            self._beat(now)
        self._beat_s = now + HEARTBEAT_S + BEAT_GRACE_S

    def _retire(self, reason: str, now: float) -> list[Effect]:
        """Take no part: this node was removed, or sleeps."""
        if self.role != "resting":
            self._enter("resting", None, now)
            self._effects.append(Rest(reason=reason))
        self._campaigning.reset()
        self._effects += self._handovers.check(self._sight, number=None, now=now)
        self._beat_s = now + HEARTBEAT_S
        return self._looked(now)

    def _looked(self, now: float) -> list[Effect]:
        """Say when to look again."""
        self._n_looks += 1
        suspicion_s = self._sight.suspicion_s(now=now)
        self._suspect_s = self.peers.next_suspect_s(suspicion_s=suspicion_s, now=now)
        self._pulse_s = now + (CALM_PULSE_S if self._is_calm(now) else PULSE_S)
        return self._done(now)

    def _is_calm(self, now: float) -> bool:
        """Say whether all that may be due soon is heartbeats: nobody has fallen silent of late."""
        is_idle = self._campaigning.ballot is None and self._handovers.until_s is None
        tenure = self._tenure
        is_led = tenure.claim is not None and not tenure.is_outbid(self._known)
        if not (is_idle and is_led) or tenure.is_minority or self._sight.is_lagging(now=now):
            return False
        unheard = self._sight.unheard(now=now)
        silences_s = (self.peers.silent_s(node_id, now=now) for node_id in unheard)
        return all(silent_s is None or silent_s > LONG_SILENT_S for silent_s in silences_s)

    def _done(self, now: float) -> list[Effect]:
        deadlines = [self._pulse_s, self._beat_s]
        if self._suspect_s is not None:
            deadlines.append(self._suspect_s + _GRAIN_S)
        if self._campaigning.deadline is not None:
            deadlines.append(self._campaigning.deadline)
        if self._handovers.until_s is not None:
            deadlines.append(self._handovers.until_s)
        self._deadline = max(now, min(deadlines))
        effects, self._effects = self._effects, []
        return effects

    # ---- Messages ----

    def _hear(self, sender: NodeId, message: ElectionMessage, now: float) -> None:
        if sender in self._sight.log.removed or message.number > MAX_NUMBER:
            return
        if sender == self._me and not isinstance(message, Heartbeat):
            return  # another process on this node's key; its heartbeats tell the operator
        match message:
            case Heartbeat():
                was_alive = self._sight.is_alive(sender, now=now)
                if self.peers.hear_heartbeat(sender, message, now=now):
                    if not was_alive:  # it is to know at once that it is heard
                        self._effects.append(Beat(to=sender))
                    self._on_heartbeat(sender, message, now)
            case Campaign():
                self.peers.hear(sender, now=now)
                self._on_campaign(sender, message, now)
            case Vote():
                self.peers.hear(sender, now=now)
                self._on_vote(sender, message, now)
            case Handover():
                self.peers.hear(sender, now=now)
                self._on_handover(sender, message, now)
            case Farewell():
                self.peers.hear_farewell(sender)
            case _:
                assert_never(message)

    def _on_heartbeat(self, sender: NodeId, heartbeat: Heartbeat, now: float) -> None:
        self._known = max(self._known, heartbeat.number)
        claim = claim_of(sender, heartbeat)
        if claim is not None:
            self._tenure.hear_claim(claim.pair)
            self._on_claim(claim, heartbeat, now)
        elif self.role == "member" and self._tenure.master == sender:
            self._rest("the master has given up its role", now)
        led = (self._tenure.led_number, self._me)
        if (heartbeat.number, heartbeat.master) == led:
            self._effects.append(
                Journalled(
                    member=sender,
                    number=heartbeat.number,
                    seq=heartbeat.position.seq,
                    chain=heartbeat.chain,
                )
            )

    def _on_claim(self, claim: Claim, heartbeat: Heartbeat, now: float) -> None:
        known = self._tenure.claim
        if self.role == "member" and known is not None and known.pair == claim.pair:
            self._tenure.renew(claim)
            self._beat_along(now)
        elif self._can_follow(claim):
            self._follow(claim, now)
        else:
            return
        self._effects.append(HearCommit(term=claim.pair, heartbeat=heartbeat))

    def _can_follow(self, claim: Claim) -> bool:
        is_mutual = self.peers.hears_us(claim.pair.master)
        floor = self._promises.floor
        return can_follow(
            claim, self._tenure.claim, self._sight.log, floor=floor, is_mutual=is_mutual
        )

    def _on_campaign(self, sender: NodeId, campaign: Campaign, now: float) -> None:
        number = campaign.number
        if not campaign.is_trial and self._promises.is_under_way(number, sender):
            return  # asked again; the answer comes once it is durable
        denial = denial_of(
            sender,
            campaign,
            tenure=self._tenure,
            sight=self._sight,
            promises=self._promises,
            is_new=self._patience.is_new(now=now),
            now=now,
        )
        if denial == "log":
            self._patience.is_needed(now=now)
        if campaign.is_trial:
            if not denial:
                self._campaigning.defer(DEFER_S, now=now)
            self._answer(sender, number, denial, is_trial=True)
            return
        self._known = max(self._known, number)
        if denial or self._promises.has_voted(number, sender):
            self._answer(sender, number, denial, is_trial=False)
        else:
            self._vote_for(sender, number, now)

    def _vote_for(self, candidate: NodeId, number: int, now: float) -> None:
        if self.role != "resting":
            self._rest(f"it votes for {candidate} in term {number}", now)
        self._campaigning.ballot = None
        self._campaigning.unwant()
        self._campaigning.defer(2 * DEFER_S, now=now)
        vote = TermVote(term=number, voted_for=candidate)
        self._effects.append(self._promises.save(vote, now=now))

    def _answer(self, candidate: NodeId, number: int, denial: Denial, *, is_trial: bool) -> None:
        known = max(self._known, self._promises.spent)
        vote = Vote(number=number, is_trial=is_trial, denial=denial, known_number=known)
        self._effects.append(Send(to=(candidate,), message=vote))

    def _on_vote(self, sender: NodeId, vote: Vote, now: float) -> None:
        if vote.known_number <= MAX_NUMBER:
            self._known = max(self._known, vote.known_number)
        ballot = self._campaigning.ballot
        stage = "trial" if vote.is_trial else "vote"
        if ballot is None or (ballot.number, ballot.stage) != (vote.number, stage):
            return
        ballot.note(sender, vote.denial)
        if vote.denial == "log":
            self._campaigning.hold(DEFER_S, now=now)

    def _on_handover(self, sender: NodeId, message: Handover, now: float) -> None:
        claim = self._tenure.claim
        if self.role != "member" or claim is None or claim.pair != (message.number, sender):
            return
        if self._can_stand() and not self._promises.is_saving:
            self._begin(now, is_handover=True)

    # ---- Roles ----

    def _lead(self, ballot: Ballot, now: float) -> None:
        voters = self._sight.voters()
        n_votes = len(ballot.granted & voters)
        pair = TermPair(ballot.number, self._me)
        is_minority = not is_majority(n_votes, len(voters))
        claim = Claim(pair=pair, is_minority=is_minority, settled=self._sight.log.head[:2])
        self._enter("master", claim, now)
        self._effects.append(
            Lead(term=pair, is_minority=is_minority, n_votes=n_votes, n_voters=len(voters))
        )
        self._beat_s = now

    def _follow(self, claim: Claim, now: float) -> None:
        master = claim.pair.master
        self._effects += self._handovers.followed(master)
        self._enter("member", claim, now)
        self._effects += [Follow(term=claim.pair), Beat(to=master)]

    def _rest(
        self, reason: str, now: float, *, silent_s: float = 0.0, is_certain: bool = True
    ) -> None:
        was_master = self.role == "master"
        self._enter("resting", None, now)
        self._patience.lost_master(silent_s=silent_s, is_certain=is_certain, now=now)
        self._effects.append(Rest(reason=reason))
        if was_master:
            self._effects.append(Beat())

    def _enter(self, role: Role, claim: Claim | None, now: float) -> None:
        self._tenure.enter(role, claim)
        self._campaigning.reset()
        if claim is not None:
            self._patience.has_master(claim, now=now)

    def _check_master(self, claim: Claim, now: float) -> None:
        master = claim.pair.master
        if self._sight.is_alive(master, now=now):
            self._patience.has_master(claim, now=now)
        elif self.peers.has_left(master):
            self._rest("the master said goodbye", now)
        elif self.peers.is_gone(master):
            self._rest("the master's process has ended", now)
        else:
            silent_s = self.peers.silent_s(master, now=now) or 0.0
            self._rest("the master is silent", now, silent_s=silent_s, is_certain=False)

    def _check_lead(self, now: float) -> None:
        self._tenure.learn_from_log()
        if self._tenure.claim is not None:
            self._patience.has_master(self._tenure.claim, now=now)
        if self._tenure.has_lease_changed(now=now):
            self._effects.append(Beat())

    # ---- Campaigns ----

    def _can_stand(self) -> bool:
        is_known = self._promises.kept is not None
        return is_known and not self._is_leaving and self._me in self._sight.voters()

    def _check_start(self, now: float) -> None:
        if self._campaigning.ballot is not None or self._promises.is_saving:
            return
        if not self._should_stand(now):
            self._campaigning.unwant()
            return
        sight = self._sight
        has_rivals = self.role != "master" and not sight.is_alone()
        has_fresher = sight.has_fresher(now=now)
        if self._campaigning.want(has_rivals=has_rivals, has_fresher=has_fresher, now=now):
            self._begin(now, is_handover=False)

    def _should_stand(self, now: float) -> bool:
        """Say whether it is time to campaign, but for rank and chance."""
        if not self._can_stand() or self.role == "member":
            return False
        is_lagging = self._sight.is_lagging(now=now)
        claim = self._tenure.claim
        if self.role == "master" and claim is not None:
            is_outbid = self._tenure.is_outbid(self._known)
            may_outbid = self._patience.may_outbid(claim, self._sight, is_outbid=is_outbid, now=now)
            return may_outbid and self._handovers.until_s is None and not is_lagging
        if self._sight.is_alone():
            return True
        if not self._patience.may_accuse(self._sight, now=now):
            return False
        return self._patience.may_act(self._sight, now=now)

    def _begin(self, now: float, *, is_handover: bool) -> None:
        number = max(self._known, self._promises.spent) + 1
        ballot = self._campaigning.begin(number, is_handover=is_handover, now=now)
        if is_handover or self._sight.is_alone():
            self._save_own(ballot, now)
        else:
            self._check_ballot(now)

    def _save_own(self, ballot: Ballot, now: float) -> None:
        self._campaigning.begin_saving(ballot, now=now)
        self._known = max(self._known, ballot.number)
        vote = TermVote(term=ballot.number, voted_for=self._me)
        self._effects.append(self._promises.save(vote, now=now))

    def _check_ballot(self, now: float) -> None:
        ballot = self._campaigning.ballot
        if ballot is None:
            return
        may_be_few = self.role == "master" or self._patience.may_be_few(self._sight, now=now)
        outcome = ballot.outcome(self._sight, may_be_few=may_be_few, now=now)
        if outcome == "lost" or (outcome == "open" and now >= ballot.ends_s):
            self._lose_ballot(ballot, now)
        elif outcome == "won" and ballot.stage == "trial":
            self._save_own(ballot, now)
        elif outcome == "won":
            self._lead(ballot, now)
        elif now >= ballot.ask_again_s:
            self._effects += ballot.ask(self._sight, now=now)

    def _lose_ballot(self, ballot: Ballot, now: float) -> None:
        if self.role == "master" and ballot.stage != "trial":
            self._rest(f"its campaign for term {ballot.number} failed", now)
        self._campaigning.lose(now=now)

    # ---- Promises ----

    def _vote_saved(self, given: VoteSaved, now: float) -> None:
        is_awaited = self._promises.saved(given.vote, is_durable=given.is_durable)
        candidate, number = given.vote.voted_for, given.vote.term
        if candidate == self._me:
            self._own_vote_saved(number, now, is_durable=given.is_durable)
        elif candidate is not None and is_awaited:
            self._answer(candidate, number, "" if given.is_durable else "disk", is_trial=False)

    def _own_vote_saved(self, number: int, now: float, *, is_durable: bool) -> None:
        ballot = self._campaigning.ballot
        if ballot is None or (ballot.number, ballot.stage) != (number, "saving"):
            return
        if is_durable:
            self._campaigning.begin_vote(ballot, now=now)
        else:
            self._lose_ballot(ballot, now)

    def _check_promise(self, now: float) -> None:
        late = self._promises.late(now=now)
        if late is not None and late.voted_for is not None and late.voted_for != self._me:
            self._answer(late.voted_for, late.term, "disk", is_trial=False)

    def _recall_promises(self) -> None:
        """End the time in which this node does not know what it promised."""
        if self._promises.kept is not None:
            return
        voters = self._sight.voters()
        is_heard = all(self.peers.heartbeat(voter) is not None for voter in self._sight.others())
        if voters and is_heard:
            self._promises.recall(self._known)
