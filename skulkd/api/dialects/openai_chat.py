"""OpenAI chat completions, the way in: a JSON object to a task. Pure.

Every field either reaches the engine or is refused by name, where silence would change the answer.
Fields that nobody here knows are ignored, and null means absent: client libraries send both.
"""

import json
from dataclasses import dataclass
from itertools import starmap
from typing import Final, Literal, cast, final

from protocol.errors import RequestError
from protocol.ids import CommandId
from protocol.tasks import (
    ChatMessage,
    ChatRole,
    ChatTask,
    ToolCall,
    ToolDefinition,
)
from skulkd.api.dialects.fields import (
    MAX_TOKENS,
    Fields,
    function_tool,
    listed_messages,
    listed_tools,
    model_id_of,
    read_flag,
    read_integer,
    read_text,
    refuse,
    short_name,
    unsupported,
    wrong,
)
from skulkd.api.dialects.framing import SSE, Framing
from skulkd.api.dialects.openai_chat_output import ChatAnswer, ChatStream
from skulkd.api.dialects.openai_choices import UsageTally, choices_of, head_of, read_n
from skulkd.api.dialects.openai_generation import (
    read_format,
    read_include_usage,
    read_sampling,
    read_stop,
)
from skulkd.api.dialects.openai_images import image_part
from skulkd.api.dialects.pictures import Content, ContentWriter, Pictures
from skulkd.api.dialects.turns import in_turns

MAX_TOP_LOGPROBS: Final = 20

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
_SHOWN_TO: Final = frozenset({"user", "tool"})
_MOVE_IT: Final = "Put the image into a user's turn."


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiCall:
    """Tasks, and how their answers are wanted; a `ChoicesCall`."""

    tasks: tuple[ChatTask, ...]
    """One a choice."""
    include_usage: bool
    """A trailer with the token counts, when streaming."""

    @property
    def task(self) -> ChatTask:
        """The first, which the request is known by."""
        return self.tasks[0]

    @property
    def dialect(self) -> Literal["openai"]:
        """Whose errors it ends with."""
        return "openai"

    @property
    def framing(self) -> Framing:
        """Events without names."""
        return SSE

    @property
    def refuses_by_status(self) -> bool:
        """A failure is the first event, as this dialect's clients look for it."""
        return False

    @property
    def shrinks_to_window(self) -> bool:
        """A budget that cannot be is refused."""
        return False

    def streams(self, created_s: int) -> tuple[ChatStream, ...]:
        """Make what turns frames into events, for each choice."""
        head = head_of(self.task, created_s, include_usage=self.include_usage)
        tally = UsageTally(len(self.tasks), len(self.tasks))
        return tuple(
            ChatStream(head, choice, tally, logprobs=self.task.logprobs is not None)
            for choice in range(len(self.tasks))
        )

    def stream(self, created_s: int) -> ChatStream:
        """Make the only writer of a request for one choice."""
        return self.streams(created_s)[0]

    def answer(self, created_s: int) -> ChatAnswer:
        """Make what gathers frames into a whole answer."""
        return ChatAnswer(head_of(self.task, created_s), n_choices=len(self.tasks))


def parse_chat(
    body: Fields, *, command_id: CommandId, pictures: Pictures | None = None
) -> OpenAiCall:
    """Read a request.

    Args:
        body: The request.
        command_id: Its id.
        pictures: Reads its images; without one, those that it holds itself.

    Raises:
        RequestError: `request.invalid`, `request.unsupported_field` or, for what cannot be the id
            of any model, `request.model_not_found`; `details["param"]` names the field.
    """
    model_id = model_id_of(body)
    _refuse_unsupported(body)
    tools = _tools(body.get("tools"))
    stream = read_flag(body, "stream") or False
    task = ChatTask(
        command_id=command_id,
        model_id=model_id,
        messages=_messages(body.get("messages"), pictures or Pictures()),
        sampling=read_sampling(body),
        max_tokens=_max_tokens(body),
        stop=read_stop(body),
        logprobs=_logprobs(body),
        tools=tools,
        tool_choice=_tool_choice(body.get("tool_choice"), tools),
        parallel_tool_calls=read_flag(body, "parallel_tool_calls"),
        response_format=read_format(body.get("response_format"), "response_format", "json_schema"),
        enable_thinking=read_flag(body, "enable_thinking"),
        reasoning_effort=read_text(body, "reasoning_effort"),
        stream=stream,
    )
    return OpenAiCall(
        tasks=choices_of((task,), read_n(body)), include_usage=read_include_usage(body)
    )


def _refuse_unsupported(body: Fields) -> None:
    if body.get("logit_bias"):
        unsupported("logit_bias", "is not served", "Leave it out.")
    if body.get("functions") or body.get("function_call"):
        unsupported("functions", "was replaced by `tools`", "Send `tools` and `tool_choice`.")
    if body.get("audio") or body.get("modalities") not in (None, [], ["text"]):
        unsupported("modalities", "can only be text here", "Leave `modalities` and `audio` out.")


# ---- Scalars -------------------------------------------------------------------------------


