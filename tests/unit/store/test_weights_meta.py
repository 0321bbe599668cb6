from pathlib import Path

import pytest

from protocol.errors import StoreError
from store.gguf import Skipped, read_gguf
from store.weights_meta import GgufHeader, cache_geometry, header_of, read_gguf_header
from tests.support.gguf_builder import GgufBuilder, Value


def read(tmp_path: Path, architecture: str = "llama", **fields: Value | None) -> GgufHeader:
    return read_fields(tmp_path, fields, architecture)


def read_fields(
    tmp_path: Path, fields: dict[str, Value | None], architecture: str = "llama"
) -> GgufHeader:
    metadata = {key.replace("__", "."): value for key, value in fields.items()}
    builder = GgufBuilder(metadata=metadata, architecture=architecture)
    return read_gguf_header(builder.write(tmp_path / "x.gguf"))


def test_dimensions_names_and_marks_are_read(tmp_path: Path) -> None:
    header = read(tmp_path)
    assert (header.architecture, header.name, header.quantization) == ("llama", "Tiny", "F32")
    assert (header.block_count, header.embedding_length, header.context_length) == (2, 64, 2048)
    assert (header.head_count, header.head_count_kv) == (4, 2)
    assert (header.has_chat_template, header.eos_token_id, header.bos_token_id) == (True, 1, None)
    assert (header.split_no, header.split_count) == (0, 1)


def test_head_length_is_derived_where_it_is_not_said(tmp_path: Path) -> None:
    geometry = cache_geometry(read(tmp_path))
    assert (geometry.key_length, geometry.value_length) == (16, 16)
    assert geometry.kv_bytes_per_token() == 2 * 2 * 32 * 2


def test_head_lengths_that_are_said_count(tmp_path: Path) -> None:
    header = read(tmp_path, llama__attention__key_length=576, llama__attention__value_length=512)
    assert (header.key_length, header.value_length) == (576, 512)


def test_without_kv_heads_every_head_has_its_own(tmp_path: Path) -> None:
    assert read(tmp_path, llama__attention__head_count_kv=None).head_count_kv == 4


def test_a_hybrid_keeps_cache_and_state_in_different_layers(tmp_path: Path) -> None:
    header = read(
        tmp_path,
        "jamba",
        jamba__block_count=4,
        jamba__attention__head_count_kv=[0, 8, 0, 0],
        jamba__ssm__inner_size=128,
        jamba__ssm__state_size=16,
        jamba__ssm__conv_kernel=4,
        jamba__ssm__group_count=1,
    )
    geometry = cache_geometry(header)
    assert (geometry.n_attention_layers, geometry.n_kv_heads) == (1, 8)
    assert geometry.recurrent_bytes_per_slot == 3 * 4 * (3 * (128 + 2 * 16) + 128 * 16)


def test_a_model_that_attends_every_fourth_layer_caches_in_those(tmp_path: Path) -> None:
    header = read(
        tmp_path,
        "qwen3next",
        qwen3next__block_count=8,
        qwen3next__full_attention_interval=4,
        qwen3next__ssm__inner_size=128,
    )
    assert header.kv_heads_per_layer == (0, 0, 0, 2, 0, 0, 0, 2)
    assert cache_geometry(header).n_attention_layers == 2


def test_layers_of_different_width_count_as_the_widest(tmp_path: Path) -> None:
    header = read(tmp_path, llama__attention__head_count_kv=[1, 2])
    geometry = cache_geometry(header)
    assert (geometry.n_attention_layers, geometry.n_kv_heads) == (2, 2)


def test_a_model_that_says_how_to_pool_makes_embeddings(tmp_path: Path) -> None:
    assert read(tmp_path, llama__pooling_type=3).pooling
    assert not read(tmp_path, llama__pooling_type=0).pooling


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"general__architecture": None}, "general.architecture"),
        ({"general__architecture": "../x"}, "general.architecture"),
        ({"general__architecture": "x" * 60_000}, "general.architecture is 'xxx"),
        ({"general__architecture": 3}, "general.architecture is not text"),
        ({"general__type": "mmproj"}, "holds a mmproj"),
        ({"llama__block_count": None}, "llama.block_count is missing"),
        ({"llama__block_count": 0}, "llama.block_count is 0"),
        ({"llama__block_count": 1 << 31}, "llama.block_count"),
        ({"llama__block_count": "two"}, "llama.block_count"),
        ({"llama__block_count": True}, "llama.block_count"),
        ({"llama__embedding_length": 0}, "llama.embedding_length"),
        ({"llama__attention__head_count_kv": [2]}, "1 entries for 2 layers"),
        ({"llama__attention__head_count_kv": [2, 99_999]}, "head_count_kv is 99999"),
        ({"llama__attention__key_length": 1 << 30}, "key_length"),
        ({"llama__context_length": 1 << 30}, "context_length"),
        ({"split__no": 3, "split__count": 3}, "part 4 of 3"),
        ({"split__count": 4096}, "split.count"),
    ],
)
def test_a_dimension_beyond_any_model_is_refused(
    tmp_path: Path, fields: dict[str, Value | None], words: str
) -> None:
    with pytest.raises(StoreError) as refused:
        read_fields(tmp_path, fields)
    assert refused.value.code == "store.gguf_invalid"
    assert words in refused.value.message
    assert len(refused.value.message) < 1000


def test_a_value_too_long_to_keep_is_no_dimension(tmp_path: Path) -> None:
    document = read_gguf(GgufBuilder().write(tmp_path / "x.gguf"))
    document.metadata["llama.block_count"] = Skipped(length=9)
    with pytest.raises(StoreError, match=r"llama\.block_count"):
        header_of(document, "x")


def test_a_later_part_needs_no_dimensions(tmp_path: Path) -> None:
    bare: dict[str, Value | None] = dict.fromkeys(GgufBuilder().fields())
    builder = GgufBuilder(metadata={**bare, "split.no": 1, "split.count": 2})
    header = read_gguf_header(builder.write(tmp_path / "x.gguf"))
    assert (header.split_no, header.split_count, header.n_tensors) == (1, 2, 2)
