"""One whole node through 300 seeded histories of operators, clients, engines, disks and crashes.

A history that fails is told: its seed, what did not hold, and the fewest steps that lead there.
"""

import pytest

from skulkd.runtime.virtual_time import run_virtual
from skulkd.worker.launchers.base import ExitStatus
from tests.support.builders import GIB
from tests.support.simulated_history import History
from tests.support.simulated_machine import HEALTHY, Mood
from tests.support.simulated_store import Weather
from tests.support.simulated_story import (
    CRASHES,
    Crash,
    Crowd,
    Kill,
    Place,
    Restart,
    Retry,
    Step,
    Stop,
    Temper,
    Turn,
    draw_history,
    written,
)

N_SEEDS = 300
LIMIT_S = 10_000.0


def live(seed: int, steps: tuple[Step, ...]) -> str:
    async def lived() -> str:
        return await History(seed, steps).live()

    return run_virtual(lived, seed=seed, limit_s=LIMIT_S)


def settled(steps: tuple[Step, ...]) -> dict[str, str]:
    """Live through steps; say what became of each model in the end."""

    async def lived() -> dict[str, str]:
        history = History(1, steps)
        await history.live()
        return history.settled

    return run_virtual(lived, seed=1, limit_s=LIMIT_S)


def fault(seed: int, steps: tuple[Step, ...]) -> BaseException | None:
    try:
        live(seed, steps)
    # ruff: ignore[blind-except]  whatever ends a history is what is looked for
    except Exception as error:
        return error
    return None


def shrunk(seed: int, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Leave out, one by one, the steps without which the history still fails."""
    for place in range(len(steps) - 1, -1, -1):
        without = (*steps[:place], *steps[place + 1 :])
        if fault(seed, without) is not None:
            steps = without
    return steps


STORIES: dict[str, tuple[Step, ...]] = {
    # A failed instance holds no memory; brought back beside what came since, both were too much.
    "retried beside another": (
        (1.0, Place(model="sim/play")),
        (0.02, Place(model="sim/large")),
        (2.0, Temper(model="sim/play", mood=Mood(dies_at_s=0.0))),
        (0.0, Crash(what="daemon", n_unsynced_bytes_kept=0, down_s=20.0)),
        (5.0, Place(model="sim/small")),
        (0.0, Retry(which=0)),
    ),
    # An engine that died while it was being stopped was forgotten before its group was gone.
    "killed, then stopped": (
        (0.0, Temper(model="sim/script", mood=Mood(gone_s=2.0))),
        (1.0, Place(model="sim/script")),
        (5.0, Kill(which=0, by=ExitStatus(signal="SIGKILL"))),
        (0.0, Stop(which=0)),
    ),
    # A phase that was cancelled before its first step left a coroutine that nobody awaited.
    "stopped between two phases": (
        (0.0, Place(model="sim/script")),
        (0.02, Restart(down_s=3.0)),
    ),
}
"""What failed once, and was repaired with the history as its test."""


def test_a_story_is_told_as_the_source_that_makes_it() -> None:
    mood = Mood(dies_at_s=1.0, dies_of=ExitStatus(signal="SIGILL"))
    assert written((0.2, Temper(model="sim/play", mood=mood))) == (
        "(0.2, Temper(model='sim/play', mood=Mood(dies_at_s=1.0, "
        "dies_of=ExitStatus(signal='SIGILL'))))"
    )


@pytest.mark.parametrize("story", STORIES)
def test_a_repaired_history_stays_repaired(story: str) -> None:
    for seed in range(5):
        live(seed, STORIES[story])


def test_what_was_ready_comes_back_though_its_memory_comes_late() -> None:
    dies = Mood(dies_at_s=6.0, dies_of=ExitStatus(signal="SIGSEGV"), memory_s=8.0)
    steps: tuple[Step, ...] = (
        (1.0, Turn(weather=Weather(rate_bytes_s=4e9))),
        (0.0, Temper(model="sim/large", mood=dies)),
        (0.0, Place(model="sim/large")),
        (5.0, Temper(model="sim/large", mood=HEALTHY)),
    )
    assert settled(steps) == {"sim/large": "ready"}


def test_what_others_take_before_the_start_fails_with_the_numbers() -> None:
    steps: tuple[Step, ...] = (
        (1.0, Place(model="sim/large")),
        (5.0, Crowd(taken_bytes=3 * GIB)),
        (60.0, Crowd(taken_bytes=0)),
    )
    assert settled(steps) == {"sim/large": "runner.no_memory"}


def test_a_load_that_hangs_ends_by_its_deadline_however_little_the_engine_heeds() -> None:
    hangs = Mood(load_hangs=True, ignores_sigterm=True, gone_s=3.0)
    steps: tuple[Step, ...] = (
        (0.0, Temper(model="sim/play", mood=hangs)),
        (1.0, Place(model="sim/play")),
        (30.0, Place(model="sim/script")),
    )
    assert settled(steps) == {"sim/play": "runner.load_stalled", "sim/script": "ready"}


def test_placements_survive_every_way_to_end_and_the_engines_that_survive_do_not() -> None:
    crashes = [Crash(what=what, n_unsynced_bytes_kept=0, down_s=1.0) for what in CRASHES]
    steps: tuple[Step, ...] = (
        (1.0, Place(model="sim/script")),
        (0.0, Place(model="sim/play")),
        *((10.0, crash) for crash in crashes),
        (10.0, Restart(down_s=1.0)),
    )
    assert settled(steps) == {"sim/script": "ready", "sim/play": "ready"}


@pytest.mark.parametrize("first_seed", range(0, N_SEEDS, 20))
def test_a_node_keeps_its_promises(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        steps = draw_history(seed)
        error = fault(seed, steps)
        if error is not None:
            story = "\n".join(f"  {written(step)}," for step in shrunk(seed, steps))
            message = f"seed {seed}: {error}\nthe shortest story:\n{story}"
            raise AssertionError(message) from error


def test_a_seed_tells_the_same_story_twice() -> None:
    for seed in (1, 2, 3):
        assert live(seed, draw_history(seed)) == live(seed, draw_history(seed))
