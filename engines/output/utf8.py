"""Characters from tokens: a token may end inside a UTF-8 sequence. Pure."""

import codecs
from typing import final


@final
class Utf8Assembler:
    """Joins the bytes of tokens into whole characters.

    Invariant: what was given out, joined, is the longest decodable beginning of what came in, with
    bytes that can never become a character left out. U+FFFD is never invented.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    def feed(self, token: bytes) -> str:
        """Take a token's bytes and give the characters that are now whole."""
        return self._decoder.decode(token)

    def flush(self) -> str:
        """End the text: an incomplete last character is dropped."""
        return self._decoder.decode(b"", final=True)
