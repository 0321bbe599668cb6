"""What `--json` gives about the cluster itself; as in skulk_tui/cli/records.py."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """A member of the cluster, as the node that was asked sees it."""

    node_id: str
    name: str
    role: str
    presence: str
    liveness: str
    eligibility: str
    """Whether models may be placed there: `eligible`, `draining`, or `drained`."""
    is_self: bool
    is_master: bool
    silent_s: float | None
    link: str | None
    link_reason: str
    rtt_median_ms: float | None
    rtt_last_ms: float | None
    addresses: tuple[str, ...]
    dialled: str | None
    api_port: int
    api_tls: bool
    """Whether it speaks TLS there, beyond loopback."""
    build: str | None
    public_key: str
    since: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StrangerRecord:
    """Somebody who dialled and was refused."""

    public_key: str
    address: str
    reason: str
    first_ago_s: float
    last_ago_s: float
    tries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateRecord:
    """Two daemons on one key."""

    node_id: str
    name: str
    addresses: tuple[str, ...]
    last_ago_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergenceRecord:
    """The node's log was replaced by its master's."""

    at: str | None
    term: int
    seq: int
    discarded: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRecord:
    """The cluster as one node sees it."""

    cluster_id: str
    node_id: str
    name: str
    is_open: bool
    base_port: int | None
    bound: tuple[str, ...]
    advertised: tuple[str, ...]
    missing: tuple[str, ...]
    role: str
    master: str | None
    last_master: str | None
    term: int
    is_minority: bool
    policy: str
    voters: int
    voters_alive: int
    is_majority: bool
    commit_seq: int
    appended_seq: int
    journal: str
    mdns: str
    mdns_reason: str
    mdns_seen: int
    members: tuple[MemberRecord, ...]
    strangers: tuple[StrangerRecord, ...]
    duplicates: tuple[DuplicateRecord, ...]
    divergence: DivergenceRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InvitationRecord:
    """An invitation; `token` or `code` is there once, in the answer that made it."""

    token_id: str
    kind: str
    inviter: str
    uses_left: int
    is_valid: bool
    created_at: str | None
    expires_at: str | None
    addresses: tuple[str, ...] = ()
    token: str | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRecord:
    """A node has joined a cluster."""

    cluster_id: str
    inviter: str
    address: str
    archived: str
    is_member: bool
    """It takes part already; false when nobody waited for that."""
    master: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecord:
    """Who may elect a master."""

    policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterRecord:
    """Who is master."""

    node_id: str
    name: str
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLineRecord:
    """One line of a log; an engine's has only `message`."""

    node_id: str
    node_name: str
    instance_id: str | None
    at: str | None
    level: str | None
    logger: str | None
    message: str
    command_id: str | None
    extra: dict[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """One event of the cluster's log; `event` is as the API spells it."""

    term: int
    seq: int
    at: str | None
    kind: str
    command_id: str | None
    event: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRecord:
    """One thing that happened on behalf of a command; without a node the cluster decided it."""

    at: str | None
    node_id: str | None
    node_name: str | None
    source: str
    kind: str
    text: str
