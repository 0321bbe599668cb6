"""Acceptance cases A01 to A25 as far as chat completions go, over real sockets."""

import asyncio
import json
from typing import Any

import pytest

from protocol.cards import ReasoningSection, ToolingSection
from protocol.data_frames import Chunk, Failed, Finished, Started, TokenLogprob, ToolCallDelta
from protocol.errors import ErrorBody
from skulkd.api.sse import StreamLimits
from tests.support.api_harness import CHAT, Api, chat_body, events_of, until, with_api
from tests.support.fake_ports import (
    USAGE,
    FakeDaemon,
    Pause,
    make_card,
    make_instance,
    plain_answer,
)

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
GONE = Failed(ErrorBody(code="engine.gone", message="the engine died: signal SIGKILL"))


@pytest.mark.parametrize("extra", [{}, {"tools": [TOOL]}])
def test_a01_usage_trailer_chunk(extra: dict[str, Any]) -> None:
    async def story(api: Api) -> None:
        reply = await api.chat(stream=True, stream_options={"include_usage": True}, **extra)
        assert reply.text.endswith("data: [DONE]\n\n")
        events = events_of(reply.text)
        trailer = events[-1]
        assert trailer["choices"] == []
        usage = trailer["usage"]
        assert usage["prompt_tokens"] > 0
        assert usage["completion_tokens"] > 0
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert [event["usage"] for event in events[:-1]] == [None] * (len(events) - 1)
        for name in ("id", "created", "model", "object"):
            assert len({event[name] for event in events}) == 1

    with_api(story)


def test_tools_that_the_prompt_format_would_drop_are_refused_by_name() -> None:
    async def story(api: Api) -> None:
        refused = await api.chat(tools=[TOOL])
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "tools"
        assert "supports_tool_calling" in refused.json()["error"]["remediation"]
        assert (await api.chat(tools=[])).status_code == 200

    deaf = make_instance(card=make_card(tooling=ToolingSection()))
    with_api(story, FakeDaemon(deaf))


def test_a02_delta_has_no_illegal_nulls_and_role_once() -> None:
    async def story(api: Api) -> None:
        reply = await api.chat(stream=True, max_tokens=3)
        events = events_of(reply.text)
        assert all(event["object"] == "chat.completion.chunk" for event in events)
        deltas = [event["choices"][0]["delta"] for event in events]
        assert deltas[0]["role"] == "assistant"
        assert all("role" not in delta for delta in deltas[1:])
        for delta in deltas:
            assert not {"tool_calls", "function_call", "name", "tool_call_id"} & delta.keys()
            assert isinstance(delta.get("content", ""), str)
        reasons = [event["choices"][0]["finish_reason"] for event in events]
        assert reasons == [None, None, "stop"]
        assert "usage" not in events[0]

    with_api(story)


def test_a_stop_by_a_text_of_the_clients_is_told_with_the_text() -> None:
    async def story(api: Api) -> None:
        ending = Finished("stop", USAGE, 'E"ND')
        api.daemon.inference.script = [Started(7), Chunk("a"), ending]
        events = events_of((await api.chat(stream=True, stop='E"ND')).text)
        whole = (await api.chat(stop='E"ND')).json()
        for document in (events[-1], whole):
            (choice,) = document["choices"]
            assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", 'E"ND')
        assert "stop_reason" not in events[0]["choices"][0]

    with_api(story)


def test_a02_role_is_announced_even_when_nothing_was_said() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = plain_answer()
        events = events_of((await api.chat(stream=True)).text)
        assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert events[1]["choices"][0]["finish_reason"] == "stop"

    with_api(story)


def test_a03_parallel_tool_calls_get_their_own_index() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = [
            Started(7),
            Chunk(tool_calls=(ToolCallDelta(0, "a", "f", '{"x":'),)),
            Chunk(tool_calls=(ToolCallDelta(0, None, None, "1}"),)),
            Chunk(tool_calls=(ToolCallDelta(1, "b", "f", "{}"),)),
            Finished("tool_calls", USAGE),
        ]
        events = events_of((await api.chat(stream=True, tools=[TOOL])).text)
        deltas = [call for e in events for call in e["choices"][0]["delta"].get("tool_calls", [])]
        assert [call["index"] for call in deltas] == [0, 0, 1]
        assert "id" not in deltas[1]
        assert "name" not in deltas[1]["function"]
        assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
        whole = (await api.chat(tools=[TOOL])).json()["choices"][0]["message"]
        assert whole["content"] is None
        assert [call["id"] for call in whole["tool_calls"]] == ["a", "b"]
        assert [json.loads(call["function"]["arguments"]) for call in whole["tool_calls"]] == [
            {"x": 1},
            {},
        ]

    with_api(story)


