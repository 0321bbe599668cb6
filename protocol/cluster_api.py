"""Bodies of the control API about the cluster itself: who is in it, how it is, how one joins.

As in protocol/control_api.py; all of these are snake_case on the wire.
"""

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from protocol.control_api import (
    ControlModel,
    NodeHealthView,
    NodeResourcesView,
)
from protocol.errors import DetailValue, ErrorBody
from protocol.ids import (
    ClusterIdField,
    InstanceIdField,
    ModelIdField,
    NodeIdField,
    TokenIdField,
)
from protocol.nodes import Eligibility, Presence, Role
from protocol.readings import LinkWord
from protocol.state import Policy
from protocol.storage_api import StorageDocument

# ---- The cluster -------------------------------------------------------------------------------

Liveness = Literal["joining", "alive", "suspect", "lost", "left"]
"""`alive` and `suspect` part the present members by whether the answering node hears them now; the
others are what the cluster has agreed on."""
TermRole = Literal["master", "member", "none"]
"""`none` is between terms: no living master is known."""
JournalWord = Literal["durable", "memory"]
MdnsWord = Literal["off", "running", "failed"]


class MemberView(ControlModel):
    """A member, as the answering node sees it."""

    node_id: NodeIdField
    name: str
    role: Role
    presence: Presence
    since_ms: int
    """When `presence` came to be."""
    eligibility: Eligibility = "eligible"
    """Whether models may be placed on it, and while they may not whether any is left there."""
    liveness: Liveness
    is_self: bool = False
    """It is the node that answers."""
    is_master: bool = False
    silent_s: float | None = None
    """Since its last heartbeat; None for the answering node, and for one never heard."""
    link: LinkWord | None = None
    """How the way there is; None for the answering node."""
    link_reason: str = ""
    """Why it is not up."""
    rtt_median_ms: float | None = None
    """To it and back, of the last nine words (one in 20 s); None while not measured, never 0."""
    rtt_last_ms: float | None = None
    addresses: tuple[str, ...] = ()
    dialled: str | None = None
    """The address in use."""
    api_port: int = 0
    """0 where it serves no HTTP."""
    api_tls: bool = False
    """Whether it speaks TLS there, beyond loopback."""
    build: str | None = None
    public_key: str = ""


class QuorumView(ControlModel):
    """How many voters there are, and how many of them the answering node hears."""

    voters: int
    alive: int
    is_majority: bool
    """More than half of the voters are alive."""


class StrangerView(ControlModel):
    """Somebody who dialled and was refused."""

    public_key: str
    address: str
    reason: str
    first_ago_s: float
    last_ago_s: float
    tries: int


class DuplicateView(ControlModel):
    """Two daemons that live on one key: a copied home."""

    node_id: NodeIdField
    name: str = ""
    addresses: tuple[str, ...]
    last_ago_s: float


class DivergenceView(ControlModel):
    """This node's log did not agree with its master's, and was replaced by it."""

    at_ms: int
    term: int
    seq: int
    """The last position at which both logs agreed, as far as that is known."""
    discarded: int
    """How many events of this node went."""
    message: str = ""


class MdnsView(ControlModel):
    """Whether this node announces itself and looks for others."""

    status: MdnsWord
    reason: str = ""
    seen: int = 0
    """Other nodes announced at the moment, of any cluster."""


class ClusterDocument(ControlModel):
    """`GET /v1/cluster`: the cluster as this node sees it."""

    node_id: NodeIdField
    """The node that answered."""
    name: str
    cluster_id: ClusterIdField
    is_open: bool
    """Its cluster ports are bound; a closed node is a cluster of one."""
    base_port: int | None = None
    bound: tuple[str, ...] = ()
    advertised: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """What --bind asks for and is not there now, in words."""
    role: TermRole
    master: NodeIdField | None = None
    last_master: NodeIdField | None = None
    term: int
    is_minority: bool = False
    """The master was elected by half of the voters or fewer."""
    policy: Policy
    quorum: QuorumView
    commit_seq: int
    appended_seq: int
    journal: JournalWord = "durable"
    members: tuple[MemberView, ...] = ()
    strangers: tuple[StrangerView, ...] = ()
    mdns: MdnsView = MdnsView(status="off")
    duplicates: tuple[DuplicateView, ...] = ()
    divergence: DivergenceView | None = None


class NodeView(ControlModel):
    """A member with its health and resources."""

    member: MemberView
    health: NodeHealthView | None = None
    resources: NodeResourcesView | None = None


class NodesDocument(ControlModel):
    """`GET /v1/nodes`."""

    seq: int
    items: tuple[NodeView, ...] = ()


