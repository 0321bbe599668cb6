"""A virtual loop with listeners: what is served on it is dialled through memory, without a socket.

Servers and clients run unchanged. A connection hands its bytes over in the turn after they were
written, whole and in order, and is as slow as its reader: what a paused reader has not taken makes
the writer's protocol pause at 64 KiB.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final, final

from skulkd.runtime.virtual_time import VirtualLoop

_HIGH_BYTES: Final = 64 * 1024
_BEHIND_THE_END: Final = "Cannot call write() after write_eof()"
Factory = Callable[[], asyncio.BaseProtocol]


@final
class MemoryLoop(VirtualLoop):
    """The loop; arguments as for `VirtualLoop`."""

    def __init__(self, *, seed: int | None = None, limit_s: float | None = None) -> None:
        super().__init__(seed=seed, limit_s=limit_s)
        self._listeners: dict[str | int, Factory] = {}
        """By the path of a socket, or by the port."""

    def dial(self, where: str | int, protocol: asyncio.BaseProtocol) -> "MemoryTransport":
        """Connect to a listener.

        Raises:
            ConnectionRefusedError: There is none.
        """
        factory = self._listeners.get(where)
        if factory is None:
            raise ConnectionRefusedError(where)
        return join(self, protocol, factory())

    def forget(self, where: str | int) -> None:
        """Take no further connections there."""
        self._listeners.pop(where, None)

    async def create_unix_server(  # type: ignore[override]
        self, protocol_factory: Factory, path: str
    ) -> "_Listening":
        """Listen at a path, which no file needs to be at."""
        self._listeners[path] = protocol_factory
        return _Listening(self, path, None)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Factory, *, sock: socket.socket, backlog: int
    ) -> "_Listening":
        """Listen at the port of a socket; those who dial the socket itself are not taken."""
        del backlog
        port: int = sock.getsockname()[1]
        self._listeners[port] = protocol_factory
        return _Listening(self, port, sock)

    async def create_unix_connection(  # type: ignore[override]
        self, protocol_factory: Factory, path: str
    ) -> "tuple[MemoryTransport, asyncio.BaseProtocol]":
        """Connect to a path."""
        protocol = protocol_factory()
        return self.dial(path, protocol), protocol


def join(
    loop: asyncio.AbstractEventLoop, here: asyncio.BaseProtocol, there: asyncio.BaseProtocol
) -> "MemoryTransport":
    """Connect two protocols; gives the transport of the first."""
    mine = MemoryTransport(loop, here, ("127.0.0.1", 40_000), ("127.0.0.1", 52_415))
    theirs = MemoryTransport(loop, there, ("127.0.0.1", 52_415), ("127.0.0.1", 40_000))
    mine.peer, theirs.peer = theirs, mine
    there.connection_made(theirs)
    here.connection_made(mine)
    return mine


@final
class MemoryTransport(asyncio.Transport):
    """One end of a connection.

    Args:
        loop: Delivers what is written.
        protocol: Gets it.
        own: Address of this end.
        other: Address of the other.
    """

    peer: "MemoryTransport"

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.BaseProtocol,
        own: tuple[str, int],
        other: tuple[str, int],
    ) -> None:
        super().__init__({"sockname": own, "peername": other})
        self._loop = loop
        self._protocol = protocol
        self._arrived: list[bytes] = []
        self._n_arrived = 0
        self._is_due = False
        self._is_paused = False
        self._holds_peer = False
        self._is_closing = False
        self._has_written_end = False
        self._is_lost = False
        self._is_ended_by_peer = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send.

        Raises:
            RuntimeError: The end was written already.
        """
        if self._has_written_end:
            raise RuntimeError(_BEHIND_THE_END)
        if data and not self._is_closing:
            self.peer.take(bytes(data))

    def write_eof(self) -> None:
        """Send no more, and go on reading."""
        if not self._is_closing:
            self._has_written_end = True
            self.peer.end_reading()

    def can_write_eof(self) -> bool:
        """Ends can be closed one by one."""
        return True

    def close(self) -> None:
        """Close once what was written is delivered."""
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self._lose)
            self.peer.end_reading()

    def abort(self) -> None:
        """Close, and drop what the other end has not taken."""
        self._is_closing = True
        self.peer.drop_arrived()
        self._loop.call_soon(self._lose)
        self._loop.call_soon(self.peer.lose)

    def is_closing(self) -> bool:
        """Whether it ends."""
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        """Count what the other end has not taken."""
        return self.peer._n_arrived

    def pause_reading(self) -> None:
        """Take nothing for now."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Take what has come."""
        self._is_paused = False
        self._plan()

    def is_reading(self) -> bool:
        """Whether it takes what comes."""
        return not self._is_paused

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Have another protocol take what comes."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Say who takes what comes."""
        return self._protocol

    # ---- What the other end does ----

    def take(self, data: bytes) -> None:
        """Take what was written there."""
        if self._is_lost:
            return
        self._arrived.append(data)
        self._n_arrived += len(data)
        if self._n_arrived > _HIGH_BYTES and not self._holds_peer:
            self._holds_peer = True
            self.peer.hold(is_held=True)
        self._plan()

    def end_reading(self) -> None:
        """Take that nothing more comes."""
        self._is_ended_by_peer = True
        self._plan()

    def hold(self, *, is_held: bool) -> None:
        """Tell the protocol whether to write on."""
        if not self._is_lost:
            (self._protocol.pause_writing if is_held else self._protocol.resume_writing)()

    def drop_arrived(self) -> None:
        """Forget what has not been taken."""
        self._arrived.clear()
        self._n_arrived = 0

    def lose(self) -> None:
        """End, as the other end has cut the connection."""
        self._is_closing = True
        self._lose()

    def _plan(self) -> None:
        if not self._is_due and not self._is_paused and not self._is_lost:
            self._is_due = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._is_due = False
        protocol: Any = self._protocol
        while self._arrived and not self._is_paused and not self._is_lost:
            data = self._arrived.pop(0)
            self._n_arrived -= len(data)
            protocol.data_received(data)
            protocol = self._protocol
        if self._holds_peer and self._n_arrived <= _HIGH_BYTES // 4:
            self._holds_peer = False
            self.peer.hold(is_held=False)
        if self._is_ended_by_peer and not self._arrived and not self._is_lost:
            self._is_ended_by_peer = False
            if not protocol.eof_received():
                self.close()

    def _lose(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self.drop_arrived()
            self._protocol.connection_lost(None)


@final
class _Listening:
    """A listener, as far as servers use one."""

    def __init__(self, loop: MemoryLoop, where: str | int, sock: socket.socket | None) -> None:
        self._loop = loop
        self._where = where
        self._socket = sock

    def close(self) -> None:
        """Listen no more."""
        self._loop.forget(self._where)
        if self._socket is not None:
            self._socket.close()