def test_a05_failure_is_never_a_finish_reason() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = [Started(7), Chunk("a"), Chunk("b"), Chunk("c"), GONE]
        whole = await api.chat()
        assert whole.status_code == 503
        assert whole.json()["error"]["type"] == "server_error"
        streamed = await api.chat(stream=True)
        assert '"finish_reason":"' not in streamed.text
        assert "[DONE]" not in streamed.text

    with_api(story)


def test_a06_characters_arrive_whole() -> None:
    async def story(api: Api) -> None:
        text = "👨‍👩‍👧 日本語 \u2028 é"
        api.daemon.inference.script = plain_answer(*text)
        reply = await api.chat(stream=True)
        said = "".join(
            event["choices"][0]["delta"].get("content", "") for event in events_of(reply.text)
        )
        assert said == text
        assert (await api.chat()).json()["choices"][0]["message"]["content"] == text

    with_api(story)


def test_a08_bytes_flow_during_a_long_prefill() -> None:
    daemon = FakeDaemon()
    daemon.stream_limits = StreamLimits(keep_alive_s=0.02, check_s=0.01)
    daemon.inference.script = [Pause(0.3), Started(7), Chunk("late"), Finished("stop", USAGE)]

    async def story(api: Api) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with api.client.stream("POST", CHAT, json=chat_body(stream=True)) as reply:
            assert reply.status_code == 200
            parts = reply.aiter_text()
            first = await anext(parts)
            assert loop.time() - began < 0.25
            assert first.startswith(f": command_id {reply.headers['x-skulk-command-id']}\n\n")
            rest = "".join([part async for part in parts])
        assert rest.count(": keep-alive\n\n") >= 3
        assert rest.endswith("data: [DONE]\n\n")

    with_api(story, daemon)


def test_a09_streams_are_neither_buffered_nor_compressed() -> None:
    async def story(api: Api) -> None:
        headers = {"accept-encoding": "gzip, zstd"}
        reply = await api.client.post(CHAT, json=chat_body(stream=True), headers=headers)
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert "no-cache" in reply.headers["cache-control"]
        assert "no-transform" in reply.headers["cache-control"]
        assert reply.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in reply.headers
        assert "content-length" not in reply.headers

    with_api(story)


def test_a10_failure_mid_stream_is_visible_and_ends_the_connection() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = [Started(7), Chunk("a"), Chunk("b"), Chunk("c"), GONE]
        body = json.dumps(chat_body(stream=True)).encode()
        request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
        # No `connection: close` was asked for: it is the failure that closes it.
        received = await asyncio.wait_for(api.raw(request), 2)
        error = events_of(received.decode())[-1]["error"]
        assert error["type"] == "server_error"
        assert error["param"] is None
        assert error["code"] == "engine.gone"
        assert "SIGKILL" in error["message"]
        assert b"[DONE]" not in received
        assert received.endswith(b"0\r\n\r\n")
        api.daemon.inference.script = plain_answer("again")
        again = await api.chat()
        assert again.json()["choices"][0]["message"]["content"] == "again"

    with_api(story)


def test_a11_disconnect_cancels() -> None:
    never = asyncio.Event()

    async def story(api: Api) -> None:
        api.daemon.inference.script = [Started(7), Chunk("a"), Chunk("b"), never]
        async with api.client.stream("POST", CHAT, json=chat_body(stream=True)) as reply:
            command_id = reply.headers["x-skulk-command-id"]
            async for part in reply.aiter_text():
                if "data: " in part:
                    break
        began = asyncio.get_running_loop().time()
        await until(lambda: api.daemon.inference.n_closed_early == 1)
        assert asyncio.get_running_loop().time() - began < 0.25
        await until(lambda: api.app.n_open == 0)
        gone = await api.client.post(f"/v1/cancel/{command_id}")
        assert gone.status_code == 404
        api.daemon.inference.script = plain_answer("x")
        await api.chat(stream=True)
        assert api.daemon.inference.n_closed_early == 1
        assert api.daemon.inference.cancelled == []

    with_api(story)


