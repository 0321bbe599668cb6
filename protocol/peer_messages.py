"""What nodes say to each other, beside data frames and files: election, log, requests.

Three forms. Messages of the election plane and batches of events are tuples with fixed fields,
checked by hand, because they are many. Requests between nodes are models, because they are varied.
"""

from typing import Annotated, Final, Literal, NamedTuple, cast

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from protocol.base import FrozenModel
from protocol.codec import decode_values, encode_values
from protocol.commands import Command, CommandReply
from protocol.envelope import MAX_PAYLOAD_BYTES, Plane
from protocol.errors import ErrorBody, ProtocolError
from protocol.ids import CommandIdField, DigestField, NodeIdField

CHAIN_BYTES: Final = 16
MAX_MEMBERS: Final = 256
MAX_BATCH_RECORDS: Final = 4096

Number = Annotated[int, Field(ge=0, lt=1 << 63)]
Chain = Annotated[bytes, Field(min_length=CHAIN_BYTES, max_length=CHAIN_BYTES)]
BootId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
RecordBody = Annotated[bytes, Field(min_length=1, max_length=MAX_PAYLOAD_BYTES["events"])]


class TermPair(NamedTuple):
    """A term: its number and its master. Pairs are totally ordered, and a lower one is rejected.

    Two sides of a partition may elect under one number (policy `availability`): the master's id
    tells their terms apart.
    """

    number: Number
    master: NodeIdField


class LogPosition(NamedTuple):
    """Where a log ends. Compared as a tuple: the greater one is fresher.

    The settled position comes first, so that what a cut-off minority decided never counts as
    fresher than what a majority went on deciding.
    """

    settled_term: Number
    settled_seq: Number
    term: Number
    seq: Number


# ---- Election plane ----


class Heartbeat(NamedTuple):
    """A node is alive, from its event loop; sent to every member each interval."""

    boot_id: BootId
    """Of the daemon that sends it; two at a time mean that an identity was copied."""
    number: Number
    """Of the term of `master`; the highest that the sender knows when it follows none."""
    master: NodeIdField | None
    """Whom it follows in that term, itself when it is master; None when it knows none."""
    is_minority: bool
    """Of that term."""
    position: LogPosition
    """Of its journal, as far as it is durable."""
    commit_seq: Number
    chain: Chain
    """After `position.seq`, 16 bytes."""
    unheard: Annotated[tuple[NodeIdField, ...], Field(max_length=MAX_MEMBERS)]
    """Members whose last heartbeat is older than the suspicion time."""
    is_lagging: bool
    """Its own loop was late, so that it accuses nobody."""
    hash_seq: Number
    """0 where no state hash is said."""
    state_hash: Annotated[bytes, Field(max_length=16)]
    """The first 16 bytes of the state hash after `hash_seq`; empty with it 0."""


class Campaign(NamedTuple):
    """A node asks for votes."""

    number: Number
    is_trial: bool
    """A pre-vote: would you vote for me? Promises nothing on either side."""
    position: LogPosition
    is_handover: bool
    """The master itself asked for this campaign."""


Denial = Literal["", "term", "voted", "master", "log", "lagging", "disk"]
"""Why a vote was not given; empty when it was. `disk`: it cannot be made durable there."""


class Vote(NamedTuple):
    """The answer to a campaign."""

    number: Number
    """Of the campaign."""
    is_trial: bool
    denial: Denial
    known_number: Number
    """The highest number the voter knows."""


class Handover(NamedTuple):
    """The master asks a member that is caught up to campaign now."""

    number: Number
    """The master's term."""


class Farewell(NamedTuple):
    """A node stops; nobody needs to wait for its silence."""

    number: Number


ElectionMessage = Heartbeat | Campaign | Vote | Handover | Farewell

# ---- Events plane ----


class EventBatch(NamedTuple):
    """Events of a term, from its master; empty batches carry the commit position."""

    number: Number
    master: NodeIdField
    prev_seq: Number
    prev_chain: Chain
    """After `prev_seq`: the receiver's log must agree up to there."""
    commit_seq: Number
    records: Annotated[tuple[RecordBody, ...], Field(max_length=MAX_BATCH_RECORDS)]
    """Bodies of journal records, in order, from `prev_seq + 1`."""


