"""Bodies of the control API: what the CLI and the terminal UI send to a node and get back.

Requests are snake_case (camelCase is accepted too). Of the answers, documents derived from State
(`/state`, instances, previews, events) are camelCase on the wire and all others snake_case; the
types here read either. Unknown fields of a request are refused by name; a reader of answers that
wants to meet newer nodes parses with `read_answer`.
"""

from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import ConfigDict, Field, StringConstraints

from protocol.base import FrozenModel
from protocol.cards import BackendTag, Compute, EngineName, ModelCard
from protocol.errors import DetailValue, ErrorBody, ErrorCode
from protocol.ids import (
    ClusterIdField,
    CommandIdField,
    DigestField,
    InstanceId,
    InstanceIdField,
    ModelId,
    ModelIdField,
    NodeId,
    NodeIdField,
)
from protocol.instances import (
    DEFAULT_LOST_AFTER_S,
    MAX_AWAY_S,
    DesiredPhase,
    DisconnectPolicy,
    InstanceFailure,
    LaunchRecord,
    Phase,
    Repair,
    Replacement,
    RoomPriority,
    TtlSeconds,
)
from protocol.nodes import CapabilityConflict, Member, Role
from protocol.placements import (
    ContextTokens,
    PlacementRequest,
    Plan,
    Refusal,
    Shape,
    Slots,
)
from protocol.state import ClusterSettings, DownloadOutcome, PlacementFailure

COMMAND_ID_HEADER: Final = "x-skulk-command-id"
"""On every answer of an inference route and of a state-changing one."""
API_KEY_PREFIX: Final = "skulk-"
API_KEY_PATTERN: Final = r"^skulk-([a-z2-7]{8})-([a-z2-7]{32})$"
"""`skulk-<letters of the key id>-<secret>`; the secret has 160 random bits."""

Durability = Literal["member", "local", "memory"]


class ControlModel(FrozenModel):
    """A body, whose validator is built when it is first used.

    There are forty, and a process uses a few: building all costs 10 ms of each start and command.
    """

    model_config = ConfigDict(defer_build=True)


# ---- Requests ------------------------------------------------------------------------------


class PlacementTerms(ControlModel):
    """How an instance is placed, whatever its plan is."""

    on_demand: bool = False
    """Load nothing now: the first request does, and the last one begins the time to live."""
    ttl_s: TtlSeconds | None = None
    """With `on_demand`: how long it stays loaded after a request; left out, as the cluster says."""
    priority: RoomPriority = 0
    """Of on-demand models that are idle, the lowest makes room first, and none for a lower one."""
    lost_after_s: Annotated[int, Field(ge=1, le=MAX_AWAY_S)] = DEFAULT_LOST_AFTER_S
    """One of its nodes may be silent for so long before another place is looked for."""
    replace: bool = True
    """Where it cannot go on, it is put on other nodes without an operator's word."""
    stop_after_s: Annotated[int, Field(ge=1, le=MAX_AWAY_S)] | None = None
    """A node that hears no master for so long stops it; null: it serves on, however long."""


class PlaceInstanceBody(PlacementTerms):
    """`POST /place_instance`: place a model; what is left out is the planner's choice.

    `sharding` and `instance_meta` are the original's words for a shape: `Tensor` and `LlamaRpc`
    ask for that shape, `Pipeline` for several nodes in a row when `min_nodes` is above 1.
    """

    model_id: ModelIdField
    sharding: Literal["Pipeline", "Tensor"] | None = None
    instance_meta: Literal["MlxRing", "MlxJaccl", "LlamaRpc"] | None = None
    min_nodes: Annotated[int, Field(ge=1, le=128)] = 1
    excluded_nodes: Annotated[tuple[NodeIdField, ...], Field(max_length=128)] = ()
    nodes: Annotated[tuple[NodeIdField, ...], Field(max_length=128)] = ()
    shape: Shape | None = None
    backend: BackendTag | None = None
    context_tokens: ContextTokens | None = None
    slots: Slots | None = None
    plan_id: DigestField | None = None
    """Place exactly this plan of an earlier preview, or answer 409 with the plan of now."""


class ExactPlacement(ControlModel):
    """`GET /instance/placement`: a request with one whole plan for it."""

    request: PlacementRequest
    plan: Plan


class ExactPlacementBody(PlacementTerms, ExactPlacement):
    """`POST /instance`: place exactly this plan."""


class ImportModelBody(ControlModel):
    """`POST /models/add` and `/models/import`: make a card for a GGUF file on this node."""

    path: Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=4096)]
    model_id: ModelIdField | None = None
    """None derives an id from the file's own header and name."""


