"""OpenAI chat completions, the way in: a JSON object to a task. Pure.

Every field either reaches the engine or is refused by name, where silence would change the answer.
Fields that nobody here knows are ignored, and null means absent: client libraries send both.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, cast

from protocol.errors import RequestError
from protocol.ids import CommandId, ModelId, parse_model_id
from protocol.tasks import (
    ChatMessage,
    ChatRole,
    ChatTask,
    ResponseFormat,
    Sampling,
    ToolCall,
    ToolDefinition,
)

Fields = Mapping[str, Any]

MAX_MESSAGES: Final = 4_096
"""Reading so many takes the loop 41 ms at worst, on a 2-core x86_64 virtual machine."""
MAX_STOPS: Final = 16
MAX_STOP_CHARS: Final = 1_000
MAX_TOOLS: Final = 256
MAX_NAME_CHARS: Final = 256
MAX_TOP_LOGPROBS: Final = 20
MAX_TOKENS: Final = 1 << 24
_HUGE: Final = 1e300

_ROLES: Final[dict[str, ChatRole]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text"})
_IMAGE_PARTS: Final = frozenset({"image_url", "input_image", "image"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A task, and how its answer is wanted."""

    task: ChatTask
    stream: bool
    include_usage: bool
    """A trailer with the token counts, when streaming."""


def parse_chat(body: Fields, *, command_id: CommandId) -> ChatCall:
    """Read a request.

    Raises:
        RequestError: `request.invalid`, `request.unsupported_field` or, for what cannot be the id
            of any model, `request.model_not_found`; `details["param"]` names the field.
    """
    model = body.get("model")
    if not isinstance(model, str) or not model:
        _wrong("model", "a string", model)
    model_id = _model_id(model)
    _refuse_unsupported(body)
    tools = _tools(body.get("tools"))
    stream = _flag(body, "stream") or False
    task = ChatTask(
        command_id=command_id,
        model_id=model_id,
        messages=_messages(body.get("messages")),
        sampling=_sampling(body),
        max_tokens=_max_tokens(body),
        stop=_stop(body.get("stop")),
        logprobs=_logprobs(body),
        tools=tools,
        tool_choice=_tool_choice(body.get("tool_choice"), tools),
        response_format=_response_format(body.get("response_format")),
        enable_thinking=_flag(body, "enable_thinking"),
        reasoning_effort=_text(body, "reasoning_effort"),
        stream=stream,
    )
    return ChatCall(task=task, stream=stream, include_usage=_include_usage(body))


def _model_id(text: str) -> ModelId:
    try:
        return parse_model_id(text)
    except RequestError as error:
        raise RequestError(
            "request.model_not_found",
            f"No instance found for model {text[:64]!r}, which is not a model id",
            remediation=error.remediation,
            details={"param": "model"},
        ) from error


def _wrong(param: str, wanted: str, value: object) -> NoReturn:
    """Refuse a value by its kind; what the client wrote is never repeated."""
    raise RequestError(
        "request.invalid",
        f"`{param}` must be {wanted}, not {_kind(value)}",
        remediation="See docs/api.md, chat completions.",
        details={"param": param},
    )


def _unsupported(param: str, reason: str, remediation: str) -> NoReturn:
    raise RequestError(
        "request.unsupported_field",
        f"`{param}` {reason}",
        remediation=remediation,
        details={"param": param},
    )


def _kind(value: object) -> str:
    if value is None:
        return "absent or null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        # An integer of JSON may be larger than any float, and cannot be shown as one.
        return f"{value:.6g}" if -_HUGE < value < _HUGE else "a number of hundreds of digits"
    if isinstance(value, str):
        return "a string" if value else "an empty string"
    return "an array" if isinstance(value, list) else "an object"


def _refuse_unsupported(body: Fields) -> None:
    n = body.get("n")
    if n is not None and (isinstance(n, bool) or n != 1):
        _unsupported("n", "must be 1: one choice a request is served", "Send several requests.")
    if body.get("logit_bias"):
        _unsupported("logit_bias", "is not served", "Leave it out.")
    if body.get("functions") or body.get("function_call"):
        _unsupported("functions", "was replaced by `tools`", "Send `tools` and `tool_choice`.")
    if body.get("audio") or body.get("modalities") not in (None, [], ["text"]):
        _unsupported("modalities", "can only be text here", "Leave `modalities` and `audio` out.")


# ---- Scalars -------------------------------------------------------------------------------


def _flag(body: Fields, name: str) -> bool | None:
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return value
    _wrong(name, "a boolean", value)


def _text(body: Fields, name: str) -> str | None:
    value = body.get(name)
    if value is None or isinstance(value, str):
        return value
    _wrong(name, "a string", value)


