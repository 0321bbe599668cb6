"""Inference requests as they travel from the API node to the worker, and sampling.

A task is independent of the dialect that it came in by. It is built once a request; what comes
back is frames (protocol/data_frames.py), of which there are many.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints, ValidationInfo, field_validator

from protocol.base import FrozenModel
from protocol.ids import CommandIdField, ModelIdField
from protocol.images import MAX_IMAGE_BYTES, MAX_IMAGES, MAX_SIDE_PX, ImageType

ChatRole = Literal["system", "user", "assistant", "tool"]
Asker = Annotated[str, StringConstraints(max_length=64)]
"""Whose turn a task takes where several wait: the id of an API key, or a word for all without."""
MAX_KEEP_S: Final = 1 << 31
KEEP_ALWAYS: Final = -1
KeepSeconds = Annotated[
    int | None,
    Field(ge=KEEP_ALWAYS, le=MAX_KEEP_S, exclude_if=lambda keep_s: keep_s is None),
]
"""How long an on-demand instance stays loaded once it has served a task, in place of its time to
live and until it is loaded anew; KEEP_ALWAYS is until it is told to go, None leaves it as it is."""
MAX_TEXTS: Final = 2048
"""In one request for vectors."""
_MAX_BASE64_CHARS: Final = -(-MAX_IMAGE_BYTES // 3) * 4
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
"""There is no `error`: a failure is a terminal frame with an error body."""


class ToolCall(FrozenModel):
    """A call the model made in an earlier turn."""

    id: Annotated[str, StringConstraints(max_length=256)]
    name: Annotated[str, StringConstraints(max_length=256)]
    arguments: str
    """JSON text, as the model wrote it."""


Pixels = Annotated[int, Field(ge=1, le=MAX_SIDE_PX)]


class TaskImage(FrozenModel):
    """An image among the text of a turn."""

    at: Annotated[int, Field(ge=0)]
    """How many characters of the turn's text stand before it."""
    media_type: ImageType
    """By its own bytes, whatever the client has called it."""
    width_px: Pixels
    height_px: Pixels
    data: Annotated[str, StringConstraints(min_length=4, max_length=_MAX_BASE64_CHARS)]
    """Base64, in which clients send it and engines take it."""


class ChatMessage(FrozenModel):
    """One turn. Content parts are joined and roles normalized before a task is built."""

    role: ChatRole
    content: str
    images: Annotated[
        tuple[TaskImage, ...], Field(max_length=MAX_IMAGES, exclude_if=lambda images: not images)
    ] = ()
    """In the order in which they stand in the text."""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None

    @field_validator("images")
    @classmethod
    def _stand_in_the_text(
        cls, images: tuple[TaskImage, ...], info: ValidationInfo
    ) -> tuple[TaskImage, ...]:
        places = [image.at for image in images]
        if places != sorted(places) or places[-1:] > [len(info.data.get("content", ""))]:
            msg = "images stand behind the text, or not in its order"
            raise ValueError(msg)
        return images


class ToolDefinition(FrozenModel):
    """A function that the client offers."""

    name: Annotated[str, StringConstraints(max_length=256)]
    description: str = ""
    parameters: dict[str, Any] = {}
    """A JSON schema."""


class Sampling(FrozenModel):
    """How the next token is chosen; None leaves it to the engine's default."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=0, le=0xFFFFFFFF)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    repetition_context_size: Annotated[int, Field(ge=0, le=1 << 20)] | None = None


class ResponseFormat(FrozenModel):
    """Structured output that the engine's grammar enforces."""

    kind: Literal["json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class ChatTask(FrozenModel):
    """One completion for one instance: of a chat, or of a text.

    `max_tokens` None means: what is left of the window, at most the server's default.
    A task with `keep_s` and neither messages nor `prompt` asks for no answer: it says that alone.
    """

    kind: Literal["chat"] = "chat"
    command_id: CommandIdField
    model_id: ModelIdField
    asker: Asker = ""
    messages: tuple[ChatMessage, ...]
    prompt: str | None = None
    """A text to go on with, as it is: no template, and no messages."""
    sampling: Sampling = Sampling()
    max_tokens: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    stop: Annotated[tuple[str, ...], Field(max_length=16)] = ()
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """Alternatives per token; 0 is the chosen token alone, None is no logprobs."""
    tools: Annotated[tuple[ToolDefinition, ...], Field(max_length=256)] = ()
    tool_choice: Annotated[str, StringConstraints(max_length=256)] = "auto"
    """`auto`, `none`, `required`, or `=name` for one function."""
    parallel_tool_calls: bool | None = None
    """Whether one answer may call several tools; None leaves it to the engine."""
    response_format: ResponseFormat | None = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    stream: bool = True
    """False when only the whole answer is wanted: an engine may then give it as one chunk."""
    keep_s: KeepSeconds = None


Texts = Annotated[
    tuple[Annotated[str, StringConstraints(min_length=1)], ...],
    Field(min_length=1, max_length=MAX_TEXTS),
]


class EmbeddingTask(FrozenModel):
    """A vector for each text, which is read by itself."""

    kind: Literal["embedding"] = "embedding"
    command_id: CommandIdField
    model_id: ModelIdField
    asker: Asker = ""
    texts: Texts
    keep_s: KeepSeconds = None


class RerankTask(FrozenModel):
    """How well each document answers the query: a vector of one number for each."""

    kind: Literal["rerank"] = "rerank"
    command_id: CommandIdField
    model_id: ModelIdField
    asker: Asker = ""
    query: Annotated[str, StringConstraints(min_length=1)]
    documents: Texts


def images_of(task: ChatTask) -> tuple[TaskImage, ...]:
    """Give all images of a task, in their order."""
    return tuple(image for message in task.messages for image in message.images)


VectorTask = EmbeddingTask | RerankTask
"""What is answered by vectors in the order of the texts, and generates nothing."""
Task = ChatTask | VectorTask
