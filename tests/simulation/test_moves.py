"""Instances of whole simulated nodes that move while clients ask, whatever happens meanwhile."""

# pyright: reportPrivateUsage=false

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final, final

import pytest

from protocol.ids import InstanceId, NodeId
from protocol.instances import Instance
from protocol.state import ClusterState
from skulkd.runtime.virtual_time import run_virtual
from tests.support.simulated_cluster_history import ClusterHistory
from tests.support.simulated_cluster_story import MASTER, ClusterStory
from tests.support.simulated_machine import Mood
from tests.support.simulated_story import MODELS, Chat, Crash

MODEL: Final = MODELS[0]
EVERY_S: Final = 0.25
"""Between the arrivals of two clients."""
N_TOKENS: Final = 60
"""Of each answer: about two seconds."""


@final
class Moves:
    """Three nodes: the master, one that has the model, and one that it moves to."""

    def __init__(self, seed: int) -> None:
        story = ClusterStory(n_nodes=3, policy="availability", is_gentle=True, steps=())
        self.history = ClusterHistory(seed, story)
        self.outcomes: list[str] = []
        self._is_asking = True
        self._clients: list[asyncio.Task[None]] = []
        self._arrivals: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Found the cluster, place the model, and let clients ask through both workers."""
        await self.history._found()
        self.master = self.history._number(MASTER)
        self.here, self.there = (one for one in self.history.boxes if one != self.master)
        body = {
            "model_id": MODEL, "nodes": [self.node_id(self.here)], "slots": 8,
            "context_tokens": 1024,
        }  # fmt: skip
        placed = await self.history._ask(self.here, "POST", "/place_instance", body)
        self.old_id = InstanceId(placed["instance_id"])
        await self.until(lambda: self.phase(self.old_id) == "ready", "placed")
        await asyncio.sleep(5.0)
        self._arrivals = asyncio.create_task(self._arrive(), name="arrivals")
        await asyncio.sleep(2.0)

    def node_id(self, number: int) -> NodeId:
        """Give a machine's node."""
        return self.history.boxes[number].world.node_id

    async def move(self, **fields: object) -> InstanceId:
        """Ask for the move at the node that has the model."""
        path = f"/instance/{self.old_id}/move"
        body = {"node_ids": [self.node_id(self.there)], "drain_s": 30, **fields}
        moved = await self.history._ask(self.here, "POST", path, body)
        assert moved, self.history.told[-1]
        return InstanceId(moved["instance_id"])

    async def end(self) -> Counter[str]:
        """Let the clients finish, stop everything, and see that nothing is wrong or left."""
        self._is_asking = False
        assert self._arrivals is not None
        await self._arrivals
        await asyncio.gather(*self._clients)
        await self.history._stop_all()
        self.history._check_agreement()
        for box in self.history.boxes.values():
            await box.stop()
        self.history._check_left()
        return Counter(self.outcomes)

    @property
    def state(self) -> ClusterState:
        """What the node that has the model knows."""
        node = self.history.boxes[self.here].running
        assert node is not None
        return node.state

    def instance(self, instance_id: InstanceId) -> Instance | None:
        """Find an instance."""
        return self.state.instances.get(instance_id)

    def phase(self, instance_id: InstanceId) -> str:
        """Say how far an instance is, on all nodes alike, or that it is gone."""
        found = self.instance(instance_id)
        return "gone" if found is None else found.phase

    async def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait for something."""
        await self.history._wait(is_so, 120.0, what)

    async def _arrive(self) -> None:
        number = 0
        while self._is_asking:
            number += 1
            via = (self.here, self.there)[number % 2]
            self._clients.append(asyncio.create_task(self._ask(via), name=f"client {number}"))
            await asyncio.sleep(EVERY_S)

    async def _ask(self, via: int) -> None:
        chat = Chat(model=MODEL, n_tokens=N_TOKENS, stream=True, manner="read", changes_after_s=0.0)
        self.outcomes.append(await self.history._chat(via, chat))


def run(story: Callable[[Moves], Coroutine[Any, Any, None]], seed: int) -> None:
    async def main() -> None:
        moves = Moves(seed)
        await moves.begin()
        await story(moves)

    run_virtual(main, seed=seed, limit_s=1200.0)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_move_under_load_loses_no_word_of_any_answer(seed: int) -> None:
    async def story(moves: Moves) -> None:
        new_id = await moves.move()
        await moves.until(lambda: moves.phase(new_id) == "ready", "moved")
        assert moves.phase(moves.old_id) == "stopping", "it ends what it is answering"
        await moves.until(lambda: moves.phase(moves.old_id) == "gone", "drained")
        moved = moves.instance(new_id)
        assert moved is not None
        assert moved.replaces is None
        await asyncio.sleep(3.0)
        outcomes = await moves.end()
        assert set(outcomes) == {"finished"}

    run(story, seed)


@pytest.mark.parametrize("dies_after_s", [0.0, 0.5, 1.5, 2.5])
def test_a_move_goes_on_under_the_next_master(dies_after_s: float) -> None:
    async def story(moves: Moves) -> None:
        new_id = await moves.move()
        await asyncio.sleep(dies_after_s)
        crash = Crash(what="power", n_unsynced_bytes_kept=0, down_s=20.0)
        dying = asyncio.create_task(moves.history.boxes[moves.master].crash(crash))
        await moves.until(lambda: moves.phase(new_id) == "ready", "moved")
        await moves.until(lambda: moves.phase(moves.old_id) == "gone", "drained")
        await dying
        await moves.until(moves.history._is_whole, "whole")
        outcomes = await moves.end()
        assert set(outcomes) == {"finished"}

    run(story, 3)


def test_a_new_one_that_does_not_load_leaves_all_as_it_was() -> None:
    async def story(moves: Moves) -> None:
        world = moves.history.boxes[moves.there].world
        world.moods[MODEL] = Mood(load_fails=True)
        new_id = await moves.move()
        await moves.until(lambda: moves.phase(new_id) == "failed", "failed")
        failed = moves.instance(new_id)
        assert failed is not None
        assert failed.failure is not None
        assert "It goes on on" in failed.failure.error.remediation
        await asyncio.sleep(5.0)
        assert moves.phase(moves.old_id) == "ready"
        world.moods.clear()
        await moves.history._ask(moves.here, "POST", f"/instance/{new_id}/retry")
        await moves.until(lambda: moves.phase(moves.old_id) == "gone", "moved after all")
        outcomes = await moves.end()
        assert set(outcomes) == {"finished"}

    run(story, 4)


def test_stop_first_ends_no_answer_refuses_meanwhile_and_serves_again() -> None:
    async def story(moves: Moves) -> None:
        new_id = await moves.move(stop_first=True)
        assert moves.phase(moves.old_id) == "stopping"
        waiting = moves.instance(new_id)
        assert waiting is not None
        assert waiting.runners == ()
        machine = moves.history.boxes[moves.there].world.machine

        def is_gone_and_was_waited_for() -> bool:
            is_gone = moves.phase(moves.old_id) == "gone"
            assert is_gone or not machine.living()
            return is_gone

        await moves.until(is_gone_and_was_waited_for, "drained")
        await moves.until(lambda: moves.phase(new_id) == "ready", "moved")
        before = len(moves.outcomes)
        await asyncio.sleep(5.0)
        assert set(moves.outcomes[before:]) <= {"finished", "503"}
        assert moves.outcomes[-1] == "finished"
        outcomes = await moves.end()
        assert set(outcomes) == {"finished", "503"}

    run(story, 5)


def test_an_old_one_that_does_not_end_its_answers_in_time_is_ended() -> None:
    async def story(moves: Moves) -> None:
        new_id = await moves.move(drain_s=0)
        await moves.until(lambda: moves.phase(moves.old_id) == "gone", "stopped")
        assert moves.phase(new_id) == "ready"
        outcomes = await moves.end()
        assert set(outcomes) == {"finished", "failed"}

    run(story, 6)
