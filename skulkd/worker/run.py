"""Running a short program to its end: probes and canaries, bounded in time and output.

The program may be anything that an operator's machine holds: it may hang, flood, crash or leave
children behind. Nothing of it is left when `run_bounded` returns.
"""

import asyncio
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from skulkd.runtime.tasks import timeout
from skulkd.worker.launchers.base import ExitStatus
from skulkd.worker.launchers.environment import scrubbed
from skulkd.worker.launchers.shim_process import Descriptors, ShimProcess

MAX_OUTPUT_BYTES: Final = 256 << 10
_READ_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedRun:
    """How a program ended and what it said."""

    exit_code: int | None
    signal: str | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    """It was killed because its time was over."""


async def run_bounded(
    argv: Sequence[str],
    timeout_s: float,
    max_output: int = MAX_OUTPUT_BYTES,
    *,
    environment: Mapping[str, str] | None = None,
    added: Mapping[str, str] | None = None,
) -> CompletedRun:
    """Run a program; kill it, and all it started, when its time is over.

    Args:
        argv: Program and arguments; never a shell line.
        timeout_s: How long it may run.
        max_output: Bytes kept of each stream; the rest is read and thrown away.
        environment: What it may inherit some of; by default, this process's own.
        added: What it gets besides.

    Raises:
        RunnerError: `runner.spawn_failed`, `runner.unkillable`.
    """
    inherited = os.environ if environment is None else environment
    scrubbed_environment = scrubbed(inherited, added or {}, secrets.token_hex(16))
    with _Collector(max_output) as stdout, _Collector(max_output) as stderr:
        try:
            process = await ShimProcess.start(
                argv,
                environment=scrubbed_environment,
                output=Descriptors(stdout=stdout.write_fd, stderr=stderr.write_fd),
            )
        finally:
            stdout.close_write()
            stderr.close_write()
        status, timed_out = await _finish(process, timeout_s)
        stdout.drain()
        stderr.drain()
        return CompletedRun(
            exit_code=status.exit_code,
            signal=status.signal,
            stdout=bytes(stdout.data),
            stderr=bytes(stderr.data),
            timed_out=timed_out,
        )


async def _finish(process: ShimProcess, timeout_s: float) -> tuple[ExitStatus, bool]:
    timed_out = False
    try:
        async with timeout(timeout_s):
            await process.wait_exit()
    except TimeoutError:
        timed_out = True
    finally:
        status = await process.kill()
    return status, timed_out


@final
class _Collector:
    """The read end of a pipe, emptied as it fills; keeps the first `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.data = bytearray()
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._is_writing = True
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> "_Collector":
        self._loop.add_reader(self._read_fd, self._on_readable)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._read_fd)
        self.close_write()
        os.close(self._read_fd)

    def close_write(self) -> None:
        """Close our copy of the write end; idempotent."""
        if self._is_writing:
            self._is_writing = False
            os.close(self.write_fd)

    def drain(self) -> None:
        """Read what is left in the pipe; its writers are gone."""
        while self._read():
            pass

    def _on_readable(self) -> None:
        if not self._read():
            self._loop.remove_reader(self._read_fd)

    def _read(self) -> bool:
        try:
            piece = os.read(self._read_fd, _READ_BYTES)
        except BlockingIOError:
            return False
        self.data += piece[: self._max_bytes - len(self.data)]
        return bool(piece)
