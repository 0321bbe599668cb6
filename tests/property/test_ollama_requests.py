"""Requests in Ollama's form, mutated in several places at once: a task, or a refusal by name."""

import random
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from protocol.errors import RequestError
from protocol.ids import CommandId
from skulkd.api.dialects.ollama import OllamaCall, parse_chat, parse_generate, parse_idle
from skulkd.api.dialects.ollama_output import Kind
from tests.support.junk import mutated

COMMAND: Final = CommandId("aaaaaa-aaaaaaaaaaaaaaaaaaaa")
COMMON: Final[dict[str, Any]] = {
    "model": "a/b:latest",
    "stream": True,
    "think": "low",
    "format": {"type": "object", "properties": {"x": {"type": "integer"}}},
    "keep_alive": "5m",
    "options": {"temperature": 0.5, "num_ctx": 8192, "num_predict": -1, "stop": ["x"], "seed": 1},
}
FULL: Final[dict[Kind, dict[str, Any]]] = {
    "chat": {
        **COMMON,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "q", "images": []},
            {
                "role": "assistant",
                "content": "",
                "thinking": "hm",
                "tool_calls": [{"function": {"index": 0, "name": "f", "arguments": {"x": 1}}}],
            },
            {"role": "tool", "content": "42", "tool_name": "f"},
        ],
    },
    "generate": {**COMMON, "prompt": "q", "system": "s", "raw": False, "context": [], "suffix": ""},
}


def read(kind: Kind, body: dict[str, Any]) -> OllamaCall | None:
    """Read a request; None where it only asks whether the model is loaded."""
    if parse_idle(body, "messages" if kind == "chat" else "prompt") is not None:
        return None
    return (parse_chat if kind == "chat" else parse_generate)(body, command_id=COMMAND)


@pytest.mark.parametrize("kind", ["chat", "generate"])
def test_the_request_is_one_without_mutations(kind: Kind) -> None:
    call = read(kind, FULL[kind])
    assert call is not None
    assert call.task.stream


@pytest.mark.parametrize("kind", ["chat", "generate"])
@given(chance=st.randoms(use_true_random=False))
@settings(max_examples=2_000, deadline=None)
def test_a_mutated_request_is_a_task_or_a_refusal_by_name(
    kind: Kind, chance: random.Random
) -> None:
    refusal: RequestError | None = None
    try:
        call = read(kind, mutated(FULL[kind], chance))
        assert call is None or call.task.messages or call.task.prompt
    except RequestError as error:
        refusal = error
    except ValidationError:
        return  # the shell names the field of a task that a wire type refuses
    if refusal is not None:
        assert refusal.details["param"]
        assert refusal.remediation
        assert len(refusal.message) < 300
