"""A process started through the shim: spawned, watched, ended with its whole group."""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from protocol.errors import RunnerError
from skulkd.runtime.tasks import run_blocking, sleep, timeout
from skulkd.worker.launchers import shim
from skulkd.worker.launchers.base import ExitStatus
from skulkd.worker.launchers.exit_watch import ExitWatch
from skulkd.worker.launchers.group import is_group_gone, live_members, signal_group

_log = logging.getLogger(__name__)

_SHIM_PATH: Final = Path(shim.__file__)
_EXEC_TIMEOUT_S: Final = 20.0
"""The shim needs 16 ms; a machine that swaps may need far longer."""
_GONE_TIMEOUT_S: Final = 10.0
"""From SIGKILL to the last process's end: freeing tens of gigabytes takes seconds."""
_FIRST_POLL_S: Final = 0.002
_LAST_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptors:
    """Where a process writes to; the caller keeps and closes its own copies."""

    stdout: int
    stderr: int


@final
class ShimProcess:
    """A child in a session of its own; made by `start`.

    When the first process ends, the rest of its group is killed: an engine's helpers have no
    life of their own.
    """

    def __init__(self, child: "subprocess.Popen[bytes]", lifetime_fd: int | None) -> None:
        self._child = child
        self._lifetime_fd = lifetime_fd
        self.exit_status: ExitStatus | None = None
        self._exited = asyncio.Event()
        self._watch = ExitWatch(child.pid, self._on_exit)

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        output: Descriptors,
        watcher: bool = sys.platform != "linux",
    ) -> "ShimProcess":
        """Start a program; return once it, and not the shim, runs.

        Args:
            argv: Program and arguments.
            environment: All of its environment.
            output: Its standard output and error; standard input is empty.
            watcher: Keep the shim as the program's parent, where the kernel cannot tie it to us.

        Raises:
            RunnerError: `runner.spawn_failed`. No process is left.
        """
        status_read, status_write = os.pipe()
        lifetime_read, lifetime_write = os.pipe() if watcher else (-1, None)
        given = [status_write, lifetime_read] if watcher else [status_write]
        try:
            child = _popen(argv, environment, output, given, lifetime_read)
        except OSError as error:
            _close_all(status_read, lifetime_write)
            raise _spawn_failed(argv[0], str(error)) from error
        finally:
            _close_all(status_write, lifetime_read if watcher else None)
        try:
            process = cls(child, lifetime_write)
        except OSError as error:
            child.kill()
            child.wait()
            _close_all(status_read, lifetime_write)
            raise _spawn_failed(argv[0], f"it cannot be watched: {error}") from error
        try:
            complaint = await _read_status(status_read)
        except BaseException:
            await process.kill()
            raise
        finally:
            os.close(status_read)
        if complaint:
            await process.kill()
            raise _spawn_failed(argv[0], complaint)
        return process

    @property
    def pid(self) -> int:
        """The first process and its group."""
        return self._child.pid

    async def wait_exit(self) -> ExitStatus:
        """Wait for the end of the first process."""
        await self._exited.wait()
        if self.exit_status is None:
            raise AssertionError("the status is set before the event")
        return self.exit_status

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the group, while its id is certainly ours."""
        if self.exit_status is None:
            signal_group(self.pid, number)

    async def kill(self) -> ExitStatus:
        """Kill the group and wait until it is gone.

        Raises:
            RunnerError: `runner.unkillable`.
        """
        self.signal_group(signal.SIGKILL)
        await self.wait_gone()
        return await self.wait_exit()

    async def wait_gone(self) -> None:
        """Wait until no process of the group is left.

        Raises:
            RunnerError: `runner.unkillable`, when some are left long after they were killed.
        """
        try:
            async with timeout(_GONE_TIMEOUT_S):
                await self._exited.wait()
                await self._wait_group_gone()
        except TimeoutError:
            pids = await run_blocking(live_members, self.pid)
            raise RunnerError(
                "runner.unkillable",
                f"processes {', '.join(map(str, pids))} are still there {_GONE_TIMEOUT_S:.0f} s "
                "after they were killed",
                remediation="Look at `ps -o pid,stat,wchan` for them: a driver or a dead network "
                "mount holds them. Their memory is not free until they end.",
                details={"group": self.pid},
            ) from None

    async def _wait_group_gone(self) -> None:
        pause_s = _FIRST_POLL_S
        while not await run_blocking(is_group_gone, self.pid):
            await sleep(pause_s)
            pause_s = min(_LAST_POLL_S, pause_s * 2)

    def _on_exit(self) -> None:
        # The zombie keeps the group's id from being given away, so the rest is killed first.
        signal_group(self.pid, signal.SIGKILL)
        code = self._child.wait()
        self.exit_status = _status_of(code)
        if self._lifetime_fd is not None:
            os.close(self._lifetime_fd)
            self._lifetime_fd = None
        self._exited.set()


def _popen(
    argv: Sequence[str],
    environment: Mapping[str, str],
    output: Descriptors,
    given: Sequence[int],
    lifetime_read: int,
) -> "subprocess.Popen[bytes]":
    if threading.current_thread() is not threading.main_thread():
        raise AssertionError(
            "the parent-death signal follows the thread that spawned, and only the main one lives "
            "as long as the process"
        )
    head = [sys.executable, "-I", "-S", str(_SHIM_PATH)]
    numbers = [str(given[0]), str(os.getpid()), str(lifetime_read)]
    return subprocess.Popen(
        [*head, *numbers, "--", *argv],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=output.stdout,
        stderr=output.stderr,
        pass_fds=given,
        start_new_session=True,
        cwd="/",
    )


async def _read_status(status_read: int) -> str:
    """Wait until the shim has become the program (empty) or says why not."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(status_read, readable.set)
    try:
        async with timeout(_EXEC_TIMEOUT_S):
            await readable.wait()
    except TimeoutError:
        return f"the program did not start within {_EXEC_TIMEOUT_S:.0f} s"
    finally:
        loop.remove_reader(status_read)
    return os.read(status_read, 512).decode("utf-8", "replace")


def _status_of(code: int) -> ExitStatus:
    if code >= 0:
        return ExitStatus(exit_code=code)
    try:
        return ExitStatus(signal=signal.Signals(-code).name)
    except ValueError:
        return ExitStatus(signal=f"signal {-code}")


def _spawn_failed(program: str, reason: str) -> RunnerError:
    return RunnerError(
        "runner.spawn_failed",
        f"{program} could not be started: {reason}",
        remediation="Check that the file exists, is executable and was built for this machine.",
        details={"program": program},
    )


def _close_all(*descriptors: int | None) -> None:
    for fd in descriptors:
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)
