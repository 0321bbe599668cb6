"""Checks of values that msgpack has decoded, for frames that are too many to be models.

Each takes any value and gives it back as what it is to be, or refuses. Nothing is converted, but
for whole numbers where a float is asked for.
"""

from math import isfinite
from typing import Final, NoReturn, cast

from protocol.codec import SHORT_BYTES, decode_few_values, decode_short_values
from protocol.errors import ProtocolError

MAX_NUMBER: Final = (1 << 63) - 1


def decode_bounded(data: bytes, max_bytes: int) -> object:
    """Decode one msgpack value without a walk over it; every part of it must then be checked.

    Raises:
        ProtocolError: `protocol.too_large`, `protocol.bad_frame`.
    """
    if len(data) > max_bytes:
        raise ProtocolError(
            "protocol.too_large",
            f"a payload of {len(data)} bytes exceeds the limit of {max_bytes}",
            remediation="Run the same build on both sides; if they are, report this.",
            details={"n_bytes": len(data), "max_bytes": max_bytes},
        )
    try:
        return decode_short_values(data) if len(data) <= SHORT_BYTES else decode_few_values(data)
    except ValueError as error:
        raise bad_payload(str(error) or type(error).__name__) from error


def refuse(reason: str) -> NoReturn:
    """Refuse a value.

    Raises:
        ProtocolError: `protocol.bad_frame`.
    """
    raise bad_payload(reason)


def bad_payload(reason: str) -> ProtocolError:
    """Give the error of a payload that does not decode."""
    return ProtocolError(
        "protocol.bad_frame",
        f"a payload of a peer does not decode: {reason}",
        remediation="Run the same build on both sides; if they are, report this.",
    )


def fields_of(value: object, n_items: int) -> tuple[object, ...]:
    """Check for an array of exactly so many items."""
    items = array_of(value)
    if len(items) != n_items:
        refuse(f"an array has {len(items)} items, not {n_items}")
    return items


def array_of(value: object, max_items: int | None = None) -> tuple[object, ...]:
    """Check for an array, of at most so many items."""
    if type(value) is not tuple:
        refuse("a field is no array")
    items = cast("tuple[object, ...]", value)
    if max_items is not None and len(items) > max_items:
        refuse(f"an array has {len(items)} items, more than {max_items}")
    return items


def number_of(value: object, *, least: int = 0, most: int = MAX_NUMBER) -> int:
    """Check for a whole number in a range."""
    if type(value) is not int or not least <= value <= most:
        refuse("a number is out of its range")
    return value


def count_of(value: object) -> int | None:
    """Check for a number from 0 on, or None."""
    return None if value is None else number_of(value)


def float_of(value: object) -> float:
    """Check for a finite number; one that is whole may come as an integer."""
    if type(value) is not float and type(value) is not int:
        refuse("a number is none")
    number = float(value)
    if not isfinite(number):
        refuse("a number is not finite")
    return number


def measure_of(value: object) -> float | None:
    """Check for a finite number, or None."""
    return None if value is None else float_of(value)


def text_of(value: object, max_chars: int | None = None) -> str:
    """Check for a text, of at most so many characters."""
    if type(value) is not str:
        refuse("a text is none")
    if max_chars is not None and len(value) > max_chars:
        refuse("a text is too long")
    return value


def bytes_of(value: object, max_bytes: int) -> bytes:
    """Check for bytes, at most so many."""
    if type(value) is not bytes or len(value) > max_bytes:
        refuse("bytes are none, or too many")
    return value