# ---- Joining and leaving -----------------------------------------------------------------------

InvitationKind = Literal["token", "code"]
NodeWord = Annotated[str, StringConstraints(min_length=1, max_length=64)]
"""A node's name or id."""
MAX_TTL_S: Final = 7 * 86400
"""Of an invitation; the master grants no more."""


class InviteBody(ControlModel):
    """`POST /v1/cluster/invite`."""

    kind: InvitationKind = "token"
    uses: Annotated[int, Field(ge=1, le=1000)] = 1
    """A code serves once."""
    ttl_s: Annotated[int, Field(ge=10, le=MAX_TTL_S)] | None = None
    """None: an hour for a token, ten minutes for a code, which cannot live longer."""


class Invitation(ControlModel):
    """The only time that its secret is shown."""

    token_id: TokenIdField
    kind: InvitationKind
    token: Annotated[str | None, Field(repr=False)] = None
    """What `skulk cluster join` takes; None with a code."""
    code: Annotated[str | None, Field(repr=False)] = None
    """Six words; None with a token."""
    uses: int
    expires_at_ms: int
    cluster_id: ClusterIdField
    inviter: NodeIdField
    addresses: tuple[str, ...] = ()
    """Where the guest will knock, `HOST:BASE`."""
    was_opened: bool = False
    """This node was closed, and listens to other nodes from now on."""


class TokenView(ControlModel):
    """An invitation without its secret."""

    token_id: TokenIdField
    kind: InvitationKind
    inviter: NodeIdField
    inviter_name: str = ""
    created_at_ms: int
    expires_at_ms: int
    uses_left: int
    is_valid: bool
    """It has uses left and has not expired."""


class TokenList(ControlModel):
    """`GET /v1/cluster/tokens`."""

    items: tuple[TokenView, ...] = ()


class JoinBody(ControlModel):
    """`POST /v1/cluster/join`: by exactly one of `token` and `code`."""

    token: Annotated[
        Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None, Field(repr=False)
    ] = None
    code: Annotated[
        Annotated[str, StringConstraints(min_length=1, max_length=200)] | None, Field(repr=False)
    ] = None
    peers: Annotated[
        tuple[Annotated[str, StringConstraints(min_length=1, max_length=400)], ...],
        Field(max_length=32),
    ] = ()
    """`[KEY@]HOST:PORT`; beside or in place of the token's addresses and mDNS."""
    discard: bool = False
    """Give up what this node has decided so far: instances stop, the journal is archived."""


class Joined(ControlModel):
    """The cluster has admitted this node, whose rooms now start anew: HTTP is away for a moment."""

    cluster_id: ClusterIdField
    inviter: NodeIdField
    address: str
    """Through which it joined."""
    archived: str = ""
    """Where the journal went that `discard` gave up; empty where there was nothing to give up."""


class PolicyBody(ControlModel):
    """`PUT /v1/cluster/policy`."""

    policy: Policy


class HandoverBody(ControlModel):
    """`POST /v1/cluster/handover`."""

    node: NodeWord | None = None
    """Who shall be master; None lets the master choose."""


class HandoverDone(ControlModel):
    """Who is master now."""

    master: NodeIdField
    name: str = ""
    term: int


# ---- Through another node ----------------------------------------------------------------------


class UnansweredNode(ControlModel):
    """A node that did not answer when the whole cluster was asked."""

    node_id: NodeIdField
    name: str = ""
    error: ErrorBody


class ModelHolders(ControlModel):
    """Which nodes hold a model's files."""

    model_id: ModelIdField
    node_ids: tuple[NodeIdField, ...]


class ClusterStorage(StorageDocument):
    """`GET /store/storage` without `?node=`: this node's disk, and those of the others."""

    others: tuple[StorageDocument, ...] = ()
    holders: tuple[ModelHolders, ...] = ()
    """Over all nodes that answered, by model."""
    unanswered: tuple[UnansweredNode, ...] = ()


class LogLineView(ControlModel):
    """One line of a log. An engine writes plain text: only `message` is there then."""

    at: str | None = None
    """RFC 3339, UTC."""
    level: str | None = None
    logger: str | None = None
    message: str
    command_id: str | None = None
    extra: dict[str, DetailValue] = {}


class LogsDocument(ControlModel):
    """`GET /v1/logs`: lines of one log, oldest first."""

    node_id: NodeIdField
    name: str = ""
    instance_id: InstanceIdField | None = None
    """None is the daemon's own log."""
    lines: tuple[LogLineView, ...] = ()
    next_after: str
    """What to ask for next."""
    has_more: bool = False
    """There are further lines already."""
    was_cut: bool = False
    """Lines after the given position are gone: the log was capped."""
