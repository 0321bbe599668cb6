"""Frames of `/v1/session`, the WebSocket between an operator's program and a node.

One JSON object a text message, in both directions; docs/session-protocol.md says who sends what,
when, and what happens when it does not arrive. A node refuses unknown fields of a client's frame; a
client reads a node's frames with `read_node_frame` and thereby passes over what a newer node adds.
"""

from functools import cache
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints, TypeAdapter

from protocol.control_api import ControlModel
from protocol.errors import ErrorBody
from protocol.ids import (
    ClusterIdField,
    CommandIdField,
    InstanceIdField,
    NodeIdField,
)
from protocol.state import Scope

SESSION_PATH: Final = "/v1/session"
SESSION_VERSION: Final = 1
"""The protocol's major version: both ends must have one in common."""
CLIENT_FRAME_MAX_BYTES: Final = 1 << 20
"""A larger message ends the session; chat with images goes over HTTP."""
NODE_FRAME_MAX_BYTES: Final = 4 << 20
HELLO_WITHIN_S: Final = 5.0
"""From the upgrade to the client's hello."""
PING_S: Final = 1.0
"""The node pings after this much silence of its own, so that a living link is never quiet."""
MAX_SUBSCRIPTIONS: Final = 64
MAX_REQUESTS: Final = 64
"""Requests and streams of one session that are unanswered at a time."""

FrameId = Annotated[int, Field(ge=1, le=2**53)]
"""Chosen by the client, new for each subscription, request and stream of a session."""
Word = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Cursor = Annotated[str, StringConstraints(min_length=1, max_length=200)]
"""Opaque to clients: where a topic stands. Good on the node and boot that gave it, and for `events`
on any node."""

RowTopic = Literal["cluster", "placements", "transfers", "models", "health"]
LineTopic = Literal["events", "logs", "command"]
Topic = Literal[
    "cluster", "placements", "transfers", "models", "health", "events", "logs", "command"
]
FeedState = Literal["full", "latest", "summary"]
"""How much of its topics a client gets: all; only the newest of each row, as it has been too slow
for 2 s; only the cluster's own row, after 10 s."""


# ---- What a client sends -----------------------------------------------------------------------


class ClientHello(ControlModel):
    """First, and only once."""

    type: Literal["hello"] = "hello"
    versions: Annotated[tuple[Annotated[int, Field(ge=1, le=1000)], ...], Field(max_length=16)] = (
        SESSION_VERSION,
    )
    client: Annotated[str, StringConstraints(max_length=200)] = ""
    """Program and version, for the log."""
    credit_bytes: Annotated[int, Field(ge=4096, le=64 << 20)] = 1 << 20
    """How many bytes of messages the node may send ahead of the client's credit."""


class Subscribe(ControlModel):
    """Follow a topic: what it holds now, or what is new since a cursor, then what changes.

    `logs` takes `instance_id`, or else `node` (a name or id; none is the node attached to);
    `command` takes `command_id`.
    """

    type: Literal["subscribe"] = "subscribe"
    id: FrameId
    topic: Topic
    cursor: Cursor | None = None
    node: Word | None = None
    instance_id: InstanceIdField | None = None
    command_id: CommandIdField | None = None
    backlog: Annotated[int, Field(ge=0, le=1000)] = 200
    """Of a line topic without a cursor: how many of the newest lines come first."""


class Unsubscribe(ControlModel):
    """Follow a topic no more. Frames on their way may still arrive."""

    type: Literal["unsubscribe"] = "unsubscribe"
    id: FrameId


class SessionRequest(ControlModel):
    """Ask one route of the HTTP API; answered by one `answer`, whatever happens.

    The key's scope, limits, errors and `?node=` are those of HTTP.
    """

    type: Literal["request"] = "request"
    id: FrameId
    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: Annotated[str, StringConstraints(pattern=r"^/", max_length=2000)]
    """As in a URL, percent-encoded, without the query."""
    query: Annotated[str, StringConstraints(max_length=8000)] = ""
    body: Any = None
    deadline_s: Annotated[float, Field(gt=0, le=3600)] = 30.0


