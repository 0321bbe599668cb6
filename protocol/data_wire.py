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
from collections.abc import Callable, Iterator
from math import isfinite
from typing import Final, NamedTuple, NoReturn, cast, get_args

from pydantic import ValidationError

from protocol.codec import decode_trusted_values, encode_values
from protocol.data_frames import (
    Chunk,
    Failed,
    Finished,
    Frame,
    Started,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from protocol.envelope import MAX_PAYLOAD_BYTES
from protocol.errors import ERROR_CODES, DetailValue, ErrorBody, ErrorCode, ProtocolError
from protocol.ids import COMMAND_ID_PATTERN, CommandId, InstanceId
from protocol.tasks import ChatTask, FinishReason

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
FRAME_BYTES: Final = 64 << 10
"""`split` keeps frames below this, so that one cannot hold up the others of a link for long."""
UNKNOWN_STREAM: Final = -1
"""In a pulse answer: the worker has no such stream."""

_MAX_BYTES: Final = MAX_PAYLOAD_BYTES["data"]
_SPLIT_CHARS: Final = FRAME_BYTES // 4
_SPLIT_LOGPROBS: Final = 32
_ERROR_CHARS: Final = 4096
_LEAST_LOGPROB: Final = -9999.0
_MAX_NUMBER: Final = (1 << 63) - 1
_COMMAND_ID: Final = re.compile(COMMAND_ID_PATTERN)
_REASONS: Final = frozenset(get_args(FinishReason))
_CODES: Final = frozenset(ERROR_CODES)


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
_ONE_FRAME: Final = b"\x91"


def pack_message(message: ToWorker | Taken | PulseAnswer) -> bytes:
    """Encode a message; those of frames are made by `pack_frames`."""
    return encode_values((_NUMBERS[type(message)], *message))


def frames_head(stream: int) -> bytes:
    """Give what all messages of frames of a stream begin with."""
    return _FRAMES_HEAD + encode_values(stream)


def pack_frames(head: bytes, number: int, packed: list[bytes]) -> bytes:
    """Make a message of frames that are packed already; at most `MAX_FRAMES`."""
    start = head + encode_values(number)
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
    messages = _decode(payload)
    if type(messages) is not tuple:
        _refuse("it is no array")
    items = cast("tuple[object, ...]", messages)
    if len(items) > MAX_MESSAGES or any(type(item) is not bytes for item in items):
        _refuse("it is no array of messages")
    return cast("tuple[bytes, ...]", items)


def unpack_message(packed: bytes) -> DataMessage:
    """Decode one message.

    Raises:
        ProtocolError: `protocol.too_large`, `protocol.bad_frame`.
    """
    values = _decode(packed)
    if type(values) is not tuple or not values:
        _refuse("a message is no array")
    fields = cast("tuple[object, ...]", values)
    number = fields[0]
    check = _CHECKS.get(number) if type(number) is int else None
    if check is None:
        _refuse("a message has an unknown number")
    n_fields, build = check
    if len(fields) != n_fields + 1:
        _refuse("a message has another number of fields")
    return build(fields)


def _decode(data: bytes) -> object:
    """Decode without a walk over the values: each is checked for its type where it is used."""
    if len(data) > _MAX_BYTES:
        raise ProtocolError(
            "protocol.too_large",
            f"a payload of {len(data)} bytes exceeds the limit of {_MAX_BYTES}",
            remediation="Run the same build on both sides; if they are, report this.",
        )
    try:
        return decode_trusted_values(data)
    except ValueError as error:
        raise _bad_frame(str(error) or type(error).__name__) from error


def _array_head(n_items: int) -> bytes:
    if n_items <= _FIX_ARRAY_MAX:
        return bytes((0x90 | n_items,))
    return b"\xdc" + n_items.to_bytes(2, "big")


# ---- Frames ----


def pack_frame(frame: Frame) -> bytes:
    """Encode one frame; what cannot be sent as UTF-8 or as a number is replaced."""
    values = _values_of(frame)
    try:
        return encode_values(values)
    except UnicodeEncodeError:
        return encode_values(_sendable(values))


def pack_chunk(chunk: Chunk) -> tuple[bytes, ...]:
    """Encode a chunk, a long one as several frames that say the same."""
    return (pack_frame(chunk),) if _is_short(chunk) else tuple(map(pack_frame, _pieces_of(chunk)))


def split(chunk: Chunk) -> tuple[Chunk, ...]:
    """Cut a long chunk, such as a whole answer, into several that say the same."""
    return (chunk,) if _is_short(chunk) else tuple(_pieces_of(chunk))


def _is_short(chunk: Chunk) -> bool:
    text, reasoning, tool_calls, logprobs = chunk
    n_chars = len(text)
    if reasoning or tool_calls or logprobs:
        n_chars += len(reasoning)
        n_chars += sum(len(call.arguments) + len(call.name or "") for call in tool_calls)
    return n_chars <= _SPLIT_CHARS and len(logprobs) <= _SPLIT_LOGPROBS


def _pieces_of(chunk: Chunk) -> Iterator[Chunk]:
    for start in range(0, len(chunk.reasoning), _SPLIT_CHARS):
        yield Chunk(reasoning=chunk.reasoning[start : start + _SPLIT_CHARS])
    for start in range(0, len(chunk.text), _SPLIT_CHARS):
        yield Chunk(chunk.text[start : start + _SPLIT_CHARS])
    for call in chunk.tool_calls:
        yield Chunk(tool_calls=(call._replace(arguments=call.arguments[:_SPLIT_CHARS]),))
        for start in range(_SPLIT_CHARS, len(call.arguments), _SPLIT_CHARS):
            rest = call.arguments[start : start + _SPLIT_CHARS]
            yield Chunk(tool_calls=(ToolCallDelta(call.call_index, None, None, rest),))
    for start in range(0, len(chunk.logprobs), _SPLIT_LOGPROBS):
        yield Chunk(logprobs=chunk.logprobs[start : start + _SPLIT_LOGPROBS])


def _values_of(frame: Frame) -> str | tuple[object, ...]:
    match frame:
        case Chunk():
            text, reasoning, tool_calls, logprobs = frame
            if reasoning or tool_calls or logprobs:
                items = tuple(map(_logprob_values, logprobs))
                return (1, text, reasoning, tool_calls, items)
            return text
        case Started():
            return (0, frame.prompt_tokens)
        case Finished():
            prompt, completion, cached, *times_ms = frame.usage
            return (2, frame.reason, prompt, completion, cached, *map(_time, times_ms))
        case Failed():
            error = frame.error
            details = {name[:_ERROR_CHARS]: _detail(item) for name, item in error.details.items()}
            message, remediation = error.message[:_ERROR_CHARS], error.remediation[:_ERROR_CHARS]
            return (3, error.code, message, remediation, details, error.retry_after_s)


def _logprob_values(item: TokenLogprob) -> tuple[object, ...]:
    alternatives = tuple((token, _number_of(logprob)) for token, logprob in item.alternatives)
    return (item.token, _number_of(item.logprob), alternatives)


def _number_of(logprob: float) -> float:
    return logprob if isfinite(logprob) else _LEAST_LOGPROB


def _time(time_ms: float | None) -> float | None:
    return time_ms if time_ms is not None and isfinite(time_ms) else None


def _detail(value: DetailValue) -> DetailValue:
    if isinstance(value, str):
        return value[:_ERROR_CHARS]
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, int) and abs(value) > _MAX_NUMBER:
        return str(value)[:_ERROR_CHARS]
    return value


