"""One election machine on a bench: told what happens, and asked what it wants."""

import random
from typing import final

from protocol.ids import NodeId
from protocol.peer_messages import Campaign, Heartbeat, LogPosition, Vote
from protocol.state import Policy
from skulkd.core.election import ElectionMachine
from skulkd.core.election_effects import Effect, SaveVote, Send
from skulkd.core.election_inputs import ElectionSpec, Heard, Input, LinkSeen, VoteSaved
from skulkd.core.voting import LogLook, TermVote
from tests.support.builders import a_node_id

BASE = LogPosition(1, 10, 1, 10)


def a_log(n_nodes: int = 3, policy: Policy = "availability") -> LogLook:
    """Make the log of a settled cluster."""
    members = frozenset(a_node_id(number) for number in range(1, n_nodes + 1))
    return LogLook(
        members=members,
        voters=members,
        removed=frozenset(),
        policy=policy,
        durable=BASE,
        head=BASE,
        ends_in_minority=False,
    )


@final
class ElectionBench:
    """Node 1 of a cluster, its machine, and the time.

    Args:
        n_nodes: Members, itself included.
        policy: Of the cluster.
        promise: What it promised before.
        is_damaged: That cannot be read.
        priority: Its rank.
        listened_s: How long it has run, so that it may miss somebody.
    """

    def __init__(
        self,
        n_nodes: int = 3,
        *,
        policy: Policy = "availability",
        promise: TermVote | None = None,
        is_damaged: bool = False,
        priority: int = 50,
        listened_s: float = 3.0,
    ) -> None:
        self.now = 100.0
        self.log = a_log(n_nodes, policy)
        self.me = a_node_id(1)
        self.effects: list[Effect] = []
        self.machine = ElectionMachine(
            ElectionSpec(node_id=self.me, boot_id="0" * 16, priority=priority),
            promise=None if is_damaged else promise or TermVote(term=1),
            log=self.log,
            # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
            rng=random.Random(1),
            now=self.now,
        )
        self.saves = True
        """Whether promises reach the disk at once."""
        self.wait(listened_s)
        self.effects.clear()

    def give(self, given: Input) -> list[Effect]:
        """Tell the machine; gives what it wants, and what follows from a disk that answers."""
        effects = self.machine.handle(given, log=self.log, now=self.now)
        self.effects += effects
        effects = list(effects)
        for save in [effect for effect in effects if isinstance(effect, SaveVote)]:
            if self.saves:
                effects += self.give(VoteSaved(vote=save.vote, is_durable=True))
        return effects

    def wait(self, seconds: float) -> list[Effect]:
        """Let time pass, tick by tick."""
        ends_s = self.now + seconds
        effects: list[Effect] = []
        while self.now < ends_s:
            self.now = min(ends_s, max(self.now + 0.001, self.machine.deadline))
            ticked = self.machine.tick(log=self.log, now=self.now)
            self.effects += ticked
            effects += ticked
            for save in [effect for effect in ticked if isinstance(effect, SaveVote)]:
                if self.saves:
                    effects += self.give(VoteSaved(vote=save.vote, is_durable=True))
        return effects

    def jump(self, seconds: float) -> None:
        """Let time pass in which nothing of this node runs."""
        self.now += seconds

    def beat(
        self,
        number: int,
        *,
        term: int = 1,
        master: int | None = None,
        position: LogPosition = BASE,
        is_minority: bool = False,
        unheard: tuple[NodeId, ...] = (),
        is_lagging: bool = False,
        boot: str = "a" * 16,
    ) -> list[Effect]:
        """Hear the heartbeat of a node."""
        heartbeat = Heartbeat(
            boot_id=boot,
            number=term,
            master=None if master is None else a_node_id(master),
            is_minority=is_minority,
            position=position,
            commit_seq=position.seq,
            chain=b"\0" * 16,
            unheard=unheard,
            is_lagging=is_lagging,
            hash_seq=0,
            state_hash=b"",
        )
        return self.give(Heard(sender=a_node_id(number), message=heartbeat))

    def follow(self, number: int, *, term: int = 2) -> None:
        """Make this node a member under another's term."""
        self.beat(number, term=term, master=number)
        assert self.machine.role == "member"

    def ask(
        self,
        number: int,
        term: int,
        *,
        is_trial: bool = False,
        is_handover: bool = False,
        position: LogPosition = BASE,
    ) -> list[Effect]:
        """Be asked for a vote."""
        campaign = Campaign(
            number=term, is_trial=is_trial, position=position, is_handover=is_handover
        )
        return self.give(Heard(sender=a_node_id(number), message=campaign))

    def denial(
        self,
        number: int,
        term: int,
        *,
        is_trial: bool = False,
        is_handover: bool = False,
        position: LogPosition = BASE,
    ) -> str:
        """Be asked for a vote; gives the denial, empty when it was given."""
        effects = self.ask(
            number, term, is_trial=is_trial, is_handover=is_handover, position=position
        )
        (vote,) = votes(effects)
        return vote.denial

    def answer(self, number: int, vote: Vote) -> list[Effect]:
        """Get an answer to this node's own campaign."""
        return self.give(Heard(sender=a_node_id(number), message=vote))

    def refuse(self, number: int) -> list[Effect]:
        """See that nobody listens at a node any more."""
        return self.give(LinkSeen(peer=a_node_id(number), is_refused=True))


def votes(effects: list[Effect]) -> list[Vote]:
    """Pick the answers to campaigns."""
    sent = [effect.message for effect in effects if isinstance(effect, Send)]
    return [message for message in sent if isinstance(message, Vote)]


def campaigns(effects: list[Effect]) -> list[Campaign]:
    """Pick the campaigns."""
    sent = [effect.message for effect in effects if isinstance(effect, Send)]
    return [message for message in sent if isinstance(message, Campaign)]


def kinds(effects: list[Effect]) -> list[str]:
    """Name the effects."""
    return [type(effect).__name__ for effect in effects]


def a_master(n_nodes: int = 3, *, policy: Policy = "availability") -> ElectionBench:
    """Make node 1 master of term 2, with all others near."""
    bench = ElectionBench(n_nodes, policy=policy)
    for number in range(2, n_nodes + 1):
        bench.beat(number)
    effects = bench.wait(0.4)
    for is_trial in (True, False):
        asked = campaigns(effects)[-1]
        assert asked.is_trial == is_trial
        effects.clear()
        for number in range(2, n_nodes + 1):
            vote = Vote(number=asked.number, is_trial=is_trial, denial="", known_number=1)
            effects += bench.answer(number, vote)
        if is_trial:
            effects += bench.wait(0.01)
    assert bench.machine.role == "master"
    bench.effects.clear()
    return bench
