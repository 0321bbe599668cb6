"""Acceptance cases A29 to A31, and A23 as far as vectors go, over real sockets."""

import asyncio
import base64
from typing import Any

import httpx
import pytest

from protocol.data_frames import Chunk, Failed, Finished, Started, Usage
from protocol.errors import ErrorBody
from protocol.vectors import numbers_of, pack_vector
from skulkd.api import vectors
from tests.support.api_harness import Api, until, with_api
from tests.support.fake_ports import FakeDaemon, Pause, make_card, make_instance
from tests.support.text_engines import vector_of

EMBEDDINGS = "/v1/embeddings"
MODEL = "test/embedder"
DONE = Finished("stop", Usage(5, 0))


def an_embedder() -> FakeDaemon:
    card = make_card(MODEL, tasks=("TextEmbedding",))
    return FakeDaemon(make_instance(card=card))


async def embed(api: Api, value: object, **fields: object) -> httpx.Response:
    return await api.client.post(EMBEDDINGS, json={"model": MODEL, "input": value, **fields})


async def refused(api: Api, value: object, param: str, **fields: object) -> dict[str, Any]:
    """Ask for what must be refused before anything is dispatched."""
    reply = await embed(api, value, **fields)
    assert reply.status_code == 400, reply.text
    error: dict[str, Any] = reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["remediation"]
    assert api.daemon.inference.vector_tasks == []
    return error


def test_a29_base64_is_the_float_list_as_little_endian_float32() -> None:
    async def story(api: Api) -> None:
        asked: list[dict[str, str]] = [
            {},
            {"encoding_format": "float"},
            {"encoding_format": "base64"},
        ]
        plain, as_float, as_base64 = [(await embed(api, "a fox", **how)).json() for how in asked]
        assert plain == as_float
        (item,) = as_base64["data"]
        decoded = numbers_of(base64.b64decode(item["embedding"], validate=True))
        assert decoded.tolist() == plain["data"][0]["embedding"]
        assert (item["object"], item["index"], as_base64["object"]) == ("embedding", 0, "list")
        assert as_base64["model"] == MODEL
        error = await refused_format(api, "hex")
        assert "base64" in error["message"]
        await refused_format(api, 3)

    async def refused_format(api: Api, value: object) -> dict[str, Any]:
        api.daemon.inference.vector_tasks.clear()
        return await refused(api, "a fox", "encoding_format", encoding_format=value)

    with_api(story, an_embedder())


@pytest.mark.parametrize(
    ("value", "param"),
    [([2028, 374, 264], "input[0]"), ([[1, 2], [3]], "input[0]"), (["a", [1]], "input[1]")],
)
def test_a30_token_ids_are_refused_because_only_text_is_read(value: object, param: str) -> None:
    async def story(api: Api) -> None:
        error = await refused(api, value, param)
        assert "only text is read" in error["message"]
        assert error["code"] == "request.unsupported_field"

    with_api(story, an_embedder())


def test_a31_a_batch_keeps_its_order_and_usage_is_the_sum() -> None:
    async def story(api: Api) -> None:
        answer = (await embed(api, ["a", "b two", "a"], user="somebody")).json()
        items = answer["data"]
        assert [item["index"] for item in items] == [0, 1, 2]
        assert items[0]["embedding"] == items[2]["embedding"] != items[1]["embedding"]
        assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
        texts = [f"text number {index}" for index in range(300)]
        many = (await embed(api, texts)).json()
        got = [pack_vector(item["embedding"]) for item in many["data"]]
        assert got == [vector_of(text) for text in texts]

    with_api(story, an_embedder())


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ([], "input"),
        ("", "input"),
        (["x", ""], "input[1]"),
        (["x", None], "input[1]"),
        (["x", True], "input[1]"),
        (["x", {"text": "y"}], "input[1]"),
        (None, "input"),
        (True, "input"),
        (5, "input"),
        ({"text": "x"}, "input"),
        (["x"] * 2049, "input"),
    ],
)
def test_a31_what_has_no_vector_is_refused_by_its_place(value: object, param: str) -> None:
    with_api(lambda api: _refused(api, value, param), an_embedder())


async def _refused(api: Api, value: object, param: str) -> None:
    await refused(api, value, param)


def test_a31_dimensions_are_refused_and_null_is_absent() -> None:
    async def story(api: Api) -> None:
        await refused(api, "x", "dimensions", dimensions=64)
        await refused(api, "x", "dimensions", dimensions=4)
        reply = await embed(api, "x", dimensions=None, encoding_format=None, user=None)
        assert reply.status_code == 200

    with_api(story, an_embedder())


def test_a31_a_text_that_is_too_long_is_refused_with_both_numbers() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.vector_script = [
            Failed(
                ErrorBody(
                    code="request.context_length_exceeded",
                    message="`input[1]` has 8000 tokens, and test/embedder reads 512 at a time",
                    remediation="Cut it into shorter texts.",
                    details={"param": "input[1]", "prompt_tokens": 8000, "context_tokens": 512},
                )
            )
        ]
        reply = await embed(api, ["x", "y"])
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["param"] == "input[1]"
        assert error["details"] == {"prompt_tokens": 8000, "context_tokens": 512}

    with_api(story, an_embedder())


