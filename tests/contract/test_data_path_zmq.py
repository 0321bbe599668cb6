"""The data path and telemetry over the real transport; every rule is in tests/simulation."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from protocol.data_frames import Chunk, Finished, Started
from protocol.readings import NodeReading
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.cluster.telemetry import Telemetry
from skulkd.runtime.clock import SystemClock
from tests.support.builders import a_command_id
from tests.support.data_nodes import USAGE, DataNode, Got, Script, a_task, ask
from tests.support.zmq_nodes import two_zmq_nodes

Story = Callable[[DataNode, DataNode], Awaitable[None]]


def run(story: Story) -> None:
    async def main() -> None:
        async with two_zmq_nodes() as (asked, server):
            await story(asked, server)

    asyncio.run(main())


async def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


def test_eight_streams_arrive_whole_and_in_order() -> None:
    async def story(asked: DataNode, server: DataNode) -> None:
        server.worker.script = Script(n_chunks=500, pause_s=0.0)
        told = await asyncio.gather(*(ask(asked, 2, a_task(number)) for number in range(8)))
        whole = [Started(3), *[Chunk("word ")] * 500, Finished("stop", USAGE)]
        assert all(got.frames == whole for got in told)

    run(story)


@pytest.mark.parametrize("n_bytes", [2_000_000, 30_000_000])
def test_b09_a_long_prompt_is_served_and_others_go_on(n_bytes: int) -> None:
    async def story(asked: DataNode, server: DataNode) -> None:
        task = a_task(content="x" * n_bytes)
        told = await asyncio.gather(ask(asked, 2, task), ask(asked, 2, a_task(2)))
        assert [got.code for got in told] == ["finished", "finished"]
        assert task in server.worker.tasks
        assert server.server.held_bytes == 0

    run(story)


def test_b31_a_node_that_goes_mid_stream_leaves_an_error_and_no_end() -> None:
    async def story(asked: DataNode, server: DataNode) -> None:
        server.worker.script = Script(n_chunks=10_000, pause_s=0.005)
        got = Got()
        asking = asyncio.ensure_future(ask(asked, 2, a_task(), got))
        await until(lambda: len(got.frames) > 5)
        await server.die()
        async with asyncio.timeout(8):
            await asking
        assert got.code == "cluster.link_lost"
        got.assert_ordered()

    run(story)


def test_an_api_node_that_goes_frees_its_slots_within_three_seconds() -> None:
    async def story(asked: DataNode, server: DataNode) -> None:
        server.worker.script = Script(n_chunks=10_000, pause_s=0.005)
        asking = [asyncio.ensure_future(ask(asked, 2, a_task(n))) for n in range(4)]
        await until(lambda: server.worker.n_running == 4)
        await asked.die()
        await until(lambda: server.worker.n_running == 0, within_s=3)
        for one in asking:
            assert (await one).code == "cluster.link_lost"

    run(story)


def test_a_slow_reader_of_much_gets_all_of_it() -> None:
    async def story(asked: DataNode, server: DataNode) -> None:
        server.worker.script = Script(n_chunks=400, pause_s=0.0, chunk=Chunk("y" * 20_000))
        got = await ask(asked, 2, a_task(), pause_s=0.002)
        assert (got.code, len(got.text)) == ("finished", 8_000_000)

    run(story)


def test_a_task_is_cancelled_over_the_control_plane() -> None:
    async def story(asked: DataNode, server: DataNode) -> None:
        server.worker.script = Script(n_chunks=10_000, pause_s=0.005)
        asking = asyncio.ensure_future(ask(asked, 2, a_task()))
        await until(lambda: server.worker.n_running == 1)
        assert await server.cancels.cancel_elsewhere(a_command_id(1)) is False, "no such member"
        assert server.server.cancel(a_command_id(1))
        assert (await asking).code == "request.cancelled"

    run(story)


def test_readings_arrive_at_a_peer() -> None:
    async def story(asked: DataNode, server: DataNode) -> None:
        clock = SystemClock()
        tables = [ReadingsTable(), ReadingsTable()]
        telemetry = [
            Telemetry(node.transport, table, clock)
            for node, table in zip((asked, server), tables, strict=True)
        ]
        for number in range(50):
            tables[0].put_node(
                NodeReading(
                    node_id=asked.node_id,
                    at_s=clock.monotonic_s(),
                    memory_available_bytes=number,
                )
            )
        await until(lambda: _memory(tables[1], asked) == 49)
        for one in telemetry:
            one.close()

    run(story)


def _memory(table: ReadingsTable, node: DataNode) -> int | None:
    reading = table.readings.nodes.get(node.node_id)
    return None if reading is None else reading.memory_available_bytes
