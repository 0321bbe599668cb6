"""Whatever JSON arrives is a task or a refusal by name; whatever text leaves is one whole event."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from protocol.data_frames import Chunk, Finished, Usage
from protocol.errors import RequestError
from protocol.ids import CommandId, ModelId
from protocol.tasks import ChatTask
from skulkd.api.dialects.fields import MAX_MESSAGES
from skulkd.api.dialects.openai_chat import parse_chat
from skulkd.api.dialects.openai_chat_output import ChatAnswer, ChatStream
from skulkd.api.dialects.openai_choices import AnswerHead, UsageTally
from tests.support.junk import Place, places, with_junk

COMMAND = CommandId("aaaaaa-aaaaaaaaaaaaaaaaaaaa")
FIELDS = [
    "model", "messages", "stream", "temperature", "top_p", "top_k", "min_p", "max_tokens",
    "max_completion_tokens", "stop", "seed", "frequency_penalty", "presence_penalty",
    "repetition_penalty", "repetition_context_size", "logprobs", "top_logprobs", "tools",
    "tool_choice", "enable_thinking", "reasoning_effort", "response_format", "stream_options",
    "n", "logit_bias", "modalities", "functions", "unknown",
]  # fmt: skip
KEYS = ["role", "content", "type", "text", "tool_calls", "function", "name", "arguments", "id",
        "schema", "json_schema", "include_usage", "parameters", "refusal"]  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8), st.sampled_from([10**400, -(10**400)]),
    st.sampled_from(["user", "assistant", "system", "tool", "text", "json_schema", "function"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8), st.booleans())
@settings(max_examples=400, deadline=None)
def test_any_object_is_a_task_or_a_named_refusal(body: dict[str, Any], is_plausible: bool) -> None:
    if is_plausible:
        body = {**body, "model": "a/b", "messages": [{"role": "user", "content": "x"}]}
    refusal: RequestError | None = None
    task: ChatTask | None = None
    try:
        task = parse_chat(body, command_id=COMMAND).task
    except RequestError as error:
        refusal = error
    except ValidationError:
        return  # the shell names the field of a task that a wire type refuses
    if refusal is not None:
        assert refusal.code in {
            "request.invalid",
            "request.unsupported_field",
            "request.model_not_found",
        }
        assert refusal.details["param"]
    else:
        assert task is not None
        assert task.messages
        assert task.command_id == COMMAND


@pytest.mark.parametrize("name", ["temperature", "seed", "max_tokens", "stop", "messages"])
@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_a_number_beyond_every_float_is_refused_by_name(name: str, number: int) -> None:
    body: dict[str, Any] = {"model": "a/b", "messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(RequestError) as refused:
        parse_chat({**body, name: number}, command_id=COMMAND)
    assert refused.value.details["param"] in {name, "stop[0]"}
    assert len(refused.value.message) < 200


def test_more_messages_than_the_loop_can_read_at_once_are_refused() -> None:
    message = {"role": "user", "content": "x"}
    body: dict[str, Any] = {"model": "a/b", "messages": [message] * MAX_MESSAGES}
    (turn,) = parse_chat(body, command_id=COMMAND).task.messages
    assert turn.content.count("x") == MAX_MESSAGES
    body["messages"].append(message)
    with pytest.raises(RequestError, match=f"{MAX_MESSAGES + 1} messages") as refused:
        parse_chat(body, command_id=COMMAND)
    assert refused.value.details["param"] == "messages"


FULL: dict[str, Any] = {
    "model": "a/b",
    "stream": True,
    "stream_options": {"include_usage": True},
    "stop": ["a"],
    "logprobs": True,
    "top_logprobs": 2,
    "modalities": ["text"],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "x"}]},
        {
            "role": "assistant",
            "tool_calls": [{"id": "i", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "x", "tool_call_id": "i", "name": "f"},
        {"role": "user", "content": "hi"},
    ],
}


@pytest.mark.parametrize("place", list(places(FULL)), ids=str)
def test_junk_anywhere_in_a_request_is_a_task_or_a_refusal(place: Place) -> None:
    for body in with_junk(FULL, place):
        with suppress(RequestError, ValidationError):
            assert parse_chat(body, command_id=COMMAND).task.command_id == COMMAND


@given(st.lists(st.text(max_size=20), max_size=8), st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_text_is_carried_whole_by_events_and_by_the_answer(
    texts: list[str], include_usage: bool
) -> None:
    texts = [text for text in texts if text]
    head = AnswerHead(
        command_id=COMMAND,
        model_id=ModelId('a/"b'),
        created_s=1,
        include_usage=include_usage,
    )
    stream = ChatStream(head, 0, UsageTally(), logprobs=False)
    answer = ChatAnswer(head, n_choices=1)
    finished = Finished("stop", Usage(1, 2))
    sent = b"".join(stream.chunk(Chunk(text)) for text in texts) + stream.finish(finished, 1.0)
    sent += stream.end_mark
    for text in texts:
        answer.add(Chunk(text))
    assert sent.endswith(b"data: [DONE]\n\n")
    # `splitlines` splits at every Unicode line break: the strictest of all clients.
    lines = [line for line in sent.decode().splitlines() if line]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    said = "".join(
        event["choices"][0]["delta"].get("content", "") for event in events if event["choices"]
    )
    assert said == "".join(texts)
    assert all(event["model"] == 'a/"b' for event in events)
    whole = json.loads(answer.document(finished, 1.0))
    assert whole["choices"][0]["message"]["content"] == "".join(texts)
