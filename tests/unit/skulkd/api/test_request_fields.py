"""What reaches an engine is what is named, within its range (S29)."""

from typing import Any

import pytest

from engines.openai_request import chat_body as engine_body
from protocol.tasks import ChatTask
from tests.support.api_harness import CHAT, Api, chat_body, with_api

MEANT_FOR_A_SERVER: dict[str, Any] = {
    "grammar": 'root ::= "x"',
    "grammar_file": "/etc/passwd",
    "json_schema": {"type": "object"},
    "id_slot": 0,
    "slot_id": 0,
    "cache_prompt": True,
    "lora": [{"id": 0, "scale": 9}],
    "lora_path": "/srv/evil",
    "model_path": "/srv/evil.gguf",
    "n_probs": 1000,
    "samplers": ["temperature"],
    "chat_template": "{{ x }}",
    "chat_template_kwargs": {"x": "y"},
    "trust_remote_code": True,
    "return_tokens": True,
    "timings_per_token": True,
    "verbose": True,
    "__proto__": {"admin": True},
    "mm_processor_kwargs": {"num_frames": 10**9},
}


def test_s29_fields_of_an_engines_own_reach_none() -> None:
    async def story(api: Api) -> None:
        for fields in ({}, MEANT_FOR_A_SERVER):
            reply = await api.chat(**fields)
            assert reply.status_code == 200, reply.text
        plain, loaded = api.daemon.inference.tasks
        assert isinstance(plain, ChatTask)
        assert isinstance(loaded, ChatTask)
        same = {"command_id": plain.command_id}
        assert loaded.model_copy(update=same) == plain
        assert engine_body(loaded, is_stream=True) == engine_body(plain, is_stream=True)

    with_api(story)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e300),
        ("temperature", "hot"),
        ("top_p", 1.1),
        ("top_p", -1),
        ("min_p", 2),
        ("n", 0),
        ("n", 17),
        ("n", 16_384),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1 << 80),
        ("max_completion_tokens", 0),
        ("top_logprobs", 21),
        ("top_logprobs", -1),
        ("frequency_penalty", 99),
        ("presence_penalty", -99),
        ("stop", ["x"] * 1000),
        ("tools", [{"type": "function", "function": {"name": "f"}}] * 1000),
        ("messages", [{"role": "user", "content": "x"}] * 5000),
        ("seed", "now"),
        ("seed", 1 << 200),
        ("stream", "yes please"),
        ("model", "x" * 100_000),
        ("messages", [{"role": "root", "content": "x"}]),
    ],
)
def test_s29_a_value_out_of_its_range_is_a_400_that_names_the_field(
    field: str, value: object
) -> None:
    async def story(api: Api) -> None:
        extra = {"logprobs": True} if field == "top_logprobs" else {}
        reply = await api.client.post(CHAT, json={**chat_body(), **extra, field: value})
        assert reply.status_code in {400, 404} if field == "model" else reply.status_code == 400
        assert field in reply.text
        assert len(reply.content) < 10_000
        assert api.daemon.inference.tasks == []

    with_api(story)
