"""Processes as the kernel names them: start marks, groups, listeners. Blocking, mostly short."""

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import psutil

from skulkd.worker.launchers.environment import LAUNCH_ID_VARIABLE

_PROC = Path("/proc")


def start_mark(pid: int) -> str | None:
    """Say when a process began, in words that no later process with this pid repeats.

    None when there is no such process. A zombie still has its mark.
    """
    if sys.platform == "linux":
        fields = _stat_fields(pid)
        return None if fields is None else f"{_boot_id()}:{fields[19]}"
    try:
        return f"{psutil.Process(pid).create_time():.6f}"
    except psutil.Error:
        return None


def live_members(group: int) -> tuple[int, ...]:
    """List the processes of a group that still run; zombies do not count."""
    return tuple(pid for pid in psutil.pids() if _group_if_alive(pid) == group)


def is_group_gone(group: int) -> bool:
    """Tell whether no process of a group runs any more."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        # macOS answers so for a group of zombies.
        return not live_members(group)
    # What is left may be zombies that a careless init never reaps.
    return not live_members(group)


def signal_group(group: int, number: signal.Signals) -> None:
    """Signal every process of a group; one that is gone is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def marked_processes(launch_id: str) -> tuple[int, ...]:
    """List the running processes that carry a launch id in their environment."""
    return tuple(pid for pid in psutil.pids() if _launch_id(pid) == launch_id)


def kill_if_marked(pid: int, mark: str) -> bool:
    """Kill a process if it is still the one with this start mark; tell whether it was."""
    try:
        with _held(pid) as kill:
            # Only while the process is held on to is the comparison worth something.
            if start_mark(pid) != mark:
                return False
            kill()
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def _held(pid: int) -> Generator[Callable[[], None]]:
    """Hold on to a process, so that its pid cannot mean another one; where the kernel can."""
    if sys.platform != "linux":
        yield lambda: os.kill(pid, signal.SIGKILL)
        return
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        yield lambda: os.kill(pid, signal.SIGKILL)
        return
    try:
        yield lambda: signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)


def is_running(pid: int, mark: str) -> bool:
    """Tell whether a process with this start mark runs, and is no zombie."""
    return start_mark(pid) == mark and _group_if_alive(pid) is not None


def listens_on(group: int, port: int) -> bool:
    """Tell whether a process of a group listens on a TCP port of this machine."""
    return any(port in _listening_ports(pid) for pid in live_members(group))


def connects_from(group: int, port: int) -> bool:
    """Tell whether a process of a group has a TCP connection from a port of this machine."""
    return any(port in _connected_ports(pid) for pid in live_members(group))


def _listening_ports(pid: int) -> Iterator[int]:
    return (at for at, status in _tcp_ports(pid) if status == psutil.CONN_LISTEN)


def _connected_ports(pid: int) -> Iterator[int]:
    return (at for at, status in _tcp_ports(pid) if status != psutil.CONN_LISTEN)


def _tcp_ports(pid: int) -> Iterator[tuple[int, str]]:
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return
    for connection in connections:
        if connection.laddr:
            yield connection.laddr.port, connection.status


def _group_if_alive(pid: int) -> int | None:
    if sys.platform == "linux":
        fields = _stat_fields(pid)
        return None if fields is None or fields[0] in {"Z", "X"} else int(fields[2])
    try:
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return None
        return os.getpgid(pid)
    except (psutil.Error, OSError):
        return None


def _launch_id(pid: int) -> str | None:
    if sys.platform == "linux":
        try:
            environment = (_PROC / str(pid) / "environ").read_bytes()
        except OSError:
            return None
        prefix = f"{LAUNCH_ID_VARIABLE}=".encode()
        for item in environment.split(b"\0"):
            if item.startswith(prefix):
                return item[len(prefix) :].decode("ascii", "replace")
        return None
    try:
        return psutil.Process(pid).environ().get(LAUNCH_ID_VARIABLE)
    except psutil.Error:
        return None


def _stat_fields(pid: int) -> list[str] | None:
    """Read /proc/PID/stat from the state on: [0] state, [2] group, [19] start in clock ticks."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("ascii", "replace")
    except OSError:
        return None
    # The command's name stands in parentheses and may hold anything, also parentheses.
    return text.rpartition(")")[2].split()


def _boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
