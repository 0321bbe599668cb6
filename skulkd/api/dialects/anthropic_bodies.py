"""Bodies of Anthropic's messages, for their description."""

from typing import Annotated, Literal

from pydantic import Field

from skulkd.api.dialects.bodies import (
    Asked,
    Count,
    JsonObject,
    Name,
    Share,
    StopTexts,
    Temperature,
    Tokens,
    Told,
)
from skulkd.api.dialects.fields import MAX_MESSAGES, MAX_TOOLS

# ---- What is asked -------------------------------------------------------------------------


class TextBlock(Asked):
    """Text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(Asked):
    """What the model thought in an earlier turn."""

    type: Literal["thinking"]
    thinking: str


class RedactedBlock(Asked):
    """Thoughts that nobody here can read; passed over."""

    type: Literal["redacted_thinking"]


class EarlierToolUse(Asked):
    """A call that the model made in an earlier turn."""

    type: Literal["tool_use"]
    id: Name
    name: Name
    input: JsonObject | None = None


class ImageSource(Asked):
    """Base64, or an http(s) address of an origin that is allowed; the bytes tell the type."""

    type: Literal["base64", "url"]
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class ImageBlock(Asked):
    """An image, for models that see."""

    type: Literal["image"]
    source: ImageSource


class ToolResult(Asked):
    """What a tool answered."""

    type: Literal["tool_result"]
    tool_use_id: Name
    content: str | list[TextBlock | ImageBlock] | None = None
    is_error: bool | None = None


class MessageTurn(Asked):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: (
        str
        | list[TextBlock | ImageBlock | ThinkingBlock | RedactedBlock | EarlierToolUse | ToolResult]
        | None
    ) = None


class OfferedTool(Asked):
    """A tool of the client's own."""

    type: Literal["", "custom"] | None = None
    name: Name
    description: str | None = None
    input_schema: JsonObject


class ToolChoice(Asked):
    """Whether a tool is to be called, and which."""

    type: Literal["auto", "none", "any", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Asked):
    """Whether the model is to think."""

    type: Literal["enabled", "adaptive", "disabled"]


class OutputConfig(Asked):
    """How much the model is to think."""

    effort: str | None = None


class CountRequest(Asked):
    """A prompt to be counted."""

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[MessageTurn], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[TextBlock] | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    stop_sequences: StopTexts | None = None
    tools: Annotated[list[OfferedTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountRequest):
    """A chat."""

    max_tokens: Tokens
    stream: bool | None = None


# ---- What is told --------------------------------------------------------------------------


class MessageUsage(Told):
    """Tokens of one message."""

    input_tokens: Count
    cache_creation_input_tokens: Count
    cache_read_input_tokens: Count
    output_tokens: Count


class ToldText(Told):
    """Text."""

    type: Literal["text"]
    text: str


class ToldThinking(Told):
    """Thoughts."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUse(Told):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: JsonObject


ToldBlock = ToldText | ToldThinking | ToolUse
StopReason = Literal["end_turn", "max_tokens", "tool_use", "refusal", "stop_sequence"]


class MessageEnd(Told):
    """Why a message ended; `stop_sequence` is the one that did it."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class WholeMessage(MessageEnd):
    """A message; whole, or empty at the beginning of a stream."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ToldBlock]
    usage: MessageUsage


class CountedTokens(Told):
    """The size of a prompt."""

    input_tokens: Count


class MessageStart(Told):
    """The first event."""

    type: Literal["message_start"]
    message: WholeMessage


class BlockStart(Told):
    """A block begins."""

    type: Literal["content_block_start"]
    index: Count
    content_block: ToldBlock


class TextDelta(Told):
    """A piece of text."""

    type: Literal["text_delta"]
    text: str


class ThinkingDelta(Told):
    """A piece of thoughts."""

    type: Literal["thinking_delta"]
    thinking: str


class InputDelta(Told):
    """A piece of a call's arguments."""

    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(Told):
    """A piece of the open block."""

    type: Literal["content_block_delta"]
    index: Count
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(Told):
    """The open block ends."""

    type: Literal["content_block_stop"]
    index: Count


class MessageDelta(Told):
    """Why the message ends."""

    type: Literal["message_delta"]
    delta: MessageEnd
    usage: MessageUsage


class MessageStop(Told):
    """The last event."""

    type: Literal["message_stop"]


MessageEvent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