class OpenApiBody(ControlModel):
    """`POST /v1/api/open`: listen beyond loopback."""

    host: Annotated[str, StringConstraints(min_length=1, max_length=255)] = "0.0.0.0"
    persist: bool = True
    """Also after a restart of the daemon."""


# ---- Answers -------------------------------------------------------------------------------


class CommandAccepted(ControlModel):
    """202 or 200: a change is committed; what follows from it is told by the instance."""

    message: str
    command_id: CommandIdField
    instance_id: InstanceIdField | None = None
    model_id: ModelIdField | None = None
    plan: Plan | None = None
    durable: Durability
    term: int
    seq: int


class CancelReply(ControlModel):
    """`POST /v1/cancel/{command_id}`."""

    message: str
    command_id: CommandIdField


class WaitingView(ControlModel):
    """A request that waits for a slot of an instance."""

    position: int
    """1 is the next to start."""
    asker: str
    """The id of its API key, or `loopback`."""
    waited_s: int
    expected_s: int | None = None
    """Until it starts, guessed by how long requests took lately; null until one has ended."""


class ProgressView(ControlModel):
    """How far one runner is in its present phase; None is unknown, never 0."""

    rank: int
    node_id: NodeIdField
    attempt: int
    phase: Phase
    phase_s: float
    """Seconds in this phase so far."""
    done_bytes: int | None = None
    total_bytes: int | None = None
    rate_bytes_s: float | None = None
    eta_s: float | None = None
    """Only once a rate has been measured."""
    note: str = ""


class MemoryView(ControlModel):
    """What one rank was predicted to take, and what it was seen to take at the most."""

    predicted_bytes: int
    measured_bytes: int
    mapped_bytes: int = 0
    """Of what was measured: weights that are mapped from their files."""
    cache_bytes: int | None = None
    """Of it: the cache, where the engine tells."""
    error_percent: float
    """Of what was measured; negative where too little was predicted."""
    source: Literal["process", "device", "engine"]
    """Who told: the kernel of the process, the driver of the device, or the engine's log."""


class RunnerView(ControlModel):
    """Where one rank's process stands."""

    rank: int
    node_id: NodeIdField
    attempt: int
    phase: Phase
    since_ms: int
    pid: int | None = None
    memory: MemoryView | None = None
    """Once it was measured."""


class InstanceView(ControlModel):
    """An instance as `/state` and `GET /instance/{id}` show it."""

    instance_id: InstanceIdField
    model_id: ModelIdField
    phase: Phase
    desired: DesiredPhase
    drain_ms: int = 0
    """Once it is to stop: how long what it is answering may take to end."""
    ttl_ms: int | None = None
    """Of an on-demand instance: how long it stays loaded after a request; else None."""
    sleeps_in_s: int | None = None
    """Of its time to live, while it is loaded and idle; None otherwise, or while no node tells."""
    pinned: bool = False
    """It stays loaded, and no drain takes it along."""
    priority: int = 0
    made_room_for: ModelIdField | None = None
    """While it sleeps: the model that it was unloaded for; None when its time to live was over."""
    attempt: int
    plan: Plan
    runners: tuple[RunnerView, ...] = ()
    progress: tuple[ProgressView, ...] = ()
    """Of the runners that are on their way; empty once all are ready."""
    failure: InstanceFailure | None = None
    launch: LaunchRecord | None = None
    placed_at_ms: int
    replaces: Replacement | None = None
    """While it takes the place of another instance, which has not gone yet: which, and how."""
    moved_from: tuple[NodeIdField, ...] = ()
    disconnect: DisconnectPolicy = DisconnectPolicy()
    """What becomes of it when it cannot go on where it is."""
    repairs: tuple[Repair, ...] = ()
    """When it was put on other nodes by itself, and why; the newest last, 8 at most."""
    context_token_limit: int
    """Window of one request, in tokens."""
    slots: int
    in_flight: int | None = None
    queued: int | None = None
    waiting: tuple[WaitingView, ...] = ()
    """The first 32 of the queued requests, in the order in which they start."""
    tokens_per_s: float | None = None
    """Generated in the last seconds; below, by its fastest answer lately (see `plan.speed`)."""
    answer_tokens_per_s: float | None = None
    unreachable_nodes: tuple[NodeIdField, ...] = ()
    """Those of its nodes that the answering node cannot reach now; it serves nobody there then."""


class PreviewsDocument(ControlModel):
    """`GET /instance/previews`: plans in order of preference, and why others are refused."""

    model_id: ModelIdField
    card_digest: DigestField | None = None
    request: PlacementRequest
    plans: tuple[Plan, ...] = ()
    """The first is what `POST /place_instance` would take; `alternative` marks other hosts."""
    refusals: tuple[Refusal, ...] = ()
    missing_facts: tuple[str, ...] = ()


HealthLevel = Literal["ok", "warn", "error"]


