"""Learning within a millisecond that a child has ended: a descriptor that becomes readable."""

import asyncio
import errno
import os
import select
import sys
import threading
from collections.abc import Callable
from typing import final


@final
class ExitWatch:
    """Calls back once, on the running loop, when a child process has ended.

    The child is a zombie then: its pid cannot have been given to another process before the
    callback reaps it.

    Args:
        pid: A child of this process that has not been reaped.
        on_exit: Called once.
    """

    def __init__(self, pid: int, on_exit: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_exit = on_exit
        self._fd = _exit_descriptor(pid)
        self._is_open = True
        self._loop.add_reader(self._fd, self._on_readable)

    def close(self) -> None:
        """Stop watching; idempotent."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._fd)
            os.close(self._fd)

    def _on_readable(self) -> None:
        self.close()
        self._on_exit()


def _exit_descriptor(pid: int) -> int:
    if sys.platform == "linux":
        try:
            return os.pidfd_open(pid)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            return _thread_descriptor(pid)
    queue = select.kqueue()
    event = select.kevent(
        pid,
        filter=select.KQ_FILTER_PROC,
        flags=select.KQ_EV_ADD | select.KQ_EV_ONESHOT,
        fflags=select.KQ_NOTE_EXIT,
    )
    try:
        queue.control([event], 0)
    except OSError:
        queue.close()
        raise
    return os.dup(queue.fileno())


def _thread_descriptor(pid: int) -> int:
    """Wait in a thread, for kernels before 5.3: the other end of the pipe closes at the exit."""
    read_fd, write_fd = os.pipe()

    def wait() -> None:
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        finally:
            os.close(write_fd)

    threading.Thread(target=wait, name=f"exit of {pid}", daemon=True).start()
    return read_fd
