"""Frames of the data plane: what is packed comes back, and nothing else gets in."""

import contextlib
import json
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import decode_values, encode_values
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
from protocol.data_wire import (
    UNKNOWN_STREAM,
    Cancel,
    Credit,
    DataMessage,
    Frames,
    Piece,
    Pulse,
    PulseAnswer,
    Request,
    Taken,
    frames_head,
    pack_frames,
    pack_message,
    pack_payload,
    pack_task,
    unpack_message,
    unpack_payload,
    unpack_task,
)
from protocol.errors import ERROR_CODES, ErrorBody, ProtocolError
from protocol.frame_wire import (
    FRAME_BYTES,
    pack_chunk,
    pack_frame,
    pack_short,
    split,
    unpack_frame,
)
from protocol.tasks import ChatMessage, ChatTask, EmbeddingTask, RerankTask, ToolDefinition
from protocol.vectors import MAX_VECTOR_BYTES, pack_vector
from tests.support.builders import MODEL, a_command_id, an_instance_id

NUMBERS = st.integers(min_value=0, max_value=(1 << 63) - 1)
TEXTS = st.text(max_size=20)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
CALLS = st.builds(ToolCallDelta, st.integers(-5, 99), st.none() | TEXTS, st.none() | TEXTS, TEXTS)
LOGPROBS = st.builds(
    TokenLogprob, TEXTS, FLOATS, st.lists(st.tuples(TEXTS, FLOATS), max_size=3).map(tuple)
)
VECTORS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1).map(
    pack_vector
)
ERRORS = st.builds(
    ErrorBody,
    code=st.sampled_from(ERROR_CODES),
    message=TEXTS,
    remediation=TEXTS,
    details=st.dictionaries(TEXTS, st.none() | TEXTS | st.booleans() | FLOATS, max_size=3),
    retry_after_s=st.none() | NUMBERS,
)
FRAMES: st.SearchStrategy[Frame] = st.one_of(
    (st.none() | NUMBERS).map(Started),
    TEXTS.map(Chunk),
    st.tuples(
        TEXTS,
        TEXTS,
        st.lists(CALLS, max_size=2).map(tuple),
        st.lists(LOGPROBS, max_size=2).map(tuple),
    ).map(lambda fields: Chunk(*fields)),
    st.lists(VECTORS, min_size=1, max_size=4).map(lambda vectors: Chunk(vectors=tuple(vectors))),
    st.builds(
        Finished,
        st.sampled_from(["stop", "length", "tool_calls", "content_filter"]),
        st.builds(Usage, NUMBERS, NUMBERS, NUMBERS, st.none() | FLOATS, st.none() | FLOATS),
        st.none() | TEXTS,
    ),
    ERRORS.map(Failed),
)
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5).map(tuple)
WHOLE = Request(7, a_command_id(), an_instance_id(), 5, 4, b"", b"body")
ANNOUNCED = Request(7, a_command_id(), an_instance_id(), 5, 1 << 20, b"d" * 32, b"")


@given(NUMBERS, NUMBERS, st.lists(FRAMES, min_size=1, max_size=40))
def test_frames_come_back_as_they_were(stream: int, number: int, frames: list[Frame]) -> None:
    packed = pack_frames(frames_head(stream), number, [*map(pack_frame, frames)])
    assert unpack_message(packed) == Frames(stream, number, tuple(frames))


@given(
    st.one_of(
        st.sampled_from([WHOLE, ANNOUNCED]),
        st.builds(Piece, NUMBERS, NUMBERS, st.binary(max_size=30)),
        NUMBERS.map(Cancel),
        st.builds(Credit, NUMBERS, NUMBERS),
        PAIRS.map(Pulse),
        st.builds(Taken, NUMBERS, NUMBERS),
        PAIRS.map(PulseAnswer),
        st.just(PulseAnswer(((3, UNKNOWN_STREAM),))),
    )
)
def test_messages_come_back_as_they_were(message: Request | Piece | Cancel) -> None:
    payload = pack_payload((pack_message(message), pack_message(Cancel(1))))
    assert [unpack_message(item) for item in unpack_payload(payload)] == [message, Cancel(1)]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | FLOATS | TEXTS | st.binary(),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=20,
)


@given(st.integers(0, 9), st.lists(JUNK, max_size=8))
def test_whatever_arrives_is_a_checked_message_or_refused(number: int, fields: object) -> None:
    packed = encode_values((number, *cast("list[object]", fields)))
    try:
        message = unpack_message(packed)
    except ProtocolError:
        return
    _assert_sound(message)


