"""OpenAI responses, the way in: a JSON object to a task. Pure.

Agents offer tools of many kinds in one list. Those that the client runs reach the model; those
that only another service could run are left out and named in the log, as a client cannot know
beforehand. Anything else that would change the answer is refused by name.
"""

import json
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, final

from protocol.ids import CommandId
from protocol.tasks import ChatTask, ToolDefinition
from skulkd.api.dialects.fields import (
    MAX_TOKENS,
    MAX_TOOLS,
    Fields,
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
from skulkd.api.dialects.openai_chat import MAX_TOP_LOGPROBS
from skulkd.api.dialects.openai_generation import read_format, read_sampling
from skulkd.api.dialects.openai_responses_input import Conversation, offered_name
from skulkd.api.dialects.openai_responses_output import (
    ResponseAnswer,
    ResponseHead,
    ResponseStream,
)
from skulkd.api.dialects.pictures import Pictures

_EFFORTS: Final = frozenset({"none", "minimal", "low", "medium", "high", "xhigh"})
_SUMMARIES: Final = frozenset({"auto", "concise", "detailed"})
_MAX_METADATA: Final = 16
_MAX_METADATA_CHARS: Final = 512
_SHOWN_CHARS: Final = 64
_REPEATED_CHARS: Final = 64 << 10
"""Of instructions, tools and a schema that a response repeats, as a stream does three times."""
_KEPT_NOWHERE: Final = {
    "previous_response_id": "Send the whole conversation as `input`, with each item of `output`.",
    "conversation": "Send the whole conversation as `input`.",
    "prompt": "Send the text itself, as `instructions` and `input`.",
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesCall:
    """A task, and how its answer is wanted; a `ChatCall`."""

    task: ChatTask
    settings: Fields
    """What the response repeats of its request."""
    namespaces: dict[str, tuple[str, str]]
    """See `ResponseHead`."""
    seals_reasoning: bool
    """See `ResponseHead`."""
    left_out: tuple[str, ...]
    """Tools that nothing here runs, and items of such; for the log."""

    @property
    def dialect(self) -> Literal["openai"]:
        """Whose errors it ends with."""
        return "openai"

    @property
    def framing(self) -> Framing:
        """Events with names."""
        return SSE

    @property
    def refuses_by_status(self) -> bool:
        """A failure is the first event, as this dialect's clients look for it."""
        return False

    @property
    def shrinks_to_window(self) -> bool:
        """Agents ask for the budget of models with far larger windows."""
        return True

    def stream(self, created_s: int) -> ResponseStream:
        """Make what turns frames into events."""
        return ResponseStream(self._head(created_s))

    def answer(self, created_s: int) -> ResponseAnswer:
        """Make what gathers frames into a whole response."""
        return ResponseAnswer(self._head(created_s))

    def _head(self, created_s: int) -> ResponseHead:
        return ResponseHead(
            command_id=self.task.command_id,
            model_id=self.task.model_id,
            created_s=created_s,
            settings=self.settings,
            namespaces=self.namespaces,
            seals_reasoning=self.seals_reasoning,
            shows_summaries=self.settings["reasoning"]["summary"] is not None,
        )


def parse_responses(
    body: Fields, *, command_id: CommandId, pictures: Pictures | None = None
) -> ResponsesCall:
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
    offer = _Offer(body)
    include = _include(body.get("include"))
    conversation = Conversation(
        read_text(body, "instructions") or "", offer.left_out.append, pictures or Pictures()
    )
    task = ChatTask(
        command_id=command_id,
        model_id=model_id,
        messages=conversation.read(body.get("input")),
        sampling=read_sampling(body),
        max_tokens=read_integer(body, "max_output_tokens", 1, MAX_TOKENS),
        logprobs=_logprobs(body, include),
        tools=tuple(offer.tools.values()),
        tool_choice=offer.choice,
        parallel_tool_calls=read_flag(body, "parallel_tool_calls"),
        response_format=read_format(_object(body, "text").get("format"), "text.format"),
        enable_thinking=read_flag(body, "enable_thinking"),
        reasoning_effort=_effort(body),
        stream=read_flag(body, "stream") or False,
    )
    return ResponsesCall(
        task=task,
        settings=_settings(body, task),
        namespaces=offer.namespaces,
        seals_reasoning="reasoning.encrypted_content" in include,
        left_out=tuple(offer.left_out),
    )


def _refuse_unsupported(body: Fields) -> None:
    for name, remedy in _KEPT_NOWHERE.items():
        if body.get(name):
            unsupported(name, "names something that was kept, and nothing is kept here", remedy)
    if read_flag(body, "background"):
        unsupported("background", "is not served", "Leave it out, and read the answer or stream.")


# ---- Scalars -------------------------------------------------------------------------------


def _object(body: Fields, name: str) -> Fields:
    """Read an object; one that is absent is empty."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        wrong(name, "an object", value)
    return cast("Fields", value)


def _effort(body: Fields) -> str | None:
    effort = _object(body, "reasoning").get("effort")
    # An effort that a newer client names counts for nothing rather than against it.
    return effort if isinstance(effort, str) and effort in _EFFORTS else None


def _include(value: object) -> frozenset[str]:
    if value is None:
        return frozenset()
    if not isinstance(value, list):
        wrong("include", "an array of strings", value)
    return frozenset(item for item in cast("list[object]", value) if isinstance(item, str))


def _logprobs(body: Fields, include: frozenset[str]) -> int | None:
    alternatives = read_integer(body, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    is_wanted = alternatives or "message.output_text.logprobs" in include
    return (alternatives or 0) if is_wanted else None


def _metadata(body: Fields) -> Fields:
    metadata = _object(body, "metadata")
    if len(metadata) > _MAX_METADATA:
        refuse("metadata", f"has {len(metadata)} keys", f"Send at most {_MAX_METADATA}.")
    for key, value in metadata.items():
        if len(key) > _MAX_METADATA_CHARS:
            refuse("metadata", "has a key that is too long", f"{_MAX_METADATA_CHARS} at most.")
        if not isinstance(value, str) or len(value) > _MAX_METADATA_CHARS:
            wrong("metadata", f"strings of at most {_MAX_METADATA_CHARS} characters", value)
    return metadata


# ---- Tools ---------------------------------------------------------------------------------


@final
class _Offer:
    """The functions that a request offers to the model."""

    def __init__(self, body: Fields) -> None:
        self.tools: dict[str, ToolDefinition] = {}
        self.namespaces: dict[str, tuple[str, str]] = {}
        self.left_out: list[str] = []
        self._n_read = 0
        for tool, place in listed_tools(body.get("tools")):
            self._add(tool, place)
        self.choice = self._choice(body.get("tool_choice"))

    def _add(self, tool: Fields, place: str) -> None:
        kind = _kind(tool, place)
        if kind == "function":
            self._offer(_function(tool, place))
        elif kind == "namespace":
            namespace = short_name(tool.get("name"), f"{place}.name")
            for inner, at in listed_tools(tool.get("tools")):
                self._add_to(namespace, inner, f"{place}.{at}")
        else:
            self.left_out.append(kind[:_SHOWN_CHARS])

    def _add_to(self, namespace: str, tool: Fields, place: str) -> None:
        self._n_read += 1
        if self._n_read > MAX_TOOLS:
            refuse("tools", f"has more than {MAX_TOOLS} in its namespaces", "Offer fewer tools.")
        kind = _kind(tool, place)
        if kind != "function":
            self.left_out.append(kind[:_SHOWN_CHARS])
            return
        function = _function(tool, place)
        name = short_name(offered_name(namespace, function.name), f"{place}.name")
        self._offer(function.model_copy(update={"name": name}))
        self.namespaces[name] = (namespace, function.name)

    def _offer(self, function: ToolDefinition) -> None:
        self.tools[function.name] = function

    def _choice(self, value: object) -> str:
        if value is None:
            return "auto"
        choice: Fields = cast("Fields", value) if isinstance(value, dict) else {"type": value}
        kind = choice.get("type")
        if kind == "function":
            return f"={self._offered(choice, 'tool_choice')}"
        if kind == "allowed_tools":
            return self._allow(choice)
        words = ("auto", "none", "required") if self.tools else ("auto", "none")
        if kind not in words:
            wrong("tool_choice", "auto, none, one function, or required with functions", kind)
        return str(kind)

    def _allow(self, choice: Fields) -> str:
        """Offer some of the functions only: the others stay in the request for its cache."""
        listed = choice.get("tools")
        if not isinstance(listed, list):
            wrong("tool_choice.tools", "an array", listed)
        allowed: dict[str, ToolDefinition] = {}
        for index, item in enumerate(cast("list[object]", listed)):
            place = f"tool_choice.tools[{index}]"
            if not isinstance(item, dict):
                wrong(place, "an object", item)
            tool = cast("Fields", item)
            if _kind(tool, place) == "function":
                name = self._offered(tool, place)
                allowed[name] = self.tools[name]
        self.tools = allowed
        mode = choice.get("mode", "auto")
        if mode == "required" and allowed:
            return "required"
        if mode != "auto":
            wrong("tool_choice.mode", "auto, or required with functions", mode)
        return "auto"

    def _offered(self, choice: Fields, place: str) -> str:
        name = _named(choice).get("name")
        if not isinstance(name, str) or name not in self.tools:
            refuse(
                f"{place}.name",
                "names a function that `tools` does not offer",
                "Name one of the functions in `tools`.",
            )
        return name


def _kind(tool: Fields, place: str) -> str:
    kind = tool.get("type", "function")
    if not isinstance(kind, str):
        wrong(f"{place}.type", "a string", kind)
    return kind


def _named(tool: Fields) -> Fields:
    """Give what carries the name: the tool itself, or what chat completions nest in it."""
    function = tool.get("function")
    return cast("Fields", function) if isinstance(function, dict) else tool


def _function(tool: Fields, place: str) -> ToolDefinition:
    named = _named(tool)
    parameters = named.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        wrong(f"{place}.parameters", "a JSON schema", parameters)
    description = named.get("description")
    return ToolDefinition(
        name=short_name(named.get("name"), f"{place}.name"),
        description=description if isinstance(description, str) else "",
        parameters=cast("dict[str, Any]", parameters) if parameters else {},
    )


# ---- What comes back -----------------------------------------------------------------------


def _settings(body: Fields, task: ChatTask) -> Fields:
    truncation = read_text(body, "truncation") or "disabled"
    if truncation not in {"auto", "disabled"}:
        wrong("truncation", "auto or disabled", truncation)
    summary = _object(body, "reasoning").get("summary")
    is_one = task.tool_choice.startswith("=")
    return {
        "background": False,
        "max_output_tokens": task.max_tokens,
        "max_tool_calls": None,
        "metadata": _metadata(body),
        "parallel_tool_calls": task.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {
            "effort": task.reasoning_effort,
            "summary": summary if isinstance(summary, str) and summary in _SUMMARIES else None,
        },
        "store": False,  # nothing is kept, whatever was asked
        "temperature": task.sampling.temperature,
        "tool_choice": (
            {"type": "function", "name": task.tool_choice[1:]} if is_one else task.tool_choice
        ),
        "top_logprobs": task.logprobs or 0,
        "top_p": task.sampling.top_p,
        "truncation": "disabled",  # what is too long is refused, never cut
        **_repeated(body, task),
    }


def _repeated(body: Fields, task: ChatTask) -> Fields:
    """Give what may be long, unless it is."""
    instructions = body.get("instructions")
    described = _object(body, "text").get("format") or {"type": "text"}
    tools = [{"type": "function", **tool.model_dump(), "strict": False} for tool in task.tools]
    n_chars = len(instructions or "") + sum(len(tool.description) for tool in task.tools)
    for schema in (described, *(tool.parameters for tool in task.tools)):
        if n_chars > _REPEATED_CHARS:
            break
        n_chars += len(json.dumps(schema, ensure_ascii=False))
    if n_chars > _REPEATED_CHARS:
        return {"instructions": None, "text": {"format": {"type": described["type"]}}, "tools": []}
    return {"instructions": instructions, "text": {"format": described}, "tools": tools}
