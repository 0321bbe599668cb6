"""Whole simulated nodes of which one is drained while clients ask, whatever happens meanwhile."""

# pyright: reportPrivateUsage=false

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final, final

import pytest

from protocol.ids import InstanceId, NodeId
from protocol.nodes import Eligibility
from protocol.state import ClusterState
from skulkd.core.drain_decisions import eligibility_of
from skulkd.runtime.virtual_time import run_virtual
from tests.support.simulated_cluster_history import ClusterHistory
from tests.support.simulated_cluster_story import MASTER, ClusterStory
from tests.support.simulated_story import MODELS, Chat, Crash

MODEL: Final = MODELS[0]
N_CLIENTS: Final = 6
N_TOKENS: Final = 150
"""Of each answer: about five seconds."""


@final
class Drains:
    """Three nodes: the master, one that has the model and is drained, and another one."""

    def __init__(self, seed: int) -> None:
        story = ClusterStory(n_nodes=3, policy="availability", is_gentle=True, steps=())
        self.history = ClusterHistory(seed, story)
        self._clients: list[asyncio.Task[str]] = []

    async def begin(self) -> None:
        """Found the cluster, place the model, and let clients ask through two nodes."""
        await self.history._found()
        self.master = self.history._number(MASTER)
        self.here, self.there = (one for one in self.history.boxes if one != self.master)
        self.instance_id = await self.place(nodes=[self.node_id(self.here)], slots=8)
        await self.until(lambda: self.phase() == "ready", "placed")
        await asyncio.sleep(5.0)
        for number in range(N_CLIENTS):
            self.ask((self.here, self.there)[number % 2])
        await asyncio.sleep(1.0)

    def node_id(self, number: int) -> NodeId:
        """Give a machine's node."""
        return self.history.boxes[number].world.node_id

    async def place(self, **fields: object) -> InstanceId:
        """Place the model; what comes of it is the last thing that was told."""
        body = {"model_id": MODEL, "context_tokens": 1024, **fields}
        placed = await self.history._ask(self.there, "POST", "/place_instance", body)
        return InstanceId(placed.get("instance_id", ""))

    async def drain(self, deadline_s: int) -> None:
        """Ask another node for the drain of the one that has the model."""
        path = f"/v1/nodes/box-{self.here}/drain"
        done = await self.history._ask(self.there, "POST", path, {"deadline_s": deadline_s})
        assert done["is_applied"], self.history.told[-1]

    def ask(self, via: int) -> None:
        """Let a client ask."""
        chat = Chat(model=MODEL, n_tokens=N_TOKENS, stream=True, manner="read", changes_after_s=0.0)
        self._clients.append(asyncio.create_task(self.history._chat(via, chat)))

    async def outcomes(self) -> Counter[str]:
        """Wait until all clients have their answer."""
        return Counter(await asyncio.gather(*self._clients))

    async def end(self) -> None:
        """Stop everything, and see that nothing is wrong or left."""
        await self.history._stop_all()
        self.history._check_agreement()
        for box in self.history.boxes.values():
            await box.stop()
        self.history._check_left()

    def state(self, number: int | None = None) -> ClusterState:
        """What a node knows; the one that is drained, unless another is named."""
        node = self.history.boxes[number or self.here].running
        assert node is not None
        return node.state

    def phase(self) -> str:
        """Say how far the instance is, or that it is gone."""
        found = self.state().instances.get(self.instance_id)
        return "gone" if found is None else found.phase

    def is_everywhere(self, eligibility: Eligibility) -> bool:
        """Say whether all nodes see the drained one like this."""
        node_id = self.node_id(self.here)
        return all(
            eligibility_of(node.state, node_id) == eligibility for node in self.history._running()
        )

    async def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait for something."""
        await self.history._wait(is_so, 120.0, what)


def run(story: Callable[[Drains], Coroutine[Any, Any, None]], seed: int) -> None:
    async def main() -> None:
        drains = Drains(seed)
        await drains.begin()
        await story(drains)

    run_virtual(main, seed=seed, limit_s=1200.0)


@pytest.mark.parametrize("seed", [1, 2])
def test_answers_of_a_drained_node_end_whole_and_nothing_is_placed_there(seed: int) -> None:
    async def story(drains: Drains) -> None:
        await drains.drain(60)
        await drains.until(lambda: drains.phase() == "stopping", "draining")
        await drains.place(nodes=[drains.node_id(drains.here)])
        assert "placement.node_draining" in drains.history.told[-1]
        elsewhere = await drains.place()
        assert set(await drains.outcomes()) == {"finished"}
        await drains.until(lambda: drains.phase() == "gone", "gone")
        await drains.until(lambda: drains.is_everywhere("drained"), "drained")
        placed = drains.state().instances[elsewhere]
        assert drains.node_id(drains.here) not in {one.node_id for one in placed.plan.shards}
        await drains.end()

    run(story, seed)


@pytest.mark.parametrize("dies_after_s", [0.0, 0.3, 2.0])
def test_a_drain_outlives_the_master_that_decided_it(dies_after_s: float) -> None:
    async def story(drains: Drains) -> None:
        await drains.drain(60)
        await asyncio.sleep(dies_after_s)
        crash = Crash(what="power", n_unsynced_bytes_kept=0, down_s=20.0)
        dying = asyncio.create_task(drains.history.boxes[drains.master].crash(crash))
        assert set(await drains.outcomes()) == {"finished"}
        await drains.until(lambda: drains.phase() == "gone", "gone under the next master")
        await dying
        await drains.until(drains.history._is_whole, "whole")
        assert drains.is_everywhere("drained")
        await drains.place(nodes=[drains.node_id(drains.here)])
        assert "placement.node_draining" in drains.history.told[-1]
        await drains.end()

    run(story, 3)


def test_a_drain_outlives_the_drained_node_and_ends_by_a_word() -> None:
    async def story(drains: Drains) -> None:
        await drains.drain(60)
        crash = Crash(what="power", n_unsynced_bytes_kept=0, down_s=5.0)
        await drains.history.boxes[drains.here].crash(crash)
        await drains.until(drains.history._is_whole, "whole")
        await drains.until(lambda: drains.is_everywhere("drained"), "drained")
        await drains.outcomes()
        path = f"/v1/nodes/box-{drains.here}/drain"
        await drains.history._ask(drains.there, "DELETE", path)
        await drains.until(lambda: drains.is_everywhere("eligible"), "undrained")
        drains.instance_id = await drains.place(nodes=[drains.node_id(drains.here)])
        await drains.until(lambda: drains.phase() == "ready", "placed again")
        await drains.end()

    run(story, 4)


def test_answers_that_take_longer_than_the_deadline_end_with_an_error() -> None:
    async def story(drains: Drains) -> None:
        began_s = asyncio.get_running_loop().time()
        await drains.drain(1)
        assert set(await drains.outcomes()) == {"failed"}
        assert asyncio.get_running_loop().time() - began_s < 3.0
        await drains.until(lambda: drains.is_everywhere("drained"), "drained")
        await drains.end()

    run(story, 5)
