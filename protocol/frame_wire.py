"""Frames of an answer as msgpack values, and back: text, which nearly all are, is a bare string.

"text"                                                   a chunk of text alone
(0, prompt tokens)                                       Started
(1, text, reasoning, tool calls, logprobs)               any other chunk
(2, reason, prompt, completion, cached, ms, ms)          Finished
(2, reason, prompt, completion, cached, ms, ms, stop)    Finished by a stop string
(3, code, message, remediation, details, retry after)    Failed
(4, vectors)                                             a chunk of vectors, each as bytes
"""

from collections.abc import Callable, Iterator
from math import isfinite
from typing import Final, cast, get_args

from protocol.codec import encode_values
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
from protocol.errors import ERROR_CODES, DetailValue, ErrorBody, ErrorCode
from protocol.tasks import FinishReason
from protocol.vectors import MAX_VECTOR_BYTES, is_vector
from protocol.wire_checks import (
    MAX_NUMBER,
    array_of,
    bytes_of,
    count_of,
    fields_of,
    float_of,
    measure_of,
    number_of,
    refuse,
    text_of,
)

FRAME_BYTES: Final = 64 << 10
"""`split` keeps frames below this, so that one cannot hold up the others of a link for long."""

_SPLIT_CHARS: Final = FRAME_BYTES // 4
_SPLIT_LOGPROBS: Final = 32
_ERROR_CHARS: Final = 4096
_FIX_TEXT_MAX: Final = 31
_FIX_TEXTS: Final = tuple(bytes((0xA0 | n_bytes,)) for n_bytes in range(_FIX_TEXT_MAX + 1))
"""What msgpack puts before a text of so many bytes."""
_N_STOPPED: Final = 8
"""Fields of an end that names a stop string."""
_LEAST_LOGPROB: Final = -9999.0
_REASONS: Final = frozenset(get_args(FinishReason))
_CODES: Final = frozenset(ERROR_CODES)


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


def pack_short(chunk: Chunk) -> bytes | None:
    """Encode a chunk that is one frame; None for a long one, which is several."""
    text, reasoning, tool_calls, logprobs, vectors = chunk
    is_text = not (reasoning or tool_calls or logprobs or vectors)
    if is_text and text.isascii() and len(text) <= _FIX_TEXT_MAX:
        return _FIX_TEXTS[len(text)] + text.encode()
    return pack_frame(chunk) if _is_short(chunk) else None


def split(chunk: Chunk) -> tuple[Chunk, ...]:
    """Cut a long chunk, such as a whole answer, into several that say the same."""
    return (chunk,) if _is_short(chunk) else tuple(_pieces_of(chunk))


def _is_short(chunk: Chunk) -> bool:
    text, reasoning, tool_calls, logprobs, vectors = chunk
    if vectors:
        return sum(map(len, vectors)) <= FRAME_BYTES
    n_chars = len(text)
    if reasoning or tool_calls or logprobs:
        n_chars += len(reasoning)
        n_chars += sum(len(call.arguments) + len(call.name or "") for call in tool_calls)
    return n_chars <= _SPLIT_CHARS and len(logprobs) <= _SPLIT_LOGPROBS


def _pieces_of(chunk: Chunk) -> Iterator[Chunk]:
    if chunk.vectors:
        n_together = max(1, FRAME_BYTES // max(map(len, chunk.vectors)))
        for start in range(0, len(chunk.vectors), n_together):
            yield Chunk(vectors=chunk.vectors[start : start + n_together])
        return
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
            text, reasoning, tool_calls, logprobs, vectors = frame
            if vectors:
                return (4, vectors)
            if reasoning or tool_calls or logprobs:
                items = tuple(map(_logprob_values, logprobs))
                return (1, text, reasoning, tool_calls, items)
            return text
        case Started():
            return (0, frame.prompt_tokens)
        case Finished():
            prompt, completion, cached, *times_ms = frame.usage
            stop = () if frame.stop is None else (frame.stop[:_ERROR_CHARS],)
            return (2, frame.reason, prompt, completion, cached, *map(_time, times_ms), *stop)
        case Failed():
            error = frame.error
            details = {name[:_ERROR_CHARS]: _detail(item) for name, item in error.details.items()}
            message, remediation = error.message[:_ERROR_CHARS], error.remediation[:_ERROR_CHARS]
            return (3, error.code, message, remediation, details, error.retry_after_s)


def _logprob_values(item: TokenLogprob) -> tuple[object, ...]:
    alternatives = tuple((token, _logprob_number(logprob)) for token, logprob in item.alternatives)
    return (item.token, _logprob_number(item.logprob), alternatives)


def _logprob_number(logprob: float) -> float:
    return logprob if isfinite(logprob) else _LEAST_LOGPROB


def _time(time_ms: float | None) -> float | None:
    return time_ms if time_ms is not None and isfinite(time_ms) else None


def _detail(value: DetailValue) -> DetailValue:
    if isinstance(value, str):
        return value[:_ERROR_CHARS]
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, int) and abs(value) > MAX_NUMBER:
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


