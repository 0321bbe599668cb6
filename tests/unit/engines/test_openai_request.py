import json
from typing import Any

import pytest

from engines.openai_request import chat_body, completion_body, prompt_body
from protocol.tasks import (
    ChatMessage,
    ChatTask,
    ResponseFormat,
    Sampling,
    ToolCall,
    ToolDefinition,
)
from tests.support.builders import MODEL, a_command_id

TOOLS = (ToolDefinition(name="lamp", parameters={"type": "object"}), ToolDefinition(name="bell"))


def body_of(*, is_stream: bool = True, **fields: object) -> dict[str, Any]:
    identity = {"command_id": a_command_id(), "model_id": MODEL}
    messages = (ChatMessage(role="user", content="hi"),)
    task = ChatTask.model_validate({**identity, "messages": messages, **fields})
    body: dict[str, Any] = json.loads(chat_body(task, is_stream=is_stream))
    return body


def test_a_bare_task_sets_nothing_that_the_engine_has_a_default_for() -> None:
    assert body_of(is_stream=False) == {
        "messages": [{"role": "user", "content": "hi"}],
        "stream": False,
        "cache_prompt": True,
    }


def test_a_stream_asks_for_usage_and_for_signs_of_life() -> None:
    body = body_of()
    assert body["stream_options"] == {"include_usage": True}
    assert body["return_progress"] is True


def test_every_sampling_field_that_is_set_is_passed() -> None:
    values: dict[str, float] = {
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 0,
        "min_p": 0.0,
        "seed": 0,
        "frequency_penalty": -1.0,
        "presence_penalty": 1.0,
        "repetition_penalty": 1.5,
        "repetition_context_size": 0,
    }
    assert set(values) == set(Sampling.model_fields)
    body = body_of(sampling=Sampling.model_validate(values))
    values["repeat_penalty"] = values.pop("repetition_penalty")
    values["repeat_last_n"] = values.pop("repetition_context_size")
    assert values.items() <= body.items()


def test_an_engine_is_to_say_which_stop_string_ended_it_unless_that_repeats_a_long_prompt() -> None:
    assert body_of(stop=("a",))["verbose"] is True
    assert "verbose" not in body_of()
    long = ChatMessage(role="user", content="x" * 300_000)
    assert "verbose" not in body_of(stop=("a",), messages=(long,))


def test_budget_and_stop_strings_are_passed() -> None:
    body = body_of(max_tokens=7, stop=("a", "b"))
    assert (body["max_tokens"], body["stop"]) == (7, ["a", "b"])


@pytest.mark.parametrize(("wanted", "asked"), [(0, 1), (1, 1), (20, 20)])
def test_no_alternatives_still_asks_for_logprobs(wanted: int, asked: int) -> None:
    body = body_of(logprobs=wanted)
    assert (body["logprobs"], body["top_logprobs"]) == (True, asked)


def test_one_named_function_is_offered_alone_and_required() -> None:
    body = body_of(tools=TOOLS, tool_choice="=bell")
    assert [tool["function"]["name"] for tool in body["tools"]] == ["bell"]
    assert body["tool_choice"] == "required"


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_a_general_tool_choice_offers_every_tool(choice: str) -> None:
    body = body_of(tools=TOOLS, tool_choice=choice)
    assert [tool["type"] for tool in body["tools"]] == ["function", "function"]
    assert body["tools"][0]["function"]["parameters"] == {"type": "object"}
    assert body["tool_choice"] == choice


@pytest.mark.parametrize("parallel", [None, True, False])
def test_parallel_calls_are_the_engines_choice_unless_the_client_says(
    parallel: bool | None,
) -> None:
    body = body_of(tools=TOOLS, parallel_tool_calls=parallel)
    assert body.get("parallel_tool_calls") is parallel
    assert "parallel_tool_calls" not in body_of(parallel_tool_calls=parallel)


def test_a_text_is_passed_as_it_is_with_all_that_chats_have() -> None:
    fields: dict[str, Any] = {
        "prompt": "One,", "messages": (), "max_tokens": 3, "stop": ("x",), "logprobs": 0,
        "sampling": Sampling(top_k=1),
    }  # fmt: skip
    task = ChatTask.model_validate({"command_id": a_command_id(), "model_id": MODEL, **fields})
    assert json.loads(completion_body(task, is_stream=False)) == {
        "prompt": "One,",
        "stream": False,
        "cache_prompt": True,
        "max_tokens": 3,
        "stop": ["x"],
        "top_k": 1,
        "logprobs": 1,
        "verbose": True,
    }
    assert json.loads(completion_body(task, is_stream=True))["return_progress"] is True


def test_a_choice_without_tools_is_not_passed() -> None:
    assert "tool_choice" not in body_of(tool_choice="required")


def test_structured_output_is_passed_as_a_schema() -> None:
    schema = {"type": "object"}
    wanted = ResponseFormat(kind="json_schema", json_schema=schema)
    assert body_of(response_format=wanted)["response_format"]["json_schema"]["schema"] == schema
    any_json = ResponseFormat(kind="json_object")
    assert body_of(response_format=any_json)["response_format"] == {"type": "json_object"}


def test_thinking_and_effort_reach_the_template() -> None:
    body = body_of(enable_thinking=False, reasoning_effort="low")
    assert body["chat_template_kwargs"] == {"enable_thinking": False, "reasoning_effort": "low"}


def test_an_earlier_turn_keeps_its_calls_and_results() -> None:
    call = ToolCall(id="c1", name="bell", arguments='{"on":true}')
    messages = (
        ChatMessage(role="assistant", content="", reasoning="hm", tool_calls=(call,)),
        ChatMessage(role="tool", content="rang", tool_call_id="c1", name="bell"),
    )
    first, second = body_of(messages=messages)["messages"]
    assert first["reasoning_content"] == "hm"
    assert first["tool_calls"][0] == {
        "id": "c1",
        "type": "function",
        "function": {"name": "bell", "arguments": '{"on":true}'},
    }
    assert (second["tool_call_id"], second["name"]) == ("c1", "bell")


def test_what_decides_the_prompt_is_what_is_counted() -> None:
    task = ChatTask(
        command_id=a_command_id(),
        model_id=MODEL,
        messages=(ChatMessage(role="user", content="hi"),),
        tools=TOOLS,
        enable_thinking=True,
        max_tokens=3,
    )
    assert set(json.loads(prompt_body(task))) == {
        "messages",
        "tools",
        "tool_choice",
        "chat_template_kwargs",
    }


def test_half_a_surrogate_pair_stays_valid_utf8() -> None:
    task = ChatTask.model_construct(
        messages=(ChatMessage.model_construct(
            role="user", content="\ud83d", reasoning=None, tool_calls=(), tool_call_id=None,
            name=None,
        ),),
        sampling=Sampling(),
    )  # fmt: skip
    assert b"\\ud83d" in chat_body(task, is_stream=True)
