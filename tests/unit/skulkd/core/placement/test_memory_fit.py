import pytest

from protocol.cards import ModelTask, StorageSize, VisionSection
from protocol.images import MAX_IMAGES_PIXELS
from skulkd.core.placement.memory_fit import MIB, share_of
from tests.support.builders import a_card, a_scripted_card, an_engine


@pytest.mark.parametrize(
    ("tasks", "family", "more_bytes"),
    [
        (("TextGeneration",), "bert", 0),
        (("TextGeneration", "TextEmbedding"), "llama", 594 * MIB),
        (("TextEmbedding",), "qwen3", 594 * MIB),
        (("TextRerank",), "qwen3", 594 * MIB),
        (("TextEmbedding",), "bert", 18 * MIB),
    ],
)
def test_the_batch_in_which_a_text_is_seen_whole_is_part_of_the_plan(
    tasks: tuple[ModelTask, ...], family: str, more_bytes: int
) -> None:
    text_card = a_card().model_copy(update={"context_length": 512, "family": family})
    plain = share_of(text_card, an_engine(), slots=1)
    share = share_of(text_card.model_copy(update={"tasks": tasks}), an_engine(), slots=1)
    assert share.overhead_bytes - plain.overhead_bytes == more_bytes


def test_a_script_takes_no_memory_for_its_batches() -> None:
    card = a_scripted_card()
    embedder = card.model_copy(update={"tasks": ("TextEmbedding",)})
    assert share_of(embedder, an_engine(), slots=1) == share_of(card, an_engine(), slots=1)


def test_a_projector_and_the_images_it_is_shown_are_part_of_the_plan() -> None:
    card = a_card()
    vision = VisionSection(projector_file="p.gguf", projector_size=StorageSize(in_bytes=900 * MIB))
    plain = share_of(card, an_engine(), slots=1)
    seeing = share_of(card.model_copy(update={"vision": vision}), an_engine(), slots=1)
    assert seeing.weights_bytes == plain.weights_bytes + 900 * MIB
    assert seeing.overhead_bytes >= plain.overhead_bytes + 900 * MIB + MAX_IMAGES_PIXELS * 3
    blind = card.model_copy(update={"vision": VisionSection(), "capabilities": ("vision",)})
    assert share_of(blind, an_engine(), slots=1) == plain
