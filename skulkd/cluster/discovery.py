"""Who else is on this network: the interface of discovery, with two implementations.

What is heard is a hint from strangers. It is bounded, checked for form, and good for one thing: to
dial an address of a direct neighbour with the public key that was heard; only the key's owner can
answer. Discovery may fail in any way and at any time; a node then goes on without it.

`MdnsDiscovery` (skulkd/cluster/mdns_discovery.py) is the real one, `SimulatedDiscovery` its twin in
virtual time.
"""

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from protocol.envelope import WIRE_VERSION
from protocol.ids import ClusterId, NodeId
from skulkd.cluster.addresses import InterfaceAddress

HASH_LETTERS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What a node tells its neighbours. Nothing in it is secret, and nothing names its machine."""

    node_id: NodeId
    public_key: bytes
    cluster_hash: str
    """`cluster_hash_of` its cluster, so that members know one another and others learn no id."""
    base_port: int
    wire: int = WIRE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A neighbour, as it says it is."""

    node_id: NodeId
    """Invariant: follows from `public_key`."""
    public_key: bytes
    cluster_hash: str
    addresses: tuple[str, ...]
    """`HOST:BASE`; direct neighbours of this node's own addresses, at least one, at most 8."""
    wire: int
    """Another number than ours can be shown, and not joined."""
    seen_s: float
    """Loop time at which it was heard last; says nothing about whether it is alive."""


DiscoveryState = Literal["waiting", "on", "failed"]
"""No interface to use so far; in use; given up for now, and tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryStatus:
    """How discovery is, for the node's health and for `skulk status`."""

    state: DiscoveryState
    warning: str = ""
    """What an operator should know, in words; empty when all is well."""
    hosts: tuple[str, ...] = ()
    """Own addresses in use."""
    n_sightings: int = 0
    n_garbled: int = 0
    """Heard, and not of the form."""
    n_off_link: int = 0
    """Heard, and no direct neighbour."""
    n_dropped: int = 0
    """Heard, and too much."""
    n_sent: int = 0
    """Own packets on each network."""
    n_withheld: int = 0
    """Own packets not sent, because there were more than 5 a second."""


OnSighting = Callable[[Sighting], None]
"""Called on the event loop when a neighbour is new, has changed, or is heard again after 10 s; must
not block or raise."""


class Discovery(Protocol):
    """One node's ears and voice."""

    def on_sighting(self, receiver: OnSighting) -> None:
        """Name who is told of neighbours; the last one named."""
        ...

    def announce(self, announcement: Announcement | None) -> None:
        """Tell the neighbours this from now on, in place of what was told; None only listens."""
        ...

    def set_addresses(self, addresses: Sequence[InterfaceAddress]) -> None:
        """Use exactly these own addresses; neighbours on other links are forgotten.

        Without any it waits. IPv4 ones are used; IPv6 ones only when there is no other.
        """
        ...

    def sightings(self) -> tuple[Sighting, ...]:
        """List the neighbours, the one heard last first; at most 256."""
        ...

    def status(self) -> DiscoveryStatus:
        """Say how it is."""
        ...

    async def close(self) -> None:
        """Say goodbye and end, within 5 s; idempotent."""
        ...


def cluster_hash_of(cluster_id: ClusterId) -> str:
    """Name a cluster without telling its id: 16 base32 letters."""
    digest = hashlib.sha256(b"skulk cluster hash\0" + cluster_id.encode()).digest()
    return base64.b32encode(digest).decode("ascii").lower()[:HASH_LETTERS]
