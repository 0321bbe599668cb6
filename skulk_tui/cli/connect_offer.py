"""What a node has to offer to other people's tools: its address, ready models, a key. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.control_api import API_KEY_PATTERN
from protocol.errors import RequestError
from protocol.ids import ModelId
from protocol.models_api import ModelEntry
from skulk_tui.cli.nearest import unknown_value

NO_KEY: Final = "none"
"""For tools that insist on a key where the node asks for none: it counts as none there."""
KEY_TO_COME: Final = "skulk-…"
"""Stands where a key would be, as long as none is made."""
_KEY: Final = re.compile(API_KEY_PATTERN)
_KEY_INSIDE: Final = re.compile(API_KEY_PATTERN.strip("^$"))
_OUTPUT_MAX: Final = 32_000
"""More than this no agent asks for in one answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyModel:
    """A model that answers now."""

    model_id: ModelId
    window: int
    """Tokens that one request really has."""
    thinks: bool
    sees: bool
    calls_tools: bool

    @property
    def output_tokens(self) -> int:
        """What an agent should leave for an answer; the rest is for what went before."""
        return max(1, min(self.window // 4, _OUTPUT_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a tool's configuration is made of. Invariant: there is at least one model."""

    url: str
    """Of the node, as this machine reaches it, without a path."""
    models: tuple[ReadyModel, ...]
    """The first is what the tool uses unless it is told otherwise."""
    key: str | None = None

    @property
    def model(self) -> ReadyModel:
        """What the tool uses by itself."""
        return self.models[0]

    @property
    def openai_url(self) -> str:
        """Base of OpenAI's routes."""
        return f"{self.url}/v1"

    @property
    def ollama_url(self) -> str:
        """Base of Ollama's routes."""
        return f"{self.url}/ollama"

    @property
    def any_key(self) -> str:
        """The key, or a word that counts as none."""
        return self.key or NO_KEY


def is_key(text: object) -> bool:
    """Does this look like a key of ours? What is somebody else's is never sent to a node."""
    return isinstance(text, str) and _KEY.fullmatch(text) is not None


def key_in_text(text: str) -> str | None:
    """Find a key in a file that is all ours."""
    found = _KEY_INSIDE.search(text)
    return found.group() if found is not None else None


def ready_models(entries: Sequence[ModelEntry], wanted: str | None) -> tuple[ReadyModel, ...]:
    """Give the models that answer now, the one to use first.

    Args:
        entries: The node's catalogue.
        wanted: The one to use; None takes one that calls tools, with the largest window.

    Raises:
        ClientError: `client.usage`; no model is called so, or it writes no text.
        RequestError: `request.model_not_found`, or `request.instance_loading`: none is ready.
    """
    by_id = {entry.id: entry for entry in entries}
    writers = {
        entry.id for entry in entries if entry.resolved_capabilities.supports_text_generation
    }
    if wanted is not None and wanted not in writers:
        raise unknown_value("a model that writes text", wanted, writers, see="skulk models list")
    ready = [_ready(entry) for entry in entries if _answers(entry) and entry.id in writers]
    ready.sort(key=lambda one: (one.model_id != wanted, not one.calls_tools, -one.window))
    if not ready or (wanted is not None and ready[0].model_id != wanted):
        asked = entries if wanted is None else [by_id[ModelId(wanted)]]
        raise _none_ready([entry for entry in asked if entry.placed], wanted)
    return tuple(ready)


def _answers(entry: ModelEntry) -> bool:
    """Say whether a request is answered now, or once it has woken the model."""
    return entry.ready or "on_demand" in entry.tags


def _ready(entry: ModelEntry) -> ReadyModel:
    can = entry.resolved_capabilities
    return ReadyModel(
        model_id=entry.id,
        window=entry.context_window or entry.context_length,
        thinks=can.supports_thinking,
        sees=can.supports_vision,
        calls_tools=can.supports_tool_calling,
    )


def _none_ready(placed: Sequence[ModelEntry], wanted: str | None) -> RequestError:
    if placed:
        name = placed[0].id
        return RequestError(
            "request.instance_loading",
            f"{name} is placed, but not ready",
            remediation=f"Wait for it: `skulk wait {name}`.",
        )
    what = "no model" if wanted is None else f"{wanted} is not placed, so it"
    return RequestError(
        "request.model_not_found",
        f"{what} is ready to answer" if wanted is None else f"{what} cannot answer",
        remediation=f"Place it: `skulk place {wanted}`." if wanted else "Place one: `skulk place`.",
    )
