"""Intents: a command may be refused in `core.decide`; it is idempotent by its id."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, TypeAdapter

from protocol.base import FrozenModel
from protocol.cards import ModelCard
from protocol.errors import ErrorBody
from protocol.ids import (
    CommandIdField,
    InstanceIdField,
    KeyIdField,
    ModelIdField,
    NodeIdField,
    TokenIdField,
)
from protocol.instances import DisconnectPolicy, DrainMs, LaunchRecord, Phase, RoomPriority, TtlMs
from protocol.measurements import BootKey, MeasuredMemory
from protocol.nodes import AddressField, NodeCapabilities, NodeFacts, PublicKeyField, Role
from protocol.placements import PlacementRequest, Plan
from protocol.state import (
    MAX_OVERLAP_MS,
    ClusterSettings,
    InvitationKind,
    KeyLimits,
    Scope,
    SecretHash,
)

LogLine = Annotated[str, StringConstraints(max_length=2000)]


class AdmitMember(FrozenModel):
    """Make a node a member, or renew what the cluster knows of it."""

    kind: Literal["admit_member"] = "admit_member"
    command_id: CommandIdField
    node_id: NodeIdField
    name: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    public_key: PublicKeyField
    addresses: Annotated[tuple[AddressField, ...], Field(max_length=16)] = ()
    api_port: Annotated[int, Field(ge=0, le=65535)] = 0
    api_tls: bool = False
    role: Role = "full"
    token_id: TokenIdField | None = None
    """The invitation it comes by. Without one, only a node that is a member already, or the first
    of a cluster, is admitted: it renews what is known of it, and is present again."""


class ReportLoss(FrozenModel):
    """The master itself has not heard a member for too long."""

    kind: Literal["report_loss"] = "report_loss"
    command_id: CommandIdField
    node_id: NodeIdField
    silent_ms: int
    """How long the master had not heard it."""
    is_refused: bool
    """Its machine answered that nobody listens any more."""


class ReportLeave(FrozenModel):
    """A node says goodbye: it stops or is suspended, and has no vote until it is back."""

    kind: Literal["report_leave"] = "report_leave"
    command_id: CommandIdField
    node_id: NodeIdField


class RemoveMember(FrozenModel):
    """Take a node out of the cluster for good; its key opens nothing any more."""

    kind: Literal["remove_member"] = "remove_member"
    command_id: CommandIdField
    node_id: NodeIdField


class DrainNode(FrozenModel):
    """Place nothing on a node any more, and stop what runs there once it has answered."""

    kind: Literal["drain_node"] = "drain_node"
    command_id: CommandIdField
    node_id: NodeIdField
    drain_ms: DrainMs
    instances: Annotated[tuple[InstanceIdField, ...], Field(max_length=512)] | None = None
    """Those that the operator has seen it would stop: refused when others run there by now. None
    stops whatever runs there."""


class UndrainNode(FrozenModel):
    """Let a node that was drained take placements again."""

    kind: Literal["undrain_node"] = "undrain_node"
    command_id: CommandIdField
    node_id: NodeIdField


class CreateJoinToken(FrozenModel):
    """Make an invitation valid; only the public half of its key travels."""

    kind: Literal["create_join_token"] = "create_join_token"
    command_id: CommandIdField
    token_id: TokenIdField
    public_key: PublicKeyField
    inviter: NodeIdField
    token_kind: InvitationKind
    expires_at_ms: int
    uses: Annotated[int, Field(ge=1, le=1000)] = 1


class RevokeJoinToken(FrozenModel):
    """Make an invitation invalid."""

    kind: Literal["revoke_join_token"] = "revoke_join_token"
    command_id: CommandIdField
    token_id: TokenIdField


class SettleTerm(FrozenModel):
    """The master of a minority term is followed by a majority now."""

    kind: Literal["settle_term"] = "settle_term"
    command_id: CommandIdField
    term: int


class ReportFacts(FrozenModel):
    """A node's probe pass ended."""

    kind: Literal["report_facts"] = "report_facts"
    command_id: CommandIdField
    node_id: NodeIdField
    facts: NodeFacts
    capabilities: NodeCapabilities