class OpenStream(ControlModel):
    """Begin a chat: a request to `/v1/chat/completions`, answered by `stream` frames.

    What is generated goes on for a minute without a reader, so that a session that was cut can
    `resume` it.
    """

    type: Literal["open"] = "open"
    id: FrameId
    body: dict[str, Any]


class ResumeStream(ControlModel):
    """Go on reading a stream, on the node that took its request."""

    type: Literal["resume"] = "resume"
    id: FrameId
    command_id: CommandIdField
    offset: Annotated[int, Field(ge=0, le=2**53)] = 0
    """How many events of it the client has."""


class Cancel(ControlModel):
    """Give up a request, or stop a stream: its generation ends too."""

    type: Literal["cancel"] = "cancel"
    id: FrameId


class Credit(ControlModel):
    """The client has taken so many bytes of messages."""

    type: Literal["credit"] = "credit"
    bytes: Annotated[int, Field(ge=1, le=64 << 20)]


class Ping(ControlModel):
    """Either end asks whether the other is there; `pong` answers with the same number."""

    type: Literal["ping"] = "ping"
    n: Annotated[int, Field(ge=0, le=2**53)] = 0


class Pong(ControlModel):
    """Answers a `ping`."""

    type: Literal["pong"] = "pong"
    n: Annotated[int, Field(ge=0, le=2**53)] = 0


ClientFrame = Annotated[
    ClientHello
    | Subscribe
    | Unsubscribe
    | SessionRequest
    | OpenStream
    | ResumeStream
    | Cancel
    | Credit
    | Ping
    | Pong,
    Field(discriminator="type"),
]


# ---- What a node sends -------------------------------------------------------------------------


class NodeHello(ControlModel):
    """Answers the client's hello; everything else comes after it."""

    type: Literal["hello"] = "hello"
    version: int
    build: str
    node_id: NodeIdField
    name: str
    boot_id: str
    cluster_id: ClusterIdField
    scope: Scope | None = None
    """What the key, or loopback, allows; None allows nothing but looking at the door."""
    who: str = ""
    """`loopback`, or the id of the key."""
    at_ms: int
    """The node's wall clock, for ages across machines."""


class Rows(ControlModel):
    """Rows of a topic that are new since the last frame of this subscription.

    `rows` maps a key to the row's document, or to None where the row is gone. A snapshot holds all
    rows: a client forgets what it had. Between two frames of a subscription a row is sent once, as
    it is by then; an unsent older form of it is skipped.
    """

    type: Literal["rows"] = "rows"
    id: FrameId
    cursor: str
    is_snapshot: bool = False
    rows: dict[str, Any] = {}
    at_ms: int


class Lines(ControlModel):
    """Further items of a line topic, oldest first."""

    type: Literal["lines"] = "lines"
    id: FrameId
    cursor: str
    items: tuple[dict[str, Any], ...] = ()
    was_cut: bool = False
    """Items before these, and after the cursor before, are lost: a gap."""
    gap: str = ""
    """What is missing, in words."""
    at_ms: int


class Ended(ControlModel):
    """A subscription is over: refused, its source gone, or taken back."""

    type: Literal["ended"] = "ended"
    id: FrameId
    error: ErrorBody | None = None


class SessionAnswer(ControlModel):
    """The one answer to a request."""

    type: Literal["answer"] = "answer"
    id: FrameId
    status: int
    """As HTTP has it; 504 where the deadline passed, 499 where the client cancelled."""
    body: Any = None
    """The document; the error document of the HTTP API where `status` is 400 or more."""


