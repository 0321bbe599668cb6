"""Learning within a millisecond that a child has ended: a descriptor that becomes readable."""

import asyncio
import os
import select
import sys
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
        return os.pidfd_open(pid)
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
