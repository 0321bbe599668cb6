"""Images on their way to the node that serves them, in virtual time, and what is left of them."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from protocol.data_frames import Finished
from protocol.tasks import ChatMessage, ChatTask
from skulkd.cluster.simulated import SimulatedNetwork
from skulkd.runtime.tasks import sleep, timeout
from skulkd.runtime.virtual_time import run_virtual
from tests.support.data_nodes import DataNetwork, Script, a_task, ask
from tests.support.image_files import a_png, a_task_image


def run(story: Callable[[DataNetwork], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        nodes = DataNetwork(SimulatedNetwork(random.Random(1)), 2)
        await nodes.connect()
        await story(nodes)
        await nodes.close()

    run_virtual(main, seed=1, limit_s=600)


async def until(condition: Callable[[], bool]) -> None:
    async with timeout(30.0):
        while not condition():
            await sleep(0.01)


def a_task_with_images(*images: bytes) -> ChatTask:
    turn = ChatMessage(
        role="user", content="what?", images=tuple(a_task_image(data) for data in images)
    )
    return a_task().model_copy(update={"messages": (turn,)})


def test_images_reach_the_node_that_serves_as_they_are() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        task = a_task_with_images(a_png() + bytes(4 << 20), a_png(9, 9))
        got = await ask(api, 2, task)
        assert isinstance(got.frames[-1], Finished)
        assert worker.worker.tasks == [task]
        assert worker.server.held_bytes == 0
        assert net.nodes[0].worker.tasks == []

    run(story)


def test_images_of_a_request_that_nobody_waits_for_are_let_go() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        asking = asyncio.get_running_loop().create_task(
            ask(api, 2, a_task_with_images(a_png() + bytes(4 << 20)))
        )
        await until(lambda: worker.server.held_bytes > 4 << 20)
        asking.cancel()
        await until(lambda: worker.server.held_bytes == 0)
        assert worker.server.n_open == 0
        assert api.inference.n_remote == 0

    run(story)


def test_images_of_a_node_that_has_gone_are_let_go() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        worker.worker.script = Script(queue_s=3600)
        asking = asyncio.get_running_loop().create_task(
            ask(api, 2, a_task_with_images(a_png() + bytes(1 << 20)))
        )
        await until(lambda: len(worker.worker.tasks) == 1)
        assert worker.server.held_bytes > 1 << 20
        await api.die()
        await until(lambda: worker.server.held_bytes == 0)
        asking.cancel()

    run(story)
