"""`/v1/completions`: a text is gone on with, in the form that OpenAI's older clients read."""

from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from protocol.data_frames import Chunk, Finished, Started, TokenLogprob, Usage
from protocol.tasks import ChatTask
from skulkd.api.dialects.openai_choices import MAX_CHOICES
from tests.support.api_harness import Api, events_of, with_api
from tests.support.fake_ports import MODEL, FakeDaemon, ScriptItem, make_card, make_instance

COMPLETIONS = "/v1/completions"


async def complete(api: Api, **fields: object) -> httpx.Response:
    return await api.client.post(COMPLETIONS, json={"model": MODEL, "prompt": "One,", **fields})


def speaking(task: ChatTask) -> Sequence[ScriptItem]:
    """Go on with a prompt by its last word, said again by the seed's number."""
    word = (task.prompt or "").split()[-1]
    said = f" {word}{'' if task.sampling.seed is None else task.sampling.seed}"
    return [Started(2), Chunk(said[:2]), Chunk(said[2:]), Finished("stop", Usage(2, 5, 1))]


def daemon_that_speaks() -> FakeDaemon:
    daemon = FakeDaemon()
    daemon.inference.script_of = speaking
    return daemon


def test_a_text_is_gone_on_with_as_it_is() -> None:
    async def story(api: Api) -> None:
        reply = await complete(api, max_tokens=9, temperature=0, stop="\n", top_k=3)
        document = reply.json()
        assert document["object"] == "text_completion"
        assert document["id"] == reply.headers["x-skulk-command-id"]
        assert document["model"] == MODEL
        assert isinstance(document["created"], int)
        (choice,) = document["choices"]
        assert choice == {"index": 0, "text": " One,", "logprobs": None, "finish_reason": "stop"}
        assert document["usage"]["total_tokens"] == 7
        (task,) = api.daemon.inference.tasks
        assert (task.prompt, task.messages) == ("One,", ())
        assert (task.max_tokens, task.stop, task.sampling.top_k) == (9, ("\n",), 3)

    with_api(story, daemon_that_speaks())


def test_a_stream_says_the_same_and_ends_with_its_usage_if_asked() -> None:
    async def story(api: Api) -> None:
        for options in (None, {"include_usage": True}):
            reply = await complete(api, stream=True, stream_options=options)
            assert reply.text.startswith(": command_id ")
            assert reply.text.endswith("data: [DONE]\n\n")
            events = events_of(reply.text)
            assert all(event["object"] == "text_completion" for event in events)
            choices = [choice for event in events for choice in event["choices"]]
            assert "".join(choice["text"] for choice in choices) == " One,"
            reasons = [choice["finish_reason"] for choice in choices]
            assert reasons == [None, None, "stop"]
            told = [event.get("usage") for event in events if event.get("usage")]
            assert len(told) == (0 if options is None else 1)
            if options is not None:
                assert events[-1]["choices"] == []
                assert events[-1]["usage"]["total_tokens"] == 7

    with_api(story, daemon_that_speaks())


@pytest.mark.parametrize("stream", [False, True])
def test_several_texts_with_several_answers_each_are_numbered_text_by_text(*, stream: bool) -> None:
    async def story(api: Api) -> None:
        options = {"include_usage": True}
        fields = {"n": 2, "seed": 7, "stream": stream, "stream_options": options}
        reply = await complete(api, prompt=["a b", "c d"], **fields)
        texts = {0: "", 1: "", 2: "", 3: ""}
        events = events_of(reply.text) if stream else [reply.json()]
        for event in events:
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
        assert texts == {0: " b7", 1: " b8", 2: " d7", 3: " d8"}
        usage = events[-1]["usage"]
        assert usage["prompt_tokens"] == 4, "two prompts of two tokens"
        assert usage["completion_tokens"] == 4 * 5
        assert usage["prompt_tokens_details"]["cached_tokens"] == 2
        assert len({task.command_id for task in api.daemon.inference.tasks}) == 4

    with_api(story, daemon_that_speaks())


