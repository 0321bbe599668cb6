"""Chat templates: what they are given, and what they cannot do."""

import pytest

from engines.prompts import ChatTemplate
from protocol.errors import EngineError, RequestError
from protocol.tasks import ChatMessage, ChatTask, ToolCall, ToolDefinition
from tests.support.builders import MODEL, a_command_id

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
EPOCH_S = 1_767_225_600.0


def rendered(source: str, task: ChatTask) -> str:
    return ChatTemplate(source, SPECIAL, EPOCH_S).render(task)


def a_chat(*messages: ChatMessage, **fields: object) -> ChatTask:
    identity = {"command_id": a_command_id(), "model_id": MODEL}
    return ChatTask.model_validate({**identity, "messages": messages, **fields})


def test_a_template_sees_turns_tokens_and_where_the_answer_begins() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}\n"
        "  {% if m.role == 'user' %}\n"
        "[{{ m.content }}]{% endif %}\n"
        "{% endfor %}\n"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    task = a_chat(ChatMessage(role="user", content="a < b & 'c'"))
    assert rendered(source, task) == "<s>[a < b & 'c']>"


def test_calls_are_given_as_values_and_written_as_plain_json() -> None:
    call = ToolCall(id="1", name="look", arguments='{"a": "<é>"}')
    task = a_chat(ChatMessage(role="assistant", content="", tool_calls=(call,)))
    source = "{% for c in messages[0].tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}"
    assert rendered(source, task) == '{"a": "<é>"}'


@pytest.mark.parametrize(("choice", "shown"), [("auto", "one two"), ("=two", "two"), ("none", "")])
def test_the_tools_on_offer_are_those_of_the_choice(choice: str, shown: str) -> None:
    tools = (ToolDefinition(name="one"), ToolDefinition(name="two"))
    task = a_chat(ChatMessage(role="user", content=""), tools=tools, tool_choice=choice)
    source = "{{ (tools or []) | map(attribute='function.name') | join(' ') }}"
    assert rendered(source, task) == shown


def test_thinking_is_left_to_the_template_unless_it_is_asked_for() -> None:
    source = "{{ enable_thinking is defined }} {{ strftime_now('%Y-%m-%d') }}"
    task = a_chat(ChatMessage(role="user", content=""))
    assert rendered(source, task) == "False 2026-01-01"
    assert rendered(source, task.model_copy(update={"enable_thinking": False})).startswith("True")


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[7].content.x }}",
        "{% for i in range(1000000) %}x{% endfor %}",
    ],
)
def test_what_a_template_refuses_or_may_not_do_is_the_requests_error(source: str) -> None:
    with pytest.raises(RequestError) as caught:
        rendered(source, a_chat(ChatMessage(role="user", content="")))
    assert caught.value.code == "request.invalid"


def test_a_template_that_cannot_be_read_is_the_models_fault() -> None:
    with pytest.raises(EngineError) as caught:
        ChatTemplate("{% if %}", SPECIAL, EPOCH_S)
    assert caught.value.code == "engine.unsupported"
