"""One whole node through 300 seeded histories of operators, clients, engines, disks and crashes.

A history that fails is told: its seed, what did not hold, and the fewest steps that lead there.
"""

import pytest

from skulkd.runtime.virtual_time import run_virtual
from tests.support.simulated_history import History
from tests.support.simulated_machine import Mood
from tests.support.simulated_story import Crash, Place, Retry, Step, Temper, draw_history

N_SEEDS = 300
LIMIT_S = 10_000.0


def live(seed: int, steps: tuple[Step, ...]) -> str:
    async def lived() -> str:
        return await History(seed, steps).live()

    return run_virtual(lived, seed=seed, limit_s=LIMIT_S)


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
    # A phase that was cancelled before its first step left a coroutine that nobody awaited.
    "killed between two phases": (
        (1.0, Place(model="sim/large")),
        (0.02, Crash(what="power", n_unsynced_bytes_kept=0, down_s=0.0)),
    ),
}
"""What failed once, and was repaired with the history as its test."""


@pytest.mark.parametrize("story", STORIES)
def test_a_repaired_history_stays_repaired(story: str) -> None:
    for seed in range(5):
        live(seed, STORIES[story])


@pytest.mark.parametrize("first_seed", range(0, N_SEEDS, 20))
def test_a_node_keeps_its_promises(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        steps = draw_history(seed)
        error = fault(seed, steps)
        if error is not None:
            story = "\n".join(f"  {step!r}," for step in shrunk(seed, steps))
            message = f"seed {seed}: {error}\nthe shortest story:\n{story}"
            raise AssertionError(message) from error


def test_a_seed_tells_the_same_story_twice() -> None:
    for seed in (1, 2, 3):
        assert live(seed, draw_history(seed)) == live(seed, draw_history(seed))
