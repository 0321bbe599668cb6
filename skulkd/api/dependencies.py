"""What the API is built from."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.clock import Clock
from protocol.ids import NodeId
from protocol.nodes import Role
from skulkd.api.body_budget import MAX_HELD_BYTES
from skulkd.api.cancels import Cancels
from skulkd.api.image_fetch import RemoteImages
from skulkd.api.ports import (
    ClusterControl,
    HealthView,
    Inference,
    Listeners,
    Models,
    NodeAdmin,
    NodeLogs,
    PeerApi,
    Placements,
    Probes,
    ReadingsView,
    TokenCounts,
)
from skulkd.api.request_meters import RequestMeters
from skulkd.api.sse import StreamLimits
from skulkd.api.streams import KeepLimits
from skulkd.core.meters import ByModel, Histogram
from skulkd.eventlog.gateway import CommandGateway, StateView
from skulkd.runtime.tasks import Tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFace:
    """This node, as it introduces itself."""

    node_id: NodeId
    name: str
    hostname: str
    boot_id: str
    """New at each start of the daemon."""
    version: str
    public_key: str = ""
    role: Role = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiDependencies:
    """The rest of the daemon, as the API sees it."""

    face: NodeFace
    clock: Clock
    tasks: Tasks
    gateway: CommandGateway
    state: StateView
    readings: ReadingsView
    health: HealthView
    placements: Placements
    inference: Inference
    counts: TokenCounts
    is_reachable: Callable[[NodeId], bool]
    """Whether requests can be sent to a node; always true of this one."""
    models: Models
    listeners: Listeners
    cluster: ClusterControl
    logs: NodeLogs
    admin: NodeAdmin
    peers: PeerApi
    cancels: Cancels
    probes: Probes
    random: random.Random
    """Chooses between instances; seeded by the caller."""
    meters: RequestMeters
    queue_waits: ByModel[Histogram]
    """Of the instances of this node, as its worker measures them."""
    images: RemoteImages = field(default_factory=RemoteImages)
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] | None = None
    """Whose pages may ask models; None is everybody's."""
    max_concurrent_requests: int = 1024
    """Inference requests open at a time; control requests have 128 places of their own."""
    max_held_body_bytes: int = MAX_HELD_BYTES
    facts_wait_s: float = 15.0
    stream_limits: StreamLimits = field(default_factory=StreamLimits)
    keep_limits: KeepLimits = field(default_factory=KeepLimits)
