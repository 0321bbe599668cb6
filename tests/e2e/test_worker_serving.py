"""Stories about engines that serve, fail and end: real processes, a real log, no HTTP."""

import asyncio
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from protocol.data_frames import Chunk, Failed, Finished, Frame, Started
from protocol.ids import InstanceId
from protocol.tasks import ChatTask
from tests.support.local_worker import LocalWorker, run, scripted, text_of, worker_in
from tests.support.patience import allowed_s

SLOW = scripted(reply="word", repeat=True, token_delay_ms=20)
"""Says a word every 20 ms for a minute and more."""


async def chat(worker: LocalWorker, instance_id: InstanceId, task: ChatTask) -> list[Frame]:
    return [frame async for frame in worker.service.chat(instance_id, task)]


class Client:
    """A client that reads a stream in a task of its own."""

    def __init__(self, worker: LocalWorker, instance_id: InstanceId, task: ChatTask) -> None:
        self.task = task
        self.frames: list[Frame] = []
        self.ended_at = 0.0
        self.reading = asyncio.create_task(self._read(worker, instance_id))

    @property
    def is_streaming(self) -> bool:
        return any(isinstance(frame, Chunk) for frame in self.frames)

    @property
    def error_code(self) -> str:
        assert isinstance(self.frames[-1], Failed), self.frames[-1]
        return self.frames[-1].error.code

    async def _read(self, worker: LocalWorker, instance_id: InstanceId) -> None:
        async for frame in worker.service.chat(instance_id, self.task):
            self.frames.append(frame)
        self.ended_at = time.monotonic()


async def streaming(worker: LocalWorker, instance_id: InstanceId, n_clients: int) -> list[Client]:
    # Long enough to last, short enough for all to share one pool of tokens.
    limit = 4000 // n_clients
    clients = [Client(worker, instance_id, worker.task(max_tokens=limit)) for _ in range(n_clients)]
    await worker.wait_for(lambda: all(client.is_streaming for client in clients))
    return clients


def test_a_placed_model_becomes_ready_and_answers(tmp_path: Path) -> None:
    async def story() -> None:
        async with worker_in(tmp_path) as worker:
            instance_id = await worker.place_ready(scripted(reply="Paris is it."))
            frames = await chat(worker, instance_id, worker.task())
            assert isinstance(frames[0], Started)
            assert text_of(frames) == "Paris is it."
            assert isinstance(frames[-1], Finished)
            launch = worker.instance(instance_id).launch
            assert launch is not None
            assert launch.load_ms > 0
            await worker.stop(instance_id)
            assert worker.table.readings.progress == {}
            assert list((tmp_path / "launches").iterdir()) == []

    run(story)


def test_killing_the_engine_ends_its_stream_with_engine_gone_and_says_why(tmp_path: Path) -> None:
    async def story() -> None:
        async with worker_in(tmp_path) as worker:
            instance_id = await worker.place_ready(SLOW)
            (client,) = await streaming(worker, instance_id, 1)
            killed_at = time.monotonic()
            os.kill(worker.pid(instance_id), signal.SIGKILL)
            await client.reading
            await worker.wait_for(lambda: bool(worker.failures), within_s=2.0)
            assert time.monotonic() - killed_at < allowed_s(2.0)
            assert client.error_code == "engine.gone"
            (failure,) = worker.failures
            assert failure.signal == "SIGKILL"
            assert failure.error.code == "runner.exited"
            assert failure.phase == "ready"
            assert "model loaded" in " ".join(failure.log_tail)

    run(story)


def test_an_engine_that_dies_after_ready_is_started_again_by_itself(tmp_path: Path) -> None:
    async def story() -> None:
        async with worker_in(tmp_path) as worker:
            instance_id = await worker.place_ready(scripted(reply="again"))
            first = worker.pid(instance_id)
            os.kill(first, signal.SIGKILL)
            await worker.wait_for(lambda: worker.instance(instance_id).attempt == 2)
            await worker.wait_phase(instance_id, "ready")
            assert worker.pid(instance_id) != first
            assert text_of(await chat(worker, instance_id, worker.task())) == "again"

    run(story)


