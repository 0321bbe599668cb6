"""ZeroMQ sockets as every connection between nodes needs them, and reading them on the loop.

Nothing here blocks. A socket is read through its descriptor: that is 12 times cheaper than a future
a message (docs/decisions/0009), and it asks for one care. The descriptor tells only that something
has happened; whether there is more to read must be asked after each reading.
"""

import asyncio
import contextlib
import resource
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, cast, final

import zmq
from zmq.utils import z85

from protocol.envelope import PORTS, Port
from skulkd.cluster.lanes import INBOX_AHEAD, MAX_FRAME_BYTES, LaneRules
from skulkd.runtime.identity import KeyPair

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]

HANDSHAKE_S: Final = 3.0
"""A connection that has not proved its key by then is cut."""
_SLACK_S: Final = 0.5
SILENCE_S: Final = 4.5
"""Without an answer for so long after a heartbeat of ZeroMQ's, a connection is over."""
KEEPALIVE_IDLE_S: Final = 5
KEEPALIVE_EVERY_S: Final = 2
KEEPALIVE_PROBES: Final = 3
"""After so long without a byte the kernel asks the other host, this often and so many times; a
connection is over after 11 s in which nothing came back."""
UNACKNOWLEDGED_S: Final = 10.0
"""A connection is over when what was sent is not acknowledged for so long (on Linux)."""
BACKLOG: Final = 512
MAX_SOCKETS: Final = 8192
"""In one context. A peer costs three: the outbox, its monitor, and the monitor's other end."""
WANTED_DESCRIPTORS: Final = 65536
RESTS_AFTER: Final = 8
"""Turns of a reader that may follow each other: more than an election among a few nodes takes."""
TURNS_PER_S: Final = 4.0
"""Turns that a reader may have for long: what two peers' heartbeats take."""
CURVE_BYTES: Final = 64
"""What encryption adds to a frame, at most: the command's name, flags, nonce and seal. ZeroMQ
measures a frame before it has decrypted it."""
_MONITOR_EVENT: Final = struct.Struct("=HI")
_WATCHED: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
)

NOBLOCK: Final = int(zmq.NOBLOCK)
POLLIN: Final = int(zmq.POLLIN)
POLLOUT: Final = int(zmq.POLLOUT)
"""As plain numbers: combining members of an enum costs as much as receiving a message."""

LinkEvent = Literal["open", "denied", "not_the_server", "mute", "unreachable", "broken"]
"""What becomes of a dialled connection: the handshake succeeded; the other end refused our key; it
does not have the key that we expect; it says nothing; there was no connection; it is over."""


def zap_domain(port: Port) -> bytes:
    """Name what a key is shown to; one domain a port."""
    return f"skulk.{port}".encode()


def make_context() -> Context:
    """Make a context with one I/O thread, for one port."""
    context: Context = zmq.Context(io_threads=1)
    context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
    return context


def make_contexts() -> dict[Port, Context]:
    """Make one for each port, so that no port's traffic waits for another's."""
    _raise_descriptor_limit()
    return {port: make_context() for port in PORTS}


def make_inbox(context: Context, port: Port, keys: KeyPair) -> Socket:
    """Make the socket that peers dial, not bound yet; its context must have a ZAP handler."""
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    _set_keys(socket, keys)
    socket.setsockopt(zmq.ZAP_DOMAIN, zap_domain(port))
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES[port] + CURVE_BYTES)
    socket.setsockopt(zmq.RCVHWM, INBOX_AHEAD[port])
    socket.setsockopt(zmq.SNDHWM, INBOX_AHEAD[port])
    socket.setsockopt(zmq.BACKLOG, BACKLOG)
    socket.setsockopt(zmq.HANDSHAKE_IVL, round(HANDSHAKE_S * 1000))
    _keep_alive(socket)
    return socket


@dataclass(frozen=True, slots=True, kw_only=True)
class Dial:
    """Whom to dial, and as whom."""

    host: str
    """An IP address."""
    port: int
    server_key: bytes
    keys: KeyPair


def make_outbox(context: Context, dial: Dial, rules: LaneRules) -> Socket:
    """Make a socket for one connection, not connected yet; when that ends, the socket is used up.

    It queues nothing before it is connected and never connects anew by itself: what waits for a
    peer waits in our own queues, and whether to dial again is decided with what a probe says.
    """
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.CURVE_SERVERKEY, z85.encode(dial.server_key))
    _set_keys(socket, dial.keys)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.RECONNECT_IVL, -1)
    socket.setsockopt(zmq.IPV6, int(":" in dial.host))
    socket.setsockopt(zmq.SNDHWM, rules.n_ahead)
    socket.setsockopt(zmq.RCVHWM, INBOX_AHEAD[rules.port])
    # Nothing comes back but the answer to a guest.
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES["election"] + CURVE_BYTES)
    socket.setsockopt(zmq.HANDSHAKE_IVL, round(HANDSHAKE_S * 1000))
    socket.setsockopt(zmq.CONNECT_TIMEOUT, round(HANDSHAKE_S * 1000))
    if rules.heartbeat_s is not None:
        socket.setsockopt(zmq.HEARTBEAT_IVL, round(rules.heartbeat_s * 1000))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(SILENCE_S * 1000))
        # The other end, which does not ask for itself, forgets us when it hears nothing so long.
        socket.setsockopt(zmq.HEARTBEAT_TTL, round((rules.heartbeat_s + SILENCE_S) * 1000))
    _keep_alive(socket)
    return socket


