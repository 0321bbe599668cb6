"""Anthropic's messages, the way in: a JSON object to a task. Pure.

Agents send much that only their own service understands (cache marks, betas, context management,
deferred tools): what we do not know is passed over at any depth, as it changes no answer. What
would change one is refused by name.
"""

import json
from dataclasses import dataclass
from itertools import starmap
from typing import Any, Final, Literal, cast, final

from protocol.ids import CommandId
from protocol.tasks import (
    ChatMessage,
    ChatTask,
    Sampling,
    TaskImage,
    ToolCall,
    ToolDefinition,
)
from skulkd.api.dialects.anthropic_output import MessageAnswer, MessageStream
from skulkd.api.dialects.fields import (
    MAX_TOKENS,
    Fields,
    listed_messages,
    listed_tools,
    model_id_of,
    read_flag,
    read_integer,
    read_number,
    refuse,
    short_name,
    stop_texts,
    unsupported,
    wrong,
)
from skulkd.api.dialects.framing import SSE, Framing
from skulkd.api.dialects.pictures import ContentWriter, Pictures

_EFFORTS: Final = frozenset({"low", "medium", "high", "xhigh", "max"})
_THINKING: Final = frozenset({"enabled", "adaptive", "disabled"})
_FAILED: Final = "The tool failed: "
"""Before the result of a tool that did: the templates of models have no flag for it."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicCall:
    """A task, and how its answer is wanted; a `ChatCall`."""

    task: ChatTask

    @property
    def dialect(self) -> Literal["anthropic"]:
        """Whose errors it ends with."""
        return "anthropic"

    @property
    def framing(self) -> Framing:
        """Events with names."""
        return SSE

    @property
    def refuses_by_status(self) -> bool:
        """Clients look at the status before they read a stream."""
        return True

    @property
    def shrinks_to_window(self) -> bool:
        """Agents ask for the budget of models with far larger windows."""
        return True

    def stream(self, created_s: int) -> MessageStream:
        """Make what turns frames into events; they carry no time."""
        del created_s
        return MessageStream(command_id=self.task.command_id, model_id=self.task.model_id)

    def answer(self, created_s: int) -> MessageAnswer:
        """Make what gathers frames into a whole answer, which carries no time."""
        del created_s
        return MessageAnswer(command_id=self.task.command_id, model_id=self.task.model_id)


def parse_messages(
    body: Fields, *, command_id: CommandId, pictures: Pictures | None = None
) -> AnthropicCall:
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
    max_tokens = read_integer(body, "max_tokens", 1, MAX_TOKENS)
    if max_tokens is None:
        wrong("max_tokens", f"an integer from 1 to {MAX_TOKENS}", None)
    tools = _tools(body.get("tools"))
    task = ChatTask(
        command_id=command_id,
        model_id=model_id,
        messages=_conversation(body, pictures or Pictures()),
        sampling=Sampling(
            temperature=read_number(body, "temperature", 0, 100),
            top_p=_top_p(body),
            top_k=read_integer(body, "top_k", 0, 1 << 20),
        ),
        max_tokens=max_tokens,
        stop=_stop(body.get("stop_sequences")),
        tools=tools,
        tool_choice=_tool_choice(body.get("tool_choice"), tools),
        parallel_tool_calls=_parallel(body.get("tool_choice")),
        enable_thinking=_enable_thinking(body.get("thinking")),
        reasoning_effort=_effort(body.get("output_config")),
        stream=read_flag(body, "stream") or False,
    )
    return AnthropicCall(task=task)


def parse_prompt(
    body: Fields, *, command_id: CommandId, pictures: Pictures | None = None
) -> AnthropicCall:
    """Read a request whose prompt alone counts: nothing is to be generated.

    Raises:
        RequestError: As of `parse_messages`.
    """
    whole = {**body, "max_tokens": 1, "stream": False}
    return parse_messages(whole, command_id=command_id, pictures=pictures)


def _top_p(body: Fields) -> float | None:
    top_p = read_number(body, "top_p", 0, 1)
    return 1e-6 if top_p == 0 else top_p  # 0 is taken for "the likeliest alone"


def _stop(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        wrong("stop_sequences", "an array of strings", value)
    return stop_texts("stop_sequences", cast("list[object]", value))


def _enable_thinking(value: object) -> bool | None:
    """`adaptive` lets the model think; the budget has no counterpart in templates."""
    if value is None:
        return None
    kind = _type(cast("Fields", value)) if isinstance(value, dict) else ""
    if kind not in _THINKING:
        wrong("thinking.type", f"one of {', '.join(sorted(_THINKING))}", kind)
    return kind != "disabled"


def _effort(value: object) -> str | None:
    effort = cast("Fields", value).get("effort") if isinstance(value, dict) else None
    # An effort that a newer client names counts for nothing rather than against it.
    return effort if isinstance(effort, str) and effort in _EFFORTS else None


def _type(fields: Fields) -> str:
    """Which of its kinds a block, a tool or a choice is; "" where it does not say."""
    kind = fields.get("type")
    return kind if isinstance(kind, str) else ""


# ---- Messages ------------------------------------------------------------------------------


def _conversation(body: Fields, pictures: Pictures) -> tuple[ChatMessage, ...]:
    """All turns, with the system's texts as one message at the front, where templates have it."""
    instructions = [_text_of(body.get("system"), "system")]
    turns: list[ChatMessage] = []
    for index, item in enumerate(listed_messages(body.get("messages"))):
        place = f"messages[{index}]"
        if not isinstance(item, dict):
            wrong(place, "an object", item)
        message = cast("Fields", item)
        match message.get("role"):
            case "system":
                instructions.append(_text_of(message.get("content"), f"{place}.content"))
            case "user":
                turns += _user_turns(message.get("content"), f"{place}.content", pictures)
            case "assistant":
                turns.append(_assistant_turn(message.get("content"), f"{place}.content"))
            case role:
                wrong(f"{place}.role", "user, assistant or system", role)
    system = "\n\n".join(text for text in instructions if text)
    return (*((ChatMessage(role="system", content=system),) if system else ()), *turns)