def test_stopping_an_instance_ends_streams_and_queue_and_spares_other_instances(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with worker_in(tmp_path) as worker:
            other_card = SLOW.model_copy(update={"model_id": "test/other"})
            stopped = await worker.place_ready(SLOW, context_tokens=8192)
            other = await worker.place_ready(other_card, context_tokens=8192)
            clients = await streaming(worker, stopped, 1)
            queued = Client(worker, stopped, worker.task(max_tokens=5000))
            (spared,) = await streaming(worker, other, 1)
            await worker.wait_for(lambda: worker.table.readings.instances[stopped].queued == 1)
            asked_at = time.monotonic()
            await worker.stop(stopped)
            await asyncio.gather(queued.reading, *(client.reading for client in clients))
            assert max(client.ended_at for client in [queued, *clients]) - asked_at < 2.0
            assert [client.error_code for client in [queued, *clients]] == ["engine.gone"] * 2
            n_frames = len(spared.frames)
            await worker.wait_for(lambda: len(spared.frames) > n_frames)
            worker.service.cancel(spared.task.command_id)
            await spared.reading
            (refused,) = await chat(worker, stopped, worker.task())
            assert isinstance(refused, Failed)
            assert refused.error.code == "engine.gone"

    run(story)


def test_a_cancel_ends_the_stream_and_frees_the_slot(tmp_path: Path) -> None:
    async def story() -> None:
        async with worker_in(tmp_path) as worker:
            instance_id = await worker.place_ready(SLOW)
            (client,) = await streaming(worker, instance_id, 1)
            assert worker.table.readings.instances[instance_id].in_flight == 1
            asked_at = time.monotonic()
            assert worker.service.cancel(client.task.command_id)
            await client.reading
            assert client.ended_at - asked_at < 1.0
            assert client.error_code == "request.cancelled"
            await worker.wait_for(
                lambda: worker.table.readings.instances[instance_id].in_flight == 0
            )
            frames = await chat(worker, instance_id, worker.task(max_tokens=2))
            assert text_of(frames) == "word word"

    run(story)


def test_a_client_that_goes_away_frees_the_slot(tmp_path: Path) -> None:
    async def story() -> None:
        async with worker_in(tmp_path) as worker:
            instance_id = await worker.place_ready(SLOW)
            (client,) = await streaming(worker, instance_id, 1)
            client.reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await client.reading
            await worker.wait_for(
                lambda: worker.table.readings.instances[instance_id].in_flight == 0
            )

    run(story)


def test_a_cancel_that_overtakes_its_task_ends_it_on_arrival_and_only_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with worker_in(tmp_path) as worker:
            instance_id = await worker.place_ready(scripted(reply="late"))
            task = worker.task()
            assert not worker.service.cancel(task.command_id)
            (frame,) = await chat(worker, instance_id, task)
            assert isinstance(frame, Failed)
            assert frame.error.code == "request.cancelled"
            assert text_of(await chat(worker, instance_id, task)) == "late"

    run(story)


def test_one_command_id_is_served_once_at_a_time(tmp_path: Path) -> None:
    async def story() -> None:
        async with worker_in(tmp_path) as worker:
            instance_id = await worker.place_ready(SLOW)
            (client,) = await streaming(worker, instance_id, 1)
            (frame,) = await chat(worker, instance_id, client.task)
            assert isinstance(frame, Failed)
            assert frame.error.code == "request.invalid"
            assert worker.service.cancel(client.task.command_id)
            await client.reading

    run(story)


def test_a_prompt_that_fills_the_window_is_refused_with_both_numbers(tmp_path: Path) -> None:
    async def story() -> None:
        async with worker_in(tmp_path) as worker:
            instance_id = await worker.place_ready(scripted(), context_tokens=256)
            (frame,) = await chat(worker, instance_id, worker.task("word " * 300))
            assert isinstance(frame, Failed)
            assert frame.error.code == "request.context_length_exceeded"
            assert frame.error.details["context_tokens"] == 256
            assert frame.error.details["prompt_tokens"] == 301

    run(story)


def test_closing_ends_streams_engines_and_loads_within_its_bound(tmp_path: Path) -> None:
    async def story() -> None:
        async with worker_in(tmp_path) as worker:
            instance_id = await worker.place_ready(SLOW)
            loading = scripted(load_delay_ms=60_000, load_progress_every_ms=100)
            loading = loading.model_copy(update={"model_id": "test/loading"})
            loading_id = await worker.place(loading)
            await worker.wait_phase(loading_id, "load")
            clients = await streaming(worker, instance_id, 3)
            pids = [worker.pid(instance_id), worker.pid(loading_id)]
            asked_at = time.monotonic()
            assert await worker.service.close() == ()
            assert time.monotonic() - asked_at < allowed_s(8.0)
            await asyncio.gather(*(client.reading for client in clients))
            assert {client.error_code for client in clients} == {"cluster.stopping"}
            assert not any(psutil.pid_exists(pid) for pid in pids)
            assert list((tmp_path / "launches").iterdir()) == []

    run(story)