def _sendable(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, tuple):
        return tuple(_sendable(item) for item in cast("tuple[object, ...]", value))
    if isinstance(value, dict):
        items = cast("dict[object, object]", value)
        return {_sendable(name): _sendable(item) for name, item in items.items()}
    return value


# ---- Tasks ----


def pack_task(task: ChatTask) -> bytes:
    """Encode a task as JSON, which its tools' schemas are; they may hold what msgpack cannot."""
    return task.model_dump_json().encode()


def unpack_task(body: bytes) -> ChatTask:
    """Decode a task.

    Raises:
        ProtocolError: `protocol.bad_frame`.
    """
    try:
        return ChatTask.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "all of it"
        raise _bad_frame(f"a task, {place}: {first['msg']}"[:500]) from error


# ---- Checks ----


def _request(fields: tuple[object, ...]) -> Request:
    _, stream, command_id, instance_id, credit_bytes, size_bytes, digest, body = fields
    request = Request(
        _number(stream),
        CommandId(_id(command_id)),
        InstanceId(_id(instance_id)),
        _number(credit_bytes),
        _number(size_bytes),
        _bytes(digest, DIGEST_BYTES),
        _bytes(body, PIECE_BYTES),
    )
    is_whole = not request.digest and len(request.body) == request.size_bytes
    is_announced = len(request.digest) == DIGEST_BYTES and not request.body
    if not (is_whole or is_announced):
        _refuse("a request is neither whole nor announced")
    return request


