"""Whole simulated nodes with an on-demand model: loaded when asked for, unloaded when idle."""

# pyright: reportPrivateUsage=false

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final, final

import pytest

from protocol.commands import SleepInstance
from protocol.events import InstanceFellAsleep, SequencedEvent
from protocol.ids import InstanceId, NodeId
from protocol.state import ClusterState
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import GIB
from tests.support.simulated_cluster_history import ClusterHistory
from tests.support.simulated_cluster_story import MASTER, ClusterStory
from tests.support.simulated_node import SimulatedNode
from tests.support.simulated_story import MODELS, Chat, Crash

MODEL: Final = MODELS[1]
LARGE: Final = MODELS[3]
TTL_S: Final = 20
LATE_S: Final = 4.0
"""The worker looks once a second; a master decides, and the log brings it, soon after."""
POWER: Final = Crash(what="power", n_unsynced_bytes_kept=0, down_s=20.0)


@final
class Demand:
    """Three nodes: the master, one that has the model on demand, and another one."""

    def __init__(self, seed: int) -> None:
        story = ClusterStory(n_nodes=3, policy="availability", is_gentle=True, steps=())
        self.history = ClusterHistory(seed, story)
        self.n_woken = 0
        self.n_tired = 0
        self.made_room_for: list[str] = []
        self._clients: list[asyncio.Task[str]] = []

    async def begin(self) -> None:
        """Found the cluster, and place the model on demand."""
        await self.history._found()
        self.master = self.history._number(MASTER)
        self.here, self.there = (one for one in self.history.boxes if one != self.master)
        body = {
            "model_id": MODEL,
            "nodes": [self.node_id(self.here)],
            "context_tokens": 1024,
            "slots": 4,
            "on_demand": True,
            "ttl_s": TTL_S,
        }
        placed = await self.history._ask(self.there, "POST", "/place_instance", body)
        self.instance_id = InstanceId(placed["instance_id"])
        nodes = self.history._running()
        known = self.instance_id
        await self.until(lambda: all(known in node.state.instances for node in nodes), "placed")
        assert self.phase() == "asleep"
        node = self.node(self.there)
        node.replica.subscribe(self._on_event)

    def node_id(self, number: int) -> NodeId:
        """Give a machine's node."""
        return self.history.boxes[number].world.node_id

    def node(self, number: int) -> SimulatedNode:
        """Give a node that runs."""
        node = self.history.boxes[number].running
        assert node is not None
        return node

    def state(self) -> ClusterState:
        """What the node without the model knows."""
        return self.node(self.there).state

    def phase(self) -> str:
        """Say how far the instance is."""
        return self.state().instances[self.instance_id].phase

    def n_engines(self) -> int:
        """Count the engines that run where the model is."""
        living = self.history.boxes[self.here].world.machine.living()
        return sum(process.exit_status is None for process in living)

    async def place_beside(self) -> InstanceId:
        """Place another model on demand there, and take so much memory that one of them fits."""
        self.history.boxes[self.here].world.machine.crowd(GIB)
        body = {
            "model_id": LARGE,
            "nodes": [self.node_id(self.here)],
            "context_tokens": 1024,
            "on_demand": True,
            "ttl_s": TTL_S,
        }
        placed = await self.history._ask(self.there, "POST", "/place_instance", body)
        return InstanceId(placed["instance_id"])

    def ask(
        self, via: int, n_tokens: int = 30, *, stream: bool = True, model: str = MODEL
    ) -> "asyncio.Task[str]":
        """Let a client ask."""
        chat = Chat(
            model=model, n_tokens=n_tokens, stream=stream, manner="read", changes_after_s=0.0
        )
        asked = asyncio.create_task(self.history._chat(via, chat))
        self._clients.append(asked)
        return asked

    async def outcomes(self) -> Counter[str]:
        """Wait until all clients have their answer."""
        clients, self._clients = self._clients, []
        return Counter(await asyncio.gather(*clients))

    async def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait for something."""
        await self.history._wait(is_so, 120.0, what)

    async def until_unloaded(self) -> float:
        """Wait until the model sleeps and its engine is gone; give the time of the former."""
        await self.until(lambda: self.phase() == "asleep", "asleep")
        at_s = asyncio.get_running_loop().time()
        await self.until(lambda: self.n_engines() == 0, "unloaded")
        return at_s

    async def end(self) -> None:
        """Stop everything, and see that nothing is wrong or left."""
        await self.history._stop_all()
        self.history._check_agreement()
        for box in self.history.boxes.values():
            await box.stop()
        self.history._check_left()

    def _on_event(self, sequenced: SequencedEvent, _state: ClusterState) -> None:
        self.n_woken += sequenced.event.kind == "instance_woken"
        self.n_tired += sequenced.event.kind == "instance_fell_asleep"
        if isinstance(sequenced.event, InstanceFellAsleep) and sequenced.event.room_for:
            self.made_room_for.append(sequenced.event.room_for)


def run(story: Callable[[Demand], Coroutine[Any, Any, None]], seed: int) -> None:
    async def main() -> None:
        demand = Demand(seed)
        await demand.begin()
        await story(demand)
        await demand.end()

    run_virtual(main, seed=seed, limit_s=1200.0)


def now_s() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("seed", [1, 2])
def test_many_clients_cause_one_load_and_the_last_answer_begins_the_time_to_live(seed: int) -> None:
    async def story(demand: Demand) -> None:
        assert demand.n_engines() == 0
        for number in range(8):
            demand.ask((demand.here, demand.there, demand.master)[number % 3], stream=number < 5)
        assert await demand.outcomes() == {"finished": 8}
        assert demand.n_woken == 1
        # Longer than its time to live: it is counted from the end.
        demand.ask(demand.there, n_tokens=900)
        assert await demand.outcomes() == {"finished": 1}
        ended_s = now_s()
        assert (demand.phase(), demand.n_tired) == ("ready", 0)
        assert TTL_S - 1.0 <= await demand.until_unloaded() - ended_s <= TTL_S + LATE_S
        demand.ask(demand.there)
        assert await demand.outcomes() == {"finished": 1}
        assert demand.n_woken == 2

    run(story, seed)


def test_ollama_s_keep_alive_holds_for_this_loading_through_any_node() -> None:
    async def story(demand: Demand) -> None:
        url = "/ollama/api/generate"

        async def say(via: int, keep_alive: object, **more: object) -> float:
            body = {"model": MODEL, "stream": False, "keep_alive": keep_alive, **more}
            assert (await demand.history._ask(via, "POST", url, body))["done"]
            return now_s()

        words = {"prompt": "Hello", "options": {"num_predict": 10}}
        await say(demand.there, "60s", **words)
        await asyncio.sleep(2 * TTL_S)
        demand.ask(demand.master)
        assert await demand.outcomes() == {"finished": 1}
        ended_s = now_s()
        assert 59.0 <= await demand.until_unloaded() - ended_s <= 60.0 + LATE_S
        await say(demand.there, -1)
        await asyncio.sleep(4 * TTL_S)
        assert demand.phase() == "ready"
        (shown,) = (await demand.history._ask(demand.master, "GET", "/ollama/api/ps"))["models"]
        assert shown["expires_at"] > "2200", "until it is told to go"
        ended_s = await say(demand.here, 0, **words)
        assert await demand.until_unloaded() - ended_s <= LATE_S
        # The next load is as the model was placed.
        demand.ask(demand.there)
        assert await demand.outcomes() == {"finished": 1}
        ended_s = now_s()
        assert TTL_S - 1.0 <= await demand.until_unloaded() - ended_s <= TTL_S + LATE_S
        assert demand.n_woken == 3

    run(story, 15)


@pytest.mark.parametrize("dies_after_s", [0.0, 0.05, 0.5, 2.0])
def test_a_load_outlives_the_master_that_was_asked_for_it(dies_after_s: float) -> None:
    async def story(demand: Demand) -> None:
        for number in range(6):
            demand.ask((demand.here, demand.there)[number % 2], stream=number < 4)
        await asyncio.sleep(dies_after_s)
        dying = asyncio.create_task(demand.history.boxes[demand.master].crash(POWER))
        assert await demand.outcomes() == {"finished": 6}
        await dying
        await demand.until(demand.history._is_whole, "whole")
        await demand.until_unloaded()

    run(story, 3)


@pytest.mark.parametrize("dies_after_s", [1.0, TTL_S / 2, TTL_S - 0.5])
def test_an_election_neither_begins_the_time_to_live_anew_nor_cuts_it_short(
    dies_after_s: float,
) -> None:
    async def story(demand: Demand) -> None:
        demand.ask(demand.there)
        assert await demand.outcomes() == {"finished": 1}
        ended_s = now_s()
        await asyncio.sleep(dies_after_s)
        dying = asyncio.create_task(demand.history.boxes[demand.master].crash(POWER))
        lived_s = await demand.until_unloaded() - ended_s
        # One that ends while there is no master waits for the next one.
        assert TTL_S - 1.0 <= lived_s <= TTL_S + LATE_S + 15.0 * (dies_after_s > TTL_S / 2)
        await dying
        await demand.until(demand.history._is_whole, "whole")
        assert demand.n_tired == 1

    run(story, 4)


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_a_request_at_the_moment_of_the_unloading_is_answered(seed: int) -> None:
    async def story(demand: Demand) -> None:
        demand.ask(demand.there)
        await demand.outcomes()
        # From before its node asks for sleep until after its engine is gone.
        await asyncio.sleep(TTL_S - 1.0)
        for number in range(40):
            demand.ask((demand.here, demand.there, demand.master)[number % 3], 3)
            await asyncio.sleep(0.1)
            if demand.phase() == "asleep":
                break
        for number in range(30):
            demand.ask((demand.here, demand.there)[number % 2], 3, stream=number % 3 > 0)
            await asyncio.sleep(0.02)
        assert set(await demand.outcomes()) == {"finished"}

    run(story, seed)


def test_requests_that_race_each_unloading_are_all_answered() -> None:
    async def story(demand: Demand) -> None:
        for number in range(12):
            demand.ask(demand.there, 3)
            await demand.outcomes()
            await demand.until(lambda: demand.phase() == "asleep", "asleep")
            await asyncio.sleep(number * 0.04)
            for client in range(3):
                demand.ask((demand.here, demand.there, demand.master)[client], 3)
            assert await demand.outcomes() == {"finished": 3}

    run(story, 8)


def test_a_word_that_it_sleeps_which_comes_late_ends_no_answer_that_has_begun() -> None:
    async def story(demand: Demand) -> None:
        for via in (demand.here, demand.there):
            demand.ask(via, n_tokens=300)
        await demand.until(lambda: demand.phase() == "ready", "answering")
        node = demand.node(demand.here)
        for _ in range(5):
            late = SleepInstance(
                command_id=node.world.mint(), instance_id=demand.instance_id, attempt=1
            )
            await node.rooms.gateway.submit(late)
            await asyncio.sleep(0.3)
        assert (demand.n_tired, demand.n_engines()) == (5, 1)
        assert await demand.outcomes() == {"finished": 2}
        assert (demand.phase(), demand.n_woken) == ("ready", 6)
        await demand.until_unloaded()

    run(story, 11)


def test_who_waits_is_answered_although_the_loading_node_loses_its_power() -> None:
    async def story(demand: Demand) -> None:
        for number in range(4):
            demand.ask((demand.there, demand.master)[number % 2])
        await demand.until(lambda: demand.phase() == "load", "loading")
        crash = Crash(what="power", n_unsynced_bytes_kept=0, down_s=2.0)
        await demand.history.boxes[demand.here].crash(crash)
        assert await demand.outcomes() == {"finished": 4}

    run(story, 9)


def test_what_is_placed_on_demand_and_pinned_survives_all_machines() -> None:
    async def story(demand: Demand) -> None:
        demand.ask(demand.there)
        await demand.outcomes()
        path = f"/instance/{demand.instance_id}/pin"
        await demand.history._ask(demand.there, "POST", path)
        await asyncio.sleep(2 * TTL_S)
        assert (demand.phase(), demand.n_engines()) == ("ready", 1)
        crash = Crash(what="power", n_unsynced_bytes_kept=0, down_s=3.0)
        await asyncio.gather(*(box.crash(crash) for box in demand.history.boxes.values()))
        await demand.until(demand.history._is_whole, "whole")
        await demand.until(lambda: demand.phase() == "ready", "loaded again")
        await asyncio.sleep(2 * TTL_S)
        assert demand.phase() == "ready"
        await demand.history._ask(demand.there, "DELETE", path)
        await demand.until_unloaded()
        await asyncio.gather(*(box.crash(crash) for box in demand.history.boxes.values()))
        await demand.until(demand.history._is_whole, "whole again")
        await asyncio.sleep(10.0)
        assert (demand.phase(), demand.n_engines()) == ("asleep", 0)
        demand.ask(demand.master)
        assert await demand.outcomes() == {"finished": 1}

    run(story, 10)


def test_an_idle_model_makes_room_for_one_that_is_asked_for_and_the_other_way_round() -> None:
    async def story(demand: Demand) -> None:
        await demand.place_beside()
        for number in range(3):
            demand.ask(demand.there)
            assert await demand.outcomes() == {"finished": 1}
            await asyncio.sleep(3.0)
            demand.ask(demand.master, model=LARGE, stream=number > 0)
            assert await demand.outcomes() == {"finished": 1}
            await asyncio.sleep(3.0)
        assert demand.made_room_for == [LARGE, MODEL, LARGE, MODEL, LARGE]
        assert demand.n_engines() == 1

    run(story, 12)


def test_who_needs_room_waits_for_the_last_answer_of_what_holds_it() -> None:
    async def story(demand: Demand) -> None:
        await demand.place_beside()
        long = demand.ask(demand.there, n_tokens=600)
        await demand.until(lambda: demand.phase() == "ready", "answering")
        for via in (demand.here, demand.there, demand.master):
            demand.ask(via, model=LARGE)
        await asyncio.sleep(10.0)
        assert (long.done(), demand.made_room_for) == (False, [])
        assert await demand.outcomes() == {"finished": 4}
        assert demand.made_room_for == [LARGE]

    run(story, 13)


@pytest.mark.parametrize("dies_after_s", [0.0, 0.2, 0.6, 1.5])
def test_room_is_made_although_the_master_dies_meanwhile(dies_after_s: float) -> None:
    async def story(demand: Demand) -> None:
        await demand.place_beside()
        demand.ask(demand.there)
        assert await demand.outcomes() == {"finished": 1}
        await asyncio.sleep(3.0)
        demand.ask(demand.there, model=LARGE)
        await asyncio.sleep(dies_after_s)
        dying = asyncio.create_task(demand.history.boxes[demand.master].crash(POWER))
        assert await demand.outcomes() == {"finished": 1}
        await dying
        await demand.until(demand.history._is_whole, "whole")

    run(story, 14)