class PlaceInstance(FrozenModel):
    """Place a model by a whole plan; the instance gets this command's id.

    The master re-plans on its own readings and takes exactly this plan, or refuses with
    `placement.plan_changed`.
    """

    kind: Literal["place_instance"] = "place_instance"
    command_id: CommandIdField
    request: PlacementRequest
    plan: Plan
    card: ModelCard
    ttl_ms: TtlMs | None = None
    """Place it on demand: nothing is loaded before a request asks for it."""
    priority: RoomPriority = 0
    disconnect: DisconnectPolicy = DisconnectPolicy()


class StopInstance(FrozenModel):
    """Stop an instance and forget it."""

    kind: Literal["stop_instance"] = "stop_instance"
    command_id: CommandIdField
    instance_id: InstanceIdField
    drain_ms: DrainMs = 0
    """How long its running requests may take; a later command shortens it, and never lengthens."""


class MoveInstance(FrozenModel):
    """Have a new instance of the same model take the place of one; it gets this command's id.

    The old one is stopped once the new one is ready, or before the new one is started.
    """

    kind: Literal["move_instance"] = "move_instance"
    command_id: CommandIdField
    instance_id: InstanceIdField
    """The old one."""
    request: PlacementRequest
    plan: Plan
    card: ModelCard
    stop_first: bool = False
    drain_ms: DrainMs
    """How long requests under way may go on at the old one."""


class WakeInstance(FrozenModel):
    """Have an on-demand instance loaded: a request asks for it. One that is awake stays so."""

    kind: Literal["wake_instance"] = "wake_instance"
    command_id: CommandIdField
    instance_id: InstanceIdField


class SleepInstance(FrozenModel):
    """Have an on-demand instance unloaded: nobody has asked for it for its time to live.

    What has changed meanwhile (another attempt, a pin) makes it void. Its node answers a request
    that came first, and wakes it again.
    """

    kind: Literal["sleep_instance"] = "sleep_instance"
    command_id: CommandIdField
    instance_id: InstanceIdField
    attempt: Annotated[int, Field(ge=0)]
    """That had nothing to do."""


class PinInstance(FrozenModel):
    """Keep an instance loaded, and out of what a drain stops."""

    kind: Literal["pin_instance"] = "pin_instance"
    command_id: CommandIdField
    instance_id: InstanceIdField


class UnpinInstance(FrozenModel):
    """Take the pin of an instance back."""

    kind: Literal["unpin_instance"] = "unpin_instance"
    command_id: CommandIdField
    instance_id: InstanceIdField


class RetryInstance(FrozenModel):
    """Try a failed instance again: an operator's word, or the breaker's."""

    kind: Literal["retry_instance"] = "retry_instance"
    command_id: CommandIdField
    instance_id: InstanceIdField
    after_attempt: int
    """Refused when the instance has moved on since."""


class RepairInstance(FrozenModel):
    """Put an instance on other nodes: where it is it cannot go on. The master's word alone.

    What has changed meanwhile (another attempt, a node that is back) makes it void.
    """

    kind: Literal["repair_instance"] = "repair_instance"
    command_id: CommandIdField
    instance_id: InstanceIdField
    after_attempt: Annotated[int, Field(ge=0)]


class ClearBreaker(FrozenModel):
    """Forget how often an instance was relaunched; one that failed for good is tried again."""

    kind: Literal["clear_breaker"] = "clear_breaker"
    command_id: CommandIdField
    instance_id: InstanceIdField


class ReportPhase(FrozenModel):
    """A runner reached a phase; idempotent by (instance, rank, attempt, phase)."""

    kind: Literal["report_phase"] = "report_phase"
    command_id: CommandIdField
    instance_id: InstanceIdField
    node_id: NodeIdField
    rank: Annotated[int, Field(ge=0, le=127)]
    attempt: Annotated[int, Field(ge=0)]
    phase: Phase
    pid: int | None = None
    launch: LaunchRecord | None = None


