"""Instances of whole simulated nodes that cannot go on where they are, while clients ask."""

# pyright: reportPrivateUsage=false

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final, final

import pytest

from protocol.errors import ErrorCode
from protocol.events import SequencedEvent
from protocol.ids import InstanceId, NodeId
from protocol.instances import DEFAULT_LOST_AFTER_S, Instance
from protocol.state import ClusterState
from skulkd.runtime.virtual_time import run_virtual
from tests.support.simulated_cluster_history import ClusterHistory
from tests.support.simulated_cluster_story import MASTER, ClusterStory
from tests.support.simulated_machine import Mood
from tests.support.simulated_node import SimulatedNode
from tests.support.simulated_store import Weather
from tests.support.simulated_story import MODELS, Chat, Crash

MODEL: Final = MODELS[0]
WITH_FILES: Final = MODELS[2]
LOST_AFTER_S: Final = DEFAULT_LOST_AFTER_S
LATE_S: Final = 10.0
"""For the master to decide, for its word to arrive, and for a small model to load."""
GONE: Final = Crash(what="power", n_unsynced_bytes_kept=0, down_s=120.0)


@final
class Repairs:
    """Four nodes: the master, which runs no model here, and three that may."""

    def __init__(self, seed: int) -> None:
        story = ClusterStory(n_nodes=4, policy="availability", is_gentle=True, steps=())
        self.history = ClusterHistory(seed, story)
        self.kinds: Counter[str] = Counter()

    async def begin(self) -> None:
        """Found the cluster."""
        await self.history._found()
        self.master = self.history._number(MASTER)
        self.workers = [one for one in self.history.boxes if one != self.master]
        self.node(self.master).replica.subscribe(self._on_event)

    async def insist_on_a_majority(self) -> None:
        """Let no node that is cut off decide anything."""
        policy = {"policy": "quorum"}
        await self.history._ask(self.master, "PUT", "/v1/cluster/policy", policy)

    async def place(self, **fields: object) -> InstanceId:
        """Place the model on the workers, wherever; give its id."""
        body = {
            "model_id": MODEL,
            "excluded_nodes": [self.node_id(self.master)],
            "slots": 4,
            "context_tokens": 1024,
            **fields,
        }
        placed = await self.history._ask(self.master, "POST", "/place_instance", body)
        assert placed, self.history.told[-1]
        return InstanceId(placed["instance_id"])

    def node_id(self, number: int) -> NodeId:
        """Give a machine's node."""
        return self.history.boxes[number].world.node_id

    def node(self, number: int) -> SimulatedNode:
        """Give a node that runs."""
        node = self.history.boxes[number].running
        assert node is not None
        return node

    @property
    def state(self) -> ClusterState:
        """What a node knows that is not taken down."""
        running = [box.running for box in self.history.boxes.values() if box.running is not None]
        return max((node.state for node in running), key=lambda state: state.seq)

    def instance(self, instance_id: InstanceId) -> Instance:
        """Find an instance."""
        return self.state.instances[instance_id]

    def place_of(self, instance_id: InstanceId) -> int:
        """Say which machine an instance is on."""
        (shard,) = self.instance(instance_id).plan.shards
        return next(one for one in self.history.boxes if self.node_id(one) == shard.node_id)

    async def until(self, is_so: Callable[[], bool], what: str) -> float:
        """Wait for something; give how long it took."""
        begun_s = asyncio.get_running_loop().time()
        await self.history._wait(is_so, 180.0, what)
        return asyncio.get_running_loop().time() - begun_s

    async def until_ready(self, instance_id: InstanceId, *, elsewhere_than: int = 0) -> float:
        """Wait until an instance serves; give how long it took."""

        def is_ready() -> bool:
            at = self.place_of(instance_id)
            return self.instance(instance_id).phase == "ready" and at != elsewhere_than

        return await self.until(is_ready, "ready")

    async def ask(self, via: int, model: str = MODEL) -> str:
        """Let a client ask; say how it went."""
        chat = Chat(model=model, n_tokens=10, stream=True, manner="read", changes_after_s=0.0)
        return await self.history._chat(via, chat)

    def take_down(self, number: int, crash: Crash = GONE) -> "asyncio.Task[None]":
        """Pull a machine's plug."""
        return asyncio.create_task(self.history.boxes[number].crash(crash))

    def n_engines(self, number: int) -> int:
        """Count the engines that run on a machine."""
        living = self.history.boxes[number].world.machine.living()
        return sum(process.exit_status is None for process in living)

    async def end(self) -> None:
        """Stop everything, and see that nothing is wrong or left."""
        await self.until(self.history._is_whole, "whole")
        await self.history._stop_all()
        self.history._check_agreement()
        for box in self.history.boxes.values():
            await box.stop()
        self.history._check_left()

    def _on_event(self, sequenced: SequencedEvent, _state: ClusterState) -> None:
        self.kinds[sequenced.event.kind] += 1