class Journalled(NamedTuple):
    """A member's log is durable up to `seq` and agrees with the master's; control plane."""

    number: Number
    seq: Number


# ---- Requests between nodes, control plane ----


class SubmitCommand(FrozenModel):
    """Have the master decide a command."""

    kind: Literal["submit_command"] = "submit_command"
    command: Command


class CommandAnswer(FrozenModel):
    """A command was committed."""

    kind: Literal["command_answer"] = "command_answer"
    reply: CommandReply


class FetchEvents(FrozenModel):
    """Have the master send what follows a position, if the logs agree there."""

    kind: Literal["fetch_events"] = "fetch_events"
    number: Number
    """The term the asker follows."""
    after_seq: Number
    after_chain: Chain


class EventRange(FrozenModel):
    """What follows."""

    kind: Literal["event_range"] = "event_range"
    outcome: Literal["events", "gone", "diverged"]
    """`gone`: so old that only a snapshot helps; `diverged`: the logs do not agree there."""
    number: Number
    commit_seq: Number = 0
    head_seq: Number = 0
    records: Annotated[tuple[RecordBody, ...], Field(max_length=MAX_BATCH_RECORDS)] = ()


class OpenSnapshot(FrozenModel):
    """Have the master keep a snapshot of its log's end ready to be fetched."""

    kind: Literal["open_snapshot"] = "open_snapshot"
    number: Number


class SnapshotOpened(FrozenModel):
    """A snapshot waits, for a minute after its last chunk was asked for."""

    kind: Literal["snapshot_opened"] = "snapshot_opened"
    snapshot_id: Number
    number: Number
    term: Number
    seq: Number
    at_ms: int
    chain: Chain
    size_bytes: Annotated[int, Field(ge=1, le=256 << 20)]
    digest: DigestField


class FetchSnapshotChunk(FrozenModel):
    """Give a piece of it."""

    kind: Literal["fetch_snapshot_chunk"] = "fetch_snapshot_chunk"
    snapshot_id: Number
    offset: Number


class SnapshotChunk(FrozenModel):
    """At most 256 KiB."""

    kind: Literal["snapshot_chunk"] = "snapshot_chunk"
    data: Annotated[bytes, Field(max_length=256 << 10)]


class CancelTask(FrozenModel):
    """End a task of the node that is asked."""

    kind: Literal["cancel_task"] = "cancel_task"
    command_id: CommandIdField


class TaskCancelled(FrozenModel):
    """Whether there was such a task."""

    kind: Literal["task_cancelled"] = "task_cancelled"
    was_known: bool


class CallApi(FrozenModel):
    """Answer a control request of the HTTP API here, for a client of the asking node.

    The asking node has checked the client's key against the route's scope.
    """

    kind: Literal["call_api"] = "call_api"
    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: Annotated[str, StringConstraints(pattern=r"^/[^\s?#]*$", max_length=1024)]
    query: Annotated[str, StringConstraints(max_length=4096)] = ""
    body: Annotated[bytes, Field(max_length=1 << 20)] = b""
    command_id: CommandIdField | None = None


class ApiAnswer(FrozenModel):
    """What the route answered."""

    kind: Literal["api_answer"] = "api_answer"
    status: Annotated[int, Field(ge=100, le=599)]
    content_type: Annotated[str, StringConstraints(pattern=r"^[!-~][ -~]{0,99}$")] = (
        "application/json"
    )
    body: Annotated[bytes, Field(max_length=3 << 20)] = b""


class HoldProbe(FrozenModel):
    """Let the asker alone measure the cluster's links for some seconds; the master grants it."""

    kind: Literal["hold_probe"] = "hold_probe"
    number: Number
    """Of the series of measurements, the asker's own."""
    is_over: bool = False
    """The series has ended: give the hold back."""


class ProbeHeld(FrozenModel):
    """It may, or has given the hold back."""

    kind: Literal["probe_held"] = "probe_held"


class MeasureLink(FrozenModel):
    """Measure how fast bytes come from another node, and tell all."""

    kind: Literal["measure_link"] = "measure_link"
    peer: NodeIdField
    even_busy: bool = False
    """Also while one of the two answers requests of clients."""


