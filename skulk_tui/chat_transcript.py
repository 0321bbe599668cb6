"""A conversation as rows: questions, answers as they come, what went wrong.

Pure. Rows are made once: what has been answered is not looked at again while more comes, and what
stands above never moves. Only the block that is being written is plain text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

from skulk_tui.chat_answer import Answer
from skulk_tui.chat_blocks import Block, BlockSplitter
from skulk_tui.chat_conversation import Conversation, Exchange
from skulk_tui.chat_markdown import MarkdownRenderer, plain_rows
from skulk_tui.chat_wrap import PlainFlow, clean, wrap
from skulk_tui.formatting import format_bytes, format_duration, one_line
from skulk_tui.glyphs import GlyphSet
from skulk_tui.lines import EMPTY, Line, Span, line, span, spread, toned
from skulk_tui.status_row import clock_time

DRAWN_CHARS: Final = 192 << 10
"""Of what was answered before, newest first, this much is drawn as Markdown; the rest is plain."""
_NARROWEST: Final = 10
_DAY_S: Final = 86_400


def short(model_id: str) -> str:
    """Give a model's name without its organisation."""
    return one_line(model_id.rpartition("/")[2])


def time_of_day(wall_ms: int, utc_offset_s: int) -> str:
    """Write hours and minutes of local time."""
    second = (wall_ms // 1000 + utc_offset_s) % _DAY_S
    return f"{second // 3600:02}:{second % 3600 // 60:02}"


@final
class AnswerBody:
    """The text of one answer in rows of one width.

    Args:
        glyphs: What Markdown is drawn with.
        width: In cells.
        is_plain: Nothing is drawn as Markdown.
    """

    def __init__(self, glyphs: GlyphSet, width: int, *, is_plain: bool = False) -> None:
        self._glyphs = glyphs
        self._width = width
        self._is_plain = is_plain
        self._renderer = MarkdownRenderer(glyphs)
        self._splitter = BlockSplitter()
        self._closed: list[Line] = []
        self._open = PlainFlow(width)
        self._n_taken = 0
        self._is_over = False

    def update(self, text: str, *, is_over: bool) -> None:
        """Take what has been added to the text."""
        if self._is_over:
            return
        fresh, self._n_taken = text[self._n_taken :], len(text)
        if self._is_plain:
            self._open.feed(fresh)
        elif fresh:
            self._take(fresh)
        if is_over:
            self._finish(text)

    def _take(self, fresh: str) -> None:
        closed = self._splitter.feed(fresh)
        for block in closed:
            self._draw(block)
        if closed:
            self._open = PlainFlow(self._width)
            fresh = self._splitter.open_text
        # What is blank between two blocks is a row already.
        self._open.feed(fresh.lstrip("\n") if not len(self._open) else fresh)

    def _finish(self, text: str) -> None:
        self._is_over = True
        if self._is_plain:
            return
        for block in self._splitter.finish():
            self._draw(block)
        self._open = PlainFlow(self._width)
        if self._renderer.has_references:
            # Links that were named before their reference came were raw until now.
            self._closed = []
            splitter = BlockSplitter()
            for block in [*splitter.feed(text), *splitter.finish()]:
                self._draw(block)

    def _draw(self, block: Block) -> None:
        rows = self._renderer.render(block, self._width)
        if rows and self._closed:
            self._closed.append(EMPTY)
        self._closed.extend(rows)

    @property
    def n_closed(self) -> int:
        """Rows that are drawn for good."""
        return len(self._closed)

    @property
    def _has_gap(self) -> bool:
        return bool(self._closed) and len(self._open) > 0

    def __len__(self) -> int:
        return len(self._closed) + self._has_gap + len(self._open)

    def rows(self, start: int, end: int) -> list[Line]:
        """Give some of the rows."""
        found = self._closed[start:end]
        n_above = len(self._closed) + self._has_gap
        if self._has_gap and start <= len(self._closed) < end:
            found.append(EMPTY)
        found += self._open.rows(max(0, start - n_above), max(0, end - n_above))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How a transcript is drawn."""

    width: int
    now: float
    utc_offset_s: int = 0
    current: Answer | None = None
    """The answer that keys are about; marked where the pane has the keyboard."""
    is_focused: bool = False


@final
class _AnswerSection:
    """One answer with its head and its end."""

    def __init__(self, answer: Answer, glyphs: GlyphSet, width: int, *, is_plain: bool) -> None:
        self.answer = answer
        self._glyphs = glyphs
        self._width = width
        inner = max(_NARROWEST, width - 3)
        self._body = AnswerBody(glyphs, inner, is_plain=is_plain)
        self._inner = inner
        self._folds: list[Line] = []
        self._end: list[Line] = []
        self._revision = -1
        self._is_unfolded = False

    def update(self, *, is_unfolded: bool) -> None:
        answer = self.answer
        if answer.revision == self._revision and is_unfolded == self._is_unfolded:
            return
        self._revision, self._is_unfolded = answer.revision, is_unfolded
        self._folds = [
            row
            for fold in (self._reasoning_rows(), self._tool_rows())
            for row in fold
        ]  # fmt: skip
        self._body.update(answer.text, is_over=answer.is_over)
        self._end = _end_rows(answer, self._inner)

    def __len__(self) -> int:
        return 2 + len(self._folds) + len(self._body) + len(self._end)

    def rows(self, start: int, end: int, look: Look) -> list[Line]:
        """Give some of the rows; the last is blank."""
        bar = (Span(" "), Span(self._glyphs.wall, "dim"), Span(" "))
        found: list[Line] = []
        if start == 0 < end:
            found.append(self._head(look))
        at = 1
        for rows in (self._folds, self._body, self._end):
            first, last = max(0, start - at), end - at
            if last > first:
                piece = rows.rows(first, last) if isinstance(rows, AnswerBody) else rows[first:last]
                found.extend((*bar, *row) for row in piece)
            at += len(rows)
        if start <= at < end:
            found.append(EMPTY)
        return found

    def _head(self, look: Look) -> Line:
        answer = self.answer
        is_current = look.is_focused and answer is look.current
        left = line(
            Span(self._glyphs.cursor if is_current else " ", "accent"),
            Span(short(answer.model_id), "title"),
            Span(f"  {time_of_day(answer.at_ms, look.utc_offset_s)}", "dim"),
        )
        return spread(left, (*state_line(answer, look.now), Span(" ")), look.width)

    def _reasoning_rows(self) -> list[Line]:
        reasoning = self.answer.reasoning
        if not reasoning:
            return []
        n_words = reasoning.count(" ") + reasoning.count("\n") + 1
        word = "reasoning" if self.answer.text or self.answer.is_over else "reasoning ..."
        head = toned(f"{word} {n_words} words   o {self._fold_word}", "dim")
        if not self._is_unfolded:
            return [head]
        rows = plain_rows(reasoning.strip("\n"), self._inner - 2)
        return [head, *((Span("  "), *(Span(part.text, "dim") for part in row)) for row in rows)]

    def _tool_rows(self) -> list[Line]:
        rows: list[Line] = []
        for tool in self.answer.tools:
            size = f"{len(tool.arguments)} characters"
            rows.append(
                line(Span("calls ", "dim"), span(one_line(tool.name) or "a tool", "accent"),
                     Span(f"  {size}   o {self._fold_word}", "dim"))
            )  # fmt: skip
            if self._is_unfolded:
                shown = plain_rows(tool.arguments, self._inner - 2)
                rows.extend((Span("  "), *row) for row in shown)
        return rows

    @property
    def _fold_word(self) -> str:
        return "folds" if self._is_unfolded else "unfolds"


def state_line(answer: Answer, now: float) -> Line:
    """Say how an answer is: `streaming 18.4 tok/s  00:07`."""
    rate = f"{answer.tokens_per_s:.1f} tok/s" if answer.tokens_per_s else ""
    took = clock_time(answer.total_s(now))
    first = f"ttft {answer.first_token_s:.2f}s" if answer.first_token_s is not None else ""
    noun = "token" if answer.n_tokens == 1 else "tokens"
    tokens = f"{answer.n_tokens} {noun}" if answer.n_tokens else ""
    match answer.state:
        case "waiting":
            return toned(f"waiting  {took}", "warn")
        case "loading":
            return toned(f"loading  {took}", "warn")
        case "streaming":
            return line(Span(" ".join(filter(None, ("streaming", rate))), "good"), f"  {took}")
        case "finished":
            return toned("  ".join(filter(None, (tokens, rate, first))), "dim")
        case "stopped":
            return line(Span("stopped", "warn"), Span(f"  {tokens}" if tokens else "", "dim"))
        case "failed":
            return line(Span("failed", "bad"), Span(f"  {tokens}" if tokens else "", "dim"))


def _end_rows(answer: Answer, width: int) -> list[Line]:
    if answer.state == "loading" and answer.loading is not None:
        return _loading_rows(answer, width)
    if answer.state == "stopped":
        return [toned("(stopped; R asks again)", "warn")]
    if answer.state == "failed":
        told = f"{answer.error_code}: {answer.error}" if answer.error_code else answer.error
        rows = wrap(toned(clean(one_line(told)), "bad"), width)
        remedy = clean(one_line(answer.remedy))
        return [
            *rows,
            *wrap(
                line(Span(f"{remedy} " if remedy else ""), Span("R asks again.", "accent")), width
            ),
        ]
    if answer.finish_reason == "length":
        return [toned("(cut at the token limit; `:max N` allows more)", "warn")]
    if answer.is_over and not answer.text and not answer.tools:
        return [toned("(the model said nothing)", "dim")]
    return []


def _loading_rows(answer: Answer, width: int) -> list[Line]:
    loading = answer.loading
    if loading is None:
        return []
    parts = [f"the model is not ready yet: {loading.phase}"]
    if loading.node_name:
        parts.append(f"on {one_line(loading.node_name)}")
    if loading.done_bytes is not None and loading.total_bytes:
        share = int(100 * min(loading.done_bytes, loading.total_bytes) / loading.total_bytes)
        parts.append(f"{share}% of {format_bytes(loading.total_bytes)}")
    if loading.eta_s is not None:
        parts.append(f"about {format_duration(loading.eta_s)} left")
    return [
        *wrap(toned(clean("  ".join(parts)), "warn"), width),
        *wrap(toned("it is asked as soon as it is ready; ctrl+c gives up", "dim"), width),
    ]


@final
class _QuestionSection:
    def __init__(self, exchange: Exchange, glyphs: GlyphSet, width: int) -> None:
        self._at_ms = exchange.at_ms
        bar = (Span(" "), Span(glyphs.wall, "dim"), Span(" "))
        rows = plain_rows(exchange.question, max(_NARROWEST, width - 3))
        self._rows: list[Line] = [(*bar, *row) for row in rows]

    def __len__(self) -> int:
        return 2 + len(self._rows)

    def rows(self, start: int, end: int, look: Look) -> list[Line]:
        """Give some of the rows; the last is blank."""
        at = time_of_day(self._at_ms, look.utc_offset_s)
        head = line(Span(" you", "strong"), Span(f"  {at}", "dim"))
        return [head, *self._rows, EMPTY][start:end]


@final
class Transcript:
    """The rows of one conversation; kept for as long as its width stays.

    Args:
        glyphs: What it is drawn with.
    """

    def __init__(self, glyphs: GlyphSet) -> None:
        self._glyphs = glyphs
        self._width = 0
        self._sections: list[_QuestionSection | _AnswerSection] = []
        self._made: dict[Exchange | Answer, _QuestionSection | _AnswerSection] = {}
        self.unfolded: set[Answer] = set()

    def update(self, conversation: Conversation, width: int) -> None:
        """Take what is new in the conversation."""
        if width != self._width:
            self._width, self._made = width, {}
        plain = self._plain_ones(conversation)
        sections: list[_QuestionSection | _AnswerSection] = []
        for exchange in conversation.exchanges:
            sections.append(
                self._get(exchange, lambda one=exchange: _QuestionSection(one, self._glyphs, width))
            )
            for answer in exchange.answers:
                section = self._get(
                    answer,
                    lambda one=answer: _AnswerSection(
                        one, self._glyphs, width, is_plain=one in plain
                    ),
                )
                if isinstance(section, _AnswerSection):
                    section.update(is_unfolded=answer in self.unfolded)
                sections.append(section)
        self._sections = sections

    def _get(
        self,
        of: Exchange | Answer,
        make: Callable[[], _QuestionSection | _AnswerSection],
    ) -> _QuestionSection | _AnswerSection:
        section = self._made.get(of)
        if section is None:
            section = self._made[of] = make()
        return section

    def _plain_ones(self, conversation: Conversation) -> set[Answer]:
        """Choose the old answers that are too much to draw anew at once."""
        if self._made:
            return set()
        room = DRAWN_CHARS
        plain: set[Answer] = set()
        for exchange in reversed(conversation.exchanges):
            for answer in reversed(exchange.answers):
                room -= len(answer.text)
                if room < 0:
                    plain.add(answer)
        return plain

    def __len__(self) -> int:
        return max(0, sum(len(section) for section in self._sections) - 1)

    def rows(self, start: int, end: int, look: Look) -> Sequence[Line]:
        """Give some of the rows."""
        found: list[Line] = []
        at, end = 0, min(end, len(self))
        for section in self._sections:
            n = len(section)
            if at + n > start and at < end:
                found.extend(section.rows(max(0, start - at), min(n, end - at), look))
            at += n
        return found

    def tops(self) -> list[tuple[int, Answer]]:
        """Give the row of each answer's head, in order."""
        found: list[tuple[int, Answer]] = []
        at = 0
        for section in self._sections:
            if isinstance(section, _AnswerSection):
                found.append((at, section.answer))
            at += len(section)
        return found
