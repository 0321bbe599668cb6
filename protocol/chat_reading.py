"""What the operator's program reads of a chat completion, streamed or whole.

A reader's view of the OpenAI dialect: fields it does not use are ignored, so that it reads what any
node serves. The full dialect is the API's business.
"""

from typing import Annotated

from pydantic import Field

from protocol.base import FrozenModel
from protocol.control_api import ErrorEnvelope


class ChatUsage(FrozenModel):
    """Tokens of one finished request."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class ToolFunction(FrozenModel):
    """What is called, or a piece of that."""

    name: str | None = None
    arguments: str | None = None


class ToolPiece(FrozenModel):
    """A piece of a call of a tool; pieces of one call have one index."""

    index: Annotated[int, Field(ge=0, lt=128)] = 0
    function: ToolFunction = ToolFunction()


class ChatText(FrozenModel):
    """A message or a piece of one."""

    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[tuple[ToolPiece, ...], Field(max_length=128)] | None = None


class ChatChoice(FrozenModel):
    """One answer: a piece of it in a stream, all of it otherwise."""

    delta: ChatText | None = None
    message: ChatText | None = None
    finish_reason: str | None = None

    @property
    def text(self) -> ChatText:
        """What the choice carries, in either form."""
        return self.delta or self.message or ChatText()


class ChatAnswer(FrozenModel):
    """A chunk of a stream, a whole answer, or the error that ended a stream."""

    id: str | None = None
    choices: Annotated[tuple[ChatChoice, ...], Field(max_length=64)] = ()
    usage: ChatUsage | None = None
    error: ErrorEnvelope | None = None
