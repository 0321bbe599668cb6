"""What a launcher is: it starts an engine's process, watches it, and ends it with all its children.

The child launcher is one; a launcher of transient systemd units will be another.
"""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import Field, StringConstraints

from engines.base import LaunchSpec
from protocol.base import FrozenModel
from protocol.cards import EngineName
from protocol.ids import DigestField, InstanceIdField
from skulkd.runtime.disk import Disk
from skulkd.runtime.tasks import Tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    """How a process ended: with an exit code, or by a signal."""

    exit_code: int | None = None
    signal: str | None = None
    """`SIGKILL` and the like."""

    def __str__(self) -> str:
        """Say it in words."""
        return f"was killed by {self.signal}" if self.signal else f"exited with {self.exit_code}"


class LaunchOwner(FrozenModel):
    """What a process is started for."""

    instance_id: InstanceIdField
    rank: Annotated[int, Field(ge=0, le=127)]
    attempt: Annotated[int, Field(ge=0)]
    engine: EngineName


class ProcessRecord(FrozenModel):
    """One started process, on disk, so that the next daemon finds what this one left behind.

    Written without pid and start mark before the process exists, completed right after.
    """

    launch_id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
    """Random; also in the process's environment, which its own children inherit."""
    owner: LaunchOwner
    argv_digest: DigestField
    log_path: str
    socket_path: str | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    pid: Annotated[int, Field(ge=1)] | None = None
    start_mark: str | None = None
    """When the process began, in the kernel's words: with the pid it names a process for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUsage:
    """What a process takes now; None is unknown."""

    resident_bytes: int | None = None
    read_bytes: int | None = None
    """Read by system calls since it started; memory-mapped files show as resident instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """What a process and its children hold, told apart."""

    mapped_bytes: int
    """Mapped from the model's files, resident or not: what is not is read again when needed."""
    private_bytes: int
    """All else that is resident, with its share of what other processes have mapped too."""


class EngineProcess(Protocol):
    """A started process and everything it started."""

    @property
    def pid(self) -> int:
        """The first process; also the id of its group."""
        ...

    @property
    def record(self) -> ProcessRecord:
        """What is on disk about it."""
        ...

    @property
    def exit_status(self) -> ExitStatus | None:
        """How the first process ended; None while it runs."""
        ...

    async def wait_exit(self) -> ExitStatus:
        """Wait until the first process has ended; its log is then complete."""
        ...

    async def wait_gone(self) -> None:
        """Wait until no process of the group is left.

        Raises:
            RunnerError: `runner.unkillable` when some are there long after they were killed.
        """
        ...

    def signal_group(self, number: signal.Signals) -> None:
        """Signal every process of the group; nothing happens once the first one has ended."""
        ...

    async def stop(self, grace_s: float) -> ExitStatus:
        """End the whole group: SIGTERM, after `grace_s` SIGKILL; return when it is gone.

        Idempotent; a second call with a shorter grace shortens the first.

        Raises:
            RunnerError: `runner.unkillable` when a process withstands SIGKILL.
        """
        ...

    def owns_listener(self, port: int) -> bool:
        """Tell whether a process of this group listens on a port of 127.0.0.1."""
        ...

    def usage(self) -> ProcessUsage:
        """Measure the process."""
        ...

    def memory(self, model: Path) -> ProcessMemory | None:
        """Measure what it holds; milliseconds. None where the kernel does not tell.

        Args:
            model: The file or directory that the engine was given; what lies in the same directory
                belongs to the model.
        """
        ...

    def log_tail(self) -> tuple[str, ...]:
        """Read the last lines of its output, oldest first: at most 20, cleaned of control codes."""
        ...


class Launcher(Protocol):
    """Starts engine processes."""

    async def spawn(self, spec: LaunchSpec, owner: LaunchOwner) -> EngineProcess:
        """Start a process; returns once the engine's own program runs.

        Cancelling leaves no process behind.

        Raises:
            RunnerError: `runner.spawn_failed`, with the system's reason.
        """
        ...

    def orphans(self) -> tuple[ProcessRecord, ...]:
        """Read the records of processes that this launcher did not start itself."""
        ...

    async def adopt(self, record: ProcessRecord) -> EngineProcess | None:
        """Take over what an earlier daemon left, or end it (None) when it cannot be taken over.

        Never by name: what is ended carries the record's launch id, or has its pid and start mark.

        Raises:
            RunnerError: `runner.unkillable`.
        """
        ...

    async def wait_settled(self, timeout_s: float) -> None:
        """Wait, for a bounded time, until the records of ended processes are removed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherPaths:
    """Where a launcher keeps its things; all 0700."""

    records: Path
    logs: Path


class MakeLauncher(Protocol):
    """One way of making a launcher."""

    def __call__(
        self, *, paths: LauncherPaths, disk: Disk, tasks: Tasks, environment: Mapping[str, str]
    ) -> Launcher:
        """Make it; see `skulkd.worker.launchers.child.ChildLauncher` for the arguments."""
        ...
