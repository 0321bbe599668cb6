"""`POST /v1/rerank`, over real sockets."""

from typing import Any

import httpx
import pytest

from tests.support.api_harness import Api, with_api
from tests.support.fake_ports import FakeDaemon, make_card, make_instance

RERANK = "/v1/rerank"
MODEL = "test/ranker"
QUERY = "the red fox"
DOCUMENTS = ["the sea", "a red fox", "nothing", "the red fox"]


def a_ranker() -> FakeDaemon:
    return FakeDaemon(make_instance(card=make_card(MODEL, tasks=("TextRerank",))))


async def rerank(api: Api, **fields: object) -> httpx.Response:
    plain = {"model": MODEL, "query": QUERY, "documents": DOCUMENTS}
    return await api.client.post(RERANK, json={**plain, **fields})


def test_the_best_document_comes_first_under_its_own_index() -> None:
    async def story(api: Api) -> None:
        answer = (await rerank(api)).json()
        ranked = [(item["index"], item["relevance_score"]) for item in answer["results"]]
        assert ranked == [(3, 3.0), (1, 2.0), (0, 1.0), (2, 0.0)]
        assert (answer["object"], answer["model"]) == ("list", MODEL)
        assert answer["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
        assert "document" not in answer["results"][0]

    with_api(story, a_ranker())


def test_as_many_are_given_as_are_wanted_with_their_text_when_asked_for() -> None:
    async def story(api: Api) -> None:
        answer = (await rerank(api, top_n=1, return_documents=True)).json()
        best = {"index": 3, "relevance_score": 3.0, "document": {"text": DOCUMENTS[3]}}
        assert answer["results"] == [best]
        assert len((await rerank(api, top_n=100)).json()["results"]) == 4
        objects = [{"text": text} for text in DOCUMENTS]
        assert (await rerank(api, documents=objects)).json() == (await rerank(api)).json()

    with_api(story, a_ranker())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": ""}, "query"),
        ({"query": None}, "query"),
        ({"query": [1, 2]}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": None}, "documents"),
        ({"documents": "one"}, "documents"),
        ({"documents": ["a", ""]}, "documents[1]"),
        ({"documents": ["a", {"image": "x"}]}, "documents[1]"),
        ({"documents": ["a"] * 2049}, "documents"),
        ({"top_n": 0}, "top_n"),
        ({"top_n": "all"}, "top_n"),
        ({"return_documents": 1}, "return_documents"),
    ],
)
def test_what_cannot_be_ranked_is_refused_by_its_place(fields: dict[str, Any], param: str) -> None:
    async def story(api: Api) -> None:
        reply = await rerank(api, **fields)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
        assert api.daemon.inference.vector_tasks == []

    with_api(story, a_ranker())


@pytest.mark.parametrize("task", ["TextGeneration", "TextEmbedding"])
def test_a_model_that_ranks_nothing_is_refused_with_the_remedy(task: str) -> None:
    async def story(api: Api) -> None:
        reply = await rerank(api)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, "model")
        assert "TextRerank" in error["remediation"]

    with_api(story, FakeDaemon(make_instance(card=make_card(MODEL, tasks=(task,)))))
