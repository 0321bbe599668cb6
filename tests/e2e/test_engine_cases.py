"""Cases A06, A07 and A25 over HTTP: what only a real engine behind a real node can get wrong."""

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.support.api_harness import events_of
from tests.support.chat_client import answer_text, ask, chat_body, chat_stream
from tests.support.daemon import Daemon
from tests.support.demo_model import demo_model_path
from tests.support.scripted_models import add_scripted_model
from tests.support.shared_daemon import shared_daemon

WINDOW = 512
SAID = "alpha beta gamma delta"
FAMILY = "👨‍👩‍👧 日本語 é ende"


@dataclass(frozen=True)
class Speaker:
    """A placed model, a question, what it answers, and a stop text inside the answer."""

    model_id: str
    question: str
    answer: str
    stop: str
    before_stop: str

    def body(self, **fields: object) -> dict[str, object]:
        messages = [{"role": "user", "content": self.question}]
        return {"messages": messages, "temperature": 0, "max_tokens": 32, **fields}


SCRIPTED = Speaker("scripted/alphabet", "Say it.", SAID, "beta gamma", "alpha ")
REAL = Speaker(
    "demo/in-place",
    "What is the capital of France? Answer in one sentence.",
    "The capital of France is Paris.",
    "France is",
    "The capital of ",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with both speakers ready, and one that cuts its characters into bytes."""
    root = tmp_path_factory.mktemp("cases")
    models = root / "models"
    add_scripted_model(models, SCRIPTED.model_id, reply=SAID)
    add_scripted_model(models, "scripted/bytes", reply=FAMILY, split_utf8=True)
    with shared_daemon(root, models_dir=models) as daemon:
        in_place = {"path": str(demo_model_path()), "model_id": REAL.model_id}
        assert daemon.http.post("/models/import", json=in_place).is_success
        for model_id in (SCRIPTED.model_id, "scripted/bytes", REAL.model_id):
            daemon.place(model_id, context_tokens=WINDOW, slots=2)
        for instance_id in daemon.http.get("/state").json()["instances"]:
            daemon.wait_phase(instance_id, timeout_s=90)
        yield daemon


def stream(node: Daemon, speaker: Speaker, **fields: object) -> str:
    with chat_stream(node, speaker.model_id, **speaker.body(**fields)) as chat:
        chat.read_to_end()
        assert chat.is_done
        return chat.text


both = pytest.mark.parametrize("speaker", [SCRIPTED, REAL], ids=["scripted", "llama_server"])


@both
@pytest.mark.parametrize("form", ["string", "list"])
def test_a07_stop_string_across_token_borders(node: Daemon, speaker: Speaker, form: str) -> None:
    stop = speaker.stop if form == "string" else ["never said", speaker.stop]
    whole = ask(node, speaker.model_id, **speaker.body(stop=stop))
    assert answer_text(whole) == speaker.before_stop
    assert whole.json()["choices"][0]["finish_reason"] == "stop"
    assert stream(node, speaker, stop=stop) == speaker.before_stop


@both
def test_a07_text_held_back_for_a_stop_string_that_never_completes_is_not_lost(
    node: Daemon, speaker: Speaker
) -> None:
    stop = speaker.answer[-2:] + "\nUser:"
    assert answer_text(ask(node, speaker.model_id, **speaker.body(stop=stop))) == speaker.answer
    assert stream(node, speaker, stop=stop) == speaker.answer


def test_a06_characters_cut_by_tokens_arrive_whole(node: Daemon) -> None:
    speaker = Speaker("scripted/bytes", "Say it.", FAMILY, "", "")
    assert stream(node, speaker, max_tokens=200) == FAMILY


@pytest.mark.parametrize("n_bytes", range(1, 12))
def test_a06_a_character_cut_at_the_end_is_left_out(node: Daemon, n_bytes: int) -> None:
    speaker = Speaker("scripted/bytes", "Say it.", FAMILY, "", "")
    said = stream(node, speaker, max_tokens=n_bytes)
    assert "\ufffd" not in said
    assert FAMILY.startswith(said)
    assert len(said.encode()) <= n_bytes


def test_a18_logprobs_of_a_real_model_streamed_and_whole(node: Daemon) -> None:
    fields = {"logprobs": True, "top_logprobs": 3, "max_tokens": 5}
    whole = ask(node, REAL.model_id, **REAL.body(**fields)).json()["choices"][0]
    entries = whole["logprobs"]["content"]
    assert len(entries) == 5
    assert "".join(entry["token"] for entry in entries) == whole["message"]["content"]
    for entry in entries:
        assert entry["logprob"] <= 0
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["token"] == entry["token"], "greedy"
    body = chat_body(REAL.model_id, **REAL.body(**fields), stream=True)
    streamed = events_of(node.http.post("/v1/chat/completions", json=body).text)
    told = [
        entry["token"]
        for event in streamed
        for choice in event["choices"]
        if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
    ]
    assert told == [entry["token"] for entry in entries]


@both
def test_a19_several_answers_to_one_request(node: Daemon, speaker: Speaker) -> None:
    answer = ask(node, speaker.model_id, **speaker.body(n=3)).json()
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert texts == [speaker.answer] * 3
    one = ask(node, speaker.model_id, **speaker.body()).json()["usage"]
    assert answer["usage"]["prompt_tokens"] == one["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == 3 * one["completion_tokens"]


def test_texts_are_gone_on_with_by_a_real_model(node: Daemon) -> None:
    prompts = ["The capital of France is", "The capital of Italy is"]
    body = {"model": REAL.model_id, "prompt": prompts, "temperature": 0, "max_tokens": 2}
    whole = node.http.post("/v1/completions", json=body).json()
    assert [choice["text"] for choice in whole["choices"]] == [" Paris.", " Rome."]
    assert whole["usage"]["prompt_tokens"] == 10, "no template is around them"
    streamed = node.http.post("/v1/completions", json={**body, "stream": True})
    texts = ["", ""]
    for event in events_of(streamed.text):
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [" Paris.", " Rome."]


@both
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "streamed"])
def test_a25_no_silent_prompt_truncation(
    node: Daemon, speaker: Speaker, *, is_stream: bool
) -> None:
    too_long = "Xylophone. " + "word " * (WINDOW + 1)
    body = {"model": speaker.model_id, "messages": [{"role": "user", "content": too_long}]}
    answer = node.http.post("/v1/chat/completions", json={**body, "stream": is_stream})
    if is_stream:
        assert "context_length_exceeded" in answer.text
        assert "[DONE]" not in answer.text
        assert '"content"' not in answer.text
    else:
        _assert_refused_with_both_numbers(answer)


def _assert_refused_with_both_numbers(answer: httpx.Response) -> None:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("context_length_exceeded:")
    assert str(WINDOW) in error["message"]
    numbers = [int(word) for word in error["message"].replace(",", " ").split() if word.isdigit()]
    assert any(number > WINDOW for number in numbers), error["message"]