@given(st.binary(max_size=100))
def test_random_bytes_raise_nothing_but_a_protocol_error(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert all(unpack_payload(data))
    with contextlib.suppress(ProtocolError):
        _assert_sound(unpack_message(data))
    with contextlib.suppress(ProtocolError):
        task = unpack_task(data)
        assert unpack_task(pack_task(task)) == task


@given(st.lists(FRAMES, min_size=1, max_size=5), st.data())
def test_a_flipped_byte_is_refused_or_still_a_sound_message(
    frames: list[Frame], data: st.DataObject
) -> None:
    packed = bytearray(pack_frames(frames_head(1), 2, [*map(pack_frame, frames)]))
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] ^= data.draw(st.integers(1, 255))
    try:
        message = unpack_message(bytes(packed))
    except ProtocolError:
        return
    _assert_sound(message)


SOME_TEXTS = st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=5).map(tuple)
IDENTITY = st.fixed_dictionaries(
    {"command_id": st.just(a_command_id()), "model_id": st.just(MODEL)}
)


@given(IDENTITY, SOME_TEXTS, st.text(min_size=1))
def test_tasks_for_vectors_come_back_as_they_were(
    identity: dict[str, str], texts: tuple[str, ...], query: str
) -> None:
    tasks = (
        EmbeddingTask.model_validate({**identity, "texts": texts}),
        RerankTask.model_validate({**identity, "query": query, "documents": texts}),
    )
    for task in tasks:
        assert unpack_task(pack_task(task)) == task


@pytest.mark.parametrize("texts", [(), ("",), ("x",) * 2049, (1,)], ids=len)
def test_a_task_of_no_texts_or_too_many_is_refused(texts: tuple[object, ...]) -> None:
    task = {"kind": "embedding", "command_id": a_command_id(), "model_id": MODEL, "texts": texts}
    with pytest.raises(ProtocolError, match="texts"):
        unpack_task(json.dumps(task).encode())


