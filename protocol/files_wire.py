"""What nodes say to each other to pass model files on: the frames of the files plane.

The same connection shows what a link can carry: a node asks another one for bytes that mean
nothing, as it would ask for those of a file, and sees how fast they come.

Small frames are msgpack tuples with fixed fields. The one that carries a file's bytes has a fixed
binary header in front of them, so that neither side decodes or copies a megabyte to find them. A
file is named by its artifact's key and its place in the artifact, never by a path.
"""

import struct
from typing import Annotated, Final, Literal, NamedTuple, cast

from pydantic import Field, TypeAdapter, ValidationError

from protocol.cards import RelativePath
from protocol.codec import decode_values, encode_values
from protocol.envelope import MAX_PAYLOAD_BYTES
from protocol.errors import ProtocolError
from protocol.ids import DigestField
from protocol.tunnel_wire import (
    OpenTunnel,
    TunnelEnded,
    TunnelFrame,
    TunnelMark,
    TunnelReset,
    TunnelTaken,
    unpack_tunnel_data,
)

MAX_FILES: Final = 512
"""Of one artifact. A list of so many files with the longest paths fits one payload."""
MAX_FILE_BYTES: Final = 1 << 46

_HEADER: Final = struct.Struct(">BQHQ")
_CONTENT: Final = 0
"""The first byte of a frame with content. Msgpack would read it as the number 0, never a tuple."""
_FILLING: Final = 1
"""The same of a frame with bytes that mean nothing; a number to msgpack too."""
_FILLING_HEADER: Final = struct.Struct(">BQI")
FILLING_HEADER_BYTES: Final = _FILLING_HEADER.size
MAX_FILLING_BYTES: Final = 256 << 10
"""Of one piece. Small, so that whoever asks for it steers closely how much is on its way."""
MAX_FILLING_PIECES: Final = 1 << 16
HEADER_BYTES: Final = _HEADER.size
MAX_RANGE_BYTES: Final = MAX_PAYLOAD_BYTES["files"] - HEADER_BYTES

RequestNumber = Annotated[int, Field(ge=0, lt=1 << 63)]
FileIndex = Annotated[int, Field(ge=0, lt=MAX_FILES)]
Size = Annotated[int, Field(ge=0, le=MAX_FILE_BYTES)]


class OpenArtifact(NamedTuple):
    """A node asks for a model's files; every later frame of this transfer bears the number."""

    request_id: RequestNumber
    key: DigestField
    """Of the artifact: from the model's id and source, the same on every node."""


class ReadRange(NamedTuple):
    """Give a piece of a file."""

    request_id: RequestNumber
    file_index: FileIndex
    offset: Size
    n_bytes: Annotated[int, Field(ge=1, le=MAX_RANGE_BYTES)]


class CloseArtifact(NamedTuple):
    """No more is wanted."""

    request_id: RequestNumber


class OfferedFile(NamedTuple):
    """One verified file."""

    path: RelativePath
    """Inside the artifact."""
    size_bytes: Size
    sha256: DigestField


class ArtifactOpened(NamedTuple):
    """The files are here, verified, and may be read until the transfer is closed."""

    request_id: RequestNumber
    files: Annotated[tuple[OfferedFile, ...], Field(min_length=1, max_length=MAX_FILES)]


WaitReason = Literal["busy", "verifying"]
"""As many transfers are served as may be; the files are hashed first, for the first time."""


class AskLater(NamedTuple):
    """The files are here; ask again after a while."""

    request_id: RequestNumber
    reason: WaitReason
    retry_ms: Annotated[int, Field(ge=1, le=60_000)]
    done_bytes: Size = 0
    """How much is hashed, or was sent to others: grows as long as waiting is not in vain."""
    total_bytes: Size = 0
    """Of what is hashed."""


RefusalReason = Literal["unknown", "changed", "failed", "not_open"]
"""Nothing of that key is here; a file is no longer as it was verified; the disk refuses; the
transfer is not open, or no longer."""


class TransferRefused(NamedTuple):
    """The transfer is over."""

    request_id: RequestNumber
    reason: RefusalReason


class RangeContent(NamedTuple):
    """A piece of a file."""

    request_id: int
    file_index: int
    offset: int
    content: memoryview


class ReadFilling(NamedTuple):
    """Give bytes that mean nothing: what is measured is how fast they come."""

    request_id: RequestNumber
    """Of the measurement."""
    number: Annotated[int, Field(ge=0, lt=MAX_FILLING_PIECES)]
    n_bytes: Annotated[int, Field(ge=1, le=MAX_FILLING_BYTES)]
    even_busy: bool
    """Also while the node answers requests of clients."""


class CloseFilling(NamedTuple):
    """No more is asked for: another node may measure."""

    request_id: RequestNumber


FillingRefusal = Literal["serving", "probing", "too_much"]
"""It answers requests of clients; it measures with another node; so much is not given at a time."""


