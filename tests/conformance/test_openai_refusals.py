"""Acceptance cases A16, A20 and A23 to A25, and decision T9: what is refused, and how."""

from typing import Any

import pytest

from protocol.data_frames import Failed
from protocol.errors import ErrorBody
from tests.support.api_harness import CHAT, Api, events_of, with_api
from tests.support.fake_ports import (
    FakeDaemon,
    make_card,
    make_instance,
    on_engine,
)

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": {}}, "messages"),
    ({"messages": [123]}, "messages[0]"),
    ({"messages": [{}]}, "messages[0].role"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "secret words", "content": "x"}]}, "messages[0].role"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"stream": "yes"}, "stream"),
    ({"stop": [1]}, "stop[0]"),
    ({"tools": {}}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"response_format": {"type": "json_schema", "schema": {}}}, "response_format.json_schema"),
    ({"response_format": {"type": "sound"}}, "response_format.type"),
    ({"model": 7}, "model"),
    ({"model": None}, "model"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_a16_wrong_types_give_a_400_envelope(fields: dict[str, Any], param: str) -> None:
    async def story(api: Api) -> None:
        reply = await api.chat(**fields)
        assert reply.status_code == 400
        assert "detail" not in reply.json()
        error = reply.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param
        assert isinstance(error["message"], str)
        assert "secret words" not in reply.text
        assert api.daemon.inference.tasks == []

    with_api(story)


@pytest.mark.parametrize("body", [b"{bad", b"[]", b"", b"null", b'"x"', b"\xff\xfe", b"{} {}"])
def test_a16_broken_json_gives_a_400_envelope(body: bytes) -> None:
    async def story(api: Api) -> None:
        reply = await api.client.post(CHAT, content=body)
        assert reply.status_code == 400
        assert reply.json()["error"]["type"] == "invalid_request_error"
        assert reply.json()["error"]["code"] == "request.invalid"

    with_api(story)


@pytest.mark.parametrize(
    "image",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "data:image/webp;base64,AAAA", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,!"}},
        {"type": "image_url", "image_url": "data:image/png;base64,AAAA"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "image_url"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
    ],
)
def test_a20_image_for_a_text_model_names_the_missing_vision(image: dict[str, Any]) -> None:
    async def story(api: Api) -> None:
        parts = [{"type": "text", "text": "what is this?"}, image]
        reply = await api.chat(messages=[{"role": "user", "content": parts}])
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "messages[0].content[1]"
        assert "vision" in reply.json()["error"]["message"]

    with_api(story)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_t9_what_the_engine_cannot_do_is_refused_by_the_names_of_field_and_engine(
    *, fields: dict[str, Any], param: str, stream: bool
) -> None:
    async def story(api: Api) -> None:
        refused = await api.chat(**fields, stream=stream)
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert (error["param"], error["code"]) == (param, "request.unsupported_field")
        assert "scripted" in error["message"]
        assert (await api.chat(response_format={"type": "text"}, logprobs=False)).is_success

    with_api(story, FakeDaemon(on_engine(make_instance(), "scripted")))


def test_what_one_of_two_engines_can_do_is_served_by_that_one() -> None:
    able = make_instance(number=2)

    async def story(api: Api) -> None:
        for _ in range(6):
            assert (await api.chat(logprobs=True)).is_success
        assert set(api.daemon.inference.served) == {able.instance_id}

    with_api(story, FakeDaemon(on_engine(make_instance(), "scripted"), able))


def test_a23_model_that_is_not_placed() -> None:
    async def story(api: Api) -> None:
        for stream in (False, True):
            reply = await api.chat(model="no/such", stream=stream)
            assert reply.status_code == 404
            error = reply.json()["error"]
            assert error["message"].startswith("No instance found for model no/such")
            assert "skulk place no/such" in error["message"]
            assert error["type"] == "invalid_request_error"
            assert error["param"] == "model"
            assert error["code"] == "model_not_found"

    with_api(story)


def test_a23_model_that_does_not_generate_text() -> None:
    card = make_card("test/embedder", tasks=("TextEmbedding",))

    async def story(api: Api) -> None:
        reply = await api.chat(model="test/embedder")
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "model"

    with_api(story, FakeDaemon(make_instance(card=card)))


OVERFLOW = Failed(
    ErrorBody(
        code="request.context_length_exceeded",
        message="the prompt has 513 tokens, the window is 512",
    )
)


def test_a24_overflow_is_machine_readable() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = [OVERFLOW]
        whole = await api.chat()
        assert whole.status_code == 400
        streamed = await api.chat(stream=True)
        events = events_of(streamed.text)
        assert len(events) == 1
        for error in (whole.json()["error"], events[0]["error"]):
            assert error["code"] == "context_length_exceeded"
            assert error["message"].startswith("context_length_exceeded:")
            assert "513" in error["message"]
            assert "512" in error["message"]
            assert error["type"] == "invalid_request_error"

    with_api(story)


def test_a25_budget_that_cannot_fit_is_refused_at_once() -> None:
    async def story(api: Api) -> None:
        reply = await api.chat(max_tokens=512)
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "context_length_exceeded"
        assert api.daemon.inference.tasks == []
        assert (await api.chat(max_tokens=511)).status_code == 200

    with_api(story)
