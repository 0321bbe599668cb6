"""Chat templates: a conversation as the text that a model reads. In the runner child only.

A template is a program that came with the model's files. It runs in a sandbox that lets it change
nothing and reach nothing but what it is given.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NoReturn, cast, final

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from protocol.errors import EngineError, RequestError
from protocol.tasks import ChatMessage, ChatTask, ToolDefinition

MAX_TEMPLATE_CHARS: Final = 1 << 20


@final
class ChatTemplate:
    """One model's template.

    Args:
        source: Its text.
        special_tokens: What `bos_token` and the like stand for in it.
        epoch_s: The wall time that a template is told, which the caller reads.

    Raises:
        EngineError: `engine.unsupported` when the template cannot be read.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], epoch_s: float) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise EngineError(
                "engine.unsupported",
                f"the chat template has {len(source)} characters, "
                f"{MAX_TEMPLATE_CHARS} are possible",
            )
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
        )
        environment.filters["tojson"] = _tojson  # its own one writes JSON for HTML
        known = cast("dict[str, object]", environment.globals)
        known.update(special_tokens)
        known["raise_exception"] = _refuse
        known["strftime_now"] = partial(_date, epoch_s)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise EngineError(
                "engine.unsupported",
                f"the model's chat template cannot be read: {error}",
                remediation="Report it to whoever made the model's files.",
            ) from error
        self.source = source

    def render(self, task: ChatTask) -> str:
        """Write a task's conversation as the model is to read it, up to where it answers.

        Raises:
            RequestError: `request.invalid` when the template refuses the conversation.
        """
        arguments: dict[str, Any] = {}
        if task.enable_thinking is not None:
            arguments["enable_thinking"] = task.enable_thinking
        if task.reasoning_effort is not None:
            arguments["reasoning_effort"] = task.reasoning_effort
        try:
            return self._template.render(
                messages=[_message(message) for message in task.messages],
                tools=[_tool(tool) for tool in _offered(task)] or None,
                add_generation_prompt=True,
                **arguments,
            )
        except Exception as error:
            raise RequestError(
                "request.invalid",
                f"the model's chat template refuses the conversation: {error}"[:1000],
                remediation="Change what it names: the order of the roles, or a tool.",
            ) from error


def _message(message: ChatMessage) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        body["reasoning_content"] = message.reasoning
    if message.tool_calls:
        body["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        body["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        body["name"] = message.name
    return body


def _arguments(text: str) -> object:
    """Templates write arguments as JSON themselves, so they are given values, where they can be."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _offered(task: ChatTask) -> tuple[ToolDefinition, ...]:
    if task.tool_choice == "none":
        return ()
    if task.tool_choice.startswith("="):
        return tuple(tool for tool in task.tools if tool.name == task.tool_choice[1:])
    return task.tools


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}


def _date(epoch_s: float, form: object) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime(str(form))


def _tojson(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: object) -> NoReturn:
    raise TemplateError(str(message))
