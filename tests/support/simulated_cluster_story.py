"""What may happen to a cluster of nodes, and the drawing of its histories: steps that are data.

What happens on one node is an act of `simulated_story`, said to a node; the rest is what befalls
several: the network, the mastership, who is a member.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protocol.state import Policy
from skulkd.worker.launchers.base import ExitStatus
from tests.support.builders import GIB
from tests.support.simulated_machine import HEALTHY, Mood
from tests.support.simulated_store import FAIR, Weather
from tests.support.simulated_story import (
    CRASHES,
    MODELS,
    Act,
    Chat,
    Crash,
    Crowd,
    DiskTrouble,
    Kill,
    Manner,
    Place,
    Pull,
    Restart,
    Retry,
    Stop,
    Temper,
    Trouble,
    Turn,
)

MASTER: Final = 0
"""In place of a node's number: whoever is master then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class On:
    """Something happens on one node, or is asked there."""

    node: int
    act: Act


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Nothing passes from one node to another any more."""

    sender: int
    receiver: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The network falls into two."""

    side: tuple[int, ...]
    """The rest is the other side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """All cuts are undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The network loses, doubles and delays from now on."""

    loss_ratio: float = 0.0
    duplicate_ratio: float = 0.0
    max_delay_s: float = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """A machine is suspended: its boot clock goes on without it."""

    node: int
    slept_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """An operator makes another node master; None lets the master choose."""

    via: int
    to: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """An operator takes a node out; it joins again later."""

    via: int
    node: int
    again_after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An operator makes an API key."""

    via: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An operator moves an instance, whichever is there, to whatever other node is best."""

    via: int
    which: int
    stop_first: bool
    drain_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """An operator pins an instance, whichever is there, or takes the pin back."""

    via: int
    which: int
    is_pinned: bool


ClusterAct = On | Cut | Part | Join | Noise | Sleep | HandOver | Remove | Key | Move | Pin
ClusterStep = tuple[float, ClusterAct]
"""Seconds after the step before, and what happens then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStory:
    """A history before it is lived."""

    n_nodes: int
    policy: Policy
    is_gentle: bool
    """One node at a time is away at most, all others hear each other, and it comes back to whole
    ones: what is on another member is never lost then, whatever the policy."""
    steps: tuple[ClusterStep, ...]


_PAUSES_S: Final = (0.0, 0.003, 0.05, 0.3, 1.0, 2.5, 5.0)
_MOODS: Final[tuple[Mood, ...]] = (
    HEALTHY,
    Mood(load_s=0.0, first_token_s=0.0, token_s=0.0),
    Mood(dies_at_s=4.0),
    Mood(spawn_fails=True),
    Mood(load_hangs=True),
    Mood(ignores_sigterm=True, gone_s=3.0),
    Mood(stalls_after=3),
    Mood(dies_after=5),
    Mood(token_s=0.2),
)
_WEATHERS: Final[tuple[Weather, ...]] = (
    FAIR,
    Weather(rate_bytes_s=2e6),
    Weather(fails="store.source_unavailable"),
)
_TROUBLES: Final[tuple[DiskTrouble, ...]] = ("fine", "slow", "sync fails", "write fails", "full")
_NEAR_S: Final = (0.0, 0.003, 0.01, 0.3)
_STRAY_SHARE: Final = 0.2
_MASTER_SHARE: Final = 0.25
_STOP_FIRST_SHARE: Final = 0.4
_DEMAND_SHARE: Final = 0.4
_TTLS_S: Final = (1, 2, 5)


def draw_story(seed: int) -> ClusterStory:
    """Draw what happens to a cluster."""
    # ruff: ignore[suspicious-non-cryptographic-random-usage]  a repeatable history is the aim
    chance = random.Random(seed)
    policies: tuple[Policy, ...] = ("availability", "quorum")
    n_nodes = chance.choice((2, 3, 3, 3, 4, 5))
    is_gentle = n_nodes > 2 and chance.random() < 0.25
    return ClusterStory(
        n_nodes=n_nodes,
        policy=chance.choice(policies),
        is_gentle=is_gentle,
        steps=_Drawing(chance, n_nodes, is_gentle=is_gentle).steps(),
    )


