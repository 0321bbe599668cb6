"""Embeddings and scores of real nodes, made here and on another node by the scripted engine."""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from protocol.cards import ModelTask
from protocol.vectors import numbers_of
from tests.support.chat_client import ask
from tests.support.cluster import Cluster, cluster_of, running_cluster
from tests.support.daemon import Daemon, wait_until
from tests.support.patience import allowed_s
from tests.support.scripted_models import add_scripted_model

EMBEDDER = "scripted/embedder"
SLOW = "scripted/slow-embedder"
MORTAL = "scripted/mortal-embedder"
RANKER = "scripted/ranker"
TALKER = "scripted/talker"
DIMENSIONS = 4096
WINDOW = 512


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes; all models are on the second."""
    with running_cluster(tmp_path_factory.mktemp("embeddings"), 2) as nodes:
        server = nodes[1]
        add(server, EMBEDDER, hidden_size=DIMENSIONS)
        add(server, SLOW, first_token_delay_ms=1000)
        add(server, MORTAL, exit_after_tokens=3)
        add(server, RANKER, "TextRerank")
        add(server, TALKER, "TextGeneration")
        where = [cluster_of(server)["node_id"]]
        models = (EMBEDDER, SLOW, MORTAL, RANKER, TALKER)
        placed = [
            server.place(model, nodes=where, slots=1, context_tokens=WINDOW) for model in models
        ]
        for instance_id in placed:
            for node in nodes:
                node.wait_phase(instance_id)
        yield nodes


def add(
    node: Daemon,
    model_id: str,
    task: ModelTask = "TextEmbedding",
    *,
    hidden_size: int = 8,
    first_token_delay_ms: int = 0,
    exit_after_tokens: int | None = None,
) -> None:
    add_scripted_model(
        node.models_dir,
        model_id,
        tasks=(task,),
        hidden_size=hidden_size,
        first_token_delay_ms=first_token_delay_ms,
        exit_after_tokens=exit_after_tokens,
    )


def embed(
    node: Daemon, value: object, *, model: str = EMBEDDER, encoding_format: str | None = None
) -> dict[str, Any]:
    answer = post(node, value, model=model, encoding_format=encoding_format)
    assert answer.is_success, answer.text
    document: dict[str, Any] = answer.json()
    return document


def post(
    node: Daemon, value: object, *, model: str = EMBEDDER, encoding_format: str | None = None
) -> httpx.Response:
    body = {"model": model, "input": value, "encoding_format": encoding_format}
    return node.http.post("/v1/embeddings", json=body, timeout=allowed_s(30))


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["skulk_code"] == code
    assert error["remediation"]
    return error


def in_flight(node: Daemon, model: str) -> int:
    instances = node.http.get("/state").json()["instances"]
    instance_id = next(key for key, value in instances.items() if value["modelId"] == model)
    return int(node.instance(instance_id)["inFlight"] or 0)


def test_a31_300_texts_have_the_same_vectors_through_every_node(cluster: Cluster) -> None:
    texts = [f"this is text number {index}" for index in range(299)] + ["this is text number 0"]
    answers = [embed(node, texts, encoding_format="base64") for node in cluster]
    assert answers[0]["data"] == answers[1]["data"]
    assert answers[0]["usage"] == {"prompt_tokens": 1500, "total_tokens": 1500}
    vectors = [base64.b64decode(item["embedding"]) for item in answers[0]["data"]]
    assert [item["index"] for item in answers[0]["data"]] == [*range(300)]
    assert {len(vector) for vector in vectors} == {DIMENSIONS * 4}
    assert vectors[0] == vectors[299] != vectors[1]


def test_a29_both_forms_are_the_same_numbers(cluster: Cluster) -> None:
    for node in cluster:
        as_float = embed(node, ["a fox", "the sea"])["data"]
        as_base64 = embed(node, ["a fox", "the sea"], encoding_format="base64")["data"]
        decoded = [numbers_of(base64.b64decode(item["embedding"])) for item in as_base64]
        assert [item["embedding"] for item in as_float] == [row.tolist() for row in decoded]


def test_a31_a_text_that_is_too_long_is_refused_with_both_numbers(cluster: Cluster) -> None:
    for node in cluster:
        error = refused(
            post(node, ["short", "word " * 8000]), 400, "request.context_length_exceeded"
        )
        assert error["param"] == "input[1]"
        assert error["details"] == {"prompt_tokens": 8000, "context_tokens": WINDOW}
        assert len(embed(node, "word " * WINDOW)["data"]) == 1


def test_texts_that_do_not_fit_the_pool_together_are_read_in_turn(cluster: Cluster) -> None:
    answer = embed(cluster[0], ["word " * 400] * 5)
    assert answer["usage"]["prompt_tokens"] == 2000
    assert len({tuple(item["embedding"]) for item in answer["data"]}) == 1


def test_documents_are_ranked_through_every_node(cluster: Cluster) -> None:
    body = {"model": RANKER, "query": "a red fox", "documents": ["the sea", "a red fox", "a fox"]}
    for node in cluster:
        answer = node.http.post("/v1/rerank", json=body).json()
        assert [item["index"] for item in answer["results"]] == [1, 2, 0]


def test_a23_each_route_refuses_the_models_of_the_others(cluster: Cluster) -> None:
    for node in cluster:
        refused(post(node, "x", model=TALKER), 400, "request.invalid")
        refused(post(node, "x", model=RANKER), 400, "request.invalid")
        refused(post(node, "x", model="no/such"), 404, "request.model_not_found")
        refused(ask(node, EMBEDDER), 400, "request.invalid")


@pytest.mark.parametrize("taker", [0, 1], ids=["elsewhere", "here"])
def test_a_client_that_goes_frees_the_slot_between_two_batches(
    cluster: Cluster, taker: int
) -> None:
    # 36 batches, of a second each.
    body = {"model": SLOW, "input": ["x"] * 2000}
    with (
        httpx.Client(base_url=cluster[taker].http.base_url, trust_env=False) as impatient,
        pytest.raises(httpx.ReadTimeout),
    ):
        impatient.post("/v1/embeddings", json=body, timeout=3)
    wait_until(lambda: in_flight(cluster[1], SLOW) == 0, timeout_s=5, what="its slot is free")
    assert len(embed(cluster[taker], "x", model=SLOW)["data"]) == 1


def test_an_engine_that_dies_ends_the_request_with_an_error_and_comes_back(
    cluster: Cluster,
) -> None:
    dead = post(cluster[0], "one two three four", model=MORTAL)
    assert dead.status_code in {502, 503}, dead.text
    assert dead.json()["error"]["remediation"]
    wait_until(
        lambda: post(cluster[0], "one", model=MORTAL).is_success,
        timeout_s=20,
        what="the engine has been started anew",
    )
