"""A launcher whose processes are simulated: its records are real, on whatever disk it is given."""

import asyncio
import contextlib
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from engines.base import LaunchSpec
from protocol.errors import RunnerError
from skulkd.runtime.disk import Disk
from skulkd.runtime.tasks import Tasks, run_blocking
from skulkd.worker.launchers.base import (
    EngineProcess,
    ExitStatus,
    LauncherPaths,
    LaunchOwner,
    ProcessMemory,
    ProcessRecord,
    ProcessUsage,
)
from skulkd.worker.launchers.records import ProcessRecords
from tests.support.builders import a_digest
from tests.support.simulated_machine import Mood, SimulatedMachine, SimulatedProcess

_GONE_TIMEOUT_S: Final = 5.0
_ORPHAN_TIMEOUT_S: Final = 10.0
MoodOf = Callable[[str], Mood]
"""How the next process of a model behaves."""


@final
class SimulatedLauncher:
    """Implements `skulkd.worker.launchers.base.Launcher`, as the child launcher does.

    Args:
        machine: Where processes run.
        moods: What they do.
        paths: Where records go.
        disk: What keeps them.
        tasks: Owner of the watches.
        chance: Draws launch ids.
    """

    def __init__(
        self,
        machine: SimulatedMachine,
        moods: MoodOf,
        *,
        paths: LauncherPaths,
        disk: Disk,
        tasks: Tasks,
        chance: random.Random,
    ) -> None:
        self._machine = machine
        self._moods = moods
        self._paths = paths
        self._records = ProcessRecords(paths.records, disk)
        self._tasks = tasks
        self._chance = chance
        self._own: dict[str, SimulatedChild] = {}
        self._watches: dict[asyncio.Task[None], None] = {}
        self._is_cut = False

    async def spawn(self, spec: LaunchSpec, owner: LaunchOwner) -> EngineProcess:
        """Start a process; the argv is what `simulated_engine` made of the load."""
        _, model_id, size, slots = spec.argv
        mood = self._moods(model_id)
        record = self._new_record(spec, owner)
        try:
            await run_blocking(self._records.write, record)
        except OSError as error:
            with contextlib.suppress(OSError):
                await run_blocking(self._records.remove, record)
            raise RunnerError(
                "runner.spawn_failed", f"the launch could not be recorded: {error}"
            ) from error
        process = self._machine.start(
            owner, record.launch_id, spec.endpoint, mood, size_bytes=int(size), slots=int(slots)
        )
        child = SimulatedChild(process, record.model_copy(update={"pid": process.pid}), self)
        self._own[record.launch_id] = child
        watch = self._tasks.start(
            self._watch_over(child), name=f"child {process.pid}", essential=False
        )
        self._watches[watch] = None
        watch.add_done_callback(lambda done: self._watches.pop(done, None))
        try:
            await asyncio.sleep(mood.spawn_s)
        except asyncio.CancelledError:
            child.signal_group(signal.SIGKILL)
            await asyncio.shield(asyncio.wait_for(process.gone.wait(), _GONE_TIMEOUT_S))
            raise
        if mood.spawn_fails:
            child.signal_group(signal.SIGKILL)
            await process.gone.wait()
            raise RunnerError("runner.spawn_failed", "the program could not be started")
        return child

    def orphans(self) -> tuple[ProcessRecord, ...]:
        """Read what an earlier daemon left."""
        if not self._own:
            self._records.remove_halves()
        return tuple(
            record for record in self._records.read_all() if record.launch_id not in self._own
        )

    async def adopt(self, record: ProcessRecord) -> EngineProcess | None:
        """End what an earlier daemon left: a child cannot be taken over."""
        left = [item for item in self._machine.living() if item.launch_id == record.launch_id]
        for process in left:
            process.signal(signal.SIGKILL)
            try:
                async with asyncio.timeout(_ORPHAN_TIMEOUT_S):
                    await process.gone.wait()
            except TimeoutError:
                raise RunnerError("runner.unkillable", f"{process.pid} is still there") from None
        await self._forget(record)
        return None

    async def wait_settled(self, timeout_s: float) -> None:
        """Wait, for a bounded time, until the records of ended processes are removed."""
        if self._watches:
            await asyncio.wait(list(self._watches), timeout=timeout_s)

    def has_started(self, process: SimulatedProcess) -> bool:
        """Tell whether a process is this launcher's own, and not an earlier one's."""
        return process.launch_id in self._own

    def cut(self) -> None:
        """Lose the daemon: nothing that is left of it reaches a process any more."""
        self._is_cut = True

    @property
    def is_cut(self) -> bool:
        """Whether the daemon is dead."""
        return self._is_cut

    def _new_record(self, spec: LaunchSpec, owner: LaunchOwner) -> ProcessRecord:
        name = f"{owner.instance_id}-{owner.rank}.{owner.attempt}.log"
        return ProcessRecord(
            launch_id=f"{self._chance.getrandbits(128):032x}",
            owner=owner,
            argv_digest=a_digest("\0".join(spec.argv)),
            log_path=str(self._paths.logs / name),
            socket_path=str(spec.endpoint.socket_path),
        )

    async def _watch_over(self, child: "SimulatedChild") -> None:
        with contextlib.suppress(OSError):
            await run_blocking(self._records.write, child.record)
        await child.process.gone.wait()
        await self._forget(child.record)

    async def _forget(self, record: ProcessRecord) -> None:
        # A record that stays behind is found at the next start, without a process.
        with contextlib.suppress(OSError):
            await run_blocking(self._records.remove, record)


@final
class SimulatedChild:
    """Implements `skulkd.worker.launchers.base.EngineProcess`."""

    def __init__(
        self, process: SimulatedProcess, record: ProcessRecord, launcher: SimulatedLauncher
    ) -> None:
        self.process = process
        self._record = record
        self._launcher = launcher

    @property
    def pid(self) -> int:
        """The first process."""
        return self.process.pid

    @property
    def record(self) -> ProcessRecord:
        """What is on disk about it."""
        return self._record

    @property
    def exit_status(self) -> ExitStatus | None:
        """How it ended."""
        return self.process.exit_status

    async def wait_exit(self) -> ExitStatus:
        """Wait for the end of the first process."""
        await self.process.exited.wait()
        assert self.process.exit_status is not None
        return self.process.exit_status

    async def wait_gone(self) -> None:
        """Wait for the end of all."""
        try:
            async with asyncio.timeout(_GONE_TIMEOUT_S):
                await self.process.gone.wait()
        except TimeoutError:
            raise RunnerError("runner.unkillable", f"process {self.pid} is still there") from None

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the group, while the first process is there and the daemon is too."""
        if self.process.exit_status is None and not self._launcher.is_cut:
            self.process.signal(number)

    async def stop(self, grace_s: float) -> ExitStatus:
        """End the group, gently first."""
        if grace_s > 0:
            self.signal_group(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self.wait_exit()
        self.signal_group(signal.SIGKILL)
        await self.wait_gone()
        return await self.wait_exit()

    def owns_listener(self, port: int) -> bool:
        """Say yes: these engines listen on sockets in files."""
        del port
        return True

    def usage(self) -> ProcessUsage:
        """Measure the process."""
        return ProcessUsage(resident_bytes=self.process.resident_bytes)

    def memory(self, model: Path) -> ProcessMemory | None:
        """Say nothing: what is simulated has no mappings."""
        del model

    def log_tail(self) -> tuple[str, ...]:
        """Give what it said."""
        return (f"{Path(self._record.log_path).name}: loading", "the last line of its log")
