"""Facts: past tense, complete, applied by every node with the same result.

An event has meaning only with its (term, seq); the journal's record carries both, with the command
that caused it and the master's wall-clock stamp.
"""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field, TypeAdapter

from protocol.base import FrozenModel
from protocol.cards import ModelCard
from protocol.ids import (
    ClusterIdField,
    CommandId,
    InstanceIdField,
    KeyIdField,
    ModelIdField,
    NodeIdField,
    TokenIdField,
)
from protocol.instances import (
    DrainMs,
    Instance,
    InstanceFailure,
    LaunchRecord,
    Repair,
    RunnerStatus,
)
from protocol.measurements import BootKey, MeasuredMemory
from protocol.nodes import Member, NodeCapabilities, NodeFacts
from protocol.placements import Plan
from protocol.state import ApiKey, ClusterSettings, DownloadOutcome, JoinToken, PlacementFailure


class ClusterFounded(FrozenModel):
    """The first event of a cluster."""

    kind: Literal["cluster_founded"] = "cluster_founded"
    cluster_id: ClusterIdField


class MasterElected(FrozenModel):
    """A term began; the record's term is this event's."""

    kind: Literal["master_elected"] = "master_elected"
    master: NodeIdField
    is_minority: bool = False
    """Half of the voters or fewer elected it."""


class TermSettled(FrozenModel):
    """A majority follows the master that a minority had elected."""

    kind: Literal["term_settled"] = "term_settled"


class MemberJoined(FrozenModel):
    """A node became a member, or its name, addresses or role changed."""

    kind: Literal["member_joined"] = "member_joined"
    member: Member
    token_id: TokenIdField | None = None
    """The invitation that this used up by one."""


class MemberLost(FrozenModel):
    """A member was not heard of for too long; it keeps its vote and returns by itself."""

    kind: Literal["member_lost"] = "member_lost"
    node_id: NodeIdField
    silent_ms: int
    is_refused: bool


class MemberLeft(FrozenModel):
    """A member said goodbye; it has no vote until it is back."""

    kind: Literal["member_left"] = "member_left"
    node_id: NodeIdField


class MemberReturned(FrozenModel):
    """A member that was admitted has come, or one that was lost or had left takes part again."""

    kind: Literal["member_returned"] = "member_returned"
    node_id: NodeIdField


class MemberRemoved(FrozenModel):
    """An operator took a member out for good."""

    kind: Literal["member_removed"] = "member_removed"
    node_id: NodeIdField


class NodeDrainStarted(FrozenModel):
    """Nothing is placed on a member any more, until its drain ends."""

    kind: Literal["node_drain_started"] = "node_drain_started"
    node_id: NodeIdField


class NodeDrainEnded(FrozenModel):
    """A member that was drained takes placements again."""

    kind: Literal["node_drain_ended"] = "node_drain_ended"
    node_id: NodeIdField


class JoinTokenCreated(FrozenModel):
    """An invitation is valid from here on."""

    kind: Literal["join_token_created"] = "join_token_created"
    token: JoinToken


class JoinTokenRevoked(FrozenModel):
    """An invitation is valid no more, or was forgotten because it had expired."""

    kind: Literal["join_token_revoked"] = "join_token_revoked"
    token_id: TokenIdField


class MemberFactsReported(FrozenModel):
    """A node's probe pass ended."""

    kind: Literal["member_facts_reported"] = "member_facts_reported"
    node_id: NodeIdField
    facts: NodeFacts
    capabilities: NodeCapabilities


class InstancePlaced(FrozenModel):
    """A plan became desired state."""

    kind: Literal["instance_placed"] = "instance_placed"
    instance: Instance


class PlacementFailed(FrozenModel):
    """An accepted placement could not be made, or found no other place when it needed one."""

    kind: Literal["placement_failed"] = "placement_failed"
    failure: PlacementFailure


class RunnerPhaseChanged(FrozenModel):
    """A rank's process reached a phase."""

    kind: Literal["runner_phase_changed"] = "runner_phase_changed"
    instance_id: InstanceIdField
    runner: RunnerStatus
    launch: LaunchRecord | None = None
    """With phase `ready`: what led there, kept as the model's last good launch."""


class MemoryMeasured(FrozenModel):
    """A runner that is ready was seen to take more than was known of its boot."""

    kind: Literal["memory_measured"] = "memory_measured"
    instance_id: InstanceIdField
    rank: int
    attempt: int
    key: BootKey
    memory: MeasuredMemory


class InstanceFailed(FrozenModel):
    """An attempt ended badly; `failure.final` says whether another follows."""

    kind: Literal["instance_failed"] = "instance_failed"
    failure: InstanceFailure


class InstanceRetried(FrozenModel):
    """A new attempt began."""

    kind: Literal["instance_retried"] = "instance_retried"
    instance_id: InstanceIdField
    attempt: int