class HealthReasonView(ControlModel):
    """One thing that is wrong with a node, and what to do about it."""

    code: str
    level: HealthLevel
    message: str
    remediation: str


class NodeHealthView(ControlModel):
    """The health of one node."""

    level: HealthLevel
    reasons: tuple[HealthReasonView, ...] = ()


class AcceleratorView(ControlModel):
    """One accelerator and what it is doing; what its driver does not tell is null, never 0."""

    name: str
    memory_bytes: int | None = None
    free_bytes: int | None = None
    busy_ratio: float | None = None
    """Time in which it computed lately, 0 to 1."""
    watts: float | None = None
    celsius: float | None = None
    mhz: float | None = None
    compute: Compute | None = None
    """What it computes with, beside Vulkan."""
    unified: bool = False
    """Whether its memory is the host's."""
    seen_by: str = ""
    """Which probe tells of it."""


class EngineBuildView(ControlModel):
    """One build of an engine that was found on a node, whether it runs there or not."""

    engine: EngineName
    version: str
    path: str
    computes: tuple[Compute, ...] = ()
    usable: bool
    reason: str = ""
    """Why it is not usable."""
    seen_by: str = ""


class NodeResourcesView(ControlModel):
    """What one node has and how much of it is free; None is unknown, never 0."""

    name: str
    role: Role
    backends: tuple[BackendTag, ...] = ()
    capability_conflicts: tuple[CapabilityConflict, ...] = ()
    engines: tuple[EngineBuildView, ...] = ()
    n_cpus: int | None = None
    """Threads that all engines there share: cores under quota and affinity."""
    cpu_quota: float | None = None
    """Processors' worth of time that its cgroup grants; None where there is no limit."""
    n_cores: int | None = None
    """Physical cores that it may run on."""
    memory_seen_by: str = ""
    """What says how much memory there is."""
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    accelerators: tuple[AcceleratorView, ...] = ()
    disk_total_bytes: int | None = None
    disk_free_bytes: int | None = None
    cpu_ratio: float | None = None
    loop_lag_s: float | None = None
    journal_durable: bool = True
    journal_unwritten: int = 0
    reading_age_s: float | None = None
    """Seconds since the node was last heard; None when it never was."""


class LinkEdge(ControlModel):
    """The way from the answering node to another one that is alive."""

    source: NodeIdField
    target: NodeIdField
    state: Literal["connecting", "up", "silent", "refused", "incompatible"]
    address: str | None = None
    """In use; None where the other side has dialled."""
    silent_s: float | None = None
    """Since the other side was heard."""
    rtt_median_ms: float | None = None
    """There and back, of the last nine words (one in 20 s); None while not measured, never 0."""
    rtt_last_ms: float | None = None


class TopologyView(ControlModel):
    """Who is alive, as the answering node sees it. A member that is lost is not in it."""

    nodes: tuple[NodeIdField, ...] = ()
    links: tuple[LinkEdge, ...] = ()


class StateDocument(ControlModel):
    """`GET /state`: the cluster as this node sees it, with what is derived from it."""

    node_id: NodeIdField
    """The node that answered."""
    boot_id: str
    cluster_id: ClusterIdField
    term: int
    seq: int
    at_ms: int
    master: NodeIdField | None = None
    members: dict[NodeId, Member] = {}
    instances: dict[InstanceId, InstanceView] = {}
    failures: tuple[InstanceFailure, ...] = ()
    placement_failures: tuple[PlacementFailure, ...] = ()
    launches: dict[ModelId, LaunchRecord] = {}
    downloads: dict[str, DownloadOutcome] = {}
    """How the last download of each `<node id>/<model id>` ended."""
    transfers: tuple["TransferStatus", ...] = ()
    """Downloads under way, on all nodes."""
    custom_models: tuple[ModelIdField, ...] = ()
    api_keys: int = 0
    """How many; their names need the scope `admin`."""
    settings: ClusterSettings = ClusterSettings()
    topology: TopologyView = TopologyView()
    liveness: dict[NodeId, Literal["joining", "alive", "suspect", "lost", "left"]] = {}
    """Of every member; `suspect` is one that the answering node does not hear now."""
    node_health: dict[NodeId, NodeHealthView] = {}
    node_resources: dict[NodeId, NodeResourcesView] = {}


class EventView(ControlModel):
    """One event of the log; secrets and their hashes are left out."""

    term: int
    seq: int
    at_ms: int
    command_id: CommandIdField | None = None
    kind: str
    event: dict[str, Any]


class EventsDocument(ControlModel):
    """`GET /events`: kept events in order."""

    events: tuple[EventView, ...] = ()
    next_after_seq: int
    """What to ask for next."""
    last_seq: int
    """The newest in the log."""


