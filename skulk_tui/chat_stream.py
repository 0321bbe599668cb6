"""Lines of a chat stream to pieces of an answer; pure, so that the terminal UI reads the same way.

A stream is ordered chunks and exactly one end: `[DONE]` after a finish reason, or an error. One
that ends without is reported as broken off, never taken for an answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from pydantic import ValidationError

from protocol.chat_reading import ChatAnswer, ChatUsage, ToolPiece
from protocol.control_api import read_answer
from protocol.errors import ClientError, EngineError
from skulk_tui.client import error_answered

_DONE: Final = "[DONE]"
_COMMAND_COMMENT: Final = ": command_id "
_STATUS_OF_STREAM: Final = 200
"""A stream's error comes after its status line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one line brought; at least one field carries something."""

    text: str = ""
    reasoning: str = ""


@dataclass(slots=True, kw_only=True)
class CalledTool:
    """A tool that the model calls, as far as its pieces have come."""

    name: str = ""
    arguments: str = ""


@final
class ChatReader:
    """Folds the lines of one stream, or the events that a session brings in their place.

    `finish_reason`, `usage`, `command_id` and `tools` are what has been learnt so far.
    """

    def __init__(self) -> None:
        self.command_id: str | None = None
        self.finish_reason: str | None = None
        self.usage: ChatUsage | None = None
        self.is_done = False
        self.tools: list[CalledTool] = []

    def feed(self, line: str) -> Piece | None:
        """Take one line; give what it brought of the answer, if anything.

        Raises:
            SkulkError: The error that the node ended the stream with.
            ClientError: `client.bad_answer`.
        """
        if line.startswith(_COMMAND_COMMENT):
            self.command_id = line.removeprefix(_COMMAND_COMMENT).strip() or None
            return None
        if not line.startswith("data:"):
            return None
        data = line.removeprefix("data:").strip()
        if data == _DONE:
            self.is_done = True
            return None
        return self.fold(data)

    def fold(self, body: str) -> Piece | None:
        """Take one chunk, or a whole answer, as JSON.

        Raises:
            SkulkError: The error it carries.
            ClientError: `client.bad_answer`.
        """
        try:
            return self._take(read_answer(ChatAnswer, body.encode()))
        except ValidationError as wrong:
            raise _no_chunk(body) from wrong

    def take(self, event: Mapping[str, Any]) -> Piece | None:
        """Take one chunk, read already.

        Raises:
            SkulkError: The error it carries.
            ClientError: `client.bad_answer`.
        """
        try:
            return self._take(ChatAnswer.model_validate(event, extra="ignore"))
        except ValidationError as wrong:
            raise _no_chunk(str(event)) from wrong

    def _take(self, answer: ChatAnswer) -> Piece | None:
        if answer.error is not None:
            raise error_answered(_STATUS_OF_STREAM, answer.error)
        self.command_id = self.command_id or answer.id
        self.usage = answer.usage or self.usage
        text, reasoning = "", ""
        for choice in answer.choices[:1]:
            text = choice.text.content or ""
            reasoning = choice.text.reasoning_content or ""
            self.finish_reason = choice.finish_reason or self.finish_reason
            for number, call in enumerate(choice.text.tool_calls or ()):
                # Only pieces of a stream are numbered.
                self._call(number if choice.delta is None else call.index, call)
        return Piece(text=text, reasoning=reasoning) if text or reasoning else None

    def _call(self, index: int, piece: ToolPiece) -> None:
        while len(self.tools) <= index:
            self.tools.append(CalledTool())
        self.tools[index].name += piece.function.name or ""
        self.tools[index].arguments += piece.function.arguments or ""

    def close(self) -> None:
        """Check that the stream ended as streams end.

        Raises:
            EngineError: `engine.gone`; the text so far is not a result.
        """
        if self.finish_reason is None:
            raise EngineError(
                "engine.gone",
                "the answer broke off: the stream ended without its end",
                remediation="Ask again; `skulk ps` shows whether the instance is still there.",
            )


def _no_chunk(body: str) -> ClientError:
    return ClientError(
        "client.bad_answer",
        f"a line of the chat stream is no chunk: {body[:120]!r}",
        remediation="Compare `skulk version` with the node's /version.",
    )
