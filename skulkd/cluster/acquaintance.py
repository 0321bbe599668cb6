"""What a peer has told of itself: checked, and remembered between its hellos."""

from collections import OrderedDict
from typing import Final, NamedTuple, final

from protocol.envelope import Port
from protocol.hello import Hello, OtherWire, read_hello
from protocol.ids import NodeId
from skulkd.cluster.addresses import join_address
from skulkd.cluster.boot_watch import BootWatch
from skulkd.cluster.link_views import Duplicate

_MAX_CONNECTIONS: Final = 16


class Connection(NamedTuple):
    """One that the peer has made to this node."""

    port: Port
    fd: int | None
    host: str


class _Agreed(NamedTuple):
    """A hello that led to an exchange, and what it said."""

    data: bytes
    own: Hello
    boot_id: str
    address: str


@final
class Acquaintance:
    """One peer, by its hellos."""

    def __init__(self, node_id: NodeId) -> None:
        self._node_id = node_id
        self._boots = BootWatch(node_id)
        self._connections: OrderedDict[tuple[Port, bytes], Connection] = OrderedDict()
        self._last: tuple[bytes, Hello | OtherWire] | None = None
        """Its newest hello, as bytes and as read."""
        self._agreed: _Agreed | None = None
        """Its newest hello, if nothing is wrong with it."""
        self.build: str | None = None
        self.boot_id: str | None = None
        self.host: str | None = None
        """Where its newest hello came from."""
        self.address: str | None = None
        """Where it says that it listens, at the host that it dials from."""

    def meet(self, key: tuple[Port, bytes], connection: Connection) -> bool:
        """Remember a connection of the peer's; True when it is new."""
        is_new = key not in self._connections
        self._connections[key] = connection
        self._connections.move_to_end(key)
        if len(self._connections) > _MAX_CONNECTIONS:
            self._connections.popitem(last=False)
        self.host = connection.host
        return is_new

    def connections(self) -> tuple[Connection, ...]:
        """Give the newest connections, some of which may be gone."""
        return tuple(self._connections.values())

    def is_repeated(
        self, key: tuple[Port, bytes], data: bytes, own: Hello, *, now_s: float
    ) -> bool:
        """Note a hello that says what the last one said, where it is one; most are.

        Args:
            key: The connection that it came over.
            data: As it came.
            own: This node's; the last one was well with the same object.
            now_s: When it came.
        """
        connection, agreed = self._connections.get(key), self._agreed
        if connection is None or agreed is None or connection.host != self.host:
            return False
        if agreed.own is not own or agreed.data != data:
            return False
        self._connections.move_to_end(key)
        self._boots.note(agreed.boot_id, agreed.address, now_s=now_s)
        return True

    def read(self, data: bytes) -> Hello | OtherWire:
        """Read a hello; one that repeats the last one is known.

        Raises:
            ProtocolError: `protocol.bad_frame`, `protocol.too_large`.
        """
        if self._last is None or self._last[0] != data:
            self._last = data, read_hello(data)
        return self._last[1]

    def hear(self, hello: Hello | OtherWire, own: Hello, *, now_s: float) -> str:
        """Take over a hello; returns why nothing can be exchanged with who says so, or nothing."""
        self.build = hello.build
        self._agreed = None
        if isinstance(hello, OtherWire):
            return (
                f"it speaks wire version {hello.wire} (build {hello.build}), and this node "
                f"{own.wire} (build {own.build}): run the same build on both"
            )
        if hello.node_id != self._node_id:
            return f"it has the key of {self._node_id} and calls itself {hello.node_id}"
        if hello.cluster_id != own.cluster_id:
            return (
                f"it belongs to cluster {hello.cluster_id}, and this node to {own.cluster_id}: "
                "let one of them join again"
            )
        self.boot_id = hello.boot_id
        if self.host is not None:
            self.address = join_address(self.host, hello.base_port)
            self._boots.note(hello.boot_id, self.address, now_s=now_s)
            if self._last is not None and self._last[1] is hello:
                self._agreed = _Agreed(self._last[0], own, hello.boot_id, self.address)
        return ""

    def duplicate(self, now_s: float) -> Duplicate | None:
        """Name two processes on the peer's key."""
        return self._boots.duplicate(now_s)