class ReportFailure(FrozenModel):
    """A runner ended badly; the master decides whether another attempt follows."""

    kind: Literal["report_failure"] = "report_failure"
    command_id: CommandIdField
    instance_id: InstanceIdField
    node_id: NodeIdField
    rank: Annotated[int, Field(ge=0, le=127)]
    attempt: Annotated[int, Field(ge=0)]
    phase: Phase
    error: ErrorBody
    exit_code: int | None = None
    signal: Annotated[str, StringConstraints(max_length=16)] | None = None
    log_tail: Annotated[tuple[LogLine, ...], Field(max_length=20)] = ()
    was_ready: bool


class ReportMemory(FrozenModel):
    """What a runner that is ready was seen to take; idempotent by its boot, the most counts."""

    kind: Literal["report_memory"] = "report_memory"
    command_id: CommandIdField
    instance_id: InstanceIdField
    node_id: NodeIdField
    rank: Annotated[int, Field(ge=0, le=127)]
    attempt: Annotated[int, Field(ge=0)]
    key: BootKey
    memory: MeasuredMemory


class ReportDownload(FrozenModel):
    """A download ended."""

    kind: Literal["report_download"] = "report_download"
    command_id: CommandIdField
    node_id: NodeIdField
    model_id: ModelIdField
    size_bytes: int
    error: ErrorBody | None = None


class AddCard(FrozenModel):
    """Add or replace a custom card."""

    kind: Literal["add_card"] = "add_card"
    command_id: CommandIdField
    card: ModelCard


class RemoveCard(FrozenModel):
    """Remove a custom card."""

    kind: Literal["remove_card"] = "remove_card"
    command_id: CommandIdField
    model_id: ModelIdField


class CreateApiKey(FrozenModel):
    """Make an API key valid; only the secret's hash travels."""

    kind: Literal["create_api_key"] = "create_api_key"
    command_id: CommandIdField
    key_id: KeyIdField
    name: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    secret_sha256: SecretHash
    scope: Scope
    expires_at_ms: int | None = None
    limits: KeyLimits = KeyLimits()


class ChangeApiKey(FrozenModel):
    """Replace the limits and the end of an API key."""

    kind: Literal["change_api_key"] = "change_api_key"
    command_id: CommandIdField
    key_id: KeyIdField
    limits: KeyLimits
    expires_at_ms: int | None


class RotateApiKey(FrozenModel):
    """Give an API key another secret; the one it had is accepted for a while longer."""

    kind: Literal["rotate_api_key"] = "rotate_api_key"
    command_id: CommandIdField
    key_id: KeyIdField
    secret_sha256: SecretHash
    overlap_ms: Annotated[int, Field(ge=0, le=MAX_OVERLAP_MS)]


class RevokeApiKey(FrozenModel):
    """Make an API key invalid."""

    kind: Literal["revoke_api_key"] = "revoke_api_key"
    command_id: CommandIdField
    key_id: KeyIdField


class ChangeSettings(FrozenModel):
    """Replace the cluster settings."""

    kind: Literal["change_settings"] = "change_settings"
    command_id: CommandIdField
    settings: ClusterSettings


Command = Annotated[
    AdmitMember
    | ReportLoss
    | ReportLeave
    | RemoveMember
    | DrainNode
    | UndrainNode
    | CreateJoinToken
    | RevokeJoinToken
    | SettleTerm
    | ReportFacts
    | PlaceInstance
    | StopInstance
    | MoveInstance
    | WakeInstance
    | SleepInstance
    | PinInstance
    | UnpinInstance
    | RetryInstance
    | RepairInstance
    | ClearBreaker
    | ReportPhase
    | ReportFailure
    | ReportMemory
    | ReportDownload
    | AddCard
    | RemoveCard
    | CreateApiKey
    | ChangeApiKey
    | RotateApiKey
    | RevokeApiKey
    | ChangeSettings,
    Field(discriminator="kind"),
]
COMMAND: TypeAdapter[Command] = TypeAdapter(Command)


class CommandReply(FrozenModel):
    """A command was committed.

    `durable` is `member` when another member's journal has it too, `local` when only this node's
    has, and `memory` while the disk fails.
    """

    command_id: CommandIdField
    term: int
    seq: int
    durable: Literal["member", "local", "memory"]
    repeated: bool = False
    """Answered from the dedupe window: the command had been decided before."""