class StreamEvents(ControlModel):
    """Further events of a stream: the chunks that HTTP would send as server-sent events."""

    type: Literal["stream"] = "stream"
    id: FrameId
    command_id: CommandIdField
    offset: int
    """Of the first of these events; they are counted from 0."""
    events: tuple[dict[str, Any], ...] = ()
    is_end: bool = False
    """The stream is over, well or, by its last event, with an error."""


class StreamRefused(ControlModel):
    """A stream that did not come to be, or cannot be resumed."""

    type: Literal["refused"] = "refused"
    id: FrameId
    error: dict[str, Any]
    """The `error` of the HTTP API's error document."""


class Feed(ControlModel):
    """The node has changed how much it sends, because of how fast this client reads."""

    type: Literal["feed"] = "feed"
    state: FeedState


class Closing(ControlModel):
    """Why the session ends; the socket closes after it."""

    type: Literal["closing"] = "closing"
    error: ErrorBody


NodeFrame = Annotated[
    NodeHello
    | Rows
    | Lines
    | Ended
    | SessionAnswer
    | StreamEvents
    | StreamRefused
    | Feed
    | Ping
    | Pong
    | Closing,
    Field(discriminator="type"),
]

# ---- Rows and lines -----------------------------------------------------------------------------

RowKind = Literal[
    "cluster",  # ClusterHead; the kind is the whole key
    "node",  # NodeView, by node
    "link",  # LinkEdge, by the node it leads from and the one it leads to
    "stranger",  # StrangerView, by public key
    "instance",  # InstanceView, by instance
    "failure",  # InstanceFailure, by instance
    "refusal",  # PlacementFailure, by instance
    "transfer",  # TransferStatus, by node and model
    "model",  # ModelEntry, by model
    "health",  # NodeHealthView, by node
]
"""What a row is about, and its document, in snake_case whatever HTTP has."""


def row_key(kind: RowKind, *ids: str) -> str:
    """Give a row's key: its kind and the ids that name it.

    No id but a model's has a slash, and a model's stands last.
    """
    return "/".join((kind, *ids))


def kind_of_row(key: str) -> str:
    """Give the kind of a row, which may be one that this build does not know."""
    return key.partition("/")[0]


class ClusterHead(ControlModel):
    """The row `cluster` of the topic `cluster`, and all that a client with feed `summary` gets."""

    name: str
    cluster_id: ClusterIdField
    policy: str
    term: int
    seq: int
    master: NodeIdField | None = None
    """None between terms."""
    is_minority: bool = False
    """This node sees half of the voters or fewer."""
    voters: int = 1
    alive: int = 1
    ready: int = 0
    """Instances that answer."""
    loading: int = 0
    failed: int = 0
    tokens_per_s: float | None = None
    """Generated in the whole cluster; None while no node tells."""
    alerts: int = 0
    """Nodes that are not well, and instances that have failed."""
    is_durable: bool = True


class TimelineEntry(ControlModel):
    """An item of the topic `command`: one thing that happened on behalf of one command."""

    at_ms: int
    node_id: NodeIdField | None = None
    """None for what the cluster decided."""
    node_name: str = ""
    source: Literal["event", "log"]
    kind: str
    """The event's kind, or the log line's level."""
    text: str


@cache
def _client_frames() -> TypeAdapter[ClientFrame]:
    return TypeAdapter[ClientFrame](ClientFrame)


@cache
def _node_frames() -> TypeAdapter[NodeFrame]:
    return TypeAdapter[NodeFrame](NodeFrame)


def read_client_frame(text: str | bytes) -> ClientFrame:
    """Parse a client's frame.

    Raises:
        ValidationError: It is none, or has unknown fields.
    """
    return _client_frames().validate_json(text)


def read_node_frame(text: str | bytes) -> NodeFrame:
    """Parse a node's frame, passing over fields this build does not know.

    Raises:
        ValidationError: It is none, or of a type this build does not know.
    """
    return _node_frames().validate_json(text, extra="ignore")
