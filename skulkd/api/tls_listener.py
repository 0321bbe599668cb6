"""A listener for both: TLS for everybody, plain HTTP for this machine alone.

The first byte of a connection says which it is, and is left in the socket for whoever reads on.
Programs on this machine keep their `http://127.0.0.1`: no certificate is made out to that name, and
nothing of it crosses a network. Who speaks plainly from elsewhere is told where TLS is.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Final, final

from skulkd.api.auth import is_loopback
from skulkd.api.certificate import ServedCertificate
from skulkd.api.connection import ConnectionLimits, GuardedHttp
from skulkd.runtime.tasks import Tasks

_log = logging.getLogger(__name__)

_HANDSHAKE: Final = b"\x16"
"""The first byte of TLS: a record that holds a handshake (RFC 8446, section 5.1)."""
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE_S: Final = 1.0
_MAX_ACCEPTED: Final = 64
"""In one turn of the loop; the rest comes in the next."""


@final
class TlsListener:
    """Takes connections on one socket; none is handed on before its first byte has come.

    Args:
        listener: Bound and listening, not blocking; closed with this.
        certificate: What is shown.
        connect: Makes the protocol of a connection.
        refuse: Makes that of one that speaks plainly and must not.
        n_open: How many connections the node has open.
        limits: Of connections and of their first bytes.
        tasks: For the handshakes.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        certificate: ServedCertificate,
        connect: Callable[[], GuardedHttp],
        refuse: Callable[[], GuardedHttp],
        n_open: Callable[[], int],
        limits: ConnectionLimits,
        tasks: Tasks,
    ) -> None:
        self._listener = listener
        self._certificate = certificate
        self._connect = connect
        self._refuse = refuse
        self._n_open = n_open
        self._limits = limits
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        """Those that have said nothing yet, with when they are given up."""
        self._arriving: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._loop.add_reader(listener, self._on_connections)

    def close(self) -> None:
        """Take no new connection, and drop those that have not come in; the others go on."""
        if self._listener.fileno() < 0:
            return
        self._loop.remove_reader(self._listener)
        self._listener.close()
        if self._pause is not None:
            self._pause.cancel()
        for connection in list(self._silent):
            self._drop(connection)
        for task in self._arriving:
            task.cancel()

    # ---- Arrivals ----

    def _on_connections(self) -> None:
        for _ in range(_MAX_ACCEPTED):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                _log.error("no connection can be taken: %s", error.strerror)
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(_PAUSE_S, self._go_on)
                return
            self._greet(connection, address[0])

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._on_connections)

    def _greet(self, connection: socket.socket, peer: str) -> None:
        limit = self._limits.max_connections
        if not is_loopback(peer):
            limit -= self._limits.kept_for_loopback
        if self._n_open() + len(self._silent) + len(self._arriving) >= limit:
            connection.close()  # in the clear it would be no answer to who speaks TLS
            return
        connection.settimeout(0)
        # asyncio does this to what it has accepted itself only.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._silent[connection] = self._loop.call_later(
            self._limits.header_s, self._drop, connection
        )
        self._loop.add_reader(connection, self._on_first_byte, connection, peer)

    def _on_first_byte(self, connection: socket.socket, peer: str) -> None:
        try:
            first = connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self._drop(connection)
            return
        self._forget(connection)
        arrival = self._arrive(connection, peer, is_tls=first == _HANDSHAKE)
        task = self._tasks.start(arrival, name="take a connection", essential=False)
        self._arriving.add(task)

        def on_done(done: asyncio.Task[None]) -> None:
            self._arriving.discard(done)
            if done.cancelled() or done.exception() is not None:
                connection.close()

        task.add_done_callback(on_done)

    async def _arrive(self, connection: socket.socket, peer: str, *, is_tls: bool) -> None:
        """Hand a connection to the loop, which owns and closes it from then on."""
        try:
            if is_tls:
                await self._shake_hands(connection)
            else:
                protocol = self._connect if is_loopback(peer) else self._refuse
                await self._loop.connect_accepted_socket(protocol, connection)
        except OSError as error:  # also TLS that failed or came too late: any stranger can do that
            connection.close()
            _log.debug("a connection from %s did not come to be: %s", peer, error)

    async def _shake_hands(self, connection: socket.socket) -> None:
        context = await self._certificate.context()
        await self._loop.connect_accepted_socket(
            self._connect, connection, ssl=context, ssl_handshake_timeout=self._limits.header_s
        )

    def _drop(self, connection: socket.socket) -> None:
        self._forget(connection)
        connection.close()

    def _forget(self, connection: socket.socket) -> None:
        self._silent.pop(connection).cancel()
        self._loop.remove_reader(connection)
