"""Bodies of OpenAI's chats, completions, embeddings and of reranking, for their description."""

from typing import Annotated, Literal

from pydantic import Field

from protocol.tasks import MAX_TEXTS, FinishReason
from skulkd.api.dialects.bodies import (
    Asked,
    Count,
    JsonObject,
    Name,
    Penalty,
    Seed,
    Share,
    StopText,
    StopTexts,
    Temperature,
    Tokens,
    Told,
    TopK,
)
from skulkd.api.dialects.fields import MAX_MESSAGES, MAX_TOOLS
from skulkd.api.dialects.openai_chat import MAX_TOP_LOGPROBS
from skulkd.api.dialects.openai_choices import MAX_CHOICES
from skulkd.api.dialects.openai_completions import MAX_LOGPROBS

# ---- What is asked -------------------------------------------------------------------------


class StreamOptions(Asked):
    """How a stream ends."""

    include_usage: bool | None = None


class Generation(Asked):
    """How to generate: what chats and completions have in common."""

    model: Annotated[str, Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Tokens | None = None
    stop: StopText | StopTexts | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    seed: Seed | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    repetition_context_size: Annotated[int, Field(ge=0, le=1 << 20)] | None = None


class TextPart(Asked):
    """A piece of a message."""

    type: Literal["text", "input_text", "output_text", "refusal"]
    text: str | None = None
    refusal: str | None = None


class ImageAddress(Asked):
    """Where an image is: a data URL, or an http(s) address of an origin that is allowed."""

    url: str
    detail: str | None = None


class ImagePart(Asked):
    """An image in a message, for models that see."""

    type: Literal["image_url", "input_image"]
    image_url: str | ImageAddress
    detail: str | None = None


class CalledFunction(Asked):
    """Who was called in an earlier turn, and with what."""

    name: Name
    arguments: str | JsonObject | None = None


class EarlierCall(Asked):
    """A call that the model made in an earlier turn."""

    id: str | None = None
    function: CalledFunction


class Message(Asked):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[str | TextPart | ImagePart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[EarlierCall] | None = None
    tool_call_id: str | None = None


class FunctionDefinition(Asked):
    """A function that may be called."""

    name: Name
    description: str | None = None
    parameters: JsonObject | None = None


class Tool(Asked):
    """A tool that may be called."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class ChosenFunction(Asked):
    """The function that is to be called."""

    name: str


class ChosenTool(Asked):
    """The tool that is to be called."""

    function: ChosenFunction


class DescribedSchema(Asked):
    """A schema with its name."""

    json_schema: Annotated[JsonObject, Field(alias="schema")]


class ResponseFormat(Asked):
    """The form that an answer is held to."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: DescribedSchema | None = None


class ChatRequest(Generation):
    """A chat."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None


class CompletionRequest(Generation):
    """Texts to go on with."""

    prompt: (
        Annotated[str, Field(min_length=1)]
        | Annotated[
            list[Annotated[str, Field(min_length=1)]],
            Field(min_length=1, max_length=MAX_CHOICES),
        ]
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None


SpokenText = Annotated[str, Field(min_length=1)]
SpokenTexts = Annotated[list[SpokenText], Field(min_length=1, max_length=MAX_TEXTS)]


class EmbeddingsRequest(Asked):
    """Texts to embed."""

    model: Annotated[str, Field(min_length=1)]
    input: SpokenText | SpokenTexts
    encoding_format: Literal["float", "base64"] | None = None


class Document(Asked):
    """A document to rank, as an object."""

    text: SpokenText


class RerankRequest(Asked):
    """Documents to order by how well they answer a query."""

    model: Annotated[str, Field(min_length=1)]
    query: SpokenText
    documents: Annotated[list[SpokenText | Document], Field(min_length=1, max_length=MAX_TEXTS)]
    top_n: Annotated[int, Field(ge=1, le=MAX_TEXTS)] | None = None
    return_documents: bool | None = None


# ---- What is told --------------------------------------------------------------------------


class CachedTokens(Told):
    """Of the prompt."""

    cached_tokens: Count


class Usage(Told):
    """Tokens of all choices together."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: CachedTokens


class AlternativeToken(Told):
    """A token that could have been chosen."""

    token: str
    logprob: float
    bytes: list[Annotated[int, Field(ge=0, le=255)]]


class ChosenToken(AlternativeToken):
    """A token that was chosen."""

    top_logprobs: list[AlternativeToken]


class ChosenTokens(Told):
    """The tokens of a choice with their probabilities."""

    content: list[ChosenToken]


class Function(Told):
    """Who is called, and with which arguments: JSON as text."""

    name: str
    arguments: str


class ToolCall(Told):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: Function


class AnswerMessage(Told):
    """What the model says."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Ended(Told):
    """Why a choice ended."""

    index: Count
    finish_reason: FinishReason
    stop_reason: str | None = None
    """The stop string that ended it, where one did."""


class Choice(Ended):
    """One answer."""

    message: AnswerMessage
    logprobs: ChosenTokens | None


class ChatCompletion(Told):
    """A whole answer to a chat."""

    id: str
    object: Literal["chat.completion"]
    created: Count
    model: str
    choices: list[Choice]
    usage: Usage


class GenerationStatistics(Told):
    """What an answer took, by the engine's own clock; null where it does not say."""

    prompt_tokens: Count
    cached_prompt_tokens: Count
    generation_tokens: Count
    prompt_ms: float | None
    generation_ms: float | None
    prompt_tps: float | None
    generation_tps: float | None
    request_ms: float
    serving_batches: bool
    in_flight_at_admission: Count


class BenchCompletion(ChatCompletion):
    """A whole answer to a chat, with what it took."""

    generation_stats: GenerationStatistics
    power_usage: None


class FunctionPiece(Told):
    """A piece of a call."""

    name: str | None = None
    arguments: str


class ToolCallPiece(Told):
    """A piece of a call; the first one has the id and the name."""

    index: Count
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionPiece


class Delta(Told):
    """A piece of a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallPiece] | None = None


class ChoicePiece(Told):
    """A piece of a choice."""

    index: Count
    delta: Delta
    logprobs: ChosenTokens | None = None
    finish_reason: FinishReason | None
    stop_reason: str | None = None


class ChatCompletionChunk(Told):
    """An event of a streamed chat."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Count
    model: str
    choices: list[ChoicePiece]
    usage: Usage | None = None


class TextLogprobs(Told):
    """Tokens with their probabilities: a list for each aspect."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[Count]


class TextChoice(Told):
    """One text, or a piece of it, whose end has a reason."""

    index: Count
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | None = None


class TextCompletion(Told):
    """A whole answer to texts, or an event of a stream."""

    id: str
    object: Literal["text_completion"]
    created: Count
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None


class VectorUsage(Told):
    """Tokens of what was read."""

    prompt_tokens: Count
    total_tokens: Count


class Embedding(Told):
    """A vector: numbers, or little-endian float32 in base64."""

    object: Literal["embedding"]
    index: Count
    embedding: list[float] | str


class EmbeddingList(Told):
    """Vectors in the order of their texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: VectorUsage


class RankedText(Told):
    """A document that was ranked."""

    text: str


class Rank(Told):
    """How well a document answers."""

    index: Count
    relevance_score: float
    document: RankedText | None = None


class Ranking(Told):
    """Documents, the best first."""

    object: Literal["list"]
    model: str
    results: list[Rank]
    usage: VectorUsage
