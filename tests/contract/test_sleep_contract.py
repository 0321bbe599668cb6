"""What every source of sleep promises: logind on a bus of its own, and the simulated twin."""

import asyncio
import logging
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop

from skulkd.runtime import logind as logind_module
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.logind import LogindSleep
from skulkd.runtime.simulated_sleep import SimulatedSleep
from skulkd.runtime.tasks import Tasks, sleep
from skulkd.runtime.virtual_time import run_virtual
from tests.support.fake_logind import PATH, FakeLogind, private_bus


@dataclass
class Listener:
    """Notes what it is told."""

    told: list[str] = field(default_factory=list[str])
    takes_s: float = 0.0

    async def before_sleep(self) -> None:
        self.told.append("before")
        await sleep(self.takes_s)
        self.told.append("said")

    def after_sleep(self) -> None:
        self.told.append("after")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One that sleeps when it is told to."""

    listener: Listener
    fall_asleep: Callable[[], Awaitable[None]]
    """Returns once the machine waits for nobody."""
    wake_up: Callable[[], Awaitable[None]]


Scenario = Callable[[Machine], Coroutine[Any, Any, None]]
Runner = Callable[[Scenario], None]


def _simulated(scenario: Scenario) -> None:
    async def main() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        source, listener = SimulatedSleep(clock), Listener()
        tasks = Tasks("sleep", on_death=lambda story, _: pytest.fail(story))
        tasks.start(source.tell(listener), name="tell")
        await sleep(0)

        async def wake_up() -> None:
            source.wake_up(60.0)

        await scenario(Machine(listener=listener, fall_asleep=source.fall_asleep, wake_up=wake_up))
        assert await tasks.close(1.0) == ()

    run_virtual(main, seed=1)


def _logind(scenario: Scenario) -> None:
    async def main(logind: FakeLogind, source: LogindSleep) -> None:
        listener = Listener()
        tasks = Tasks("sleep", on_death=lambda story, _: pytest.fail(story))
        tasks.start(source.tell(listener), name="tell")
        await _until(lambda: logind.n_held_up == 1)

        async def fall_asleep() -> None:
            await logind.announce(is_before=True)
            await _until(lambda: logind.n_held_up == 0)

        async def wake_up() -> None:
            n_told = len(listener.told)
            await logind.announce(is_before=False)
            await _until(lambda: len(listener.told) > n_told and logind.n_held_up == 1)

        await scenario(Machine(listener=listener, fall_asleep=fall_asleep, wake_up=wake_up))
        assert await tasks.close(1.0) == ()
        await _until(lambda: logind.n_held_up == 0)

    _on_bus(main)


def _on_bus(
    story: Callable[[FakeLogind, LogindSleep], Coroutine[Any, Any, None]], *, refuses: bool = False
) -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with (
                private_bus(Path(directory)) as address,
                FakeLogind.on(address, refuses=refuses) as logind,
                asyncio.timeout(60),
            ):
                await story(logind, LogindSleep(address, retry_s=0.1))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def _told(source: LogindSleep) -> AsyncGenerator[Listener]:
    listener = Listener()
    tasks = Tasks("sleep", on_death=lambda story, _: pytest.fail(story))
    tasks.start(source.tell(listener), name="tell")
    try:
        yield listener
    finally:
        late = await tasks.close(1.0)
    assert late == ()


@pytest.fixture(params=[_simulated, _logind], ids=["simulated", "logind"])
def run(request: pytest.FixtureRequest) -> Runner:
    return request.param


def test_the_machine_waits_for_the_goodbye_and_tells_when_it_is_awake(run: Runner) -> None:
    async def scenario(machine: Machine) -> None:
        machine.listener.takes_s = 0.3
        for _ in range(2):
            machine.listener.told.clear()
            await machine.fall_asleep()
            assert machine.listener.told == ["before", "said"]
            await machine.wake_up()
            assert machine.listener.told == ["before", "said", "after"]

    run(scenario)


def test_a_goodbye_that_takes_too_long_holds_nobody_up(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logind_module, "GOODBYE_S", 0.2)

    async def scenario(machine: Machine) -> None:
        machine.listener.takes_s = 1000.0
        await machine.fall_asleep()
        assert machine.listener.told == ["before"]
        await machine.wake_up()
        assert machine.listener.told == ["before", "after"]

    run(scenario)


def test_the_machine_says_who_holds_it_up_and_why() -> None:
    async def story(logind: FakeLogind, source: LogindSleep) -> None:
        async with _told(source):
            await _until(lambda: logind.asked != [])
            assert logind.asked == [["sleep", "skulkd", "says goodbye to its cluster", "delay"]]

    _on_bus(story)


def test_only_logind_itself_is_believed() -> None:
    async def story(logind: FakeLogind, source: LogindSleep) -> None:
        async with _told(source) as listener:
            await _until(lambda: logind.n_held_up == 1)
            async with FakeLogind.on(source.address, name="org.example.Evil") as evil:
                await evil.announce(is_before=True)
                await logind.announce(is_before=True, path="/org/example")
                await logind.announce(is_before=True, path=PATH, signature="s")
                await logind.announce(is_before=False)
                await _until(lambda: listener.told != [])
            assert listener.told == ["after"]

    _on_bus(story)


def test_a_machine_that_waits_for_nobody_tells_nevertheless() -> None:
    async def story(logind: FakeLogind, source: LogindSleep) -> None:
        async with _told(source) as listener:
            await _until(lambda: logind.asked != [])
            await logind.announce(is_before=True)
            await logind.announce(is_before=False)
            await _until(lambda: listener.told == ["before", "said", "after"])

    _on_bus(story, refuses=True)


def test_a_bus_that_is_started_anew_is_found_again() -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory() as directory:
            source = LogindSleep(f"unix:path={directory}/bus", retry_s=0.1)
            async with private_bus(Path(directory)) as address, FakeLogind.on(address) as logind:
                listener = Listener()
                tasks = Tasks("sleep", on_death=lambda story, _: pytest.fail(story))
                tasks.start(source.tell(listener), name="tell")
                await _until(lambda: logind.n_held_up == 1)
            Path(directory, "bus").unlink(missing_ok=True)
            await asyncio.sleep(0.3)
            async with private_bus(Path(directory)) as address, FakeLogind.on(address) as logind:
                await _until(lambda: logind.n_held_up == 1)
                await logind.announce(is_before=True)
                await _until(lambda: listener.told == ["before", "said"])
                assert await tasks.close(1.0) == ()

    asyncio.run(main())


@pytest.mark.parametrize("address", ["unix:path=/nonexistent/bus", "unix:path=/dev/null", "odd"])
def test_a_machine_without_a_bus_tells_nothing(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger=logind_module.__name__):
        asyncio.run(asyncio.wait_for(LogindSleep(address).tell(Listener()), 10))
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert "nothing tells of this machine's sleep" in record.getMessage()


def test_a_bus_without_logind_tells_nothing() -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with private_bus(Path(directory)) as address, asyncio.timeout(10):
                await LogindSleep(address).tell(Listener())

    asyncio.run(main())
