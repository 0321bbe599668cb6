"""What `--json` gives: one record type per kind of item.

These fields are an interface: they are only added to. Names are snake_case, times RFC 3339 in UTC,
sizes integers in bytes; a value that is not known is null, never 0.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonRecord:
    """One thing that is wrong with a node."""

    code: str
    level: str
    message: str
    remediation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A node of the cluster."""

    node_id: str
    name: str
    role: str
    is_master: bool
    liveness: str
    eligibility: str
    """Whether models may be placed there: `eligible`, `draining`, or `drained`."""
    health: str
    reasons: tuple[ReasonRecord, ...]
    backends: tuple[str, ...]
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    disk_total_bytes: int | None
    disk_free_bytes: int | None
    cpu_ratio: float | None
    reading_age_s: float | None
    rtt_median_ms: float | None
    rtt_last_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRecord:
    """What `skulk doctor` says of a node; `verdict` is `well`, `degraded` or `fails`."""

    node_id: str
    name: str
    verdict: str
    liveness: str
    health: str
    reasons: tuple[ReasonRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRecord:
    """How far one runner is in its phase."""

    rank: int
    node_id: str
    phase: str
    phase_s: float
    done_bytes: int | None
    total_bytes: int | None
    rate_bytes_s: float | None
    eta_s: float | None
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRecord:
    """A request that waits for a slot."""

    position: int
    """1 is the next to start."""
    asker: str
    """The id of its API key, or `loopback`."""
    waited_s: int
    expected_s: int | None
    """Until it starts, guessed by how long requests took lately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairRecord:
    """One time that an instance was put on other nodes because it could not go on."""

    at: str | None
    at_ms: int
    code: str
    message: str
    from_names: tuple[str, ...]
    to_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlaceRecord:
    """Why no other node takes an instance that cannot go on where it is."""

    at: str | None
    code: str
    message: str
    remediation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """Why an instance failed."""

    code: str
    message: str
    remediation: str
    phase: str
    attempt: int
    exit_code: int | None
    signal: str | None
    log_tail: tuple[str, ...]
    at: str | None
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRecord:
    """A placed model."""

    instance_id: str
    model_id: str
    phase: str
    attempt: int
    node_ids: tuple[str, ...]
    node_names: tuple[str, ...]
    unreachable_names: tuple[str, ...]
    """Its nodes that the asked node cannot reach now: it serves nobody there meanwhile."""
    shape: str
    backend: str
    plan_id: str
    context_tokens: int
    slots: int
    in_flight: int | None
    queued: int | None
    waiting: tuple[WaitingRecord, ...]
    """The first 32 of the queued requests, in the order in which they start."""
    tokens_per_s: float | None
    """Generated in the last seconds; None while no node tells."""
    predicted_tokens_per_s: float | None
    """Of one answer at a time, when it was placed."""
    answer_tokens_per_s: float | None
    """Of its fastest answer lately."""
    needed_bytes: int
    """As predicted when it was placed."""
    measured_bytes: int | None
    """What it was seen to take at the most, on all its nodes; None until then."""
    memory_error_percent: float | None
    """Of what was measured; negative where too little was predicted."""
    ttl_s: int | None
    """Of one on demand: how long it stays loaded after a request."""
    sleeps_in_s: int | None
    """While it is loaded and idle: what is left of that."""
    priority: int
    """Of idle on-demand models, the lowest makes room first."""
    made_room_for: str | None
    """While it sleeps: the model that it was unloaded for."""
    pinned: bool
    """It stays loaded, and no drain takes it along."""
    pids: tuple[int, ...]
    load_ms: int | None
    placed_at: str | None
    placed_at_ms: int
    replaces: str | None
    """The instance that it takes the place of, while that has not gone."""
    replaced_by: str | None
    """The instance that it is being moved to."""
    moves_to_names: tuple[str, ...]
    """The nodes of that one."""
    moved_from_names: tuple[str, ...]
    """The nodes of the one that it has taken the place of, or does."""
    waits: bool
    """It is started once the one that it replaces has gone."""
    lost_after_s: int
    """One of its nodes may be silent for so long before another place is looked for."""
    replace: bool
    """It is put on other nodes by itself where it cannot go on."""
    stop_after_s: int | None
    """A node that hears no master for so long stops it; None: it serves on."""
    repairs: tuple[RepairRecord, ...]
    """When that has happened, and why; the newest last, 8 at most."""
    no_place: NoPlaceRecord | None
    """Why no other node takes it, where it needs one and has none."""
    progress: tuple[ProgressRecord, ...]
    failure: FailureRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRecord:
    """A download of a model to a node."""

    model_id: str
    node_id: str
    state: str
    phase: str
    done_bytes: int
    total_bytes: int | None
    rate_bytes_s: float | None
    eta_s: float | None
    source: str
    paused_by: str | None = None
    """Who has paused it, where it is paused."""
    paused_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRecord:
    """The cluster as one node sees it."""

    cluster_id: str
    node_id: str
    boot_id: str
    master: str | None
    term: int
    seq: int
    policy: str
    nodes: tuple[NodeRecord, ...]
    instances: tuple[InstanceRecord, ...]
    transfers: tuple[TransferRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRecord:
    """The cluster in short, as `status --watch` tells of it."""

    cluster_id: str
    master: str | None
    master_name: str | None
    term: int
    policy: str
    is_minority: bool
    voters: int
    voters_alive: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BootRecord:
    """What boots of a model have taken, under what that holds for."""

    build: str
    compute: str
    device: str
    context_tokens: int
    slots: int
    layer_start: int
    layer_end: int
    measured_bytes: int
    n_boots: int
    at: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """A model of the catalogue."""

    model_id: str
    name: str
    size_bytes: int
    family: str
    quantization: str
    context_length: int | None
    context_window: int | None
    tasks: tuple[str, ...]
    capabilities: tuple[str, ...]
    backends: tuple[str, ...]
    source: str
    installed: bool
    placed: bool
    ready: bool
    license: str
    measured: tuple[BootRecord, ...]
    """What it has taken where it ran, the newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArithmeticRecord:
    """The memory arithmetic of one share on one node."""

    node_id: str
    node_name: str
    rank: int | None
    layer_start: int | None
    layer_end: int | None
    pool: str
    weights_bytes: int
    kv_cache_bytes: int
    overhead_bytes: int
    needed_bytes: int
    reserved_bytes: int
    available_bytes: int
    headroom_bytes: int
    kv_bytes_per_token: int
    context_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpeedRecord:
    """What a token reads of one rank, and how fast."""

    node_id: str
    node_name: str
    read_bytes: int
    rate_bytes_s: int
    ms_per_token: float
    measured: bool
    """By what ran on the node; else it is typical of its hardware."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRecord:
    """How fast one answer at a time is expected to be generated."""

    tokens_per_s: float
    link_ms_per_token: float
    links_measured: bool
    measured: bool
    """Whether all of it rests on measurements; else it may be wrong by a factor of two."""
    ranks: tuple[RankSpeedRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRecord:
    """One way to place the model, or why it cannot be placed there."""

    fits: bool
    node_ids: tuple[str, ...]
    node_names: tuple[str, ...]
    plan_id: str | None
    shape: str | None
    backend: str | None
    context_tokens: int | None
    slots: int | None
    alternative: bool
    download_bytes: int
    context_limited_by: str
    speed: SpeedRecord | None
    """As predicted; None where it cannot be told."""
    arithmetic: tuple[ArithmeticRecord, ...]
    refusal_code: str | None
    refusal: str | None
    broken_term: str | None
    smallest_change: str | None
    smallest_change_context_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """An API key; `key` is there once, in the answer that made it or its secret."""

    key_id: str
    name: str
    scope: str
    created_at: str | None
    expires_at: str | None
    is_expired: bool
    requests_per_minute: int | None
    concurrent_requests: int | None
    previous_until: str | None
    """So long the secret before the last rotation is accepted too."""
    open_requests: int | None
    """On the node that was asked."""
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRecord:
    """A model file that was found or imported."""

    source: str
    name: str
    path: str
    size_bytes: int | None
    model_id: str | None
    imported: bool
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """A model's files on one node."""

    model_id: str
    node_id: str
    node_name: str
    size_bytes: int
    in_use: bool
    linked: bool
    path: str
    damaged: tuple[str, ...] = ()
    """Files that a verification has found damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRecord:
    """What became of one target of a command that takes several."""

    target: str
    instance_id: str | None = None
    model_id: str | None = None
    outcome: str
    freed_bytes: int | None = None
    error_code: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenersRecord:
    """Where the node is served."""

    urls: tuple[str, ...]
    base_urls: tuple[str, ...]
    """What works from another machine, the best first."""
    beyond_loopback: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """This program's version."""

    version: str
    python: str
    platform: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InfoRecord:
    """How this program would ask whom, and where its files lie."""

    version: str
    node: str
    node_rule: str
    reachable: bool
    node_version: str | None
    node_name: str | None
    api_key: str
    config_dir: str
    output: str
    color: bool
    timeout_s: float | None
    problem: str | None
    state_dir: str
    """Crashes, copied text, names for completion."""
    cache_dir: str
    cluster: str | None
    """The saved cluster that the node is of, where one was chosen."""
    readonly: bool
    """What would change something is refused."""
    protect: bool
    """Every change is asked about."""
    ascii: bool
    """Only ASCII characters are shown."""
    daemon_user: str | None
    """Whose daemon it is, on this machine, where that can be told."""
    is_own_daemon: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRecord:
    """The script of one shell."""

    name: str
    script: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """One line of a help topic."""

    name: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRecord:
    """One whole answer of a model."""

    model_id: str
    command_id: str | None
    text: str
    reasoning: str
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    first_token_s: float | None
    total_s: float
    tokens_per_s: float | None
