"""From a mark that opens a call to what is in it. Pure; text comes in pieces of any size.

A block keeps its text until it is whole, because only a whole one shows whether it is a call: one
that does not parse, or that names a tool nobody offered, is an answer like any other. How much it
keeps is bounded.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Final, Literal, NamedTuple, Protocol, final

from engines.output.call_values import (
    CALL_KEYS,
    ReadCall,
    Tools,
    call_of_arguments,
    call_of_dsml,
    call_of_gemma,
    call_of_glm,
    call_of_object,
    call_of_qwen,
)
from engines.output.json_scan import JsonScanner
from engines.output.markup import DSML, BlockKind, deepseek_mark

MAX_BLOCK_CHARS: Final = 1 << 22
"""Of one call; a longer one is given as text."""
MAX_HEAD_CHARS: Final = 256
"""Between an opening mark and the sign that a call follows."""

Span = Literal["text", "reasoning"]


class Header(NamedTuple):
    """A heading that says what the following text is."""

    span: Span
    calls: str | None = None
    """The tool that the following object is for."""


Result = ReadCall | Header | str
"""A call, a heading, or text that was neither."""


class Block(Protocol):
    """What an opening mark has begun."""

    results: list[Result]
    """What has been read so far; whoever takes from it empties it."""

    def feed(self, text: str) -> str | None:
        """Take text and give what comes after the block; None while it goes on."""
        ...

    def finish(self) -> None:
        """The text is over: what is not whole becomes text."""
        ...


_BLANK_HEAD: Final = re.compile(r"\s*\[?\s*")
_MISTRAL_HEAD: Final = re.compile(
    r"\s*(?:\[\s*|(?P<name>[\w.:/-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*)?"
)
_SEPARATOR: Final = deepseek_mark("tool sep")
_DEEPSEEK_HEAD: Final = re.compile(
    rf"\s*(?:function{_SEPARATOR})?(?P<name>[\w.:/-]+)(?:{_SEPARATOR}|\s*```(?:json)?)\s*"
)
_FIRST_KEY: Final = re.compile(r'\{\s*(?:"(?P<key>[^"]*)(?P<end>")?)?')
_BETWEEN: Final = re.compile(r"[\s,;`\]]*")


@final
class ObjectsBlock:
    """JSON objects, one after the other, each with a head that may hold the name.

    Args:
        opening: The mark that began it; "" where there was none.
        tools: What is offered.
        head: What may stand before an object.
        name: The tool that the object is for, where a heading has said it.
    """

    def __init__(
        self, opening: str, tools: Tools, head: re.Pattern[str] = _BLANK_HEAD, *, name: str = ""
    ) -> None:
        self.results: list[Result] = []
        self._is_bare = not opening
        self._tools = tools
        self._head_pattern = head
        self._name = name
        self._head = ""
        self._parts: list[str] = []
        self._n_chars = 0
        self._scanner = JsonScanner()
        self._step = self._feed_head
        self._is_over = False

    def feed(self, text: str) -> str | None:
        """See `Block.feed`."""
        rest: str | None = text
        while rest and not self._is_over:
            rest = self._step(rest)
        return (rest or "") if self._is_over else None

    def finish(self) -> None:
        """See `Block.finish`."""
        rest = self._head + "".join(self._parts)
        if rest:
            self.results.append(rest)

    def _feed_head(self, text: str) -> str | None:
        at = text.find("{")
        self._head += text if at < 0 else text[:at]
        is_short = len(self._head) <= MAX_HEAD_CHARS
        is_head = is_short and self._head_pattern.fullmatch(self._head) is not None
        if at >= 0 and is_head:
            self._step = self._feed_key if self._is_bare else self._feed_object
            return text[at:]
        may_be_blank = self._head_pattern is _BLANK_HEAD
        if at < 0 and is_short and (is_head or not may_be_blank):
            return None
        self._is_over = True
        rest = "" if at < 0 else text[at:]
        if may_be_blank:  # it may hold marks of its own
            return self._head + rest
        self.results.append(self._head)
        return rest

    def _feed_key(self, text: str) -> str | None:
        """Let an answer in JSON go as soon as its first key is none that calls have."""
        self._parts.append(text)
        begun = "".join(self._parts)
        found = _FIRST_KEY.match(begun)
        is_short = found is not None and found.end() <= MAX_HEAD_CHARS
        if found is not None and is_short and not found["end"] and found.end() == len(begun):
            return None
        self._parts = []
        if found is not None and is_short and found["end"] and found["key"] in CALL_KEYS:
            self._step = self._feed_object
            return begun
        self._is_over = True
        return self._head + begun

    def _feed_object(self, text: str) -> str | None:
        end = self._scanner.feed(text)
        taken = text if end is None else text[:end]
        self._parts.append(taken)
        self._n_chars += len(taken)
        is_short = self._n_chars <= MAX_BLOCK_CHARS
        if end is None and is_short:
            return None
        whole = "".join(self._parts)
        call = self._read(whole) if is_short and not self._scanner.is_broken else None
        self.results.append(call or self._head + whole)
        self._is_over = call is None
        self._step = self._feed_between
        self._scanner, self._parts, self._n_chars, self._head = JsonScanner(), [], 0, ""
        return text[len(taken) :]

    def _read(self, text: str) -> ReadCall | None:
        found = self._head_pattern.fullmatch(self._head)
        name = self._name or (found.groupdict().get("name") if found else "")
        if name:
            return call_of_arguments(name, text, self._tools)
        return call_of_object(text, self._tools, is_bare=self._is_bare)

    def _feed_between(self, text: str) -> str | None:
        rest = text[_match_end(_BETWEEN, text) :]
        if rest.startswith("{") and not self._name:
            self._step = self._feed_head
        elif rest:
            self._is_over = True
        return rest


_TAG_HEAD: Final = re.compile(r"\s*[\w.:/-]*\s*")


@final
class TagBlock:
    """Text up to a closing mark, with a name at its beginning.

    Args:
        opening: The mark that began it.
        closings: The first of these ends it.
        after_name: What may follow the name; anything else shows that this is prose.
        read: Reads the text between the marks.
    """

    def __init__(
        self,
        opening: str,
        closings: tuple[str, ...],
        after_name: str,
        read: Callable[[str], Result | None],
    ) -> None:
        self.results: list[Result] = []
        self._opening = opening
        self._closings = re.compile("|".join(map(re.escape, closings)))
        self._n_kept = max(map(len, closings)) - 1
        self._after_name = after_name
        self._read = read
        self._parts: list[str] = []
        self._n_chars = 0
        self._tail = ""
        self._has_name = False
        self._is_prose = False

    def feed(self, text: str) -> str | None:
        """See `Block.feed`."""
        self._parts.append(text)
        self._n_chars += len(text)
        if not self._has_name and not self._look_for_name():
            return "".join(self._parts) if self._is_prose else None
        window = self._tail + text
        found = self._closings.search(window)
        if found is None:
            self._tail = window[-self._n_kept :]
            if self._n_chars <= MAX_BLOCK_CHARS:
                return None
        whole = "".join(self._parts)
        n_after = 0 if found is None else len(window) - found.end()
        body = whole[: len(whole) - (len(window) - found.start())] if found else whole
        result = self._read(body) if found and len(body) <= MAX_BLOCK_CHARS else None
        closing = found.group() if found else ""
        self.results.append(self._opening + body + closing if result is None else result)
        return whole[len(whole) - n_after :]

    def finish(self) -> None:
        """See `Block.finish`."""
        self.results.append(self._opening + "".join(self._parts))

    def _look_for_name(self) -> bool:
        whole = "".join(self._parts)
        end = _match_end(_TAG_HEAD, whole)
        if end == len(whole):
            self._is_prose = end > MAX_HEAD_CHARS
            return False
        self._has_name = whole.startswith(self._after_name, end)
        self._is_prose = not self._has_name
        self._parts = [whole]
        return self._has_name


@final
class HeaderBlock:
    """A heading between two marks.

    Args:
        closing: What ends it.
        read: Reads it; None makes it text.
    """

    def __init__(self, closing: str, read: Callable[[str], Header | None]) -> None:
        self.results: list[Result] = []
        self._closing = closing
        self._read = read
        self._heading = ""

    def feed(self, text: str) -> str | None:
        """See `Block.feed`."""
        self._heading += text
        heading, closing, rest = self._heading.partition(self._closing)
        if not closing and len(heading) <= MAX_HEAD_CHARS:
            return None
        header = self._read(heading) if closing and len(heading) <= MAX_HEAD_CHARS else None
        if header is None:
            return self._heading
        self.results.append(header)
        return rest

    def finish(self) -> None:
        """See `Block.finish`."""
        if self._read(self._heading) is None:
            self.results.append(self._heading)


@final
class ToolCallBlock:
    """What follows `<tool_call>`: an object, a tag that is a mark of its own, or a name."""

    def __init__(self, opening: str, tools: Tools) -> None:
        self.results: list[Result] = []
        self._opening = opening
        self._tools = tools
        self._inner: Block | None = None

    def feed(self, text: str) -> str | None:
        """See `Block.feed`."""
        if self._inner is None:
            text = text.lstrip()
            if not text:
                return None
            if text[0] == "<":
                return text
            self._inner = self._begin(text[0])
            self._inner.results = self.results
        return self._inner.feed(text)

    def finish(self) -> None:
        """See `Block.finish`."""
        if self._inner is not None:
            self._inner.finish()

    def _begin(self, first: str) -> Block:
        if first in "{[":
            return ObjectsBlock(self._opening, self._tools)
        return block_of("glm", self._opening, self._tools)


def block_of(kind: BlockKind, opening: str, tools: Tools) -> Block:
    """Begin what an opening mark promises."""
    if kind in _HEADS:
        return ObjectsBlock(opening, tools, _HEADS[kind])
    if kind == "tool_call":
        return ToolCallBlock(opening, tools)
    if kind == "message":
        return HeaderBlock("<|message|>", lambda heading: _harmony_header(heading, tools))
    if kind == "channel":
        return HeaderBlock("\n", _gemma_header)
    closings, after_name, read = _TAGS[kind]
    return TagBlock(opening, closings, after_name, lambda body: read(body, tools))


_HEADS: Final[dict[BlockKind, re.Pattern[str]]] = {
    "objects": _BLANK_HEAD,
    "mistral": _MISTRAL_HEAD,
    "deepseek": _DEEPSEEK_HEAD,
}
_TAGS: Final[
    dict[BlockKind, tuple[tuple[str, ...], str, Callable[[str, Tools], ReadCall | None]]]
] = {
    "function": (("</function>", "</tool_call>"), ">", call_of_qwen),
    "glm": (("</tool_call>",), "<", call_of_glm),
    "dsml": ((f"</{DSML}invoke>",), '"', call_of_dsml),
    "gemma": (("<tool_call|>",), "{", partial(call_of_gemma, quote='<|"|>')),
    "function_gemma": (("<end_function_call>",), "{", partial(call_of_gemma, quote="<escape>")),
}


_HARMONY_WORDS: Final = frozenset({"assistant", "analysis", "commentary", "final", "json", "code"})


def _harmony_header(heading: str, tools: Tools) -> Header | None:
    """Read role, channel, recipient and kind of content, in any of the orders that models use."""
    words = heading.replace("<|channel|>", " ").replace("<|constrain|>", " ").split()
    recipient = next((word[3:] for word in words if word.startswith("to=")), "")
    if any(word not in _HARMONY_WORDS and not word.startswith("to=") for word in words):
        return None
    name = recipient.removeprefix("functions.")
    if name in tools:
        return Header("text", name)
    return Header("reasoning" if "analysis" in words and not recipient else "text")


def _gemma_header(heading: str) -> Header | None:
    return Header("reasoning") if heading.strip() == "thought" else None


def _match_end(pattern: re.Pattern[str], text: str) -> int:
    """Give where a pattern that matches everywhere ends."""
    found = pattern.match(text)
    return 0 if found is None else found.end()
