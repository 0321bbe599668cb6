"""Clients that leave or cancel: how soon an engine is free of them, wherever they are served."""

# pyright: reportPrivateUsage=false

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, Literal, final

import pytest

from protocol.control_api import InstanceView, read_answer
from protocol.ids import CommandId
from skulkd.runtime.virtual_time import run_virtual
from tests.simulation.test_drains import Drains
from tests.support.simulated_clients import SimulatedCall
from tests.support.simulated_cluster_story import MASTER
from tests.support.simulated_people import command_id_of
from tests.support.simulated_story import MODELS

WITHIN_S: Final = 0.25
Manner = Literal["leaves", "cancels"]


@final
class Leaving:
    """A model with one slot on one of three nodes, and clients that do not wait to the end."""

    def __init__(self, seed: int) -> None:
        self.drains = Drains(seed)
        self.served: set[CommandId] = set()
        """What the engine works on."""

    async def begin(self, first_token_s: float) -> None:
        """Place the model; its engine reads each prompt for so long."""
        drains, history = self.drains, self.drains.history
        await history._found()
        drains.master = history._number(MASTER)
        drains.here, drains.there = (one for one in history.boxes if one != drains.master)
        nodes = [drains.node_id(drains.here)]
        drains.instance_id = await drains.place(nodes=nodes, slots=1, context_tokens=4096)
        await drains.until(lambda: drains.phase() == "ready", "placed")
        await asyncio.sleep(5.0)
        machine = history.boxes[drains.here].world.machine
        for process in machine.living():
            process.mood = replace(process.mood, first_token_s=first_token_s)
        self.served = machine.served

    def call(self, via: int, method: str, path: str, body: object = None) -> SimulatedCall:
        """Ask a node."""
        app = self.drains.history.boxes[via].app
        assert app is not None
        return SimulatedCall(app, method, path, body, number=via)

    def ask(self, via: int, *, stream: bool) -> SimulatedCall:
        """Ask for a long answer."""
        messages = [{"role": "user", "content": "hi"}]
        body = {"model": MODELS[0], "messages": messages, "max_tokens": 500, "stream": stream}
        return self.call(via, "POST", "/v1/chat/completions", body)

    async def go(self, call: SimulatedCall, manner: Manner, via: int) -> None:
        """Have a client leave, or another one cancel its request through a node."""
        if manner == "leaves":
            call.connection.lose()
        else:
            command_id = command_id_of(call) or next(iter(self.served))
            cancel = self.call(via, "POST", f"/v1/cancel/{command_id}")
            assert await cancel.wait_over(WITHIN_S)
            assert cancel.connection.status == 200

    async def instance(self) -> InstanceView:
        """Ask the node that serves it what the instance does."""
        path = f"/instance/{self.drains.instance_id}"
        call = self.call(self.drains.here, "GET", path)
        assert await call.wait_over(1.0)
        return read_answer(InstanceView, call.connection.body)

    async def until(self, is_so: Callable[[], bool], within_s: float) -> float:
        """Wait for something; gives how long it took."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while not is_so():
            assert loop.time() - began_s <= within_s, f"not after {within_s} s"
            await asyncio.sleep(0.005)
        return loop.time() - began_s


def run(story: Callable[[Leaving], Coroutine[Any, Any, None]], first_token_s: float) -> None:
    async def main() -> None:
        leaving = Leaving(seed=1)
        await leaving.begin(first_token_s)
        await story(leaving)
        await leaving.drains.end()

    run_virtual(main, seed=1, limit_s=1200.0)


@pytest.mark.parametrize("manner", ["leaves", "cancels"])
@pytest.mark.parametrize("is_reading", [True, False], ids=["prompt", "answer"])
def test_f21_an_engine_is_free_within_250_ms_of_a_client_that_goes(
    manner: Manner, *, is_reading: bool
) -> None:
    async def story(leaving: Leaving) -> None:
        drains = leaving.drains
        for via in (drains.here, drains.there):
            for stream in (True, False):
                call = leaving.ask(via, stream=stream)
                await leaving.until(lambda: bool(leaving.served), 5.0)
                await asyncio.sleep(1.5)
                assert leaving.served
                await leaving.go(call, manner, drains.master)
                await leaving.until(lambda: not leaving.served, WITHIN_S)
                assert await call.wait_over(WITHIN_S)

    run(story, first_token_s=60.0 if is_reading else 0.2)


@pytest.mark.parametrize("manner", ["leaves", "cancels"])
def test_f21_who_waits_and_goes_is_out_of_the_queue_within_250_ms(manner: Manner) -> None:
    async def story(leaving: Leaving) -> None:
        drains = leaving.drains
        running = leaving.ask(drains.here, stream=True)
        await leaving.until(lambda: bool(leaving.served), 5.0)
        (first,) = leaving.served
        for via in (drains.here, drains.there):
            waiting = [leaving.ask(via, stream=True) for _ in range(3)]
            await asyncio.sleep(1.5)
            seen = await leaving.instance()
            assert (seen.queued, [one.position for one in seen.waiting]) == (3, [1, 2, 3])
            assert {one.asker for one in seen.waiting} == {"loopback"}
            for call in waiting:
                await leaving.go(call, manner, drains.master)
            await asyncio.sleep(WITHIN_S)
            assert (await leaving.instance()).queued == 0
            assert leaving.served == {first}
        running.connection.lose()
        await leaving.until(lambda: not leaving.served, WITHIN_S)

    run(story, first_token_s=60.0)
