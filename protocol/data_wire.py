"""The data plane: requests to workers and their frames on the way back.

A payload is one array of packed messages: all that one turn of the event loop has for one peer. A
message is one array that begins with its number. Text, which nearly all frames are, is a bare
string; no model is built per token, and every field from outside is checked here, by hand.

    API node → worker    request, piece (of a long request), cancel, credit, pulse
    worker → API node    frames, taken (of a long request), pulse answer

A stream is a number that the API node has given to one task; credit is the total of bytes that it
lets the worker send in messages of frames. Totals, not differences: one that is lost costs nothing.
"""

import re
from collections.abc import Callable
from typing import Annotated, Final, NamedTuple, cast

from pydantic import Field, TypeAdapter, ValidationError

from protocol.codec import encode_values
from protocol.data_frames import Failed, Frame
from protocol.envelope import MAX_PAYLOAD_BYTES
from protocol.errors import ErrorBody, ProtocolError
from protocol.frame_wire import unpack_frame
from protocol.ids import COMMAND_ID_PATTERN, CommandId, InstanceId
from protocol.tasks import Task
from protocol.wire_checks import (
    array_of,
    bad_payload,
    bytes_of,
    decode_bounded,
    fields_of,
    number_of,
    refuse,
)

MAX_TASK_BYTES: Final = 32 << 20
PIECE_BYTES: Final = 256 << 10
"""A longer task travels in pieces of this size."""
UPLOAD_WINDOW_BYTES: Final = 1 << 20
"""Of pieces that the worker has not acknowledged."""
DIGEST_BYTES: Final = 32
MAX_MESSAGES: Final = 4096
"""In one payload."""
MAX_STREAMS: Final = 4096
"""Open between two nodes, in one direction."""
MAX_FRAMES: Final = 4096
"""In one message."""
UNKNOWN_STREAM: Final = -1
"""In a pulse answer: the worker has no such stream."""

_MAX_BYTES: Final = MAX_PAYLOAD_BYTES["data"]
_ONLY_BYTES: Final = frozenset((bytes,))
_TASK: Final[TypeAdapter[Task]] = TypeAdapter(Annotated[Task, Field(discriminator="kind")])
_COMMAND_ID: Final = re.compile(COMMAND_ID_PATTERN)


class Request(NamedTuple):
    """Serve a task."""

    stream: int
    command_id: CommandId
    instance_id: InstanceId
    credit_bytes: int
    size_bytes: int
    """Of the whole task."""
    digest: bytes
    """SHA-256 of a task that travels in pieces; else empty."""
    body: bytes
    """The task, or nothing when pieces follow."""


class Piece(NamedTuple):
    """The next bytes of a task."""

    stream: int
    offset: int
    data: bytes


class Cancel(NamedTuple):
    """Nobody waits for this stream any more."""

    stream: int


class Credit(NamedTuple):
    """How much may be sent in all."""

    stream: int
    total_bytes: int


class Pulse(NamedTuple):
    """These streams are open here; whatever else the worker serves for this node has no reader."""

    streams: tuple[tuple[int, int], ...]
    """With the credit total of each."""


class Frames(NamedTuple):
    """The next frames of a stream."""

    stream: int
    number: int
    """Counts the messages of the stream, from 0."""
    frames: tuple[Frame, ...]


class Taken(NamedTuple):
    """So many bytes of a task have arrived."""

    stream: int
    n_bytes: int


class PulseAnswer(NamedTuple):
    """How many messages of frames each stream of the pulse has been sent."""

    streams: tuple[tuple[int, int], ...]
    """`UNKNOWN_STREAM` for one that is not served: never arrived, or over."""


ToWorker = Request | Piece | Cancel | Credit | Pulse
ToApi = Frames | Taken | PulseAnswer
DataMessage = ToWorker | ToApi

# ---- Messages ----

_NUMBERS: Final[dict[type[DataMessage], int]] = {
    Request: 1,
    Piece: 2,
    Cancel: 3,
    Credit: 4,
    Pulse: 5,
    Frames: 6,
    Taken: 7,
    PulseAnswer: 8,
}
_FRAMES_HEAD: Final = b"\x94\x06"
"""An array of four, the first of which is the number of `Frames`."""
_FIX_ARRAY_MAX: Final = 15
_FIX_NUMBER_MAX: Final = 127
_FIX_NUMBERS: Final = tuple(bytes((number,)) for number in range(_FIX_NUMBER_MAX + 1))
_ONE_FRAME: Final = b"\x91"


def pack_message(message: ToWorker | Taken | PulseAnswer) -> bytes:
    """Encode a message; those of frames are made by `pack_frames`."""
    return encode_values((_NUMBERS[type(message)], *message))


def frames_head(stream: int) -> bytes:
    """Give what all messages of frames of a stream begin with."""
    return _FRAMES_HEAD + encode_values(stream)


