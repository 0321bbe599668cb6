"""What a model can do, from its card and its family, for all requests or for one. Pure.

A card says it outright in `[reasoning]` and `[tooling]`; an imported file's card holds what its
tokenizer's template takes, told at the import (store/importer.py). Where a card is silent, its
coarse `capabilities` and the habits of its family count.
"""

from dataclasses import dataclass
from typing import Final

from protocol.cards import ModelCard
from protocol.models_api import ResolvedCapabilities, ThinkingFormat
from protocol.tasks import ChatTask

NO_EFFORT: Final = "none"
"""The word of clients for no thinking."""


@dataclass(frozen=True, slots=True)
class _Family:
    """What all models of a family have in common."""

    thinking_format: ThinkingFormat = "token_delimited"
    """Of those that think."""
    always_thinks: bool = False
    tool_call_format: str | None = None
    default_effort: str | None = None


_FAMILIES: Final = {
    "gpt-oss": _Family(
        thinking_format="channel_delimited",
        always_thinks=True,
        tool_call_format="gpt_oss",
        default_effort="medium",
    ),
}
"""By the names of cards and of GGUF architectures, without their separators' kind."""
_PLAIN: Final = _Family()


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingWish:
    """What a request says about thinking."""

    enable_thinking: bool | None = None
    reasoning_effort: str | None = None


_NO_WISH: Final = ThinkingWish()


def resolve_capabilities(card: ModelCard, wish: ThinkingWish = _NO_WISH) -> ResolvedCapabilities:
    """Say what a client can count on.

    Args:
        card: Of the model.
        wish: Of one request; by default one that asks for nothing.
    """
    family = _FAMILIES.get((card.family or "").replace("_", "-"), _PLAIN)
    reasoning, tooling = card.reasoning, card.tooling
    has_toggle = reasoning.supports_toggle or "thinking_toggle" in card.capabilities
    has_format = reasoning.format != "none"
    thinks = has_toggle or has_format or family.always_thinks or "thinking" in card.capabilities
    known = ResolvedCapabilities(
        supports_text_generation="TextGeneration" in card.tasks,
        supports_embedding="TextEmbedding" in card.tasks,
        supports_vision=card.vision is not None or "vision" in card.capabilities,
        supports_audio_input=card.modalities.supports_audio_input,
        supports_thinking=thinks,
        supports_thinking_toggle=has_toggle,
        supports_thinking_budget=reasoning.supports_budget,
        thinking_format=(reasoning.format if has_format else family.thinking_format)
        if thinks
        else "none",
        default_effort=reasoning.default_effort or (family.default_effort if thinks else None),
        disabled_effort=reasoning.disabled_effort,
        supports_tool_calling=tooling.supports_tool_calling,
        tool_call_format=tooling.tool_call_format or family.tool_call_format,
        builtin_tools=tooling.builtin_tools,
    )
    return known.model_copy(update={"thinks": _thinks(known, wish)})


def heeded(card: ModelCard, task: ChatTask) -> ChatTask:
    """Give a task with what its model can heed of its wish about thinking, and no more.

    With a toggle, a request that says nothing is answered without thinking. Without one,
    `enable_thinking` is dropped, and an effort stays that does not mean none.
    """
    wish = ThinkingWish(
        enable_thinking=task.enable_thinking, reasoning_effort=task.reasoning_effort
    )
    known = resolve_capabilities(card, wish)
    enable_thinking = known.thinks if known.supports_thinking_toggle else None
    effort = task.reasoning_effort if known.thinks else known.disabled_effort
    if effort == NO_EFFORT and known.thinks:
        effort = None
    if (enable_thinking, effort) == (task.enable_thinking, task.reasoning_effort):
        return task
    return task.model_copy(update={"enable_thinking": enable_thinking, "reasoning_effort": effort})


def _thinks(known: ResolvedCapabilities, wish: ThinkingWish) -> bool:
    if not known.supports_thinking_toggle:
        return known.supports_thinking
    if wish.reasoning_effort in {NO_EFFORT, known.disabled_effort} - {None}:
        return False
    if wish.enable_thinking is None:
        return wish.reasoning_effort is not None
    return wish.enable_thinking
