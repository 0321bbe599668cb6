"""Acceptance cases A38 to A45 as far as messages go, over real sockets."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from protocol.data_frames import Chunk, Failed, Finished, Started, ToolCallDelta
from protocol.errors import ErrorBody
from skulkd.api.app import create_app
from skulkd.runtime.tasks import Tasks
from tests.support.api_harness import Api, request_bytes, until, with_api
from tests.support.fake_ports import NODE, USAGE, FakeDaemon, Pause, make_card, make_instance
from tests.support.two_nodes import TwoNodes

MESSAGES = "/v1/messages"
TOOL = {"name": "f", "input_schema": {"type": "object"}}
GONE = Failed(ErrorBody(code="engine.gone", message="the engine died: signal SIGKILL"))


def body_of(**fields: object) -> dict[str, Any]:
    return {
        "model": "test/scripted",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
        **fields,
    }


async def ask(api: Api, **fields: object) -> httpx.Response:
    return await api.client.post(MESSAGES, json=body_of(**fields))


def events_of(text: str) -> list[dict[str, Any]]:
    """Read a stream; comments are passed over, and each event must be named as its data says."""
    events: list[dict[str, Any]] = []
    for part in text.split("\n\n"):
        lines = [line for line in part.splitlines() if not line.startswith(":")]
        if not lines:
            continue
        name, data = lines
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def refusal_of(reply: httpx.Response, status: int, kind: str) -> str:
    """Read an error and see that it is in this dialect's form."""
    assert reply.status_code == status
    document = reply.json()
    assert document["type"] == "error"
    assert document["error"]["type"] == kind
    assert "detail" not in document
    return str(document["error"]["message"])


def test_a38_event_lines_and_order() -> None:
    async def story(api: Api) -> None:
        reply = await ask(api, stream=True)
        assert reply.headers["content-type"].startswith("text/event-stream")
        events = events_of(reply.text)
        assert [event["type"] for event in events] == [
            "message_start", "content_block_start", "content_block_delta", "content_block_delta",
            "content_block_stop", "message_delta", "message_stop",
        ]  # fmt: skip
        message = events[0]["message"]
        assert (message["content"], message["stop_reason"]) == ([], None)
        delta = events[-2]["delta"]
        assert (delta["stop_reason"], delta["stop_sequence"]) == ("end_turn", None)
        assert events[-2]["usage"]["output_tokens"] == USAGE.completion_tokens
        assert "[DONE]" not in reply.text
        assert reply.headers["x-skulk-command-id"] == message["id"]

    with_api(story)


def test_a_stop_by_a_text_of_the_clients_is_told_with_the_text() -> None:
    async def story(api: Api) -> None:
        ending = Finished("stop", USAGE, "END")
        api.daemon.inference.script = [Started(7), Chunk("a"), ending]
        events = events_of((await ask(api, stream=True, stop_sequences=["END"])).text)
        whole = (await ask(api, stop_sequences=["END"])).json()
        for told in (events[-2]["delta"], whole):
            assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", "END")

    with_api(story)


def test_a39_message_start_already_knows_input_tokens() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = [
            Started(USAGE.prompt_tokens), Chunk("a"), Finished("stop", USAGE),
        ]  # fmt: skip
        first = events_of((await ask(api, stream=True)).text)[0]["message"]["usage"]
        whole = (await ask(api)).json()["usage"]
        assert first["input_tokens"] == whole["input_tokens"] == USAGE.prompt_tokens > 0
        for name in ("cache_read_input_tokens", "cache_creation_input_tokens"):
            assert isinstance(first[name], int)
            assert isinstance(whole[name], int)

    with_api(story)


def test_a40_block_indexes_and_fields() -> None:
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
        events = events_of((await ask(api, stream=True, tools=[TOOL])).text)
        starts = [event for event in events if event["type"] == "content_block_start"]
        assert [event["index"] for event in starts] == [0, 1, 2, 3]
        kinds = [event["content_block"]["type"] for event in starts]
        assert kinds == ["thinking", "text", "tool_use", "tool_use"]
        assert "input" not in starts[1]["content_block"]
        open_index = None
        pieces: dict[int, str] = {}
        for event in events:
            match event["type"]:
                case "content_block_start":
                    assert open_index is None
                    open_index = event["index"]
                case "content_block_delta":
                    assert event["index"] == open_index
                    text = event["delta"].get("partial_json", "")
                    pieces[event["index"]] = pieces.get(event["index"], "") + text
                    assert event["delta"].get("text", "some")
                case "content_block_stop":
                    assert event["index"] == open_index
                    open_index = None
                case _:
                    pass
        assert [json.loads(pieces[index]) for index in (2, 3)] == [{"x": 1}, {"x": 2}]
        assert events[-2]["delta"]["stop_reason"] == "tool_use"
        whole = (await ask(api, tools=[TOOL])).json()
        assert [block["type"] for block in whole["content"]] == kinds
        assert whole["content"][2]["input"] == {"x": 1}

    with_api(story)


