"""Anthropic's messages, the way out: frames to events, or to one whole message. Pure.

A message is a row of blocks: thinking, text, calls of tools. One is open at a time, and each has
the next index, so a stream is a small automaton: a frame goes on with the open block or closes it.
"""

import json
from typing import Any, Final, Literal, final

from protocol.data_frames import Chunk, Finished, Started, ToolCallDelta, Usage
from protocol.ids import CommandId, ModelId
from protocol.tasks import FinishReason
from skulkd.api.dialects.framing import SSE_KEEP_ALIVE
from skulkd.api.dialects.json_text import arguments_object

_Kind = Literal["text", "thinking"]

_REASONS: Final[dict[FinishReason, str]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
_STOPPED: Final = "stop_sequence"
"""Of an answer that a text of the client's has ended, which it is told then."""
_DUMP: Final = json.JSONEncoder(separators=(",", ":")).encode
"""ASCII: a line break of Unicode inside a text would cut an event in two for some clients."""


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {_DUMP({'type': name, **fields})}\n\n".encode()


@final
class MessageStream:
    """Turns one task's frames into events.

    Args:
        command_id: The message's id.
        model_id: As the client wrote it.
    """

    __slots__ = ("_call_index", "_command_id", "_delta", "_index", "_kind", "_model_id", "_usage")

    def __init__(self, *, command_id: CommandId, model_id: ModelId) -> None:
        self._command_id = command_id
        self._model_id = model_id
        self._index = -1
        """Of the newest block."""
        self._kind: _Kind | None = None
        """Of the open block, unless it is a call."""
        self._call_index: int | None = None
        """Which call the open block is."""
        self._delta = b""
        """How an event of the open block of text begins."""
        self._usage: Usage | None = None

    @property
    def opening(self) -> bytes:
        """Nothing: the id is in the header."""
        return b""

    @property
    def end_mark(self) -> bytes:
        """Nothing: `message_stop` is the end."""
        return b""

    def keep_alive(self) -> bytes:
        """Give a comment."""
        return SSE_KEEP_ALIVE

    def begin(self) -> bytes:
        """Give nothing: the first event tells the tokens of the prompt."""
        return b""

    def start(self, started: Started) -> bytes:
        """Give the event that begins the message, with the tokens of its prompt."""
        self._usage = Usage(started.prompt_tokens or 0, 0)
        message: dict[str, Any] = {
            "id": self._command_id,
            "type": "message",
            "role": "assistant",
            "model": self._model_id,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_object(self._usage),
        }
        return _event("message_start", {"message": message})

    def chunk(self, chunk: Chunk) -> bytes:
        """Give a piece of output."""
        events: list[bytes] = [] if self._usage is not None else [self.start(Started())]
        if chunk.reasoning:
            self._say("thinking", chunk.reasoning, events)
        if chunk.text:
            self._say("text", chunk.text, events)
        for delta in chunk.tool_calls:
            self._call(delta, events)
        return b"".join(events)

    def finish(self, finished: Finished, elapsed_s: float) -> bytes:
        """Give the events that end the message."""
        del elapsed_s
        events: list[bytes] = [] if self._usage is not None else [self.start(Started())]
        self._close(events)
        usage = usage_object(finished.usage)
        end = _event("message_delta", {"delta": _end_of(finished), "usage": usage})
        return b"".join((*events, end, _event("message_stop", {})))

    def fail(self, error: dict[str, Any]) -> bytes:
        """Give the event that ends the message badly."""
        return _event("error", {"error": error})

    # ---- Blocks ----

    def _say(self, kind: _Kind, text: str, events: list[bytes]) -> None:
        if self._kind != kind:
            signature = {"signature": ""} if kind == "thinking" else {}
            self._open({"type": kind, kind: "", **signature}, events)
            self._kind = kind
            fixed = {"type": "content_block_delta", "index": self._index}
            self._delta = (
                f"event: content_block_delta\ndata: {_DUMP(fixed)[:-1]},"
                f'"delta":{{"type":"{kind}_delta","{kind}":'
            ).encode()
        events.append(self._delta + _text(text).encode() + b"}}\n\n")

    def _call(self, delta: ToolCallDelta, events: list[bytes]) -> None:
        if self._call_index != delta.call_index:
            block: dict[str, Any] = {
                "type": "tool_use",
                "id": delta.id or f"toolu_{self._command_id}_{delta.call_index}",
                "name": delta.name or "",
                "input": {},
            }
            self._open(block, events)
            self._call_index = delta.call_index
        if delta.arguments:
            piece = {"type": "input_json_delta", "partial_json": delta.arguments}
            events.append(_event("content_block_delta", {"index": self._index, "delta": piece}))

    def _open(self, block: dict[str, Any], events: list[bytes]) -> None:
        self._close(events)
        self._index += 1
        fields = {"index": self._index, "content_block": block}
        events.append(_event("content_block_start", fields))

    def _close(self, events: list[bytes]) -> None:
        if self._kind is None and self._call_index is None:
            return
        self._kind = self._call_index = None
        events.append(_event("content_block_stop", {"index": self._index}))


@final
class MessageAnswer:
    """Gathers one task's frames into a whole message; arguments as for `MessageStream`."""

    __slots__ = ("_calls", "_command_id", "_model_id", "_text", "_thinking")

    def __init__(self, *, command_id: CommandId, model_id: ModelId) -> None:
        self._command_id = command_id
        self._model_id = model_id
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: dict[int, _Call] = {}

    def add(self, chunk: Chunk) -> None:
        """Take a piece of output."""
        self._text.append(chunk.text)
        self._thinking.append(chunk.reasoning)
        for delta in chunk.tool_calls:
            call = self._calls.get(delta.call_index)
            if call is None:
                name = f"toolu_{self._command_id}_{delta.call_index}"
                call = self._calls[delta.call_index] = _Call(delta.id or name)
            call.add(delta)

    def document(self, finished: Finished, elapsed_s: float) -> bytes:
        """Give the whole message as JSON."""
        del elapsed_s
        content: list[dict[str, Any]] = []
        if thinking := "".join(self._thinking):
            content.append({"type": "thinking", "thinking": thinking, "signature": ""})
        if text := "".join(self._text):
            content.append({"type": "text", "text": text})
        content += [call.block() for _, call in sorted(self._calls.items())]
        document: dict[str, Any] = {
            "id": self._command_id,
            "type": "message",
            "role": "assistant",
            "model": self._model_id,
            "content": content,
            **_end_of(finished),
            "usage": usage_object(finished.usage),
        }
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")


@final
class _Call:
    """A call of a tool, as it comes in."""

    __slots__ = ("_arguments", "_id", "_name")

    def __init__(self, call_id: str) -> None:
        self._id = call_id
        self._name = ""
        self._arguments: list[str] = []

    def add(self, delta: ToolCallDelta) -> None:
        self._name = self._name or delta.name or ""
        self._arguments.append(delta.arguments)

    def block(self) -> dict[str, Any]:
        arguments = arguments_object("".join(self._arguments))
        return {"type": "tool_use", "id": self._id, "name": self._name, "input": arguments}


def _end_of(finished: Finished) -> dict[str, str | None]:
    """Say why an answer has ended."""
    if finished.reason == "stop" and finished.stop is not None:
        return {"stop_reason": _STOPPED, "stop_sequence": finished.stop}
    return {"stop_reason": _REASONS[finished.reason], "stop_sequence": None}


def usage_object(usage: Usage) -> dict[str, int]:
    """Give the token counts: the prompt whole, whatever of it came from a cache.

    Nothing is billed here, and so the number is one and the same in the first event, in a whole
    answer and in the count of a prompt.
    """
    return {
        "input_tokens": usage.prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }


def _text(text: str) -> str:
    written = _DUMP(text)
    if "\\ud" in written:  # half a character: strict readers would refuse the whole event
        written = _DUMP(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return written