def _blocks(value: object, place: str) -> list[Fields]:
    """Content as blocks; a string is one block of text."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list):
        wrong(place, "a string or an array of blocks", value)
    blocks: list[Fields] = []
    for index, block in enumerate(cast("list[object]", value)):
        if not isinstance(block, dict):
            wrong(f"{place}[{index}]", "an object with a `type`", block)
        blocks.append(cast("Fields", block))
    return blocks


def _text_of(value: object, place: str) -> str:
    """Text and nothing else."""
    if value is None:
        return ""
    blocks = _blocks(value, place)
    return "\n".join(_text(block, f"{place}[{index}]") for index, block in enumerate(blocks))


def _text(block: Fields, place: str) -> str:
    kind = _type(block)
    if kind in {"image", "document"}:
        unsupported(
            place,
            f"is {'an image' if kind == 'image' else 'a document'}, and here only text is read",
            "Put images into a user's turn, and send the text of documents.",
        )
    text = block.get("text")
    if kind != "text" or not isinstance(text, str):
        wrong(place, "a block of type text", text if kind == "text" else block.get("type"))
    return text


def _add(said: ContentWriter, block: Fields, place: str, pictures: Pictures) -> None:
    """Add what a user, or a tool, says or shows."""
    if _type(block) == "image":
        said.add_image(_image(block, place, pictures))
    else:
        said.add_text(_text(block, place))


def _image(block: Fields, place: str, pictures: Pictures) -> TaskImage:
    found: object = block.get("source")
    source: Fields = cast("Fields", found) if isinstance(found, dict) else {}
    kind = _type(source)
    if kind == "base64":
        return pictures.in_base64(source.get("data"), place)
    if kind == "file":
        pictures.refuse_file(place)
    if kind != "url":
        pictures.check_sight(place)
        wrong(f"{place}.source.type", "base64 or url", source.get("type"))
    return pictures.at_url(source.get("url"), place)


def _user_turns(value: object, place: str, pictures: Pictures) -> list[ChatMessage]:
    """Results of tools are turns of their own, before the user's words."""
    results: list[ChatMessage] = []
    said = ContentWriter()
    for index, block in enumerate(_blocks(value, place)):
        at = f"{place}[{index}]"
        if _type(block) == "tool_result":
            results.append(_tool_result(block, at, pictures))
        else:
            _add(said, block, at, pictures)
    content = said.content()
    if not said.is_empty or not results:
        results.append(ChatMessage(role="user", content=content.text, images=content.images))
    return results