def _piece(fields: tuple[object, ...]) -> Piece:
    return Piece(_number(fields[1]), _number(fields[2]), _bytes(fields[3], PIECE_BYTES))


def _frames(fields: tuple[object, ...]) -> Frames:
    _, stream, number, values = fields
    if type(values) is not tuple:
        _refuse("frames are no array")
    items = cast("tuple[object, ...]", values)
    if not 1 <= len(items) <= MAX_FRAMES:
        _refuse("a message holds no frame, or too many")
    try:
        frames: tuple[Frame, ...] = tuple(map(_frame, items))
    except ProtocolError as error:
        # The stream is known, so that no other needs to suffer.
        frames = (Failed(_unreadable(error)),)
    return Frames(_number(stream), _number(number), frames)


def _unreadable(error: ProtocolError) -> ErrorBody:
    return ErrorBody(
        code="cluster.link_lost",
        message=f"the node that serves the model sent what this one cannot read: {error.message}",
        remediation=error.remediation,
    )


def _pairs(value: object, least: int) -> tuple[tuple[int, int], ...]:
    if type(value) is not tuple:
        _refuse("streams are no array")
    pairs = cast("tuple[object, ...]", value)
    if len(pairs) > MAX_STREAMS:
        _refuse("there are too many streams")
    return tuple(_pair(pair, least) for pair in pairs)


def _pair(value: object, least: int) -> tuple[int, int]:
    stream, count = _tuple(value, 2)
    return _number(stream), _number(count, least)


def _frame(value: object) -> Frame:
    if type(value) is str:
        return Chunk(value)
    if type(value) is not tuple or not value:
        _refuse("a frame is no array")
    fields = cast("tuple[object, ...]", value)
    kind = fields[0]
    build = _FRAMES.get(kind) if type(kind) is int else None
    if build is None:
        _refuse("a frame is of an unknown kind")
    return build(fields)


def _started(fields: tuple[object, ...]) -> Started:
    _, prompt_tokens = _tuple(fields, 2)
    return Started(None if prompt_tokens is None else _number(prompt_tokens))


def _chunk(fields: tuple[object, ...]) -> Chunk:
    _, text, reasoning, calls, logprobs = _tuple(fields, 5)
    return Chunk(
        _text(text),
        _text(reasoning),
        tuple(_tool_call(call) for call in _any_tuple(calls)),
        tuple(_logprob(item) for item in _any_tuple(logprobs)),
    )


def _tool_call(value: object) -> ToolCallDelta:
    index, call_id, name, arguments = _tuple(value, 4)
    return ToolCallDelta(
        _number(index, -_MAX_NUMBER),
        None if call_id is None else _text(call_id),
        None if name is None else _text(name),
        _text(arguments),
    )