def endpoint(host: str, port: int) -> str:
    """Write an address as ZeroMQ reads it."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def plain_host(address: str) -> str:
    """Give an IPv4 address as such when it comes dressed as an IPv6 one."""
    return address.removeprefix("::ffff:") if "." in address else address


def descriptor(socket: Socket) -> int:
    """Give the descriptor that becomes readable when something has happened to a socket."""
    return cast("int", socket.getsockopt(zmq.FD))


def readiness(socket: Socket) -> int:
    """Say whether a socket can be read (`POLLIN`) and written (`POLLOUT`) now."""
    return cast("int", socket.getsockopt(zmq.EVENTS))


def _keep_alive(socket: Socket) -> None:
    """Have the kernel find that a connection is dead, which wakes nobody while it is not."""
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, round(KEEPALIVE_IDLE_S))
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, round(KEEPALIVE_EVERY_S))
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, KEEPALIVE_PROBES)
    socket.setsockopt(zmq.TCP_MAXRT, round(UNACKNOWLEDGED_S * 1000))


def _set_keys(socket: Socket, keys: KeyPair) -> None:
    socket.setsockopt(zmq.CURVE_PUBLICKEY, z85.encode(keys.public_key))
    socket.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(keys.secret_key))


def _raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as it may have: a hundred peers need 1,200."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS has a lower limit that it hides
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@final
class SocketReader:
    """Calls on the loop as long as a socket has something to read.

    Args:
        socket: Whose descriptor is watched; used on the loop's thread alone.
        drain: Reads, without waiting, as much as may be read in one turn; says False once it has
            found the socket empty, and True when there may be more.
        rest_s: Between two turns, once there have been many of late: what comes often is read
            together, and a few frames are read at once.
    """

    def __init__(self, socket: Socket, drain: Callable[[], bool], *, rest_s: float = 0.0) -> None:
        self._drain = drain
        self._rest_s = rest_s
        self._loop = asyncio.get_running_loop()
        self._fd = descriptor(socket)
        self._is_closed = False
        self._earned_s = self._loop.time()
        self._n_free = float(RESTS_AFTER)
        """Turns that may come at any time."""
        self._resting: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._fd, self._turn)
        self._loop.call_soon(self._turn)

    def close(self) -> None:
        """Watch no more; before the socket is closed."""
        if not self._is_closed:
            self._is_closed = True
            if self._resting is None:
                self._loop.remove_reader(self._fd)
            else:
                self._resting.cancel()

    def _turn(self) -> None:
        if self._is_closed or self._resting is not None:
            return
        has_more = self._drain()
        # A socket closed by what it said must not be asked.
        if self._is_closed:
            return
        if has_more:
            self._loop.call_soon(self._turn)
        elif self._rest_s and not self._has_free_turn():
            self._loop.remove_reader(self._fd)
            self._resting = self._loop.call_later(self._rest_s, self._wake)

    def _has_free_turn(self) -> bool:
        """Use up a turn: a wake-up costs more than a frame, so those that come often are dear."""
        now_s = self._loop.time()
        earned = (now_s - self._earned_s) * TURNS_PER_S
        self._earned_s = now_s
        self._n_free = min(RESTS_AFTER, self._n_free + earned)
        if self._n_free < 1:
            return False
        self._n_free -= 1
        return True

    def _wake(self) -> None:
        """Read what has come meanwhile; that turn is free."""
        self._resting = None
        self._loop.add_reader(self._fd, self._turn)
        if self._drain() and not self._is_closed:
            self._loop.call_soon(self._turn)


@final
class Monitor:
    """Tells what becomes of a socket's connection.

    Args:
        context: The socket's.
        socket: Not connected yet.
        name: For the monitor's endpoint; unique in the context.
        tell: Called on the loop.
    """

    def __init__(
        self, context: Context, socket: Socket, name: str, tell: Callable[[LinkEvent], None]
    ) -> None:
        self._watched = socket
        self._tell = tell
        self._mute_from_s = asyncio.get_running_loop().time() + HANDSHAKE_S - _SLACK_S
        address = f"inproc://monitor.{name}"
        socket.monitor(address, _WATCHED)
        self._socket = context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(address)
        self._reader = SocketReader(self._socket, self._read)
        self._is_closed = False

    def close(self) -> None:
        """End it; before its socket is closed."""
        if not self._is_closed:
            self._is_closed = True
            self._reader.close()
            self._watched.disable_monitor()
            self._socket.close(0)

    def _read(self) -> bool:
        while not self._is_closed:
            try:
                head = self._socket.recv(NOBLOCK)
            except zmq.Again:
                break
            self._socket.recv(NOBLOCK)  # the endpoint
            number, _ = _MONITOR_EVENT.unpack(head)
            self._tell(self._meaning(number))
        return False

    def _meaning(self, number: int) -> LinkEvent:
        event = _MEANING.get(number, "broken")
        # ZeroMQ tells a handshake that was broken off as it tells one that has never begun.
        is_late = asyncio.get_running_loop().time() >= self._mute_from_s
        return "mute" if event == "not_the_server" and is_late else event


_MEANING: Final[dict[int, LinkEvent]] = {
    zmq.EVENT_HANDSHAKE_SUCCEEDED.value: "open",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH.value: "denied",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL.value: "not_the_server",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL.value: "not_the_server",
    zmq.EVENT_CLOSED.value: "unreachable",
}
