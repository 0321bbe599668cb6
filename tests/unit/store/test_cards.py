import os
import time
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from protocol.cards import ModelCard, card_digest
from protocol.errors import StoreError
from store.cards import MAX_CARD_BYTES, parse_card, read_card, to_toml

BASE = """
model_id = "org/model"
n_layers = 3
hidden_size = 64
supports_tensor = false
tasks = ["TextGeneration"]
"""
SIZE = """
[storage_size]
in_bytes = 400
"""

# As the original writes it; field by field, none left out.
GEMMA = """
model_id = "unsloth/gemma-4-31B-it-GGUF"
n_layers = 60
hidden_size = 5376
num_key_value_heads = 16
supports_tensor = false
tasks = ["TextGeneration"]
family = "gemma"
quantization = "Q4_K_M"
base_model = "Gemma 4 31B-it"
capabilities = ["text", "thinking", "vision"]
context_length = 262144
gguf_file = "gemma-4-31B-it-Q4_K_M.gguf"
trust_remote_code = false

[storage_size]
in_bytes = 18323731456

[placement]
compatible_backends = ["llama_cpp-vulkan", "llama_cpp-rocm", "llama_cpp-cuda", "llama_cpp-cpu"]
backend_preference = ["llama_cpp-vulkan", "llama_cpp-rocm", "llama_cpp-cuda", "llama_cpp-cpu"]

[tooling]
supports_tool_calling = true
tool_call_format = "gemma4"

[runtime]
output_parser = "gemma4"

[vision]
image_token_id = 258880
model_type = "gemma4"
boi_token_id = 255999
eoi_token_id = 258882
"""
QWEN = """
model_id = "Qwen/Qwen3.6-35B-A3B-FP8"
n_layers = 40
hidden_size = 2048
num_key_value_heads = 2
supports_tensor = true
tasks = ["TextGeneration"]
quantization = "fp8"
capabilities = ["text", "thinking", "thinking_toggle"]
context_length = 262144

[storage_size]
in_bytes = 37492937900

[placement]
compatible_backends = ["vllm-cuda", "vllm-rocm"]

[tooling]
supports_tool_calling = true

[runtime]
vllm_spec_method = "mtp"
vllm_spec_num_tokens = 2
"""


def parse(extra: str = "", *, before_size: str = "") -> ModelCard:
    return parse_card((BASE + before_size + SIZE + extra).encode(), origin="card.toml")


def refusal(extra: str = "", *, before_size: str = "") -> StoreError:
    with pytest.raises(StoreError) as refused:
        parse(extra, before_size=before_size)
    return refused.value


@pytest.mark.parametrize("text", [GEMMA, QWEN])
def test_a_card_of_the_original_loads_unchanged(text: str) -> None:
    card = parse_card(text.encode(), origin="x")
    assert parse_card(to_toml(card).encode(), origin="y") == card


def test_a_card_without_placement_is_for_mlx() -> None:
    assert parse().placement.compatible_backends == ("mlx",)


@pytest.mark.parametrize(
    ("extra", "field", "nearest"),
    [
        ("[placement]\nmax_context_token = 4096", "max_context_token", "max_context_tokens"),
        ("[tooling]\nsuports_tool_calling = true", "suports_tool_calling", "supports_tool_calling"),
        ("[runtime]\nmtp_head = 3", "mtp_head", "mtp_heads"),
        ("[licence]\nname = 'x'", "licence", "license"),
        (
            "[source]\nkind='package'\npackage='p'\nversion='1'\n[[source.files]]\nsize_byte=1",
            "size_byte",
            "size_bytes",
        ),
    ],
)
def test_an_unknown_field_is_refused_by_name_with_the_nearest(
    extra: str, field: str, nearest: str
) -> None:
    error = refusal(extra)
    assert error.code == "store.card_unknown_field"
    assert error.details == {"field": field, "nearest": nearest}
    assert nearest in error.message


def test_camel_case_is_the_wires_and_not_the_files() -> None:
    error = refusal(before_size="contextLength = 4096\n")
    assert error.details == {"field": "contextLength", "nearest": "context_length"}


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("context_length = '4096'", "context_length"),
        ("context_length = -1", "context_length"),
        ("context_length = 1.0", "context_length"),
        ("capabilities = 'text'", "capabilities"),
        ("gguf_file = '../x.gguf'", "gguf_file"),
        ("gguf_file = '/x.gguf'", "gguf_file"),
        ("source_revision = 'main'", "source_revision"),
        ("generator = 2026-01-01", "dates"),
        ("generator = nan", "infinite"),
    ],
)
def test_a_bad_value_is_named(before: str, words: str) -> None:
    error = refusal(before_size=before + "\n")
    assert error.code == "store.card_invalid"
    assert words in error.message


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("[placement]\ncompatible_backends = ['cuda']", "placement.compatible_backends.0"),
        ("[runtime]\nvllm_spec_num_tokens = 2", "needs a vllm_spec_method"),
        ("[runtime]\nvllm_spec_method = 'dflash'", "needs a vllm_spec_draft_repo"),
        (
            "[runtime]\nvllm_spec_method = 'mtp'\nvllm_spec_draft_repo = 'a/b'",
            "forbids a vllm_spec_draft_repo",
        ),
        ("[vision]\nprojector_file = 'p.gguf'", "set together"),
    ],
)
def test_sections_that_do_not_hold_together_are_refused(extra: str, words: str) -> None:
    error = refusal(extra)
    assert error.code == "store.card_invalid"
    assert words in error.message


