"""What a model can do, from its card and its family, for all requests or for one. Pure.

A card says it outright in `[reasoning]` and `[tooling]`; an imported file's card holds what its
tokenizer's template takes, told at the import (store/importer.py). Where a card is silent, its
coarse `capabilities` and the habits of its family count.
"""

from dataclasses import dataclass
from typing import Final

from protocol.cards import EngineName, ModelCard, has_projector
from protocol.models_api import ResolvedCapabilities, ThinkingFormat
from protocol.tasks import ChatTask

_SHOWN_BY: Final[dict[EngineName, bool]] = {"scripted": False, "llama_server": True}
"""Engines that show images to a model, and whether it takes a projector's file to do so."""
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


@dataclass(frozen=True, slots=True)
class _Thinking:
    """What a model can do about thinking; every chat asks for it."""

    can: bool
    has_toggle: bool
    disabled_effort: str | None

    def is_on(self, wish: ThinkingWish) -> bool:
        """Say whether it thinks for a request."""
        if not self.has_toggle:
            return self.can
        if wish.reasoning_effort in {NO_EFFORT, self.disabled_effort} - {None}:
            return False
        if wish.enable_thinking is None:
            return wish.reasoning_effort is not None
        return wish.enable_thinking


def sees(card: ModelCard, engine: EngineName) -> bool:
    """Say whether a model takes images on this engine.

    Its card must say that it sees, and name the projector where the engine needs one: that file is
    part of the artifact then, and an instance is not ready before it is there.
    """
    is_said = card.vision is not None or "vision" in card.capabilities
    needs_projector = _SHOWN_BY.get(engine)
    if not is_said or needs_projector is None or "TextGeneration" not in card.tasks:
        return False
    return not needs_projector or has_projector(card)


def _sees_anywhere(card: ModelCard) -> bool:
    tags = card.placement.compatible_backends
    return any(
        sees(card, engine)
        for engine in _SHOWN_BY
        if any(tag == engine or tag.startswith(f"{engine}-") for tag in tags)
    )


def resolve_capabilities(card: ModelCard, wish: ThinkingWish = _NO_WISH) -> ResolvedCapabilities:
    """Say what a client can count on.

    Args:
        card: Of the model.
        wish: Of one request; by default one that asks for nothing.
    """
    family, thinking = _family_of(card), _thinking_of(card)
    reasoning, tooling = card.reasoning, card.tooling
    own_format = reasoning.format if reasoning.format != "none" else family.thinking_format
    return ResolvedCapabilities(
        supports_text_generation="TextGeneration" in card.tasks,
        supports_embedding="TextEmbedding" in card.tasks,
        supports_vision=_sees_anywhere(card),
        supports_audio_input=card.modalities.supports_audio_input,
        supports_thinking=thinking.can,
        supports_thinking_toggle=thinking.has_toggle,
        supports_thinking_budget=reasoning.supports_budget,
        thinks=thinking.is_on(wish),
        thinking_format=own_format if thinking.can else "none",
        default_effort=reasoning.default_effort
        or (family.default_effort if thinking.can else None),
        disabled_effort=thinking.disabled_effort,
        supports_tool_calling=tooling.supports_tool_calling,
        tool_call_format=tooling.tool_call_format or family.tool_call_format,
        builtin_tools=tooling.builtin_tools,
    )


def heeded(card: ModelCard, task: ChatTask) -> ChatTask:
    """Give a task with what its model can heed of its wish about thinking, and no more.

    With a toggle, a request that says nothing is answered without thinking. Without one,
    `enable_thinking` is dropped, and an effort stays that does not mean none.
    """
    thinking = _thinking_of(card)
    is_on = thinking.is_on(
        ThinkingWish(enable_thinking=task.enable_thinking, reasoning_effort=task.reasoning_effort)
    )
    enable_thinking = is_on if thinking.has_toggle else None
    effort = task.reasoning_effort if is_on else thinking.disabled_effort
    if effort == NO_EFFORT and is_on:
        effort = None
    if (enable_thinking, effort) == (task.enable_thinking, task.reasoning_effort):
        return task
    return task.changed({"enable_thinking": enable_thinking, "reasoning_effort": effort})


def _family_of(card: ModelCard) -> _Family:
    return _FAMILIES.get((card.family or "").replace("_", "-"), _PLAIN)


def _thinking_of(card: ModelCard) -> _Thinking:
    reasoning, capabilities = card.reasoning, card.capabilities
    has_toggle = reasoning.supports_toggle or "thinking_toggle" in capabilities
    can = (
        has_toggle
        or reasoning.format != "none"
        or _family_of(card).always_thinks
        or "thinking" in capabilities
    )
    return _Thinking(can, has_toggle, reasoning.disabled_effort)
