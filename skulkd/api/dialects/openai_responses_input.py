"""What a request for a response goes on from: a list of items, as turns of a conversation. Pure.

Items are finer than turns: what an assistant thought, said and called comes as one item each, and
is one turn to a model. Nothing is kept between requests here, so a client hands all of it back.
"""

import json
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, Final, cast, final

from protocol.tasks import ChatMessage, ToolCall
from skulkd.api.dialects.fields import (
    MAX_MESSAGES,
    Fields,
    refuse,
    short_name,
    unsupported,
    wrong,
)
from skulkd.api.dialects.openai_images import image_part
from skulkd.api.dialects.openai_responses_output import SEAL
from skulkd.api.dialects.pictures import Content, ContentWriter, Pictures
from skulkd.api.dialects.turns import joined_content

_TEXT_PARTS: Final = frozenset({"input_text", "output_text", "text", "summary_text"})
_PASSED_OVER: Final = frozenset({
    "code_interpreter_call",
    "computer_call",
    "computer_call_output",
    "file_search_call",
    "image_generation_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
})  # fmt: skip
"""What tools of another service did in earlier turns: the assistant's words on it follow."""


def offered_name(namespace: str, name: str) -> str:
    """Give the name that a function of a namespace is offered to the model by."""
    return f"{namespace.removesuffix('__')}__{name}"


@final
class Conversation:
    """Gathers items into turns, with the system's texts as one message at the front.

    Args:
        instructions: Of the request; "" for none.
        on_passed_over: Told the type of an item that no model here could read.
        pictures: Reads its images.
    """

    def __init__(
        self, instructions: str, on_passed_over: Callable[[str], None], pictures: Pictures
    ) -> None:
        self._system = [instructions]
        self._pictures = pictures
        self._on_passed_over = on_passed_over
        self._turns: list[ChatMessage] = []
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._calls: list[ToolCall] = []

    def read(self, value: object) -> tuple[ChatMessage, ...]:
        """Read `input` and give all turns.

        Raises:
            RequestError: `request.invalid`, `request.unsupported_field`.
        """
        if isinstance(value, str):
            self._turns.append(ChatMessage(role="user", content=value))
        else:
            self._read_items(value)
        self._end_turn()
        system = "\n\n".join(text for text in self._system if text)
        if not self._turns and not system:
            refuse("input", "holds nothing that a model reads", "Send at least one message.")
        told = (ChatMessage(role="system", content=system),) if system else ()
        return (*told, *_joined(self._turns))

    def _read_items(self, value: object) -> None:
        if not isinstance(value, list):
            wrong("input", "a string or an array of items", value)
        items = cast("list[object]", value)
        if len(items) > MAX_MESSAGES:
            refuse(
                "input", f"has {len(items)} items, at most {MAX_MESSAGES} are read", "Drop some."
            )
        for index, item in enumerate(items):
            if not isinstance(item, dict):
                wrong(f"input[{index}]", "an object", item)
            self._read_item(cast("Fields", item), f"input[{index}]")

    def _read_item(self, item: Fields, place: str) -> None:
        match item.get("type") or "message":
            case "message":
                self._message(item, place)
            case "reasoning":
                self._thoughts += _thoughts(item, place)
            case "function_call":
                self._calls.append(_function_call(item, place))
            case "custom_tool_call":
                self._calls.append(_custom_call(item, place))
            case "function_call_output" | "custom_tool_call_output":
                self._result(item, place)
            case "item_reference":
                unsupported(
                    place,
                    "refers to an item of an earlier response, and none is kept here: clients "
                    "send the item itself where `store` is false",
                    "Set `store` to false in the client, or send the item itself.",
                )
            case str() as kind if kind in _PASSED_OVER:
                self._on_passed_over(kind)
            case _:
                unsupported(
                    f"{place}.type",
                    "is not a kind of item that is served",
                    "Send messages, reasoning, and calls of functions with their outputs.",
                )

    def _message(self, item: Fields, place: str) -> None:
        at = f"{place}.content"
        said = _content(item.get("content"), at, self._pictures)
        match item.get("role"):
            case "system" | "developer":
                self._system.append(_text_alone(said, at))
            case "user":
                self._end_turn()
                self._turns.append(ChatMessage(role="user", content=said.text, images=said.images))
            case "assistant":
                self._texts.append(_text_alone(said, at))
            case role:
                wrong(f"{place}.role", "user, assistant, system or developer", role)

    def _result(self, item: Fields, place: str) -> None:
        self._end_turn()
        call_id = short_name(item.get("call_id"), f"{place}.call_id")
        told = _content(item.get("output"), f"{place}.output", self._pictures)
        self._turns.append(
            ChatMessage(role="tool", content=told.text, images=told.images, tool_call_id=call_id)
        )

    def _end_turn(self) -> None:
        """Make one turn of what the assistant did; thoughts that led to nothing are none."""
        texts, thoughts, calls = self._texts, self._thoughts, self._calls
        self._texts, self._thoughts, self._calls = [], [], []
        if texts or calls:
            turn = ChatMessage(
                role="assistant",
                content="\n".join(texts),
                reasoning="\n".join(thoughts) or None,
                tool_calls=tuple(calls),
            )
            self._turns.append(turn)


