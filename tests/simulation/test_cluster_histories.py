"""Whole clusters of two to five nodes through seeded histories of everything that may befall them.

Operators, clients, engines, disks, crashes at any moment, suspended machines, a network that loses,
doubles, cuts and parts, members that leave, are removed and come again; what must hold is held by
`simulated_cluster_history` and `simulated_cluster_ledger`. A history that fails is told: its seed,
what did not hold, and the fewest steps that lead there.
"""

import os
from dataclasses import replace

import pytest

from skulkd.runtime.virtual_time import run_virtual
from tests.support.simulated_cluster_history import ClusterHistory
from tests.support.simulated_cluster_story import (
    ClusterStep,
    ClusterStory,
    Cut,
    Join,
    On,
    Remove,
    draw_story,
)
from tests.support.simulated_story import Crash, Place, Trouble, written

N_SEEDS = int(os.environ.get("SKULK_TEST_SEEDS", "300"))
SEED_START = int(os.environ.get("SKULK_TEST_SEED_START", "0"))
"""Both as `make simulate` says them."""
CHUNK = 10
LIMIT_S = 10_000.0


def live(seed: int, story: ClusterStory) -> str:
    async def lived() -> str:
        return await ClusterHistory(seed, story).live()

    return run_virtual(lived, seed=seed, limit_s=LIMIT_S)


def fault(seed: int, story: ClusterStory) -> BaseException | None:
    try:
        live(seed, story)
    # ruff: ignore[blind-except]  whatever ends a history is what is looked for
    except Exception as error:
        return error
    return None


def shrunk(seed: int, story: ClusterStory) -> ClusterStory:
    """Leave out, one by one, the steps without which the history still fails."""
    for place in range(len(story.steps) - 1, -1, -1):
        without = replace(story, steps=(*story.steps[:place], *story.steps[place + 1 :]))
        if fault(seed, without) is not None:
            story = without
    return story


def a_story(*steps: ClusterStep, n_nodes: int = 3, policy: str = "availability") -> ClusterStory:
    assert policy in {"availability", "quorum"}
    return ClusterStory(
        n_nodes=n_nodes,
        policy="quorum" if policy == "quorum" else "availability",
        is_gentle=False,
        steps=steps,
    )


STORIES: dict[str, ClusterStory] = {
    # A node that was removed while it was cut off believed in its membership for ever, and the
    # cluster's token was refused as one of its own; joined again, it read of its own removal first
    # and went away.
    "removed unheard": a_story(
        (0.0, Cut(sender=1, receiver=3)),
        (8.0, Remove(via=1, node=3, again_after_s=1.0)),
        (3.0, Join()),
    ),
    "removed and back": a_story((0.0, Remove(via=1, node=3, again_after_s=5.0))),
    # A node that was removed while its disk failed could not write down that it was alone, and died
    # of it.
    "removed with a failing disk": a_story(
        (0.0, On(node=2, act=Trouble(disk="sync fails"))),
        (0.0, Remove(via=1, node=2, again_after_s=30.0)),
        (5.0, On(node=2, act=Trouble(disk="fine"))),
        n_nodes=2,
    ),
}
"""What failed once, and was repaired with the history as its test."""


@pytest.mark.parametrize("name", STORIES)
def test_a_repaired_history_stays_repaired(name: str) -> None:
    for seed in range(5):
        live(seed, STORIES[name])


def test_a_master_that_dies_is_replaced_and_what_was_placed_comes_back() -> None:
    crash = Crash(what="power", n_unsynced_bytes_kept=0, down_s=12.0)
    story = a_story(
        (0.0, On(node=2, act=Place(model="sim/script"))),
        (5.0, On(node=1, act=crash)),
        (8.0, On(node=3, act=Place(model="sim/play"))),
    )
    live(1, story)
    live(2, replace(story, policy="quorum"))


@pytest.mark.parametrize("first_seed", range(SEED_START, SEED_START + N_SEEDS, CHUNK))
def test_a_cluster_keeps_its_promises(first_seed: int) -> None:
    for seed in range(first_seed, min(first_seed + CHUNK, SEED_START + N_SEEDS)):
        story = draw_story(seed)
        error = fault(seed, story)
        if error is not None:
            least = shrunk(seed, story)
            steps = "\n".join(f"  {written(step)}," for step in least.steps)
            head = f"{story.n_nodes} nodes, {story.policy}, gentle: {story.is_gentle}"
            message = f"seed {seed} ({head}): {error}\nthe shortest story:\n{steps}"
            raise AssertionError(message) from error


def test_a_seed_tells_the_same_story_twice() -> None:
    for seed in (2, 4):
        assert live(seed, draw_story(seed)) == live(seed, draw_story(seed))