@given(st.integers(1, 300), st.integers(1, MAX_VECTOR_BYTES // 4))
def test_a_chunk_of_many_vectors_travels_in_frames_of_a_bearable_size(
    n_vectors: int, dimensions: int
) -> None:
    n_vectors = min(n_vectors, (2 << 20) // dimensions)
    chunk = Chunk(vectors=tuple(pack_vector([n] * dimensions) for n in range(n_vectors)))
    frames = [unpack_frame(decode_values(packed)) for packed in pack_chunk(chunk)]
    assert all(isinstance(frame, Chunk) for frame in frames)
    pieces = [frame.vectors for frame in frames if isinstance(frame, Chunk)]
    assert sum(pieces, ()) == chunk.vectors
    assert all(sum(map(len, piece)) <= FRAME_BYTES for piece in pieces)


@pytest.mark.parametrize(
    "vectors",
    [
        (),
        (b"",),
        (b"123",),
        ("text",),
        (1.0,),
        (bytes(MAX_VECTOR_BYTES + 4),),
        (pack_vector((1.0, float("nan"))),),
        (pack_vector((float("-inf"),)),),
    ],
    ids=str,
)
def test_what_is_no_vector_is_refused(vectors: tuple[object, ...]) -> None:
    with pytest.raises(ProtocolError):
        unpack_frame((4, vectors))


def _assert_sound(message: DataMessage) -> None:
    """A message that was let in can be used by those who trust its types."""
    if isinstance(message, Frames):
        frames = [*map(pack_frame, message.frames)]
        repacked = pack_frames(frames_head(message.stream), message.number, frames)
        assert unpack_message(repacked) == message
        return
    assert unpack_message(pack_message(message)) == message


@pytest.mark.parametrize(
    "values",
    [
        (),
        (9, 1),
        (True, 1),
        (3,),
        (3, 1, 1),
        (3, -1),
        (3, 1 << 63),
        (4, 1, True),
        (5, ((1, 2, 3),)),
        (5, tuple((n, 0) for n in range(4097))),
        (6, 1, 0, ()),
        (6, 1, 0, ("",) * 4097),
        (1, 7, "x", an_instance_id(), 5, 4, b"", b"body"),
        (1, 7, a_command_id() + "\n", an_instance_id(), 5, 4, b"", b"body"),
        (1, 7, a_command_id(), an_instance_id(), 5, 5, b"", b"body"),
        (1, 7, a_command_id(), an_instance_id(), 5, 4, b"d" * 32, b"body"),
        (1, 7, a_command_id(), an_instance_id(), 5, 9, b"d" * 31, b""),
        (2, 1, 0, bytes((256 << 10) + 1)),
    ],
    ids=str,
)
def test_a_message_out_of_bounds_is_refused(values: tuple[object, ...]) -> None:
    with pytest.raises(ProtocolError, match="does not decode"):
        unpack_message(encode_values(values))


@pytest.mark.parametrize(
    "packed",
    [
        b"\x92\x03\xc7\x00\x05",
        b"\x92\x03\xd6\xff\x00\x00\x00\x00",
        b"\x92\x03\x81\x01\x01",
        b"\x91" * 2000,
        b"\x92\x03\x01\x01",
        b"",
    ],
    ids=["extension", "timestamp", "map with a number as key", "deep", "bytes behind", "empty"],
)
def test_what_msgpack_knows_and_we_do_not_is_refused(packed: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack_message(packed)


def test_a_payload_over_the_planes_limit_is_not_read() -> None:
    with pytest.raises(ProtocolError, match="exceeds the limit"):
        unpack_payload(bytes((1 << 20) + 1))


@pytest.mark.parametrize(
    "frame",
    [
        (4, "later"),
        (2, "stop", 1, 1, 0, float("nan"), None),
        (1, "", "", (), (("t", float("inf"), ()),)),
        (3, "engine.gone", "m", "r", {"a": float("inf")}, None),
        (0, -1),
        (1, "text"),
        (2, "bored", 1, 1, 0, None, None),
        (3, "engine.gone", "m", "r", {"a": ()}, None),
        7,
        (),
    ],
    ids=str,
)
def test_a_frame_that_cannot_be_read_fails_its_stream_and_no_other(frame: object) -> None:
    message = unpack_message(encode_values((6, 1, 0, ("so far", frame))))
    assert isinstance(message, Frames)
    (failed,) = message.frames
    assert isinstance(failed, Failed)
    assert failed.error.code == "cluster.link_lost"


def test_an_error_code_of_a_later_build_arrives_with_its_words() -> None:
    haunted = (3, "engine.haunted", "a ghost", "call for help", {"at": 12}, None)
    values = (6, 1, 0, (haunted,))
    message = unpack_message(encode_values(values))
    assert isinstance(message, Frames)
    failed = message.frames[0]
    assert isinstance(failed, Failed)
    assert (failed.error.code, failed.error.message) == ("internal.bug", "engine.haunted: a ghost")


def test_what_cannot_be_sent_is_replaced_and_holds_nothing_up() -> None:
    odd = Chunk("a\ud800", logprobs=(TokenLogprob("t", float("-inf")),))
    got = unpack_message(
        pack_frames(frames_head(1), 0, [pack_frame(odd), pack_frame(Chunk("b\udfff"))])
    )
    assert isinstance(got, Frames)
    assert got.frames == (Chunk("a?", logprobs=(TokenLogprob("t", -9999.0),)), Chunk("b?"))


@given(
    st.builds(
        Chunk,
        st.text(max_size=5).map(lambda text: text * 20_000),
        reasoning=st.text(max_size=5).map(lambda text: text * 20_000),
        tool_calls=st.just(
            (ToolCallDelta(0, "id", "name", "{}" * 30_000), ToolCallDelta(1, "b", "n", ""))
        ),
        logprobs=st.lists(LOGPROBS, max_size=2).map(lambda items: tuple(items) * 100),
    )
)
def test_a_long_chunk_is_cut_into_short_ones_that_say_the_same(chunk: Chunk) -> None:
    pieces = split(chunk)
    assert pack_chunk(chunk) == tuple(map(pack_frame, pieces))
    assert pack_short(chunk) == (pack_frame(chunk) if len(pieces) == 1 else None)
    assert all(len(packed) <= FRAME_BYTES + 100 for packed in pack_chunk(chunk))
    assert "".join(piece.text for piece in pieces) == chunk.text
    assert "".join(piece.reasoning for piece in pieces) == chunk.reasoning
    assert tuple(item for piece in pieces for item in piece.logprobs) == chunk.logprobs
    for index, call in enumerate(chunk.tool_calls):
        deltas = [c for piece in pieces for c in piece.tool_calls if c.call_index == index]
        assert deltas[0][:3] == call[:3]
        assert "".join(delta.arguments for delta in deltas) == call.arguments
        assert all((delta.id, delta.name) == (None, None) for delta in deltas[1:])


def test_a_task_may_hold_what_json_holds() -> None:
    deep: dict[str, object] = {"big": 1 << 80}
    for _ in range(50):
        deep = {"properties": deep}
    task = ChatTask(
        command_id=a_command_id(),
        model_id=MODEL,
        messages=(ChatMessage(role="user", content="héllo\n"),),
        tools=(ToolDefinition(name="f", parameters=deep),),
    )
    assert unpack_task(pack_task(task)) == task


def test_text_costs_a_string_and_no_more() -> None:
    packed = pack_frames(frames_head(1 << 47), 1000, [pack_frame(Chunk(" token"))])
    assert len(packed) <= 25
    assert decode_values(pack_frame(Chunk(" token"))) == " token"
