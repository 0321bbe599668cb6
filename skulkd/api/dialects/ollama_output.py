"""Ollama's chat and generate, the way out: frames to lines, or to one whole answer. Pure.

A line is one JSON object and nothing else: clients read each line that comes as an answer. A call
of a tool is told whole, for its arguments are an object here, not text.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import starmap
from typing import Any, Final, Literal, final

from protocol.data_frames import Chunk, Finished, Started, TokenLogprob, ToolCallDelta
from protocol.tasks import FinishReason
from skulkd.api.dialects.json_text import arguments_object, dumped, escaped
from skulkd.api.dialects.openai_chat_output import logprob_entries

Kind = Literal["chat", "generate"]

_REASONS: Final[dict[FinishReason, str]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "stop",
    "content_filter": "stop",
}
_NS_PER_S: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000
_NOT_SHOWN: Final = frozenset({"message", "type", "param", "code", "remediation"})


def rfc3339(at_s: float) -> str:
    """Write a time, in seconds since 1970, as UTC."""
    return datetime.fromtimestamp(int(at_s), UTC).isoformat().replace("+00:00", "Z")


def error_object(error: dict[str, Any]) -> dict[str, Any]:
    """Give an error as Ollama's clients read it: `error` is text, which they show as it is.

    Args:
        error: The form of all dialects; what only ours read stays beside the text.
    """
    text, remedy = str(error["message"]), str(error["remediation"])
    if remedy and remedy not in text:
        text = f"{text.rstrip('.')}. {remedy}"
    return {"error": text, **{key: error[key] for key in error if key not in _NOT_SHOWN}}


@final
class Lines:
    """Writes the lines of one answer.

    Args:
        kind: Whose form they have.
        model: As the client wrote it.
        created_s: Seconds since 1970; the same in every line.
    """

    __slots__ = ("_after", "_before", "_head", "_tail")

    def __init__(self, kind: Kind, model: str, created_s: int) -> None:
        fixed = {"model": model, "created_at": rfc3339(created_s)}
        self._head = dumped(fixed)[:-1] + b","
        is_chat = kind == "chat"
        said = b'"message":{"role":"assistant","content":' if is_chat else b'"response":'
        self._before = self._head + said
        self._after = b"}" if is_chat else b""
        self._tail = self._after + b',"done":false}\n'

    def text(self, text: str) -> bytes:
        """Give a piece of text."""
        return self._before + escaped(text) + self._tail

    def piece(
        self,
        text: str,
        *,
        thinking: str = "",
        calls: Sequence[dict[str, Any]] = (),
        logprobs: Sequence[TokenLogprob] = (),
        end: bytes = b',"done":false}\n',
    ) -> bytes:
        """Give a piece of any kind, or with another `end` a whole answer."""
        parts = [self._before, escaped(text)]
        if thinking:
            parts += (b',"thinking":', escaped(thinking))
        if calls:
            parts += (b',"tool_calls":', dumped(calls))
        parts.append(self._after)
        if logprobs:
            parts += (b',"logprobs":', dumped(logprob_entries(tuple(logprobs))))
        parts.append(end)
        return b"".join(parts)


def _end(finished: Finished, elapsed_s: float) -> bytes:
    """Give the members that end an answer; a duration that the engine does not tell is 0."""
    usage = finished.usage
    return _idle_end(_REASONS[finished.reason])[:-1] + (
        b',"total_duration":%d,"load_duration":0,"prompt_eval_count":%d,'
        b'"prompt_eval_duration":%d,"eval_count":%d,"eval_duration":%d}'
    ) % (
        round(elapsed_s * _NS_PER_S),
        usage.prompt_tokens,
        round((usage.prompt_ms or 0) * _NS_PER_MS),
        usage.completion_tokens,
        round((usage.generation_ms or 0) * _NS_PER_MS),
    )


def _idle_end(reason: str) -> bytes:
    return b',"done":true,"done_reason":"%b"}' % reason.encode()


def idle_document(
    kind: Kind, model: str, created_s: int, reason: Literal["load", "unload"]
) -> bytes:
    """Give the answer to a request that says nothing: whether the model is loaded now."""
    return Lines(kind, model, created_s).piece("", end=_idle_end(reason))


@final
class LineStream:
    """Turns one task's frames into lines.

    Args:
        lines: Writes them.
        hides_thinking: Whether the client wants none, whatever the model does.
    """

    __slots__ = ("_calls", "_hides_thinking", "_lines")

    def __init__(self, lines: Lines, *, hides_thinking: bool) -> None:
        self._lines = lines
        self._hides_thinking = hides_thinking
        self._calls = _Calls()

    @property
    def opening(self) -> bytes:
        """Nothing: whatever came would be read as an answer."""
        return b""

    @property
    def end_mark(self) -> bytes:
        """Nothing: the line that is done is the end."""
        return b""

    def keep_alive(self) -> bytes:
        """Give a line that says nothing."""
        return self._lines.text("")

    def begin(self) -> bytes:
        """Give nothing: the first line is the first piece."""
        return b""

    def start(self, started: Started) -> bytes:
        """Give nothing: the prompt's tokens are told at the end."""
        del started
        return b""

    def chunk(self, chunk: Chunk) -> bytes:
        """Give a piece of output; calls of tools wait until they are whole."""
        if not (chunk.reasoning or chunk.tool_calls or chunk.logprobs):
            return self._lines.text(chunk.text)
        self._calls.add(chunk.tool_calls)
        thinking = "" if self._hides_thinking else chunk.reasoning
        if not (chunk.text or thinking or chunk.logprobs):
            return b""
        return self._lines.piece(chunk.text, thinking=thinking, logprobs=chunk.logprobs)

    def finish(self, finished: Finished, elapsed_s: float) -> bytes:
        """Give the calls of tools if there are any, and the last line."""
        calls = self._calls.listed()
        told = self._lines.piece("", calls=calls) if calls else b""
        return told + self._lines.piece("", end=_end(finished, elapsed_s) + b"\n")

    def fail(self, error: dict[str, Any]) -> bytes:
        """Give the line that ends it badly."""
        return dumped(error_object(error)) + b"\n"