def run(story: Callable[[Repairs], Coroutine[Any, Any, None]], seed: int) -> None:
    async def main() -> None:
        repairs = Repairs(seed)
        await repairs.begin()
        await story(repairs)
        await repairs.end()

    run_virtual(main, seed=seed, limit_s=1800.0)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_model_whose_machine_is_gone_is_served_by_another_under_the_same_id(seed: int) -> None:
    async def story(repairs: Repairs) -> None:
        instance_id = await repairs.place()
        await repairs.until_ready(instance_id)
        here = repairs.place_of(instance_id)
        back = repairs.take_down(here)
        await asyncio.sleep(10.0)
        assert await repairs.ask(repairs.master) == "503", "a typed refusal, to be tried again"
        took_s = await repairs.until_ready(instance_id, elsewhere_than=here)
        assert LOST_AFTER_S - 10.0 <= took_s + 1.0 <= LOST_AFTER_S + LATE_S
        assert await repairs.ask(repairs.master) == "finished"
        (repair,) = repairs.instance(instance_id).repairs
        assert repair.at_fault == (repairs.node_id(here),)
        there = repairs.place_of(instance_id)
        await back
        await repairs.until(repairs.history._is_whole, "whole")
        await asyncio.sleep(10.0)
        assert repairs.place_of(instance_id) == there, "the one that came back does not take it"
        assert repairs.n_engines(here) == 0
        assert await repairs.ask(here) == "finished"
        assert repairs.kinds["instance_replanned"] == 1

    run(story, seed)


def test_a_machine_that_is_back_soon_keeps_its_model() -> None:
    async def story(repairs: Repairs) -> None:
        instance_id = await repairs.place()
        await repairs.until_ready(instance_id)
        here = repairs.place_of(instance_id)
        await repairs.take_down(here, Crash(what="power", n_unsynced_bytes_kept=0, down_s=15.0))
        await repairs.until(repairs.history._is_whole, "whole")
        await repairs.until_ready(instance_id)
        assert repairs.place_of(instance_id) == here
        assert repairs.kinds["instance_replanned"] == 0

    run(story, 3)


def test_the_next_master_goes_on_with_it_where_both_are_lost_at_once() -> None:
    async def story(repairs: Repairs) -> None:
        instance_id = await repairs.place()
        await repairs.until_ready(instance_id)
        here = repairs.place_of(instance_id)
        lost = [repairs.take_down(here), repairs.take_down(repairs.master)]
        await repairs.until_ready(instance_id, elsewhere_than=here)
        assert repairs.place_of(instance_id) != repairs.master, "it is excluded still"
        await asyncio.gather(*lost)

    run(story, 4)


@pytest.mark.parametrize("code", ["store.no_space", "store.disk_failed"])
def test_a_download_that_fails_on_one_node_is_made_on_another(code: ErrorCode) -> None:
    async def story(repairs: Repairs) -> None:
        first = await repairs.place(model_id=WITH_FILES)
        here = repairs.place_of(first)
        repairs.history.boxes[here].world.store.weather = Weather(fails=code)
        await repairs.until_ready(first, elsewhere_than=here)
        (repair,) = repairs.instance(first).repairs
        assert repair.error.code == code
        assert await repairs.ask(repairs.master, WITH_FILES) == "finished"
        ended = [one for one in repairs.state.downloads.values() if one.error is not None]
        assert ended == [], "it condemns no later placement"
        assert repairs.n_engines(here) == 0

    run(story, 5)


