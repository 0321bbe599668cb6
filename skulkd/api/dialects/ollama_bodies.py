"""Bodies of Ollama's routes, for their description."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from protocol.images import MAX_IMAGES
from protocol.tasks import MAX_TEXTS
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
    Told,
    TopK,
)
from skulkd.api.dialects.fields import MAX_MESSAGES, MAX_TOKENS, MAX_TOOLS
from skulkd.api.dialects.openai_bodies import ChosenToken, Tool
from skulkd.api.dialects.openai_chat import MAX_TOP_LOGPROBS

# ---- What is asked -------------------------------------------------------------------------


class Options(Asked):
    """How to generate; what sizes or tunes a server is of no effect."""

    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    seed: Seed | None = None
    stop: StopText | StopTexts | None = None
    num_predict: Annotated[int, Field(ge=-MAX_TOKENS, le=MAX_TOKENS)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repeat_penalty: Annotated[float, Field(ge=0, le=10)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, le=1 << 20)] | None = None


class ModelRequest(Asked):
    """A request to a model."""

    model: Annotated[str, Field(min_length=1)]
    keep_alive: float | str | None = None


class GenerationRequest(ModelRequest):
    """How to generate: what chats and prompts have in common."""

    stream: bool | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    format: Literal["", "json"] | JsonObject | None = None
    options: Options | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None


class OllamaFunction(Asked):
    """Who was called in an earlier turn, and with what."""

    name: Name
    arguments: JsonObject | None = None


Images = Annotated[list[str], Field(max_length=MAX_IMAGES)]
"""In base64, or data URLs; for models that see."""


class OllamaCall(Asked):
    """A call that the model made in an earlier turn."""

    id: str | None = None
    function: OllamaFunction


class OllamaMessage(Asked):
    """One turn."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[OllamaCall] | None = None
    images: Images | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatRequest(GenerationRequest):
    """A chat; without messages, whether the model is loaded."""

    messages: Annotated[list[OllamaMessage], Field(max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None


class GenerateRequest(GenerationRequest):
    """A prompt; without one, whether the model is loaded."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    images: Images | None = None


class EmbedRequest(ModelRequest):
    """Texts to embed."""

    input: str | Annotated[list[str], Field(max_length=MAX_TEXTS)] | None = None


class OlderEmbedRequest(ModelRequest):
    """A text to embed."""

    prompt: str | None = None


class ShowRequest(Asked):
    """A model to be shown, named in either way."""

    model: str | None = None
    name: str | None = None


# ---- What is told --------------------------------------------------------------------------


class ToldFunction(Told):
    """Who is called, and with what."""

    index: Count
    name: str
    arguments: JsonObject


class ToldCall(Told):
    """A call of a tool."""

    id: str | None = None
    function: ToldFunction


class ToldMessage(Told):
    """What the model says."""

    role: Literal["assistant"]
    content: str
    thinking: str | None = None
    tool_calls: list[ToldCall] | None = None


class Line(Told):
    """An answer, or a line of one: the last one is done, and says what it took."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load", "unload"] | None = None
    logprobs: list[ChosenToken] | None = None
    total_duration: Count | None = None
    load_duration: Count | None = None
    prompt_eval_count: Count | None = None
    prompt_eval_duration: Count | None = None
    eval_count: Count | None = None
    eval_duration: Count | None = None


class ChatLine(Line):
    """An answer to a chat, or a line of one."""

    message: ToldMessage


class GenerateLine(Line):
    """An answer to a prompt, or a line of one."""

    response: str
    thinking: str | None = None
    tool_calls: list[ToldCall] | None = None


class Embedded(Told):
    """Vectors in the order of their texts."""

    model: str | None = None
    embeddings: list[list[float]]
    prompt_eval_count: Count | None = None


class OlderEmbedded(Told):
    """A vector."""

    embedding: list[float]


class Details(Told):
    """What a model is."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class PlacedModel(Told):
    """A model that is placed."""

    name: str
    model: str
    digest: str
    details: Details
    modified_at: str
    size: Count


class PlacedModels(Told):
    """All models that are placed."""

    models: list[PlacedModel]


class LoadedModel(Told):
    """A model that is loaded."""

    name: str
    model: str
    digest: str
    details: Details
    size: Count
    size_vram: Count
    expires_at: str
    context_length: Count


class LoadedModels(Told):
    """All models that are loaded."""

    models: list[LoadedModel]


class ShownModel(Told):
    """One model."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    license: str
    modelfile: str
    parameters: str
    template: str
    details: Details
    model_info: JsonObject
    capabilities: list[str]
    modified_at: str | None = None


class OllamaVersion(Told):
    """The release whose API this is."""

    version: str