def _max_tokens(body: Fields) -> int | None:
    """`max_completion_tokens` wins: it is the newer name, and some clients send a stale other."""
    newer = read_integer(body, "max_completion_tokens", 1, MAX_TOKENS)
    older = read_integer(body, "max_tokens", 1, MAX_TOKENS)
    return older if newer is None else newer


def _logprobs(body: Fields) -> int | None:
    wanted = read_flag(body, "logprobs") or False
    alternatives = read_integer(body, "top_logprobs", 0, MAX_TOP_LOGPROBS)
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


# ---- Messages ------------------------------------------------------------------------------


def _messages(value: object, pictures: Pictures) -> tuple[ChatMessage, ...]:
    listed = listed_messages(value)
    return in_turns(
        tuple(_message(item, f"messages[{index}]", pictures) for index, item in enumerate(listed))
    )


def _message(value: object, place: str, pictures: Pictures) -> ChatMessage:
    if not isinstance(value, dict):
        wrong(place, "an object", value)
    message = cast("Fields", value)
    named = message.get("role")
    role = _ROLES.get(named) if isinstance(named, str) else None
    if role is None:
        wrong(f"{place}.role", f"one of {', '.join(_ROLES)}", named)
    calls = _tool_calls(message.get("tool_calls"), place) if role == "assistant" else ()
    content = message.get("content")
    if content is None and role != "assistant":
        wrong(f"{place}.content", "a string or an array of parts", content)
    said = _content(content, f"{place}.content", pictures)
    if said.images and role not in _SHOWN_TO:
        refuse(f"{place}.content", f"has an image in a turn of the {role}", _MOVE_IT)
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    call_id = message.get("tool_call_id")
    name = message.get("name")
    return ChatMessage(
        role=role,
        content=said.text,
        images=said.images,
        reasoning=reasoning if isinstance(reasoning, str) else None,
        tool_calls=calls,
        tool_call_id=call_id if isinstance(call_id, str) else None,
        name=name if isinstance(name, str) else None,
    )


def _content(value: object, place: str, pictures: Pictures) -> Content:
    if value is None:
        return Content("")
    if isinstance(value, str):
        return Content(value)
    if not isinstance(value, list):
        wrong(place, "a string or an array of parts", value)
    parts = ContentWriter()
    for index, part in enumerate(cast("list[object]", value)):
        _add_part(parts, part, f"{place}[{index}]", pictures)
    return parts.content()


def _add_part(parts: ContentWriter, value: object, place: str, pictures: Pictures) -> None:
    if isinstance(value, str):
        parts.add_text(value)
        return
    if not isinstance(value, dict):
        wrong(place, "an object with a `type`", value)
    part = cast("Fields", value)
    kind = part.get("type")
    if isinstance(kind, list | dict):
        wrong(f"{place}.type", "a string", cast("object", kind))
    if kind in _IMAGE_PARTS:
        parts.add_image(image_part(part, place, pictures))
        return
    text = part.get("refusal") if kind == "refusal" else part.get("text")
    if kind not in _TEXT_PARTS and kind != "refusal":
        unsupported(f"{place}.type", "is not a kind of part that is served", "Send text parts.")
    if not isinstance(text, str):
        wrong(f"{place}.text", "a string", text)
    parts.add_text(text)


def _tool_calls(value: object, place: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        wrong(f"{place}.tool_calls", "an array", value)
    listed = cast("list[object]", value)
    return tuple(
        _tool_call(item, f"{place}.tool_calls[{index}]") for index, item in enumerate(listed)
    )


def _tool_call(value: object, place: str) -> ToolCall:
    function = cast("Fields", value).get("function") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(function, dict):
        wrong(f"{place}.function", "an object", function)
    call, named = cast("Fields", value), cast("Fields", function)
    arguments = named.get("arguments")
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments)  # Ollama's habit, met in the wild on OpenAI routes
    call_id = call.get("id")
    return ToolCall(
        id=call_id if isinstance(call_id, str) else "",
        name=short_name(named.get("name"), f"{place}.function.name"),
        arguments=arguments if isinstance(arguments, str) else "{}",
    )


# ---- Tools and formats ---------------------------------------------------------------------


def _tools(value: object) -> tuple[ToolDefinition, ...]:
    return tuple(starmap(function_tool, listed_tools(value)))


def _tool_choice(value: object, tools: tuple[ToolDefinition, ...]) -> str:
    if value is None:
        return "auto"
    if isinstance(value, str):
        if value not in {"auto", "none", "required"} or (value == "required" and not tools):
            wrong("tool_choice", "auto, none, or required with `tools`", value)
        return value
    function = cast("Fields", value).get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict):
        wrong("tool_choice", "auto, none, required or one function", function)
    name = cast("Fields", function).get("name")
    if not any(tool.name == name for tool in tools):
        raise RequestError(
            "request.invalid",
            "`tool_choice` names a function that `tools` does not offer",
            remediation="Name one of the functions in `tools`.",
            details={"param": "tool_choice"},
        )
    return f"={name}"
