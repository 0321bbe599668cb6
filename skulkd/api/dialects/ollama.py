"""Ollama's chat and generate, the way in: a JSON object to a task. Pure.

`options` is a bag that front ends fill with all they know: what tells an engine how to choose the
next token reaches it, what would size or tune a server is of no effect here, where the placement
has decided that, and what would change the answer and cannot be done is refused by name.
"""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import Any, Final, Literal, cast, final

from protocol.ids import CommandId, ModelId
from protocol.tasks import (
    KEEP_ALWAYS,
    MAX_KEEP_S,
    ChatMessage,
    ChatRole,
    ChatTask,
    ResponseFormat,
    Sampling,
    TaskImage,
    ToolCall,
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
    read_number,
    read_text,
    refuse,
    short_name,
    stop_texts,
    unsupported,
    wrong,
)
from skulkd.api.dialects.framing import NDJSON, Framing
from skulkd.api.dialects.ollama_output import Kind, LineAnswer, Lines, LineStream
from skulkd.api.dialects.openai_chat import MAX_TOP_LOGPROBS
from skulkd.api.dialects.pictures import Pictures

_ROLES: Final[dict[str, ChatRole]] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_SHOWN_TO: Final = frozenset({"user", "tool"})
_EFFORTS: Final = ("low", "medium", "high")
_NEUTRAL: Final[dict[str, tuple[float, ...]]] = {
    "mirostat": (0,),
    "tfs_z": (0, 1),
    "typical_p": (0, 1),
}
"""Ways of sampling that no engine here has, and the values by which clients switch them off."""
_MAX_DURATION_CHARS: Final = 32
_DURATION: Final = re.compile(r"-?(?:\d+(?:\.\d+)?|(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+)")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)?")
_UNIT_S: Final = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0,
}  # fmt: skip


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaCall:
    """A task, and how its answer is wanted; a `ChatCall`."""

    task: ChatTask
    kind: Kind

    @property
    def dialect(self) -> Literal["ollama"]:
        """Whose errors it ends with."""
        return "ollama"

    @property
    def framing(self) -> Framing:
        """Lines of JSON."""
        return NDJSON

    @property
    def refuses_by_status(self) -> bool:
        """Clients look at the status before they read a stream."""
        return True

    @property
    def shrinks_to_window(self) -> bool:
        """Front ends ask for more than there is room for, and mean all of it."""
        return True

    @property
    def wants_thinking(self) -> bool:
        """A model that cannot think is to refuse it."""
        return self.task.enable_thinking is True

    def stream(self, created_s: int) -> LineStream:
        """Make what turns frames into lines."""
        return LineStream(self._lines(created_s), hides_thinking=self._hides_thinking)

    def answer(self, created_s: int) -> LineAnswer:
        """Make what gathers frames into a whole answer."""
        return LineAnswer(self._lines(created_s), hides_thinking=self._hides_thinking)

    def _lines(self, created_s: int) -> Lines:
        return Lines(self.kind, self.task.model_id, created_s)

    @property
    def _hides_thinking(self) -> bool:
        return self.task.enable_thinking is False


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class IdleCall:
    """A request without anything to answer: is the model loaded, or should it no longer be?"""

    model_id: ModelId
    keep_s: int | None
    """See `protocol.tasks.KeepSeconds`; 0 unloads it."""


def parse_idle(body: Fields, field: Literal["messages", "prompt", "input"]) -> IdleCall | None:
    """Read a request that loads or unloads a model; None for one that wants an answer.

    Args:
        body: The request.
        field: What would say something to the model.

    Raises:
        RequestError: As of `parse_chat`.
    """
    if body.get(field) not in (None, [], "") or body.get("images"):
        return None
    return IdleCall(model_id=model_id_of(body), keep_s=read_keep(body.get("keep_alive")))


def parse_chat(
    body: Fields, *, command_id: CommandId, pictures: Pictures | None = None
) -> OllamaCall:
    """Read a request of `/api/chat`.

    Args:
        body: The request.
        command_id: Its id.
        pictures: Reads its images; without one, those that it holds itself.

    Raises:
        RequestError: `request.invalid`, `request.unsupported_field` or, for what cannot be the id
            of any model, `request.model_not_found`; `details["param"]` names the field.
    """
    messages = listed_messages(body.get("messages"))
    shown = pictures or Pictures()
    return _call(
        "chat",
        body,
        command_id,
        _linked(_message(item, f"messages[{index}]", shown) for index, item in enumerate(messages)),
    )