def _number(body: Fields, name: str, low: float, high: float) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        _wrong(name, f"a number from {low:g} to {high:g}", value)
    return float(value)


def _integer(body: Fields, name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # JavaScript and some YAML front ends write 5.0
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        _wrong(name, f"an integer from {low} to {high}", value)
    return value


_SAMPLING_FIELDS: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "repetition_context_size",
)
_DEFAULT_SAMPLING: Final = Sampling()


def _sampling(body: Fields) -> Sampling:
    if not any(name in body for name in _SAMPLING_FIELDS):
        return _DEFAULT_SAMPLING
    top_p = _number(body, "top_p", 0, 1)
    if top_p == 0:
        top_p = 1e-6  # OpenAI takes 0 for "the likeliest alone"
    repetition_penalty = _number(body, "repetition_penalty", 0, 10)
    if repetition_penalty == 0:
        _wrong("repetition_penalty", "a number above 0, up to 10", 0)
    top_k = _integer(body, "top_k", -1, 1 << 20)
    return Sampling(
        temperature=_number(body, "temperature", 0, 100),
        top_p=top_p,
        top_k=0 if top_k == -1 else top_k,  # -1 is how some servers write "all"
        min_p=_number(body, "min_p", 0, 1),
        seed=_seed(body),
        frequency_penalty=_number(body, "frequency_penalty", -2, 2),
        presence_penalty=_number(body, "presence_penalty", -2, 2),
        repetition_penalty=repetition_penalty,
        repetition_context_size=_integer(body, "repetition_context_size", 0, 1 << 20),
    )


def _seed(body: Fields) -> int | None:
    seed = _integer(body, "seed", -(1 << 63), (1 << 63) - 1)
    if seed is None or seed == -1:  # -1 is how llama.cpp writes "any"
        return None
    return seed & 0xFFFFFFFF


def _max_tokens(body: Fields) -> int | None:
    """`max_completion_tokens` wins: it is the newer name, and some clients send a stale other."""
    newer = _integer(body, "max_completion_tokens", 1, MAX_TOKENS)
    older = _integer(body, "max_tokens", 1, MAX_TOKENS)
    return older if newer is None else newer


