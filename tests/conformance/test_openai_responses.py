"""Acceptance cases A32 to A37, and A10, A23 and A24 as far as responses go, over real sockets."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from protocol.data_frames import Chunk, Failed, Finished, Started, ToolCallDelta
from protocol.errors import ErrorBody
from skulkd.api.sse import StreamLimits
from tests.support.api_harness import Api, with_api
from tests.support.fake_ports import (
    USAGE,
    FakeDaemon,
    Pause,
    make_card,
    make_instance,
    plain_answer,
)

RESPONSES = "/v1/responses"
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
GONE = Failed(ErrorBody(code="engine.gone", message="the engine died: signal SIGKILL"))
TOO_LONG = Failed(
    ErrorBody(code="request.context_length_exceeded", message="9000 tokens, the window is 512")
)


def body_of(**fields: object) -> dict[str, Any]:
    return {"model": "test/scripted", "input": "hi", **fields}


async def ask(api: Api, **fields: object) -> httpx.Response:
    return await api.client.post(RESPONSES, json=body_of(**fields))


def events_of(text: str) -> list[dict[str, Any]]:
    """Read a stream: every part is an event, named as its data says, numbered from 0 on."""
    events: list[dict[str, Any]] = []
    for part in text.split("\n\n")[:-1]:
        name, data = part.splitlines()
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        events.append(event)
    return events


async def stream(api: Api, **fields: object) -> list[dict[str, Any]]:
    reply = await ask(api, stream=True, **fields)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    return events_of(reply.text)


def refusal_of(reply: httpx.Response, status: int) -> dict[str, Any]:
    """Read an error and see that it is in OpenAI's form."""
    assert reply.status_code == status
    document = reply.json()
    assert set(document) == {"error"}
    assert {"message", "type", "param", "code"} <= set(document["error"])
    return document["error"]


def test_a32_every_event_has_a_type_and_responses_are_nested() -> None:
    async def story(api: Api) -> None:
        events = await stream(api)
        assert [event["type"].removeprefix("response.") for event in events] == [
            "created", "in_progress", "output_item.added", "content_part.added",
            "output_text.delta", "output_text.delta", "output_text.done", "content_part.done",
            "output_item.done", "completed",
        ]  # fmt: skip
        for event in (*events[:2], events[-1]):
            assert event["response"]["object"] == "response"
        response = events[-1]["response"]
        assert response["status"] == "completed"
        assert response["output"][0]["content"][0]["text"] == "Hello world"
        assert response["usage"]["total_tokens"] == 10
        whole = (await ask(api)).json()
        assert whole["output"][0]["content"] == response["output"][0]["content"]
        assert (whole["object"], whole["status"]) == ("response", "completed")

    with_api(story)


def test_a33_sequence_numbers_stable_ids_and_lists_of_logprobs() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = [
            Started(7),
            Chunk(reasoning="hm"),
            Chunk("Let me see."),
            Chunk(tool_calls=(ToolCallDelta(0, "a", "f", '{"x":'),)),
            Chunk(tool_calls=(ToolCallDelta(0, None, None, "1}"),)),
            Chunk(tool_calls=(ToolCallDelta(1, "b", "f", '{"x":2}'),)),
            Finished("tool_calls", USAGE),
        ]
        events = await stream(api, tools=[TOOL])
        ids = {event["response"]["id"] for event in events if "response" in event}
        assert len(ids) == 1
        assert ids.pop().startswith("resp_")
        output = events[-1]["response"]["output"]
        for index, item in enumerate(output):
            mine = [event for event in events if event.get("output_index") == index]
            told = {event.get("item_id") or event["item"]["id"] for event in mine}
            assert told == {item["id"]}
        indexes = [event["output_index"] for event in events if "output_index" in event]
        assert indexes == sorted(indexes)
        assert [item["type"] for item in output] == [
            "reasoning", "message", "function_call", "function_call",
        ]  # fmt: skip
        assert [item["arguments"] for item in output[2:]] == ['{"x":1}', '{"x":2}']
        for event in events:
            if event["type"].startswith("response.output_text."):
                assert event["logprobs"] == []

    with_api(story)


