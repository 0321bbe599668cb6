"""What each dialect's clients take for an answer: of an error, of a whole, of a stream.

A judge knows nothing of how answers are written here: it is what a strict client demands.
"""

import json
import re
from collections.abc import Callable
from typing import Any, Final, cast

from pydantic import ValidationError

from skulkd.api.dialect_notes import DIALECT_NOTES
from tests.support.http_answers import HttpAnswer

Fields = dict[str, Any]

ERRORS: Final = frozenset({400, 401, 403, 404, 405, 408, 410, 413, 415, 421, 426, 431, 499, 503})
"""Of requests that are wrong, or are too many; nothing that an engine does here is wrong."""
_EVENT_STREAM: Final = "text/event-stream; charset=utf-8"
_NDJSON: Final = "application/x-ndjson"
_JSON: Final = "application/json"
_SSE_LINE: Final = re.compile(r"(?:event:|data:|:) .*")
_ANTHROPIC_ERRORS: Final = {
    "invalid_request_error", "authentication_error", "permission_error", "not_found_error",
    "request_too_large", "rate_limit_error", "api_error", "overloaded_error", "timeout_error",
}  # fmt: skip
_FINISHED: Final = {"stop", "length", "tool_calls", "content_filter"}


def check(holds: object, reason: str) -> None:
    """Demand something of an answer.

    Raises:
        AssertionError: It does not hold.
    """
    if not holds:
        raise AssertionError(reason)


def judge(path: str, method: str, answer: HttpAnswer) -> None:
    """Judge an answer by the route that was asked.

    Args:
        path: As the client sent it, without its query.
        method: Of the request.
        answer: Whole.

    Raises:
        AssertionError: A client of the dialect could not take it; says why.
    """
    check(answer.is_whole, "the answer is cut off")
    if answer.status in {200, 204}:
        _judge_good(path, method, answer)
        return
    check(answer.status in ERRORS, f"status {answer.status}")
    check(answer.headers.get("content-type") == _JSON, "an error that is not JSON")
    if method != "HEAD":
        ERROR_JUDGES[dialect_of(path)](fields_of(answer.body))
    check((answer.status == 503) <= ("retry-after" in answer.headers), "503 without Retry-After")


def judge_refusal(answer: HttpAnswer) -> None:
    """Judge an answer to what is no request, and so of no dialect that could be told.

    Raises:
        AssertionError: It is an error in no dialect's form.
    """
    check(answer.status in ERRORS and answer.is_whole, f"status {answer.status}")
    document = fields_of(answer.body)
    is_text = isinstance(document.get("error"), str)
    judge_ollama_error(document) if is_text else judge_openai_error(document)


def dialect_of(path: str) -> str:
    """Say whose clients ask there."""
    if path == "/ollama" or (path.startswith("/ollama/") and not path.startswith("/ollama/v1/")):
        return "ollama"
    path = path.removeprefix("/ollama")
    return "anthropic" if path == "/v1/messages" or path.startswith("/v1/messages/") else "openai"


def fields_of(text: str | bytes) -> Fields:
    """Parse a JSON object, strictly."""
    if isinstance(text, bytes):
        text = text.decode()
    parsed: object = json.loads(text, parse_constant=_no_constant)
    check(isinstance(parsed, dict), "the JSON is no object")
    return cast("Fields", parsed)


def _no_constant(name: str) -> None:
    raise AssertionError(name)


def _judge_good(path: str, method: str, answer: HttpAnswer) -> None:
    route = path.removeprefix("/ollama") if path.startswith("/ollama/v1/") else path
    if method in {"HEAD", "OPTIONS"}:
        check(not answer.body, "a body where there is none")
        return
    kind = answer.headers.get("content-type")
    stream = STREAM_JUDGES.get(route)
    if kind in {_EVENT_STREAM, _NDJSON}:
        check(stream is not None, f"a stream from {path}")
        assert stream is not None
        check(kind == (_NDJSON if dialect_of(path) == "ollama" else _EVENT_STREAM), str(kind))
        text = answer.body.decode()
        stream(text)
        for event in text.splitlines() if kind == _NDJSON else [e for _, e in sse_events(text)]:
            if event != "[DONE]" and "error" not in fields_of(event):
                fits(f"POST {route}", event, is_event=True)
    elif route in WHOLE_JUDGES:
        check(kind == _JSON, f"content type {kind}")
        WHOLE_JUDGES[route](fields_of(answer.body))
        fits(f"POST {route}", answer.body.decode())
    elif f"{method} {route}" in DIALECT_NOTES:
        fits(f"{method} {route}", answer.body.decode())