def test_remote_code_is_never_honoured() -> None:
    assert "trust_remote_code" in refusal(before_size="trust_remote_code = true\n").message


@pytest.mark.parametrize(
    ("before", "extra", "modality"),
    [
        ("", "[audio]\nkind = 'tts'", "audio"),
        ("", "[music]\nfamily = 'x'", "music"),
        ("", "[video]\nfps = 24", "video"),
        ("uses_cfg = true\n", "", "image"),
    ],
)
def test_a_card_of_another_modality_is_refused_by_that_name(
    before: str, extra: str, modality: str
) -> None:
    error = refusal(extra, before_size=before)
    assert error.details == {"modality": modality}
    assert f"{modality} is not served yet" in error.message


def test_a_task_of_another_modality_is_refused_by_that_name() -> None:
    text = (BASE + SIZE).replace("TextGeneration", "TextToImage")
    with pytest.raises(StoreError, match="image is not served yet"):
        parse_card(text.encode(), origin="x")


def test_a_stamp_of_the_registry_is_not_read_from_a_file() -> None:
    error = refusal(before_size="registry_card_id = 'x'\n")
    assert error.details == {"field": "registry_card_id"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff", "not UTF-8"),
        (b"a = ", "not TOML"),
        (b"a = 1\na = 2", "not TOML"),
        (b"#" * (MAX_CARD_BYTES + 1), "more than 262144 bytes"),
        (b"a = " + b"[" * 20_000, "card.toml"),
        (b"", "model_id"),
    ],
    ids=["bytes", "cut", "twice", "long", "deep", "empty"],
)
def test_what_is_no_card_is_an_error_and_not_a_crash(content: bytes, words: str) -> None:
    with pytest.raises(StoreError, match=words):
        parse_card(content, origin="card.toml")


def test_many_problems_are_cut_short() -> None:
    with pytest.raises(StoreError, match="and 2 more"):
        parse_card(b"context_length = 'x'", origin="x")


def test_a_missing_card_file_and_a_pipe_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as missing:
        read_card(tmp_path / "none.toml")
    assert missing.value.code == "store.not_found"
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(StoreError, match="not a regular file"):
        read_card(tmp_path / "pipe.toml")
    with pytest.raises(StoreError, match="cannot be read"):
        read_card(tmp_path)


def test_text_that_toml_must_escape_comes_back() -> None:
    card = parse().model_copy(update={"family": 'a"b\\c\n\t\x7f\x00é\U0001f600'})
    assert parse_card(to_toml(card).encode(), origin="x") == card


def test_the_digest_of_a_card_survives_its_file() -> None:
    card = parse_card(GEMMA.encode(), origin="x")
    assert card_digest(parse_card(to_toml(card).encode(), origin="y")) == card_digest(card)


def fields_of(kind: object) -> set[str]:
    """Every field name in a model and the models within it."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        inner = [fields_of(field.annotation) for field in kind.model_fields.values()]
        return set(kind.model_fields).union(*inner)
    return set[str]().union(*(fields_of(argument) for argument in get_args(kind)))


def test_every_field_of_a_card_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    missing = {name for name in fields_of(ModelCard) if f"`{name}" not in text}
    assert {name for name in missing if f"[{name}]" not in text} == set()


@pytest.mark.parametrize("part", [b"a", b'"a b"', b"'a'", b'"\\"a"'])
@pytest.mark.parametrize("text", [b"%b = 1", b"[%b]", b"a = { %b = 1 }"])
def test_a_key_of_thousands_of_parts_is_refused_before_it_is_parsed(
    part: bytes, text: bytes
) -> None:
    with pytest.raises(StoreError) as refused:
        parse_card(text % b" . ".join([part] * 5_000), origin="x")
    assert refused.value.code == "store.card_invalid"
    assert "more than 16 parts" in refused.value.message


def test_a_text_full_of_quotes_and_dots_costs_no_time() -> None:
    started = time.monotonic()
    for text in (b"." * 250_000, b'\\"' * 120_000, b"a" * 250_000, b"a." * 8 + b" " * 250_000):
        with pytest.raises(StoreError):
            parse_card(b'a = "%b"' % text, origin="x")
    assert time.monotonic() - started < 5
