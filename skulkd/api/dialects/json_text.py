"""Text as JSON, safe inside one line of a stream. Pure."""

import json
from json.encoder import encode_basestring
from typing import Final

_LINE_BREAKS: Final = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""Line breaks to Unicode, not to streams: clients that use `str.splitlines` cut an event there."""

_DUMP: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def escaped(text: str) -> bytes:
    """Give a JSON string, with its quotes."""
    return _line(encode_basestring(text))


def dumped(value: object) -> bytes:
    """Give any value as JSON."""
    return _line(_DUMP(value))


def _line(text: str) -> bytes:
    if text.isascii():
        return text.encode()
    # A lone surrogate cannot be sent; an engine that makes one loses that character.
    return text.translate(_LINE_BREAKS).encode("utf-8", "replace")
