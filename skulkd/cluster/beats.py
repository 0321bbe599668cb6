"""A heartbeat on its way to all members: a few in each turn of the loop.

To send to a hundred takes milliseconds, more so where ZeroMQ's thread wakes on the same core; a
request that came meanwhile would wait for all of it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, final

from protocol.ids import NodeId

AT_ONCE: Final = 8
"""Members that one turn of the loop sends to."""


@final
class Beats:
    """Those of one node.

    Args:
        send: Sends a heartbeat to a member, or does not: another one comes soon.
    """

    def __init__(self, send: Callable[[NodeId, bytes], object]) -> None:
        self._send = send
        self._payload = b""
        self._untold: deque[NodeId] = deque()
        self._is_on_its_way = False

    def begin(self, payload: bytes, to: Iterable[NodeId]) -> None:
        """Send a heartbeat to these; what is left of the one before goes first."""
        self.finish()
        self._payload = payload
        self._untold.extend(to)
        if not self._is_on_its_way:
            self._go_on()

    def finish(self) -> None:
        """Send now what is left: what a heartbeat claims must not come after what is said next."""
        self._tell(len(self._untold))

    def drop(self) -> None:
        """Send no more of it."""
        self._untold.clear()

    def _go_on(self) -> None:
        self._tell(AT_ONCE)
        self._is_on_its_way = bool(self._untold)
        if self._is_on_its_way:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _tell(self, n_most: int) -> None:
        for _ in range(min(n_most, len(self._untold))):
            self._send(self._untold.popleft(), self._payload)