def _logprob(value: object) -> TokenLogprob:
    token, logprob, alternatives = _tuple(value, 3)
    pairs = tuple(_tuple(pair, 2) for pair in _any_tuple(alternatives))
    return TokenLogprob(
        _text(token), _float(logprob), tuple((_text(other), _float(of)) for other, of in pairs)
    )


def _finished(fields: tuple[object, ...]) -> Finished:
    _, reason, prompt, completion, cached, prompt_ms, generation_ms = _tuple(fields, 7)
    if type(reason) is not str or reason not in _REASONS:
        _refuse("a stream has ended for an unknown reason")
    usage = Usage(
        _number(prompt),
        _number(completion),
        _number(cached),
        None if prompt_ms is None else _float(prompt_ms),
        None if generation_ms is None else _float(generation_ms),
    )
    return Finished(cast("FinishReason", reason), usage)


def _failed(fields: tuple[object, ...]) -> Failed:
    _, code, message, remediation, details, retry_after_s = _tuple(fields, 6)
    if type(code) is not str or type(details) is not dict:
        _refuse("an error is none")
    # A peer of a newer build may know more codes than this one.
    is_known = code in _CODES
    known: ErrorCode = code if is_known else "internal.bug"
    return Failed(
        ErrorBody(
            code=known,
            message=_text(message) if is_known else f"{code[:100]}: {_text(message)}",
            remediation=_text(remediation),
            details={
                _text(name): _detail_value(item)
                for name, item in cast("dict[str, object]", details).items()
            },
            retry_after_s=None if retry_after_s is None else _number(retry_after_s),
        )
    )


def _detail_value(value: object) -> DetailValue:
    if value is None or type(value) in {str, int, bool}:
        return cast("DetailValue", value)
    if type(value) is not float:
        _refuse("a detail is no plain value")
    return _float(value)


def _tuple(value: object, n_items: int) -> tuple[object, ...]:
    items = _any_tuple(value)
    if len(items) != n_items:
        _refuse(f"an array has {len(items)} items, not {n_items}")
    return items


def _any_tuple(value: object) -> tuple[object, ...]:
    if type(value) is not tuple:
        _refuse("a field is no array")
    return cast("tuple[object, ...]", value)


def _number(value: object, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= _MAX_NUMBER:
        _refuse("a number is out of its range")
    return value


def _float(value: object) -> float:
    # A float that is whole may come as an integer from another build of the library.
    if type(value) is not float and type(value) is not int:
        _refuse("a number is none")
    number = float(value)
    if not isfinite(number):
        _refuse("a number is not finite")
    return number


def _text(value: object) -> str:
    if type(value) is not str:
        _refuse("a text is none")
    return value


def _id(value: object) -> str:
    if type(value) is not str or not _COMMAND_ID.fullmatch(value):
        _refuse("an id is none")
    return value


def _bytes(value: object, most: int) -> bytes:
    if type(value) is not bytes or len(value) > most:
        _refuse("bytes are none, or too many")
    return value


def _refuse(reason: str) -> NoReturn:
    raise _bad_frame(reason)


def _bad_frame(reason: str) -> ProtocolError:
    return ProtocolError(
        "protocol.bad_frame",
        f"a payload of the data plane does not decode: {reason}",
        remediation="Run the same build on both sides; if they are, report this.",
    )


_CHECKS: Final[dict[int, tuple[int, Callable[[tuple[object, ...]], DataMessage]]]] = {
    1: (7, _request),
    2: (3, _piece),
    3: (1, lambda fields: Cancel(_number(fields[1]))),
    4: (2, lambda fields: Credit(_number(fields[1]), _number(fields[2]))),
    5: (1, lambda fields: Pulse(_pairs(fields[1], 0))),
    6: (3, _frames),
    7: (2, lambda fields: Taken(_number(fields[1]), _number(fields[2]))),
    8: (1, lambda fields: PulseAnswer(_pairs(fields[1], UNKNOWN_STREAM))),
}
_FRAMES: Final[dict[int, Callable[[tuple[object, ...]], Frame]]] = {
    0: _started,
    1: _chunk,
    2: _finished,
    3: _failed,
}
