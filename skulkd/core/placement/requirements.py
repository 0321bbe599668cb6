"""What a model needs, whichever node would run it: advice for those who plan elsewhere; pure."""

from collections.abc import Iterator
from typing import Final

from protocol.cards import EngineName, ModelCard, PackageSource, card_digest, projector_bytes
from protocol.models_api import EngineNeeds, ModelRequirements
from protocol.nodes import EngineFacts
from skulkd.core.placement.context import default_cap, model_maximum
from skulkd.core.placement.memory_fit import OVERHEAD_PERCENT, share_of

_ENGINES: Final[tuple[EngineName, ...]] = tuple(OVERHEAD_PERCENT)


def requirements_of(
    card: ModelCard, *, context_tokens: int | None = None, slots: int = 1
) -> ModelRequirements:
    """Say what a whole model takes on one node, by engine.

    Args:
        card: The model.
        context_tokens: The window; None is the one that would be served where memory allows it.
        slots: Requests served at a time.
    """
    tokens = default_cap(card).tokens if context_tokens is None else context_tokens
    is_known = card.gguf_cache_geometry is not None or card.scripted is not None
    download = (
        sum(file.size_bytes for file in card.source.files)
        if isinstance(card.source, PackageSource)
        else card.storage_size.in_bytes + projector_bytes(card)
    )
    return ModelRequirements(
        model_id=card.model_id,
        card_digest=card_digest(card),
        tasks=card.tasks,
        context_tokens=tokens,
        max_context_tokens=model_maximum(card),
        slots=slots,
        storage_bytes=card.storage_size.in_bytes,
        download_bytes=0 if card.scripted is not None else download,
        compatible_backends=card.placement.compatible_backends,
        backend_preference=card.placement.backend_preference,
        min_vram_gib=card.placement.min_vram_gib,
        n_layers=card.n_layers,
        supports_tensor=card.supports_tensor,
        cache_is_known=is_known,
        engines=tuple(_needs(card, tokens, slots)),
    )


def _needs(card: ModelCard, tokens: int, slots: int) -> Iterator[EngineNeeds]:
    named = {tag.partition("-")[0] for tag in card.placement.compatible_backends}
    for engine in _ENGINES:
        if engine not in named:
            continue
        build = EngineFacts(engine=engine, provider="binary", usable=True)
        share = share_of(card, build, slots=slots)
        yield EngineNeeds(
            engine=engine,
            weights_bytes=share.weights_bytes,
            kv_bytes_per_token=share.kv_bytes_per_token,
            kv_cache_bytes=share.kv_cache_bytes(tokens),
            overhead_bytes=share.overhead_bytes,
            needed_bytes=share.needed_bytes(tokens),
        )
