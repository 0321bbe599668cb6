"""Images in the messages of every dialect: where they stand, and whatever else stands there."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from pydantic import ValidationError

from protocol.errors import RequestError
from protocol.ids import CommandId
from protocol.tasks import ChatTask, images_of
from skulkd.api.dialects import ollama
from skulkd.api.dialects.anthropic_messages import parse_messages
from skulkd.api.dialects.openai_chat import parse_chat
from skulkd.api.dialects.openai_responses import parse_responses
from tests.support.image_files import a_gif, a_png, base64_of, data_url
from tests.support.junk import Place, places, with_junk

COMMAND = CommandId("aaaaaa-aaaaaaaaaaaaaaaaaaaa")
FIRST, SECOND = a_png(2, 1), a_gif(3, 1)

OPENAI: dict[str, Any] = {
    "model": "a/b",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": data_url(FIRST), "detail": "low"}},
                {"type": "text", "text": "and"},
                {"type": "text", "text": "here"},
                {"type": "image_url", "image_url": data_url(SECOND)},
            ],
        },
    ],
}
RESPONSES: dict[str, Any] = {
    "model": "a/b",
    "input": [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "look"},
                {"type": "input_image", "image_url": data_url(FIRST), "detail": "auto"},
                {"type": "input_text", "text": "and"},
                {"type": "input_text", "text": "here"},
                {"type": "input_image", "image_url": data_url(SECOND)},
            ],
        },
    ],
}


def anthropic_image(data: bytes) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": base64_of(data)}
    return {"type": "image", "source": source}


ANTHROPIC: dict[str, Any] = {
    "model": "a/b",
    "max_tokens": 5,
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                anthropic_image(FIRST),
                {"type": "text", "text": "and"},
                {"type": "text", "text": "here"},
                {"type": "image", "source": {"type": "url", "url": data_url(SECOND)}},
            ],
        },
    ],
}
OLLAMA: dict[str, Any] = {
    "model": "a/b",
    "messages": [
        {"role": "user", "content": "look", "images": [base64_of(FIRST), data_url(SECOND)]},
    ],
}
GENERATE: dict[str, Any] = {"model": "a/b", "prompt": "look", "images": [base64_of(FIRST)]}

Parse = Callable[[dict[str, Any]], ChatTask]
DIALECTS: dict[str, tuple[Parse, dict[str, Any]]] = {
    "openai": (lambda body: parse_chat(body, command_id=COMMAND).task, OPENAI),
    "responses": (lambda body: parse_responses(body, command_id=COMMAND).task, RESPONSES),
    "anthropic": (lambda body: parse_messages(body, command_id=COMMAND).task, ANTHROPIC),
    "ollama chat": (lambda body: ollama.parse_chat(body, command_id=COMMAND).task, OLLAMA),
    "ollama generate": (
        lambda body: ollama.parse_generate(body, command_id=COMMAND).task,
        GENERATE,
    ),
}


@pytest.mark.parametrize("dialect", ["openai", "responses", "anthropic"])
def test_a20_images_stand_where_the_client_has_put_them(dialect: str) -> None:
    parse, body = DIALECTS[dialect]
    (turn,) = parse(body).messages
    assert turn.content == "lookand\nhere"
    first, second = turn.images
    assert (first.at, first.media_type, first.data) == (4, "image/png", base64_of(FIRST))
    assert (second.at, second.media_type, second.width_px) == (12, "image/gif", 3)


@pytest.mark.parametrize("dialect", ["ollama chat", "ollama generate"])
def test_images_of_ollama_stand_before_the_text(dialect: str) -> None:
    parse, body = DIALECTS[dialect]
    task = parse(body)
    assert task.messages[0].content == "look"
    assert {image.at for image in images_of(task)} == {0}
    assert images_of(task)[0].data == base64_of(FIRST)


def test_a44_a_result_of_a_tool_may_be_an_image() -> None:
    shown = {"type": "tool_result", "tool_use_id": "t", "is_error": True,
             "content": [anthropic_image(FIRST), {"type": "text", "text": "x"}]}  # fmt: skip
    use: dict[str, Any] = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    turns: list[dict[str, Any]] = [
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [shown, {"type": "text", "text": "go on"}]},
    ]
    task = DIALECTS["anthropic"][0]({**ANTHROPIC, "messages": turns})
    told = task.messages[1]
    assert (told.role, told.content) == ("tool", "The tool failed: x")
    assert [image.at for image in told.images] == [len("The tool failed: ")]
    assert task.messages[2].content == "go on"


def test_a36_the_output_of_a_call_may_be_an_image() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    image = {"type": "input_image", "image_url": data_url(FIRST)}
    told = {"type": "function_call_output", "call_id": "c", "output": [image]}
    task = DIALECTS["responses"][0]({"model": "a/b", "input": [call, told]})
    assert task.messages[-1].role == "tool"
    assert images_of(task)[0].data == base64_of(FIRST)


def test_an_uploaded_file_is_refused_by_name() -> None:
    for dialect, part in (
        ("responses", {"type": "input_image", "file_id": "file-1"}),
        ("anthropic", {"type": "image", "source": {"type": "file", "file_id": "file-1"}}),
    ):
        parse, body = DIALECTS[dialect]
        field = "input" if dialect == "responses" else "messages"
        with pytest.raises(RequestError, match="uploaded file") as refused:
            parse({**body, field: [{"role": "user", "content": [part]}]})
        assert refused.value.code == "request.unsupported_field"
        assert refused.value.details["param"] == f"{field}[0].content[0]"


@pytest.mark.parametrize("role", ["system", "assistant", "developer"])
def test_only_users_and_tools_show_images(role: str) -> None:
    for dialect, field in (("openai", "messages"), ("responses", "input")):
        parse, body = DIALECTS[dialect]
        with pytest.raises(RequestError) as refused:
            parse({**body, field: [{**body[field][0], "role": role}]})
        assert refused.value.details["param"] == f"{field}[0].content"
    if role != "developer":
        for dialect, place in (("anthropic", "content[1]"), ("ollama chat", "images")):
            parse, body = DIALECTS[dialect]
            with pytest.raises(RequestError) as refused:
                parse({**body, "messages": [{**body["messages"][0], "role": role}]})
            assert refused.value.details["param"] == f"messages[0].{place}"


@pytest.mark.parametrize(
    ("dialect", "place"),
    [(name, place) for name, (_, body) in DIALECTS.items() for place in places(body)],
    ids=str,
)
def test_junk_anywhere_around_an_image_is_a_task_or_a_refusal(dialect: str, place: Place) -> None:
    parse, full = DIALECTS[dialect]
    for body in with_junk(full, place):
        refusal: RequestError | None = None
        try:
            assert parse(body).command_id == COMMAND
        except RequestError as error:
            refusal = error
        except ValidationError:
            pass  # the shell names the field of a task that a wire type refuses
        if refusal is not None:
            assert refusal.details["param"]
            assert len(refusal.message) < 500


def test_cut_base64_never_reaches_an_engine_as_another_image() -> None:
    whole = data_url(FIRST)
    for length in range(0, len(whole), 3):
        image = {"type": "image_url", "image_url": {"url": whole[:length]}}
        body = {"model": "a/b", "messages": [{"role": "user", "content": [image]}]}
        with suppress(RequestError):
            (seen,) = images_of(parse_chat(body, command_id=COMMAND).task)
            assert (seen.width_px, seen.height_px) == (2, 1)