def test_a11_disconnect_cancels_a_whole_answer_too() -> None:
    never = asyncio.Event()

    async def story(api: Api) -> None:
        api.daemon.inference.script = [Started(7), Chunk("a"), never]
        asking = asyncio.ensure_future(api.chat())
        await until(lambda: len(api.daemon.inference.running) == 1)
        asking.cancel()
        await asyncio.wait({asking})
        began = asyncio.get_running_loop().time()
        await until(lambda: api.daemon.inference.n_closed_early == 1)
        assert asyncio.get_running_loop().time() - began < 0.25
        await until(lambda: api.app.n_open == 0)

    with_api(story)


@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {}])
def test_a12_assistant_turn_with_calls_needs_no_content(content: dict[str, Any]) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": [call], **content},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]

    async def story(api: Api) -> None:
        assert (await api.chat(messages=messages)).status_code == 200
        task = api.daemon.inference.tasks[0]
        assert [turn.role for turn in task.messages] == ["user", "assistant", "tool"]
        assert task.messages[1].tool_calls[0].name == "f"
        assert task.messages[2].tool_call_id == "c1"

    with_api(story)


CALLING = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        (
            [("developer", "d"), ("system", "s"), ("user", "a"), ("user", "b")],
            [("system", "d\n\ns"), ("user", "a\n\nb")],
        ),
        (
            [("user", "a"), ("assistant", "x"), ("system", "late"), ("user", "b")],
            [("system", "late"), ("user", "a"), ("assistant", "x"), ("user", "b")],
        ),
        (
            [("user", "a"), ("assistant", "x"), ("assistant", "y"), ("system", "s")],
            [("system", "s"), ("user", "a"), ("assistant", "x\n\ny")],
        ),
        ([("user", "a"), ("system", ""), ("user", "b")], [("system", ""), ("user", "a\n\nb")]),
    ],
)
def test_a13_developer_role_late_system_and_repeated_roles(
    sent: list[tuple[str, str]], taken: list[tuple[str, str]]
) -> None:
    async def story(api: Api) -> None:
        turns = [{"role": role, "content": content} for role, content in sent]
        assert (await api.chat(messages=turns)).status_code == 200
        (task,) = api.daemon.inference.tasks
        assert [(turn.role, turn.content) for turn in task.messages] == taken

    with_api(story)


def test_a13_calls_and_their_results_stay_turns_of_their_own() -> None:
    async def story(api: Api) -> None:
        result = {"role": "tool", "tool_call_id": "c", "content": "1"}
        turns = [
            {"role": "user", "content": "a", "name": "ann"},
            {"role": "user", "content": "b", "name": "bob"},
            {"role": "assistant", "content": "hm"},
            CALLING, result, result, CALLING, result,
        ]  # fmt: skip
        assert (await api.chat(messages=turns)).status_code == 200
        (task,) = api.daemon.inference.tasks
        assert [turn.role for turn in task.messages] == [str(turn["role"]) for turn in turns]

    with_api(story)


def test_a14_max_completion_tokens_is_honoured_and_wins() -> None:
    async def story(api: Api) -> None:
        for fields, expected in (
            ({"max_completion_tokens": 5}, 5),
            ({"max_completion_tokens": 5, "max_tokens": 9}, 5),
            ({"max_tokens": 9}, 9),
            ({"max_tokens": 9, "max_completion_tokens": None}, 9),
        ):
            assert (await api.chat(**fields)).status_code == 200
            assert api.daemon.inference.tasks[-1].max_tokens == expected
        for name in ("max_completion_tokens", "max_tokens"):
            for value in (0, -1):
                refused = await api.chat(**{name: value})
                assert refused.status_code == 400
                assert refused.json()["error"]["param"] == name

    with_api(story)


def test_a15_unknown_and_null_fields_do_not_fail() -> None:
    fields: dict[str, Any] = {
        "store": False, "metadata": {}, "service_tier": "auto", "parallel_tool_calls": True,
        "verbosity": "low", "prompt_cache_key": "k", "tools": None, "tool_choice": None,
        "stop": None, "stream_options": None, "user": None, "foo": 1, "n": 1, "logit_bias": {},
        "temperature": None, "top_p": None, "seed": None, "response_format": None,
        "logprobs": None, "top_logprobs": None, "stream": None, "max_tokens": None,
        "functions": None, "function_call": None, "modalities": None, "audio": None,
    }  # fmt: skip

    async def story(api: Api) -> None:
        assert (await api.chat(**fields)).status_code == 200
        tolerated = await api.chat(stream=False, stream_options={"include_usage": True})
        assert tolerated.status_code == 200

    with_api(story)


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain; charset=utf-8",
        None,
        "application/x-www-form-urlencoded",
        "application/json; charset=utf-8",
    ],
)
def test_a17_json_under_any_content_type(content_type: str | None) -> None:
    async def story(api: Api) -> None:
        headers = {"content-type": content_type} if content_type else {}
        content = json.dumps(chat_body()).encode()
        reply = await api.client.post(CHAT, content=content, headers=headers)
        assert reply.status_code == 200

    with_api(story)


