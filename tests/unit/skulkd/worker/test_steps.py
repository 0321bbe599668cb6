import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from engines.base import Endpoint, EngineStatistics, LoadStatus
from protocol.data_frames import Failed, Finished, Frame, Started, TakeChunk, Usage
from protocol.errors import EngineError, ErrorBody, RunnerError, StoreError
from protocol.tasks import ChatTask
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.virtual_time import run_virtual
from skulkd.worker import steps
from skulkd.worker.launchers.base import EngineProcess, ProcessUsage
from store.progress import TransferProgress
from tests.support.builders import (
    MIB,
    a_card,
    a_command_id,
    a_plan,
    a_scripted_card,
    an_engine,
)
from tests.support.text_engines import NoVectors


class FakeClient(NoVectors):
    """Answers as the test says."""

    def __init__(self, *statuses: LoadStatus, frames: tuple[Frame, ...] = ()) -> None:
        self.statuses = list(statuses)
        self.frames = frames

    async def load_status(self) -> LoadStatus:
        return self.statuses.pop(0)

    async def chat(self, task: ChatTask, take: TakeChunk | None = None) -> AsyncGenerator[Frame]:
        assert task.max_tokens == 1
        for frame in self.frames:
            yield frame

    async def count_tokens(self, task: ChatTask) -> int:
        return 1

    async def statistics(self) -> EngineStatistics:
        raise EngineError("engine.request_failed", "does not tell")

    async def close(self) -> None:
        return


class FakeProcess:
    """A process whose usage follows a list; it owns one port."""

    pid = 7

    def __init__(self, *usages: ProcessUsage, port: int = 0) -> None:
        self.usages = list(usages)
        self.port = port

    def usage(self) -> ProcessUsage:
        return self.usages.pop(0)

    def owns_listener(self, port: int) -> bool:
        return port == self.port


def a_process(*usages: ProcessUsage, port: int = 0) -> EngineProcess:
    return FakeProcess(*usages, port=port)  # pyright: ignore[reportReturnType]  the part that steps use


class MissingStore:
    def locate(self, card: object) -> None:
        return None

    async def ensure(
        self, card: object, progress: Callable[[TransferProgress], None] | None = None
    ) -> steps.Artifact:
        raise AssertionError("staging fetches nothing")


def test_a_script_needs_no_files_and_missing_weights_are_said() -> None:
    async def story() -> None:
        files = await steps.find_files(MissingStore(), a_scripted_card(), "scripted")
        assert files.entry == Path("/dev/null")
        with pytest.raises(StoreError) as caught:
            await steps.find_files(MissingStore(), a_card(), "llama_server")
        assert caught.value.code == "store.incomplete"

    run_virtual(story)


def test_the_first_usable_build_for_the_compute_is_taken() -> None:
    plan = a_plan(a_card(), backend="llama_server-cuda")
    builds = (
        an_engine("scripted"),
        an_engine(computes=("cpu",), path="/one"),
        an_engine(computes=("cuda", "cpu"), usable=False, reason="died of SIGILL", path="/two"),
        an_engine(computes=("cuda",), path="/three"),
    )
    assert steps.choose_build(plan, builds).path == "/three"
    with pytest.raises(EngineError, match=r"/one: computes on cpu only; /two: died of SIGILL"):
        steps.choose_build(plan, builds[:3])


def test_a_bare_engine_name_computes_on_the_cpu() -> None:
    assert steps.compute_of(a_plan(a_card(), backend="llama_server")) == "cpu"
    assert steps.compute_of(a_plan(a_card(), backend="llama_server-rocm")) == "rocm"


def gate_story(
    available: list[int | None], *, ended: bool = False
) -> tuple[float, list[str], RunnerError | None]:
    """Wait for 100 bytes; each look takes the next of `available`, the last one for ever."""

    async def story() -> tuple[float, list[str], RunnerError | None]:
        clock = LoopClock(asyncio.get_running_loop())
        notes: list[str] = []

        def look() -> int | None:
            return available.pop(0) if len(available) > 1 else available[0]

        gate = steps.MemoryGate(look, clock)
        if ended:
            gate.on_runner_ended()
        try:
            await gate.wait(100, notes.append)
        except RunnerError as error:
            return clock.monotonic_s(), notes, error
        return clock.monotonic_s(), notes, None

    return run_virtual(story)


def test_a_lack_of_a_tenth_is_tolerated_and_more_is_refused_at_once() -> None:
    assert gate_story([90]) == (0.0, [], None)
    waited_s, _, error = gate_story([89])
    assert error is not None
    assert waited_s < 0.1
    assert error.details == {"needed_bytes": 100, "available_bytes": 89}
    assert "11 too few" in error.message


def test_unknown_memory_is_not_taken_for_none_or_plenty() -> None:
    _, _, error = gate_story([None])
    assert error is not None
    assert error.code == "runner.no_memory"
    assert "unknown" in error.message


