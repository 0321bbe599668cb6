"""What a node sends to itself: no network, the same planes, limits and order."""

import asyncio
from collections.abc import Callable
from typing import Final, final

from protocol.envelope import PLANE_MARK, Plane
from skulkd.cluster.plane_queue import PlaneQueue
from skulkd.runtime.tasks import sleep

PER_TURN: Final = 256


@final
class Loopback:
    """The queues of one node towards itself.

    Args:
        deliver: Called on a later turn of the loop.
    """

    def __init__(self, deliver: Callable[[Plane, bytes], None]) -> None:
        self._deliver = deliver
        self._queues: dict[Plane, PlaneQueue] = {plane: PlaneQueue(plane) for plane in PLANE_MARK}
        self._is_pumping = False
        self._is_closed = False

    def send(self, plane: Plane, payload: bytes, key: str | None) -> bool:
        """Take a payload; False when the plane's queue is full."""
        is_taken = self._queues[plane].put(b"\0" + payload, key)
        if not self._is_pumping:
            self._is_pumping = True
            asyncio.get_running_loop().call_soon(self._pump)
        return is_taken

    async def wait_room(self, plane: Plane) -> None:
        """Wait until the largest payload would be taken."""
        while not self._queues[plane].has_room() and not self._is_closed:
            await sleep(0)

    def close(self) -> None:
        """Deliver nothing more."""
        self._is_closed = True

    def _pump(self) -> None:
        n_delivered = 0
        for plane, queue in self._queues.items():
            while queue and n_delivered < PER_TURN and not self._is_closed:
                payload = queue.first()[1:]
                queue.drop_first()
                n_delivered += 1
                self._deliver(plane, payload)
        self._is_pumping = n_delivered == PER_TURN and not self._is_closed
        if self._is_pumping:
            asyncio.get_running_loop().call_soon(self._pump)
