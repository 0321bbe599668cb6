"""Requests over the data plane of simulated nodes, in virtual time, whatever happens to the way."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from protocol.data_frames import Chunk, Failed, Finished, Started
from protocol.data_wire import MAX_TASK_BYTES, Pulse, Request, pack_message, pack_payload, pack_task
from protocol.errors import ErrorBody
from skulkd.api import remote_inference
from skulkd.api.remote_inference import CREDIT_BYTES
from skulkd.cluster.simulated import NetworkFaults, SimulatedNetwork
from skulkd.runtime.tasks import sleep, timeout
from skulkd.runtime.virtual_time import run_virtual
from skulkd.worker import data_server
from tests.support.builders import a_command_id, an_instance_id
from tests.support.data_nodes import USAGE, DataNetwork, Got, Script, a_task, ask

Story = Callable[[DataNetwork], Coroutine[Any, Any, None]]


def run(
    story: Story, *, n_nodes: int = 2, seeds: int = 3, faults: NetworkFaults | None = None
) -> None:
    for seed in range(seeds):

        async def main(seed: int = seed) -> None:
            # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
            nodes = DataNetwork(SimulatedNetwork(random.Random(seed)), n_nodes)
            await nodes.connect()
            if faults is not None:
                nodes.network.faults = faults
            await story(nodes)
            nodes.network.faults = NetworkFaults()
            await nodes.close()

        run_virtual(main, seed=seed, limit_s=600)


async def until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    async with timeout(within_s):
        while not condition():
            await sleep(0.01)


def start(coro: Coroutine[Any, Any, Got]) -> asyncio.Task[Got]:
    return asyncio.get_running_loop().create_task(coro)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_a_request_is_served_by_the_node_that_has_the_instance() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        got = await ask(api, 2, a_task())
        assert got.frames == [Started(3), *[Chunk("word ")] * 20, Finished("stop", USAGE)]
        assert worker.worker.tasks == [a_task()]
        assert api.worker.tasks == []
        assert (worker.worker.n_running, worker.server.n_open, api.inference.n_remote) == (0, 0, 0)

    run(story)


def test_an_instance_of_this_node_is_served_without_the_network() -> None:
    async def story(net: DataNetwork) -> None:
        before = net.network.n_sent
        got = await ask(net.nodes[0], 1, a_task())
        assert got.code == "finished"
        assert net.network.n_sent == before

    run(story)


def test_the_first_token_is_not_held_back() -> None:
    async def story(net: DataNetwork) -> None:
        net.nodes[1].worker.script = Script(pause_s=1.0, n_chunks=2)
        began_s = now_s()
        got = await ask(net.nodes[0], 2, a_task())
        assert got.at_s[0] - began_s < 0.005
        assert got.at_s[1] - began_s < 1.005

    run(story)


def test_what_one_turn_of_the_loop_brings_goes_in_one_payload() -> None:
    async def story(net: DataNetwork) -> None:
        net.nodes[1].worker.script = Script(pause_s=0.1, n_chunks=10)
        before = net.network.n_sent
        tasks = [start(ask(net.nodes[0], 2, a_task(n))) for n in range(8)]
        assert {(await task).code for task in tasks} == {"finished"}
        # 8 × (a request and 12 frames) one by one would be 104, beside pulses.
        assert net.network.n_sent - before < 104

    run(story)


def test_a_link_that_breaks_before_the_start_is_as_if_the_engine_were_gone() -> None:
    async def story(net: DataNetwork) -> None:
        net.nodes[1].worker.script = Script(queue_s=60)
        task = start(ask(net.nodes[0], 2, a_task()))
        await until(lambda: net.nodes[1].worker.n_running == 1)
        await net.nodes[1].die()
        got = await task
        assert got.code == "engine.gone"
        assert isinstance(got.frames[0], Failed)
        assert got.frames[0].error.retry_after_s is not None

    run(story)


def test_a_worker_that_dies_mid_stream_ends_it_with_an_error_at_once() -> None:
    async def story(net: DataNetwork) -> None:
        task = start(ask(net.nodes[0], 2, a_task(), got := Got()))
        await until(lambda: len(got.frames) > 5)
        await net.nodes[1].die()
        died_s = now_s()
        assert (await task).code == "cluster.link_lost"
        assert now_s() - died_s < 0.5
        got.assert_ordered()
        again = net.restart(1)
        await until(lambda: net.nodes[0].links.is_up(again.node_id))
        assert (await ask(net.nodes[0], 2, a_task(2))).code == "finished"

    run(story)


@pytest.mark.parametrize("way", ["to the worker", "to the client", "both"])
def test_a_cut_link_ends_the_stream_with_an_error_and_frees_its_slot(way: str) -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        worker.worker.script = Script(n_chunks=10_000)
        task = start(ask(api, 2, a_task(), got := Got()))
        await until(lambda: len(got.frames) > 5)
        cut_s = now_s()
        if way != "to the client":
            net.network.cut(api.node_id, worker.node_id)
        if way != "to the worker":
            net.network.cut(worker.node_id, api.node_id)
        assert (await task).code == "cluster.link_lost"
        assert now_s() - cut_s < 8
        await until(lambda: worker.worker.n_running == 0, within_s=8)
        assert worker.server.held_bytes == 0
        got.assert_ordered()

    run(story)


def test_a_killed_api_node_frees_its_slots_within_three_seconds() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        worker.worker.script = Script(n_chunks=10_000)
        tasks = [start(ask(api, 2, a_task(n))) for n in range(8)]
        await until(lambda: worker.worker.n_running == 8)
        await api.die()
        died_s = now_s()
        await until(lambda: worker.worker.n_running == 0, within_s=3)
        assert now_s() - died_s < 3
        for task in tasks:
            assert (await task).code in {"cluster.link_lost", "engine.gone"}

    run(story)


def test_a_client_that_goes_frees_its_slot_at_once() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        worker.worker.script = Script(n_chunks=10_000)
        task = start(ask(api, 2, a_task()))
        await until(lambda: worker.worker.n_running == 1)
        task.cancel()
        await until(lambda: worker.worker.n_running == 0, within_s=0.1)
        assert api.inference.n_remote == 0

    run(story)


def test_a_task_is_cancelled_through_the_node_that_took_it() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        worker.worker.script = Script(n_chunks=10_000)
        task = start(ask(api, 2, a_task(), got := Got()))
        await until(lambda: len(got.frames) > 5)
        assert api.inference.cancel(a_command_id(1))
        assert not api.inference.cancel(a_command_id(1)), "it is over"
        assert (await task).code == "request.cancelled"
        await until(lambda: worker.worker.n_running == 0, within_s=0.1)
        got.assert_ordered()

    run(story)


def test_a_task_is_cancelled_through_the_node_that_serves_it() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        task = start(ask(api, 2, a_task(), got := Got()))
        await until(lambda: len(got.frames) > 5)
        assert worker.server.cancel(a_command_id(1))
        assert (await task).code == "request.cancelled"

    run(story)


def test_a_cancel_that_overtakes_its_task_ends_it_on_arrival() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        assert not worker.server.cancel(a_command_id(1))
        assert (await ask(api, 2, a_task())).code == "request.cancelled"
        assert worker.worker.tasks == []

    run(story)


@pytest.mark.parametrize("through", [0, 1, 2], ids=["taker", "server", "stranger"])
def test_a_task_is_cancelled_through_any_node(through: int) -> None:
    async def story(net: DataNetwork) -> None:
        api, worker, stranger = net.nodes
        worker.worker.script = Script(n_chunks=10_000)
        task = start(ask(api, 2, a_task()))
        await until(lambda: worker.worker.n_running == 1)
        asked = net.nodes[through]
        # The node that is asked by its client looks at itself first.
        known = asked.inference.cancel(a_command_id(1)) or await asked.cancels.cancel_elsewhere(
            a_command_id(1)
        )
        assert known
        assert (await task).code == "request.cancelled"
        await until(lambda: worker.worker.n_running == 0, within_s=0.1)
        assert not await stranger.cancels.cancel_elsewhere(a_command_id(1))

    run(story, n_nodes=3)


def test_a_cancel_reaches_the_server_of_a_task_whose_taker_is_gone() -> None:
    async def story(net: DataNetwork) -> None:
        taker, worker, stranger = net.nodes
        worker.worker.script = Script(n_chunks=10_000)
        task = start(ask(taker, 2, a_task()))
        await until(lambda: worker.worker.n_running == 1)
        net.network.cut(taker.node_id, stranger.node_id)
        net.network.cut(stranger.node_id, taker.node_id)
        assert await stranger.cancels.cancel_elsewhere(a_command_id(1))
        assert (await task).code == "request.cancelled"

    run(story, n_nodes=3)


def test_a_cancel_through_another_node_may_overtake_its_task() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker, stranger = net.nodes
        assert not await stranger.cancels.cancel_elsewhere(a_command_id(1))
        assert (await ask(api, 2, a_task())).code == "request.cancelled"
        assert worker.worker.tasks == []

    run(story, n_nodes=3)


def test_a_slow_reader_holds_up_itself_and_nobody_else() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        worker.worker.script = Script(n_chunks=300, pause_s=0.0, chunk=Chunk("x" * 10_000))
        slow = start(ask(api, 2, a_task(1), pause_s=0.2))
        await until(lambda: worker.worker.n_running == 1)
        await sleep(1)
        # What it has taken, its credit, and what one message may go beyond it.
        assert worker.worker.n_said * 10_000 < 6 * 10_000 + 2 * CREDIT_BYTES
        began_s = now_s()
        assert (await ask(api, 2, a_task(2))).code == "finished"
        assert now_s() - began_s < 1
        got = await slow
        assert got.code == "finished"
        assert len(got.text) == 3_000_000

    run(story)


def test_what_taking_a_chunk_raises_is_raised_to_the_client_and_ends_the_task() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes

        def take(chunk: Chunk) -> bool:
            raise ValueError(chunk.text)

        frames = api.inference.chat(an_instance_id(2), a_task(), take)
        with pytest.raises(ValueError, match="word"):
            async for _ in frames:
                pass
        await until(lambda: worker.worker.n_running == 0)
        assert (await ask(api, 2, a_task(2))).code == "finished"

    run(story)


def test_a_chunk_that_is_not_taken_comes_by_the_iterator_in_its_place() -> None:
    async def story(net: DataNetwork) -> None:
        net.nodes[1].worker.script = Script(n_chunks=40, pause_s=0.001)
        told: list[Chunk] = []
        n_by_iterator = 0

        def take(chunk: Chunk) -> bool:
            is_taken = len(told) % 3 != 0
            if is_taken:
                told.append(chunk)
            return is_taken

        async for frame in net.nodes[0].inference.chat(an_instance_id(2), a_task(), take):
            if isinstance(frame, Chunk):
                told.append(frame)
                n_by_iterator += 1
        assert len(told) == 40
        assert 0 < n_by_iterator < 40

    run(story)


def test_a_client_that_takes_nothing_gives_its_slot_up_after_ten_seconds() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        worker.worker.script = Script(n_chunks=300, pause_s=0.0, chunk=Chunk("x" * 10_000))
        slow = start(ask(api, 2, a_task(1), pause_s=100))
        await until(lambda: worker.worker.n_running == 1)
        spent_s = now_s()
        await until(lambda: worker.worker.n_running == 0)
        assert 9 < now_s() - spent_s < 11
        slow.cancel()

    run(story)


def test_a_whole_answer_in_one_frame_is_paced_like_any_other() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        worker.worker.script = Script(n_chunks=1, chunk=Chunk("y" * 4_000_000))
        got = await ask(api, 2, a_task(1))
        assert got.code == "finished"
        assert got.text == "y" * 4_000_000

    run(story)


@pytest.mark.parametrize("n_bytes", [200_000, 300_000, 2_000_000, 20_000_000])
def test_a_long_prompt_is_served(n_bytes: int) -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        task = a_task(content="long" * (n_bytes // 4))
        other = start(ask(api, 2, a_task(2)))
        assert (await ask(api, 2, task)).code == "finished"
        assert (await other).code == "finished"
        assert task in worker.worker.tasks
        assert worker.server.held_bytes == 0

    run(story, seeds=1)


def test_a_prompt_that_takes_long_to_prepare_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slowly(call: Callable[..., Any], *arguments: object) -> object:
        await sleep(3)
        return call(*arguments)

    monkeypatch.setattr(remote_inference, "run_blocking", slowly)

    async def story(net: DataNetwork) -> None:
        # The other one makes pulses go, which must not ask for what was not sent yet.
        other = start(ask(net.nodes[0], 2, a_task(2), pause_s=1))
        assert (await ask(net.nodes[0], 2, a_task(content="x" * 2_000_000))).code == "finished"
        assert (await other).code == "finished"

    run(story)


def test_a_prompt_beyond_the_limit_is_refused_and_the_node_goes_on() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        got = await ask(api, 2, a_task(content="x" * MAX_TASK_BYTES))
        assert got.code == "request.too_large"
        assert worker.worker.tasks == []
        assert (await ask(api, 2, a_task(2))).code == "finished"

    run(story, seeds=1)


def test_a_node_that_holds_enough_says_that_it_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_server, "MAX_HELD_BYTES", 5_000_000)

    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        worker.worker.script = Script(queue_s=5)
        held = start(ask(api, 2, a_task(1, "x" * 4_000_000)))
        await until(lambda: worker.worker.n_running == 1)
        assert (await ask(api, 2, a_task(2, "x" * 2_000_000))).code == "engine.busy"
        assert (await held).code == "finished"
        assert (await ask(api, 2, a_task(3, "x" * 2_000_000))).code == "finished"

    run(story, seeds=1)


def test_64_uploads_at_a_time_are_taken_also_if_they_begin_at_once() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        requests = [
            Request(n, a_command_id(n), an_instance_id(2), 1 << 20, 300_000, b"d" * 32, b"")
            for n in range(1, 71)
        ]
        payload = pack_payload(tuple(map(pack_message, requests)))
        api.transport.send(worker.node_id, "data", payload)
        await until(lambda: worker.server.n_open > 0)
        assert worker.server.n_open == 64
        await until(lambda: worker.server.n_open == 0, within_s=15)
        assert worker.server.held_bytes == 0

    run(story)


def test_a_prompt_whose_upload_is_cut_frees_what_it_held() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        task = start(ask(api, 2, a_task(content="x" * 8_000_000)))
        await until(lambda: worker.server.held_bytes > 0)
        net.network.cut(api.node_id, worker.node_id)
        assert (await task).code == "engine.gone"
        await until(lambda: worker.server.n_open == 0, within_s=15)
        assert worker.server.held_bytes == 0
        assert worker.worker.tasks == []

    run(story)


def test_what_arrives_twice_is_taken_once() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        tasks = [start(ask(api, 2, a_task(n, "x" * 70_000 * n))) for n in range(8)]
        for task in tasks:
            got = await task
            assert got.code == "finished", got.frames
            assert got.text == "word " * 20
        assert len(worker.worker.tasks) == 8

    run(story, faults=NetworkFaults(duplicate_ratio=0.5))


def test_a_lost_payload_never_looks_like_an_end() -> None:
    codes: set[str] = set()

    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        tasks = [start(ask(api, 2, a_task(n))) for n in range(8)]
        for task in tasks:
            got = await task
            got.assert_ordered()
            codes.add(got.code)
            if got.code == "finished":
                assert got.text == "word " * 20
        await until(lambda: worker.worker.n_running == 0, within_s=10)
        assert (worker.server.n_open, worker.server.held_bytes) == (0, 0)

    run(story, seeds=10, faults=NetworkFaults(loss_ratio=0.03))
    assert codes == {"finished", "cluster.link_lost", "engine.gone"}


def test_eight_streams_lose_nothing_while_others_fail() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker, other, bystander = net.nodes
        worker.worker.script = Script(n_chunks=100)
        other.worker.script = Script(n_chunks=10_000)
        kept = [start(ask(api, 2, a_task(n))) for n in range(8)]
        lost = [start(ask(api, 3, a_task(n))) for n in range(10, 14)]
        strange = [start(ask(bystander, 2, a_task(n))) for n in range(20, 24)]
        await sleep(1)
        await other.die()
        net.network.cut(bystander.node_id, api.node_id)
        await bystander.die()
        worker.transport.send(api.node_id, "control", b"x" * 4_000_000)
        for task in kept:
            got = await task
            assert (got.code, got.text) == ("finished", "word " * 100)
        assert {(await task).code for task in lost} == {"cluster.link_lost"}
        assert {(await task).code for task in strange} == {"cluster.link_lost"}
        assert worker.worker.n_running == 0

    run(story, n_nodes=4)


def test_an_error_of_the_worker_arrives_as_it_was_said() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        busy = ErrorBody(code="engine.busy", message="full", retry_after_s=7, details={"n": 1})
        worker.worker.script = Script(refusal=busy)
        assert (await ask(api, 2, a_task(1))).frames == [Failed(busy)]
        worker.worker.script = Script(dies_after=3)
        got = await ask(api, 2, a_task(2))
        assert (got.code, got.text) == ("runner.exited", "word " * 3)

    run(story)


def test_a_node_out_of_reach_is_said_to_be_at_once() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        net.network.partition([api.node_id], [worker.node_id])
        await until(lambda: not api.links.is_up(worker.node_id))
        began_s = now_s()
        got = await ask(api, 2, a_task())
        assert got.code == "engine.gone"
        assert now_s() - began_s < 0.1

    run(story)


def test_a_payload_that_cannot_be_read_costs_what_is_open_with_its_sender_and_nothing_else() -> (
    None
):
    async def story(net: DataNetwork) -> None:
        api, worker, _ = net.nodes
        tasks = [start(ask(api, n, a_task(n))) for n in (2, 3)]
        await sleep(0.3)
        worker.transport.send(api.node_id, "data", b"\xc1 no msgpack")
        assert [(await task).code for task in tasks] == ["cluster.link_lost", "finished"]
        await until(lambda: worker.worker.n_running == 0, within_s=1)
        assert api.links.n_refused == 1
        assert (await ask(api, 2, a_task(9))).code == "finished"

    run(story, n_nodes=3)


def test_a_stream_that_nobody_asks_for_any_more_is_ended_by_the_next_pulse() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        worker.worker.script = Script(n_chunks=10_000)
        body = pack_task(a_task())
        request = Request(5, a_command_id(1), an_instance_id(2), 1 << 20, len(body), b"", body)
        api.transport.send(worker.node_id, "data", pack_payload((pack_message(request),)))
        await until(lambda: worker.worker.n_running == 1)
        api.transport.send(worker.node_id, "data", pack_payload((pack_message(Pulse(())),)))
        await until(lambda: worker.worker.n_running == 0, within_s=0.1)

    run(story)


def test_a_worker_that_hears_no_pulse_ends_the_stream() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        worker.worker.script = Script(n_chunks=10_000)
        body = pack_task(a_task())
        request = Request(5, a_command_id(1), an_instance_id(2), 1 << 30, len(body), b"", body)
        api.transport.send(worker.node_id, "data", pack_payload((pack_message(request),)))
        await until(lambda: worker.worker.n_running == 1)
        await until(lambda: worker.worker.n_running == 0, within_s=7)

    run(story)


def test_a_changed_task_is_refused() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        body = pack_task(a_task(2))
        request = Request(5, a_command_id(1), an_instance_id(2), 1 << 20, len(body), b"", body)
        api.transport.send(worker.node_id, "data", pack_payload((pack_message(request),)))
        await sleep(1)
        assert worker.worker.tasks == []
        assert worker.server.n_open == 0

    run(story)


def test_a_node_that_stops_says_so_and_takes_no_more_tasks() -> None:
    async def story(net: DataNetwork) -> None:
        api, worker = net.nodes
        running = start(ask(api, 2, a_task(1)))
        await until(lambda: worker.worker.n_running == 1)
        worker.server.close()
        assert (await running).code == "cluster.stopping"
        assert (await ask(api, 2, a_task(2))).code == "cluster.stopping"
        assert worker.worker.n_running == 0

    run(story)