def test_a34_tool_types_that_cannot_run_here_are_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(api: Api) -> None:
        tools: list[dict[str, Any]] = [
            {"type": "web_search"},
            {"type": "namespace", "name": "ns", "tools": [{**TOOL, "name": "g"}]},
            {"type": "custom", "name": "c"},
            {"type": "function", "name": "f", "parameters": {}},
        ]
        with caplog.at_level(logging.INFO, "skulkd.api.inference"):
            assert (await ask(api, tools=tools)).status_code == 200
        offered = [tool.name for tool in api.daemon.inference.tasks[-1].tools]
        assert offered == ["ns__g", "f"]
        (line,) = (record.getMessage() for record in caplog.records if "left out" in record.msg)
        assert "web_search" in line
        assert "custom" in line

    with_api(story)


def test_a34_a_function_of_a_namespace_is_called_by_the_names_that_the_client_knows() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = [
            Started(7),
            Chunk(tool_calls=(ToolCallDelta(0, "a", "ns__f", "{}"),)),
            Finished("tool_calls", USAGE),
        ]
        tools = [{"type": "namespace", "name": "ns", "tools": [TOOL]}]
        (call,) = (await ask(api, tools=tools)).json()["output"]
        assert (call["namespace"], call["name"]) == ("ns", "f")
        output = {"type": "function_call_output", "call_id": "a", "output": "r"}
        assert (await ask(api, tools=tools, input=[call, output])).status_code == 200
        told = api.daemon.inference.tasks[-1].messages[0]
        assert told.tool_calls[0].name == "ns__f"

    with_api(story)


def test_a35_a_failure_ends_with_response_failed() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = [Started(7), Chunk("a"), GONE]
        events = await stream(api)
        assert events[-1]["type"] == "response.failed"
        response = events[-1]["response"]
        assert response["status"] == "failed"
        assert response["error"]["code"] == "server_error"
        assert response["error"]["skulk_code"] == "engine.gone"
        assert "SIGKILL" in response["error"]["message"]
        assert response["output"][0]["content"][0]["text"] == "a"
        refusal_of(await ask(api), 503)

    with_api(story)


def test_a35_also_after_keep_alives_which_are_events() -> None:
    daemon = FakeDaemon()
    daemon.stream_limits = StreamLimits(keep_alive_s=0.02, check_s=0.01)
    daemon.inference.script = [Pause(0.3), GONE]

    async def story(api: Api) -> None:
        events = await stream(api)
        kinds = [event["type"].removeprefix("response.") for event in events]
        assert kinds[0] == "created"
        assert kinds[-1] == "failed"
        assert set(kinds[1:-1]) == {"in_progress"}
        assert len(kinds) > 4

    with_api(story, daemon)


