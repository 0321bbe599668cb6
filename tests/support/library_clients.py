"""The libraries that are run as clients: their scripts, and how each says what failed."""

from dataclasses import dataclass
from typing import Any, Final

from tests.support.client_environments import HAS_NODE


@dataclass(frozen=True, kw_only=True)
class Library:
    """One of them.

    Args:
        name: Of this run.
        environment: Where it is installed.
        version: Of its package.
        script: Under `tests/clients/scripts/`.
        arguments: For the script.
        absent: What it raises for a model that is not there.
        too_long: What it raises for a prompt that no window holds.
        died: What it raises when the engine dies in the middle of a stream.
        lists: Its script looks at the list of models.
        embeds: Its script makes embeddings.
        shows_pieces: Its script can tell the pieces of a stream.
    """

    name: str
    environment: str
    version: str
    script: str
    arguments: tuple[str, ...] = ()
    absent: str = "NotFoundError"
    too_long: str = "BadRequestError"
    died: str
    lists: bool = False
    embeds: bool = False
    shows_pieces: bool = True


_OPENAI: Final[dict[str, Any]] = {
    "script": "openai_sdk.py",
    "died": "APIError",
    "lists": True,
    "embeds": True,
}
_LITELLM: Final[dict[str, Any]] = {
    "environment": "litellm",
    "version": "1.80.0",
    "script": "litellm_sdk.py",
    "embeds": True,
}

_OF_PYTHON: Final = (
    Library(name="openai", environment="openai", version="3.57.0", **_OPENAI),
    Library(name="openai-1", environment="openai-1", version="1.109.1", **_OPENAI),
    Library(
        name="anthropic",
        environment="anthropic",
        version="2.14.0",
        script="anthropic_sdk.py",
        died="APIStatusError",
        lists=True,
    ),
    Library(
        name="ollama",
        environment="ollama",
        version="0.6.3",
        script="ollama_sdk.py",
        absent="ResponseError",
        too_long="ResponseError",
        died="ResponseError",
        lists=True,
        embeds=True,
    ),
    Library(name="litellm-openai", arguments=("openai",), died="APIConnectionError", **_LITELLM),
    Library(
        name="litellm-anthropic",
        arguments=("anthropic",),
        too_long="ContextWindowExceededError",
        died="InternalServerError",
        **_LITELLM,
    ),
    Library(
        name="litellm-ollama",
        arguments=("ollama_chat",),
        absent="APIConnectionError",  # this route of it knows no other
        too_long="APIConnectionError",
        died="APIConnectionError",
        **_LITELLM,
    ),
    Library(
        name="langchain-openai",
        environment="langchain-openai",
        version="1.7.4",
        script="langchain_sdk.py",
        absent="OpenAIModelNotFoundError",
        too_long="OpenAIContextOverflowError",
        died="APIError",
        embeds=True,
    ),
    Library(
        name="pydantic-ai",
        environment="pydantic-ai",
        version="2.68.0",
        script="pydantic_ai_sdk.py",
        absent="ModelNotFoundError",
        too_long="ModelContextWindowExceededError",
        died="ModelServerError",
    ),
    Library(
        name="llm",
        environment="llm",
        version="0.36",
        script="llm_tool.py",
        absent="exit",
        too_long="exit",
        died="exit",
        shows_pieces=False,
    ),
)
_OF_NODE: Final = (
    Library(
        name="openai-npm",
        environment="openai-npm",
        version="6.49.0",
        script="openai_sdk.cjs",
        died="APIError",
        lists=True,
        embeds=True,
    ),
    Library(
        name="anthropic-npm",
        environment="anthropic-npm",
        version="1.14.0",
        script="anthropic_sdk.cjs",
        died="APIError",
        lists=True,
    ),
    Library(
        name="ollama-npm",
        environment="ollama-npm",
        version="0.6.4",
        script="ollama_sdk.cjs",
        absent="ResponseError",
        too_long="ResponseError",
        died="Error",
        lists=True,
        embeds=True,
    ),
    Library(
        name="vercel",
        environment="vercel",
        version="6.0.326",
        script="vercel_sdk.cjs",
        absent="APICallError",
        too_long="APICallError",
        died="Object",  # the error of the frame, as it came
        embeds=True,
    ),
)
CLIENTS: Final = (*_OF_PYTHON, *(_OF_NODE if HAS_NODE else ()))