def test_a18_logprobs_agree_between_stream_and_whole() -> None:
    async def story(api: Api) -> None:
        tokens = (
            TokenLogprob("He", -0.1, (("He", -0.1), ("Ha", -2.0))),
            TokenLogprob("é", -0.2, (("é", -0.2),)),
        )
        api.daemon.inference.script = [
            Started(7),
            *(Chunk(token.token, logprobs=(token,)) for token in tokens),
            Finished("stop", USAGE),
        ]
        whole = (await api.chat(logprobs=True, top_logprobs=2)).json()
        entries = whole["choices"][0]["logprobs"]["content"]
        assert api.daemon.inference.tasks[0].logprobs == 2
        events = events_of((await api.chat(logprobs=True, top_logprobs=2, stream=True)).text)
        streamed = [
            entry
            for event in events
            if event["choices"][0]["logprobs"]
            for entry in event["choices"][0]["logprobs"]["content"]
        ]
        assert streamed == entries
        assert entries[1]["bytes"] == list("é".encode())
        assert entries[0]["top_logprobs"][1]["token"] == "Ha"

    with_api(story)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        (None, "auto"),
        ({"type": "function", "function": {"name": "f"}}, "=f"),
    ],
)
def test_a21_all_forms_of_tool_choice(choice: object, expected: str) -> None:
    async def story(api: Api) -> None:
        assert (await api.chat(tools=[TOOL], tool_choice=choice)).status_code == 200
        assert api.daemon.inference.tasks[0].tool_choice == expected
        named = {"type": "function", "function": {"name": "unknown"}}
        refused = await api.chat(tools=[TOOL], tool_choice=named)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "tool_choice"

    with_api(story)


def test_a22_reasoning_leaves_and_returns() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = [
            Started(7),
            Chunk(reasoning="hm"),
            Chunk("yes"),
            Finished("stop", USAGE),
        ]
        message = (await api.chat()).json()["choices"][0]["message"]
        assert message["reasoning_content"] == "hm"
        assert message["content"] == "yes"
        for name in ("reasoning_content", "reasoning"):
            turns: list[dict[str, str]] = [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "a", name: "hm"},
                {"role": "user", "content": "r"},
            ]
            await api.chat(messages=turns)
            assert api.daemon.inference.tasks[-1].messages[1].reasoning == "hm"

    with_api(story)


def test_every_field_of_the_table_reaches_the_engine() -> None:
    schema = {"type": "object"}
    fields: dict[str, Any] = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "max_tokens": 11,
        "stop": ["a", "b"], "seed": 42, "frequency_penalty": 0.1, "presence_penalty": 0.2,
        "repetition_penalty": 1.1, "repetition_context_size": 64, "logprobs": True,
        "top_logprobs": 2, "tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False,
        "enable_thinking": True, "reasoning_effort": "low", "user": "u",
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
    }  # fmt: skip

    async def story(api: Api) -> None:
        assert (await api.chat(**fields)).status_code == 200
        task = api.daemon.inference.tasks[0]
        assert task.sampling.model_dump() == {
            name: fields[name] for name in type(task.sampling).model_fields
        }
        assert task.max_tokens == 11
        assert task.stop == ("a", "b")
        assert task.logprobs == 2
        assert task.tools[0].name == "f"
        assert task.enable_thinking is True
        assert task.reasoning_effort == "low"
        assert task.response_format is not None
        assert task.response_format.json_schema == schema
        assert task.stream is False
        assert (await api.chat(stop="x", stream=True)).status_code == 200
        assert api.daemon.inference.tasks[1].stop == ("x",)
        assert api.daemon.inference.tasks[1].stream is True

    card = make_card(reasoning=ReasoningSection(supports_toggle=True))
    with_api(story, FakeDaemon(make_instance(card=card)))
