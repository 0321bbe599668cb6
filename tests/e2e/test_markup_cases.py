"""Cases A03, A04, A06, A21, A22 and A40 where the engine gives a model's raw text.

The replies are what models of several families write; the token borders are the script's, a word or
a byte at a time.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import pytest

from tests.support.chat_client import chat_body
from tests.support.daemon import Daemon
from tests.support.scripted_models import add_scripted_model
from tests.support.shared_daemon import shared_daemon

THINKER: Final = "scripted/thinker"
SENTENCE: Final = "I look it up — 日本."
THOUGHT: Final = "Where is {it}?"
TOOLS: Final[list[dict[str, Any]]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("weather", "time")
]
CALLS: Final = [("weather", {"city": "Paris"}), ("time", {"city": "</tool_call> Rome"})]
FIRST: Final = '{"name": "weather", "arguments": {"city": "Paris"}}'
SECOND: Final = '{"name": "time", "arguments": {"city": "</tool_call> Rome"}}'
REPLIES: Final = {
    "qwen": f"<think>\n{THOUGHT}\n</think>\n\n{SENTENCE}\n<tool_call>\n{FIRST}\n</tool_call>\n"
    f"<tool_call>\n{SECOND}\n</tool_call><|im_end|>nothing more",
    "mistral": f"[THINK]{THOUGHT}[/THINK]{SENTENCE}[TOOL_CALLS][{FIRST}, {SECOND}]",
    "llama": f"<think>{THOUGHT}</think>{SENTENCE} <|python_tag|>{FIRST}; {SECOND}<|eom_id|>"
    "<|start_header_id|>ipython<|end_header_id|>",
    "gpt_oss": f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>"
    f"commentary<|message|>{SENTENCE}<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.weather <|constrain|>json<|message|>{"city": "Paris"}<|end|><|start|>assistant '
    'to=functions.time<|channel|>commentary<|message|>{"city": "</tool_call> Rome"}<|call|>more',
    "gemma": f"<|channel>thought\n{THOUGHT}\n<channel|>{SENTENCE}<|tool_call>call:weather{{city:"
    '<|"|>Paris<|"|>}<tool_call|><|tool_call>call:time{city:<|"|></tool_call> Rome<|"|>}'
    "<tool_call|><turn|>",
}


MODELS: Final = {
    "scripted/words": ("qwen", False),
    **{f"scripted/{family}": (family, True) for family in REPLIES},
}
"""The family of each, and whether its tokens are single bytes."""
every_family = pytest.mark.parametrize("model_id", MODELS)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    root = tmp_path_factory.mktemp("markup")
    models = root / "models"
    for model_id, (family, split_utf8) in MODELS.items():
        reply = REPLIES[family]
        add_scripted_model(
            models, model_id, family=family, reply=reply, raw_markup=True, split_utf8=split_utf8
        )
    add_scripted_model(
        models,
        THINKER,
        family="qwen",
        reply=f"{THOUGHT}\n</think>\n\n{SENTENCE}",
        raw_markup=True,
        prompt_tail="<think>\n",
    )
    with shared_daemon(root, models_dir=models) as daemon:
        for model_id in (*MODELS, THINKER):
            daemon.place(model_id, context_tokens=1024, slots=2)
        for instance_id in daemon.http.get("/state").json()["instances"]:
            daemon.wait_phase(instance_id, timeout_s=90)
        yield daemon


@dataclass
class Answer:
    """A streamed answer, put together as clients do it."""

    text: str = ""
    reasoning: str = ""
    names: dict[int, str] = field(default_factory=dict[int, str])
    ids: dict[int, str] = field(default_factory=dict[int, str])
    arguments: dict[int, str] = field(default_factory=dict[int, str])
    last_delta: dict[str, Any] = field(default_factory=dict[str, Any])
    reason: str | None = None

    def take(self, choice: dict[str, Any]) -> None:
        delta = self.last_delta = choice["delta"]
        self.text += delta.get("content") or ""
        self.reasoning += delta.get("reasoning_content") or ""
        self.reason = choice["finish_reason"] or self.reason
        for call in delta.get("tool_calls", ()):
            index, function = call["index"], call["function"]
            self.ids.setdefault(index, call.get("id"))
            self.names.setdefault(index, function.get("name"))
            self.arguments[index] = self.arguments.get(index, "") + function["arguments"]

    @property
    def calls(self) -> list[tuple[str, Any]]:
        return [(self.names[at], json.loads(self.arguments[at])) for at in self.arguments]


def streamed(node: Daemon, model_id: str, **fields: object) -> Answer:
    body = chat_body(model_id, stream=True, **fields)
    reply = node.http.post("/v1/chat/completions", json=body)
    assert reply.is_success, reply.text
    answer = Answer()
    for line in reply.text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                answer.take(choice)
    return answer


def whole(node: Daemon, model_id: str, **fields: object) -> dict[str, Any]:
    reply = node.http.post("/v1/chat/completions", json=chat_body(model_id, **fields))
    assert reply.is_success, reply.text
    return dict(reply.json()["choices"][0])


@every_family
def test_a03_parallel_calls_in_raw_text_get_their_own_index(node: Daemon, model_id: str) -> None:
    answer = streamed(node, model_id, tools=TOOLS)
    assert list(answer.arguments) == [0, 1]
    assert len(set(answer.ids.values())) == 2
    assert answer.calls == CALLS
    assert answer.reason == "tool_calls"
    choice = whole(node, model_id, tools=TOOLS)
    calls = choice["message"]["tool_calls"]
    found = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    assert [(name, json.loads(text)) for name, text in found] == CALLS
    assert choice["finish_reason"] == "tool_calls"


@every_family
def test_a04_a_call_is_not_given_twice_and_its_marks_never(node: Daemon, model_id: str) -> None:
    answer = streamed(node, model_id, tools=TOOLS)
    assert answer.text == SENTENCE
    assert answer.last_delta == {}
    assert whole(node, model_id, tools=TOOLS)["message"]["content"] == SENTENCE


@every_family
@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": "none"}])
def test_a21_without_tools_a_call_is_text_and_no_mark_leaks(
    node: Daemon, model_id: str, fields: dict[str, Any]
) -> None:
    answer = streamed(node, model_id, **fields)
    assert answer.calls == []
    assert answer.reason == "stop"
    assert answer.reasoning == THOUGHT
    assert answer.text.startswith(SENTENCE)
    assert "Paris" in answer.text
    assert not any(mark in answer.text for mark in ("<|", "|>", "<tool_call>", "[TOOL", "more"))
    assert whole(node, model_id, **fields)["message"]["content"] == answer.text


def test_a21_a_named_tool_is_the_only_one_called(node: Daemon) -> None:
    choice = {"type": "function", "function": {"name": "time"}}
    answer = streamed(node, "scripted/words", tools=TOOLS, tool_choice=choice)
    assert answer.calls == CALLS[1:]
    assert answer.text == f"{SENTENCE}\n{FIRST}"


@every_family
def test_a22_thinking_in_raw_text_is_reasoning_content_only(node: Daemon, model_id: str) -> None:
    assert streamed(node, model_id, tools=TOOLS).reasoning == THOUGHT
    assert whole(node, model_id, tools=TOOLS)["message"]["reasoning_content"] == THOUGHT


def test_a22_thinking_that_the_prompt_has_opened(node: Daemon) -> None:
    answer = streamed(node, THINKER)
    assert (answer.reasoning, answer.text) == (THOUGHT, SENTENCE)
    assert whole(node, THINKER)["message"]["reasoning_content"] == THOUGHT


def test_a40_raw_text_becomes_blocks_for_anthropic_too(node: Daemon) -> None:
    tools = [{"name": name, "input_schema": {"type": "object"}} for name, _ in CALLS]
    body = chat_body("scripted/gemma", tools=tools, max_tokens=900)
    reply: httpx.Response = node.http.post("/v1/messages", json=body)
    assert reply.is_success, reply.text
    blocks = reply.json()["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use", "tool_use"]
    assert blocks[0]["thinking"] == THOUGHT
    assert [(block["name"], block["input"]) for block in blocks[2:]] == CALLS
    assert reply.json()["stop_reason"] == "tool_use"