# ---- Back ----


def unpack_frame(value: object) -> Frame:
    """Check one decoded frame.

    Raises:
        ProtocolError: `protocol.bad_frame`.
    """
    if type(value) is str:
        return Chunk(value)
    if type(value) is not tuple or not value:
        refuse("a frame is no array")
    fields = cast("tuple[object, ...]", value)
    kind = fields[0]
    build = _BUILDERS.get(kind) if type(kind) is int else None
    if build is None:
        refuse("a frame is of an unknown kind")
    return build(fields)


def _started(fields: tuple[object, ...]) -> Started:
    _, prompt_tokens = fields_of(fields, 2)
    return Started(count_of(prompt_tokens))


def _chunk(fields: tuple[object, ...]) -> Chunk:
    _, text, reasoning, calls, logprobs = fields_of(fields, 5)
    return Chunk(
        text_of(text),
        text_of(reasoning),
        tuple(_tool_call(call) for call in array_of(calls)),
        tuple(_logprob(item) for item in array_of(logprobs)),
    )


def _vectors(fields: tuple[object, ...]) -> Chunk:
    _, values = fields_of(fields, 2)
    vectors = tuple(bytes_of(value, MAX_VECTOR_BYTES) for value in array_of(values))
    if not vectors or not all(map(is_vector, vectors)):
        refuse("a vector is none")
    return Chunk(vectors=vectors)


def _tool_call(value: object) -> ToolCallDelta:
    index, call_id, name, arguments = fields_of(value, 4)
    return ToolCallDelta(
        number_of(index, least=-MAX_NUMBER),
        None if call_id is None else text_of(call_id),
        None if name is None else text_of(name),
        text_of(arguments),
    )


def _logprob(value: object) -> TokenLogprob:
    token, logprob, alternatives = fields_of(value, 3)
    pairs = tuple(fields_of(pair, 2) for pair in array_of(alternatives))
    return TokenLogprob(
        text_of(token),
        float_of(logprob),
        tuple((text_of(other), float_of(of)) for other, of in pairs),
    )


def _finished(fields: tuple[object, ...]) -> Finished:
    stop = text_of(fields[-1]) if len(fields) == _N_STOPPED else None
    known = fields if stop is None else fields[:-1]
    _, reason, prompt, completion, cached, prompt_ms, generation_ms = fields_of(known, 7)
    if type(reason) is not str or reason not in _REASONS:
        refuse("a stream has ended for an unknown reason")
    usage = Usage(
        number_of(prompt),
        number_of(completion),
        number_of(cached),
        measure_of(prompt_ms),
        measure_of(generation_ms),
    )
    return Finished(cast("FinishReason", reason), usage, stop)


def _failed(fields: tuple[object, ...]) -> Failed:
    _, code, message, remediation, details, retry_after_s = fields_of(fields, 6)
    if type(code) is not str or type(details) is not dict:
        refuse("an error is none")
    # A peer of a newer build may know more codes than this one.
    is_known = code in _CODES
    known: ErrorCode = code if is_known else "internal.bug"
    return Failed(
        ErrorBody(
            code=known,
            message=text_of(message) if is_known else f"{code[:100]}: {text_of(message)}",
            remediation=text_of(remediation),
            details={
                text_of(name): _detail_value(item)
                for name, item in cast("dict[str, object]", details).items()
            },
            retry_after_s=count_of(retry_after_s),
        )
    )


def _detail_value(value: object) -> DetailValue:
    if value is None or type(value) in {str, int, bool}:
        return cast("DetailValue", value)
    if type(value) is not float:
        refuse("a detail is no plain value")
    return float_of(value)


_BUILDERS: Final[dict[int, Callable[[tuple[object, ...]], Frame]]] = {
    0: _started,
    1: _chunk,
    2: _finished,
    3: _failed,
    4: _vectors,
}