def test_a_node_that_was_cut_off_gives_up_the_download_it_had_begun() -> None:
    async def story(repairs: Repairs) -> None:
        await repairs.insist_on_a_majority()
        instance_id = await repairs.place(model_id=WITH_FILES)
        here = repairs.place_of(instance_id)
        world = repairs.history.boxes[here].world
        world.store.weather = Weather(rate_bytes_s=1e6)
        await repairs.until(lambda: repairs.instance(instance_id).phase == "download", "begun")
        where = [repairs.node_id(here)]
        others = [repairs.node_id(one) for one in repairs.history.boxes if one != here]
        repairs.history.network.partition(where, others)
        await repairs.until_ready(instance_id, elsewhere_than=here)
        assert repairs.node(here).table.readings.transfers, "it does not know better"
        repairs.history.network.heal_all()
        await repairs.until(repairs.history._is_whole, "whole")
        await asyncio.sleep(5.0)
        shown = repairs.node(here).table.readings.transfers.values()
        assert [one for one in shown if one.node_id == repairs.node_id(here)] == []
        assert world.store.held() == ()

    run(story, 10)


def test_b25_a_load_that_hangs_is_ended_and_the_model_goes_on_elsewhere() -> None:
    async def story(repairs: Repairs) -> None:
        for number in repairs.workers[:2]:
            repairs.history.boxes[number].world.moods[MODEL] = Mood(load_hangs=True)
        instance_id = await repairs.place()
        await repairs.until_ready(instance_id)
        codes = {one.error.code for one in repairs.instance(instance_id).repairs}
        assert codes <= {"runner.load_stalled"}
        here = repairs.place_of(instance_id)
        assert here == repairs.workers[2]
        assert [repairs.n_engines(number) for number in repairs.workers] == [0, 0, 1]

    run(story, 9)


def test_one_that_fails_everywhere_ends_and_says_why_of_each_node() -> None:
    async def story(repairs: Repairs) -> None:
        for number in repairs.workers:
            repairs.history.boxes[number].world.moods[MODEL] = Mood(dies_at_s=0.5)
        instance_id = await repairs.place()
        await repairs.until(lambda: repairs.instance(instance_id).phase == "failed", "failed")
        assert repairs.kinds["instance_replanned"] == len(repairs.workers) - 1
        (told,) = repairs.state.placement_failures
        assert told.instance_id == instance_id
        assert told.error.message.count("it could not go on there") == len(repairs.workers) - 1
        await asyncio.sleep(60.0)
        assert repairs.kinds["instance_replanned"] == len(repairs.workers) - 1, "and rests"
        assert all(repairs.n_engines(number) == 0 for number in repairs.workers)
        for number in repairs.workers:
            repairs.history.boxes[number].world.moods.clear()
        await repairs.history._ask(repairs.master, "POST", f"/instance/{instance_id}/retry")
        await repairs.until_ready(instance_id)
        assert repairs.state.placement_failures == ()

    run(story, 6)


def test_a_node_cut_off_from_every_master_stops_what_may_not_run_on_and_has_it_again() -> None:
    async def story(repairs: Repairs) -> None:
        await repairs.history._ask(
            repairs.master, "PUT", "/v1/cluster/policy", {"policy": "quorum"}
        )
        here = repairs.workers[0]
        where = [repairs.node_id(here)]
        bounded = await repairs.place(nodes=where, stop_after_s=20)
        serves_on = await repairs.place(nodes=where, model_id=MODELS[1])
        await repairs.until_ready(bounded)
        await repairs.until_ready(serves_on)
        network = repairs.history.network
        others = [repairs.node_id(one) for one in repairs.history.boxes if one != here]
        network.partition(where, others)
        await asyncio.sleep(15.0)
        assert repairs.n_engines(here) == 2
        await asyncio.sleep(25.0)
        assert repairs.n_engines(here) == 1
        network.heal_all()
        await repairs.until(lambda: repairs.n_engines(here) == 2, "started again")
        await repairs.until_ready(bounded)
        assert repairs.instance(bounded).attempt == 2
        assert repairs.instance(serves_on).attempt == 1

    run(story, 8)


def test_one_that_nobody_else_may_run_waits_for_its_machine() -> None:
    async def story(repairs: Repairs) -> None:
        here = repairs.workers[0]
        instance_id = await repairs.place(nodes=[repairs.node_id(here)])
        await repairs.until_ready(instance_id)
        back = repairs.take_down(here)
        await asyncio.sleep(60.0)
        (told,) = repairs.state.placement_failures
        assert told.instance_id == instance_id
        assert "is not among the nodes asked for" in told.error.message
        assert repairs.kinds["placement_failed"] == 1, "it is said once"
        await back
        await repairs.until(repairs.history._is_whole, "whole")
        await repairs.until_ready(instance_id)
        assert repairs.place_of(instance_id) == here
        assert repairs.state.placement_failures == ()

    run(story, 7)