class InstanceReplanned(FrozenModel):
    """An instance that could not go on was put on other nodes, and a new attempt began there."""

    kind: Literal["instance_replanned"] = "instance_replanned"
    instance_id: InstanceIdField
    attempt: int
    repair: Repair
    """Why, from where and to where."""
    plan: Plan


class BreakerCleared(FrozenModel):
    """The failures of an instance so far do not count any more."""

    kind: Literal["breaker_cleared"] = "breaker_cleared"
    instance_id: InstanceIdField


class InstanceWoken(FrozenModel):
    """A request asked for an on-demand instance that was asleep."""

    kind: Literal["instance_woken"] = "instance_woken"
    instance_id: InstanceIdField
    attempt: int
    """The one before, where its runner may be there still; else a new one."""


class InstanceFellAsleep(FrozenModel):
    """An on-demand instance need not be loaded; what is loaded goes, once it answers nobody."""

    kind: Literal["instance_fell_asleep"] = "instance_fell_asleep"
    instance_id: InstanceIdField
    room_for: ModelIdField | None = None
    """The model that its memory is needed for; None when its time to live was over."""


class InstancePinned(FrozenModel):
    """An instance stays loaded, and no drain takes it along."""

    kind: Literal["instance_pinned"] = "instance_pinned"
    instance_id: InstanceIdField


class InstanceUnpinned(FrozenModel):
    """An instance is as any other again."""

    kind: Literal["instance_unpinned"] = "instance_unpinned"
    instance_id: InstanceIdField


class InstanceStopRequested(FrozenModel):
    """The instance is no longer wanted; its runners go, once they have answered or are late."""

    kind: Literal["instance_stop_requested"] = "instance_stop_requested"
    instance_id: InstanceIdField
    drain_ms: DrainMs = 0


class InstanceRemoved(FrozenModel):
    """The last runner of an unwanted instance is gone."""

    kind: Literal["instance_removed"] = "instance_removed"
    instance_id: InstanceIdField


class DownloadEnded(FrozenModel):
    """A download ended, well or not."""

    kind: Literal["download_ended"] = "download_ended"
    outcome: DownloadOutcome


class DownloadForgotten(FrozenModel):
    """That a download had failed counts no more: what needed it has another place."""

    kind: Literal["download_forgotten"] = "download_forgotten"
    node_id: NodeIdField
    model_id: ModelIdField


class CardAdded(FrozenModel):
    """A custom card was added or replaced."""

    kind: Literal["card_added"] = "card_added"
    card: ModelCard


class CardRemoved(FrozenModel):
    """A custom card was removed."""

    kind: Literal["card_removed"] = "card_removed"
    model_id: ModelIdField


class ApiKeyCreated(FrozenModel):
    """An API key is valid from here on, on all nodes."""

    kind: Literal["api_key_created"] = "api_key_created"
    key: ApiKey


class ApiKeyChanged(FrozenModel):
    """An API key has other limits, another end, or another secret."""

    kind: Literal["api_key_changed"] = "api_key_changed"
    key: ApiKey


class ApiKeyRevoked(FrozenModel):
    """An API key is valid no more."""

    kind: Literal["api_key_revoked"] = "api_key_revoked"
    key_id: KeyIdField


class SettingsChanged(FrozenModel):
    """Cluster settings changed."""

    kind: Literal["settings_changed"] = "settings_changed"
    settings: ClusterSettings


Event = Annotated[
    ClusterFounded
    | MasterElected
    | TermSettled
    | MemberJoined
    | MemberLost
    | MemberLeft
    | MemberReturned
    | MemberRemoved
    | NodeDrainStarted
    | NodeDrainEnded
    | JoinTokenCreated
    | JoinTokenRevoked
    | MemberFactsReported
    | InstancePlaced
    | PlacementFailed
    | RunnerPhaseChanged
    | MemoryMeasured
    | InstanceFailed
    | InstanceRetried
    | InstanceReplanned
    | BreakerCleared
    | InstanceWoken
    | InstanceFellAsleep
    | InstancePinned
    | InstanceUnpinned
    | InstanceStopRequested
    | InstanceRemoved
    | DownloadEnded
    | DownloadForgotten
    | CardAdded
    | CardRemoved
    | ApiKeyCreated
    | ApiKeyChanged
    | ApiKeyRevoked
    | SettingsChanged,
    Field(discriminator="kind"),
]
EVENT: TypeAdapter[Event] = TypeAdapter(Event)


class SequencedEvent(NamedTuple):
    """An event at its place in the log.

    A tuple, not a model: replay makes one a record, and its fields were checked where they came in.
    """

    term: int
    seq: int
    """From 1; continuous over all terms."""
    at_ms: int
    """The master's wall clock, never stepping back within the log."""
    command_id: CommandId | None
    """The command that caused it; None for what the master decided by itself."""
    event: Event
