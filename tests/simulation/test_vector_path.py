"""Tasks for vectors over the data plane of simulated nodes, in virtual time."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from protocol.data_frames import Chunk
from protocol.frame_wire import FRAME_BYTES
from protocol.vectors import pack_vector
from skulkd.cluster.simulated import SimulatedNetwork
from skulkd.runtime.tasks import sleep, timeout
from skulkd.runtime.virtual_time import run_virtual
from tests.support.data_nodes import DataNetwork, Got, Script, an_embedding_task, embed


def run(story: Callable[[DataNetwork], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        nodes = DataNetwork(SimulatedNetwork(random.Random(1)), 2)
        await nodes.connect()
        await story(nodes)
        await nodes.close()

    run_virtual(main, seed=1, limit_s=600)


async def until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    async with timeout(within_s):
        while not condition():
            await sleep(0.01)


def start(coro: Coroutine[Any, Any, Got]) -> asyncio.Task[Got]:
    return asyncio.get_running_loop().create_task(coro)


def vectors_of(got: Got) -> list[bytes]:
    return [item for frame in got.frames if isinstance(frame, Chunk) for item in frame.vectors]


@pytest.mark.parametrize("instance", [1, 2], ids=["here", "elsewhere"])
def test_300_texts_get_their_vectors_of_4096_numbers_wherever_they_are_made(instance: int) -> None:
    batch = Chunk(vectors=tuple(pack_vector([n] * 4096) for n in range(60)))

    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes[0], net.nodes[instance - 1].worker
        worker.script = Script(n_chunks=5, pause_s=0.01, chunk=batch)
        before = net.network.n_sent
        got = await embed(api, instance, an_embedding_task(300))
        assert got.code == "finished"
        got.assert_ordered()
        assert vectors_of(got) == [*batch.vectors] * 5
        assert worker.tasks == [an_embedding_task(300)]
        assert (net.network.n_sent > before) == (instance == 2)
        assert all(
            sum(map(len, frame.vectors)) <= (FRAME_BYTES if instance == 2 else 1 << 20)
            for frame in got.frames
            if isinstance(frame, Chunk)
        )

    run(story)


def test_vectors_wait_for_a_client_that_reads_slowly() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        batch = Chunk(vectors=(pack_vector([0.5] * 16384),) * 8)
        worker.worker.script = Script(n_chunks=20, pause_s=0, chunk=batch)
        reading = start(embed(api, 2, an_embedding_task(160), pause_s=0.1))
        await sleep(2.0)
        # Of the 20 batches of 512 KiB only as many are made as the credit has room for.
        assert worker.worker.n_said <= 8
        assert len(vectors_of(await reading)) == 160

    run(story)


def test_a_client_that_goes_while_its_vectors_are_made_frees_the_slot() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        worker.worker.script = Script(pause_s=1.0)
        asking = start(embed(api, 2, an_embedding_task(3)))
        await until(lambda: worker.worker.n_running == 1)
        asking.cancel()
        await until(lambda: worker.worker.n_running == 0, within_s=1.0)

    run(story)


def test_a_task_for_vectors_is_cancelled_wherever_it_is_made() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        worker.worker.script = Script(pause_s=1.0)
        asking = start(embed(api, 2, an_embedding_task(3)))
        await until(lambda: worker.worker.n_running == 1)
        assert api.inference.cancel(an_embedding_task(3).command_id)
        assert (await asking).code == "request.cancelled"
        await until(lambda: worker.worker.n_running == 0, within_s=1.0)

    run(story)


def test_a_node_that_dies_while_it_makes_vectors_ends_the_task() -> None:
    async def story(net: DataNetwork) -> None:
        net.nodes[1].worker.script = Script(pause_s=1.0)
        asking = start(embed(net.nodes[0], 2, an_embedding_task(3)))
        await until(lambda: net.nodes[1].worker.n_said > 1)
        await net.nodes[1].die()
        assert (await asking).code == "cluster.link_lost"

    run(story)