def test_a35_a_cancelled_response_is_failed_and_not_to_be_repeated() -> None:
    daemon = FakeDaemon()
    daemon.inference.script = [Started(7), Chunk("a"), asyncio.Event()]

    async def read(api: Api, reply: httpx.Response) -> AsyncIterator[str]:
        cancelled = False
        async for line in reply.aiter_lines():
            if "output_text.delta" in line and not cancelled:
                cancelled = True
                command_id = reply.headers["x-skulk-command-id"]
                told = await api.client.post(f"/v1/cancel/{command_id}")
                assert told.status_code == 200
            yield line

    async def story(api: Api) -> None:
        body = body_of(stream=True)
        async with api.client.stream("POST", RESPONSES, json=body) as reply:
            text = "\n".join([line async for line in read(api, reply)])
        last = events_of(text + "\n\n")[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["error"]["code"] == "invalid_prompt"
        assert last["response"]["error"]["skulk_code"] == "request.cancelled"

    with_api(story, daemon)


@pytest.mark.parametrize("output", ["r", [{"type": "input_text", "text": "r"}]])
def test_a36_the_output_of_a_call_is_text_or_a_list(output: object) -> None:
    async def story(api: Api) -> None:
        call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
        item = {"type": "function_call_output", "call_id": "c1", "output": output}
        assert (await ask(api, tools=[TOOL], input=[call, item])).status_code == 200
        told = api.daemon.inference.tasks[-1].messages[-1]
        assert (told.role, told.tool_call_id, told.content) == ("tool", "c1", "r")

    with_api(story)


def test_a36_an_image_is_refused_by_name_where_the_model_does_not_see() -> None:
    async def story(api: Api) -> None:
        image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
        item = {"type": "function_call_output", "call_id": "c1", "output": [image]}
        for items in ([item], [{"role": "user", "content": [image]}]):
            error = refusal_of(await ask(api, input=items), 400)
            assert "vision" in error["message"]
            assert error["type"] == "invalid_request_error"

    with_api(story)


def test_a37_a_budget_that_is_used_up_is_an_incomplete_response() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = plain_answer("It is", " a", reason="length")
        last = (await stream(api, max_output_tokens=5))[-1]
        assert last["type"] == "response.incomplete"
        response = last["response"]
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["output"][0]["content"][0]["text"] == "It is a"
        assert response["output"][0]["status"] == "incomplete"
        assert response["usage"]["output_tokens"] == USAGE.completion_tokens
        whole = (await ask(api, max_output_tokens=5)).json()
        assert whole["status"] == "incomplete"
        assert api.daemon.inference.tasks[-1].max_tokens == 5
        larger = await ask(api, max_output_tokens=100_000)
        assert larger.status_code == 200, "what is left of the window is the worker's to know"

    with_api(story)


def test_a24_a_prompt_that_is_too_long_is_told_by_its_code() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = [TOO_LONG]
        events = await stream(api)
        assert [event["type"].removeprefix("response.") for event in events] == [
            "created", "in_progress", "failed",
        ]  # fmt: skip
        error = events[-1]["response"]["error"]
        assert error["code"] == "context_length_exceeded"
        assert error["message"].startswith("context_length_exceeded: 9000")
        assert refusal_of(await ask(api), 400)["code"] == "context_length_exceeded"

    with_api(story)


def test_a23_refusals_are_in_openais_form() -> None:
    async def story(api: Api) -> None:
        error = refusal_of(await ask(api, model="no/such"), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        error = refusal_of(await ask(api, previous_response_id="resp_1"), 400)
        assert error["param"] == "previous_response_id"
        assert "input" in error["remediation"]
        refusal_of(await ask(api, input=[]), 400)
        refusal_of(await api.client.post(RESPONSES, content=b"{bad"), 400)

    with_api(story)


def test_a15_fields_of_agents_are_accepted() -> None:
    async def story(api: Api) -> None:
        reply = await ask(
            api,
            store=True,
            include=["reasoning.encrypted_content", "newer"],
            service_tier="auto",
            prompt_cache_key="k",
            safety_identifier="s",
            client_metadata={"x": "y"},
            metadata={"run": "7"},
            reasoning=None,
            text={"verbosity": "low"},
            tools=None,
            tool_choice=None,
            stream_options={"include_obfuscation": False},
            foo=1,
        )
        assert reply.status_code == 200
        response = reply.json()
        assert response["metadata"] == {"run": "7"}
        assert response["store"] is False

    with_api(story)


def test_a_response_can_be_read_on_after_a_break() -> None:
    async def story(api: Api) -> None:
        reply = await ask(api, stream=True)
        events = events_of(reply.text)
        command_id = reply.headers["x-skulk-command-id"]
        assert events[0]["response"]["id"] == f"resp_{command_id}"
        rest = await api.client.get(f"/v1/streams/{command_id}?offset=3")
        lines = [line for line in rest.text.splitlines() if line.startswith("data: ")]
        assert [json.loads(line.removeprefix("data: ")) for line in lines] == events[3:]

    with_api(story)


def test_a_model_without_text_is_refused() -> None:
    async def story(api: Api) -> None:
        assert refusal_of(await ask(api), 400)["param"] == "model"

    with_api(story, FakeDaemon(make_instance(card=make_card(tasks=("TextEmbedding",)))))
