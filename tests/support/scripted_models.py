"""Cards of scripted models in a models folder: what end-to-end stories place instead of weights."""

from pathlib import Path
from typing import Final

from protocol.cards import ModelTask, ScriptedSection, ToolingSection, VisionSection
from store.cards import to_toml
from tests.support.builders import a_scripted_card

MODEL: Final = "scripted/story"
ENDLESS: Final = "word"
"""A reply to repeat: an answer that goes on until its budget or the context is used."""


def add_scripted_model(
    models_dir: Path,
    model_id: str = MODEL,
    *,
    size_bytes: int = 1 << 20,
    context_length: int = 8192,
    family: str | None = None,
    tasks: tuple[ModelTask, ...] = ("TextGeneration",),
    hidden_size: int = 1,
    sees: bool = False,
    **script: object,
) -> str:
    """Write the card of a scripted model, over an earlier one of that id; gives the id.

    Args:
        models_dir: The folder of models of the daemon that shall see it.
        model_id: What clients ask for.
        size_bytes: What the card says that the engine loads.
        context_length: The most tokens that an instance may be placed with.
        family: Of models; one that has any takes tools.
        tasks: What the model does.
        hidden_size: How many numbers its embeddings have.
        sees: Whether it takes images.
        script: Fields of `protocol.cards.ScriptedSection`.
    """
    card = a_scripted_card(
        model_id=model_id,
        size_bytes=size_bytes,
        context_length=context_length,
        scripted=ScriptedSection.model_validate(script),
    )
    card = card.model_copy(update={"tasks": tasks, "hidden_size": hidden_size})
    if sees:
        card = card.model_copy(update={"vision": VisionSection()})
    if family is not None:
        tooling = ToolingSection(supports_tool_calling=True)
        card = card.model_copy(update={"family": family, "tooling": tooling})
    folder = models_dir / "cards"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{model_id.replace('/', '-')}.toml").write_text(to_toml(card))
    return model_id


def add_slow_talker(models_dir: Path, model_id: str = MODEL, *, token_delay_ms: int = 20) -> str:
    """Write the card of a model that never stops by itself and says a word at a time."""
    return add_scripted_model(
        models_dir, model_id, reply=ENDLESS, repeat=True, token_delay_ms=token_delay_ms
    )