class _Drawing:
    """Draws the steps of one story."""

    def __init__(self, chance: random.Random, n_nodes: int, *, is_gentle: bool) -> None:
        self._chance = chance
        self._n_nodes = n_nodes
        self._is_gentle = is_gentle
        self._placed: list[str] = []

    def steps(self) -> tuple[ClusterStep, ...]:
        """Draw all steps: something is placed at first, the rest is chance."""
        chance = self._chance
        steps: list[ClusterStep] = [(0.0, self._on(self._place())), (0.5, self._on(self._place()))]
        for _ in range(chance.randrange(6, 22)):
            act = self._act()
            steps.append((chance.choice(_PAUSES_S), act))
            if isinstance(act, Part | Cut) or (isinstance(act, On) and isinstance(act.act, Crash)):
                # What is promised just before and after is most in danger.
                near = chance.choice(_NEAR_S)
                steps.insert(-1, (chance.choice(_PAUSES_S), Key(via=self._node())))
                steps[-1] = (near, act)
                steps.extend(
                    (chance.choice(_NEAR_S), Key(via=self._node()))
                    for _ in range(chance.randrange(4))
                )
        return tuple(steps)

    def _on(self, act: Act) -> On:
        return On(node=self._node(), act=act)

    def _node(self) -> int:
        if self._chance.random() < _MASTER_SHARE:
            return MASTER
        return self._chance.randint(1, self._n_nodes)

    def _act(self) -> ClusterAct:
        chance = self._chance
        asked: dict[Callable[[], ClusterAct], int] = {
            lambda: self._on(self._place()): 10,
            lambda: self._on(Stop(which=chance.randrange(4))): 4,
            lambda: self._on(Retry(which=chance.randrange(4))): 3,
            lambda: self._on(self._pull()): 2,
            lambda: self._on(self._chat()): 22,
            lambda: Key(via=self._node()): 6,
            self._move: 5,
            self._pin: 2,
            lambda: self._on(self._temper()): 4,
            lambda: self._on(self._kill()): 3,
            lambda: self._on(self._crash()): 12,
            lambda: self._on(Restart(down_s=chance.choice((0.0, 3.0, 8.0)))): 5,
            self._sleep: 3,
            lambda: HandOver(via=self._node(), to=chance.choice((None, self._node()))): 3,
            lambda: Noise(duplicate_ratio=0.05, max_delay_s=chance.choice((0.001, 0.02, 0.1))): 2,
        }
        befallen: dict[Callable[[], ClusterAct], int] = {
            lambda: self._on(Turn(weather=chance.choice(_WEATHERS))): 2,
            lambda: self._on(Trouble(disk=chance.choice(_TROUBLES))): 5,
            lambda: self._on(Crowd(taken_bytes=chance.choice((0, GIB, 3 * GIB)))): 2,
            lambda: Cut(sender=self._node(), receiver=self._node()): 6,
            self._part: 8,
            Join: 8,
            self._noise: 3,
            self._remove: 2,
        }
        drawn = asked if self._is_gentle else asked | befallen
        return chance.choices(tuple(drawn), tuple(drawn.values()))[0]()

    def _model(self) -> str:
        chance = self._chance
        if not self._placed or chance.random() < _STRAY_SHARE:
            return chance.choice(MODELS)
        return chance.choice(self._placed)

    def _place(self) -> Place:
        model = self._chance.choice(MODELS)
        self._placed.append(model)
        if self._chance.random() < _DEMAND_SHARE:
            return Place(model=model, ttl_s=self._chance.choice(_TTLS_S))
        return Place(model=model)

    def _move(self) -> Move:
        chance = self._chance
        return Move(
            via=self._node(),
            which=chance.randrange(4),
            stop_first=chance.random() < _STOP_FIRST_SHARE,
            drain_s=chance.choice((0, 2, 20)),
        )

    def _pin(self) -> Pin:
        chance = self._chance
        return Pin(via=self._node(), which=chance.randrange(4), is_pinned=chance.random() < 0.5)

    def _pull(self) -> Pull:
        return Pull(model=self._model(), what=self._chance.choice(("begin", "cancel", "remove")))

    def _chat(self) -> Chat:
        chance = self._chance
        manners: tuple[Manner, ...] = ("read", "read", "read", "cancel", "leave", "choke")
        return Chat(
            model=self._model(),
            n_clients=chance.choice((1, 1, 4)),
            n_tokens=chance.choice((1, 5, 40, 150)),
            stream=chance.random() < 0.75,
            manner=chance.choice(manners),
            changes_after_s=chance.choice((0.0, 0.1, 0.4, 2.0)),
        )

    def _temper(self) -> Temper:
        return Temper(model=self._model(), mood=self._chance.choice(_MOODS))

    def _kill(self) -> Kill:
        return Kill(which=self._chance.randrange(4), by=ExitStatus(signal="SIGKILL"))

    def _crash(self) -> Crash:
        chance = self._chance
        return Crash(
            what=chance.choice(CRASHES),
            n_unsynced_bytes_kept=chance.choice((0, 0, 50, 700, 5000)),
            down_s=chance.choice((0.0, 1.0, 4.0, 12.0)),
            again_after_s=chance.choice((None, None, 0.004, 0.02, 0.3)),
            after_calls=chance.choice((None, None, chance.randrange(12))),
        )

    def _sleep(self) -> Sleep:
        return Sleep(node=self._node(), slept_s=self._chance.choice((0.7, 2.5, 12.0)))

    def _part(self) -> Part:
        if self._chance.random() < _MASTER_SHARE:
            return Part(side=(MASTER,))
        numbers = list(range(1, self._n_nodes + 1))
        self._chance.shuffle(numbers)
        return Part(side=tuple(sorted(numbers[: self._chance.randrange(1, self._n_nodes)])))

    def _noise(self) -> Noise:
        chance = self._chance
        return Noise(
            loss_ratio=chance.choice((0.0, 0.03, 0.15)),
            duplicate_ratio=chance.choice((0.0, 0.05)),
            max_delay_s=chance.choice((0.001, 0.02, 0.2)),
        )

    def _remove(self) -> Remove:
        return Remove(
            via=self._node(),
            node=self._node(),
            again_after_s=self._chance.choice((0.5, 3.0, 10.0)),
        )