class FillingRefused(NamedTuple):
    """The measurement is over."""

    request_id: RequestNumber
    reason: FillingRefusal


class Filling(NamedTuple):
    """Bytes that mean nothing."""

    request_id: int
    number: int
    n_bytes: int


FileRequest = OpenArtifact | ReadRange | CloseArtifact
FileAnswer = ArtifactOpened | AskLater | TransferRefused | RangeContent
FillingFrame = ReadFilling | CloseFilling | FillingRefused | Filling
FilesFrame = FileRequest | FileAnswer | FillingFrame | TunnelFrame
_Tuple = (
    FileRequest
    | ArtifactOpened
    | AskLater
    | TransferRefused
    | ReadFilling
    | CloseFilling
    | FillingRefused
    | OpenTunnel
    | TunnelTaken
    | TunnelMark
    | TunnelEnded
    | TunnelReset
)

_KINDS: Final[dict[str, type[_Tuple]]] = {
    "open": OpenArtifact,
    "read": ReadRange,
    "close": CloseArtifact,
    "opened": ArtifactOpened,
    "later": AskLater,
    "refused": TransferRefused,
    "read_filling": ReadFilling,
    "close_filling": CloseFilling,
    "filling_refused": FillingRefused,
    "open_tunnel": OpenTunnel,
    "tunnel_taken": TunnelTaken,
    "tunnel_mark": TunnelMark,
    "tunnel_ended": TunnelEnded,
    "tunnel_reset": TunnelReset,
}
_NAMES: Final[dict[type[_Tuple], str]] = {kind: name for name, kind in _KINDS.items()}
_ADAPTERS: Final[dict[str, TypeAdapter[_Tuple]]] = {
    name: TypeAdapter(kind) for name, kind in _KINDS.items()
}


def pack_files(frame: _Tuple) -> bytes:
    """Encode a frame without content."""
    return encode_values((_NAMES[type(frame)], *frame))


def pack_content(request_id: int, file_index: int, offset: int, content: bytes) -> bytes:
    """Encode a piece of a file, at most `MAX_RANGE_BYTES`."""
    return _HEADER.pack(_CONTENT, request_id, file_index, offset) + content


def pack_filling(request_id: int, number: int, n_bytes: int) -> bytes:
    """Encode bytes that mean nothing, at most `MAX_FILLING_BYTES`."""
    return _FILLING_HEADER.pack(_FILLING, request_id, number) + bytes(n_bytes)


def unpack_files(payload: bytes) -> FilesFrame:
    """Decode a payload of the files plane; content is not copied.

    Raises:
        ProtocolError: `protocol.too_large`, `protocol.bad_frame`.
    """
    if payload[:1] == b"\0":
        return _unpack_content(payload)
    if payload[:1] == b"\1":
        return _unpack_filling(payload)
    if payload[:1] == b"\2":
        return unpack_tunnel_data(payload)
    values = decode_values(payload, max_bytes=MAX_PAYLOAD_BYTES["files"])
    if not isinstance(values, tuple) or not values:
        raise _bad_frame("it is no tuple")
    fields = cast("tuple[object, ...]", values)
    name = fields[0]
    adapter = _ADAPTERS.get(name) if isinstance(name, str) else None
    if adapter is None:
        reason = f"the files plane knows no {str(name)[:32]!r}"
        raise _bad_frame(reason)
    try:
        return adapter.validate_python(fields[1:])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        message = f"{name}, field {place}: {first['msg']}"
        raise _bad_frame(message[:500]) from error


def _unpack_content(payload: bytes) -> RangeContent:
    if len(payload) <= HEADER_BYTES:
        raise _bad_frame("a piece of a file has no content")
    if len(payload) > MAX_PAYLOAD_BYTES["files"]:
        raise ProtocolError(
            "protocol.too_large",
            f"a piece of a file has {len(payload)} bytes, at most {MAX_PAYLOAD_BYTES['files']}",
            remediation="Run the same build on both sides; if they are, report this.",
        )
    _, request_id, file_index, offset = _HEADER.unpack_from(payload)
    return RangeContent(request_id, file_index, offset, memoryview(payload)[HEADER_BYTES:])


def _unpack_filling(payload: bytes) -> Filling:
    n_bytes = len(payload) - FILLING_HEADER_BYTES
    if not 1 <= n_bytes <= MAX_FILLING_BYTES:
        raise _bad_frame("a piece that means nothing is empty or too long")
    _, request_id, number = _FILLING_HEADER.unpack_from(payload)
    return Filling(request_id, number, n_bytes)


def _bad_frame(reason: str) -> ProtocolError:
    return ProtocolError(
        "protocol.bad_frame",
        f"a frame from a peer does not decode: {reason}",
        remediation="Run the same build on both sides; if they are, report this.",
    )
