"""What a transport tells about itself, for diagnostics and the views of the cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from protocol.envelope import Plane, Port
from protocol.ids import NodeId
from skulkd.cluster.transport import LinkState


@dataclass(slots=True)
class PlaneCounters:
    """What has gone over one plane with one peer since it was named."""

    n_sent: int = 0
    n_sent_bytes: int = 0
    n_received: int = 0
    n_received_bytes: int = 0
    n_refused: int = 0
    """Not taken from the sender: too large, or the queue was full."""
    n_dropped: int = 0
    """Taken and not sent: replaced by a newer one, or queued when the connection broke."""
    queued_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerInfo:
    """One peer, as this node's connections show it."""

    node_id: NodeId
    link: LinkState
    reason: str = ""
    """Why the link is not up, in words an operator can act on; empty when it is."""
    is_denied: bool = False
    """It has answered, when it was dialled last, and does not admit this node's key."""
    ports: Mapping[Port, LinkState] = field(default_factory=dict[Port, LinkState])
    dialled: str | None = None
    """The address in use, `HOST:BASE`."""
    heard_from: str | None = None
    """The host that its own connections come from."""
    build: str | None = None
    boot_id: str | None = None
    """Both as it said in its hello."""
    last_heard_s: float | None = None
    """Monotonic; any frame counts."""
    planes: Mapping[Plane, PlaneCounters] = field(default_factory=dict[Plane, PlaneCounters])
    """These count on: a copy for every look at a hundred peers would cost more than the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """Two processes that live on one key: a copied home."""

    node_id: NodeId
    boot_ids: tuple[str, str]
    """The one heard of first comes first."""
    addresses: tuple[str, str]
    """Where they listen, `HOST:BASE`, in the same order."""
    last_seen_s: float
    """Monotonic."""


class LinkViews(Protocol):
    """What every transport can tell."""

    def peer_info(self, peer: NodeId) -> PeerInfo | None:
        """Say how it stands with a peer; None for one that is not named."""
        ...

    def duplicates(self) -> tuple[Duplicate, ...]:
        """List the peers that were two processes on one key within the last minute."""
        ...
