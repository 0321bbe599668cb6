"""Embeddings of a real model in a real engine: the demo model, whose card says that it makes some.

It generates text and was never trained for this, so that nothing is said about what is near what.
"""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from protocol.ids import ModelId
from protocol.vectors import numbers_of
from store.cards import to_toml
from store.importer import card_from_gguf
from tests.support.chat_client import answer_text, ask
from tests.support.daemon import Daemon
from tests.support.demo_model import demo_model_path
from tests.support.patience import allowed_s
from tests.support.shared_daemon import shared_daemon

MODEL = "test/demo-embedder"
DIMENSIONS = 576
WINDOW = 1024
LONGEST = 512
READY_S = 90


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that has the model placed and ready."""
    root = tmp_path_factory.mktemp("embedding")
    card = card_from_gguf(demo_model_path(), ModelId(MODEL))
    card = card.model_copy(update={"tasks": ("TextGeneration", "TextEmbedding")})
    cards = root / "models" / "cards"
    cards.mkdir(parents=True)
    (cards / "demo.toml").write_text(to_toml(card))
    with shared_daemon(root, models_dir=root / "models") as daemon:
        instance_id = daemon.place(MODEL, slots=4, context_tokens=WINDOW)
        daemon.wait_phase(instance_id, timeout_s=READY_S)
        yield daemon


def embed(node: Daemon, value: object, **fields: object) -> httpx.Response:
    body = {"model": MODEL, "input": value, **fields}
    return node.http.post("/v1/embeddings", json=body, timeout=allowed_s(60))


def rows_of(answer: httpx.Response) -> list[list[float]]:
    assert answer.is_success, answer.text
    document: dict[str, Any] = answer.json()
    return [item["embedding"] for item in document["data"]]


def test_a31_a_batch_of_a_real_model_keeps_its_order(node: Daemon) -> None:
    answer = embed(node, ["a fox", "the sea at night", "a fox"])
    fox, sea, again = rows_of(answer)
    assert [len(row) for row in (fox, sea, again)] == [DIMENSIONS] * 3
    assert sum(number * number for number in fox) == pytest.approx(1.0, abs=1e-4)
    assert fox == pytest.approx(again, abs=1e-4)
    assert fox != pytest.approx(sea, abs=1e-2)
    assert answer.json()["usage"] == {"prompt_tokens": 8, "total_tokens": 8}


def test_a29_a_real_vector_is_the_same_in_both_forms(node: Daemon) -> None:
    (as_float,) = rows_of(embed(node, "a fox"))
    encoded = embed(node, "a fox", encoding_format="base64").json()["data"][0]["embedding"]
    assert numbers_of(base64.b64decode(encoded)).tolist() == pytest.approx(as_float, abs=1e-6)


def test_a31_the_longest_text_is_read_and_a_longer_one_refused_with_both_numbers(
    node: Daemon,
) -> None:
    for n_words in (400, LONGEST - 1):
        answer = embed(node, "word " * n_words)
        assert len(rows_of(answer)) == 1
        assert answer.json()["usage"]["prompt_tokens"] == n_words + 1
    error = embed(node, "word " * 8000).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["details"] == {"prompt_tokens": 8001, "context_tokens": LONGEST}


def test_texts_of_several_batches_come_in_their_order(node: Daemon) -> None:
    texts = [f"number {index % 20}" for index in range(100)]
    rows = rows_of(embed(node, texts))
    for index in range(20):
        assert rows[index] == pytest.approx(rows[index + 80], abs=1e-3)
    assert rows[0] != pytest.approx(rows[1], abs=1e-3)


def test_a_model_that_makes_embeddings_chats_too_if_its_card_says_so(node: Daemon) -> None:
    question = {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
    answer = ask(node, MODEL, messages=[question], temperature=0, max_tokens=24)
    assert "Paris" in answer_text(answer)
