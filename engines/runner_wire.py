"""What the worker and a runner child say to each other, over a Unix socket.

A connection carries one question and its answer: closing it is how a question is called back. A
message is one msgpack value behind its length, four bytes, big-endian.

    ("status",)                -> ("status", loaded, ratio or None, note)
    ("statistics",)            -> ("statistics", slots, busy, context tokens)
    ("count", task)            -> ("count", tokens)
    ("count_text", text)       -> ("count", tokens)
    ("chat", task)             -> frames as protocol/frame_wire.py writes them, the last a terminal

Where an answer cannot be given, a `Failed` frame stands in its place.
"""

import asyncio
from typing import Final, cast

from protocol.codec import decode_values, encode_values
from protocol.data_frames import Frame
from protocol.errors import ProtocolError
from protocol.frame_wire import pack_frame

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""A task whose conversation fills the longest window there is."""
_LENGTH_BYTES: Final = 4


def pack_message(*values: object) -> bytes:
    """Write a message that is no frame."""
    return _framed(encode_values(values))


def pack_frame_message(frame: Frame) -> bytes:
    """Write a frame as a message."""
    return _framed(pack_frame(frame))


async def read_message(reader: asyncio.StreamReader) -> object:
    """Read the next message.

    Raises:
        ProtocolError: `protocol.too_large`, `protocol.bad_frame`.
        EOFError: The other side has closed the connection.
    """
    size = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    if size > MAX_MESSAGE_BYTES:
        raise ProtocolError(
            "protocol.too_large",
            f"a message of {size} bytes exceeds the limit of {MAX_MESSAGE_BYTES}",
        )
    data = await reader.readexactly(size)
    return decode_values(data, max_bytes=MAX_MESSAGE_BYTES, max_values=None)


def head_of(message: object) -> tuple[str, tuple[object, ...]]:
    """Split a message that is no frame into its name and the rest.

    Raises:
        ProtocolError: `protocol.bad_frame`.
    """
    if isinstance(message, tuple):
        name, *rest = cast("tuple[object, ...]", message) or (None,)
        if isinstance(name, str):
            return name, tuple(rest)
    raise ProtocolError("protocol.bad_frame", "a runner's message has no name")


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data
