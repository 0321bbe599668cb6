"""Stories about engines on their way to ready: failures, hangs, stops; real processes."""

import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from protocol.instances import Phase
from protocol.state import ClusterState
from skulkd.core.lifecycle import Deadlines
from skulkd.worker.machine import Machine, MemoryNow
from tests.support.local_worker import run, scripted, worker_in
from tests.support.patience import allowed_s

SHORT = replace(Deadlines(), load_s=0.6, probe_s=0.6, terminate_s=0.3)


def test_an_engine_that_exits_during_its_load_is_reported_within_two_seconds(
    tmp_path: Path,
) -> None:
    lines = "\n".join(f"line {number}" for number in range(30))
    card = scripted(
        load_exit_code=3, load_delay_ms=50, load_stderr=f"{lines}\ncannot map: \x1b[1mbad"
    )

    async def story() -> None:
        async with worker_in(tmp_path) as worker:
            instance_id = await worker.place(card)
            placed_at = time.monotonic()
            await worker.wait_phase(instance_id, "failed")
            assert time.monotonic() - placed_at < allowed_s(2.5)
            failure = worker.instance(instance_id).failure
            assert failure is not None
            assert (failure.exit_code, failure.phase, failure.final) == (3, "load", True)
            assert failure.error.code == "runner.exited"
            assert "cannot map: bad" in failure.error.message
            assert len(failure.log_tail) == 20
            assert failure.log_tail[-1] == "cannot map: bad"
            # What failed for good is not tried again by itself.
            assert len(worker.failures) == 1

    run(story)


def test_an_engine_that_traps_on_an_instruction_is_named(tmp_path: Path) -> None:
    async def story() -> None:
        async with worker_in(tmp_path) as worker:
            instance_id = await worker.place(scripted(load_signal=4))
            await worker.wait_phase(instance_id, "failed")
            failure = worker.instance(instance_id).failure
            assert failure is not None
            assert failure.error.code == "engine.cpu_unsupported"
            assert failure.signal == "SIGILL"

    run(story)


def test_a_load_without_progress_is_ended_and_a_slow_one_left_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with worker_in(tmp_path, deadlines=SHORT) as worker:
            hanging = await worker.place(scripted(load_delay_ms=600_000))
            slow = scripted(load_delay_ms=2000, load_progress_every_ms=100)
            slow = slow.model_copy(
                update={
                    "model_id": "test/slow",
                    "storage_size": slow.storage_size.model_copy(update={"in_bytes": 64 << 20}),
                }
            )
            slow_id = await worker.place(slow)
            await worker.wait_phase(hanging, "failed", within_s=5.0)
            failure = worker.instance(hanging).failure
            assert failure is not None
            assert failure.error.code == "runner.load_stalled"
            progress = worker.table.readings.progress[slow_id, 0]
            assert progress.phase == "load"
            assert progress.total_bytes == 64 << 20
            assert progress.done_bytes
            await worker.wait_phase(slow_id, "ready", within_s=10.0)
            # The name is free again: the same model can be placed without a restart.
            again = await worker.place(scripted())
            await worker.wait_phase(again, "ready")

    run(story)


def test_an_engine_that_loads_and_does_not_answer_is_not_ready(tmp_path: Path) -> None:
    async def story() -> None:
        async with worker_in(tmp_path, deadlines=SHORT) as worker:
            instance_id = await worker.place(scripted(first_token_delay_ms=60_000))
            await worker.wait_phase(instance_id, "failed", within_s=5.0)
            failure = worker.instance(instance_id).failure
            assert failure is not None
            assert failure.error.code == "runner.probe_failed"
            assert "model loaded" in failure.log_tail

    run(story)


def test_an_engine_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    async def story() -> None:
        async with worker_in(tmp_path, deadlines=SHORT) as worker:
            instance_id = await worker.place_ready(scripted(ignore_sigterm=True))
            pid = worker.pid(instance_id)
            await worker.stop(instance_id)
            assert not psutil.pid_exists(pid)

    run(story)


