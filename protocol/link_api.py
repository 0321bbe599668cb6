"""Bodies of the control API about the links between nodes, and measuring what they carry.

As in protocol/control_api.py; all of these are snake_case on the wire.
"""

from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.cluster_api import Liveness, NodeWord
from protocol.control_api import ControlModel
from protocol.errors import ErrorBody
from protocol.ids import NodeIdField
from protocol.readings import LinkKind, LinkWord

MAX_PROBE_PAIRS: Final = 512
"""Of one series; ten minutes, when all goes well."""
PAIR_S: Final = 1.2
"""What a pair takes, both directions together, when all goes well."""

ProbeState = Literal["planned", "running", "done", "failed"]
"""After a dry run; goes on; all pairs were tried; ended before."""


class LinkNode(ControlModel):
    """A member, as the answering node sees it."""

    node_id: NodeIdField
    name: str
    liveness: Liveness


class LinkView(ControlModel):
    """The way from one member to another, as these two tell it; None is unknown, never 0."""

    source: NodeIdField
    target: NodeIdField
    state: LinkWord | None = None
    """As the source sees it."""
    interface: str | None = None
    """Of the source."""
    kind: LinkKind | None = None
    nominal_bits_s: int | None = None
    """What the interface says of itself."""
    rtt_median_ms: float | None = None
    """There and back, of the last nine words (one in 20 s)."""
    rtt_p99_ms: float | None = None
    """Of the last hundred; None before there are twenty."""
    rate_bytes_s: float | None = None
    """What came to the target, encrypted, when it was measured last since the target started."""
    rate_age_s: float | None = None
    told_ago_s: float | None = None
    """Since the source has told of it; None while only the target has."""


class ProbeFailure(ControlModel):
    """A direction that was not measured."""

    source: NodeIdField
    target: NodeIdField
    error: ErrorBody


class ProbeView(ControlModel):
    """A series of measurements that the answering node was asked for."""

    state: ProbeState
    began_ms: int | None = None
    ended_ms: int | None = None
    n_pairs: int
    n_tried: int = 0
    """Pairs of which both directions were tried."""
    current: tuple[NodeIdField, NodeIdField] | None = None
    failures: tuple[ProbeFailure, ...] = ()
    error: ErrorBody | None = None
    """Why it ended before all pairs had been tried."""


class LinksDocument(ControlModel):
    """`GET /v1/cluster/links`."""

    node_id: NodeIdField
    """The node that answered."""
    nodes: tuple[LinkNode, ...] = ()
    """By name."""
    links: tuple[LinkView, ...] = ()
    """Of which something is known; by the names of source and target."""
    probe: ProbeView | None = None
    """What goes on at the answering node, or went on last."""


class ProbeLinksBody(ControlModel):
    """Body of `POST /v1/cluster/links/probe`."""

    nodes: Annotated[tuple[NodeWord, ...], Field(max_length=64)] = ()
    """One: its links with all others. Several: those among them. None: all."""
    even_busy: bool = False
    """Also nodes that answer requests, which slows these down for a moment."""
    dry_run: bool = False
    """Only say how many pairs there are."""
