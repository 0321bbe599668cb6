"""Acceptance case A19: several answers to one request are honest ones."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from protocol.data_frames import Chunk, Failed, Finished, Started, TokenLogprob, Usage
from protocol.errors import ErrorBody
from protocol.ids import is_command_id
from protocol.tasks import ChatTask
from skulkd.api.dialects.openai_choices import MAX_CHOICES
from skulkd.api.sse import StreamLimits
from tests.support.api_harness import (
    CHAT,
    Api,
    chat_body,
    events_of,
    request_bytes,
    until,
    with_api,
)
from tests.support.fake_ports import FakeDaemon, Pause, ScriptItem

SEED = 40
GONE = Failed(ErrorBody(code="engine.gone", message="the engine died: signal SIGKILL"))


def number_of(task: ChatTask) -> int:
    """Tell which choice a task is, by its seed."""
    assert task.sampling.seed is not None
    return task.sampling.seed - SEED


def script_of(task: ChatTask) -> Sequence[ScriptItem]:
    """Have each choice say other words, at its own pace, the first of them last."""
    number = number_of(task)
    pieces: list[ScriptItem] = []
    for word in (f"{number}a", f"{number}b"):
        pieces += [Pause(0.02 * (3 - number)), Chunk(word)]
    return [Started(7), *pieces, Finished("stop", Usage(7, 10 + number, 4))]


def talkative() -> FakeDaemon:
    daemon = FakeDaemon()
    daemon.inference.script_of = script_of
    return daemon


def texts_of(events: list[dict[str, Any]]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for event in events:
        for choice in event["choices"]:
            said = choice["delta"].get("content", "")
            texts[choice["index"]] = texts.get(choice["index"], "") + said
    return texts


def test_a19_two_choices_have_an_index_each_and_count_together() -> None:
    async def story(api: Api) -> None:
        answer = (await api.chat(n=2, seed=SEED)).json()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1]
        assert [item["message"]["content"] for item in answer["choices"]] == ["0a0b", "1a1b"]
        usage = answer["usage"]
        assert usage["prompt_tokens"] == 7, "one prompt, whatever it was asked for"
        assert usage["completion_tokens"] == 10 + 11
        assert usage["total_tokens"] == 28
        assert usage["prompt_tokens_details"] == {"cached_tokens": 4}

    with_api(story, talkative())


def test_a19_choices_are_streamed_side_by_side_with_one_usage_at_the_end() -> None:
    async def story(api: Api) -> None:
        options = {"include_usage": True}
        reply = await api.chat(n=3, seed=SEED, stream=True, stream_options=options)
        assert reply.text.endswith("data: [DONE]\n\n")
        events = events_of(reply.text)
        assert texts_of(events) == {0: "0a0b", 1: "1a1b", 2: "2a2b"}
        for name in ("id", "created", "model"):
            assert len({event[name] for event in events}) == 1
        ends = [
            (choice["index"], choice["finish_reason"])
            for event in events
            for choice in event["choices"]
            if choice["finish_reason"]
        ]
        assert ends == [(2, "stop"), (1, "stop"), (0, "stop")], "each ends when it is done"
        roles = [
            e["choices"][0]["index"] for e in events[:-1] if "role" in e["choices"][0]["delta"]
        ]
        assert sorted(roles) == [0, 1, 2]
        assert [event["usage"] for event in events[:-1]] == [None] * (len(events) - 1)
        assert events[-1]["choices"] == []
        assert events[-1]["usage"]["completion_tokens"] == 10 + 11 + 12
        assert events[-1]["usage"]["prompt_tokens"] == 7

    with_api(story, talkative())


def test_a19_each_choice_is_a_task_of_its_own_with_its_own_seed() -> None:
    async def story(api: Api) -> None:
        reply = await api.chat(n=3, seed=0xFFFFFFFF)
        tasks = api.daemon.inference.tasks
        assert [task.sampling.seed for task in tasks] == [0xFFFFFFFF, 0, 1]
        assert len({task.command_id for task in tasks}) == 3
        assert all(is_command_id(task.command_id) for task in tasks)
        assert tasks[0].command_id == reply.headers["x-skulk-command-id"] == reply.json()["id"]
        await api.chat(n=2)
        assert [task.sampling.seed for task in api.daemon.inference.tasks[3:]] == [None, None]

    with_api(story)


@pytest.mark.parametrize("n", [0, MAX_CHOICES + 1, True, "2", 1.5])
@pytest.mark.parametrize("stream", [False, True])
def test_a19_a_number_out_of_bounds_is_refused_with_the_bound(*, n: object, stream: bool) -> None:
    async def story(api: Api) -> None:
        reply = await api.chat(n=n, stream=stream)
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "n"
        assert f"from 1 to {MAX_CHOICES}" in reply.json()["error"]["message"]
        assert api.daemon.inference.tasks == []

    with_api(story)


@pytest.mark.parametrize("stream", [False, True])
def test_a19_one_choice_that_fails_ends_all_with_its_error(*, stream: bool) -> None:
    def fragile(task: ChatTask) -> Sequence[ScriptItem]:
        return [Started(7), GONE] if number_of(task) == 1 else [Started(7), Pause(60)]

    async def story(api: Api) -> None:
        reply = await api.chat(n=3, seed=SEED, stream=stream)
        if stream:
            assert "[DONE]" not in reply.text
            assert events_of(reply.text)[-1]["error"]["code"] == "engine.gone"
        else:
            assert reply.status_code == 503
        await until(lambda: not api.daemon.inference.running)
        assert api.daemon.inference.n_closed_early == 2

    daemon = FakeDaemon()
    daemon.inference.script_of = fragile
    with_api(story, daemon)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("finished", [0, 2])
def test_a19_a_cancel_and_a_client_that_leaves_end_all_choices(
    *, stream: bool, finished: int
) -> None:
    # The first choice has the id of the request; it may be over before the cancel comes.
    def patient(task: ChatTask) -> Sequence[ScriptItem]:
        silence: list[ScriptItem] = [] if number_of(task) == finished else [Pause(60)]
        return [Started(7), *silence, Finished("stop", Usage(7, 1))]

    async def story(api: Api) -> None:
        inference = api.daemon.inference
        asked = asyncio.ensure_future(api.chat(n=3, seed=SEED, stream=stream))
        await until(lambda: len(inference.tasks) == 3 and len(inference.running) == 2)
        command_id = inference.tasks[0].command_id
        assert (await api.client.post(f"/v1/cancel/{command_id}")).status_code == 200
        reply = await asked
        error = events_of(reply.text)[-1]["error"] if stream else reply.json()["error"]
        assert error["code"] == "request.cancelled"
        await until(lambda: not inference.running)

        _, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(request_bytes("POST", CHAT, chat_body(n=3, seed=SEED, stream=stream)))
        await until(lambda: len(inference.tasks) == 6 and len(inference.running) == 2)
        writer.close()
        await until(lambda: not inference.running)

    daemon = FakeDaemon()
    daemon.inference.script_of = patient
    with_api(story, daemon)


def test_choices_that_wait_for_one_slow_reader_all_go_on_once_it_reads() -> None:
    def flood(task: ChatTask) -> Sequence[ScriptItem]:
        words = [Chunk(f"{number_of(task)}" * 2000) for _ in range(400)]
        return [Started(7), *words, Finished("stop", Usage(7, 1))]

    async def story(api: Api) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port, limit=1 << 16)
        writer.write(request_bytes("POST", CHAT, chat_body(n=2, seed=SEED, stream=True)))
        await asyncio.sleep(0.3)
        received = b""
        async with asyncio.timeout(10):
            while b"[DONE]" not in received[-100:]:
                received += await reader.read(1 << 16)
        writer.close()
        assert received.count(b'"finish_reason":"stop"') == 2

    daemon = FakeDaemon()
    daemon.inference.script_of = flood
    daemon.stream_limits = StreamLimits(buffer_bytes=1 << 14)
    with_api(story, daemon)


def test_logprobs_of_each_choice_are_its_own() -> None:
    def sure(task: ChatTask) -> Sequence[ScriptItem]:
        token = TokenLogprob(f"t{number_of(task)}", -0.5)
        return [Started(7), Chunk(token.token, logprobs=(token,)), Finished("stop", Usage(7, 1))]

    async def story(api: Api) -> None:
        answer = (await api.chat(n=2, seed=SEED, logprobs=True)).json()
        for choice in answer["choices"]:
            (entry,) = choice["logprobs"]["content"]
            assert entry["token"] == choice["message"]["content"] == f"t{choice['index']}"

    daemon = FakeDaemon()
    daemon.inference.script_of = sure
    with_api(story, daemon)
