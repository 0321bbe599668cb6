"""What Ollama's clients send becomes a task or a refusal by name; whatever is said is one line."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from protocol.data_frames import Chunk, Finished, TokenLogprob, ToolCallDelta, Usage
from protocol.errors import RequestError
from protocol.ids import CommandId
from protocol.tasks import MAX_KEEP_S, ChatTask, ResponseFormat
from skulkd.api.dialects.ollama import parse_chat, parse_generate, parse_idle
from skulkd.api.dialects.ollama_embeddings import parse_embed, parse_embeddings
from skulkd.api.dialects.ollama_output import Kind, LineAnswer, Lines, LineStream, error_object
from tests.support.image_files import a_png, base64_of
from tests.support.junk import Place, places, with_junk

A_PNG = base64_of(a_png())
COMMAND = CommandId("aaaaaa-aaaaaaaaaaaaaaaaaaaa")
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
OPTIONS: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.1,
    "seed": 7,
    "num_predict": 5,
    "stop": ["a"],
    "repeat_penalty": 1.1,
    "repeat_last_n": 64,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.2,
    "num_ctx": 4096,
    "mirostat": 0,
    "tfs_z": 1.0,
    "typical_p": 1.0,
}
FULL: dict[str, Any] = {
    "model": "a/b",
    "stream": True,
    "think": "high",
    "format": SCHEMA,
    "keep_alive": "5m",
    "logprobs": True,
    "top_logprobs": 2,
    "truncate": True,
    "options": OPTIONS,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "messages": [
        {"role": "system", "content": "x"},
        {
            "role": "assistant",
            "thinking": "t",
            "tool_calls": [{"id": "i", "function": {"name": "f", "arguments": {"x": 1}}}],
        },
        {"role": "tool", "content": "x", "tool_name": "f", "tool_call_id": "i"},
        {"role": "user", "content": "hi", "images": []},
    ],
}
FULL_PROMPT: dict[str, Any] = {
    **{key: value for key, value in FULL.items() if key not in {"messages", "tools"}},
    "prompt": "hi",
    "system": "s",
    "suffix": "",
    "template": "",
    "context": [],
    "raw": False,
    "images": [],
}


def a_chat(**fields: object) -> ChatTask:
    body = {"model": "a/b", "messages": [{"role": "user", "content": "x"}], **fields}
    return parse_chat(body, command_id=COMMAND).task


def a_prompt(**fields: object) -> ChatTask:
    return parse_generate({"model": "a/b", "prompt": "x", **fields}, command_id=COMMAND).task


@pytest.mark.parametrize("place", list(places(FULL)), ids=str)
def test_junk_anywhere_in_a_chat_is_a_task_or_a_refusal(place: Place) -> None:
    for body in with_junk(FULL, place):
        with suppress(RequestError, ValidationError):
            if parse_idle(body, "messages") is None:
                assert parse_chat(body, command_id=COMMAND).task.command_id == COMMAND


@pytest.mark.parametrize("place", list(places(FULL_PROMPT)), ids=str)
def test_junk_anywhere_in_a_prompt_is_a_task_or_a_refusal(place: Place) -> None:
    for body in with_junk(FULL_PROMPT, place):
        with suppress(RequestError, ValidationError):
            if parse_idle(body, "prompt") is None:
                assert parse_generate(body, command_id=COMMAND).task.command_id == COMMAND


FULL_EMBED: dict[str, Any] = {
    "model": "a/b",
    "input": ["x", "y"],
    "truncate": True,
    "options": {},
    "keep_alive": "5m",
}


@pytest.mark.parametrize("place", list(places(FULL_EMBED)), ids=str)
def test_junk_anywhere_in_a_request_for_vectors_is_a_task_or_a_refusal(place: Place) -> None:
    for body in with_junk(FULL_EMBED, place):
        with suppress(RequestError, ValidationError):
            if parse_idle(body, "input") is None:
                assert parse_embed(body, command_id=COMMAND).task.texts
    for body in with_junk({**FULL_EMBED, "prompt": "x"}, ("prompt",)):
        with suppress(RequestError, ValidationError):
            if parse_idle(body, "prompt") is None:
                assert parse_embeddings(body, command_id=COMMAND).task.texts


def test_all_that_a_request_says_reaches_the_task() -> None:
    task = parse_chat(FULL, command_id=COMMAND).task
    assert task.sampling.model_dump() == {
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 7,
        "frequency_penalty": 0.1, "presence_penalty": 0.2, "repetition_penalty": 1.1,
        "repetition_context_size": 64,
    }  # fmt: skip
    assert (task.max_tokens, task.stop, task.logprobs) == (5, ("a",), 2)
    assert (task.enable_thinking, task.reasoning_effort) == (True, "high")
    assert task.response_format == ResponseFormat(kind="json_schema", json_schema=SCHEMA)
    assert task.stream
    prompt = parse_generate(FULL_PROMPT, command_id=COMMAND).task
    assert [(turn.role, turn.content) for turn in prompt.messages] == [
        ("system", "s"), ("user", "hi"),
    ]  # fmt: skip
    assert prompt.sampling == task.sampling


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"num_predict": -1}, {"max_tokens": None}),
        ({"num_predict": -2}, {"max_tokens": None}),
        ({"num_predict": 5.0}, {"max_tokens": 5}),
        ({"stop": "x"}, {"stop": ("x",)}),
        ({"stop": None}, {"stop": ()}),
        (None, {"max_tokens": None}),
    ],
)
def test_options_as_front_ends_write_them(options: object, wanted: dict[str, object]) -> None:
    task = a_chat(options=options)
    assert {name: getattr(task, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("options", "name", "wanted"),
    [
        ({"seed": -1}, "seed", None),
        ({"seed": -2}, "seed", 0xFFFFFFFE),
        ({"top_k": -1}, "top_k", 0),
        ({"top_p": 0}, "top_p", 1e-6),
        ({"repeat_last_n": -1}, "repetition_context_size", None),
        ({"repeat_last_n": 0}, "repetition_context_size", 0),
        ({"repeat_penalty": 0}, "repetition_penalty", None),
    ],
)
def test_numbers_that_mean_all_or_any(
    options: dict[str, Any], name: str, wanted: float | None
) -> None:
    assert getattr(a_chat(options=options).sampling, name) == wanted


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"options": []}, "options"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"typical_p": 0.5}}, "options.typical_p"),
        ({"options": {"stop": [5]}}, "options.stop[0]"),
        ({"options": {"num_predict": 1 << 30}}, "options.num_predict"),
        ({"format": "yaml"}, "format"),
        ({"format": True}, "format"),
        ({"think": "max"}, "think"),
        ({"think": 1}, "think"),
        ({"stream": "no"}, "stream"),
        ({"keep_alive": True}, "keep_alive"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"keep_alive": "1" * 32 + "x"}, "keep_alive"),
        ({"keep_alive": "1" * 31 + "x"}, "keep_alive"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"messages": [{"role": "wizard"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "images": ["aGk="]}]}, "messages[0].images[0]"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {
                "name": "f", "arguments": "{}"}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        a_chat(**fields)
    assert refused.value.details["param"] == param
    assert len(refused.value.message) < 200


def test_a_raw_prompt_goes_to_the_model_as_it_is() -> None:
    task = a_prompt(prompt="<s>x", raw=True, options={"num_predict": 3})
    assert (task.prompt, task.messages, task.max_tokens) == ("<s>x", (), 3)
    assert a_prompt(raw=False).prompt is None


@pytest.mark.parametrize(
    "fields",
    [
        {"system": "s", "raw": True},
        {"format": "json", "raw": True},
        {"template": "{{ .Prompt }}"},
        {"suffix": "}"},
        {"context": [1, 2]},
        {"images": [A_PNG], "raw": True},
    ],
)  # fmt: skip
def test_prompts_of_other_kinds_are_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as refused:
        a_prompt(**fields)
    assert refused.value.code == "request.unsupported_field"
    assert refused.value.details["param"] == next(iter(fields))
    assert refused.value.remediation


def _turn_with_calls(*calls: tuple[str | None, str]) -> dict[str, Any]:
    return {
        "role": "assistant",
        "tool_calls": [
            {**({"id": call_id} if call_id else {}), "function": {"name": name}}
            for call_id, name in calls
        ],
    }


def _result(**fields: str) -> dict[str, Any]:
    return {"role": "tool", "content": "x", **fields}


@pytest.mark.parametrize(
    ("turns", "wanted"),
    [
        (
            [_turn_with_calls((None, "f"), (None, "g")), _result(tool_name="g"), _result()],
            ["call00000", "call00001", "call00001", "call00000"],
        ),
        (
            [_turn_with_calls((None, "f"), (None, "f")), _result(tool_name="f"),
             _result(tool_name="f"), _turn_with_calls((None, "f")), _result(tool_name="f")],
            ["call00000", "call00001", "call00000", "call00001", "call00002", "call00002"],
        ),
        (
            [_turn_with_calls(("a", "f"), (None, "f")), _result(tool_call_id="a"), _result()],
            ["a", "call00001", "a", "call00001"],
        ),
        (
            [_turn_with_calls(("a", "f"), ("b", "f")), _result(tool_call_id="b"), _result()],
            ["a", "b", "b", "a"],
        ),
        ([_turn_with_calls((None, "f")), _result(tool_call_id="x")], ["call00000", "call00000"]),
        ([_result(tool_call_id="b")], ["b"]),
        ([_result(tool_name="f")], [None]),
    ],
)  # fmt: skip
def test_results_are_tied_to_their_calls(
    turns: list[dict[str, Any]], wanted: list[str | None]
) -> None:
    ids: list[str | None] = []
    for message in a_chat(messages=turns).messages:
        ids += [call.id for call in message.tool_calls]
        ids += [message.tool_call_id] if message.role == "tool" else []
    assert ids == wanted


@pytest.mark.parametrize(
    ("keep_alive", "keep_s"),
    [
        (None, None), (0, 0), (0.0, 0), (-0.0, 0), ("0", 0), ("-0", 0), ("0s", 0), ("0h0m0s", 0),
        ("5m", 300), ("1h30m", 5400), ("1.5h", 5400), (300, 300), ("300", 300), (0.5, 1),
        ("100ms", 1), ("1500ms", 2), ("10ns", 1), ("2µs", 1), (-1, -1), ("-1", -1), ("-5m", -1),
        (-0.1, -1), (10**400, MAX_KEEP_S), ("9" * 31 + "h", MAX_KEEP_S),
    ],
)  # fmt: skip
def test_how_long_a_model_is_to_stay(keep_alive: object, keep_s: int | None) -> None:
    body = {"model": "a/b", "keep_alive": keep_alive}
    for kind in ("chat", "generate"):
        idle = parse_idle(body, "messages" if kind == "chat" else "prompt")
        assert idle is not None
        assert idle.keep_s == keep_s
    assert a_chat(keep_alive=keep_alive).keep_s == keep_s
    embeds = parse_embed({**body, "input": "a"}, command_id=COMMAND)
    assert embeds.task.keep_s == keep_s


@pytest.mark.parametrize("kind", ["chat", "generate"])
@given(texts=st.lists(st.text(max_size=20), max_size=8))
@settings(max_examples=100, deadline=None)
def test_any_text_is_carried_whole_by_lines_and_by_the_answer(kind: Kind, texts: list[str]) -> None:
    lines = Lines(kind, 'a/"b', 1)
    stream, answer = (
        LineStream(lines, hides_thinking=False),
        LineAnswer(lines, hides_thinking=False),
    )
    finished = Finished("stop", Usage(1, 2))
    sent = b"".join(stream.chunk(Chunk(text)) for text in texts)
    sent += b"".join(stream.chunk(Chunk(reasoning=text)) for text in texts if text)
    sent += stream.finish(finished, 1.5)
    for text in texts:
        answer.add(Chunk(text))
        answer.add(Chunk(reasoning=text))
    # `splitlines` splits at every Unicode line break: the strictest of all clients.
    parts = [json.loads(line) for line in sent.decode().splitlines()]
    assert sent.count(b"\n") == len(parts)
    assert "".join(_said(kind, part) for part in parts) == "".join(texts)
    assert "".join(_thought(kind, part) for part in parts) == "".join(texts)
    assert all(part["model"] == 'a/"b' for part in parts)
    assert parts[-1]["total_duration"] == 1_500_000_000
    whole = json.loads(answer.document(finished, 1.5))
    assert _said(kind, whole) == _thought(kind, whole) == "".join(texts)


def _said(kind: Kind, part: dict[str, Any]) -> str:
    return part["message"]["content"] if kind == "chat" else part["response"]


def _thought(kind: Kind, part: dict[str, Any]) -> str:
    return (part["message"] if kind == "chat" else part).get("thinking", "")


def test_a_stream_that_fails_tells_no_half_call() -> None:
    stream = LineStream(Lines("chat", "a/b", 1), hides_thinking=False)
    assert stream.chunk(Chunk(tool_calls=(ToolCallDelta(0, "a", "f", '{"x":'),))) == b""
    error = {"message": "it died", "remediation": "Try again.", "code": "engine.gone"}
    assert json.loads(stream.fail(error)) == {"error": "it died. Try again."}


def test_thinking_that_is_not_wanted_makes_no_line() -> None:
    stream = LineStream(Lines("chat", "a/b", 1), hides_thinking=True)
    assert stream.chunk(Chunk(reasoning="hm")) == b""
    line = json.loads(stream.chunk(Chunk("a", reasoning="hm")))
    assert line["message"] == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize("kind", ["chat", "generate"])
def test_logprobs_stand_beside_the_text(kind: Kind) -> None:
    lines = Lines(kind, "a/b", 1)
    token = TokenLogprob("a", -0.5, (("b", -1.0),))
    line = json.loads(LineStream(lines, hides_thinking=False).chunk(Chunk("a", logprobs=(token,))))
    (told,) = line["logprobs"]
    assert (told["token"], told["logprob"], told["bytes"]) == ("a", -0.5, [97])
    assert told["top_logprobs"][0]["token"] == "b"
    answer = LineAnswer(lines, hides_thinking=False)
    answer.add(Chunk("a", logprobs=(token,)))
    whole = json.loads(answer.document(Finished("stop", Usage(1, 1)), 1))
    assert whole["logprobs"] == line["logprobs"]


def test_a_remedy_that_the_text_has_is_not_said_twice() -> None:
    error = {"message": "None. Do: x y", "remediation": "x y", "skulk_code": "a.b", "param": None}
    assert error_object(error) == {"error": "None. Do: x y", "skulk_code": "a.b"}
