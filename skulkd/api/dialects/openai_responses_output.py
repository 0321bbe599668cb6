"""OpenAI responses, the way out: frames to typed events, or to one whole response. Pure.

A response is a row of items: reasoning, messages, calls of functions. One is open at a time, and
each has the next index, so a stream is a small automaton: a frame goes on with the open item or
closes it. The event that ends a stream repeats the whole response, and a whole answer is that same
object, so that both ways say the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, final

from protocol.data_frames import Chunk, Finished, Started, TokenLogprob, ToolCallDelta, Usage
from protocol.ids import CommandId, ModelId
from protocol.tasks import FinishReason
from skulkd.api.dialects.json_text import dumped, escaped
from skulkd.api.dialects.openai_chat_output import logprob_entries

SEAL: Final = "skulk:"
"""What reasoning begins with that a client hands back unread, as `encrypted_content`."""

_Kind = Literal["reasoning", "message", "function_call"]
_ItemStatus = Literal["in_progress", "completed", "incomplete"]
_NO_LOGPROBS: Final = b',"logprobs":[]'
_EMPTY_ARGUMENTS: Final = "{}"
_REASONS: Final[dict[FinishReason, str]] = {
    "length": "max_output_tokens",
    "content_filter": "content_filter",
}
"""Of responses that are incomplete; the others are complete."""
_IDS: Final[dict[_Kind, str]] = {"reasoning": "rs", "message": "msg", "function_call": "fc"}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseHead:
    """What a response says of its request."""

    command_id: CommandId
    model_id: ModelId
    """As the client wrote it."""
    created_s: int
    """Seconds since 1970."""
    settings: Mapping[str, Any]
    """The fields of the request that a response repeats."""
    namespaces: Mapping[str, tuple[str, str]]
    """The names of functions that were offered under a name with their namespace before it, as the
    client knows them: namespace and name."""
    seals_reasoning: bool
    """The client hands reasoning back only where it gets it as `encrypted_content`."""
    shows_summaries: bool
    """The client shows reasoning only where it gets it as a summary."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """How the text of an item is told."""

    index: str
    """What its events call the number of the part."""
    part: str
    """What events of the part are named after."""
    text: str
    """What events of its text are named after."""


_MESSAGE: Final = _Form(
    index="content_index", part="response.content_part", text="response.output_text"
)
_REASONING: Final = _Form(
    index="content_index", part="response.content_part", text="response.reasoning_text"
)
_SUMMARY: Final = _Form(
    index="summary_index",
    part="response.reasoning_summary_part",
    text="response.reasoning_summary_text",
)


@final
@dataclass(slots=True, kw_only=True)
class _Item:
    """An item of the output, as it comes in."""

    kind: _Kind
    item_id: str
    index: int
    form: _Form = _MESSAGE
    pieces: list[str] = field(default_factory=list[str])
    """Of its text, or of a call's arguments."""
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    call: Mapping[str, str] = field(default_factory=dict[str, str])
    """Who is called: `call_id`, `name`, and `namespace` where there is one."""
    delta: bytes = b""
    """How an event with a piece of it begins."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def part(self) -> dict[str, Any]:
        """Give its content, as far as it has come."""
        if self.kind == "reasoning":
            kind = "summary_text" if self.form is _SUMMARY else "reasoning_text"
            return {"type": kind, "text": self.text}
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": [],
            "logprobs": logprob_entries(self.logprobs),
        }

    def document(self, status: _ItemStatus, *, seals_reasoning: bool) -> dict[str, Any]:
        """Give the item; one in progress is empty."""
        item: dict[str, Any] = {"id": self.item_id, "type": self.kind, "status": status}
        parts = [] if status == "in_progress" else [self.part()]
        if self.kind == "function_call":
            return {**item, **self.call, "arguments": self.text}
        if self.kind == "message":
            return {**item, "role": "assistant", "content": parts}
        item["encrypted_content"] = SEAL + self.text if seals_reasoning and parts else None
        if self.form is _SUMMARY:
            return {**item, "summary": parts}
        return {**item, "summary": [], "content": parts}


@final
class ResponseStream:
    """Turns one task's frames into events, numbered from 0 on.

    Args:
        head: What the response says of its request.
    """

    __slots__ = ("_call_index", "_done", "_head", "_n_events", "_open")

    def __init__(self, head: ResponseHead) -> None:
        self._head = head
        self._n_events = 0
        self._open: _Item | None = None
        self._call_index: int | None = None
        """Which call the newest item is."""
        self._done: list[dict[str, Any]] = []

    @property
    def opening(self) -> bytes:
        """Nothing: the first event has the id."""
        return b""

    @property
    def end_mark(self) -> bytes:
        """Nothing: the event that repeats the whole response is the end."""
        return b""

    def begin(self) -> bytes:
        """Give the events that begin every response."""
        response = dumped(self._response("in_progress"))
        created = self._whole("response.created", response)
        return created + self._whole("response.in_progress", response)

    def keep_alive(self) -> bytes:
        """Give an event that says nothing new: clients do not count comments as life."""
        return self._whole("response.in_progress", dumped(self._response("in_progress")))

    def start(self, started: Started) -> bytes:
        """Give nothing: the response has begun."""
        del started
        return b""

    def chunk(self, chunk: Chunk) -> bytes:
        """Give a piece of output."""
        text, item = chunk.text, self._open
        if item is not None and item.kind == "message" and text and _is_plain(chunk):
            item.pieces.append(text)
            return self._delta(item, text, _NO_LOGPROBS)
        events: list[bytes] = []
        if chunk.reasoning:
            self._say("reasoning", chunk.reasoning, (), events)
        if chunk.text:
            self._say("message", chunk.text, chunk.logprobs, events)
        elif chunk.logprobs and self._open is not None and self._open.kind == "message":
            self._open.logprobs += chunk.logprobs  # of a text that is still held back
        for delta in chunk.tool_calls:
            self._call(delta, events)
        return b"".join(events)

    def finish(self, finished: Finished, elapsed_s: float) -> bytes:
        """Give the events that end the response."""
        events: list[bytes] = []
        response = self.response(finished, elapsed_s, events)
        events.append(self._whole(f"response.{response['status']}", dumped(response)))
        return b"".join(events)

    def response(self, finished: Finished, elapsed_s: float, events: list[bytes]) -> dict[str, Any]:
        """Close what is open and give the whole response.

        Args:
            finished: How it ended.
            elapsed_s: Since it was created.
            events: Gets the events of the closing.
        """
        reason = _REASONS.get(finished.reason)
        status = "completed" if reason is None else "incomplete"
        self._close(status, events)
        return self._response(
            status,
            completed_at=self._head.created_s + round(elapsed_s) if reason is None else None,
            incomplete_details=None if reason is None else {"reason": reason},
            usage=usage_object(finished.usage),
        )

    def fail(self, error: dict[str, Any]) -> bytes:
        """Give the event that ends the response badly, with what there is of it."""
        if self._open is not None:
            self._done.append(self._document(self._open, "incomplete"))
            self._open = None
        failure = {**error, "code": _failure_code(error)}
        response = self._response("failed", error=failure)
        return self._whole("response.failed", dumped(response))

    def _response(self, status: str, **changes: object) -> dict[str, Any]:
        head = self._head
        return {
            "id": f"resp_{head.command_id}",
            "object": "response",
            "created_at": head.created_s,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": head.model_id,
            "output": self._done,
            "usage": None,
            **head.settings,
            **changes,
        }

    def _whole(self, kind: str, response: bytes) -> bytes:
        """Give an event with the whole response."""
        number, name = self._n_events, kind.encode()
        self._n_events += 1
        return (
            b'event: %b\ndata: {"type":"%b","response":%b,"sequence_number":%d}\n\n'
            % (name, name, response, number)
        )  # fmt: skip

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        event = {"type": kind, **fields, "sequence_number": self._n_events}
        self._n_events += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), dumped(event))

    # ---- Items ----

    def _say(
        self,
        kind: Literal["reasoning", "message"],
        text: str,
        logprobs: tuple[TokenLogprob, ...],
        events: list[bytes],
    ) -> None:
        item = self._open
        if item is None or item.kind != kind:
            item = self._open_item(kind, {}, events)
            form = item.form
            place = {**_place(item), form.index: 0}
            events.append(self._event(f"{form.part}.added", {**place, "part": item.part()}))
            item.delta = _delta_head(f"{form.text}.delta", place)
        item.pieces.append(text)
        item.logprobs += logprobs
        told = _NO_LOGPROBS if kind == "message" else b""
        if logprobs:
            told = b',"logprobs":' + dumped(logprob_entries(logprobs))
        events.append(self._delta(item, text, told))

    def _call(self, delta: ToolCallDelta, events: list[bytes]) -> None:
        item = self._open
        if item is None or item.kind != "function_call" or self._call_index != delta.call_index:
            call_id = delta.id or f"call_{self._head.command_id}_{delta.call_index}"
            name = delta.name or ""
            whose = self._head.namespaces.get(name)
            call = {"call_id": call_id, "name": name}
            if whose is not None:
                call = {"call_id": call_id, "namespace": whose[0], "name": whose[1]}
            item = self._open_item("function_call", call, events)
            self._call_index = delta.call_index
            item.delta = _delta_head("response.function_call_arguments.delta", _place(item))
        if delta.arguments:
            item.pieces.append(delta.arguments)
            events.append(self._delta(item, delta.arguments))

    def _delta(self, item: _Item, text: str, told: bytes = b"") -> bytes:
        number = self._n_events
        self._n_events += 1
        return item.delta + escaped(text) + told + b',"sequence_number":%d}\n\n' % number

    def _open_item(self, kind: _Kind, call: Mapping[str, str], events: list[bytes]) -> _Item:
        self._close("completed", events)
        index = len(self._done)
        item_id = f"{_IDS[kind]}_{self._head.command_id}_{index}"
        item = self._open = _Item(kind=kind, item_id=item_id, index=index, call=call)
        if kind == "reasoning":
            item.form = _SUMMARY if self._head.shows_summaries else _REASONING
        added = {"output_index": index, "item": self._document(item, "in_progress")}
        events.append(self._event("response.output_item.added", added))
        return item

    def _close(self, status: Literal["completed", "incomplete"], events: list[bytes]) -> None:
        item, self._open = self._open, None
        if item is None:
            return
        place = _place(item)
        if item.kind == "function_call":
            if not item.pieces and status == "completed":
                item.pieces.append(_EMPTY_ARGUMENTS)
                events.append(self._delta(item, _EMPTY_ARGUMENTS))
            done = {**place, "name": item.call["name"], "arguments": item.text}
            events.append(self._event("response.function_call_arguments.done", done))
        else:
            form, part = item.form, item.part()
            place[form.index] = 0
            told = {"text": part["text"]}
            if item.kind == "message":
                told["logprobs"] = part["logprobs"]
            events += (
                self._event(f"{form.text}.done", {**place, **told}),
                self._event(f"{form.part}.done", {**place, "part": part}),
            )
        document = self._document(item, status)
        self._done.append(document)
        done = {"output_index": item.index, "item": document}
        events.append(self._event("response.output_item.done", done))

    def _document(self, item: _Item, status: _ItemStatus) -> dict[str, Any]:
        return item.document(status, seals_reasoning=self._head.seals_reasoning)


@final
class ResponseAnswer:
    """Gathers one task's frames into a whole response; arguments as for `ResponseStream`."""

    __slots__ = ("_stream",)

    def __init__(self, head: ResponseHead) -> None:
        self._stream = ResponseStream(head)

    def add(self, chunk: Chunk) -> None:
        """Take a piece of output."""
        self._stream.chunk(chunk)

    def document(self, finished: Finished, elapsed_s: float) -> bytes:
        """Give the whole response as JSON."""
        return dumped(self._stream.response(finished, elapsed_s, []))


def usage_object(usage: Usage) -> dict[str, Any]:
    """Give the token counts; engines do not say which of the output is reasoning."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _is_plain(chunk: Chunk) -> bool:
    return not (chunk.reasoning or chunk.tool_calls or chunk.logprobs)


def _place(item: _Item) -> dict[str, Any]:
    return {"item_id": item.item_id, "output_index": item.index}


def _delta_head(kind: str, place: Mapping[str, Any]) -> bytes:
    """Give how each event with a piece of an item begins."""
    return b'event: %b\ndata: %b,"delta":' % (kind.encode(), dumped({"type": kind, **place})[:-1])


def _failure_code(error: Mapping[str, Any]) -> str:
    """Give a code that clients know: they ask once more unless it says that it cannot help."""
    if error["code"] == "context_length_exceeded":
        return "context_length_exceeded"
    return "server_error" if error["type"] == "server_error" else "invalid_prompt"