def parse_generate(
    body: Fields, *, command_id: CommandId, pictures: Pictures | None = None
) -> OllamaCall:
    """Read a request of `/api/generate`: one turn, or with `raw` a text to go on with as it is.

    Raises:
        RequestError: As of `parse_chat`.
    """
    _refuse_other_prompts(body)
    images = _images(body.get("images"), "images", pictures or Pictures())
    prompt = read_text(body, "prompt")
    if not prompt:
        wrong("prompt", "a string", prompt)
    system = read_text(body, "system")
    if read_flag(body, "raw"):
        if system:
            unsupported("system", "has no place in a `raw` prompt", "Write it into the prompt.")
        if body.get("format"):
            unsupported("format", "is served for turns, not for a `raw` prompt", "Leave one out.")
        if images:
            unsupported("images", "are shown in turns, not in a `raw` prompt", "Leave one out.")
        return _call("generate", body, command_id, prompt=prompt)
    turns = [ChatMessage(role="user", content=prompt, images=images)]
    if system:
        turns.insert(0, ChatMessage(role="system", content=system))
    return _call("generate", body, command_id, tuple(turns))


def _call(
    kind: Kind,
    body: Fields,
    command_id: CommandId,
    messages: tuple[ChatMessage, ...] = (),
    prompt: str | None = None,
) -> OllamaCall:
    options = _options(body.get("options"))
    stream = read_flag(body, "stream")
    enable_thinking, effort = _think(body.get("think"))
    task = ChatTask(
        command_id=command_id,
        model_id=model_id_of(body),
        messages=messages,
        prompt=prompt,
        sampling=_sampling(options),
        max_tokens=_max_tokens(options),
        stop=_stop(options.get("options.stop")),
        logprobs=_logprobs(body),
        tools=tuple(starmap(function_tool, listed_tools(body.get("tools"))))
        if kind == "chat"
        else (),
        response_format=_format(body.get("format")),
        enable_thinking=enable_thinking,
        reasoning_effort=effort,
        stream=stream is not False,
        keep_s=read_keep(body.get("keep_alive")),
    )
    return OllamaCall(task=task, kind=kind)


# ---- Scalars -------------------------------------------------------------------------------