def _logprobs(body: Fields) -> int | None:
    wanted = _flag(body, "logprobs") or False
    alternatives = _integer(body, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    if not wanted:
        if alternatives:
            raise RequestError(
                "request.invalid",
                "`top_logprobs` needs `logprobs` to be true",
                remediation='Send "logprobs": true too.',
                details={"param": "top_logprobs"},
            )
        return None
    return alternatives or 0


def _stop(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    listed = cast("list[object]", value) if isinstance(value, list) else [value]
    if len(listed) > MAX_STOPS:
        _wrong("stop", f"at most {MAX_STOPS} strings", listed)
    stops: list[str] = []
    for index, item in enumerate(listed):
        if not isinstance(item, str) or len(item) > MAX_STOP_CHARS:
            _wrong(f"stop[{index}]", f"a string of at most {MAX_STOP_CHARS} characters", item)
        if item:
            stops.append(item)
    return tuple(stops)


def _include_usage(body: Fields) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        _wrong("stream_options", "an object", options)
    return _flag(cast("Fields", options), "include_usage") or False


# ---- Messages ------------------------------------------------------------------------------


def _messages(value: object) -> tuple[ChatMessage, ...]:
    if not isinstance(value, list):
        _wrong("messages", "an array of messages", value)
    listed = cast("list[object]", value)
    if not listed:
        raise RequestError(
            "request.invalid",
            "`messages` is empty",
            remediation="Send at least one message.",
            details={"param": "messages"},
        )
    if len(listed) > MAX_MESSAGES:
        raise RequestError(
            "request.invalid",
            f"`messages` has {len(listed)} messages, at most {MAX_MESSAGES} are read",
            remediation="Drop old turns.",
            details={"param": "messages"},
        )
    return tuple(_message(item, f"messages[{index}]") for index, item in enumerate(listed))


def _message(value: object, place: str) -> ChatMessage:
    if not isinstance(value, dict):
        _wrong(place, "an object", value)
    message = cast("Fields", value)
    named = message.get("role")
    role = _ROLES.get(named) if isinstance(named, str) else None
    if role is None:
        _wrong(f"{place}.role", f"one of {', '.join(_ROLES)}", named)
    calls = _tool_calls(message.get("tool_calls"), place) if role == "assistant" else ()
    content = message.get("content")
    if content is None and role != "assistant":
        _wrong(f"{place}.content", "a string or an array of parts", content)
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    call_id = message.get("tool_call_id")
    name = message.get("name")
    return ChatMessage(
        role=role,
        content=_content(content, f"{place}.content"),
        reasoning=reasoning if isinstance(reasoning, str) else None,
        tool_calls=calls,
        tool_call_id=call_id if isinstance(call_id, str) else None,
        name=name if isinstance(name, str) else None,
    )


def _content(value: object, place: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        _wrong(place, "a string or an array of parts", value)
    parts = cast("list[object]", value)
    return "\n".join(_part(part, f"{place}[{index}]") for index, part in enumerate(parts))


def _part(value: object, place: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        _wrong(place, "an object with a `type`", value)
    part = cast("Fields", value)
    kind = part.get("type")
    if isinstance(kind, list | dict):
        _wrong(f"{place}.type", "a string", cast("object", kind))
    if kind in _IMAGE_PARTS:
        _unsupported(
            place, "is an image, and the model has no vision here: it takes text", "Send text."
        )
    text = part.get("refusal") if kind == "refusal" else part.get("text")
    if kind not in _TEXT_PARTS and kind != "refusal":
        _unsupported(f"{place}.type", "is not a kind of part that is served", "Send text parts.")
    if not isinstance(text, str):
        _wrong(f"{place}.text", "a string", text)
    return text


def _tool_calls(value: object, place: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        _wrong(f"{place}.tool_calls", "an array", value)
    listed = cast("list[object]", value)
    return tuple(
        _tool_call(item, f"{place}.tool_calls[{index}]") for index, item in enumerate(listed)
    )


def _tool_call(value: object, place: str) -> ToolCall:
    function = cast("Fields", value).get("function") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(function, dict):
        _wrong(f"{place}.function", "an object", function)
    call, named = cast("Fields", value), cast("Fields", function)
    arguments = named.get("arguments")
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments)  # Ollama's habit, met in the wild on OpenAI routes
    call_id = call.get("id")
    return ToolCall(
        id=call_id if isinstance(call_id, str) else "",
        name=_short(named.get("name"), f"{place}.function.name"),
        arguments=arguments if isinstance(arguments, str) else "{}",
    )


# ---- Tools and formats ---------------------------------------------------------------------


def _short(value: object, place: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARS:
        _wrong(place, f"a string of 1 to {MAX_NAME_CHARS} characters", value)
    return value


def _tools(value: object) -> tuple[ToolDefinition, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        _wrong("tools", "an array", value)
    listed = cast("list[object]", value)
    if len(listed) > MAX_TOOLS:
        _wrong("tools", f"at most {MAX_TOOLS} definitions", listed)
    return tuple(_tool(item, f"tools[{index}]") for index, item in enumerate(listed))


def _tool(value: object, place: str) -> ToolDefinition:
    if not isinstance(value, dict):
        _wrong(place, "an object", value)
    tool = cast("Fields", value)
    if tool.get("type", "function") != "function":
        _unsupported(f"{place}.type", "must be function", "Offer function tools only.")
    function = tool.get("function")
    if not isinstance(function, dict):
        _wrong(f"{place}.function", "an object", function)
    named = cast("Fields", function)
    parameters = named.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        _wrong(f"{place}.function.parameters", "a JSON schema", parameters)
    description = named.get("description")
    return ToolDefinition(
        name=_short(named.get("name"), f"{place}.function.name"),
        description=description if isinstance(description, str) else "",
        parameters=cast("dict[str, Any]", parameters) if parameters else {},
    )


def _tool_choice(value: object, tools: tuple[ToolDefinition, ...]) -> str:
    if value is None:
        return "auto"
    if isinstance(value, str):
        if value not in {"auto", "none", "required"} or (value == "required" and not tools):
            _wrong("tool_choice", "auto, none, or required with `tools`", value)
        return value
    function = cast("Fields", value).get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict):
        _wrong("tool_choice", "auto, none, required or one function", function)
    name = cast("Fields", function).get("name")
    if not any(tool.name == name for tool in tools):
        raise RequestError(
            "request.invalid",
            "`tool_choice` names a function that `tools` does not offer",
            remediation="Name one of the functions in `tools`.",
            details={"param": "tool_choice"},
        )
    return f"={name}"


def _response_format(value: object) -> ResponseFormat | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        _wrong("response_format", "an object", value)
    wanted = cast("Fields", value)
    kind = wanted.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return ResponseFormat(kind="json_object")
    if kind != "json_schema":
        _wrong("response_format.type", "text, json_object or json_schema", kind)
    described = wanted.get("json_schema")
    if not isinstance(described, dict):
        _wrong("response_format.json_schema", "an object with a `schema`", described)
    schema = cast("Fields", described).get("schema")
    if not isinstance(schema, dict):
        _wrong("response_format.json_schema.schema", "a JSON schema", schema)
    return ResponseFormat(kind="json_schema", json_schema=cast("dict[str, Any]", schema))
