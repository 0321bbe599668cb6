"""The child launcher: engines as children of the daemon, in sessions of their own.

They end with the daemon. What an earlier daemon left all the same (an engine's own children get no
parent-death signal) is found by its record and killed.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, final

import psutil

from engines.base import LaunchSpec
from protocol.errors import RunnerError
from protocol.ids import Digest
from skulkd.runtime.disk import Disk
from skulkd.runtime.tasks import Tasks, run_blocking, sleep, timeout
from skulkd.worker.launchers import group
from skulkd.worker.launchers.base import (
    EngineProcess,
    ExitStatus,
    LauncherPaths,
    LaunchOwner,
    ProcessMemory,
    ProcessRecord,
    ProcessUsage,
)
from skulkd.worker.launchers.engine_log import open_log, prune_logs, read_tail, trim_log
from skulkd.worker.launchers.environment import scrubbed
from skulkd.worker.launchers.mappings import process_memory
from skulkd.worker.launchers.records import ProcessRecords
from skulkd.worker.launchers.shim_process import Descriptors, ShimProcess

_log = logging.getLogger(__name__)

_LOG_CHECK_S: Final = 1.0
_ORPHAN_TIMEOUT_S: Final = 10.0
_ORPHAN_POLL_S: Final = 0.02


@final
class ChildLauncher:
    """Starts engines as children of this process.

    Args:
        paths: Where records and logs go.
        disk: The file system that holds the records.
        tasks: Owner of the tasks that watch over the children.
        environment: What engines may inherit some of.
    """

    def __init__(
        self, *, paths: LauncherPaths, disk: Disk, tasks: Tasks, environment: Mapping[str, str]
    ) -> None:
        self._paths = paths
        self._records = ProcessRecords(paths.records, disk)
        self._tasks = tasks
        self._environment = dict(environment)
        self._own: set[str] = set()
        self._live_logs: set[str] = set()
        self._watches: set[asyncio.Task[None]] = set()

    async def spawn(self, spec: LaunchSpec, owner: LaunchOwner) -> EngineProcess:
        """Start a process."""
        record = self._new_record(spec, owner)
        self._own.add(record.launch_id)
        environment = scrubbed(self._environment, spec.environment, record.launch_id)
        log_fd = await self._prepared(record)
        try:
            process = await ShimProcess.start(
                spec.argv,
                environment=environment,
                output=Descriptors(stdout=log_fd, stderr=log_fd),
            )
        except BaseException:
            await self._forget(record)
            raise
        finally:
            os.close(log_fd)
        mark = group.start_mark(process.pid)
        record = record.model_copy(update={"pid": process.pid, "start_mark": mark})
        child = ChildProcess(process, record)
        watch = self._tasks.start(
            self._watch_over(child), name=f"child {process.pid}", essential=False
        )
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        return child

    async def wait_settled(self, timeout_s: float) -> None:
        """Wait, for a bounded time, until the records of ended processes are removed."""
        if self._watches:
            await asyncio.wait(self._watches, timeout=timeout_s)

    def orphans(self) -> tuple[ProcessRecord, ...]:
        """Read what an earlier daemon left."""
        if not self._own:
            self._records.remove_halves()
        return tuple(
            record for record in self._records.read_all() if record.launch_id not in self._own
        )

    async def adopt(self, record: ProcessRecord) -> EngineProcess | None:
        """End what an earlier daemon left: a child cannot be taken over."""
        killed = await self._kill_orphan(record)
        if killed:
            _log.warning(
                "ended an engine that outlived its daemon",
                extra={"instance_id": record.owner.instance_id, "pids": killed},
            )
        if record.socket_path is not None:
            await run_blocking(_remove_socket, Path(record.socket_path))
        await self._forget(record)
        return None

    def _new_record(self, spec: LaunchSpec, owner: LaunchOwner) -> ProcessRecord:
        name = f"{owner.instance_id}-{owner.rank}.{owner.attempt}.log"
        socket_path = spec.endpoint.socket_path
        return ProcessRecord(
            launch_id=secrets.token_hex(16),
            owner=owner,
            argv_digest=argv_digest(spec.argv),
            log_path=str(self._paths.logs / name),
            socket_path=None if socket_path is None else str(socket_path),
            port=spec.endpoint.port,
        )

    async def _prepared(self, record: ProcessRecord) -> int:
        """Write the record and open the log; when cancelled, first wait for what to undo."""
        preparing = self._tasks.start(
            run_blocking(self._prepare, record), name="prepare launch", essential=False
        )
        try:
            return await asyncio.shield(preparing)
        except asyncio.CancelledError:
            os.close(await preparing)
            await self._forget(record)
            raise

    def _prepare(self, record: ProcessRecord) -> int:
        try:
            self._records.write(record)
            prune_logs(self._paths.logs, in_use=frozenset(self._live_logs))
            return open_log(Path(record.log_path))
        except OSError as error:
            with contextlib.suppress(OSError):
                self._records.remove(record)
            raise RunnerError(
                "runner.spawn_failed",
                f"the launch could not be recorded: {error}",
                remediation="Free space on the volume of the home directory, then retry.",
            ) from error

    async def _watch_over(self, child: "ChildProcess") -> None:
        # Completed here, not in spawn: the engine loads meanwhile. Should the daemon die first,
        # the launch id in the environment still tells whose the process is.
        with contextlib.suppress(OSError):
            await run_blocking(self._records.write, child.record)
        path = Path(child.record.log_path)
        self._live_logs.add(path.name)
        while child.exit_status is None:
            with contextlib.suppress(TimeoutError):
                async with timeout(_LOG_CHECK_S):
                    await child.wait_exit()
            with contextlib.suppress(OSError):
                await run_blocking(trim_log, path)
        self._live_logs.discard(path.name)
        await child.wait_gone()
        await self._forget(child.record)

    async def _forget(self, record: ProcessRecord) -> None:
        try:
            await run_blocking(self._records.remove, record)
        except OSError as error:
            # The next start finds a record without a process, and removes it then.
            _log.warning("a launch record stays behind", extra={"error": str(error)})

    async def _kill_orphan(self, record: ProcessRecord) -> tuple[int, ...]:
        killed: set[int] = set()
        try:
            async with timeout(_ORPHAN_TIMEOUT_S):
                while pids := await run_blocking(_kill_recorded, record):
                    killed.update(pids)
                    await sleep(_ORPHAN_POLL_S)
        except TimeoutError:
            raise RunnerError(
                "runner.unkillable",
                f"an earlier daemon's engine (pids {sorted(killed)}) is still there "
                f"{_ORPHAN_TIMEOUT_S:.0f} s after it was killed",
                remediation="Its memory is not free until it ends; a driver may hold it.",
            ) from None
        return tuple(sorted(killed))


@final
class ChildProcess:
    """An engine that is our child."""

    def __init__(self, process: ShimProcess, record: ProcessRecord) -> None:
        self._process = process
        self._record = record

    @property
    def pid(self) -> int:
        """The first process and its group."""
        return self._process.pid

    @property
    def record(self) -> ProcessRecord:
        """What is on disk about it."""
        return self._record

    @property
    def exit_status(self) -> ExitStatus | None:
        """How it ended."""
        return self._process.exit_status

    async def wait_exit(self) -> ExitStatus:
        """Wait for the end of the first process."""
        return await self._process.wait_exit()

    async def wait_gone(self) -> None:
        """Wait for the end of all."""
        await self._process.wait_gone()

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the group."""
        self._process.signal_group(number)

    async def stop(self, grace_s: float) -> ExitStatus:
        """End the group, gently first."""
        if grace_s > 0:
            self._process.signal_group(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with timeout(grace_s):
                    await self._process.wait_exit()
        return await self._process.kill()

    def owns_listener(self, port: int) -> bool:
        """Ask the kernel's socket table."""
        return group.listens_on(self.pid, port)

    def usage(self) -> ProcessUsage:
        """Measure the process, or where the shim stays, its children."""
        try:
            first = psutil.Process(self.pid)
            measured = [first] if sys.platform == "linux" else first.children(recursive=True)
            resident = sum(process.memory_info().rss for process in measured)
        except psutil.Error:
            return ProcessUsage()
        return ProcessUsage(resident_bytes=resident, read_bytes=_read_bytes(self.pid))

    def memory(self, model: Path) -> ProcessMemory | None:
        """Read the kernel's account of its mappings."""
        return process_memory(self.pid, model)

    def log_tail(self) -> tuple[str, ...]:
        """Read the log's end."""
        return read_tail(Path(self._record.log_path))


def argv_digest(argv: tuple[str, ...]) -> Digest:
    """Digest a command line, so that two launches can be compared."""
    return Digest(hashlib.sha256("\0".join(argv).encode()).hexdigest())


def _kill_recorded(record: ProcessRecord) -> tuple[int, ...]:
    """Kill what a record names and still runs; give the pids."""
    marks = {pid: group.start_mark(pid) for pid in group.marked_processes(record.launch_id)}
    if record.pid is not None and record.start_mark is not None:
        marks[record.pid] = record.start_mark
    return tuple(
        pid
        for pid, mark in marks.items()
        if mark is not None and group.is_running(pid, mark) and group.kill_if_marked(pid, mark)
    )


def _read_bytes(pid: int) -> int | None:
    if sys.platform != "linux":
        return None
    try:
        text = Path(f"/proc/{pid}/io").read_text("ascii")
    except OSError:
        return None
    fields = dict(line.split(": ") for line in text.splitlines())
    return int(fields["rchar"])


def _remove_socket(path: Path) -> None:
    if path.is_socket():
        path.unlink(missing_ok=True)