@pytest.mark.parametrize("phase", ["load", "probe"])
def test_a_stop_is_honoured_while_an_engine_is_on_its_way(tmp_path: Path, phase: Phase) -> None:
    card = scripted(load_delay_ms=60_000 if phase == "load" else 0, first_token_delay_ms=60_000)

    async def story() -> None:
        async with worker_in(tmp_path) as worker:
            instance_id = await worker.place(card)
            await worker.wait_phase(instance_id, phase)
            pid = worker.pid(instance_id)
            await worker.stop(instance_id)
            assert not psutil.pid_exists(pid)
            assert worker.failures == []

    run(story)


def test_equal_placements_follow_one_another_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with worker_in(tmp_path) as worker:
            for _ in range(5):
                await worker.stop(await worker.place_ready(scripted(memory_bytes=64 << 20)))
            assert worker.failures == []

    run(story)


def test_without_the_planned_memory_nothing_is_started_and_the_numbers_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tight(_machine: Machine) -> MemoryNow:
        return MemoryNow(total_bytes=1 << 30, available_bytes=1 << 20)

    async def story() -> None:
        async with worker_in(tmp_path) as worker:
            await worker.wait_for(lambda: bool(worker.table.readings.nodes))
            monkeypatch.setattr(Machine, "memory", tight)
            instance_id = await worker.place(scripted())
            await worker.wait_phase(instance_id, "failed")
            failure = worker.instance(instance_id).failure
            assert failure is not None
            assert failure.phase == "stage"
            assert failure.error.code == "runner.no_memory"
            assert failure.error.details["available_bytes"] == 1 << 20
            assert not list((tmp_path / "logs" / "engines").glob("*"))

    run(story)


def test_memory_that_is_on_its_way_back_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Machine.memory
    freed_at: list[float] = []

    def memory(machine: Machine) -> MemoryNow:
        if freed_at and time.monotonic() < freed_at[0]:
            return MemoryNow(total_bytes=1 << 30, available_bytes=1 << 20)
        return real(machine)

    async def story() -> None:
        async with worker_in(tmp_path) as worker:
            instance_id = await worker.place_ready(scripted())
            monkeypatch.setattr(Machine, "memory", memory)
            await worker.stop(instance_id)
            freed_at.append(time.monotonic() + 1.0)
            await worker.place_ready(scripted())
            assert time.monotonic() >= freed_at[0]

    run(story)


def test_a_runner_that_an_earlier_daemon_took_with_it_begins_a_new_attempt(tmp_path: Path) -> None:
    async def story() -> None:
        async with worker_in(tmp_path / "first") as before:
            instance_id = await before.place_ready(scripted(reply="x"))
            state = before.replica.state
        assert instance_id in state.instances
        async with worker_in(tmp_path / "second", state=state) as after:
            await after.wait_for(lambda: after.instance(instance_id).attempt == 2)
            await after.wait_phase(instance_id, "ready")

    run(story)


def test_what_a_lost_history_held_of_this_node_is_reported_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with worker_in(tmp_path) as worker:
            states: list[ClusterState] = []
            worker.replica.subscribe(lambda _event, state: states.append(state))
            instance_id = await worker.place(scripted(load_delay_ms=50))
            await worker.wait_phase(instance_id, "ready")
            facts = worker.replica.state.members[worker.node_id].facts
            loading = next(
                state
                for state in states
                if instance_id in state.instances and state.instances[instance_id].phase == "load"
            )
            member = loading.members[worker.node_id].model_copy(update={"facts": None})
            lost = loading.model_copy(update={"members": {worker.node_id: member}})
            worker.replica.reset(lost)
            await worker.wait_phase(instance_id, "ready", within_s=5.0)
            assert worker.replica.state.members[worker.node_id].facts == facts

    run(story)