@final
class LineAnswer:
    """Gathers one task's frames into a whole answer; arguments as for `LineStream`."""

    __slots__ = ("_calls", "_hides_thinking", "_lines", "_logprobs", "_text", "_thinking")

    def __init__(self, lines: Lines, *, hides_thinking: bool) -> None:
        self._lines = lines
        self._hides_thinking = hides_thinking
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._calls = _Calls()

    def add(self, chunk: Chunk) -> None:
        """Take a piece of output."""
        self._text.append(chunk.text)
        if not self._hides_thinking:
            self._thinking.append(chunk.reasoning)
        self._logprobs += chunk.logprobs
        self._calls.add(chunk.tool_calls)

    def document(self, finished: Finished, elapsed_s: float) -> bytes:
        """Give the whole answer as JSON."""
        return self._lines.piece(
            "".join(self._text),
            thinking="".join(self._thinking),
            calls=self._calls.listed(),
            logprobs=self._logprobs,
            end=_end(finished, elapsed_s),
        )


@final
class _Calls:
    """Calls of tools, as they come in."""

    __slots__ = ("_by_index",)

    def __init__(self) -> None:
        self._by_index: dict[int, list[ToolCallDelta]] = {}

    def add(self, deltas: tuple[ToolCallDelta, ...]) -> None:
        for delta in deltas:
            self._by_index.setdefault(delta.call_index, []).append(delta)

    def listed(self) -> list[dict[str, Any]]:
        return list(starmap(_call, sorted(self._by_index.items())))


def _call(index: int, deltas: list[ToolCallDelta]) -> dict[str, Any]:
    call_id = next((delta.id for delta in deltas if delta.id), None)
    function: dict[str, Any] = {
        "index": index,
        "name": next((delta.name for delta in deltas if delta.name), ""),
        "arguments": arguments_object("".join(delta.arguments for delta in deltas)),
    }
    return {**({} if call_id is None else {"id": call_id}), "function": function}
