"""What carries the streams of engines between nodes: frames of the files plane.

Ranks of one model talk to each other over streams of bytes, as over a TCP connection. A stream is
opened by one node towards a rank on another; its number is the opener's, so every frame says
whether its sender is the opener. Frames count bytes from the stream's beginning: what was lost or
comes twice when a connection breaks shows at once, and never as a gap in what an engine reads.
"""

import struct
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field

from protocol.errors import ProtocolError
from protocol.ids import InstanceIdField

WINDOW_BYTES: Final = 1 << 20
"""So much may be on its way, or not yet taken by the engine, in each direction of a stream."""
MAX_PIECE_BYTES: Final = 64 << 10
"""Of one frame. Small, so that what others send over the same connection comes in between."""

TUNNEL_DATA: Final = 2
"""The first byte of a frame with bytes of a stream; a number to msgpack, never a tuple."""
_HEADER: Final = struct.Struct(">B?QQ")
DATA_HEADER_BYTES: Final = _HEADER.size

StreamNumber = Annotated[int, Field(ge=0, lt=1 << 63)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]

TunnelEndReason = Literal["unknown", "refused", "busy", "gone", "lost"]
"""No such stream; no rank of the opener's own instance is reached there; too many are open; the
engine there has closed it or is not there; bytes were lost between the nodes."""


class OpenTunnel(NamedTuple):
    """A node opens a stream to a rank; it may send at once."""

    stream_id: StreamNumber
    instance_id: InstanceIdField
    attempt: Count
    rank: Annotated[int, Field(ge=0, le=127)]


class TunnelTaken(NamedTuple):
    """So many bytes have been passed on: the window begins there."""

    stream_id: StreamNumber
    by_opener: bool
    offset: Count


class TunnelMark(NamedTuple):
    """So many bytes have been sent, nothing follows for now: whoever has fewer has lost some."""

    stream_id: StreamNumber
    by_opener: bool
    offset: Count


class TunnelEnded(NamedTuple):
    """Nothing follows in this direction; the other one is still open."""

    stream_id: StreamNumber
    by_opener: bool
    offset: Count


class TunnelReset(NamedTuple):
    """The stream is over, in both directions."""

    stream_id: StreamNumber
    by_opener: bool
    reason: TunnelEndReason


class TunnelData(NamedTuple):
    """Bytes of a stream."""

    stream_id: int
    by_opener: bool
    offset: int
    content: memoryview


TunnelFrame = OpenTunnel | TunnelTaken | TunnelMark | TunnelEnded | TunnelReset | TunnelData


def pack_tunnel_data(
    stream_id: int, *, by_opener: bool, offset: int, content: bytes | memoryview
) -> bytes:
    """Encode bytes of a stream, at most `MAX_PIECE_BYTES`."""
    return b"".join((_HEADER.pack(TUNNEL_DATA, by_opener, stream_id, offset), content))


def unpack_tunnel_data(payload: bytes) -> TunnelData:
    """Decode a frame whose first byte is `TUNNEL_DATA`; content is not copied.

    Raises:
        ProtocolError: `protocol.bad_frame`.
    """
    n_bytes = len(payload) - DATA_HEADER_BYTES
    if not 1 <= n_bytes <= MAX_PIECE_BYTES:
        raise ProtocolError(
            "protocol.bad_frame",
            "a frame from a peer does not decode: bytes of a stream are none or too many",
            remediation="Run the same build on both sides; if they are, report this.",
        )
    _, by_opener, stream_id, offset = _HEADER.unpack_from(payload)
    return TunnelData(stream_id, by_opener, offset, memoryview(payload)[DATA_HEADER_BYTES:])