class LinkMeasured(FrozenModel):
    """How fast they came."""

    kind: Literal["link_measured"] = "link_measured"
    rate_bytes_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    n_bytes: Number


class Refused(FrozenModel):
    """The request was refused or failed; stands in place of any answer."""

    kind: Literal["refused"] = "refused"
    error: ErrorBody


PeerRequest = Annotated[
    SubmitCommand
    | FetchEvents
    | OpenSnapshot
    | FetchSnapshotChunk
    | CancelTask
    | CallApi
    | HoldProbe
    | MeasureLink,
    Field(discriminator="kind"),
]
PEER_REQUEST: TypeAdapter[PeerRequest] = TypeAdapter(PeerRequest)

PeerAnswer = Annotated[
    CommandAnswer
    | EventRange
    | SnapshotOpened
    | SnapshotChunk
    | TaskCancelled
    | ApiAnswer
    | ProbeHeld
    | LinkMeasured
    | Refused,
    Field(discriminator="kind"),
]
PEER_ANSWER: TypeAdapter[PeerAnswer] = TypeAdapter(PeerAnswer)

# ---- Frames of the control plane ----


class Ask(NamedTuple):
    """A request, with the number its answer names."""

    request_id: Number
    body: bytes
    """A packed `PeerRequest`."""


class Answer(NamedTuple):
    """The answer to a request."""

    request_id: Number
    body: bytes
    """A packed `PeerAnswer`."""


ControlFrame = Ask | Answer | Journalled
EventsFrame = EventBatch

# ---- Tuples to bytes and back ----

_Frame = ElectionMessage | ControlFrame | EventsFrame

_KINDS: Final[dict[Plane, dict[str, type[_Frame]]]] = {
    "election": {
        "heartbeat": Heartbeat,
        "campaign": Campaign,
        "vote": Vote,
        "handover": Handover,
        "farewell": Farewell,
    },
    "control": {"ask": Ask, "answer": Answer, "journalled": Journalled},
    "events": {"batch": EventBatch},
}
_NAMES: Final[dict[type[_Frame], str]] = {
    kind: name for kinds in _KINDS.values() for name, kind in kinds.items()
}
_ADAPTERS: Final[dict[type[_Frame], TypeAdapter[_Frame]]] = {
    kind: TypeAdapter(kind) for kind in _NAMES
}


def pack_frame(frame: _Frame) -> bytes:
    """Encode a frame of the election, control or events plane."""
    return encode_values((_NAMES[type(frame)], *frame))


def unpack_election(payload: bytes) -> ElectionMessage:
    """Decode a payload of the election plane.

    Raises:
        ProtocolError: `protocol.too_large`, `protocol.bad_frame`.
    """
    return cast("ElectionMessage", _unpack("election", payload))


def unpack_control(payload: bytes) -> ControlFrame:
    """Decode a payload of the control plane.

    Raises:
        ProtocolError: `protocol.too_large`, `protocol.bad_frame`.
    """
    return cast("ControlFrame", _unpack("control", payload))


def unpack_events(payload: bytes) -> EventsFrame:
    """Decode a payload of the events plane.

    Raises:
        ProtocolError: `protocol.too_large`, `protocol.bad_frame`.
    """
    return cast("EventsFrame", _unpack("events", payload))


def _unpack(plane: Plane, payload: bytes) -> _Frame:
    values = decode_values(payload, max_bytes=MAX_PAYLOAD_BYTES[plane])
    if not isinstance(values, tuple) or not values:
        raise _bad_frame("it is no tuple")
    fields = cast("tuple[object, ...]", values)
    name = fields[0]
    kind = _KINDS[plane].get(name) if isinstance(name, str) else None
    if kind is None:
        reason = f"the {plane} plane knows no {str(name)[:32]!r}"
        raise _bad_frame(reason)
    try:
        return _ADAPTERS[kind].validate_python(fields[1:])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        message = f"{name}, field {place}: {first['msg']}"
        raise _bad_frame(message[:500]) from error


def _bad_frame(reason: str) -> ProtocolError:
    return ProtocolError(
        "protocol.bad_frame",
        f"a frame from a peer does not decode: {reason}",
        remediation="Run the same build on both sides; if they are, report this.",
    )