@pytest.mark.parametrize("content", ["B", [{"type": "text", "text": "B"}]])
def test_a41_role_system_inside_messages(content: object) -> None:
    async def story(api: Api) -> None:
        turns = [{"role": "user", "content": "hi"}, {"role": "system", "content": content}]
        assert (await ask(api, system="A", messages=turns)).status_code == 200
        told = api.daemon.inference.tasks[-1].messages[0]
        assert told.role == "system"
        assert "A" in told.content
        assert "B" in told.content
        other = await ask(api, messages=[{"role": "wizard", "content": "x"}])
        refusal_of(other, 400, "invalid_request_error")

    with_api(story)


def test_a42_everything_claude_code_sends_is_accepted() -> None:
    async def story(api: Api) -> None:
        block = {"type": "text", "text": "S", "cache_control": {"type": "ephemeral", "scope": "x"}}
        tool = {**TOOL, "defer_loading": True, "cache_control": {"type": "ephemeral"}}
        body = body_of(
            system=[block] * 3,
            thinking={"type": "adaptive"},
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            output_config={"effort": "high"},
            metadata={"user_id": '{"device_id":"d"}'},
            tools=[tool],
            max_tokens=32000,
        )
        headers = {"anthropic-beta": "a,b,c", "anthropic-version": "2023-06-01"}
        for way in ({"x-api-key": "any"}, {"authorization": "Bearer any"}, {}):
            reply = await api.client.post(
                f"{MESSAGES}?beta=true", json=body, headers={**headers, **way}
            )
            assert reply.status_code in ({200} if not way else {200, 401})
        task = api.daemon.inference.tasks[-1]
        assert task.max_tokens == 32000, "what is left of the window is the worker's to know"

    with_api(story)


def test_a43_count_tokens() -> None:
    async def story(api: Api) -> None:
        body = body_of(system="S", tools=[TOOL, {**TOOL, "name": "g"}])
        used = (await api.client.post(MESSAGES, json=body)).json()["usage"]["input_tokens"]
        n_served = len(api.daemon.inference.tasks)
        del body["max_tokens"]
        reply = await api.client.post(f"{MESSAGES}/count_tokens?beta=true", json=body)
        assert reply.status_code == 200
        assert reply.json() == {"input_tokens": used}
        assert len(api.daemon.inference.tasks) == n_served, "no slot was taken"
        (_, counted) = api.daemon.inference.counted[0]
        assert [tool.name for tool in counted.tools] == ["f", "g"]
        unknown = await api.client.post(f"{MESSAGES}/count_tokens", json=body_of(model="no/such"))
        refusal_of(unknown, 404, "not_found_error")

    with_api(story)


def test_a43_a_prompt_is_counted_where_its_model_is() -> None:
    nodes = TwoNodes()
    alpha_app = create_app(nodes.alpha.dependencies(Tasks("alpha", on_death=lambda _, error: None)))
    nodes.beta.peers.servers[NODE] = alpha_app.peers

    async def story(api: Api) -> None:
        reply = await api.client.post(f"{MESSAGES}/count_tokens", json=body_of())
        assert reply.json() == {"input_tokens": USAGE.prompt_tokens}
        assert nodes.alpha.inference.counted
        assert not nodes.beta.inference.counted
        refused = await api.client.post(f"{MESSAGES}/count_tokens", json=body_of(messages=[]))
        refusal_of(refused, 400, "invalid_request_error")

    with_api(story, nodes.beta)


