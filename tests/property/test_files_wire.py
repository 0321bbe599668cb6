"""Frames of the files plane: they come back as they went, and nothing else passes for one."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.codec import encode_values
from protocol.envelope import MAX_PAYLOAD_BYTES
from protocol.errors import ProtocolError
from protocol.files_wire import (
    FILLING_HEADER_BYTES,
    HEADER_BYTES,
    MAX_FILE_BYTES,
    MAX_FILES,
    MAX_FILLING_BYTES,
    MAX_FILLING_PIECES,
    MAX_RANGE_BYTES,
    ArtifactOpened,
    AskLater,
    CloseArtifact,
    CloseFilling,
    FilesFrame,
    FillingRefused,
    OfferedFile,
    OpenArtifact,
    RangeContent,
    ReadFilling,
    ReadRange,
    TransferRefused,
    pack_content,
    pack_files,
    unpack_files,
)
from protocol.ids import COMMAND_ID_PATTERN, Digest, InstanceId
from protocol.tunnel_wire import (
    DATA_HEADER_BYTES,
    MAX_PIECE_BYTES,
    TUNNEL_DATA,
    OpenTunnel,
    TunnelData,
    TunnelEnded,
    TunnelMark,
    TunnelReset,
    TunnelTaken,
    pack_tunnel_data,
)

KEY = Digest("0" * 64)

numbers = st.integers(0, (1 << 63) - 1)
sizes = st.integers(0, MAX_FILE_BYTES)
indexes = st.integers(0, MAX_FILES - 1)
digests = st.from_regex(r"[0-9a-f]{64}", fullmatch=True).map(Digest)
paths = st.lists(
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,20}", fullmatch=True), min_size=1, max_size=8
).map("/".join)
files = st.lists(st.builds(OfferedFile, paths, sizes, digests), min_size=1, max_size=5).map(tuple)
frames = st.one_of(
    st.builds(OpenArtifact, numbers, digests),
    st.builds(ReadRange, numbers, indexes, sizes, st.integers(1, MAX_RANGE_BYTES)),
    st.builds(CloseArtifact, numbers),
    st.builds(ArtifactOpened, numbers, files),
    st.builds(
        AskLater,
        numbers,
        st.sampled_from(["busy", "verifying"]),
        st.integers(1, 60_000),
        sizes,
        sizes,
    ),
    st.builds(
        TransferRefused, numbers, st.sampled_from(["unknown", "changed", "failed", "not_open"])
    ),
    st.builds(
        ReadFilling,
        numbers,
        st.integers(0, MAX_FILLING_PIECES - 1),
        st.integers(1, MAX_FILLING_BYTES),
        st.booleans(),
    ),
    st.builds(CloseFilling, numbers),
    st.builds(FillingRefused, numbers, st.sampled_from(["serving", "probing", "too_much"])),
    st.builds(
        OpenTunnel,
        numbers,
        st.from_regex(COMMAND_ID_PATTERN, fullmatch=True).map(InstanceId),
        numbers,
        st.integers(0, 127),
    ),
    st.builds(TunnelTaken, numbers, st.booleans(), numbers),
    st.builds(TunnelMark, numbers, st.booleans(), numbers),
    st.builds(TunnelEnded, numbers, st.booleans(), numbers),
    st.builds(
        TunnelReset,
        numbers,
        st.booleans(),
        st.sampled_from(["unknown", "refused", "busy", "gone", "lost"]),
    ),
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5).map(tuple),
    max_leaves=10,
)
names = st.sampled_from(
    [
        "open", "read", "close", "opened", "later", "refused", "content", "",
        "read_filling", "close_filling", "filling_refused", "open_tunnel", "tunnel_reset",
    ]
)  # fmt: skip


@given(frames)
def test_a_frame_comes_back_as_it_went(frame: OpenArtifact) -> None:
    assert unpack_files(pack_files(frame)) == frame


@given(numbers, indexes, sizes, st.binary(min_size=1, max_size=300))
def test_content_comes_back_as_it_went(
    request_id: int, file_index: int, offset: int, content: bytes
) -> None:
    payload = pack_content(request_id, file_index, offset, content)
    frame = unpack_files(payload)
    assert frame == RangeContent(request_id, file_index, offset, memoryview(content))


@given(numbers, st.booleans(), numbers, st.binary(min_size=1, max_size=300))
def test_bytes_of_a_stream_come_back_as_they_went(
    stream_id: int, by_opener: bool, offset: int, content: bytes
) -> None:
    payload = pack_tunnel_data(stream_id, by_opener=by_opener, offset=offset, content=content)
    assert unpack_files(payload) == TunnelData(stream_id, by_opener, offset, memoryview(content))


@pytest.mark.parametrize("n_bytes", [0, MAX_PIECE_BYTES + 1])
def test_a_piece_of_a_stream_is_neither_empty_nor_too_long(n_bytes: int) -> None:
    payload = pack_tunnel_data(1, by_opener=True, offset=0, content=bytes(n_bytes))
    with pytest.raises(ProtocolError, match="none or too many"):
        unpack_files(payload)


def test_the_longest_content_and_the_longest_list_fit_a_payload() -> None:
    longest = pack_content(1, 2, 3, bytes(MAX_RANGE_BYTES))
    assert len(longest) == MAX_PAYLOAD_BYTES["files"]
    segment = "a" * 181
    file = OfferedFile("/".join([segment] * 8), MAX_FILE_BYTES, KEY)
    opened = ArtifactOpened((1 << 63) - 1, (file,) * MAX_FILES)
    assert len(pack_files(opened)) <= MAX_PAYLOAD_BYTES["files"]


def unpacked(payload: bytes) -> FilesFrame | ProtocolError:
    try:
        return unpack_files(payload)
    except ProtocolError as error:
        return error


@given(st.binary(max_size=200))
@example(b"")
@example(b"\0")
@example(bytes(HEADER_BYTES))
@example(b"\1")
@example(b"\1" + bytes(FILLING_HEADER_BYTES))
@example(bytes([TUNNEL_DATA]) + bytes(DATA_HEADER_BYTES))
def test_random_bytes_are_a_frame_or_a_named_error(payload: bytes) -> None:
    outcome = unpacked(payload)
    if isinstance(outcome, ProtocolError):
        assert outcome.code == "protocol.bad_frame"
    else:
        assert 0 <= outcome[0] < 1 << 64


@given(names, st.lists(plain, max_size=6))
def test_random_fields_are_a_frame_or_a_named_error(name: str, fields: list[object]) -> None:
    outcome = unpacked(encode_values((name, *fields)))
    if isinstance(outcome, ProtocolError):
        assert outcome.code == "protocol.bad_frame"
    else:
        assert not isinstance(outcome, RangeContent)


@pytest.mark.parametrize(
    "values",
    [
        ("read", 1, MAX_FILES, 0, 1),
        ("read", 1, 0, -1, 1),
        ("read", 1, 0, 0, 0),
        ("read", 1, 0, 0, MAX_RANGE_BYTES + 1),
        ("read", -1, 0, 0, 1),
        ("open", 1, "../../etc/passwd"),
        ("opened", 1, ()),
        ("opened", 1, (("../up", 1, KEY),)),
        ("opened", 1, (("/abs", 1, KEY),)),
        ("opened", 1, (("a", MAX_FILE_BYTES + 1, KEY),)),
        ("opened", 1, (("a", 1, KEY),) * (MAX_FILES + 1)),
        ("later", 1, "busy", 0, 0, 0),
        ("later", 1, "tired", 1, 0, 0),
        ("refused", 1, "why"),
        ("close",),
        ("close", 1, 2),
    ],
)
def test_what_is_out_of_bounds_is_refused(values: tuple[object, ...]) -> None:
    with pytest.raises(ProtocolError) as refused:
        unpack_files(encode_values(values))
    assert refused.value.code == "protocol.bad_frame"


def test_a_payload_that_is_too_long_is_refused_unread() -> None:
    for first in (b"\0", b"\x91"):
        with pytest.raises(ProtocolError) as refused:
            unpack_files(first + bytes(MAX_PAYLOAD_BYTES["files"]))
        assert refused.value.code == "protocol.too_large"
