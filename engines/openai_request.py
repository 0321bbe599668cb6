"""A task as the body of an OpenAI-style chat request, in llama-server's dialect. Pure.

Only the fields named here reach an engine. llama-server's own extensions (grammars as text, slot
numbers, LoRA scales, file paths) cannot be set by a client.
"""

import json
from typing import Final

from pydantic_core import PydanticSerializationError, to_json

from protocol.tasks import ChatMessage, ChatTask, ResponseFormat, Sampling, ToolDefinition

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]

_REPEATED_BYTES: Final = 256 * 1024

_DUMP: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_NO_SAMPLING: Final = Sampling()
_SAMPLING_NAMES: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repeat_penalty",
    "repetition_context_size": "repeat_last_n",
}


def chat_body(task: ChatTask, *, is_stream: bool) -> bytes:
    """Write the body of `POST /v1/chat/completions` for a task."""
    tools, tool_choice = _offered_tools(task)
    body: dict[str, Json] = {"messages": [_message(message) for message in task.messages]}
    body.update(_generation(task, is_stream=is_stream))
    if task.logprobs is not None:
        # llama-server takes 0 alternatives for "no logprobs"; the decoder drops the extra one.
        body["logprobs"] = True
        body["top_logprobs"] = max(1, task.logprobs)
    if tools:
        body["tools"] = tools
        body["tool_choice"] = tool_choice
        if task.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = task.parallel_tool_calls
    if task.response_format is not None:
        body["response_format"] = _response_format(task.response_format)
    template = _template_arguments(task)
    if template:
        body["chat_template_kwargs"] = template
    return _told_in_full(_encode(body), task)


def completion_body(task: ChatTask, *, is_stream: bool) -> bytes:
    """Write the body of `POST /v1/completions` for a task that has a text to go on with."""
    body: dict[str, Json] = {"prompt": task.prompt}
    body.update(_generation(task, is_stream=is_stream))
    if task.logprobs is not None:
        body["logprobs"] = max(1, task.logprobs)  # as above
    return _told_in_full(_encode(body), task)


def _told_in_full(body: bytes, task: ChatTask) -> bytes:
    """Have the engine say which stop string has ended the answer.

    It says so among all that it knows of the request, and repeats the prompt with it: a long one is
    not worth that.
    """
    if not task.stop or len(body) > _REPEATED_BYTES:
        return body
    return body[:-1] + b',"verbose":true}'


def _generation(task: ChatTask, *, is_stream: bool) -> dict[str, Json]:
    """Write what chats and texts have in common."""
    body: dict[str, Json] = {"stream": is_stream, "cache_prompt": True}
    if is_stream:
        body["stream_options"] = {"include_usage": True}
        # The first progress frame says that a slot has taken the task and how long its prompt is;
        # the following ones are the sign of life of a long prefill.
        body["return_progress"] = True
    body.update(_sampling(task.sampling))
    if task.max_tokens is not None:
        body["max_tokens"] = task.max_tokens
    if task.stop:
        body["stop"] = list(task.stop)
    return body


def prompt_body(task: ChatTask) -> bytes:
    """Write the body of `POST /apply-template`: what decides how the prompt is rendered.

    Images are left out: what stands for them in a prompt is no measure of them.
    """
    tools, tool_choice = _offered_tools(task)
    bare = (item.changed({"images": ()}) if item.images else item for item in task.messages)
    body: dict[str, Json] = {"messages": [_message(message) for message in bare]}
    if tools:
        body["tools"] = tools
        body["tool_choice"] = tool_choice
    template = _template_arguments(task)
    if template:
        body["chat_template_kwargs"] = template
    return _encode(body)


def tokenize_body(text: str) -> bytes:
    """Write the body of `POST /tokenize` that counts as the other routes do."""
    return _encode({"content": text, "add_special": True, "parse_special": True})


def embeddings_body(texts: tuple[str, ...]) -> bytes:
    """Write the body of `POST /v1/embeddings`.

    Base64, because numbers written as text take five times the bytes and a hundred times the work.
    """
    return _encode({"input": list(texts), "encoding_format": "base64"})


def rerank_body(query: str, documents: tuple[str, ...]) -> bytes:
    """Write the body of `POST /v1/rerank`."""
    return _encode({"query": query, "documents": list(documents)})


def _encode(body: dict[str, Json]) -> bytes:
    try:
        return to_json(body)
    except PydanticSerializationError:  # half a surrogate pair, which UTF-8 cannot hold
        return _DUMP(body).encode("utf-8", "backslashreplace")


def _message(message: ChatMessage) -> Json:
    body: dict[str, Json] = {"role": message.role, "content": _content(message)}
    if message.reasoning is not None:
        body["reasoning_content"] = message.reasoning
    if message.tool_calls:
        body["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        body["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        body["name"] = message.name
    return body


def _content(message: ChatMessage) -> Json:
    """Write a turn's text; with images, as parts in their order."""
    if not message.images:
        return message.content
    parts: list[Json] = []
    begin = 0
    for image in message.images:
        if image.at > begin:
            parts.append({"type": "text", "text": message.content[begin : image.at]})
        begin = image.at
        url = f"data:{image.media_type};base64,{image.data}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    if begin < len(message.content):
        parts.append({"type": "text", "text": message.content[begin:]})
    return parts


def _sampling(sampling: Sampling) -> dict[str, Json]:
    if sampling is _NO_SAMPLING or sampling == _NO_SAMPLING:
        return {}
    values: dict[str, Json] = sampling.model_dump(exclude_none=True)
    return {_SAMPLING_NAMES[name]: value for name, value in values.items()}


def _offered_tools(task: ChatTask) -> tuple[list[Json], str]:
    """Tools and choice; one named function becomes the only one offered, and required."""
    choice, tools = task.tool_choice, task.tools
    if choice.startswith("="):
        tools = tuple(tool for tool in tools if tool.name == choice[1:])
        choice = "required"
    return [_tool(tool) for tool in tools], choice


def _tool(tool: ToolDefinition) -> Json:
    function: dict[str, Json] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}


def _response_format(wanted: ResponseFormat) -> Json:
    if wanted.kind == "json_object":
        return {"type": "json_object"}
    schema: dict[str, Json] = wanted.json_schema or {}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def _template_arguments(task: ChatTask) -> dict[str, Json]:
    arguments: dict[str, Json] = {}
    if task.enable_thinking is not None:
        arguments["enable_thinking"] = task.enable_thinking
    if task.reasoning_effort is not None:
        arguments["reasoning_effort"] = task.reasoning_effort
    return arguments
