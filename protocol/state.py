"""ClusterState: the value folded from events, the same on every node for the same log prefix.

No floats, no secrets, nothing per request. Mappings are never mutated; `core.apply` copies what it
changes.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from protocol.base import FrozenModel
from protocol.cards import ModelCard
from protocol.errors import ErrorBody
from protocol.ids import (
    ClusterIdField,
    CommandId,
    CommandIdField,
    Digest,
    InstanceId,
    InstanceIdField,
    KeyId,
    KeyIdField,
    ModelId,
    ModelIdField,
    NodeId,
    NodeIdField,
    TokenId,
    TokenIdField,
)
from protocol.instances import (
    DEFAULT_TTL_S,
    Instance,
    InstanceFailure,
    LaunchRecord,
    TtlSeconds,
)
from protocol.measurements import MemoryMeasurement
from protocol.nodes import Member, PublicKeyField

STATE_SCHEMA = 2
DEDUPE_WINDOW = 1024
RECENT_RESULTS = 64
"""So many results wait in `recent_results` before they are merged into the window."""
FAILURES_KEPT = 64
REMOVED_KEPT = 256
MAX_OVERLAP_MS = 30 * 86_400_000
"""Of the two secrets of an API key that is rotated."""

Policy = Literal["availability", "quorum"]
"""Who may elect a master: whoever sees each other, or only a majority of all voters."""

Scope = Literal["infer", "read", "operate", "admin"]
SCOPES: tuple[Scope, ...] = ("infer", "read", "operate", "admin")
"""Each includes the ones before it."""

InvitationKind = Literal["token", "code"]
"""A long token for machines, a code of six words for people."""


SecretHash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of a key's secret half; that has 160 random bits, so a slow hash would add nothing."""


class KeyLimits(FrozenModel):
    """What one API key may have of each node; None is as much as anybody."""

    requests_per_minute: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Requests that have a model work, in any 60 s."""
    concurrent_requests: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Of those, open at a time; waiting ones included."""


class PreviousSecret(FrozenModel):
    """The secret that a rotation has replaced, for as long as both are accepted."""

    secret_sha256: SecretHash
    until_ms: int


class ApiKey(FrozenModel):
    """An API key as State keeps it: only a hash of the secret."""

    key_id: KeyIdField
    name: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    secret_sha256: SecretHash
    scope: Scope
    created_at_ms: int
    expires_at_ms: int | None = None
    limits: KeyLimits = KeyLimits()
    previous: PreviousSecret | None = None


class CommandResult(FrozenModel):
    """What a command led to; a repetition is answered from here."""

    command_id: CommandIdField
    term: int
    seq: int


class DownloadOutcome(FrozenModel):
    """How the last download of a model on a node ended."""

    node_id: NodeIdField
    model_id: ModelIdField
    at_ms: int
    size_bytes: int
    error: ErrorBody | None = None


class PlacementFailure(FrozenModel):
    """A placement that was accepted and then could not be made; kept under its command id."""

    instance_id: InstanceIdField
    model_id: ModelIdField
    at_ms: int
    error: ErrorBody


class JoinToken(FrozenModel):
    """An invitation as State keeps it: the public half of its one-time key."""

    token_id: TokenIdField
    public_key: PublicKeyField
    inviter: NodeIdField
    """The only node that admits guests by it."""
    kind: InvitationKind
    created_at_ms: int
    expires_at_ms: int
    uses_left: Annotated[int, Field(ge=0, le=1000)]
    """An invitation that is used up is kept until it expires, so that a late guest hears why."""


class RemovedMember(FrozenModel):
    """A node that an operator removed; its key opens nothing any more."""

    node_id: NodeIdField
    public_key: PublicKeyField
    name: str
    at_ms: int


class ClusterSettings(FrozenModel):
    """Settings that hold for the whole cluster."""

    policy: Policy = "availability"

    loopback: Literal["open", "keyed"] = "open"
    """Whether peers on loopback need an API key."""

    on_demand_ttl_s: TtlSeconds = DEFAULT_TTL_S
    """How long a model that is placed on demand stays loaded after a request, where its placement
    does not say."""


class ClusterState(FrozenModel):
    """Everything the cluster agrees on."""

    state_schema: Annotated[int, Field(ge=1)] = STATE_SCHEMA
    cluster_id: ClusterIdField
    term: int = 0
    seq: int = 0
    """Position of the last applied event; continuous over all terms."""
    at_ms: int = 0
    """The newest master stamp in the log."""
    master: NodeIdField | None = None
    """Of `term`."""
    is_minority_term: bool = False
    """The term's master was elected by half of the voters or fewer (policy `availability`)."""
    settled_term: int = 0
    settled_seq: int = 0
    """Position of the last event of a term that a majority elected. Of two histories that grew
    apart the one with the later settled position is kept: what one cut-off node decided alone
    never outweighs what the others went on deciding."""
    members: dict[NodeId, Member] = {}
    instances: dict[InstanceId, Instance] = {}
    failures: tuple[InstanceFailure, ...] = ()
    placement_failures: tuple[PlacementFailure, ...] = ()
    launches: dict[ModelId, LaunchRecord] = {}
    """Last launch of each model that became ready."""
    measurements: Annotated[
        dict[Digest, MemoryMeasurement], Field(exclude_if=lambda kept: not kept)
    ] = {}
    """What boots have taken, by the digest of their key; at most MEASUREMENTS_KEPT, the one that
    was renewed the longest time ago first."""
    downloads: dict[str, DownloadOutcome] = {}
    """Keyed by `<node id>/<model id>`."""
    cards: dict[ModelId, ModelCard] = {}
    """Custom cards; bundled ones are not replicated."""
    api_keys: dict[KeyId, ApiKey] = {}
    join_tokens: dict[TokenId, JoinToken] = {}
    removed: dict[NodeId, RemovedMember] = {}
    """At most REMOVED_KEPT, oldest first."""
    settings: ClusterSettings = ClusterSettings()
    results: dict[CommandId, CommandResult] = {}
    """The dedupe window, oldest first, at most DEDUPE_WINDOW; without `recent_results`."""
    recent_results: tuple[CommandResult, ...] = ()
    """The newest results, not yet merged: copying the whole window at every event would cost more
    than all else that an event does. Look results up with `core.apply.repeated`."""
