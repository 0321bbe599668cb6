"""A guest that dials a member with a one-time key, asks once, and hangs up."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final, final

import zmq

from skulkd.cluster.addresses import split_address
from skulkd.cluster.guests import MAX_GUEST_BYTES, join_failed
from skulkd.cluster.lanes import LANES, port_number
from skulkd.cluster.probe import probe
from skulkd.cluster.zmq_sockets import (
    HANDSHAKE_S,
    NOBLOCK,
    POLLOUT,
    Dial,
    LinkEvent,
    Monitor,
    Socket,
    SocketReader,
    descriptor,
    endpoint,
    make_context,
    make_outbox,
    readiness,
)
from skulkd.runtime.identity import KeyPair
from skulkd.runtime.tasks import run_blocking, timeout

TERM_S: Final = 3.0


@final
class ZmqGuestDialler:
    """Implements `GuestDialler`; each call has sockets of its own and leaves none behind."""

    async def ask(
        self,
        address: str,
        *,
        server_key: bytes,
        guest: KeyPair,
        payload: bytes,
        timeout_s: float,
    ) -> bytes:
        """Dial `HOST:BASE` as a guest, send one payload, and give the answer.

        Raises:
            ClusterError: `cluster.join_failed`.
            ValueError: The address is none, or the payload is too long.
        """
        if len(payload) > MAX_GUEST_BYTES:
            message = f"a guest says at most {MAX_GUEST_BYTES} bytes, not {len(payload)}"
            raise ValueError(message)
        host, base_port = split_address(address)
        port = port_number(base_port, "election")
        until_s = asyncio.get_running_loop().time() + timeout_s
        found = await probe(host, port, timeout_s)
        if found.outcome == "refused":
            raise join_failed("nobody_listens", host, port)
        if found.outcome != "open":
            raise join_failed("no_route", host, port, reason=found.reason)
        dial = Dial(host=found.ip, port=port, server_key=server_key, keys=guest)
        async with _call(dial) as call:
            await call.shake_hands(host, until_s)
            return await call.ask(payload, host, until_s)


@final
class _Call:
    """One connection of a guest's."""

    def __init__(self, socket: Socket, dial: Dial) -> None:
        self._socket = socket
        self._dial = dial
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[LinkEvent] = loop.create_future()
        self._answered: asyncio.Future[bytes | None] = loop.create_future()
        self._reader: SocketReader | None = None

    def on_event(self, event: LinkEvent) -> None:
        """Take over what becomes of the connection."""
        if not self._opened.done():
            self._opened.set_result(event)
        elif event != "open" and not self._answered.done():
            self._answered.set_result(None)

    def close(self) -> None:
        """Read no more."""
        if self._reader is not None:
            self._reader.close()

    def _read(self) -> bool:
        while True:
            try:
                frame = self._socket.recv(NOBLOCK)
            except zmq.Again:
                return False
            if not self._answered.done():
                self._answered.set_result(frame)

    async def shake_hands(self, host: str, until_s: float) -> None:
        """Wait for the handshake.

        Raises:
            ClusterError: `cluster.join_failed`.
        """
        limit_s = until_s - asyncio.get_running_loop().time()
        try:
            async with timeout(min(limit_s, HANDSHAKE_S + 1)):
                event = await self._opened
        except TimeoutError as error:
            raise join_failed("no_answer", host, self._dial.port) from error
        if event == "denied":
            raise join_failed("key_refused", host, self._dial.port)
        if event == "not_the_server":
            raise join_failed("not_the_server", host, self._dial.port)
        if event != "open":
            raise join_failed("no_answer", host, self._dial.port)

    async def ask(self, payload: bytes, host: str, until_s: float) -> bytes:
        """Send, and wait for the answer.

        Raises:
            ClusterError: `cluster.join_failed`.
        """
        try:
            async with timeout(until_s - asyncio.get_running_loop().time()):
                await self._send(payload)
                self._reader = SocketReader(self._socket, self._read)
                answer = await self._answered
        except TimeoutError as error:
            raise join_failed("no_answer", host, self._dial.port) from error
        if answer is None:
            reason = "it hung up"
            raise join_failed("no_answer", host, self._dial.port, reason=reason)
        return answer

    async def _send(self, payload: bytes) -> None:
        """Send once the socket has taken note of the handshake: a moment after its I/O thread."""
        loop = asyncio.get_running_loop()
        while not readiness(self._socket) & POLLOUT:
            happened = asyncio.Event()
            fd = descriptor(self._socket)
            loop.add_reader(fd, happened.set)
            try:
                # Asked again: what happened before the descriptor was watched is not told.
                if readiness(self._socket) & POLLOUT:
                    break
                await happened.wait()
            finally:
                loop.remove_reader(fd)
        self._socket.send(payload, NOBLOCK)


@contextlib.asynccontextmanager
async def _call(dial: Dial) -> AsyncGenerator[_Call]:
    context = make_context()
    socket = make_outbox(context, dial, LANES["election"])
    call = _Call(socket, dial)
    monitor = Monitor(context, socket, "guest", call.on_event)
    try:
        socket.connect(endpoint(dial.host, dial.port))
        yield call
    finally:
        call.close()
        monitor.close()
        socket.close(0)
        async with timeout(TERM_S):
            await run_blocking(context.term)
