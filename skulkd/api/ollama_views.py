"""Placed models as Ollama's clients read them. Pure.

Their lists are what a user chooses from, so they name what answers: models that are placed. A name
without a tag gets `:latest`, without which some front ends take a model for unknown. What no card
says is told as an empty text, and never made up.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from protocol.cards import ModelCard, card_digest
from protocol.ids import ModelId
from protocol.instances import Instance
from skulkd.api.dialects.ollama_output import rfc3339
from skulkd.api.model_views import capabilities_of
from skulkd.api.selection import LATEST

_CAPABILITIES: Final = ("completion", "tools", "thinking", "vision", "embedding")
"""Ollama's words, as far as they are served."""
_NEVER: Final = "2300-01-01T00:00:00Z"
"""When a model goes that stays until it is stopped: clients want a time, and a far one is "never"
to them."""
_MS_PER_S: Final = 1000


def tags_document(instances: Iterable[Instance]) -> dict[str, Any]:
    """List the models that are placed, loading ones too."""
    return {
        "models": [
            {
                **_named(copies[0].card),
                "modified_at": _placed_at(copies),
                "size": copies[0].card.storage_size.in_bytes,
            }
            for copies in _by_model(item for item in instances if item.phase != "failed")
        ]
    }


def ps_document(
    instances: Iterable[Instance], expires_ms: Callable[[Instance], int | None]
) -> dict[str, Any]:
    """List the models that are loaded, with the memory of all their copies.

    Args:
        instances: Of all models.
        expires_ms: Says when one is unloaded if nobody asks for it; None is never.
    """
    return {
        "models": [
            {
                **_named(copies[0].card),
                "size": _memory_bytes(copies, in_vram=False),
                "size_vram": _memory_bytes(copies, in_vram=True),
                "expires_at": _latest([expires_ms(item) for item in copies]),
                "context_length": _window(copies),
            }
            for copies in _by_model(item for item in instances if item.phase == "ready")
        ]
    }


def _latest(expiries: list[int | None]) -> str:
    known = [at_ms for at_ms in expiries if at_ms is not None]
    return rfc3339(max(known) // _MS_PER_S) if len(known) == len(expiries) else _NEVER


def show_document(card: ModelCard, copies: list[Instance]) -> dict[str, Any]:
    """Show one model.

    Args:
        card: Its card.
        copies: Its instances, which say how much of its context can be used.
    """
    architecture = card.family or "unknown"
    window = _window(copies) or card.context_length
    known: dict[str, Any] = {
        "block_count": card.n_layers,
        "context_length": window or None,
        "embedding_length": card.hidden_size,
        "attention.head_count_kv": card.num_key_value_heads,
    }
    document: dict[str, Any] = {
        "license": card.license.display_name or card.license.name or card.license.spdx_id or "",
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": _details(card),
        "model_info": {
            "general.architecture": architecture,
            **{f"{architecture}.{key}": value for key, value in known.items() if value is not None},
        },
        "capabilities": ollama_capabilities(card),
    }
    return document if not copies else {**document, "modified_at": _placed_at(copies)}


def ollama_capabilities(card: ModelCard) -> list[str]:
    """Say what a model can do, in Ollama's words."""
    held = capabilities_of(card)
    return [name for name in _CAPABILITIES if name in held]


def _named(card: ModelCard) -> dict[str, Any]:
    name = card.model_id if ":" in card.model_id else f"{card.model_id}{LATEST}"
    return {"name": name, "model": name, "digest": card_digest(card), "details": _details(card)}


def _details(card: ModelCard) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf" if card.gguf_file else "",
        "family": card.family or "",
        "families": [card.family] if card.family else [],
        "parameter_size": "",
        "quantization_level": card.quantization or "",
    }


def _by_model(instances: Iterable[Instance]) -> list[list[Instance]]:
    by_model: dict[ModelId, list[Instance]] = {}
    for item in instances:
        by_model.setdefault(item.model_id, []).append(item)
    return [copies for _, copies in sorted(by_model.items())]


def _placed_at(copies: list[Instance]) -> str:
    return rfc3339(max(item.placed_at_ms for item in copies) // _MS_PER_S)


def _window(copies: list[Instance]) -> int:
    ready = [item for item in copies if item.phase == "ready"]
    return max((item.plan.context_tokens for item in ready or copies), default=0)


def _memory_bytes(copies: list[Instance], *, in_vram: bool) -> int:
    return sum(
        shard.memory.weights_bytes + shard.memory.kv_cache_bytes + shard.memory.overhead_bytes
        for item in copies
        for shard in item.plan.shards
        if not in_vram or shard.memory.pool != "ram"
    )