@pytest.mark.parametrize("stream", [False, True])
def test_echo_puts_the_text_before_its_continuation(*, stream: bool) -> None:
    async def story(api: Api) -> None:
        reply = await complete(api, prompt=["Two,", "Three,"], echo=True, stream=stream)
        texts = {0: "", 1: ""}
        for event in events_of(reply.text) if stream else [reply.json()]:
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
        assert texts == {0: "Two, Two,", 1: "Three, Three,"}

    with_api(story, daemon_that_speaks())


def test_logprobs_are_lists_side_by_side_streamed_or_whole() -> None:
    tokens = (
        TokenLogprob(" é", -0.1, ((" é", -0.1), (" a", -2.0))),
        TokenLogprob("!", -3.0, ((".", -0.5), ("?", -1.0))),
    )
    expected = {
        "tokens": [" é", "!"],
        "token_logprobs": [-0.1, -3.0],
        "top_logprobs": [{" é": -0.1, " a": -2.0}, {".": -0.5, "?": -1.0, "!": -3.0}],
        "text_offset": [0, 2],
    }

    async def story(api: Api) -> None:
        api.daemon.inference.script = [
            Started(2),
            *(Chunk(token.token, logprobs=(token,)) for token in tokens),
            Finished("length", Usage(2, 2)),
        ]
        whole = (await complete(api, logprobs=2)).json()["choices"][0]
        assert whole["logprobs"] == expected
        assert api.daemon.inference.tasks[0].logprobs == 2
        events = events_of((await complete(api, logprobs=2, stream=True)).text)
        scores = [event["choices"][0]["logprobs"] for event in events]
        assert scores[-1] is None
        for name, values in expected.items():
            assert [value for score in scores[:-1] for value in score[name]] == values

    with_api(story)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": True}, "prompt"),
        ({"prompt": [1, 2, 3]}, "prompt"),
        ({"prompt": [[1, 2], [3]]}, "prompt"),
        ({"prompt": ["x"] * (MAX_CHOICES + 1)}, "prompt"),
        ({"prompt": ["x"] * 9, "n": 2}, "prompt"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": 1, "echo": True}, "echo"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_what_is_not_served_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    async def story(api: Api) -> None:
        for stream in (False, True):
            reply = await complete(api, **fields, stream=stream)
            assert reply.status_code == 400
            assert reply.json()["error"]["param"] == param
            assert reply.json()["error"]["type"] == "invalid_request_error"
        assert api.daemon.inference.tasks == []

    with_api(story)


def test_token_numbers_are_told_apart_from_wrong_types() -> None:
    async def story(api: Api) -> None:
        error = (await complete(api, prompt=[2028, 374, 264])).json()["error"]
        assert error["code"] == "request.unsupported_field"
        assert "tokens" in error["message"]

    with_api(story)


def test_a_harmless_best_of_and_unknown_and_null_fields_do_not_fail() -> None:
    async def story(api: Api) -> None:
        fields: dict[str, Any] = {
            "best_of": 2, "n": 2, "suffix": None, "logit_bias": {}, "user": "u", "foo": 1,
            "stop": None, "echo": None, "logprobs": None, "stream_options": None,
        }  # fmt: skip
        assert (await complete(api, **fields)).status_code == 200

    with_api(story)


def test_a23_errors_have_the_same_form_as_those_of_chats() -> None:
    async def story(api: Api) -> None:
        reply = await complete(api, model="no/such")
        assert reply.status_code == 404
        assert reply.json()["error"]["code"] == "model_not_found"
        too_long = await complete(api, max_tokens=512)
        assert too_long.json()["error"]["code"] == "context_length_exceeded"

    with_api(story)

    async def deaf(api: Api) -> None:
        assert (await complete(api)).status_code == 400

    with_api(deaf, FakeDaemon(make_instance(card=make_card(tasks=("TextEmbedding",)))))
