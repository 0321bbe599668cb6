"""Msgpack to wire models and back: bounded, strict about frames, silent about transports.

A frame is one msgpack value, all of it. Maps have string keys, arrays become tuples, and neither a
depth over `MAX_DEPTH`, nor NaN or an infinity, nor an extension type, nor a byte behind the value
gets past `decode_values`; unknown fields are the models' to refuse.
"""

from collections.abc import Callable, Sized
from functools import partial
from math import isfinite
from typing import Any, Final, TypeVar, cast

import msgpack
from pydantic import TypeAdapter, ValidationError

from protocol.base import FrozenModel
from protocol.errors import ProtocolError

MAX_FRAME_BYTES: Final = 1 << 20
"""What `unpack` takes unless its caller knows better: the limit of the events plane."""
MAX_DEPTH: Final = 32
"""Containers in containers. The deepest wire type has 9."""
MAX_VALUES: Final = 1 << 16
"""In one frame on the wire. What is long there is bytes and texts; a frame of four million small
values would hold the event loop for seconds."""
_MAX_SHARE: Final = 16
"""One array or map may have this part of all values: room for an array is made once it is
announced, in each of the thousand arrays that may stand in each other."""
SHORT_BYTES: Final = 1024
"""A frame of so few bytes cannot have too many values."""

T = TypeVar("T")

# The library has no types; these two lines are where it gets them.
_packb = cast("Callable[..., bytes]", msgpack.packb)  # pyright: ignore[reportUnknownMemberType]
_unpackb = cast("Callable[..., object]", msgpack.unpackb)  # pyright: ignore[reportUnknownMemberType]

decode_trusted_values: Final[Callable[[bytes], object]] = partial(_unpackb, use_list=False)
"""Decode a value that a checksum of our own covers, or every part of which the caller checks;
`ValueError` when it is none.

Not a `def`: the journal calls it once a record, and a Python frame would be a tenth of a start.
"""


decode_short_values: Final[Callable[[bytes], object]] = partial(
    _unpackb, use_list=False, max_ext_len=0
)
"""Decode one value of at most `SHORT_BYTES`; `ValueError` when it is none."""


def pack(model: FrozenModel) -> bytes:
    """Encode a model; its fields go by their own names."""
    return _packb(model.model_dump(mode="python"))


def unpack(
    adapter: TypeAdapter[T],
    data: bytes,
    *,
    max_bytes: int = MAX_FRAME_BYTES,
    max_values: int | None = MAX_VALUES,
) -> T:
    """Decode one model.

    Args:
        adapter: Of the model or union; make it once, it is expensive.
        data: One frame.
        max_bytes: Refused, unread, above this.
        max_values: Refused above this; None only for what a thread decodes.

    Raises:
        ProtocolError: `protocol.too_large`, `protocol.bad_frame`.
    """
    values = decode_values(data, max_bytes=max_bytes, max_values=max_values)
    try:
        return adapter.validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the value"
        message = f"{error.error_count()} wrong fields; first, {place}: {first['msg']}"
        raise _bad_frame(message[:500]) from error


def encode_values(values: object) -> bytes:
    """Encode what msgpack knows: None, bool, int, float, str, bytes, tuple, list, dict."""
    return _packb(values)


def decode_values(
    data: bytes, *, max_bytes: int = MAX_FRAME_BYTES, max_values: int | None = MAX_VALUES
) -> object:
    """Decode one frame from outside into plain values.

    Raises:
        ProtocolError: `protocol.too_large`, `protocol.bad_frame`.
    """
    if len(data) > max_bytes:
        raise ProtocolError(
            "protocol.too_large",
            f"a frame of {len(data)} bytes exceeds the limit of {max_bytes}",
            remediation="Run the same build on both sides; if they are, report this.",
            details={"n_bytes": len(data), "max_bytes": max_bytes},
        )
    try:
        # By default no string, array or map may announce more items than the frame has bytes.
        values = (
            _unpackb(data, use_list=False, max_ext_len=0)
            if max_values is None or len(data) <= SHORT_BYTES
            else decode_few_values(data, max_values=max_values)
        )
    except ValueError as error:
        raise _bad_frame(str(error) or type(error).__name__) from error
    _check(values, 0)
    return values


def decode_few_values(data: bytes, *, max_values: int = MAX_VALUES) -> object:
    """Decode one value that has not too many in it.

    Raises:
        ValueError: It has, or it is none.
    """
    if len(data) <= SHORT_BYTES:
        return decode_short_values(data)
    n_left = max_values

    def count(container: Sized) -> Sized:
        nonlocal n_left
        n_left -= len(container) + 1
        if n_left < 0:
            message = f"it has more than {max_values} values"
            raise ValueError(message)
        return container

    return _unpackb(
        data,
        use_list=False,
        max_ext_len=0,
        max_array_len=max_values // _MAX_SHARE,
        max_map_len=max_values // _MAX_SHARE,
        list_hook=count,
        object_hook=count,
    )


def _check(value: object, depth: int) -> None:
    """Refuse depth and the floats that are no numbers; str, int and bytes cost one comparison."""
    kind = type(value)
    if kind is dict:
        fields = cast("dict[Any, Any]", value)
        for key in fields:
            if type(key) is not str:
                raise _bad_frame("a map has a key that is no string")
        children = fields.values()
    elif kind is tuple:
        children = cast("tuple[Any, ...]", value)
    elif kind in _LEAVES or (kind is float and isfinite(cast("float", value))):
        return
    else:
        # An extension that is empty is within every limit on its length.
        what = "a number is not finite" if kind is float else "a value has an extension type"
        raise _bad_frame(what)
    if depth >= MAX_DEPTH:
        reason = f"values are nested deeper than {MAX_DEPTH}"
        raise _bad_frame(reason)
    for child in children:
        if type(child) not in _LEAVES:
            _check(child, depth + 1)


_LEAVES: Final = frozenset((str, int, bytes, bool, type(None)))


def _bad_frame(reason: str) -> ProtocolError:
    return ProtocolError(
        "protocol.bad_frame",
        f"a frame does not decode: {reason}",
        remediation="Run the same build on both sides; if they are, report this.",
    )
