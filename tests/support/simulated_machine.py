"""A machine in virtual time: its memory, its processes, and what becomes of both.

Time is the running loop's. What a simulated process does is its mood: how it starts, loads,
answers and ends; everything that an engine's process can do to its daemon is a field of it.
"""

import asyncio
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, final

from engines.base import Endpoint
from protocol.ids import CommandId
from skulkd.worker.launchers.base import ExitStatus, LaunchOwner
from skulkd.worker.machine import MemoryNow, Processor
from tests.support.builders import GIB, MIB

_EXIT_S: Final = 0.05
"""From a signal that is heeded to the end of the first process."""
_SYSTEM_BYTES: Final = 256 * MIB
"""What the rest of the machine takes."""
MEMORY_BYTES: Final = 4 * GIB
FREE_BYTES: Final = MEMORY_BYTES - _SYSTEM_BYTES
"""What a machine has for models."""
_RACE_S: Final = 1.0
"""Memory that is taken between the look at it and the start is nobody's fault."""
_TOLERATED_SHARE: Final = 0.9
_GIVES_UP: Final = ExitStatus(exit_code=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mood:
    """How an engine's process behaves; the default is a good one. Times from its start, in s."""

    spawn_s: float = 0.05
    spawn_fails: bool = False
    load_s: float = 2.0
    load_hangs: bool = False
    load_fails: bool = False
    """The engine answers that loading failed, and lives on."""
    dies_at_s: float | None = None
    dies_of: ExitStatus = _GIVES_UP
    first_token_s: float = 0.2
    token_s: float = 0.03
    stalls_after: int | None = None
    """Says nothing more, and does not end, after so many tokens of a request."""
    dies_after: int | None = None
    """Dies of a segmentation fault after so many tokens of a request."""
    ignores_sigterm: bool = False
    gone_s: float = 0.02
    """From the end of the first process to the end of all that it started."""
    memory_s: float = 0.3
    """From there to the moment when its memory can be taken again."""
    memory_ratio: float = 1.0
    """What it takes, of what was planned."""


HEALTHY: Final = Mood()


@final
class SimulatedProcess:
    """One engine's process with all that it starts.

    Args:
        machine: Where it runs.
        pid: Its id.
        owner: What it was started for.
        launch_id: The mark that it and all its children carry.
        mood: What it does.
        size_bytes: What it loads.
        slots: How many requests it serves at a time.
    """

    def __init__(
        self,
        machine: "SimulatedMachine",
        pid: int,
        owner: LaunchOwner,
        launch_id: str,
        mood: Mood,
        *,
        size_bytes: int,
        slots: int,
    ) -> None:
        self.pid = pid
        self.owner = owner
        self.launch_id = launch_id
        self.mood = mood
        self.slots = slots
        self.n_busy = 0
        self.exit_status: ExitStatus | None = None
        self.exited = asyncio.Event()
        self.gone = asyncio.Event()
        self._machine = machine
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._size_bytes = size_bytes
        self._timer: asyncio.TimerHandle | None = None
        if mood.dies_at_s is not None:
            self._loop.call_later(mood.dies_at_s, self.die, mood.dies_of)
        self._grow()

    @property
    def is_loaded(self) -> bool:
        """Whether its model is loaded."""
        return not self.mood.load_hangs and self._age_s >= self.mood.load_s

    @property
    def resident_bytes(self) -> int:
        """What it holds now."""
        if self.gone.is_set():
            return 0
        share = 0.3 if self.mood.load_hangs else min(1.0, self._age_s / max(1e-3, self.mood.load_s))
        return int(self._size_bytes * share * self.mood.memory_ratio)

    @property
    def _age_s(self) -> float:
        return self._loop.time() - self._began_s

    @contextmanager
    def serving(self, command_id: CommandId) -> Generator[None]:
        """Take one of its slots; more than it has are a fault of whoever asks."""
        self.n_busy += 1
        self._machine.served.add(command_id)
        if self.n_busy > self.slots:
            self._machine.complain(f"process {self.pid} was given {self.n_busy} requests")
        try:
            yield
        finally:
            self.n_busy -= 1
            self._machine.served.discard(command_id)

    def signal(self, number: signal.Signals) -> None:
        """Signal the whole group."""
        if number == signal.SIGTERM and self.exit_status is None:
            self._machine.on_term(self)
        if number == signal.SIGTERM and self.mood.ignores_sigterm:
            return
        self._loop.call_later(_EXIT_S, self.die, ExitStatus(signal=number.name))

    def die(self, status: ExitStatus) -> None:
        """End the first process; the rest of the group follows in its own time. Idempotent."""
        if self.exit_status is not None:
            return
        self.exit_status = status
        self.exited.set()
        self._loop.call_later(self.mood.gone_s, self._go)

    def vanish(self) -> None:
        """End with the machine's power: all of it, at once."""
        if self._timer is not None:
            self._timer.cancel()
        self.exit_status = self.exit_status or ExitStatus(signal="SIGKILL")
        self.exited.set()
        self.gone.set()

    async def lives_for(self, seconds: float) -> bool:
        """Wait; False as soon as it has died."""
        try:
            async with asyncio.timeout(seconds):
                await self.exited.wait()
        except TimeoutError:
            return True
        return False

    def _go(self) -> None:
        if not self.gone.is_set():
            held_bytes = self.resident_bytes
            self.gone.set()
            self._machine.give_back(held_bytes, self.mood.memory_s)

    def _grow(self) -> None:
        """Let the machine see what is taken, ten times in a load."""
        if self.exit_status is None:
            self._machine.check_memory()
        if self.exit_status is None and not self.is_loaded and not self.mood.load_hangs:
            step_s = max(0.05, self.mood.load_s / 10)
            self._timer = self._loop.call_later(step_s, self._grow)


@final
class SimulatedMachine:
    """Implements `skulkd.worker.machine.MachineView`; holds the table of processes.

    Args:
        total_bytes: Its memory.
    """

    def __init__(self, total_bytes: int = MEMORY_BYTES) -> None:
        self.total_bytes = total_bytes
        self.complaints: list[str] = []
        """What was asked of it that must never be."""
        self.served: set[CommandId] = set()
        """The requests that engines work on now."""
        self.on_term: Callable[[SimulatedProcess], None] = lambda _: None
        """Told of a living process that is asked to end, before it does."""
        self.taken_bytes = 0
        """By other programs; changed by `crowd`."""
        self._crowded_at_s = 0.0
        self._processes: list[SimulatedProcess] = []
        self._by_socket: dict[str, SimulatedProcess] = {}
        self._returning_bytes = 0
        self._n_oom_kills = 0
        self._last_pid = 1000

    # What the worker asks.

    def memory(self) -> MemoryNow:
        """Measure it."""
        available_bytes = max(0, self.total_bytes - self._used_bytes)
        return MemoryNow(total_bytes=self.total_bytes, available_bytes=available_bytes)

    def cpu_ratio(self) -> float:
        """Say how busy it is."""
        return 0.25

    def n_cpus(self) -> int:
        """Count the processors."""
        return 4

    def processor(self) -> Processor:
        """Name the processor."""
        return Processor(model="simulated", features=("avx2",))

    def oom_kills(self) -> int | None:
        """Count those that the kernel killed."""
        return self._n_oom_kills

    # What a kernel does.

    def start(
        self,
        owner: LaunchOwner,
        launch_id: str,
        endpoint: Endpoint,
        mood: Mood,
        *,
        size_bytes: int,
        slots: int,
    ) -> SimulatedProcess:
        """Start a process; one that doubles another is a fault of whoever asks."""
        for other in self.living():
            if (other.owner.instance_id, other.owner.rank) == (owner.instance_id, owner.rank):
                self.complain(
                    f"{owner.instance_id} attempt {owner.attempt} was started while process "
                    f"{other.pid} of attempt {other.owner.attempt} was there"
                )
        self._check_room(owner, size_bytes)
        self._last_pid += 1
        process = SimulatedProcess(
            self, self._last_pid, owner, launch_id, mood, size_bytes=size_bytes, slots=slots
        )
        self._processes.append(process)
        self._by_socket[str(endpoint.socket_path)] = process
        return process

    def _check_room(self, owner: LaunchOwner, size_bytes: int) -> None:
        """Complain of a start without memory, unless what took it may have come just now."""
        is_moving = asyncio.get_running_loop().time() - self._crowded_at_s < _RACE_S
        is_moving |= any(not other.is_loaded for other in self.living())
        available_bytes = self.memory().available_bytes
        if not is_moving and available_bytes < size_bytes * _TOLERATED_SHARE:
            self.complain(f"{owner.instance_id} was started with {available_bytes} bytes free")

    def living(self) -> tuple[SimulatedProcess, ...]:
        """List the processes of which something is left."""
        self._processes = [process for process in self._processes if not process.gone.is_set()]
        return tuple(self._processes)

    def listening(self, endpoint: Endpoint) -> SimulatedProcess | None:
        """Find who answers at a socket."""
        process = self._by_socket.get(str(endpoint.socket_path))
        return None if process is None or process.exit_status is not None else process

    def give_back(self, n_bytes: int, after_s: float) -> None:
        """Keep memory for a while after its process is gone."""
        self._returning_bytes += n_bytes

        def give() -> None:
            self._returning_bytes = max(0, self._returning_bytes - n_bytes)

        asyncio.get_running_loop().call_later(after_s, give)

    def crowd(self, n_bytes: int) -> None:
        """Have other programs take so much."""
        self.taken_bytes = n_bytes
        self._crowded_at_s = asyncio.get_running_loop().time()
        self.check_memory()

    def check_memory(self) -> None:
        """Kill the largest process when there is too little memory."""
        if self._used_bytes <= self.total_bytes:
            return
        running = [process for process in self.living() if process.exit_status is None]
        if running:
            self._n_oom_kills += 1
            largest = max(running, key=lambda process: process.resident_bytes)
            largest.die(ExitStatus(signal="SIGKILL"))

    def end_children(self) -> None:
        """Kill every engine, as the kernel does when their daemon has died."""
        for process in self.living():
            process.signal(signal.SIGKILL)

    def cut_power(self) -> None:
        """End everything that runs."""
        for process in self.living():
            process.vanish()
        self._returning_bytes = 0

    def complain(self, what: str) -> None:
        """Note what must never be."""
        self.complaints.append(what)

    @property
    def _used_bytes(self) -> int:
        held_bytes = sum(process.resident_bytes for process in self.living())
        return _SYSTEM_BYTES + self.taken_bytes + self._returning_bytes + held_bytes