def fits(route: str, document: str, *, is_event: bool = False) -> None:
    """Demand that an answer, or an event of one, is as `/openapi.json` describes it."""
    note = DIALECT_NOTES[route]
    problems: list[str] = []
    for kind in note.events if is_event else (note.answers,):
        assert isinstance(kind, type)
        try:
            kind.model_validate_json(document)
        except ValidationError as error:
            problems.append(str(error))
        else:
            return
    check(holds=False, reason=f"{route} is described otherwise: {problems}")


# ---- Errors --------------------------------------------------------------------------------


def judge_openai_error(document: Fields) -> None:
    """Judge an error of OpenAI's and of our own routes."""
    error = document.get("error")
    check(isinstance(error, dict), "no `error` object")
    fields = cast("Fields", error)
    for name in ("message", "type", "code"):
        check(isinstance(fields.get(name), str) and fields[name], f"`error.{name}` is no text")
    check("param" in fields, "no `error.param`")


def judge_anthropic_error(document: Fields) -> None:
    """Judge an error of Anthropic's routes."""
    check(document.get("type") == "error", "`type` is not `error`")
    error = cast("Fields", document.get("error") or {})
    check(error.get("type") in _ANTHROPIC_ERRORS, f"`error.type` is {error.get('type')!r}")
    check(isinstance(error.get("message"), str) and error["message"], "no `error.message`")


def judge_ollama_error(document: Fields) -> None:
    """Judge an error of Ollama's routes."""
    check(isinstance(document.get("error"), str) and document["error"], "`error` is no text")


ERROR_JUDGES: Final[dict[str, Callable[[Fields], None]]] = {
    "openai": judge_openai_error,
    "anthropic": judge_anthropic_error,
    "ollama": judge_ollama_error,
}


# ---- Streams -------------------------------------------------------------------------------


def sse_events(text: str) -> list[tuple[str | None, str]]:
    """Read server-sent events: the name and the data of each; comments are left out."""
    check(text.endswith("\n\n"), "the stream ends inside an event")
    events: list[tuple[str | None, str]] = []
    for block in text[:-2].split("\n\n"):
        name: str | None = None
        data: str | None = None
        for line in block.split("\n"):
            check(_SSE_LINE.fullmatch(line), f"no line of an event: {line[:80]!r}")
            field, _, value = line.partition(" ")
            if field == "event:":
                check(name is None and data is None, "a second name, or one behind its data")
                name = value
            elif field == "data:":
                check(data is None, "data in two lines")
                data = value
        if data is not None:
            events.append((name, data))
    return events


def _choices_stream(kind: str) -> Callable[[str], None]:
    def judge_stream(text: str) -> None:
        check(text.startswith(": command_id "), "no id in front")
        events = sse_events(text)
        check(events and all(name is None for name, _ in events), "no event, or one with a name")
        *data, last = [data for _, data in events]
        if last != "[DONE]":
            check("error" in fields_of(last), "neither an end mark nor an error ends it")
            judge_openai_error(fields_of(last))
        chunks = [fields_of(text) for text in data]
        for chunk in chunks:
            check(chunk.get("object") == kind, f"`object` is {chunk.get('object')!r}")
            check(chunk["id"] == chunks[0]["id"], "two ids")
        if last == "[DONE]":
            _judge_choices([choice for chunk in chunks for choice in chunk["choices"]])

    return judge_stream


def _judge_choices(pieces: list[Fields]) -> None:
    """Demand that each choice ends once, with its last piece."""
    ends = {piece["index"]: piece["finish_reason"] for piece in pieces}
    n_ends = sum(piece["finish_reason"] is not None for piece in pieces)
    check(sorted(ends) == list(range(len(ends))) and ends, "choices are missing")
    check(set(ends.values()) <= _FINISHED, "a choice that never ends")
    check(n_ends == len(ends), "a choice that ends twice")


def _responses_stream(text: str) -> None:
    events = [(name, fields_of(data)) for name, data in sse_events(text)]
    check(all(name == event.get("type") for name, event in events), "a name that is not its type")
    numbers = [event.get("sequence_number") for _, event in events]
    check(numbers == list(range(len(numbers))), "events are not numbered")
    names = [name for name, _ in events]
    check(names[:2] == ["response.created", "response.in_progress"], f"begins with {names[:2]}")
    ends = {"response.completed", "response.incomplete", "response.failed"}
    check([name for name in names if name in ends] == names[-1:], f"ends with {names[-1:]}")
    last = events[-1][1]["response"]
    check(f"response.{last['status']}" == names[-1], "a status that is not the event's")
    if last["status"] == "failed":
        check(last["error"]["code"] and last["error"]["message"], "a failure without a reason")
    items = [event for name, event in events if name == "response.output_item.added"]
    check([item["output_index"] for item in items] == list(range(len(items))), "items are missing")


