"""Text as JSON, safe inside one line of a stream, and JSON that models wrote. Pure."""

import json
from json.encoder import encode_basestring
from math import isfinite
from typing import Any, Final, cast

from pydantic_core import PydanticSerializationError, to_json

_LINE_BREAKS: Final = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""Line breaks to Unicode, not to streams: clients that use `str.splitlines` cut an event there."""

_DUMP: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def escaped(text: str) -> bytes:
    """Give a JSON string, with its quotes."""
    return _line(encode_basestring(text))


def dumped(value: object) -> bytes:
    """Give any value as JSON."""
    return _line(_DUMP(value))


def written(document: dict[str, Any]) -> bytes:
    """Give a whole answer as JSON, in a fifth of what `json` takes for a short one."""
    try:
        return to_json(document)
    except PydanticSerializationError:  # a lone surrogate, of which `escaped` tells
        return _DUMP(document).encode("utf-8", "replace")


def _line(text: str) -> bytes:
    if text.isascii():
        return text.encode()
    # A lone surrogate cannot be sent; an engine that makes one loses that character.
    return text.translate(_LINE_BREAKS).encode("utf-8", "replace")


def arguments_object(text: str) -> dict[str, Any]:
    """Read the arguments of a call as a model wrote them.

    A model's slip must not make the whole answer unreadable: the client then sees its text.
    """
    try:
        arguments = json.loads(text or "{}", parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        return {"unreadable_arguments": text}
    return cast("dict[str, Any]", arguments)


def _finite(text: str) -> float:
    """Refuse what no JSON can carry on: NaN, Infinity, and numbers that are too large for a float.

    Raises:
        ValueError: It is none.
    """
    number = float(text)
    if not isfinite(number):
        raise ValueError(text)
    return number
