"""Text as JSON, safe inside one line of a stream. Pure."""

from json.encoder import encode_basestring
from typing import Final

_LINE_BREAKS: Final = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""Line breaks to Unicode, not to streams: clients that use `str.splitlines` cut an event there."""


def escaped(text: str) -> bytes:
    """Give a JSON string, with its quotes."""
    if text.isascii():
        return encode_basestring(text).encode()
    # A lone surrogate cannot be sent; an engine that makes one loses that character.
    return encode_basestring(text).translate(_LINE_BREAKS).encode("utf-8", "replace")