class CardDocument(ControlModel):
    """`GET /models/cards/{id}`: one whole card, as a placement takes it."""

    card: ModelCard
    digest: DigestField
    installed: bool = False
    """Whether the files are on the node that answered."""


TransferState = Literal["absent", "running", "paused", "complete", "failed", "cancelled"]


class PauseView(ControlModel):
    """Who has paused a transfer, and when."""

    by: str
    """The client's name as the node knows it: `loopback`, or a key's id."""
    at_ms: int


class PauseBody(ControlModel):
    """`POST /store/models/{id}/download/pause`; may be left out."""

    by: Annotated[str, Field(max_length=200)] = ""
    """For whom a node asks; of clients it is ignored."""


class TransferStatus(ControlModel):
    """`GET /store/models/{id}/download/status`; None is unknown, never 0."""

    model_id: ModelIdField
    node_id: NodeIdField
    state: TransferState
    phase: str = ""
    done_bytes: int = 0
    total_bytes: int | None = None
    rate_bytes_s: float | None = None
    eta_s: float | None = None
    """Only once a rate has been measured."""
    source: str = ""
    error: ErrorBody | None = None
    paused: PauseView | None = None
    """With the state `paused`; it stays until the transfer is resumed or cancelled."""


class TransferList(ControlModel):
    """`GET /store/downloads`."""

    items: tuple[TransferStatus, ...] = ()


class ListenersDocument(ControlModel):
    """`POST /v1/api/open` and `/v1/api/close`: where this node is served now."""

    urls: tuple[str, ...]
    base_urls: tuple[str, ...] = ()
    """What works from another machine, the best first: names, then addresses."""


class HealthDocument(ControlModel):
    """`GET /health`: cheap, and always answered while the process lives.

    Everyone is told `status` and who answers; the rest only who may `read`.
    """

    status: HealthLevel
    node_id: NodeIdField
    boot_id: str
    """New at each start of the daemon."""
    name: str
    version: str
    durable: bool | None = None
    """False while the journal counts instead of writing: the disk failed."""
    term: int | None = None
    seq: int | None = None
    reasons: tuple[HealthReasonView, ...] = ()


class VersionDocument(ControlModel):
    """`GET /version`."""

    version: str
    python: str
    platform: str


class NodeIdentity(ControlModel):
    """`GET /node/identity`."""

    node_id: NodeIdField
    name: str
    cluster_id: ClusterIdField
    boot_id: str
    version: str
    role: Role = "full"
    public_key: str = ""
    master: NodeIdField | None = None
    urls: tuple[str, ...] = ()
    base_urls: tuple[str, ...] = ()
    """What works from another machine; none while only loopback is served."""
    engines: tuple[EngineName, ...] = ()
    """Usable here, as the last probe pass found."""


# ---- Errors --------------------------------------------------------------------------------


class LoadingDocument(ControlModel):
    """Why a placed model does not answer yet, and how far it is; None is unknown, never 0."""

    instance_id: InstanceIdField
    model_id: ModelIdField
    phase: Phase
    attempt: int
    node_id: NodeIdField | None = None
    node_name: str = ""
    phase_s: float | None = None
    done_bytes: int | None = None
    total_bytes: int | None = None
    rate_bytes_s: float | None = None
    eta_s: float | None = None
    note: str = ""


class ErrorEnvelope(ControlModel):
    """An error of any route; the first four fields are what OpenAI clients read.

    `code` is OpenAI's word where it has one and the route is an inference route
    (`model_not_found`, `context_length_exceeded`, `invalid_api_key`); else it equals `skulk_code`.
    Everything in it is snake_case.
    """

    message: str
    type: str
    param: str | None = None
    code: str
    skulk_code: ErrorCode
    remediation: str = ""
    details: dict[str, DetailValue] = {}
    command_id: str | None = None
    retry_after_s: int | None = None
    loading: LoadingDocument | None = None
    """With `request.instance_loading`."""
    failure: InstanceFailure | None = None
    """With `placement.failed`: how the instance ended."""
    plan: Plan | None = None
    """With `placement.plan_changed`: the plan of now."""
    refusals: tuple[Refusal, ...] = ()
    """With a refused placement: every candidate and its arithmetic."""
    missing_facts: tuple[str, ...] = ()
    """With `placement.facts_missing`."""


class ErrorDocument(ControlModel):
    """The body of every answer from 400 on."""

    error: ErrorEnvelope


AnswerT = TypeVar("AnswerT", bound=FrozenModel)


def read_answer(kind: type[AnswerT], body: bytes) -> AnswerT:
    """Parse an answer, ignoring fields that a newer node added.

    Raises:
        ValueError: When the body is not such a document.
    """
    return kind.model_validate_json(body, extra="ignore")
