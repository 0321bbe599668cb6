"""What may happen to one node, and the drawing of histories: steps that are data.

The steps are drawn before anything runs, so that a history can be printed, and run again without
the steps that do not matter.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Final, Literal, cast, get_args

from protocol.cards import ArtifactFile, ModelCard, PackageSource
from protocol.nodes import Role
from skulkd.worker.launchers.base import ExitStatus
from tests.support.builders import GIB, MIB, a_card, a_digest, a_scripted_card
from tests.support.simulated_machine import Mood
from tests.support.simulated_store import FAIR, Weather

Manner = Literal["read", "cancel", "leave", "choke"]
CrashKind = Literal["power", "daemon", "daemon, engines survive"]
CRASHES: Final[tuple[CrashKind, ...]] = get_args(CrashKind)
DiskTrouble = Literal["fine", "slow", "sync fails", "write fails", "full"]


# ---- What may happen -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An operator places a model, perhaps on demand."""

    model: str
    ttl_s: int | None = None
    """Of an on-demand placement: how long it stays loaded after a request."""

    @property
    def body(self) -> dict[str, object]:
        """What the operator sends."""
        if self.ttl_s is None:
            return {"model_id": self.model}
        return {"model_id": self.model, "on_demand": True, "ttl_s": self.ttl_s}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """An operator stops an instance, whichever is there."""

    which: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """An operator retries an instance, whichever is there."""

    which: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """An operator pulls files, ends that, or removes them."""

    model: str
    what: Literal["begin", "cancel", "remove"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """Clients ask a model, and stay or do not."""

    model: str
    n_clients: int = 1
    n_tokens: int
    stream: bool
    manner: Manner
    changes_after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Temper:
    """The next processes of a model behave like this."""

    model: str
    mood: Mood


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Somebody kills an engine, whichever runs."""

    which: int
    by: ExitStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Transfers go otherwise from now on."""

    weather: Weather


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The disk behaves otherwise from now on."""

    disk: DiskTrouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Other programs take so much memory."""

    taken_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """The machine loses its power, or the daemon is killed; then the node starts again."""

    what: CrashKind
    n_unsynced_bytes_kept: int
    down_s: float
    again_after_s: float | None = None
    """It dies once more, so long after it began to start."""
    after_calls: int | None = None
    """Not at once, but in the middle of what it does to its disk: at a call from now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The node stops in good order and starts again, perhaps without a worker (`--no-worker`)."""

    down_s: float
    role: Role = "full"


Act = Place | Stop | Retry | Pull | Chat | Temper | Kill | Turn | Trouble | Crowd | Crash | Restart
Step = tuple[float, Act]
"""Seconds after the step before, and what happens then."""


# ---- The models, and the drawing of histories ----------------------------------------------


def _weights(name: str, size_bytes: int) -> ModelCard:
    file = ArtifactFile(path="model.gguf", size_bytes=size_bytes, sha256=a_digest(name))
    source = PackageSource(package=f"llm-{name}", version="1.0", files=(file,))
    return a_card(model_id=f"sim/{name}", size_bytes=size_bytes, source=source)


CARDS: Final[tuple[ModelCard, ...]] = (
    a_scripted_card(model_id="sim/script", size_bytes=300 * MIB),
    a_scripted_card(model_id="sim/play", size_bytes=900 * MIB),
    _weights("small", 500 * MIB),
    _weights("large", 2 * GIB),
)
MODELS: Final = tuple(card.model_id for card in CARDS)
_MOODS: Final[tuple[Mood, ...]] = (
    Mood(load_s=12.0),
    Mood(load_s=0.0, first_token_s=0.0, token_s=0.0),
    Mood(spawn_fails=True),
    Mood(spawn_s=7.0),
    Mood(load_hangs=True),
    Mood(load_hangs=True, ignores_sigterm=True, gone_s=3.0),
    Mood(load_fails=True),
    Mood(dies_at_s=0.0),
    Mood(dies_at_s=1.0),
    Mood(dies_at_s=1.0, dies_of=ExitStatus(signal="SIGILL")),
    Mood(dies_at_s=1.0, dies_of=ExitStatus(signal="SIGTERM")),
    Mood(dies_at_s=6.0, gone_s=2.0, memory_s=5.0),
    Mood(dies_at_s=9.0, dies_of=ExitStatus(signal="SIGSEGV"), memory_s=8.0),
    Mood(memory_ratio=3.0),
    Mood(ignores_sigterm=True),
    Mood(ignores_sigterm=True, gone_s=6.0, memory_s=4.0),
    Mood(stalls_after=0),
    Mood(stalls_after=3),
    Mood(dies_after=0),
    Mood(dies_after=5),
    Mood(first_token_s=30.0),
    Mood(token_s=0.5),
)
_WEATHERS: Final[tuple[Weather, ...]] = (
    FAIR,
    Weather(rate_bytes_s=400e6),
    Weather(rate_bytes_s=2e6),
    Weather(fails="store.source_unavailable"),
    Weather(fails="store.digest_mismatch"),
    Weather(fails="store.no_space"),
    Weather(is_stalled=True),
)
_PAUSES_S: Final = (0.0, 0.0, 0.003, 0.02, 0.2, 0.7, 2.0, 5.0, 12.0)
_ENDS: Final = (
    ExitStatus(signal="SIGKILL"),
    ExitStatus(signal="SIGSEGV"),
    ExitStatus(exit_code=1),
    ExitStatus(exit_code=0),
)
_STRAY_SHARE: Final = 0.3
_TROUBLES: Final[tuple[DiskTrouble, ...]] = ("fine", "slow", "sync fails", "write fails", "full")


def draw_history(seed: int) -> tuple[Step, ...]:
    """Draw what happens: at first something is placed, the rest is chance."""
    # ruff: ignore[suspicious-non-cryptographic-random-usage]  a repeatable history is the aim
    chance = random.Random(seed)
    steps: list[Step] = [(chance.choice((0.0, 1.0)), Place(model=chance.choice(MODELS)))]
    placed = [step[1].model for step in steps if isinstance(step[1], Place)]
    for _ in range(chance.randrange(10, 70)):
        act = _draw_act(chance, placed)
        if isinstance(act, Place):
            placed.append(act.model)
        steps.append((chance.choice(_PAUSES_S), act))
    return tuple(steps)


def written(value: object) -> str:
    """Write a step as the source that makes it, without what is as it is by default."""
    if isinstance(value, tuple):
        return f"({', '.join(written(item) for item in cast('tuple[object, ...]', value))})"
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    changed = [
        f"{part.name}={written(getattr(value, part.name))}"
        for part in fields(value)
        if getattr(value, part.name) != part.default
    ]
    return f"{type(value).__name__}({', '.join(changed)})"


def _draw_act(chance: random.Random, placed: list[str]) -> Act:
    model = chance.choice(MODELS)
    # Most clients ask for what they have reason to believe in.
    asked = model if chance.random() < _STRAY_SHARE else placed[-1]
    which = chance.randrange(4)
    drawn: dict[Callable[[], Act], int] = {
        lambda: Place(model=model): 16,
        lambda: Stop(which=which): 8,
        lambda: Retry(which=which): 5,
        lambda: Pull(model=model, what=chance.choice(("begin", "begin", "cancel", "remove"))): 6,
        lambda: _draw_chat(chance, asked): 34,
        lambda: Temper(model=model, mood=chance.choice(_MOODS)): 16,
        lambda: Kill(which=which, by=chance.choice(_ENDS)): 7,
        lambda: Turn(weather=chance.choice(_WEATHERS)): 5,
        lambda: Trouble(disk=chance.choice(_TROUBLES)): 6,
        lambda: Crowd(taken_bytes=chance.choice((0, 0, GIB, 3 * GIB))): 4,
        lambda: _draw_crash(chance): 5,
        lambda: Restart(
            down_s=chance.choice((0.0, 3.0)), role=chance.choice(("full", "full", "management"))
        ): 3,
    }
    return chance.choices(tuple(drawn), tuple(drawn.values()))[0]()


def _draw_chat(chance: random.Random, model: str) -> Chat:
    manners: tuple[Manner, ...] = ("read", "read", "cancel", "leave", "choke")
    return Chat(
        model=model,
        n_clients=chance.choice((1, 1, 1, 5)),
        n_tokens=chance.choice((1, 5, 40, 200)),
        stream=chance.random() < 0.75,
        manner=chance.choice(manners),
        changes_after_s=chance.choice((0.0, 0.001, 0.1, 0.21, 0.4, 3.0)),
    )


def _draw_crash(chance: random.Random) -> Crash:
    return Crash(
        what=chance.choice(CRASHES),
        n_unsynced_bytes_kept=chance.choice((0, 0, 1, 50, 700)),
        down_s=chance.choice((0.0, 1.0, 20.0)),
        again_after_s=chance.choice((None, None, 0.002, 0.01, 0.3)),
    )
