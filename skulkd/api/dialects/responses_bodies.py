"""Bodies of OpenAI's responses, for their description."""

from typing import Annotated, Any, Literal

from pydantic import Field

from skulkd.api.dialects.bodies import (
    Asked,
    Count,
    JsonObject,
    Name,
    Penalty,
    Seed,
    Share,
    Temperature,
    Tokens,
    Told,
    TopK,
)
from skulkd.api.dialects.fields import MAX_MESSAGES, MAX_TOOLS
from skulkd.api.dialects.openai_bodies import ChosenToken
from skulkd.api.dialects.openai_chat import MAX_TOP_LOGPROBS

# ---- What is asked -------------------------------------------------------------------------


class AskedReasoning(Asked):
    """How much the model is to think, and whether that is summed up."""

    effort: str | None = None
    summary: str | None = None


class AskedFormat(Asked):
    """The form that an answer is held to."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Annotated[JsonObject | None, Field(alias="schema")] = None


class AskedText(Asked):
    """How text is wanted."""

    format: AskedFormat | None = None


class InputItem(Asked):
    """An item of the conversation: a message, reasoning, a call of a function, or its output."""

    type: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[JsonObject] | None = None
    summary: list[JsonObject] | None = None
    encrypted_content: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    call_id: str | None = None
    output: str | list[JsonObject] | None = None


class AskedTool(Asked):
    """A tool: a function, a namespace of them, or one that is left out."""

    type: str = "function"
    name: Name | None = None
    description: str | None = None
    parameters: JsonObject | None = None
    function: JsonObject | None = None
    tools: list[JsonObject] | None = None


class AskedChoice(Asked):
    """Whether a tool is to be called, and which."""

    type: str
    name: str | None = None
    function: JsonObject | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: list[JsonObject] | None = None


class ResponseRequest(Asked):
    """A conversation to be answered."""

    model: Annotated[str, Field(min_length=1)]
    input: str | Annotated[list[InputItem], Field(max_length=MAX_MESSAGES)]
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    seed: Seed | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    repetition_context_size: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    include: list[str] | None = None
    tools: Annotated[list[AskedTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | AskedChoice | None = None
    parallel_tool_calls: bool | None = None
    text: AskedText | None = None
    reasoning: AskedReasoning | None = None
    enable_thinking: bool | None = None
    metadata: dict[str, str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: Literal[False] | None = None


# ---- What is told --------------------------------------------------------------------------

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(Told):
    """Text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[JsonObject]
    logprobs: list[ChosenToken]


class ReasoningText(Told):
    """Thoughts, or their summary."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class MessageItem(Told):
    """A message."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningItem(Told):
    """Thoughts."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    encrypted_content: str | None
    summary: list[ReasoningText]
    content: list[ReasoningText] | None = None


class CallItem(Told):
    """A call of a function."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    namespace: str | None = None
    name: str
    arguments: str


OutputItem = MessageItem | ReasoningItem | CallItem


class InputDetails(Told):
    """Of the tokens that were read."""

    cached_tokens: Count
    cache_write_tokens: Count


class OutputDetails(Told):
    """Of the tokens that were generated."""

    reasoning_tokens: Count


class ResponseUsage(Told):
    """Tokens of one response."""

    input_tokens: Count
    input_tokens_details: InputDetails
    output_tokens: Count
    output_tokens_details: OutputDetails
    total_tokens: Count


class IncompleteDetails(Told):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens", "content_filter"]


class ToldReasoning(Told):
    """How much the model was to think."""

    effort: str | None
    summary: str | None


class Response(Told):
    """A response: as it begins, or as it ended."""

    id: str
    object: Literal["response"]
    created_at: Count
    completed_at: Count | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: JsonObject | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None
    background: Literal[False]
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: ToldReasoning
    store: Literal[False]
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | JsonObject
    tools: list[JsonObject]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["disabled"]


class Event(Told):
    """An event of a stream, numbered from 0 on."""

    sequence_number: Count


class ResponseEvent(Event):
    """The whole response."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: Response


class ItemEvent(Event):
    """An item begins or ends."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: Count
    item: OutputItem


class PartEvent(Event):
    """A part of an item begins or ends."""

    type: Literal[
        "response.content_part.added",
        "response.content_part.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
    ]
    item_id: str
    output_index: Count
    content_index: Count | None = None
    summary_index: Count | None = None
    part: OutputText | ReasoningText


class TextEvent(Event):
    """A piece of text, or all of it."""

    type: Literal[
        "response.output_text.delta",
        "response.output_text.done",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
    ]
    item_id: str
    output_index: Count
    content_index: Count | None = None
    summary_index: Count | None = None
    delta: str | None = None
    text: str | None = None
    logprobs: list[ChosenToken] | None = None


class ArgumentsEvent(Event):
    """A piece of a call's arguments, or all of them."""

    type: Literal["response.function_call_arguments.delta", "response.function_call_arguments.done"]
    item_id: str
    output_index: Count
    delta: str | None = None
    name: str | None = None
    arguments: str | None = None


AnyEvent = ResponseEvent | ItemEvent | PartEvent | TextEvent | ArgumentsEvent
