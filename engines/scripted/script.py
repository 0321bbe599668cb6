"""What the scripted engine says, token by token. Pure; standard library only.

One word is one token, with the white space before it. Nothing is random: the same request to the
same script gives the same tokens.
"""

import re
from array import array
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, final

from engines.output.stop_filter import StopFilter
from engines.output.utf8 import Utf8Assembler
from protocol.images import read_image_header

_WORD: Final = re.compile(r"\s*\S+")
_SEEN: Final = "{images}"
_IMAGE: Final = "<image>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The card's [scripted] table, and the size that the instance was placed with.

    `protocol.cards.ScriptedSection` says what each field does. This process does not import it:
    Pydantic would triple the time until it listens.
    """

    slots: int
    context_tokens: int
    reply: str
    dimensions: int = 8
    """Of embeddings."""
    repeat: bool = False
    token_delay_ms: int = 0
    first_token_delay_ms: int = 0
    load_delay_ms: int = 0
    load_progress_every_ms: int = 0
    load_exit_code: int | None = None
    load_stderr: str = ""
    load_signal: int | None = None
    exit_after_tokens: int | None = None
    stall_after_tokens: int | None = None
    memory_bytes: int = 0
    ignore_sigterm: bool = False
    split_utf8: bool = False
    raw_markup: bool = False
    prompt_tail: str = ""
    later_replies: tuple[str, ...] = ()


def render(messages: list[dict[str, Any]], tail: str = "") -> str:
    """Render a conversation to the prompt that is counted; an image is a word."""
    lines = [f"{message['role']}: {_content(message['content'])}" for message in messages]
    return "\n".join((*lines, tail) if tail else lines)


def reply_to(script: Script, messages: list[dict[str, Any]]) -> str:
    """Choose what is said by how many results of tools the conversation holds.

    `{images}` in it becomes what was seen: kind, size and digest of each image, in their order.
    """
    replies = (script.reply, *script.later_replies)
    n_results = sum(message["role"] == "tool" for message in messages)
    reply = replies[min(n_results, len(replies) - 1)]
    if _SEEN not in reply:
        return reply
    parts = [part for message in messages for part in _parts(message["content"])]
    seen = [_seen(part["image_url"]["url"]) for part in parts if part["type"] == "image_url"]
    return reply.replace(_SEEN, ", ".join(seen) or "nothing")


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _content(content: str | list[dict[str, Any]]) -> str:
    texts = (part["text"] if part["type"] == "text" else _IMAGE for part in _parts(content))
    return " ".join(texts)


def _seen(url: str) -> str:
    """Look at an image.

    Raises:
        ValueError: It is none.
    """
    declared, _, encoded = url.partition(";base64,")
    data = b64decode(encoded, validate=True)
    header = read_image_header(data)
    if header is None or declared != f"data:{header.media_type}":
        message = f"Failed to load image: {declared} of {len(data)} bytes"
        raise ValueError(message)
    digest = sha256(data).hexdigest()
    return f"{header.media_type} {header.width_px}x{header.height_px} {digest}"


def count_tokens(text: str) -> int:
    """Count words."""
    return len(_WORD.findall(text))


def embedding(text: str, dimensions: int) -> bytes:
    """Give a vector of length 1 that depends on the text alone, as float32."""
    data = text.encode()
    raw = [
        1.0 + sum((n + 1) * byte for n, byte in enumerate(data[at::dimensions]))
        for at in range(dimensions)
    ]
    length = sum(value * value for value in raw) ** 0.5
    return array("f", [value / length for value in raw]).tobytes()


def score(query: str, document: str) -> float:
    """Say which share of the query's words a document has."""
    words = set(query.lower().split())
    return len(words & set(document.lower().split())) / max(1, len(words))


@final
class Utterance:
    """One answer under way.

    Args:
        script: How it is said.
        reply: What is said.
        prompt_tokens: Of the prompt; it takes its part of the context.
        max_tokens: The budget, if there is one.
        stop: Strings that end the answer.
    """

    def __init__(
        self,
        script: Script,
        *,
        reply: str,
        prompt_tokens: int,
        max_tokens: int | None,
        stop: tuple[str, ...],
    ) -> None:
        room = script.context_tokens - prompt_tokens
        self._budget = room if max_tokens is None else min(room, max_tokens)
        self._tokens = _tokens(script, reply)
        self._characters = Utf8Assembler()
        self._filter = StopFilter(stop)
        self.n_tokens = 0
        self.reason: str | None = None
        """`stop` or `length` once the answer is over."""

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended it, if one did."""
        return self._filter.stopped_by

    def step(self) -> str:
        """Say one more token and give the text that may be shown now, often that token's own."""
        token = next(self._tokens, None)
        if token is None:
            return self._end("stop")
        self.n_tokens += 1
        text = self._filter.feed(self._characters.feed(token))
        if self._filter.has_stopped:
            self.reason = "stop"
            return text
        if self.n_tokens >= self._budget:
            return text + self._end("length")
        return text

    def _end(self, reason: str) -> str:
        self.reason = reason
        text = self._filter.feed(self._characters.flush()) + self._filter.flush()
        if self._filter.has_stopped:
            self.reason = "stop"
        return text


def _tokens(script: Script, reply: str) -> Iterator[bytes]:
    words = [word.encode() for word in _WORD.findall(reply)]
    is_first_round = True
    while words:
        for position, word in enumerate(words):
            opens_a_round = position == 0 and not is_first_round and not word[:1].isspace()
            token = b" " + word if opens_a_round else word
            if script.split_utf8:
                yield from (token[at : at + 1] for at in range(len(token)))
            else:
                yield token
        if not script.repeat:
            return
        is_first_round = False