def _messages_stream(text: str) -> None:
    events = [(name, fields_of(data)) for name, data in sse_events(text)]
    check(all(name == event.get("type") for name, event in events), "a name that is not its type")
    names = [str(name) for name, _ in events]
    if names[-1] == "error":
        judge_anthropic_error(events.pop()[1])
        names.pop()
        check("message_stop" not in names, "an error behind the end")
        return
    check(
        names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"], str(names)
    )
    open_index: int | None = None
    n_blocks = 0
    for name, event in events[1:-2]:
        if name == "content_block_start":
            check(open_index is None and event["index"] == n_blocks, "a block inside another")
            open_index, n_blocks = n_blocks, n_blocks + 1
        else:
            check(name in {"content_block_delta", "content_block_stop"}, name or "")
            check(event["index"] == open_index, "a piece of a block that is not open")
            open_index = open_index if name == "content_block_delta" else None
    check(open_index is None, "a block that is never closed")
    check(events[-2][1]["delta"]["stop_reason"], "no reason for the end")


def _lines_stream(text: str) -> None:
    check(text.endswith("\n"), "the last line is cut off")
    lines = [fields_of(line) for line in text[:-1].split("\n")]
    *others, last = lines
    for line in others:
        check(line.get("done") is False and "error" not in line, f"in the middle: {line}"[:200])
    if "error" in last:
        judge_ollama_error(last)
    else:
        check(last.get("done") is True and last.get("done_reason"), "the last line is not done")


STREAM_JUDGES: Final[dict[str, Callable[[str], None]]] = {
    "/v1/chat/completions": _choices_stream("chat.completion.chunk"),
    "/v1/completions": _choices_stream("text_completion"),
    "/v1/responses": _responses_stream,
    "/v1/messages": _messages_stream,
    "/ollama/api/chat": _lines_stream,
    "/ollama/api/generate": _lines_stream,
}


# ---- Whole answers -------------------------------------------------------------------------


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _whole_choices(kind: str) -> Callable[[Fields], None]:
    def judge_whole(document: Fields) -> None:
        check(document.get("object") == kind, f"`object` is {document.get('object')!r}")
        check(document["id"] and document["model"] and _is_count(document["created"]), "no head")
        _judge_choices(document["choices"])
        usage = document["usage"]
        counts = [usage[f"{name}_tokens"] for name in ("prompt", "completion", "total")]
        check(all(map(_is_count, counts)) and counts[0] + counts[1] == counts[2], f"usage {usage}")

    return judge_whole


def _whole_response(document: Fields) -> None:
    check(document["object"] == "response", "no response")
    check(document["status"] in {"completed", "incomplete"}, f"status {document['status']}")
    check(all(item["type"] for item in document["output"]), "an item without a type")
    check(_is_count(document["usage"]["total_tokens"]), "no usage")


def _whole_message(document: Fields) -> None:
    check(document["type"] == "message" and document["role"] == "assistant", "no message")
    check(document["stop_reason"], "no reason for the end")
    check(all(block["type"] for block in document["content"]), "a block without a type")
    check(_is_count(document["usage"]["input_tokens"]), "no usage")


def _tokens(document: Fields) -> None:
    check(list(document) == ["input_tokens"] and _is_count(document["input_tokens"]), "no count")


def _vectors(document: Fields) -> None:
    check(document["object"] == "list" and document["data"], "no vectors")
    check([item["index"] for item in document["data"]] == list(range(len(document["data"]))), "")


def _ranks(document: Fields) -> None:
    scores = [result["relevance_score"] for result in document["results"]]
    check(scores and scores == sorted(scores, reverse=True), "scores are not in order")


def _line(document: Fields) -> None:
    check(document["model"] and document["done"] is True and document["done_reason"], "not done")


def _embedded(document: Fields) -> None:
    check("embeddings" in document or "embedding" in document, "no vectors")


WHOLE_JUDGES: Final[dict[str, Callable[[Fields], None]]] = {
    "/v1/chat/completions": _whole_choices("chat.completion"),
    "/v1/completions": _whole_choices("text_completion"),
    "/v1/responses": _whole_response,
    "/v1/messages": _whole_message,
    "/v1/messages/count_tokens": _tokens,
    "/v1/embeddings": _vectors,
    "/v1/rerank": _ranks,
    "/ollama/api/chat": _line,
    "/ollama/api/generate": _line,
    "/ollama/api/embed": _embedded,
    "/ollama/api/embeddings": _embedded,
}
