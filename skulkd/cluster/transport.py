"""How nodes exchange payloads: planes, limits, and the interface with two implementations.

A payload is bytes to the transport, and its sender is known from the connection's key, never from
the payload. Sending never blocks and never waits: it is taken, or refused with the reason.
What a plane does when it is full belongs to the plane:

    election, telemetry   a newer payload of the same `key` replaces the queued one
    control, events, data, files   the payload is refused with `queue_full`
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from protocol.envelope import Plane
from protocol.ids import NodeId

Refusal = Literal["unknown_peer", "no_link", "too_large", "queue_full", "closed"]
"""Why a payload was not taken: nobody of that id is named; the way to it is not open now; and so
on. Nothing is kept for a peer until it comes back: it would act on a wish of long ago."""

LinkState = Literal["connecting", "up", "silent", "refused", "incompatible"]
"""How the way to a peer is: never open so far, or not admitted there; open; broken without a word;
nobody listens there any more (its process has ended); it speaks another wire version."""

OnReceive = Callable[[NodeId, bytes], None]
"""Called on the event loop with the sender and the payload; must not block or raise."""


OnLink = Callable[[NodeId, LinkState], None]
"""Called on the event loop when a link changes; must not block or raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Whom to dial and to admit."""

    node_id: NodeId
    public_key: bytes
    """32 bytes; `node_id` follows from it."""
    addresses: tuple[str, ...] = ()
    """`HOST:BASE`, best first; its three ports are BASE, BASE+1 and BASE+2. A peer without an
    address is admitted and not dialled: it is answered once it has dialled us."""


class Transport(Protocol):
    """One node's connection to its peers.

    Between two nodes and within one plane payloads arrive in the order in which they were sent.
    One that was taken may still be lost, with all behind it, when the connection breaks.
    """

    @property
    def node_id(self) -> NodeId:
        """This node."""
        ...

    def peers(self) -> tuple[NodeId, ...]:
        """Name the nodes that payloads can be sent to now: those whose link is up, sorted."""
        ...

    def link(self, peer: NodeId) -> LinkState:
        """Say how the way to a peer is, over all ports; `connecting` for one never heard of."""
        ...

    def set_peers(self, peers: Mapping[NodeId, Peer]) -> None:
        """Dial and admit exactly these from now on, in place of those named before.

        One that is no longer named is sent nothing more, nothing of it is delivered any more, and
        its connections are cut within 5 s. Links of peers that stay are not disturbed.
        """
        ...

    def send(
        self, peer: NodeId, plane: Plane, payload: bytes, *, key: str | None = None
    ) -> Refusal | None:
        """Hand a payload over, or say why it was not taken.

        A payload to this node itself takes no network and is never lost.

        Args:
            peer: For whom.
            plane: Which queue.
            payload: At most `MAX_PAYLOAD_BYTES[plane]`.
            key: A queued payload of the same plane, peer and key is superseded by this one.
        """
        ...

    def on_receive(self, plane: Plane, receiver: OnReceive) -> None:
        """Name who gets a plane's payloads; one receiver a plane, the last one named.

        Payloads of a plane without a receiver are dropped.
        """
        ...

    def on_link(self, watcher: OnLink) -> None:
        """Add one who is told whenever a link changes."""
        ...

    async def wait_room(self, peer: NodeId, plane: Plane) -> None:
        """Wait until a payload of the largest size would be taken; returns when the peer is gone.

        For producers that pause rather than fail (data, files).
        """
        ...

    async def close(self) -> None:
        """Take and deliver nothing more; idempotent."""
        ...


class ClusterPorts(Protocol):
    """The three ports of a node: closed at first, and open once it has a reason to be."""

    @property
    def base_port(self) -> int | None:
        """The first of the three ports; None while they are closed."""
        ...

    async def open(self, hosts: Sequence[str], base_port: int) -> int:
        """Listen on three ports in a row on each of the addresses; also anew on other addresses.

        Args:
            hosts: IP addresses of this machine.
            base_port: The first; 0 picks three that are free.

        Returns:
            The first port.

        Raises:
            ConfigError: `config.port_busy`, naming the port and who holds it; `config.invalid`, an
                address is not this machine's. What was open before still is.
        """
        ...

    async def close_ports(self) -> None:
        """Listen nowhere, and dial nobody until opened again; idempotent."""
        ...
