"""What bodies of foreign dialects are described by; loaded only when the API is described.

The dialects read and write their JSON themselves, as it lies in the path of every request. These
models say the same in a form that a schema can be made of; tests hold both together: every field
that is read is described, every answer that is written fits.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from protocol.base import FrozenModel
from protocol.control_api import ErrorEnvelope
from skulkd.api.dialects.fields import MAX_NAME_CHARS, MAX_STOP_CHARS, MAX_STOPS, MAX_TOKENS


class Asked(BaseModel):
    """Part of a request. Null means absent; what is not described is passed over."""

    model_config = ConfigDict(extra="allow", frozen=True)


class Told(BaseModel):
    """Part of an answer: all of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Temperature = Annotated[float, Field(ge=0, le=100)]
Share = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
TopK = Annotated[int, Field(ge=-1, le=1 << 20)]
Seed = Annotated[int, Field(ge=-(1 << 63), le=(1 << 63) - 1)]
StopText = Annotated[str, Field(max_length=MAX_STOP_CHARS)]
StopTexts = Annotated[list[StopText], Field(max_length=MAX_STOPS)]
Count = Annotated[int, Field(ge=0)]
JsonObject = dict[str, Any]


class OllamaError(FrozenModel):
    """An error of Ollama's routes: a text with its remedy; what only ours read is beside it."""

    model_config = ConfigDict(extra="allow")

    error: str
    skulk_code: str


class AnthropicError(FrozenModel):
    """An error of Anthropic's routes."""

    type: Literal["error"]
    error: ErrorEnvelope