def test_a44_tool_result_variants() -> None:
    async def story(api: Api) -> None:
        use: list[dict[str, Any]] = [
            {"type": "tool_use", "id": name, "name": "f", "input": {}} for name in ("a", "b")
        ]
        blocks = [
            {"type": "tool_result", "tool_use_id": "a", "content": "42"},
            {"type": "tool_result", "tool_use_id": "b", "is_error": True},
            {"type": "text", "text": "go on"},
        ]
        turns: list[dict[str, Any]] = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": use},
            {"role": "user", "content": blocks},
        ]
        assert (await ask(api, messages=turns, tools=[TOOL])).status_code == 200
        roles = [message.role for message in api.daemon.inference.tasks[-1].messages]
        assert roles == ["user", "assistant", "tool", "tool", "user"]
        assert "fail" in api.daemon.inference.tasks[-1].messages[3].content
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png"}}
        pictured = {"type": "tool_result", "tool_use_id": "a", "content": [image]}
        refused = await ask(api, messages=[{"role": "user", "content": [pictured]}])
        assert "image" in refusal_of(refused, 400, "invalid_request_error")
        nameless: dict[str, Any] = {"type": "tool_use", "name": "f", "input": {}}
        refused = await ask(api, messages=[{"role": "assistant", "content": [nameless]}])
        refusal_of(refused, 400, "invalid_request_error")

    with_api(story)


def test_a45_error_envelope_for_all_failures() -> None:
    async def story(api: Api) -> None:
        without = body_of()
        del without["max_tokens"]
        reply = await api.client.post(MESSAGES, json=without)
        assert "max_tokens" in refusal_of(reply, 400, "invalid_request_error")
        refusal_of(await ask(api, messages=[]), 400, "invalid_request_error")
        reply = await api.client.post(MESSAGES, content=b"{bad")
        refusal_of(reply, 400, "invalid_request_error")
        assert "no/such" in refusal_of(await ask(api, model="no/such"), 404, "not_found_error")
        reply = await api.client.post(f"{MESSAGES}/nowhere", json={})
        refusal_of(reply, 404, "not_found_error")
        api.daemon.inference.script = [GONE]
        refusal_of(await ask(api), 503, "overloaded_error")

    with_api(story)


def test_a24_a_stream_that_is_refused_before_it_began_has_the_status_of_its_error() -> None:
    too_long = ErrorBody(code="request.context_length_exceeded", message="600 of 512 tokens")
    busy = ErrorBody(code="engine.busy", message="2 run and 8 wait", retry_after_s=3)

    async def story(api: Api) -> None:
        api.daemon.inference.script = [Failed(too_long)]
        told = refusal_of(await ask(api, stream=True), 400, "invalid_request_error")
        assert "prompt is too long" in told
        assert "600 of 512" in told
        api.daemon.inference.script = [Failed(busy)]
        reply = await ask(api, stream=True)
        refusal_of(reply, 503, "overloaded_error")
        assert reply.headers["retry-after"] == "3"
        assert api.app.n_open == 0

    with_api(story)


def test_a_client_that_goes_before_its_stream_began_frees_everything() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = [Pause(30)]
        data = request_bytes("POST", MESSAGES, body_of(stream=True))
        _, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(data)
        await until(lambda: bool(api.daemon.inference.running))
        writer.close()
        await until(lambda: not api.daemon.inference.running and not api.app.n_open)

    with_api(story)


def test_a10_a_message_that_breaks_ends_with_an_error_event() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = [Started(7), Chunk("a"), GONE]
        events = events_of((await ask(api, stream=True)).text)
        assert events[-1]["type"] == "error"
        assert events[-1]["error"]["type"] == "overloaded_error"
        assert "message_stop" not in {event["type"] for event in events}

    with_api(story)


def test_a_stream_of_messages_can_be_read_on_after_a_break() -> None:
    async def story(api: Api) -> None:
        reply = await ask(api, stream=True)
        events = events_of(reply.text)
        command_id = reply.headers["x-skulk-command-id"]
        rest = await api.client.get(f"/v1/streams/{command_id}?offset=2")
        lines = [line for line in rest.text.splitlines() if line.startswith("data: ")]
        assert [json.loads(line.removeprefix("data: ")) for line in lines] == events[2:]

    with_api(story)


def test_a_model_without_text_is_refused_in_this_dialect() -> None:
    async def story(api: Api) -> None:
        refusal_of(await ask(api), 400, "invalid_request_error")

    with_api(story, FakeDaemon(make_instance(card=make_card(tasks=("TextEmbedding",)))))
