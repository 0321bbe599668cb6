"""Whatever JSON arrives is tasks or a refusal by name; whatever text leaves is one whole event."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.data_frames import Chunk, Finished, Started, Usage
from protocol.errors import RequestError
from protocol.ids import CommandId
from skulkd.api.dialects.openai_choices import MAX_CHOICES
from skulkd.api.dialects.openai_completions import CompletionCall, parse_completion

COMMAND = CommandId("aaaaaa-aaaaaaaaaaaaaaaaaaaa")
FIELDS = [
    "model", "prompt", "stream", "temperature", "top_p", "top_k", "max_tokens", "stop", "seed",
    "logprobs", "echo", "suffix", "n", "best_of", "stream_options", "logit_bias", "unknown",
]  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(1, 9), st.text(max_size=8),
    st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([10**400, "a/b"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=20)
        | st.dictionaries(st.sampled_from(["include_usage"]) | st.text(max_size=4), inner)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8), st.booleans())
@settings(max_examples=400, deadline=None)
def test_any_object_is_tasks_or_a_named_refusal(body: dict[str, Any], is_plausible: bool) -> None:
    if is_plausible:
        body = {"prompt": "x", **body, "model": "a/b"}
    refusal: RequestError | None = None
    call: CompletionCall | None = None
    try:
        call = parse_completion(body, command_id=COMMAND)
    except RequestError as error:
        refusal = error
    if refusal is not None:
        assert refusal.details.get("param"), refusal
        assert refusal.remediation
        return
    assert call is not None
    assert 1 <= len(call.tasks) <= MAX_CHOICES
    assert len({task.command_id for task in call.tasks}) == len(call.tasks)
    assert call.task.command_id == COMMAND
    assert all(task.prompt and not task.messages for task in call.tasks)
    assert len(call.streams(1)) == len(call.tasks)


@given(st.text(min_size=1, max_size=8), st.lists(st.text(max_size=20), max_size=8), st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_text_is_carried_whole_by_events_and_by_the_answer(
    prompt: str, texts: list[str], echo: bool
) -> None:
    body = {"model": "a/b", "prompt": prompt, "echo": echo}
    call = parse_completion(body, command_id=COMMAND)
    stream, answer = call.stream(1), call.answer(1)
    finished = Finished("stop", Usage(1, 2))
    sent = stream.start(Started(1))
    for text in texts:
        sent += stream.chunk(Chunk(text))
        answer.add(Chunk(text))
    sent += stream.finish(finished, 1.0)
    # `splitlines` splits at every Unicode line break: the strictest of all clients.
    lines = [line for line in sent.decode().splitlines() if line]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    expected = (prompt if echo else "") + "".join(texts)
    assert "".join(event["choices"][0]["text"] for event in events) == expected
    assert json.loads(answer.document(finished, 1.0))["choices"][0]["text"] == expected