def test_memory_of_an_ended_runner_is_waited_for_and_not_for_ever() -> None:
    waited_s, notes, error = gate_story([10, 50, 100], ended=True)
    assert error is None
    assert 0.4 < waited_s < 1.0
    assert notes == [
        "waiting for 100 bytes; 10 are free",
        "waiting for 100 bytes; 50 are free",
    ]
    waited_s, _, error = gate_story([10], ended=True)
    assert error is not None
    assert waited_s == pytest.approx(steps.SETTLE_S, abs=0.5)


def load_story(client: FakeClient, process: EngineProcess) -> list[int]:
    seen: list[int] = []

    async def story() -> None:
        await steps.wait_loaded(
            client, process, 100 * MIB, lambda progress: seen.append(progress.done_bytes)
        )

    run_virtual(story)
    return seen


def test_load_progress_is_the_most_that_engine_or_system_shows() -> None:
    usages = (
        ProcessUsage(resident_bytes=20 * MIB, read_bytes=5 * MIB),
        ProcessUsage(resident_bytes=30 * MIB, read_bytes=5 * MIB),
        ProcessUsage(resident_bytes=30 * MIB, read_bytes=45 * MIB),
        ProcessUsage(resident_bytes=900 * MIB),
    )
    statuses = [LoadStatus(loaded=False)] * 3 + [LoadStatus(loaded=False, done_ratio=0.5)]
    client = FakeClient(*statuses, LoadStatus(loaded=True))
    assert load_story(client, a_process(*usages)) == [0, 10 * MIB, 40 * MIB, 100 * MIB]


def test_a_process_that_only_breathes_makes_no_progress() -> None:
    usages = [ProcessUsage(resident_bytes=20 * MIB + 4096 * step) for step in range(50)]
    client = FakeClient(*[LoadStatus(loaded=False)] * 50, LoadStatus(loaded=True))
    assert set(load_story(client, a_process(*usages))) == {0}


def test_a_probe_needs_a_finished_answer() -> None:
    card, command_id = a_scripted_card(), a_command_id()

    async def probe(*frames: Frame) -> None:
        assert await steps.probe(FakeClient(frames=frames), card, command_id) is None

    async def story() -> None:
        await probe(Started(1), Finished("length", Usage(1, 1)))
        gone = ErrorBody(code="engine.gone", message="the connection closed")
        for frames in ((), (Started(1),), (Started(1), Failed(gone))):
            with pytest.raises(RunnerError) as caught:
                await probe(*frames)
            assert caught.value.code == "runner.probe_failed"

    run_virtual(story)


@pytest.mark.parametrize(
    ("task", "refusal"), [("TextEmbedding", "no embeddings"), ("TextRerank", "no scores")]
)
def test_a_model_that_makes_vectors_is_probed_by_one(task: str, refusal: str) -> None:
    card = a_scripted_card().model_copy(update={"tasks": (task,)})

    async def story() -> None:
        with pytest.raises(RunnerError, match=refusal) as caught:
            await steps.probe(FakeClient(), card, a_command_id())
        assert caught.value.details == {"cause": "engine.unsupported"}

    run_virtual(story)


def test_b23_a_port_of_another_process_is_never_spoken_to_and_its_holder_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        process = a_process(port=8001)
        await steps.check_listener(process, Endpoint(port=8001))
        await steps.check_listener(process, Endpoint(socket_path=Path("/run/x.sock")))
        with pytest.raises(RunnerError) as caught:
            await steps.check_listener(process, Endpoint(port=8002))
        assert caught.value.details == {"port": 8002, "pid": 7, "holder": ""}

        def holder_of(_host: str, _port: int) -> str:
            return "nginx (pid 12)"

        monkeypatch.setattr(steps, "holder_of", holder_of)
        with pytest.raises(RunnerError, match=r"is served by nginx \(pid 12\)"):
            await steps.check_listener(process, Endpoint(port=8002))

    run_virtual(story)


def test_a_build_that_cannot_pool_is_passed_over_for_a_pooled_model() -> None:
    one = a_plan(a_card(), backend="llama_server-cpu")
    (first,) = one.shards
    donor = first.model_copy(update={"rank": 1, "backend": "llama_server-vulkan"})
    pool = one.model_copy(update={"shape": "rpc", "shards": (first, donor)})
    builds = (
        an_engine(path="/alone"),
        an_engine(path="/pools", computes=("vulkan", "cpu"), rpc=True),
    )
    assert steps.choose_build(one, builds).path == "/alone"
    assert steps.choose_build(pool, builds).path == "/pools"
    assert steps.compute_of(pool, 1) == "vulkan"
    with pytest.raises(EngineError, match="/alone: cannot share a model"):
        steps.choose_build(pool, builds[:1])