def pack_frames(head: bytes, number: int, packed: list[bytes]) -> bytes:
    """Make a message of frames that are packed already; at most `MAX_FRAMES`."""
    start = head + (_FIX_NUMBERS[number] if number <= _FIX_NUMBER_MAX else encode_values(number))
    if len(packed) == 1:
        return start + _ONE_FRAME + packed[0]
    return b"".join((start, _array_head(len(packed)), *packed))


def pack_payload(messages: tuple[bytes, ...]) -> bytes:
    """Put messages into one payload; at most `MAX_MESSAGES`."""
    return encode_values(messages)


def unpack_payload(payload: bytes) -> tuple[bytes, ...]:
    """Give the packed messages of a payload.

    Raises:
        ProtocolError: `protocol.too_large`, `protocol.bad_frame`.
    """
    items = array_of(decode_bounded(payload, _MAX_BYTES), MAX_MESSAGES)
    if not _ONLY_BYTES.issuperset(map(type, items)):
        refuse("it is no array of messages")
    return cast("tuple[bytes, ...]", items)


def unpack_message(packed: bytes) -> DataMessage:
    """Decode one message.

    Raises:
        ProtocolError: `protocol.too_large`, `protocol.bad_frame`.
    """
    fields = array_of(decode_bounded(packed, _MAX_BYTES))
    number = fields[0] if fields else None
    check = _CHECKS.get(number) if type(number) is int else None
    if check is None:
        refuse("a message has an unknown number")
    n_fields, build = check
    if len(fields) != n_fields + 1:
        refuse("a message has another number of fields")
    return build(fields)


def _array_head(n_items: int) -> bytes:
    if n_items <= _FIX_ARRAY_MAX:
        return bytes((0x90 | n_items,))
    return b"\xdc" + n_items.to_bytes(2, "big")


# ---- Tasks ----


def pack_task(task: Task) -> bytes:
    """Encode a task as JSON, which its tools' schemas are; they may hold what msgpack cannot."""
    return task.model_dump_json().encode()


def unpack_task(body: bytes) -> Task:
    """Decode a task.

    Raises:
        ProtocolError: `protocol.bad_frame`.
    """
    try:
        return _TASK.validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "all of it"
        raise bad_payload(f"a task, {place}: {first['msg']}"[:500]) from error


# ---- Checks ----


def _request(fields: tuple[object, ...]) -> Request:
    _, stream, command_id, instance_id, credit_bytes, size_bytes, digest, body = fields
    request = Request(
        number_of(stream),
        CommandId(_id(command_id)),
        InstanceId(_id(instance_id)),
        number_of(credit_bytes),
        number_of(size_bytes),
        bytes_of(digest, DIGEST_BYTES),
        bytes_of(body, PIECE_BYTES),
    )
    is_whole = not request.digest and len(request.body) == request.size_bytes
    is_announced = len(request.digest) == DIGEST_BYTES and not request.body
    if not (is_whole or is_announced):
        refuse("a request is neither whole nor announced")
    return request


def _piece(fields: tuple[object, ...]) -> Piece:
    return Piece(number_of(fields[1]), number_of(fields[2]), bytes_of(fields[3], PIECE_BYTES))


def _frames(fields: tuple[object, ...]) -> Frames:
    _, stream, number, values = fields
    items = array_of(values, MAX_FRAMES)
    if not items:
        refuse("a message holds no frame")
    try:
        frames: tuple[Frame, ...] = (
            (unpack_frame(items[0]),) if len(items) == 1 else tuple(map(unpack_frame, items))
        )
    except ProtocolError as error:
        # The stream is known, so that no other needs to suffer.
        frames = (Failed(_unreadable(error)),)
    return Frames(number_of(stream), number_of(number), frames)


def _unreadable(error: ProtocolError) -> ErrorBody:
    return ErrorBody(
        code="cluster.link_lost",
        message=f"the node that serves the model sent what this one cannot read: {error.message}",
        remediation=error.remediation,
    )


def _pairs(value: object, least: int) -> tuple[tuple[int, int], ...]:
    return tuple(_pair(pair, least) for pair in array_of(value, MAX_STREAMS))


def _pair(value: object, least: int) -> tuple[int, int]:
    stream, count = fields_of(value, 2)
    return number_of(stream), number_of(count, least=least)


def _id(value: object) -> str:
    if type(value) is not str or not _COMMAND_ID.fullmatch(value):
        refuse("an id is none")
    return value


_CHECKS: Final[dict[int, tuple[int, Callable[[tuple[object, ...]], DataMessage]]]] = {
    1: (7, _request),
    2: (3, _piece),
    3: (1, lambda fields: Cancel(number_of(fields[1]))),
    4: (2, lambda fields: Credit(number_of(fields[1]), number_of(fields[2]))),
    5: (1, lambda fields: Pulse(_pairs(fields[1], 0))),
    6: (3, _frames),
    7: (2, lambda fields: Taken(number_of(fields[1]), number_of(fields[2]))),
    8: (1, lambda fields: PulseAnswer(_pairs(fields[1], UNKNOWN_STREAM))),
}
