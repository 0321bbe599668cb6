"""Telemetry readings: last write wins, never in State, never in the journal.

An unknown value is None, never 0. `at_s` is the monotonic time of the process that received it.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from protocol.ids import Digest, InstanceId, ModelId, NodeId
from protocol.instances import Phase

NoDownloads = Literal["offline", "disabled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReading:
    """What moves on one node."""

    node_id: NodeId
    at_s: float
    memory_available_bytes: int | None
    """RAM an engine could take now, without swap, under cgroup limits."""
    accelerator_free_bytes: tuple[int | None, ...] = ()
    disk_free_bytes: int | None = None
    """On the volume that holds the models."""
    cpu_ratio: float | None = None
    loop_lag_s: float | None = None
    journal_durable: bool = True
    journal_unwritten: int = 0
    """Records counted but not on disk since the disk failed."""
    no_downloads: NoDownloads | None = None
    """Why the node fetches no model files; None where it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseProgress:
    """How far one runner is in its present phase."""

    instance_id: InstanceId
    node_id: NodeId
    rank: int
    attempt: int
    phase: Phase
    since_s: float
    at_s: float
    done_bytes: int | None = None
    total_bytes: int | None = None
    rate_bytes_s: float | None = None
    eta_s: float | None = None
    """Only once a rate has been measured."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReading:
    """How far one download is."""

    node_id: NodeId
    model_id: ModelId
    at_s: float
    phase: str
    done_bytes: int
    total_bytes: int | None
    rate_bytes_s: float | None
    eta_s: float | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceReading:
    """What one instance is doing for clients."""

    instance_id: InstanceId
    node_id: NodeId
    at_s: float
    in_flight: int
    queued: int
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The files of one model, complete on a node's disk."""

    model_id: ModelId
    digest: Digest
    """The key of the artifact: of the model and its source, the same on every node."""
    size_bytes: int


MAX_HOLDINGS: Final = 512
"""Of one node; the rest is not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingsReading:
    """Which models' files a node holds and would serve to its peers."""

    node_id: NodeId
    at_s: float
    holdings: tuple[Holding, ...] = ()


Reading = NodeReading | PhaseProgress | TransferReading | InstanceReading | HoldingsReading

ReadingKind = Literal["node", "progress", "transfer", "instance", "holdings"]
ReadingKey = tuple[ReadingKind, str, int]
"""Which of a node's readings: its kind, the instance or model that it is about, and the rank."""


def key_of(reading: Reading) -> ReadingKey:
    """Give the key under which a newer reading replaces this one."""
    match reading:
        case NodeReading():
            return ("node", "", 0)
        case PhaseProgress():
            return ("progress", reading.instance_id, reading.rank)
        case TransferReading():
            return ("transfer", reading.model_id, 0)
        case InstanceReading():
            return ("instance", reading.instance_id, 0)
        case HoldingsReading():
            return ("holdings", "", 0)


@dataclass(frozen=True, slots=True)
class Readings:
    """A snapshot of all last values, as cores are handed it."""

    nodes: dict[NodeId, NodeReading] = field(default_factory=dict[NodeId, NodeReading])
    progress: dict[tuple[InstanceId, int], PhaseProgress] = field(
        default_factory=dict[tuple[InstanceId, int], PhaseProgress]
    )
    """Keyed by (instance, rank)."""
    transfers: dict[tuple[NodeId, ModelId], TransferReading] = field(
        default_factory=dict[tuple[NodeId, ModelId], TransferReading]
    )
    instances: dict[InstanceId, InstanceReading] = field(
        default_factory=dict[InstanceId, InstanceReading]
    )
    holdings: dict[NodeId, HoldingsReading] = field(default_factory=dict[NodeId, HoldingsReading])
