"""Anthropic's requests as tasks, and frames as the blocks of a message."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from protocol.data_frames import Chunk, Finished, Started, ToolCallDelta, Usage
from protocol.errors import RequestError
from protocol.ids import CommandId, ModelId
from protocol.tasks import ChatTask, FinishReason
from skulkd.api.dialects.anthropic_messages import parse_messages
from skulkd.api.dialects.anthropic_output import MessageAnswer, MessageStream
from tests.support.junk import Place, places, with_junk

COMMAND = CommandId("aaaaaa-aaaaaaaaaaaaaaaaaaaa")
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
FULL: dict[str, Any] = {
    "model": "a/b",
    "max_tokens": 9,
    "stream": True,
    "system": [{"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}],
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 4,
    "stop_sequences": ["x"],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "high"},
    "tools": [TOOL],
    "tool_choice": {"type": "tool", "name": "f"},
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "redacted_thinking", "data": "z"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "42", "is_error": True},
                {"type": "text", "text": "and?"},
            ],
        },
    ],
}


def read(**fields: object) -> ChatTask:
    body: dict[str, Any] = {
        "model": "a/b",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
        **fields,
    }
    return parse_messages(body, command_id=COMMAND).task


def refused(**fields: object) -> str:
    with pytest.raises(RequestError) as error:
        read(**fields)
    return str(error.value.details["param"])


def test_a_whole_conversation_reaches_the_task() -> None:
    task = parse_messages(FULL, command_id=COMMAND).task
    system, question, answer, result, more = task.messages
    assert (system.role, system.content) == ("system", "A")
    assert (question.role, question.content) == ("user", "q")
    assert (answer.role, answer.content, answer.reasoning) == ("assistant", "I look.", "hm")
    (call,) = answer.tool_calls
    assert (call.id, call.name, json.loads(call.arguments)) == ("t1", "f", {"a": 1})
    assert (result.role, result.tool_call_id) == ("tool", "t1")
    assert result.content == "The tool failed: 42"
    assert (more.role, more.content) == ("user", "and?")
    assert (task.max_tokens, task.stop, task.tool_choice) == (9, ("x",), "=f")
    assert (task.enable_thinking, task.reasoning_effort, task.stream) == (True, "high", True)
    assert task.sampling.model_dump(exclude_none=True) == {
        "temperature": 0.5, "top_p": 0.9, "top_k": 4,
    }  # fmt: skip
    assert task.tools[0].parameters == {"type": "object"}


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("42", ["42"]),
        ([{"type": "text", "text": "4"}, {"type": "text", "text": "2"}], ["4\n2"]),
        (None, [""]),
        ([], [""]),
    ],
)
def test_a_tool_result_may_be_text_blocks_or_nothing(content: object, texts: list[str]) -> None:
    block = {"type": "tool_result", "tool_use_id": "t", "content": content}
    messages = read(messages=[{"role": "user", "content": [block]}]).messages
    assert [message.content for message in messages] == texts
    assert {message.role for message in messages} == {"tool"}


def test_system_texts_are_merged_to_the_front_wherever_they_stand() -> None:
    task = read(
        system="A",
        messages=[
            {"role": "user", "content": "hi"},
            {"role": "system", "content": [{"type": "text", "text": "B"}]},
        ],
    )
    assert [(item.role, item.content) for item in task.messages] == [
        ("system", "A\n\nB"), ("user", "hi"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (None, "auto"),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, "=f"),
    ],
)
def test_each_tool_choice_has_its_counterpart(choice: object, wanted: str) -> None:
    assert read(tools=[TOOL], tool_choice=choice).tool_choice == wanted


@pytest.mark.parametrize(("is_disabled", "wanted"), [(None, None), (True, False), (False, True)])
def test_parallel_calls_can_be_switched_off(is_disabled: object, wanted: object) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": is_disabled}
    assert read(tools=[TOOL], tool_choice=choice).parallel_tool_calls is wanted
    assert read(tools=[TOOL]).parallel_tool_calls is None


@pytest.mark.parametrize(
    ("thinking", "wanted"),
    [
        (None, None),
        ({"type": "adaptive"}, True),
        ({"type": "disabled"}, False),
        ({"type": "enabled", "budget_tokens": 99}, True),
    ],
)
def test_thinking_is_on_off_or_the_models_own(thinking: object, wanted: bool | None) -> None:
    assert read(thinking=thinking).enable_thinking is wanted


def test_what_would_change_the_answer_is_refused_by_name() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "", "media_type": "image/png"}}
    assert refused(max_tokens=None) == "max_tokens"
    assert refused(max_tokens=0) == "max_tokens"
    assert refused(messages=[]) == "messages"
    assert refused(messages=[{"role": "tool", "content": "x"}]) == "messages[0].role"
    assert refused(messages=[{"role": "user", "content": [image]}]) == "messages[0].content[0]"
    assert refused(tools=[{"type": "web_search_20250305", "name": "w"}]) == "tools[0].type"
    assert refused(tools=[TOOL], tool_choice={"type": "tool", "name": "g"}) == "tool_choice.name"
    assert refused(tool_choice={"type": "any"}) == "tool_choice.type"
    nameless = {"type": "tool_result", "content": "x"}
    assert refused(messages=[{"role": "user", "content": [nameless]}]).endswith("tool_use_id")


@pytest.mark.parametrize("place", list(places(FULL)), ids=str)
def test_junk_anywhere_in_a_request_is_a_task_or_a_refusal(place: Place) -> None:
    for body in with_junk(FULL, place):
        with suppress(RequestError, ValidationError):
            assert parse_messages(body, command_id=COMMAND).task.command_id == COMMAND


# ---- The way out -------------------------------------------------------------------------------


def events_of(sent: bytes) -> list[dict[str, Any]]:
    """Read events as the strictest client does: each named as its JSON says."""
    events: list[dict[str, Any]] = []
    for part in sent.decode().split("\n\n")[:-1]:
        name, data = part.splitlines()
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def a_stream() -> MessageStream:
    return MessageStream(command_id=COMMAND, model_id=ModelId('a/"b'))


def test_blocks_are_closed_before_the_next_and_numbered_without_gaps() -> None:
    stream = a_stream()
    sent = stream.start(Started(7))
    for chunk in (
        Chunk(reasoning="h"),
        Chunk(reasoning="m"),
        Chunk("yes", "", (ToolCallDelta(0, "c0", "f", '{"a":'),)),
        Chunk(tool_calls=(ToolCallDelta(0, None, None, "1}"), ToolCallDelta(1, None, "g", ""))),
    ):
        sent += stream.chunk(chunk)
    sent += stream.finish(Finished("tool_calls", Usage(7, 5, 3)), 1.0)
    events = events_of(sent)
    told = [(event["type"].removeprefix("content_block_"), event.get("index")) for event in events]
    assert told == [
        ("message_start", None),
        ("start", 0), ("delta", 0), ("delta", 0), ("stop", 0),
        ("start", 1), ("delta", 1), ("stop", 1),
        ("start", 2), ("delta", 2), ("delta", 2), ("stop", 2),
        ("start", 3), ("stop", 3),
        ("message_delta", None), ("message_stop", None),
    ]  # fmt: skip
    blocks = [event["content_block"] for event in events if event["type"].endswith("block_start")]
    assert blocks[0] == {"type": "thinking", "thinking": "", "signature": ""}
    assert blocks[1] == {"type": "text", "text": ""}
    assert blocks[2] == {"type": "tool_use", "id": "c0", "name": "f", "input": {}}
    assert blocks[3]["id"]
    assert events[0]["message"]["usage"]["input_tokens"] == 7
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 5


def test_an_answer_without_a_word_is_still_a_message() -> None:
    events = events_of(a_stream().finish(Finished("stop", Usage(3, 0)), 1.0))
    assert [event["type"] for event in events] == ["message_start", "message_delta", "message_stop"]


@pytest.mark.parametrize(
    ("reason", "wanted"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "refusal")],
)
def test_every_reason_has_its_name(reason: FinishReason, wanted: str) -> None:
    answer = MessageAnswer(command_id=COMMAND, model_id=ModelId("a/b"))
    document = json.loads(answer.document(Finished(reason, Usage(1, 2)), 1.0))
    assert document["stop_reason"] == wanted
    assert document["content"] == []


def test_arguments_that_are_no_json_are_shown_as_the_model_wrote_them() -> None:
    answer = MessageAnswer(command_id=COMMAND, model_id=ModelId("a/b"))
    answer.add(Chunk(tool_calls=(ToolCallDelta(0, "c", "f", '{"a":'),)))
    (block,) = json.loads(answer.document(Finished("length", Usage(1, 2)), 1.0))["content"]
    assert block["input"] == {"unreadable_arguments": '{"a":'}


@given(st.lists(st.text(max_size=20), max_size=8))
@settings(max_examples=200, deadline=None)
def test_any_text_is_carried_whole_by_events_and_by_the_answer(texts: list[str]) -> None:
    texts = [text for text in texts if text]
    stream, answer = a_stream(), MessageAnswer(command_id=COMMAND, model_id=ModelId("a/b"))
    finished = Finished("stop", Usage(1, 2))
    sent = b"".join(stream.chunk(Chunk(text)) for text in texts) + stream.finish(finished, 1.0)
    for text in texts:
        answer.add(Chunk(text))
    said = "".join(
        event["delta"].get("text", "")
        for event in events_of(sent)
        if event["type"] == "content_block_delta"
    )
    whole = json.loads(answer.document(finished, 1.0))["content"]
    assert said == "".join(texts) == "".join(block["text"] for block in whole)


def test_half_a_character_is_replaced_and_the_rest_of_the_event_is_readable() -> None:
    sent = a_stream().chunk(Chunk("a\ud83dz\U0001f600"))
    assert events_of(sent)[-1]["delta"]["text"] == "a\ufffdz\U0001f600"
