"""What a node is: the facts that its own probes found, and what follows from them.

Facts change rarely and live in State. What moves (free memory, utilisation) is a reading
(protocol/readings.py).
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from protocol.base import FrozenModel
from protocol.cards import BackendTag, Compute, EngineName
from protocol.ids import NodeIdField

Role = Literal["full", "management"]
"""`management`: votes, serves the API, keeps files, and is never planned onto."""

Presence = Literal["joining", "present", "lost", "left"]
"""What the cluster has agreed on: the node was admitted and has not come yet; takes part; was not
heard of for too long; said goodbye. Those that are `lost` or `left` return by themselves."""

Eligibility = Literal["eligible", "draining", "drained"]
"""Whether models may be placed on a node: they may; they may not, and some are still stopping
there; they may not, and none is left."""

PublicKeyField = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""A CURVE public key, 32 bytes, in hexadecimal."""
AddressField = Annotated[str, StringConstraints(pattern=r"^\S+:[0-9]{1,5}$", max_length=261)]
"""`HOST:BASE` of a node's cluster ports; an IPv6 host stands in brackets."""

ConflictCode = Literal[
    "gpu_serving_disabled",
    "gpu_detection_degraded",
    "invalid_engine_binary",
    "backend_override_conflict",
    "engine_cpu_unsupported",
    "gpu_lost",
]
Level = Literal["ok", "warning", "error"]


class CapabilityConflict(FrozenModel):
    """Two sources disagree about what this node can run, or a build cannot run here."""

    code: ConflictCode
    level: Level
    observed: str
    declared: str
    message: str
    remediation: str


class Accelerator(FrozenModel):
    """One compute device besides the CPU, and how it was seen."""

    index: Annotated[int, Field(ge=0)]
    vendor: Literal["nvidia", "amd", "intel", "apple", "other"]
    name: str
    compute: Compute
    memory_bytes: int | None = None
    """Memory that an engine can really use; None is unknown, never 0."""
    unified: bool = False
    seen_by: str


class EngineFacts(FrozenModel):
    """One engine build found on the node."""

    engine: EngineName
    provider: Literal["binary", "hosted", "builtin"]
    """An executable; a Python package hosted in a child; or part of skulk itself."""
    path: str = ""
    version: str = ""
    computes: tuple[Compute, ...] = ()
    """What the build itself reports it can compute on."""
    usable: bool
    reason: str = ""
    """Why not, when it is not usable."""
    overhead_bytes: Annotated[int, Field(ge=0)] = 0
    """Resident memory of the process beside weights and cache, measured for this build."""
    default_slots: Annotated[int, Field(ge=1, le=256)] = 1
    """Requests served at a time when nobody asks for a number."""
    rpc: Annotated[bool, Field(exclude_if=lambda is_able: not is_able)] = False
    """Whether it can pool memory over nodes: drive donors of the same version, and be one."""
    rpc_path: Annotated[str, Field(exclude_if=lambda path: not path)] = ""
    """What lends memory to a driver; "" where `rpc` is false."""
    ring: Annotated[bool, Field(exclude_if=lambda is_able: not is_able)] = False
    """Whether it can be a rank of a model that is split over a ring of nodes."""
    seen_by: Annotated[str, Field(exclude_if=lambda words: not words)] = ""
    """How it was found, such as `PATH` or the name of a package."""


class NodeFacts(FrozenModel):
    """What one probe pass found; the input of `core.facts.derive`."""

    hostname: str
    os: str
    arch: str
    cpu_model: str = ""
    cpu_features: tuple[str, ...] = ()
    n_cpus: Annotated[int, Field(ge=1)]
    """Under quota and affinity; what an engine may really use."""
    n_cores: Annotated[int | None, Field(ge=1, exclude_if=lambda count: count is None)] = None
    """Physical cores that this process may run on, whatever its quota."""
    cpu_quota: Annotated[float | None, Field(gt=0, exclude_if=lambda quota: quota is None)] = None
    """Processors' worth of time that its cgroup grants; None where there is no limit."""
    memory_bytes: Annotated[int, Field(ge=0)]
    """RAM under cgroup limits; swap is not counted."""
    memory_seen_by: Annotated[str, Field(exclude_if=lambda words: not words)] = ""
    """What says so: the system, or the cgroup whose limit is the lowest."""
    accelerators: tuple[Accelerator, ...] = ()
    lost_accelerators: Annotated[
        tuple[Accelerator, ...], Field(exclude_if=lambda lost: not lost)
    ] = ()
    """Those that this process has seen before, and no probe sees any more."""
    engines: tuple[EngineFacts, ...] = ()
    declared_backends: tuple[BackendTag, ...] | None = None
    """SKULK_BACKENDS, when an operator overrides what was found."""
    override_error: str = ""
    """An override such as SKULK_LLAMA_SERVER_BIN that does not work, in words."""
    override_path: str = ""
    disk_total_bytes: int | None = None
    build: str = ""


class NodeCapabilities(FrozenModel):
    """What follows from the facts: what may be planned here, and what stands in the way."""

    backends: tuple[BackendTag, ...] = ()
    conflicts: tuple[CapabilityConflict, ...] = ()


class Member(FrozenModel):
    """A node as the cluster knows it."""

    node_id: NodeIdField
    name: str
    public_key: PublicKeyField
    addresses: tuple[str, ...] = ()
    """`HOST:BASE` of its cluster ports, best first; kept so that a cluster that was switched off
    finds itself again without mDNS."""
    api_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Where its HTTP API listens; 0 where it serves none."""
    api_tls: bool = False
    """Whether it speaks TLS there, beyond loopback."""
    role: Role = "full"
    presence: Presence = "present"
    since_ms: int = 0
    """When `presence` came to be."""
    drain_since_ms: int | None = None
    """Since when nothing is placed on it, by an operator's word; None where models may be."""
    facts: NodeFacts | None = None
    """None until the node's first probe pass has been reported."""
    capabilities: NodeCapabilities = NodeCapabilities()

    @property
    def is_voter(self) -> bool:
        """Whether its vote counts: not before it has arrived, and not after it said goodbye."""
        return self.presence in {"present", "lost"}


class HealthReason(FrozenModel):
    """Why a node is not well, with what to do about it."""

    code: str
    level: Level
    message: str
    remediation: str


class NodeHealth(FrozenModel):
    """A node's health as State and readings show it; derived, never stored."""

    level: Level
    reasons: tuple[HealthReason, ...] = ()
