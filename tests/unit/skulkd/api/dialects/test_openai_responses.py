"""Requests for responses as tasks, and frames as the items of a response."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from protocol.data_frames import (
    Chunk,
    Finished,
    Started,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from protocol.errors import RequestError
from protocol.ids import CommandId
from protocol.tasks import ChatTask
from skulkd.api.dialects.openai_responses import ResponsesCall, parse_responses
from skulkd.api.dialects.openai_responses_output import ResponseAnswer, ResponseStream
from tests.support.golden_streams import check_stream
from tests.support.junk import Place, places, with_junk

COMMAND = CommandId("aaaaaa-aaaaaaaaaaaaaaaaaaaa")
TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}
NAMESPACE = {"type": "namespace", "name": "ns__", "tools": [TOOL, {"type": "custom", "name": "c"}]}
FULL: dict[str, Any] = {
    "model": "a/b",
    "stream": True,
    "instructions": "A",
    "max_output_tokens": 9,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_logprobs": 2,
    "include": ["reasoning.encrypted_content", "something.newer"],
    "metadata": {"k": "v"},
    "parallel_tool_calls": False,
    "reasoning": {"effort": "high", "summary": "auto"},
    "store": True,
    "text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}}},
    "truncation": "auto",
    "tools": [TOOL, {"type": "web_search"}, NAMESPACE],
    "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [TOOL]},
    "input": [
        {"role": "developer", "content": "B"},
        {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "s"}],
            "content": [{"type": "reasoning_text", "text": "hm"}],
            "encrypted_content": None,
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
        {"type": "function_call", "call_id": "c2", "namespace": "ns__", "name": "f"},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "43"}],
        },
        {"type": "message", "role": "user", "content": "and?"},
    ],
}


def call_of(**fields: object) -> ResponsesCall:
    body: dict[str, Any] = {"model": "a/b", "input": "hi", **fields}
    return parse_responses(body, command_id=COMMAND)


def read(**fields: object) -> ChatTask:
    return call_of(**fields).task


def refused(**fields: object) -> str:
    with pytest.raises(RequestError) as error:
        read(**fields)
    assert error.value.remediation
    return str(error.value.details["param"])


def refused_item(**item: object) -> str:
    return refused(input=[item])


# ---- The way in --------------------------------------------------------------------------------


def test_a_whole_conversation_reaches_the_task() -> None:
    task = parse_responses(FULL, command_id=COMMAND).task
    system, question, answer, first, second, more = task.messages
    assert (system.role, system.content) == ("system", "A\n\nB")
    assert (question.role, question.content) == ("user", "q")
    assert (answer.role, answer.content, answer.reasoning) == ("assistant", "I look.", "hm")
    told = [(call.id, call.name, json.loads(call.arguments)) for call in answer.tool_calls]
    assert told == [("c1", "f", {"a": 1}), ("c2", "ns__f", {})]
    assert (first.role, first.tool_call_id, first.content) == ("tool", "c1", "42")
    assert (second.role, second.tool_call_id, second.content) == ("tool", "c2", "43")
    assert (more.role, more.content) == ("user", "and?")
    assert (task.max_tokens, task.logprobs, task.tool_choice) == (9, 2, "required")
    assert (task.reasoning_effort, task.stream) == ("high", True)
    assert task.parallel_tool_calls is False
    assert (task.sampling.temperature, task.sampling.top_p) == (0.5, 0.9)
    assert task.response_format is not None
    assert task.response_format.json_schema == {"type": "object"}
    assert [tool.name for tool in task.tools] == ["f"]


def test_a_string_is_one_user_message() -> None:
    assert [(item.role, item.content) for item in read().messages] == [("user", "hi")]


def test_a_call_and_its_output_by_turns_are_turns_of_their_own() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "r"}
    turns = read(input=[call, output, call, output]).messages
    assert [turn.role for turn in turns] == ["assistant", "tool", "assistant", "tool"]


def test_what_a_user_says_in_several_messages_is_one_turn() -> None:
    """Agents tell of the place they work in first, and some templates want turns to alternate."""
    context, question = {"role": "user", "content": "c"}, {"role": "user", "content": "q"}
    turns = read(input=[context, {"role": "developer", "content": "d"}, question]).messages
    assert [(turn.role, turn.content) for turn in turns] == [("system", "d"), ("user", "c\n\nq")]


def test_reasoning_is_read_where_it_can_be_read() -> None:
    said = {"role": "assistant", "content": "x"}

    def thought(**fields: object) -> str | None:
        return read(input=[{"type": "reasoning", **fields}, said]).messages[0].reasoning

    summary = [{"type": "summary_text", "text": "s"}]
    assert thought(summary=[], encrypted_content="skulk:hm") == "hm"
    assert thought(summary=summary, encrypted_content="gAAAA") == "s"
    assert thought(summary=[], encrypted_content="gAAAA") is None


def test_thoughts_that_led_to_nothing_are_no_turn() -> None:
    thought = {"type": "reasoning", "summary": [], "content": [{"text": "hm"}]}
    turns = read(input=[thought, {"role": "user", "content": "q"}]).messages
    assert [turn.role for turn in turns] == ["user"]


def test_calls_of_tools_that_take_free_text_are_handed_back_as_calls() -> None:
    call = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "@@"}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "done"}
    turn, result = read(input=[call, output]).messages
    assert json.loads(turn.tool_calls[0].arguments) == {"input": "@@"}
    assert (result.role, result.content) == ("tool", "done")


def test_tools_are_taken_flat_nested_and_out_of_namespaces_and_others_are_left_out() -> None:
    nested: dict[str, Any] = {"type": "function", "function": {"name": "g", "parameters": {}}}
    call = call_of(tools=[TOOL, nested, NAMESPACE, {"type": "web_search"}, {"type": "mcp"}])
    assert [tool.name for tool in call.task.tools] == ["f", "g", "ns__f"]
    assert call.left_out == ("custom", "web_search", "mcp")
    assert call.namespaces == {"ns__f": ("ns__", "f")}


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "f"}, "=f"),
        ({"type": "function", "function": {"name": "f"}}, "=f"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [TOOL]}, "auto"),
    ],
)
def test_each_tool_choice_has_its_counterpart(choice: object, wanted: str) -> None:
    assert read(tools=[TOOL], tool_choice=choice).tool_choice == wanted


@pytest.mark.parametrize(
    ("effort", "wanted"), [(None, None), ("none", "none"), ("low", "low"), ("newer", None)]
)
def test_an_effort_is_handed_on_where_it_is_known(effort: object, wanted: str | None) -> None:
    assert read(reasoning={"effort": effort}).reasoning_effort == wanted


def test_what_would_change_the_answer_is_refused_by_name() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    assert refused(input=None) == "input"
    assert refused(input=[]) == "input"
    assert refused_item(type="reasoning", summary=None) == "input"
    assert refused(max_output_tokens=0) == "max_output_tokens"
    assert refused(previous_response_id="resp_1") == "previous_response_id"
    assert refused(conversation={"id": "conv_1"}) == "conversation"
    assert refused(prompt={"id": "pmpt_1"}) == "prompt"
    assert refused(background=True) == "background"
    assert refused(truncation="middle") == "truncation"
    assert refused(top_logprobs=21) == "top_logprobs"
    assert refused(text={"format": {"type": "sound"}}) == "text.format.type"
    assert refused(text={"format": {"type": "json_schema"}}) == "text.format.schema"
    assert refused(tool_choice="required") == "tool_choice"
    assert refused(tools=[TOOL], tool_choice={"type": "function", "name": "g"}) == (
        "tool_choice.name"
    )
    assert refused(tool_choice={"type": "web_search"}) == "tool_choice"
    crowd = [{**NAMESPACE, "name": f"n{number}", "tools": [TOOL] * 200} for number in range(2)]
    assert refused(tools=crowd) == "tools"
    assert refused_item(type="item_reference", id="msg_1") == "input[0]"
    assert refused_item(type="compaction", encrypted_content="x") == "input[0].type"
    assert refused_item(role="wizard", content="x") == "input[0].role"
    assert refused_item(role="user", content=[image]) == "input[0].content[0]"
    output = {"type": "function_call_output", "call_id": "c"}
    assert refused_item(**output, output=[image]) == "input[0].output[0]"
    assert refused_item(**output, output={}) == "input[0].output"
    assert refused_item(type="function_call", name="f", arguments="{}") == "input[0].call_id"
    assert refused(metadata={"k": "v" * 600}) == "metadata"
    assert refused(metadata={str(number): "v" for number in range(17)}) == "metadata"


def test_a_response_repeats_its_request_unless_that_is_long() -> None:
    told = parse_responses(FULL, command_id=COMMAND).settings
    assert told["instructions"] == "A"
    assert told["metadata"] == {"k": "v"}
    assert told["text"] == {"format": FULL["text"]["format"]}
    assert told["tools"] == [{**TOOL, "strict": False}]
    assert told["parallel_tool_calls"] is False
    assert told["store"] is False, "nothing is kept"
    assert told["truncation"] == "disabled", "nothing is cut"
    long = call_of(tools=[{**TOOL, "description": "d" * 70_000}], instructions="A").settings
    assert (long["instructions"], long["tools"]) == (None, [])


@pytest.mark.parametrize("place", list(places(FULL)), ids=str)
def test_junk_anywhere_in_a_request_is_a_task_or_a_refusal(place: Place) -> None:
    for body in with_junk(FULL, place):
        with suppress(RequestError, ValidationError):
            assert parse_responses(body, command_id=COMMAND).task.command_id == COMMAND


# ---- The way out -------------------------------------------------------------------------------


def events_of(sent: bytes) -> list[dict[str, Any]]:
    """Read events as the strictest client does: named as their JSON says, numbered from 0."""
    events: list[dict[str, Any]] = []
    for part in sent.decode().split("\n\n")[:-1]:
        name, data = part.splitlines()
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        events.append(event)
    return events


def a_stream(**fields: object) -> ResponseStream:
    return call_of(**fields).stream(1_700_000_000)


def an_answer(**fields: object) -> ResponseAnswer:
    return call_of(**fields).answer(1_700_000_000)


TURN = (
    Chunk(reasoning="h"),
    Chunk(reasoning="m"),
    Chunk("It is "),
    Chunk("\u2028«yes»", "", (ToolCallDelta(0, "c0", "f", '{"a":'),)),
    Chunk(tool_calls=(ToolCallDelta(0, None, None, "1}"), ToolCallDelta(1, None, "ns__f", ""))),
)
ENDED = Finished("tool_calls", Usage(7, 5, 3))


def test_the_stream_of_a_turn_is_what_it_was() -> None:
    stream = a_stream(tools=[TOOL, NAMESPACE], include=["reasoning.encrypted_content"])
    sent = stream.begin() + stream.start(Started(7))
    for chunk in TURN:
        sent += stream.chunk(chunk)
    check_stream("response_of_a_turn", sent + stream.finish(ENDED, 2))


def test_the_stream_of_a_failure_is_what_it_was() -> None:
    stream = a_stream()
    sent = stream.begin() + stream.keep_alive() + stream.chunk(Chunk("It is "))
    error = {"message": "the engine died", "type": "server_error", "code": "engine.gone"}
    check_stream("response_that_failed", sent + stream.fail(error))


def test_items_are_closed_before_the_next_and_a_whole_answer_has_the_same_ones() -> None:
    stream, answer = a_stream(tools=[NAMESPACE]), an_answer(tools=[NAMESPACE])
    sent = stream.begin()
    for chunk in TURN:
        sent += stream.chunk(chunk)
        answer.add(chunk)
    events = events_of(sent + stream.finish(ENDED, 2))
    told = [
        (event["type"].removeprefix("response.output_item."), event["output_index"])
        for event in events
        if "output_item" in event["type"]
    ]
    assert told == [(name, index) for index in range(4) for name in ("added", "done")]
    response = events[-1]["response"]
    assert response == json.loads(answer.document(ENDED, 2))
    assert [item["type"] for item in response["output"]] == [
        "reasoning", "message", "function_call", "function_call",
    ]  # fmt: skip
    assert response["output"][1]["content"][0]["text"] == "It is \u2028«yes»"
    assert (response["output"][3]["namespace"], response["output"][3]["name"]) == ("ns__", "f")
    assert json.loads(response["output"][3]["arguments"]) == {}, "clients parse them"
    assert len({item["call_id"] for item in response["output"][2:]}) == 2
    assert response["usage"]["total_tokens"] == 12


def test_reasoning_is_sealed_for_clients_that_hand_it_back_unread() -> None:
    for include, sealed in ([], None), (["reasoning.encrypted_content"], "skulk:hm"):
        answer = an_answer(include=include)
        answer.add(Chunk(reasoning="hm"))
        (item,) = json.loads(answer.document(Finished("stop", Usage(1, 2)), 1))["output"]
        assert item["encrypted_content"] == sealed
        assert item["summary"] == []
        assert item["content"] == [{"type": "reasoning_text", "text": "hm"}]


def test_reasoning_is_told_as_a_summary_to_clients_that_ask_for_one() -> None:
    stream = a_stream(reasoning={"summary": "auto"}, include=["reasoning.encrypted_content"])
    sent = b"".join(stream.chunk(Chunk(reasoning=text)) for text in ("h", "m"))
    events = events_of(sent + stream.finish(Finished("stop", Usage(1, 2)), 1))
    told = [event["type"].removeprefix("response.reasoning_summary_") for event in events[1:-2]]
    assert told == ["part.added", "text.delta", "text.delta", "text.done", "part.done"]
    assert {event["summary_index"] for event in events[1:-2]} == {0}
    (item,) = events[-1]["response"]["output"]
    assert item["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert item["encrypted_content"] == "skulk:hm"
    assert "content" not in item
    said = {"role": "assistant", "content": "x"}
    assert read(input=[item, said]).messages[0].reasoning == "hm", "once, not twice"


def test_logprobs_of_reasoning_open_no_message() -> None:
    token = TokenLogprob("hm", -0.5)
    answer = an_answer(top_logprobs=1)
    for text in ("h", "m"):
        answer.add(Chunk(reasoning=text, logprobs=(token,)))
    answer.add(Chunk("x", logprobs=(token,)))
    answer.add(Chunk(logprobs=(token,)))
    document = json.loads(answer.document(Finished("stop", Usage(1, 2)), 1))
    assert [item["type"] for item in document["output"]] == ["reasoning", "message"]
    assert len(document["output"][1]["content"][0]["logprobs"]) == 2


def test_logprobs_are_told_by_piece_and_for_the_whole_text() -> None:
    stream = a_stream(top_logprobs=1)
    token = TokenLogprob("hi", -0.5, (("ho", -1.0),))
    sent = stream.chunk(Chunk("hi", logprobs=(token,)))
    events = events_of(sent + stream.finish(Finished("stop", Usage(1, 2)), 1))
    (delta,) = (item for item in events if item["type"].endswith("output_text.delta"))
    assert delta["logprobs"][0]["top_logprobs"][0]["token"] == "ho"
    part = events[-1]["response"]["output"][0]["content"][0]
    assert part["logprobs"] == delta["logprobs"]


@pytest.mark.parametrize(
    ("code", "kind", "wanted"),
    [
        ("context_length_exceeded", "invalid_request_error", "context_length_exceeded"),
        ("engine.gone", "server_error", "server_error"),
        ("request.cancelled", "invalid_request_error", "invalid_prompt"),
    ],
)
def test_a_failure_says_whether_asking_once_more_may_help(
    code: str, kind: str, wanted: str
) -> None:
    stream = a_stream()
    sent = stream.begin() + stream.fail(
        {"code": code, "type": kind, "message": "m", "skulk_code": code}
    )
    events = events_of(sent)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress", "failed",
    ]  # fmt: skip
    response = events[-1]["response"]
    assert response["status"] == "failed"
    assert (response["error"]["code"], response["error"]["message"]) == (wanted, "m")


def test_an_answer_without_a_word_is_still_a_response() -> None:
    stream = a_stream()
    events = events_of(stream.begin() + stream.finish(Finished("stop", Usage(3, 0)), 1))
    assert [event["type"] for event in events] == [
        "response.created", "response.in_progress", "response.completed",
    ]  # fmt: skip


def test_a_filtered_answer_is_incomplete() -> None:
    document = json.loads(an_answer().document(Finished("content_filter", Usage(1, 2)), 1))
    assert document["status"] == "incomplete"
    assert document["incomplete_details"] == {"reason": "content_filter"}


@given(st.lists(st.text(max_size=20), max_size=8))
@settings(max_examples=200, deadline=None)
def test_any_text_is_carried_whole_by_events_and_by_the_answer(texts: list[str]) -> None:
    texts = [text for text in texts if text]
    stream, answer = a_stream(), an_answer()
    finished = Finished("stop", Usage(1, 2))
    sent = b"".join(stream.chunk(Chunk(text)) for text in texts) + stream.finish(finished, 1)
    for text in texts:
        answer.add(Chunk(text))
    said = "".join(
        event["delta"] for event in events_of(sent) if event["type"].endswith("text.delta")
    )
    whole = json.loads(answer.document(finished, 1))["output"]
    assert said == "".join(texts) == "".join(item["content"][0]["text"] for item in whole)


def test_half_a_character_is_replaced_and_the_rest_of_the_event_is_readable() -> None:
    stream = a_stream()
    sent = stream.chunk(Chunk("a\ud83dz")) + stream.finish(Finished("stop", Usage(1, 2)), 1)
    events = events_of(sent)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "a?z"
