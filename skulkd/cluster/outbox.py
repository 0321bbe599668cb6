"""One connection to a peer, on one lane, from its dialling to its end; it never waits.

A frame goes to ZeroMQ at once when nothing is in front of it, and into the queue of its plane when
ZeroMQ takes no more. The queues are emptied in the order of the lane's planes. When the connection
ends, what is queued is dropped: a wish must not arrive long after its time.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Literal, final

import zmq

from protocol.clock import Clock
from protocol.envelope import PLANE_MARK, Plane
from skulkd.cluster.lanes import LANES, Lane
from skulkd.cluster.link_views import PlaneCounters
from skulkd.cluster.plane_queue import PlaneQueue
from skulkd.cluster.zmq_sockets import (
    NOBLOCK,
    POLLOUT,
    Context,
    Dial,
    LinkEvent,
    Monitor,
    descriptor,
    endpoint,
    make_outbox,
    readiness,
)

PER_TURN: Final = 256
TURN_S: Final = 0.002
_LOOKS_EVERY: Final = 16

_MARKS: Final[Mapping[Plane, bytes]] = {plane: bytes((PLANE_MARK[plane],)) for plane in PLANE_MARK}

End = Literal["denied", "not_the_server", "mute", "unreachable", "broken"]
"""Why a connection has ended, as in `LinkEvent`."""


@final
class Outbox:
    """One connection.

    Args:
        context: Of the lane's port.
        lane: Which.
        dial: Whom.
        hello: The first frame.
        counters: By plane; they outlive the connection.
        clock: For the turns.
        name: Unique in the context.

    Raises:
        zmq.ZMQError: This process may have no more sockets.
    """

    def __init__(
        self,
        context: Context,
        lane: Lane,
        dial: Dial,
        *,
        hello: bytes,
        counters: Mapping[Plane, PlaneCounters],
        clock: Clock,
        name: str,
    ) -> None:
        self.lane: Final[Lane] = lane
        self.is_up = False
        """The handshake has succeeded, and the hello has been sent."""
        self.end: End | None = None
        """Why it is over; None as long as it is not."""
        self._changed: Callable[[Outbox], None] = _ignore
        self._hello: bytes | None = hello
        self._owed: bytes | None = None
        """A hello that goes along with the next payload."""
        self._counters = counters
        self._clock = clock
        self._queues: dict[Plane, PlaneQueue] = {
            plane: PlaneQueue(plane) for plane in LANES[lane].planes
        }
        self._waiting: list[tuple[Plane, asyncio.Future[None]]] = []
        self._loop = asyncio.get_running_loop()
        # Blocked until open: what comes before that is queued.
        self._is_blocked = True
        self._is_watching = False
        self._socket = make_outbox(context, dial, LANES[lane])
        try:
            self._fd = descriptor(self._socket)
            self._monitor = Monitor(context, self._socket, name, self._on_event)
            self._socket.connect(endpoint(dial.host, dial.port))
        except zmq.ZMQError:
            self._socket.close(0)
            raise

    def on_change(self, changed: "Callable[[Outbox], None]") -> None:
        """Name who is told, once when it is up and once when it ends by itself."""
        self._changed = changed

    def send(self, plane: Plane, payload: bytes, key: str | None) -> bool:
        """Take a payload of a plane of this lane; False when its queue is full."""
        frame = _MARKS[plane] + payload
        if not self._is_blocked:
            if self._owed is not None:
                self._say(self._owed)
            if self._try_send(frame):
                self._count_sent(plane, len(payload))
                return True
            if self.end is not None:
                return True  # taken, and lost with the connection
            self._block()
        queue = self._queues[plane]
        is_taken = queue.put(frame, key)
        self._count_queued(plane, queue)
        return is_taken

    def owe(self, hello: bytes) -> None:
        """Send a hello with the next payload, so that it wakes nobody by itself.

        One that is still owed has found no payload, and goes now, unless frames are waiting.
        """
        if self._owed is not None and not self._is_blocked:
            self._say(self._owed)
        self._owed = hello

    async def wait_room(self, plane: Plane) -> None:
        """Wait until the largest payload of a plane would be taken, or the connection is over."""
        while self.end is None and not self._queues[plane].has_room():
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append((plane, waiter))
            await waiter

    def close(self, *, linger_ms: int = 0) -> None:
        """End it; nobody is told.

        Args:
            linger_ms: How long ZeroMQ may go on sending what it holds.
        """
        if self.end is None:
            self.end = "broken"
        if self._socket.closed:
            return
        self.is_up = False
        self._is_blocked = True
        self._unwatch()
        self._monitor.close()
        self._socket.close(linger_ms)
        for plane, queue in self._queues.items():
            queue.clear()
            self._count_queued(plane, queue)
        self._wake()

    # The connection.

    def _on_event(self, event: LinkEvent) -> None:
        if event == "open":
            self._watch()
        elif self.end is None:
            self._over(event)

    def _over(self, end: End) -> None:
        self.end = end
        self.close()
        self._changed(self)

    def _say(self, hello: bytes) -> None:
        self._owed = None
        self._try_send(hello)

    def _try_send(self, frame: bytes) -> bool:
        try:
            self._socket.send(frame, NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError:
            # The socket is used up; its monitor is about to say so.
            self._over("broken")
            return False
        return True

    # Frames that wait.

    def _block(self) -> None:
        self._is_blocked = True
        self._watch()

    def _watch(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._loop.add_reader(self._fd, self._pump)
            # The descriptor tells only what happens from now on.
            self._loop.call_soon(self._pump)

    def _unwatch(self) -> None:
        if self._is_watching:
            self._is_watching = False
            self._loop.remove_reader(self._fd)

    def _pump(self) -> None:
        if self.end is not None or not readiness(self._socket) & POLLOUT:
            return
        if self._hello is not None and not self._greet(self._hello):
            return
        until_s = self._clock.monotonic_s() + TURN_S
        is_empty = self._flush(until_s)
        self._wake()
        if self.end is not None:
            return
        if is_empty:
            self._is_blocked = False
            self._unwatch()
        elif readiness(self._socket) & POLLOUT:
            self._loop.call_soon(self._pump)

    def _greet(self, hello: bytes) -> bool:
        if not self._try_send(hello):
            return False
        self._hello = None
        self.is_up = True
        self._changed(self)
        return self.end is None

    def _flush(self, until_s: float) -> bool:
        """Send what is queued; True when nothing is left."""
        n_sent = 0
        for plane, queue in self._queues.items():
            while queue:
                frame = queue.first()
                is_late = not n_sent % _LOOKS_EVERY and self._clock.monotonic_s() > until_s
                if n_sent == PER_TURN or is_late or not self._try_send(frame):
                    self._count_queued(plane, queue)
                    return False
                n_sent += 1
                queue.drop_first()
                self._count_sent(plane, len(frame) - 1)
            self._count_queued(plane, queue)
        return True

    def _wake(self) -> None:
        still: list[tuple[Plane, asyncio.Future[None]]] = []
        for plane, waiter in self._waiting:
            if waiter.done():
                continue  # whoever waited was cancelled
            if self.end is None and not self._queues[plane].has_room():
                still.append((plane, waiter))
            else:
                waiter.set_result(None)
        self._waiting = still

    def _count_sent(self, plane: Plane, n_bytes: int) -> None:
        counters = self._counters[plane]
        counters.n_sent += 1
        counters.n_sent_bytes += n_bytes

    def _count_queued(self, plane: Plane, queue: PlaneQueue) -> None:
        counters = self._counters[plane]
        counters.queued_bytes = queue.n_bytes
        counters.n_dropped += queue.n_dropped
        queue.n_dropped = 0


def _ignore(outbox: Outbox) -> None:
    """Nobody listens yet."""
    del outbox
