"""Requests for responses, mutated in several places at once: a task, or a refusal by name."""

import random
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from protocol.errors import RequestError
from protocol.ids import CommandId
from skulkd.api.dialects.openai_responses import parse_responses
from tests.support.junk import mutated

COMMAND: Final = CommandId("aaaaaa-aaaaaaaaaaaaaaaaaaaa")
TOOL: Final = {"type": "function", "name": "run", "parameters": {"type": "object"}}
AGENT: Final[dict[str, Any]] = {
    "model": "a/b",
    "stream": True,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "high", "summary": "auto"},
    "text": {"format": {"type": "json_schema", "name": "s", "schema": {}}, "verbosity": "low"},
    "tools": [TOOL, {"type": "namespace", "name": "ns", "tools": [TOOL]}, {"type": "web_search"}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [TOOL]},
    "metadata": {"k": "v"},
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]},
        {"type": "message", "role": "user", "content": "q"},
        {"type": "reasoning", "summary": [], "encrypted_content": "skulk:hm"},
        {"type": "function_call", "call_id": "c", "name": "run", "namespace": "ns"},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_text", "text": "r"}],
        },
        {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "@@"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "ok"},
        {"type": "web_search_call", "id": "w"},
    ],
}


def test_the_request_is_one_without_mutations() -> None:
    assert len(parse_responses(AGENT, command_id=COMMAND).task.messages) == 6


@given(st.randoms(use_true_random=False))
@settings(max_examples=2_000, deadline=None)
def test_a_mutated_request_is_a_task_or_a_refusal_by_name(chance: random.Random) -> None:
    refusal: RequestError | None = None
    try:
        assert parse_responses(mutated(AGENT, chance), command_id=COMMAND).task.messages
    except RequestError as error:
        refusal = error
    except ValidationError:
        return  # the shell names the field of a task that a wire type refuses
    if refusal is not None:
        assert refusal.details["param"]
        assert refusal.remediation
        assert len(refusal.message) < 300