def _joined(turns: list[ChatMessage]) -> Iterator[ChatMessage]:
    """Make one turn of what a user says in one go: some templates demand that turns alternate."""
    for is_user, group in groupby(turns, key=lambda turn: turn.role == "user"):
        if is_user:
            said = list(group)
            yield said[0].changed(joined_content(said)) if len(said) > 1 else said[0]
        else:
            yield from group


def _content(value: object, place: str, pictures: Pictures) -> Content:
    if isinstance(value, str):
        return Content(value)
    if not isinstance(value, list):
        wrong(place, "a string or an array of parts", value)
    parts = ContentWriter()
    for index, part in enumerate(cast("list[object]", value)):
        _add_part(parts, part, f"{place}[{index}]", pictures)
    return parts.content()


def _add_part(parts: ContentWriter, value: object, place: str, pictures: Pictures) -> None:
    if not isinstance(value, dict):
        wrong(place, "an object with a `type`", value)
    part = cast("Fields", value)
    match part.get("type"):
        case "input_image" | "image_url" | "computer_screenshot":
            parts.add_image(image_part(part, place, pictures))
            return
        case "input_file" | "input_audio":
            unsupported(place, "is a file, and the model takes text here", "Send its text.")
        case "refusal":
            text = part.get("refusal")
        case str() as kind if kind in _TEXT_PARTS:
            text = part.get("text")
        case _:
            unsupported(f"{place}.type", "is not a kind of part that is served", "Send text parts.")
    if not isinstance(text, str):
        wrong(f"{place}.text", "a string", text)
    parts.add_text(text)


def _text_alone(said: Content, place: str) -> str:
    if said.images:
        refuse(place, "has an image in a turn that is no user's", "Put it into a user's turn.")
    return said.text


def _thoughts(item: Fields, place: str) -> list[str]:
    """Read reasoning where it can be read: whole, or sealed by this dialect, or summed up."""
    whole = _texts(item.get("content"), f"{place}.content")
    if whole:
        return whole
    sealed = item.get("encrypted_content")
    if isinstance(sealed, str) and sealed.startswith(SEAL):
        return [sealed.removeprefix(SEAL)]
    return _texts(item.get("summary"), f"{place}.summary")


def _texts(value: object, place: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list):
        wrong(place, "an array of parts", value)
    texts: list[str] = []
    for index, part in enumerate(cast("list[object]", value)):
        text = cast("Fields", part).get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            wrong(f"{place}[{index}].text", "a string", text)
        texts.append(text)
    return texts


def _function_call(item: Fields, place: str) -> ToolCall:
    arguments = item.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        wrong(f"{place}.arguments", "a string of JSON", arguments)
    name = short_name(item.get("name"), f"{place}.name")
    namespace = item.get("namespace")
    if isinstance(namespace, str) and namespace:
        name = short_name(offered_name(namespace, name), f"{place}.namespace")
    return ToolCall(id=_call_id(item, place), name=name, arguments=arguments or "{}")


def _custom_call(item: Fields, place: str) -> ToolCall:
    """Read a call that takes free text; no such tool is offered here, but one may have been."""
    text = item.get("input")
    if not isinstance(text, str):
        wrong(f"{place}.input", "a string", text)
    arguments: dict[str, Any] = {"input": text}
    return ToolCall(
        id=_call_id(item, place),
        name=short_name(item.get("name"), f"{place}.name"),
        arguments=json.dumps(arguments, ensure_ascii=False),
    )


def _call_id(item: Fields, place: str) -> str:
    return short_name(item.get("call_id"), f"{place}.call_id")
