"""The MLX engine in its runner child, with the demo model: few words, for on a CPU it is slow.

What holds for every engine is in test_engine_contract.py, whose stories would take minutes here.
"""

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from engines.base import EngineClient
from engines.registry import engine_of
from protocol.data_frames import Chunk, Started
from protocol.errors import EngineError
from protocol.tasks import ResponseFormat, Sampling
from tests.support.engine_process import (
    ANSWER,
    CONTEXT_TOKENS,
    LONG_TEXT,
    SLOTS,
    WAIT_S,
    EngineProcess,
    a_task,
    asked,
    failed,
    finished,
    frames_of,
    short_directory,
    text_of,
    wait_for_statistics,
    with_client,
)
from tests.support.mlx_model import an_mlx_spec, mlx_model_path

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def process() -> Iterator[EngineProcess]:
    with tempfile.TemporaryDirectory(prefix="skulk-") as place:
        spec = an_mlx_spec(Path(place), mlx_model_path())
        process = EngineProcess.start(engine_of("mlx"), spec)
        try:
            yield process
        finally:
            process.stop()


def test_a_greedy_chat_tells_its_tokens_and_reads_a_prompt_once(process: EngineProcess) -> None:
    async def story(client: EngineClient) -> None:
        counted = await client.count_tokens(a_task())
        first = await frames_of(client, a_task(logprobs=2))
        assert first[0] == Started(counted)
        assert text_of(first) == ANSWER
        end = finished(first)
        assert (end.reason, end.usage.prompt_tokens, end.usage.cached_tokens) == (
            "stop",
            counted,
            0,
        )
        entries = [entry for frame in first if isinstance(frame, Chunk) for entry in frame.logprobs]
        assert "".join(entry.token for entry in entries) == ANSWER
        assert end.usage.completion_tokens == len(entries) + 1, "the end of the turn is a token"
        best = [entry.alternatives[0] for entry in entries]
        assert best == [(entry.token, entry.logprob) for entry in entries]
        again = await frames_of(client, a_task(stop=("France i", "nowhere")))
        assert text_of(again) == "The capital of "
        assert (finished(again).reason, finished(again).stop) == ("stop", "France i")
        assert finished(again).usage.cached_tokens == counted - 1, "all but the last is kept"

    with_client(process, story)


def test_requests_share_the_steps_and_chance_follows_the_seed(process: EngineProcess) -> None:
    warm = Sampling(temperature=1, seed=7, frequency_penalty=0.5)
    tasks = [a_task(max_tokens=3, sampling=warm)] * 2 + [a_task(max_tokens=3)]

    async def story(client: EngineClient) -> None:
        chats = [asyncio.create_task(frames_of(client, task)) for task in tasks]
        await wait_for_statistics(client, lambda seen: seen.slots_busy == len(tasks))
        one, same, greedy = await asyncio.gather(*chats)
        assert text_of(one) == text_of(same)
        assert text_of(greedy) == "The capital of"
        assert {finished(frames).reason for frames in (one, same, greedy)} == {"length"}
        assert (await client.statistics()).slots == SLOTS

    with_client(process, story)


def test_a_text_is_gone_on_with_as_it_is(process: EngineProcess) -> None:
    text = {"messages": (), "prompt": "The capital of France is", "max_tokens": 2}
    (frames,) = asked(process, a_task().model_copy(update=text))
    assert (frames[0], text_of(frames)) == (Started(5), " Paris.")


def test_an_abandoned_chat_is_taken_out_of_the_batch(process: EngineProcess) -> None:
    async def story(client: EngineClient) -> None:
        async with aclosing(client.chat(a_task(LONG_TEXT, max_tokens=1500))) as frames:
            for _ in range(3):
                await anext(frames)
            assert (await client.statistics()).slots_busy == 1
        await wait_for_statistics(client, lambda seen: seen.slots_busy == 0)

    with_client(process, story)


def test_what_cannot_be_served_is_refused_by_name(process: EngineProcess) -> None:
    wanted = ResponseFormat(kind="json_object")
    long, form = asked(
        process, a_task("word " * (CONTEXT_TOKENS + 50)), a_task(response_format=wanted)
    )
    error = failed(long).error
    assert error.code == "request.context_length_exceeded"
    assert error.details["n_ctx"] == CONTEXT_TOKENS
    assert failed(form).error.code == "engine.unsupported"

    async def story(client: EngineClient) -> None:
        with pytest.raises(EngineError) as caught:
            await client.embed(("a fox",))
        assert caught.value.code == "engine.unsupported"

    with_client(process, story)


def test_a_folder_that_is_no_model_ends_the_runner_with_its_reason() -> None:
    with short_directory() as directory:
        process = EngineProcess.start(engine_of("mlx"), an_mlx_spec(directory, directory))
        try:
            assert process.process.wait(WAIT_S) == 1
            said = process.log_path.read_text()
            assert f"the model cannot be loaded: {directory / 'config.json'}" in said
        finally:
            process.stop()


def test_killing_the_runner_in_mid_answer_is_engine_gone(process: EngineProcess) -> None:
    """The last one: it ends the process that the others share."""

    async def story(client: EngineClient) -> None:
        assert process.spec.socket_path.stat().st_mode & 0o077 == 0
        chat = asyncio.create_task(frames_of(client, a_task(LONG_TEXT, max_tokens=1500)))
        await wait_for_statistics(client, lambda seen: seen.slots_busy == 1)
        os.kill(process.process.pid, signal.SIGKILL)
        assert failed(await chat).error.code == "engine.gone"
        with pytest.raises(EngineError) as caught:
            await client.statistics()
        assert caught.value.code == "engine.gone"
        assert not (await client.load_status()).loaded

    with_client(process, story)
