"""What peers send to one port of this node: read in turns, each frame with its proven sender."""

import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, final

import zmq

from protocol.clock import Clock
from protocol.envelope import Port
from skulkd.cluster.zmq_sockets import (
    NOBLOCK,
    POLLIN,
    Context,
    Socket,
    SocketReader,
    endpoint,
    make_inbox,
    plain_host,
    readiness,
)
from skulkd.runtime.identity import KeyPair
from skulkd.runtime.tasks import sleep

PER_TURN: Final = 256
TURN_S: Final = 0.002
"""What one port may take of the loop before others have their turn."""
REST_S: Final[Mapping[Port, float]] = {"election": 0.1, "cluster": 0.0, "bulk": 0.0}
"""A hundred nodes' heartbeats come singly, two hundred a second, and a wake-up costs more than a
heartbeat. An election among so many may take some rests longer."""
_REBIND_S: Final = 0.01
"""Between two tries to have a port again that ZeroMQ is about to let go of."""
_LOOKS_EVERY: Final = 16
"""Frames between two looks at the clock."""

_log = logging.getLogger(__name__)


class Origin(Protocol):
    """Where a frame comes from, as ZeroMQ tells with it."""

    @property
    def connection(self) -> bytes:
        """Leads back to the connection."""
        ...

    @property
    def host(self) -> str:
        """The address at its other end."""
        ...

    @property
    def fd(self) -> int | None:
        """The descriptor of the connection; None when it is not told."""
        ...


@final
class _FrameOrigin:
    """Read from the frame only when somebody asks: that is once a connection."""

    def __init__(self, head: zmq.Frame) -> None:
        self._head = head

    @property
    def connection(self) -> bytes:
        return self._head.bytes

    @property
    def host(self) -> str:
        return plain_host(_property(self._head, "Peer-Address"))

    @property
    def fd(self) -> int | None:
        text = _property(self._head, "__fd")
        return int(text) if text.isdecimal() else None


OnFrame = Callable[[Port, str, bytes | memoryview, Origin, float], None]
"""Called with the port, the sender's user id, the frame, where it comes from, and the time."""


@final
class Inbox:
    """One port; bound on any number of this machine's addresses.

    Args:
        context: With a ZAP handler.
        port: Which.
        keys: This node's.
        clock: For the turns and the times of frames.
        on_frame: Gets every frame; what it raises is a bug, logged, and costs that frame alone.
    """

    def __init__(
        self, context: Context, port: Port, *, keys: KeyPair, clock: Clock, on_frame: OnFrame
    ) -> None:
        self._port: Port = port
        self._clock = clock
        self._on_frame = on_frame
        self._socket: Socket = make_inbox(context, port, keys)
        self._bound: set[str] = set()
        self._number = 0
        self._is_closed = False
        self._reader = SocketReader(self._socket, self._drain, rest_s=REST_S[port])

    def add(self, hosts: Sequence[str], number: int) -> tuple[str, ...]:
        """Listen on these addresses, too; returns those that are new, for `drop`.

        What was bound before stays so until `settle`: a port that was given up is not free at once,
        so there would be no way back.

        Raises:
            zmq.ZMQError: The port is taken on one of them, or the address is not ours; nothing has
                changed.
        """
        added: list[str] = []
        try:
            for new in sorted({endpoint(host, number) for host in hosts} - self._bound):
                self._socket.setsockopt(zmq.IPV6, int("[" in new))
                self._socket.bind(new)
                added.append(new)
        except zmq.ZMQError:
            self.drop(added)
            raise
        return tuple(added)

    def drop(self, added: Sequence[str]) -> None:
        """Take back what `add` returned."""
        for one in added:
            self._socket.unbind(one)

    def settle(self, hosts: Sequence[str], number: int) -> None:
        """Listen on no other addresses than those that were added; connections there are kept."""
        wanted = {endpoint(host, number) for host in hosts}
        for gone in self._bound - wanted:
            self._socket.unbind(gone)
        self._bound = wanted
        self._number = number

    async def rebind(self) -> None:
        """Cut every connection at once; who is admitted comes back."""
        for one in sorted(self._bound):
            self._socket.unbind(one)
        for one in sorted(self._bound):
            await self._bind_again(one)

    async def _bind_again(self, address: str) -> None:
        """Bind an address as soon as it is free."""
        while not self._is_closed:
            try:
                self._socket.bind(address)
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE:
                    raise
                await sleep(_REBIND_S)
            else:
                return

    def cut(self, fd: int, host: str) -> bool:
        """Cut one connection, and no other.

        The descriptor belongs to ZeroMQ, which may have closed it by now, and its number may have
        gone to something else: so what it names is looked at first, on a duplicate.

        Returns:
            False when it is no connection from `host` to this port any more.
        """
        try:
            with socket.socket(fileno=os.dup(fd)) as connection:
                is_it = (
                    connection.getsockname()[1] == self._number
                    and plain_host(str(connection.getpeername()[0])) == host
                )
                if is_it:
                    connection.shutdown(socket.SHUT_RDWR)
                return is_it
        except OSError:
            return False

    def reply(self, connection: bytes, payload: bytes) -> bool:
        """Answer on a connection that a frame came over; False when it is gone or will not take."""
        if self._is_closed:
            return False
        try:
            self._socket.send_multipart([connection, payload], NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def close(self) -> None:
        """Listen and read no more."""
        if not self._is_closed:
            self._is_closed = True
            self._reader.close()
            self._socket.close(0)

    def _drain(self) -> bool:
        now_s = self._clock.monotonic_s()
        until_s = now_s + TURN_S
        for number in range(PER_TURN):
            if not number % _LOOKS_EVERY and number:
                now_s = self._clock.monotonic_s()
                if now_s > until_s:
                    break
            try:
                head = self._socket.recv(NOBLOCK, copy=False)
            except zmq.Again:
                return False
            self._take(head, now_s)
            if self._is_closed:
                return False
            # Most frames come alone, and to ask is cheaper than to be told by an exception; where
            # there are several, one exception is cheaper than asking after each.
            if not number and not readiness(self._socket) & POLLIN:
                return False
        return True

    def _take(self, head: zmq.Frame, now_s: float) -> None:
        body = self._socket.recv(NOBLOCK, copy=False)
        frame: bytes | memoryview = body.buffer
        if body.more:
            self._skip_rest()
            frame = b""  # nobody sends messages of several frames: it counts as none at all
        user_id = _property(head, "User-Id")
        try:
            self._on_frame(self._port, user_id, frame, _FrameOrigin(head), now_s)
        # ruff: ignore[blind-except]  one frame's bug must not end the reading of all
        except Exception:
            _log.exception("a frame from %s on the %s port was lost to a bug", user_id, self._port)

    def _skip_rest(self) -> None:
        while self._socket.recv(NOBLOCK, copy=False).more:
            pass


def _property(frame: zmq.Frame, name: str) -> str:
    try:
        value = frame.get(name)
    except (zmq.ZMQError, UnicodeDecodeError):
        return ""
    return value if isinstance(value, str) else ""
