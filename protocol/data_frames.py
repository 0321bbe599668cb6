"""What comes back for a task: started, ordered chunks, exactly one terminal.

Frames are tuples with fixed fields, and no model is built per token.
"""

from collections.abc import Callable
from typing import NamedTuple

from protocol.errors import ErrorBody
from protocol.tasks import FinishReason


class Usage(NamedTuple):
    """Tokens and times of one finished request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    prompt_ms: float | None = None
    """Time the engine took to read the prompt; None when the engine does not say."""
    generation_ms: float | None = None


class Started(NamedTuple):
    """The serving engine has admitted the task; from here on it is never retried elsewhere."""

    prompt_tokens: int | None = None


class TokenLogprob(NamedTuple):
    """One chosen token with its alternatives."""

    token: str
    logprob: float
    alternatives: tuple[tuple[str, float], ...] = ()


class ToolCallDelta(NamedTuple):
    """A piece of a tool call; the first piece of a call carries id and name."""

    call_index: int
    id: str | None
    name: str | None
    arguments: str


class Chunk(NamedTuple):
    """A piece of output. Invariant: at least one field carries something."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    vectors: tuple[bytes, ...] = ()
    """Of the next texts of a `VectorTask`, in order; see `protocol.vectors`. A chunk of vectors
    carries nothing else."""


class Finished(NamedTuple):
    """The good terminal."""

    reason: FinishReason
    usage: Usage
    stop: str | None = None
    """The stop string of the task that ended the answer; None for any other end, and where the
    engine does not say."""


class Failed(NamedTuple):
    """The bad terminal; the text so far is not a result."""

    error: ErrorBody


Frame = Started | Chunk | Finished | Failed
Terminal = Finished | Failed

TakeChunk = Callable[[Chunk], bool]
"""Gets a chunk where it arrives, which costs no task a turn. False when it will not have it now:
then it comes out of the stream's iterator, as do all chunks where there is no `TakeChunk`."""
