"""Models as clients of the OpenAI dialect read them, with more. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

from protocol.cards import HubSource, ModelCard
from protocol.ids import ModelId
from protocol.models_api import Companions, ModelEntry
from protocol.state import ClusterState
from skulkd.api.memory_views import boot_views
from skulkd.api.ports import CatalogModel
from skulkd.core.model_capabilities import resolve_capabilities

CompanionOf = Mapping[str, tuple[ModelId, ...]]
"""The models that name a repository as their companion, by that repository."""
NO_COMPANIONS: Final[CompanionOf] = {}


def companions_in(cards: Iterable[ModelCard]) -> CompanionOf:
    """Find the repositories that are loaded along with the models of these cards."""
    found: dict[str, tuple[ModelId, ...]] = {}
    for card in cards:
        runtime = card.runtime
        for repository in {
            runtime.mtp_sidecar_repo,
            runtime.assistant_model_repo,
            runtime.served_spec_draft_repo,
            runtime.vllm_spec_draft_repo,
        }:
            if repository is not None and repository != card.model_id:
                found[repository] = (*found.get(repository, ()), card.model_id)
    return found


def model_entry(
    item: CatalogModel, state: ClusterState, companions: CompanionOf = NO_COMPANIONS
) -> ModelEntry:
    """Show one model.

    Args:
        item: Its card, and whether its files are here.
        state: With what is placed, and what was measured.
        companions: Of the whole catalogue.
    """
    card, runtime = item.card, item.card.runtime
    placed = [one for one in state.instances.values() if one.model_id == card.model_id]
    ready = [one for one in placed if one.phase == "ready"]
    windows = [one.plan.context_tokens for one in ready or placed]
    owner, _, name = card.model_id.rpartition("/")
    parents = companions.get(card.model_id) or companions.get(card.source_repository or "") or ()
    resolved = resolve_capabilities(card)
    marks = {
        "custom": item.origin == "custom",
        "installed": item.installed,
        "placed": bool(placed),
        "ready": bool(ready),
        "on_demand": any(one.ttl_ms is not None for one in placed),
        "vision": resolved.supports_vision,
        "thinking": resolved.supports_thinking,
        "embedding": resolved.supports_embedding,
        "rerank": "TextRerank" in card.tasks,
        "tensor": card.supports_tensor,
        "companion": bool(parents),
    }
    return ModelEntry(
        id=card.model_id,
        owned_by=owner or "skulk",
        name=name,
        tasks=card.tasks,
        capabilities=capabilities_of(card),
        tags=tuple(mark for mark, holds in marks.items() if holds),
        family=card.family or "",
        quantization=card.quantization or "",
        base_model=card.base_model or "",
        storage_size_bytes=card.storage_size.in_bytes,
        context_length=card.context_length,
        context_window=max(windows, default=None),
        backends=card.placement.compatible_backends,
        supports_tensor=card.supports_tensor,
        resolved_capabilities=resolved,
        runtime=Companions(
            mtp_sidecar_repo=runtime.mtp_sidecar_repo,
            assistant_model_repo=runtime.assistant_model_repo,
            served_spec_draft_repo=runtime.served_spec_draft_repo,
        ),
        source=card.source.kind if card.source else "none",
        source_revision=_revision(card),
        installed=item.installed,
        placed=bool(placed),
        ready=bool(ready),
        placeable=not parents,
        companion_of=parents,
        license=card.license.display_name or card.license.spdx_id or card.license.name or "",
        measured=boot_views(state.measurements, card),
    )


def capabilities_of(card: ModelCard) -> tuple[str, ...]:
    """Say what a model can do, in the words that clients look for."""
    resolved = resolve_capabilities(card)
    # A card may say so of a model that nothing here can show an image to.
    found = [word for word in card.capabilities if word != "vision" or resolved.supports_vision]
    words = {
        "completion": resolved.supports_text_generation,
        "embedding": resolved.supports_embedding,
        "rerank": "TextRerank" in card.tasks,
        "tools": resolved.supports_tool_calling,
        "thinking": resolved.supports_thinking,
        "vision": resolved.supports_vision,
    }
    found += [word for word, holds in words.items() if holds]
    return tuple(dict.fromkeys(found))


def _revision(card: ModelCard) -> str | None:
    """Of a card that says none, the one that its files are fetched at."""
    if card.source_revision is None and isinstance(card.source, HubSource):
        return card.source.revision
    return card.source_revision
