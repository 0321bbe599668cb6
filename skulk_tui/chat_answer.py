"""One answer of a model: what has come of it, how fast, and how it ended.

Pure: events go in with the time they came at. What has come stays, however it ends.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, final

from protocol.base import FrozenModel
from protocol.control_api import LoadingDocument
from protocol.errors import SkulkError
from skulk_tui.chat_stream import ChatReader
from skulk_tui.client import envelope_of
from skulk_tui.formatting import strip_controls

AnswerState = Literal["waiting", "loading", "streaming", "finished", "stopped", "failed"]
OVER: Final = frozenset({"finished", "stopped", "failed"})
MAX_CHARS: Final = 4 << 20
"""Of one answer; a model that goes on beyond is stopped."""


class SavedTool(FrozenModel):
    """A tool that was called."""

    name: str = ""
    arguments: str = ""


class SavedAnswer(FrozenModel):
    """An answer as it is kept in a file."""

    model_id: str
    at_ms: int
    state: AnswerState
    text: str = ""
    reasoning: str = ""
    tools: tuple[SavedTool, ...] = ()
    command_id: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    first_token_s: float | None = None
    total_s: float | None = None
    tokens_per_s: float | None = None
    error_code: str = ""
    error: str = ""
    remedy: str = ""


@final
class Answer:
    """The answer.

    Args:
        model_id: Who is asked.
        at_ms: When, in wall-clock time.
        now: The same in monotonic seconds.
    """

    def __init__(self, model_id: str, *, at_ms: int, now: float) -> None:
        self.model_id = model_id
        self.at_ms = at_ms
        self.state: AnswerState = "waiting"
        self.loading: LoadingDocument | None = None
        self.error_code = self.error = self.remedy = ""
        self.n_tokens = 0
        """Pieces with text that have come; the node's own count replaces it at the end."""
        self.revision = 0
        """Grows with every change."""
        self._reader = ChatReader()
        self._saved_command_id: str | None = None
        self._texts: list[str] = []
        self._reasonings: list[str] = []
        self._n_chars = 0
        self._started = now
        self._first: float | None = None
        self._last = now
        self._saved: SavedAnswer | None = None

    # ---- What has come ----

    @property
    def text(self) -> str:
        """The answer itself, so far."""
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0] if self._texts else ""

    @property
    def reasoning(self) -> str:
        """What the model thought aloud, so far."""
        if len(self._reasonings) > 1:
            self._reasonings = ["".join(self._reasonings)]
        return self._reasonings[0] if self._reasonings else ""

    @property
    def tools(self) -> tuple[SavedTool, ...]:
        """Tools that it calls."""
        if self._saved is not None:
            return self._saved.tools
        return tuple(
            SavedTool(name=strip_controls(tool.name), arguments=strip_controls(tool.arguments))
            for tool in self._reader.tools
        )

    @property
    def command_id(self) -> str | None:
        """Under which nodes tell its story; None until one has said it."""
        if self._saved is not None:
            return self._saved.command_id
        return self._saved_command_id or self._reader.command_id

    @property
    def is_over(self) -> bool:
        """Nothing more will come."""
        return self.state in OVER

    @property
    def finish_reason(self) -> str | None:
        """Why the model stopped."""
        return self._saved.finish_reason if self._saved else self._reader.finish_reason

    @property
    def prompt_tokens(self) -> int | None:
        """How long the question was, once the node has said it."""
        if self._saved is not None:
            return self._saved.prompt_tokens
        return self._reader.usage.prompt_tokens if self._reader.usage else None

    @property
    def first_token_s(self) -> float | None:
        """How long the first token took."""
        if self._saved is not None:
            return self._saved.first_token_s
        return None if self._first is None else self._first - self._started

    def total_s(self, now: float) -> float:
        """How long it has taken, or took."""
        if self._saved is not None:
            return self._saved.total_s or 0.0
        return max(0.0, (self._last if self.is_over else now) - self._started)

    @property
    def tokens_per_s(self) -> float | None:
        """How fast tokens come after the first; None before the second."""
        if self._saved is not None:
            return self._saved.tokens_per_s
        if self._first is None or self.n_tokens < 2 or self._last <= self._first:  # ruff: ignore[magic-value-comparison]  # from the second on there is a rate
            return None
        return (self.n_tokens - 1) / (self._last - self._first)

    # ---- What happens ----

    def take(self, event: Mapping[str, Any], now: float) -> None:
        """Take one event of the stream.

        Raises:
            SkulkError: `client.bad_answer`, or the error that the event carries.
        """
        if self.is_over:
            return
        n_tools = sum(len(tool.arguments) + 1 for tool in self._reader.tools)
        piece = self._reader.take(event)
        self.revision += 1
        usage = self._reader.usage
        if usage is not None and usage.completion_tokens is not None:
            self.n_tokens = usage.completion_tokens
        if piece is None and n_tools == sum(len(t.arguments) + 1 for t in self._reader.tools):
            return
        self.state = "streaming"
        self._last = now
        if self._first is None:
            self._first = now
        if usage is None:
            self.n_tokens += 1
        if piece is not None:
            self._texts.append(strip_controls(piece.text))
            self._reasonings.append(strip_controls(piece.reasoning))
            self._n_chars += len(piece.text) + len(piece.reasoning)

    @property
    def is_too_long(self) -> bool:
        """Whether more has come than is kept."""
        return self._n_chars > MAX_CHARS

    def name(self, command_id: str | None) -> None:
        """Take the command id, which the node says before the first token."""
        if command_id and not self._saved_command_id:
            self._saved_command_id = command_id
            self.revision += 1

    def finish(self) -> None:
        """Take the end of the stream: a good one has given its reason."""
        if self.is_over:
            return
        try:
            self._reader.close()
        except SkulkError as error:
            self.fail(error)
            return
        self.state = "finished"
        self.revision += 1

    def stop(self, now: float) -> None:
        """The operator has had enough."""
        if not self.is_over:
            self.state = "stopped"
            self._last = now if self._first is None else self._last
            self.revision += 1

    def load(self, document: LoadingDocument) -> None:
        """The model is not ready yet: this is how far it is."""
        if not self.is_over:
            self.state = "loading"
            self.loading = document
            self.revision += 1

    def fail(self, error: SkulkError) -> None:
        """Take what went wrong."""
        if self.is_over:
            return
        self.state = "failed"
        self.error_code = error.code
        self.error = strip_controls(error.message)
        self.remedy = strip_controls(error.remediation)
        self.revision += 1

    # ---- Files ----

    def saved(self, now: float) -> SavedAnswer:
        """Give what is kept; an answer that is still coming is kept as cut."""
        if self._saved is not None:
            return self._saved
        is_over = self.is_over
        return SavedAnswer(
            model_id=self.model_id,
            at_ms=self.at_ms,
            state=self.state if is_over else "failed",
            text=self.text,
            reasoning=self.reasoning,
            tools=self.tools,
            command_id=self.command_id,
            finish_reason=self.finish_reason,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.n_tokens,
            first_token_s=self.first_token_s,
            total_s=self.total_s(now),
            tokens_per_s=self.tokens_per_s,
            error_code=self.error_code if is_over else "client.stream_cut",
            error=self.error if is_over else f"cut after {self.n_tokens} tokens: the program ended",
            remedy=self.remedy if is_over else "Ask again; what has come is kept.",
        )

    @classmethod
    def restored(cls, saved: SavedAnswer) -> "Answer":
        """Make the answer that was kept."""
        answer = cls(saved.model_id, at_ms=saved.at_ms, now=0.0)
        answer.state = saved.state if saved.state in OVER else "failed"
        answer.error_code, answer.error = saved.error_code, saved.error
        answer.remedy = saved.remedy
        answer.n_tokens = saved.completion_tokens or 0
        # The file may have been written by anybody.
        answer._texts = [strip_controls(saved.text)]
        answer._reasonings = [strip_controls(saved.reasoning)]
        answer._saved = saved
        return answer


def loading_of(error: SkulkError) -> LoadingDocument | None:
    """Give how far the model is, where that is why it does not answer yet."""
    envelope = envelope_of(error)
    return envelope.loading if envelope is not None else None
