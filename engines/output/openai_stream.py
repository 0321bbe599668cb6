"""An engine's OpenAI-style answers as frames: bytes in, frames out. Pure.

Nearly every payload of a stream is one piece of plain text between two fixed strings, and nearly
always it comes alone. That shape is recognised by its first and last bytes and costs no JSON
parsing; everything else goes through typed models. All paths give the same frames
(tests/property/test_output_stream.py).
"""

from itertools import count
from typing import Annotated, Final, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from engines.output.sse import SseReader
from protocol.data_frames import (
    Chunk,
    Failed,
    Finished,
    Frame,
    Started,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from protocol.errors import EngineError, RequestError, SkulkError
from protocol.tasks import FinishReason

MAX_MESSAGE_CHARS: Final = 2000
"""Of an engine's own words that an error repeats."""

_TEXT_HEAD: Final = b'{"choices":[{"finish_reason":null,"index":0,"delta":{"content":"'
_REASONING_HEAD: Final = (
    b'{"choices":[{"finish_reason":null,"index":0,"delta":{"reasoning_content":"'
)
_TAIL: Final = b'"}}],"created":'
"""Inside a JSON string its second quote would be escaped, so the first find is the string's end."""

_ALONE_HEAD: Final = b"data: " + _TEXT_HEAD

_BAD_REQUEST: Final = 400
_PREAMBLES: Final = (
    "Unable to generate parser for this template. Automatic parser generation failed: ",
    "Error: ",
    "Jinja Exception: ",
)
"""What llama-server puts before a template's or a schema's own complaint."""

_REASONS: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


class _Foreign(BaseModel):
    """Part of an engine's answer: what we do not read may be anything."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class _Alternative(_Foreign):
    token: str
    logprob: float


class _TokenEntry(_Alternative):
    top_logprobs: tuple[_Alternative, ...] = ()


class _Logprobs(_Foreign):
    content: tuple[_TokenEntry, ...] | None = None


class _Function(_Foreign):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(_Foreign):
    index: Annotated[int, Field(ge=0, lt=1024)] | None = None
    id: str | None = None
    function: _Function = _Function()


class _Message(_Foreign):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[_ToolCall, ...] | None = None


class _Choice(_Foreign):
    finish_reason: str | None = None
    text: str | None = None
    """Of a completion of a text, which has no message."""
    delta: _Message | None = None
    message: _Message | None = None
    logprobs: _Logprobs | None = None


class _PromptDetails(_Foreign):
    cached_tokens: int | None = None


class _Usage(_Foreign):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Timings(_Foreign):
    prompt_ms: float | None = None
    predicted_ms: float | None = None


class _Progress(_Foreign):
    total: int


class _ErrorDetail(_Foreign):
    message: str = ""
    type: str | None = None
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class _Verbose(_Foreign):
    stopping_word: str = ""
    """Empty where no stop string ended the answer."""


class _Answer(_Foreign):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    timings: _Timings | None = None
    prompt_progress: _Progress | None = None
    error: _ErrorDetail | None = None
    verbose: Annotated[_Verbose | None, Field(alias="__verbose")] = None


class _ErrorAnswer(_Foreign):
    error: _ErrorDetail


_NO_USAGE: Final = _Usage(prompt_tokens=0)
_NO_TIMINGS: Final = _Timings()


@final
class StreamDecoder:
    """The frames of one streamed request.

    Args:
        n_alternatives: How many alternatives per token were asked for.
        stop: The stop strings of the task; the engine may have been given others too.
    """

    def __init__(self, n_alternatives: int = 0, stop: tuple[str, ...] = ()) -> None:
        self._n_alternatives = n_alternatives
        self._stop = stop
        self._stopped_by: str | None = None
        self._events = SseReader()
        self._has_started = False
        self._reason: FinishReason | None = None
        self._usage: _Usage | None = None
        self._timings: _Timings | None = None
        self.is_over = False
        """A terminal has been given; nothing more is to be fed."""

    def feed(self, piece: bytes) -> list[Frame]:
        """Take bytes as they come and give the frames that are now complete; b"" is the end.

        Raises:
            EngineError: `engine.request_failed` when a line is larger than the limit.
        """
        if self._has_started and not self.is_over and self._events.is_between:
            text = _text_alone(piece)
            if text:
                return [Chunk(text)]
        frames: list[Frame] = []
        if not piece:
            self._end(frames)
            return frames
        for payload in self._events.feed(piece):
            if self.is_over:
                break
            if not self._has_started or not _take_plain(payload, frames):
                self._take(payload, frames)
        return frames

    def _take(self, payload: bytes, frames: list[Frame]) -> None:
        if payload == b"[DONE]":
            self._end(frames)
            return
        try:
            answer = _Answer.model_validate_json(payload)
        except ValidationError:
            self._fail(frames, _unreadable(payload))
            return
        if answer.error is not None:
            self._fail(frames, _error_of(answer.error, None))
            return
        if not self._has_started:
            self._has_started = True
            progress = answer.prompt_progress
            frames.append(Started(progress.total if progress else None))
        self._usage = answer.usage or self._usage
        self._timings = answer.timings or self._timings
        self._stopped_by = _stopped_by(answer, self._stop) or self._stopped_by
        if answer.choices:
            self._take_choice(answer.choices[0], frames)
        if self._reason is not None and self._usage is not None:
            self._end(frames)

    def _take_choice(self, choice: _Choice, frames: list[Frame]) -> None:
        chunk = _chunk(choice, choice.delta, self._n_alternatives)
        if chunk is not None:
            frames.append(chunk)
        if choice.finish_reason is not None:
            self._reason = _REASONS.get(choice.finish_reason)
            if self._reason is None:
                self._fail(frames, _unknown_reason(choice.finish_reason))

    def _end(self, frames: list[Frame]) -> None:
        if self.is_over:
            return
        if self._reason is None:
            reason = "the engine ended its stream in the middle of an answer"
            remedy = "the instance's log says why; ask again once it is ready"
            self._fail(frames, EngineError("engine.gone", reason, remediation=remedy))
            return
        self.is_over = True
        usage = _usage(self._usage, self._timings)
        frames.append(Finished(self._reason, usage, self._stopped_by))

    def _fail(self, frames: list[Frame], error: SkulkError) -> None:
        self.is_over = True
        frames.append(Failed(error.body()))


def decode_whole(body: bytes, stop: tuple[str, ...] = ()) -> tuple[Frame, ...]:
    """Give the frames of a whole answer: started, at most one chunk, terminal. No logprobs.

    Args:
        body: The answer.
        stop: As of `StreamDecoder`.
    """
    try:
        answer = _Answer.model_validate_json(body)
    except ValidationError:
        return (Failed(_unreadable(body).body()),)
    if answer.error is not None:
        return (Failed(_error_of(answer.error, None).body()),)
    if not answer.choices:
        return (Failed(_unreadable(body).body()),)
    choice = answer.choices[0]
    reason = _REASONS.get(choice.finish_reason or "")
    if reason is None:
        return (Failed(_unknown_reason(choice.finish_reason or "").body()),)
    usage = _usage(answer.usage, answer.timings)
    chunk = _chunk(choice, choice.message, 0)
    started = Started(usage.prompt_tokens if answer.usage else None)
    terminal = Finished(reason, usage, _stopped_by(answer, stop))
    return (started, terminal) if chunk is None else (started, chunk, terminal)


def error_of_answer(status: int, body: bytes) -> SkulkError:
    """Turn a refusal into an error; a prompt longer than the window is the client's to mend."""
    try:
        detail = _ErrorAnswer.model_validate_json(body).error
    except ValidationError:
        text = body[:MAX_MESSAGE_CHARS].decode("utf-8", "replace")
        detail = _ErrorDetail(message=text or "no explanation")
    return _error_of(detail, status)


def error_frame(error: SkulkError) -> Failed:
    """Give the bad terminal for an error."""
    return Failed(error.body())


def _take_plain(payload: bytes, frames: list[Frame]) -> bool:
    """Recognise a piece of plain text, or leave the payload to the models."""
    is_text = payload.startswith(_TEXT_HEAD)
    if not is_text and not payload.startswith(_REASONING_HEAD):
        return False
    start = len(_TEXT_HEAD) if is_text else len(_REASONING_HEAD)
    end = payload.find(_TAIL, start)
    if end < 0:
        return False
    text = _unquoted(payload, start, end)
    if text:
        frames.append(Chunk(text) if is_text else Chunk("", text))
    return text is not None


def _text_alone(piece: bytes) -> str | None:
    """Give the text of a piece that is one event of plain text and nothing else."""
    if not piece.startswith(_ALONE_HEAD) or piece.find(b"\n") != len(piece) - 2:
        return None
    start = len(_ALONE_HEAD)
    end = piece.find(_TAIL, start)
    return _unquoted(piece, start, end) if piece.endswith(b"\n\n") and end >= 0 else None


def _unquoted(payload: bytes, start: int, end: int) -> str | None:
    """Give what a JSON string between two places says; None where it is none."""
    quoted = payload[start:end]
    try:
        return str(from_json(b'"%b"' % quoted)) if b"\\" in quoted else quoted.decode()
    except ValueError:
        return None


def _chunk(choice: _Choice, message: _Message | None, n_alternatives: int) -> Chunk | None:
    text, reasoning = choice.text or "", ""
    calls: tuple[ToolCallDelta, ...] = ()
    if message is not None:
        text = message.content or text
        reasoning = message.reasoning_content or ""
        calls = tuple(map(_call, count(), message.tool_calls or ()))
    entries = (choice.logprobs.content if choice.logprobs else None) or ()
    logprobs = tuple(_logprob(entry, n_alternatives) for entry in entries)
    has_any = text or reasoning or calls or logprobs
    return Chunk(text, reasoning, calls, logprobs) if has_any else None


def _call(position: int, call: _ToolCall) -> ToolCallDelta:
    return ToolCallDelta(
        position if call.index is None else call.index,
        call.id,
        call.function.name,
        call.function.arguments or "",
    )


def _stopped_by(answer: _Answer, stop: tuple[str, ...]) -> str | None:
    """Give the stop string that ended an answer, if it is one of the task's."""
    word = answer.verbose.stopping_word if answer.verbose is not None else ""
    return word if word in stop else None


def _logprob(entry: _TokenEntry, n_alternatives: int) -> TokenLogprob:
    alternatives = entry.top_logprobs[:n_alternatives]
    return TokenLogprob(
        entry.token,
        entry.logprob,
        tuple((alternative.token, alternative.logprob) for alternative in alternatives),
    )


def _usage(usage: _Usage | None, timings: _Timings | None) -> Usage:
    usage = usage or _NO_USAGE
    details, timings = usage.prompt_tokens_details, timings or _NO_TIMINGS
    return Usage(
        usage.prompt_tokens,
        usage.completion_tokens,
        (details.cached_tokens or 0) if details else 0,
        timings.prompt_ms,
        timings.predicted_ms,
    )


def _error_of(detail: _ErrorDetail, status: int | None) -> SkulkError:
    if detail.n_prompt_tokens is not None and detail.n_ctx is not None:
        return RequestError(
            "request.context_length_exceeded",
            f"the prompt has {detail.n_prompt_tokens} tokens, "
            f"the context of this instance {detail.n_ctx}",
            remediation="shorten the conversation, or place the model with a larger --context",
            details={"n_prompt_tokens": detail.n_prompt_tokens, "n_ctx": detail.n_ctx},
        )
    if status == _BAD_REQUEST:
        return RequestError(
            "request.invalid",
            f"the engine refused the request: {_refusal(detail.message)}",
            remediation="Change what it names: the order of the roles, or a schema.",
            details={"status": status, "type": detail.type},
        )
    answered = "failed" if status is None else f"answered {status}"
    return EngineError(
        "engine.request_failed",
        f"the engine {answered}: {detail.message[:MAX_MESSAGE_CHARS]}",
        remediation="the instance's log has the engine's own account",
        details={"status": status, "type": detail.type},
    )


def _refusal(message: str) -> str:
    """Give the sentence at the end of an engine's words; before it stands where in its code."""
    sentence = message.strip().rsplit("\n", 1)[-1]
    for preamble in _PREAMBLES:
        sentence = sentence.removeprefix(preamble)
    return sentence[:MAX_MESSAGE_CHARS] or "it does not say why"


def _unreadable(payload: bytes) -> EngineError:
    shown = payload[:200].decode("utf-8", "replace")
    return EngineError(
        "engine.request_failed", f"the engine sent something that cannot be read: {shown}"
    )


def _unknown_reason(reason: str) -> EngineError:
    return EngineError(
        "engine.request_failed", f"the engine ended with the unknown reason {reason[:100]!r}"
    )