def _tool_result(block: Fields, place: str, pictures: Pictures) -> ChatMessage:
    call_id = short_name(block.get("tool_use_id"), f"{place}.tool_use_id")
    told = ContentWriter()
    if block.get("is_error") is True:
        told.add_text(_FAILED, is_whole=False)
    content = block.get("content")
    blocks = [] if content is None else _blocks(content, f"{place}.content")
    for index, item in enumerate(blocks):
        _add(told, item, f"{place}.content[{index}]", pictures)
    text, images = told.content()
    return ChatMessage(role="tool", content=text, images=images, tool_call_id=call_id)


def _assistant_turn(value: object, place: str) -> ChatMessage:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for index, block in enumerate(_blocks(value, place)):
        at = f"{place}[{index}]"
        match _type(block):
            case "thinking":
                thought = block.get("thinking")
                if not isinstance(thought, str):
                    wrong(f"{at}.thinking", "a string", thought)
                thoughts.append(thought)
            case "redacted_thinking":
                pass  # readable by nobody but who wrote it
            case "tool_use":
                calls.append(_tool_use(block, at))
            case _:
                texts.append(_text(block, at))
    return ChatMessage(
        role="assistant",
        content="\n".join(texts),
        reasoning="\n".join(thoughts) or None,
        tool_calls=tuple(calls),
    )


def _tool_use(block: Fields, place: str) -> ToolCall:
    arguments = block.get("input")
    if arguments is not None and not isinstance(arguments, dict):
        wrong(f"{place}.input", "an object", arguments)
    return ToolCall(
        id=short_name(block.get("id"), f"{place}.id"),
        name=short_name(block.get("name"), f"{place}.name"),
        arguments=json.dumps(arguments or {}, ensure_ascii=False),
    )


# ---- Tools ---------------------------------------------------------------------------------


def _tools(value: object) -> tuple[ToolDefinition, ...]:
    return tuple(starmap(_tool, listed_tools(value)))


def _tool(tool: Fields, place: str) -> ToolDefinition:
    if _type(tool) not in {"", "custom"}:
        unsupported(
            f"{place}.type",
            "is a tool that its own service runs, and nothing here does",
            "Offer tools of your own, with `name` and `input_schema`.",
        )
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        wrong(f"{place}.input_schema", "a JSON schema", schema)
    description = tool.get("description")
    return ToolDefinition(
        name=short_name(tool.get("name"), f"{place}.name"),
        description=description if isinstance(description, str) else "",
        parameters=cast("dict[str, Any]", schema),
    )


def _tool_choice(value: object, tools: tuple[ToolDefinition, ...]) -> str:
    if value is None:
        return "auto"
    choice: Fields = cast("Fields", value) if isinstance(value, dict) else {}
    kind = _type(choice)
    if kind == "any" and tools:
        return "required"
    if kind == "tool":
        name = choice.get("name")
        if not any(tool.name == name for tool in tools):
            refuse(
                "tool_choice.name",
                "names a tool that `tools` does not offer",
                "Name one of the tools in `tools`.",
            )
        return f"={name}"
    if kind not in {"auto", "none"}:
        wrong("tool_choice.type", "auto, none, tool, or any with `tools`", choice.get("type"))
    return kind


def _parallel(choice: object) -> bool | None:
    if not isinstance(choice, dict):
        return None
    is_disabled = read_flag(cast("Fields", choice), "disable_parallel_tool_use")
    return None if is_disabled is None else not is_disabled
