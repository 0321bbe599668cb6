"""What `/openapi.json` says of foreign bodies is what the dialects read, field by field.

That answers are as they are described is judged with every answer of `test_bad_input.py`.
"""

import base64
import json
from collections import UserDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, cast

import pytest
from pydantic import BaseModel

from protocol.errors import RequestError
from skulkd.api.dialect_notes import DIALECT_NOTES
from skulkd.api.dialects import (
    anthropic_messages,
    ollama,
    ollama_embeddings,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_responses,
    rerank,
)
from skulkd.api.dialects.chat_dialect import ChatCall
from tests.support.answer_judges import fields_of
from tests.support.builders import a_command_id
from tests.support.fuzz_requests import DIALECTS, corpus, mutant
from tests.support.image_files import a_png

PARSERS: Final[dict[str, Callable[..., object]]] = {
    "/v1/chat/completions": openai_chat.parse_chat,
    "/v1/completions": openai_completions.parse_completion,
    "/v1/responses": openai_responses.parse_responses,
    "/v1/embeddings": openai_embeddings.parse_embeddings,
    "/v1/rerank": rerank.parse_rerank,
    "/v1/messages": anthropic_messages.parse_messages,
    "/ollama/api/chat": ollama.parse_chat,
    "/ollama/api/generate": ollama.parse_generate,
    "/ollama/api/embed": ollama_embeddings.parse_embed,
    "/ollama/api/embeddings": ollama_embeddings.parse_embeddings,
}
REFUSED: Final = {
    "audio", "context", "conversation", "dimensions", "function_call", "functions",
    "logit_bias", "modalities", "previous_response_id", "prompt", "response_format", "suffix",
    "template",
}  # fmt: skip
"""Read in order to be refused by name, on one route or another."""
GENERATING: Final = {"max_tokens", "stream"}
"""Of messages, and not of a prompt that is only counted."""


class Seen(UserDict[str, object]):
    """A body that remembers which of its members were asked for."""

    def __init__(self, fields: Mapping[str, object], asked: set[str]) -> None:
        self.asked = asked
        super().__init__(fields)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return key in self.data

    def __getitem__(self, key: str) -> object:
        self.asked.add(key)
        return self.data[key]

    def get(self, key: str, default: object = None) -> object:
        self.asked.add(key)
        return self.data.get(key, default)


def asked_of(path: str) -> set[str]:
    """Give the members that the parser of a route asks for, over many requests."""
    asked: set[str] = set()
    for dialect in DIALECTS:
        known = corpus(dialect)
        sent = [json.dumps(one.body).encode() for one in known if one.path.startswith(path)]
        sent += [mutant(known, dialect, seed).body for seed in range(150)]
        for body in sent:
            with suppress(ValueError, AssertionError, RequestError):
                PARSERS[path](Seen(fields_of(body), asked), command_id=a_command_id())
    return asked


def described(path: str) -> set[str]:
    kind = DIALECT_NOTES[f"POST {path}"].asks
    assert isinstance(kind, type)
    assert issubclass(kind, BaseModel)
    return set(kind.model_fields)


@pytest.mark.parametrize("path", PARSERS)
def test_every_field_that_is_read_is_described_and_no_other(path: str) -> None:
    asked, known = asked_of(path), described(path)
    assert asked - known - REFUSED == set()
    assert known - asked == set()


def test_a_prompt_is_counted_by_the_fields_of_a_message() -> None:
    assert described("/v1/messages/count_tokens") == described("/v1/messages") - GENERATING


IMAGE: Final = base64.b64encode(a_png()).decode()
ADDRESS: Final = f"data:image/png;base64,{IMAGE}"
SHOWN: Final[dict[str, list[dict[str, object]]]] = {
    "/v1/chat/completions": [
        {"messages": [{"role": "user", "content": [{"type": kind, "image_url": image}]}]}
        for kind in ("image_url", "input_image")
        for image in (ADDRESS, {"url": ADDRESS, "detail": "low"})
    ],
    "/v1/responses": [
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": ADDRESS}]}]}
    ],
    "/v1/messages": [
        {"max_tokens": 5, "messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "x", "data": IMAGE}},
            {"type": "tool_result", "tool_use_id": "a", "content": [
                {"type": "image", "source": {"type": "url", "url": ADDRESS}}]},
        ]}]},
    ],
    "/ollama/api/chat": [{"messages": [{"role": "user", "content": "see", "images": [IMAGE]}]}],
    "/ollama/api/generate": [{"prompt": "see", "images": [ADDRESS]}],
}  # fmt: skip


@pytest.mark.parametrize("path", SHOWN)
def test_an_image_is_read_as_it_is_described(path: str) -> None:
    kind = DIALECT_NOTES[f"POST {path}"].asks
    assert isinstance(kind, type)
    for shown in SHOWN[path]:
        body = {"model": "m", **shown}
        kind.model_validate(body)
        call = PARSERS[path](fields_of(json.dumps(body).encode()), command_id=a_command_id())
        assert any(message.images for message in cast("ChatCall", call).task.messages)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_clients_send_is_as_it_is_described(dialect: str) -> None:
    for known in corpus(dialect):
        note = DIALECT_NOTES[f"{known.method} {known.path.partition('?')[0]}"]
        is_refused = known.body is not None and "input" in known.body and "vectors" in dialect
        if known.body is not None and isinstance(note.asks, type) and not is_refused:
            assert isinstance(note.asks.model_validate(known.body), note.asks)