def test_a23_a_model_that_is_not_placed_or_makes_no_embeddings() -> None:
    async def story(api: Api) -> None:
        body = {"model": "no/such", "input": "x"}
        reply = await api.client.post(EMBEDDINGS, json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
        assert "skulk place no/such" in reply.json()["error"]["message"]
        reply = await api.client.post(EMBEDDINGS, json={"model": "test/scripted", "input": "x"})
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, "model")
        assert "TextEmbedding" in error["remediation"]
        assert api.daemon.inference.vector_tasks == []

    with_api(story)


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/messages"])
def test_a23_text_routes_refuse_an_embedding_model(route: str) -> None:
    async def story(api: Api) -> None:
        messages = [{"role": "user", "content": "hi"}]
        body = {"model": MODEL, "messages": messages, "max_tokens": 5}
        reply = await api.client.post(route, json=body)
        assert reply.status_code == 400
        assert "TextGeneration" in reply.json()["error"]["remediation"]
        assert api.daemon.inference.tasks == []

    with_api(story, an_embedder())


def test_a_cancel_ends_a_request_for_vectors() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.vector_script = [Started(), Pause(60), DONE]
        asking = asyncio.create_task(embed(api, "x"))
        running = api.daemon.inference.running
        await until(lambda: bool(running))
        (command_id,) = running
        assert (await api.client.post(f"/v1/cancel/{command_id}")).status_code == 200
        reply = await asking
        assert (reply.status_code, reply.json()["error"]["code"]) == (499, "request.cancelled")
        assert reply.headers["x-skulk-command-id"] == command_id

    with_api(story, an_embedder())


def test_a_client_that_goes_ends_its_task() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.vector_script = [Started(), Pause(60), DONE]
        asking = asyncio.create_task(embed(api, "x"))
        await until(lambda: bool(api.daemon.inference.running))
        asking.cancel()
        await until(lambda: api.daemon.inference.n_closed_early == 1)
        assert not api.daemon.inference.running

    with_api(story, an_embedder())


def test_an_instance_that_is_busy_hands_the_task_to_the_next_one() -> None:
    card = make_card(MODEL, tasks=("TextEmbedding",))
    pair = [make_instance(card=card, number=number) for number in (1, 2)]
    busy = ErrorBody(code="engine.busy", message="all slots are taken")

    async def story(api: Api) -> None:
        inference = api.daemon.inference
        inference.scripts = {pair[0].instance_id: [Failed(busy)]}
        replies = [await embed(api, "x") for _ in range(8)]
        assert {reply.status_code for reply in replies} == {200}
        assert set(inference.served) == {item.instance_id for item in pair}
        inference.scripts = {item.instance_id: [Failed(busy)] for item in pair}
        reply = await embed(api, "x")
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        # What has begun is never asked of another.
        gone = Failed(ErrorBody(code="engine.gone", message="it died"))
        inference.scripts = {item.instance_id: [Started(), gone] for item in pair}
        inference.served.clear()
        assert (await embed(api, "x")).status_code == 503
        assert len(inference.served) == 1

    with_api(story, FakeDaemon(*pair))


@pytest.mark.parametrize(
    "chunks",
    [
        (),
        (Chunk(vectors=(vector_of("a"),)),),
        (Chunk(vectors=(vector_of("a"), vector_of("b", dimensions=5))),),
        (Chunk(vectors=(vector_of("a"),) * 3),),
        (Chunk("text"),),
    ],
)
def test_vectors_that_are_not_what_was_asked_for_are_no_answer(chunks: tuple[Chunk, ...]) -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.vector_script = [Started(), *chunks, DONE]
        reply = await embed(api, ["a", "b"])
        error = reply.json()["error"]
        assert (reply.status_code, error["skulk_code"]) == (500, "engine.request_failed")

    with_api(story, an_embedder())


def test_more_vectors_than_one_answer_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "MAX_VECTOR_BYTES", 64)

    async def story(api: Api) -> None:
        reply = await embed(api, ["x"] * 5)
        assert reply.status_code == 413
        assert "fewer texts" in reply.json()["error"]["remediation"]
        assert (await embed(api, ["x"] * 4)).status_code == 200

    with_api(story, an_embedder())


def test_a_long_answer_is_written_beside_the_loop_and_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(api: Api) -> None:
        short = await embed(api, ["a", "b"])
        monkeypatch.setattr(vectors, "_OFF_LOOP_BYTES", 1)
        assert (await embed(api, ["a", "b"])).content == short.content

    with_api(story, an_embedder())


def test_a_node_that_stops_ends_requests_for_vectors_with_an_error() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.vector_script = [Started(), Pause(60), DONE]
        asking = asyncio.create_task(embed(api, "x"))
        await until(lambda: bool(api.daemon.inference.running))
        api.app.stop()
        reply = await asking
        assert (reply.status_code, reply.json()["error"]["skulk_code"]) == (503, "cluster.stopping")

    with_api(story, an_embedder())
