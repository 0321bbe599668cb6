"""A model's text as what it says, what it thinks and what it calls. Pure.

Text goes in as the tokens come; out come chunks that each hold one of the three. Most tokens are
plain text and pass by one look. From a mark on, or from what may become one, text is held until it
is clear what it is. How the text was cut into tokens changes nothing
(tests/property/test_output_markup.py).
"""

import re
from typing import Final, final

from engines.output.call_blocks import Block, Header, ObjectsBlock, Result, Span, block_of
from engines.output.call_values import ReadCall, Tools
from engines.output.markup import DSML, Markup
from protocol.data_frames import Chunk, ToolCallDelta

MAX_BLANK_CHARS: Final = 64
"""White space before a mark belongs to the mark; so much of it is held to see whether one comes."""
_SLICE_CHARS: Final = 4096
_BEGIN_JSON: Final = frozenset('{["')

_IN_A_CALL: Final = re.compile(
    r"<(?:function|parameter)=([^<>\n]*)>"
    rf'|<{DSML}(?:invoke|parameter) name="([^"<>\n]*)"[^<>\n]*>'
    r"|</(?:function|parameter)>|\[(?:ARGS|CALL_ID)\]"
)
"""What is markup inside a call only, with the names that are not."""


@final
class OutputSplitter:
    """Splits the text of one answer.

    Invariant: no mark of the markup comes out, and apart from marks and the white space beside
    them all that was fed does, once and in order: as text, reasoning, or call of an offered tool.

    Args:
        markup: The marks to look for.
        tools: What the request offers; empty where the model may not call.
        call_id_prefix: Of the ids of calls; unique to this answer. What a model calls its calls is
            no id: models say the same in each turn.
        begins_in_reasoning: The prompt has opened the reasoning.
        answers_in_json: JSON was asked for, so that one which begins the text is no call; what is
            in its strings is left as it is.
    """

    def __init__(
        self,
        markup: Markup,
        tools: Tools,
        *,
        call_id_prefix: str,
        begins_in_reasoning: bool = False,
        answers_in_json: bool = False,
    ) -> None:
        self._markup = markup
        self._tools = tools
        self._call_id_prefix = call_id_prefix
        self._answers_in_json = answers_in_json
        self._may_be_bare = bool(tools) and not answers_in_json
        self._may_mark = markup.first_characters.search
        self._span: Span = "reasoning" if begins_in_reasoning else "text"
        self._is_at_start = True
        self._is_trimming = begins_in_reasoning
        self._blank = ""
        self._held = ""
        self._block: Block | None = None
        self._chunks: list[Chunk] = []
        self._is_plain = False
        self._is_json = False
        self.n_calls = 0
        """How many calls the answer has had; also those that came another way."""

    def is_plain(self, text: str) -> bool:
        """Tell whether a piece of text is all text, and all there is to give for it."""
        return (
            self._is_plain
            and self._may_mark(text) is None
            and bool(text)
            and not text[-1].isspace()
        )

    def feed(self, text: str) -> list[Chunk]:
        """Take a piece of text and give what is now decided."""
        # A whole answer may come at once; in slices, what is left of it is not copied at each mark.
        for at in range(0, len(text), _SLICE_CHARS):
            rest = self._held + text[at : at + _SLICE_CHARS]
            self._held = ""
            while rest:
                rest = self._feed_marks(rest) if self._block is None else self._feed_block(rest)
        self._is_plain = (
            self._block is None
            and self._span == "text"
            and not (self._held or self._blank or self._is_trimming or self._is_at_start)
        )
        return self._taken()

    def finish(self) -> list[Chunk]:
        """End the text and give the rest; what was not whole is text."""
        if self._block is not None:
            self._block.finish()
            self._take_results(self._block)
            self._block = None
        held, self._held = self._held, ""
        self._say(held)
        self._put(self._blank)
        self._blank = ""
        return self._taken()

    def _taken(self) -> list[Chunk]:
        chunks, self._chunks = self._chunks, []
        return chunks

    def _feed_marks(self, text: str) -> str:
        if self._is_json:
            self._put(text)
            return ""
        if self._is_at_start and self._span == "text" and text.lstrip()[:1] in _BEGIN_JSON:
            if self._may_be_bare:
                return self._begin_bare(text)
            if self._answers_in_json:
                self._is_json = True
                self._put(self._blank)
                self._blank = ""
                return text.lstrip() if self._is_trimming else text
        found = self._markup.pattern.search(text)
        if found is None:
            n_undecided = self._n_undecided(text)
            self._held = text[len(text) - n_undecided :]
            self._say(text[: len(text) - n_undecided])
            return ""
        self._say(text[: found.start()])
        self._on_mark(found.group())
        return text[found.end() :]

    def _begin_bare(self, text: str) -> str:
        self._may_be_bare = False
        self._block = ObjectsBlock("", self._tools)
        bare = text.lstrip()
        if not self._is_trimming:
            self._blank += text[: len(text) - len(bare)]
        return bare

    def _n_undecided(self, text: str) -> int:
        """Count the characters at the end that may become a mark; none has two first characters."""
        at = max(text.rfind("<"), text.rfind("["))
        return len(text) - at if at >= 0 and text[at:] in self._markup.beginnings else 0

    def _on_mark(self, mark: str) -> None:
        markup = self._markup
        kind = markup.opens_call.get(mark)
        if kind is not None:
            self._block = block_of(kind, mark, self._tools)
        elif mark in markup.opens_reasoning:
            if self._is_at_start:
                self._turn_to("reasoning")
        elif self._span == "reasoning" and mark in markup.ends:
            self._turn_to("text")

    def _turn_to(self, span: Span) -> None:
        """Begin another kind of text; white space at the border belongs to neither."""
        self._span = span
        self._blank = ""
        self._is_trimming = True

    def _feed_block(self, text: str) -> str:
        block = self._block
        if block is None:
            raise AssertionError("there is a block")
        rest = block.feed(text)
        if rest is not None:
            self._block = None
            if not rest and block.results:
                rest = self._cut_undecided(block.results)
        self._take_results(block)
        return rest or ""

    def _cut_undecided(self, results: list[Result]) -> str:
        """Take off what may become a mark: a block that grew too long may have ended inside one."""
        last = results[-1]
        n_undecided = self._n_undecided(last) if isinstance(last, str) else 0
        if not isinstance(last, str) or not n_undecided:
            return ""
        results[-1] = last[:-n_undecided]
        return last[-n_undecided:]

    def _take_results(self, block: Block) -> None:
        for result in block.results:
            if isinstance(result, str):
                self._say(_unmarked(result, self._markup))
            elif isinstance(result, Header):
                self._turn_to(result.span)
                if result.calls is not None:
                    self._block = ObjectsBlock("<|message|>", self._tools, name=result.calls)
            else:
                self._call(result)
        block.results.clear()

    def _call(self, call: ReadCall) -> None:
        self._turn_to("text")
        self._is_at_start = False
        call_id = f"{self._call_id_prefix}{self.n_calls}"
        delta = ToolCallDelta(self.n_calls, call_id, call.name, call.arguments)
        self._chunks.append(Chunk("", "", (delta,)))
        self.n_calls += 1

    def _say(self, text: str) -> None:
        """Give text, but for white space that may turn out to stand before a mark."""
        if self._is_trimming:
            text = text.lstrip()
        if not text:
            return
        said = text.rstrip()
        if said:
            self._put(self._blank + said)
            self._blank = ""
            self._is_trimming = False
            if self._span == "text":
                self._is_at_start = False
        blank = self._blank + text[len(said) :]
        self._put(blank[:-MAX_BLANK_CHARS])
        self._blank = blank[-MAX_BLANK_CHARS:]

    def _put(self, text: str) -> None:
        if text:
            self._chunks.append(Chunk(text) if self._span == "text" else Chunk("", text))


def _unmarked(text: str, markup: Markup) -> str:
    """Take the marks out of what was no call; the names in tags stay."""
    return markup.pattern.sub("", _IN_A_CALL.sub(r"\1\2", text))
