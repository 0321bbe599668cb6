"""A card that is written as TOML and read again is the same card, whatever stands in it."""

from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from protocol.cards import (
    ArtifactFile,
    CacheGeometry,
    LicenseSection,
    LocalPart,
    LocalSource,
    ModelCard,
    PackageSource,
    PlacementSection,
    ReasoningSection,
    RuntimeSection,
    StorageSize,
    ToolingSection,
    VisionSection,
    card_digest,
)
from store.cards import parse_card, to_toml

Model = TypeVar("Model", bound=BaseModel)


def made(kind: type[Model], **fields: st.SearchStrategy[object]) -> st.SearchStrategy[Model]:
    # Not st.builds: Pydantic's signatures name the aliases.
    return st.fixed_dictionaries(fields).map(kind.model_validate)


# Everything but surrogates, which no UTF-8 file can hold.
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
maybe_words = st.none() | words
sizes = st.integers(1, 1 << 46)
segments = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True)
paths = st.lists(
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,20}", fullmatch=True), min_size=1, max_size=4
).map("/".join)
absolute_paths = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40
).map(lambda text: "/" + text)
digests = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
model_ids = st.lists(segments, min_size=1, max_size=2).map("/".join)
backends = st.lists(
    st.sampled_from(["mlx", "llama_server", "llama_cpp-cpu", "vllm-cuda"]), max_size=4
).map(tuple)

package_sources = made(
    PackageSource,
    package=st.just("some-package"),
    version=st.just("1.0"),
    files=st.lists(
        made(ArtifactFile, path=paths, size_bytes=sizes, sha256=digests),
        min_size=1,
        max_size=3,
    ).map(tuple),
)
local_sources = made(
    LocalSource,
    path=absolute_paths,
    size_bytes=sizes,
    modified_ns=st.integers(0, 1 << 62),
    further_parts=st.lists(made(LocalPart, path=absolute_paths, size_bytes=sizes), max_size=2).map(
        tuple
    ),
)
cards = made(
    ModelCard,
    model_id=model_ids,
    n_layers=st.integers(1, 4096),
    hidden_size=st.integers(1, 1 << 20),
    num_key_value_heads=st.none() | st.integers(1, 4096),
    supports_tensor=st.just(value=False),
    tasks=st.sampled_from([("TextGeneration",), ("TextEmbedding", "TextGeneration")]),
    storage_size=made(StorageSize, in_bytes=sizes),
    family=maybe_words,
    base_model=maybe_words,
    capabilities=st.lists(words, max_size=3).map(tuple),
    context_length=st.integers(0, 1 << 26),
    gguf_file=st.none() | paths,
    gguf_cache_geometry=st.none()
    | made(
        CacheGeometry,
        n_attention_layers=st.integers(0, 99),
        n_kv_heads=st.integers(0, 99),
        key_length=st.integers(0, 999),
        value_length=st.integers(0, 999),
    ),
    placement=made(
        PlacementSection,
        compatible_backends=backends,
        min_vram_gib=st.none() | st.floats(0, 65536),
    ),
    reasoning=made(ReasoningSection, default_effort=maybe_words),
    tooling=made(ToolingSection, builtin_tools=st.lists(words, max_size=2).map(tuple)),
    runtime=made(RuntimeSection, prompt_renderer=maybe_words, mtp_heads=st.integers(0, 64)),
    vision=st.none() | made(VisionSection, image_token=maybe_words),
    license=made(LicenseSection, notice=maybe_words),
    source=st.none() | package_sources | local_sources,
    generator=maybe_words,
)


@settings(max_examples=200)
@given(card=cards)
def test_a_written_card_reads_back_equal(card: ModelCard) -> None:
    text = to_toml(card)
    again = parse_card(text.encode(), origin="x")
    assert again == card
    assert card_digest(again) == card_digest(card)
    assert to_toml(again) == text