def _options(value: object) -> Fields:
    """Read the options, each under the name by which a refusal tells it."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        wrong("options", "an object", value)
    options = {f"options.{name}": item for name, item in cast("Fields", value).items()}
    for name, neutral in _NEUTRAL.items():
        wanted = read_number(options, f"options.{name}", -1, 1000)
        if wanted is not None and wanted not in neutral:
            unsupported(
                f"options.{name}", "is a way of sampling that is not served", "Leave it out."
            )
    return options


def _sampling(options: Fields) -> Sampling:
    top_p = read_number(options, "options.top_p", 0, 1)
    seed = read_integer(options, "options.seed", -(1 << 63), (1 << 63) - 1)
    penalty = read_number(options, "options.repeat_penalty", 0, 10)
    last_n = read_integer(options, "options.repeat_last_n", -1, 1 << 20)
    top_k = read_integer(options, "options.top_k", -1, 1 << 20)
    return Sampling(
        temperature=read_number(options, "options.temperature", 0, 100),
        top_p=1e-6 if top_p == 0 else top_p,  # 0 is taken for "the likeliest alone"
        top_k=0 if top_k == -1 else top_k,
        min_p=read_number(options, "options.min_p", 0, 1),
        seed=None if seed is None or seed == -1 else seed & 0xFFFFFFFF,
        frequency_penalty=read_number(options, "options.frequency_penalty", -2, 2),
        presence_penalty=read_number(options, "options.presence_penalty", -2, 2),
        repetition_penalty=penalty or None,  # 0 is taken for "none"
        repetition_context_size=None if last_n == -1 else last_n,  # -1 is the whole window
    )


def _max_tokens(options: Fields) -> int | None:
    """What is not above 0 asks for as much as there is room for."""
    wanted = read_integer(options, "options.num_predict", -MAX_TOKENS, MAX_TOKENS)
    return None if wanted is None or wanted <= 0 else wanted


def _stop(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    listed = cast("list[object]", value) if isinstance(value, list) else [value]
    return stop_texts("options.stop", listed)


def _logprobs(body: Fields) -> int | None:
    alternatives = read_integer(body, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    return (alternatives or 0) if read_flag(body, "logprobs") else None


def _think(value: object) -> tuple[bool | None, str | None]:
    """Read whether the model is to think, and how much."""
    if value is None or isinstance(value, bool):
        return value, None
    if value not in _EFFORTS:
        wrong("think", f"a boolean, or one of {', '.join(_EFFORTS)}", value)
    return True, cast("str", value)


def _format(value: object) -> ResponseFormat | None:
    if value is None or (isinstance(value, str) and not value):
        return None
    if value == "json":
        return ResponseFormat(kind="json_object")
    if not isinstance(value, dict):
        wrong("format", "json or a JSON schema", value)
    return ResponseFormat(kind="json_schema", json_schema=cast("dict[str, Any]", value))


def read_keep(keep_alive: object) -> int | None:
    """Read how long a model is to stay loaded: seconds, or a duration; below 0 is without an end.

    Returns:
        Whole seconds, rounded up, see `protocol.tasks.KeepSeconds`; None where nothing is said.

    Raises:
        RequestError: `request.invalid`.
    """
    if keep_alive is None:
        return None
    if isinstance(keep_alive, int | float) and not isinstance(keep_alive, bool):
        return _whole_s(keep_alive)
    if (
        not isinstance(keep_alive, str)
        or len(keep_alive) > _MAX_DURATION_CHARS
        or _DURATION.fullmatch(keep_alive) is None
    ):
        wrong("keep_alive", "a number of seconds or a duration such as 5m", keep_alive)
    seconds = sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(keep_alive))
    return _whole_s(-seconds if keep_alive.startswith("-") else seconds)


def _whole_s(seconds: float) -> int:
    return KEEP_ALWAYS if seconds < 0 else math.ceil(min(seconds, MAX_KEEP_S))


# ---- Prompts -------------------------------------------------------------------------------


def _refuse_other_prompts(body: Fields) -> None:
    if read_text(body, "template"):
        unsupported(
            "template", "cannot be set: the model has its own", "Render it yourself, with `raw`."
        )
    if read_text(body, "suffix"):
        unsupported("suffix", "is not served: nothing is filled in", "Leave it out.")
    if body.get("context"):
        unsupported(
            "context",
            "is not served: answers carry none, so this one is another server's",
            "Send the turns so far to /api/chat.",
        )


def _images(value: object, place: str, pictures: Pictures) -> tuple[TaskImage, ...]:
    """Read the images of a turn; they stand before its text."""
    if value is None or value == []:
        return ()
    if not isinstance(value, list):
        wrong(place, "an array", value)
    listed = cast("list[object]", value)
    return tuple(
        pictures.in_base64_or_url(item, f"{place}[{index}]") for index, item in enumerate(listed)
    )


def _message(value: object, place: str, pictures: Pictures) -> ChatMessage:
    if not isinstance(value, dict):
        wrong(place, "an object", value)
    message = cast("Fields", value)
    named = message.get("role")
    role = _ROLES.get(named) if isinstance(named, str) else None
    if role is None:
        wrong(f"{place}.role", f"one of {', '.join(_ROLES)}", named)
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        wrong(f"{place}.content", "a string", content)
    images = _images(message.get("images"), f"{place}.images", pictures)
    if images and role not in _SHOWN_TO:
        refuse(f"{place}.images", f"are in a turn of the {role}", "Put them into a user's turn.")
    thinking = message.get("thinking")
    name = message.get("tool_name")
    call_id = message.get("tool_call_id")
    return ChatMessage(
        role=role,
        content=content or "",
        images=images,
        reasoning=thinking if isinstance(thinking, str) and thinking else None,
        tool_calls=_tool_calls(message.get("tool_calls"), place) if role == "assistant" else (),
        tool_call_id=call_id if isinstance(call_id, str) and call_id else None,
        name=name if isinstance(name, str) and name else None,
    )


def _linked(messages: Iterable[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Tie results of tools to their calls by ids: clients leave them out, some templates want them.

    A result is that of the call left that has its id, else of the first that has its name, else of
    the first.
    """
    linked: list[ChatMessage] = []
    waiting: list[ToolCall] = []
    n_calls = 0
    for message in messages:
        changes: dict[str, Any] = {}
        if message.tool_calls:
            numbered = enumerate(message.tool_calls, start=n_calls)
            waiting = [_with_id(call, number) for number, call in numbered]
            n_calls += len(waiting)
            changes = {"tool_calls": tuple(waiting)}
        elif message.role == "tool" and waiting:
            answered = min(waiting, key=partial(_distance, message))
            waiting.remove(answered)
            changes = {"tool_call_id": answered.id}
        linked.append(message.model_copy(update=changes) if changes else message)
    return tuple(linked)


def _distance(result: ChatMessage, call: ToolCall) -> int:
    if result.tool_call_id == call.id:
        return 0
    return 1 if result.name == call.name else 2


def _with_id(call: ToolCall, number: int) -> ToolCall:
    # Nine letters and digits: the only form that the strictest templates take.
    return call if call.id else call.model_copy(update={"id": f"call{number:05d}"})


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
    call: Fields = cast("Fields", value) if isinstance(value, dict) else {}
    function: object = call.get("function")
    if not isinstance(function, dict):
        wrong(f"{place}.function", "an object", function)
    named = cast("Fields", function)
    arguments = named.get("arguments")
    if arguments is not None and not isinstance(arguments, dict):
        wrong(f"{place}.function.arguments", "an object", arguments)
    call_id = call.get("id")
    return ToolCall(
        id=call_id if isinstance(call_id, str) else "",
        name=short_name(named.get("name"), f"{place}.function.name"),
        arguments=json.dumps(arguments or {}, ensure_ascii=False),
    )
