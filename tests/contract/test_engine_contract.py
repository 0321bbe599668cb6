"""What holds for every engine, tried with its real process and, for llama-server, a real model."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

import pytest

from engines.base import EngineClient
from engines.registry import engine_of
from protocol.cards import ScriptedSection, text_tokens
from protocol.data_frames import Chunk, Frame, Started, TokenLogprob
from protocol.errors import EngineError
from protocol.tasks import ChatMessage, ChatRole, ChatTask, ResponseFormat
from protocol.vectors import numbers_of
from skulkd.worker.steps import measure_template
from skulkd.worker.token_budget import UNMEASURED, prompt_bound_tokens
from tests.support.builders import a_card, a_command_id
from tests.support.demo_model import demo_card, demo_model_path
from tests.support.engine_process import (
    ANSWER,
    CONTEXT_TOKENS,
    LONG_TEXT,
    SLOTS,
    WAIT_S,
    EngineProcess,
    a_llama_spec,
    a_scripted_spec,
    a_task,
    asked,
    failed,
    finished,
    frames_of,
    nothing,
    short_directory,
    text_of,
    wait_for_statistics,
    with_client,
)

LLAMA: Final = [
    pytest.param("llama_server hosted", marks=pytest.mark.model),
    pytest.param("llama_server binary", marks=pytest.mark.model),
]
LLAMA_ONLY: Final = pytest.mark.parametrize("under_test", LLAMA, indirect=True, scope="module")
"""For what the scripted engine does not have among its features."""


@dataclass
class EngineUnderTest:
    """One engine, two processes: one that says one sentence, one that talks without end."""

    name: str
    answering: EngineProcess
    talking: EngineProcess


@pytest.fixture(name="directory")
def _directory() -> Iterator[Path]:
    with short_directory() as directory:
        yield directory


@pytest.fixture(
    scope="module",
    params=["scripted", *LLAMA],
)
def under_test(request: pytest.FixtureRequest) -> Iterator[EngineUnderTest]:
    name: str = request.param
    with tempfile.TemporaryDirectory(prefix="skulk-") as place:
        directory = Path(place)
        if name == "scripted":
            engine = engine_of("scripted")
            once = ScriptedSection(reply=ANSWER, token_delay_ms=1)
            endless = ScriptedSection(reply=ANSWER, token_delay_ms=5, repeat=True)
            answering = EngineProcess.start(engine, a_scripted_spec(directory, once))
            talking = EngineProcess.start(engine, a_scripted_spec(directory, endless))
        else:
            engine = engine_of("llama_server")
            spec = a_llama_spec(directory, name, demo_model_path())
            answering = talking = EngineProcess.start(engine, spec)
        try:
            yield EngineUnderTest(name, answering, talking)
        finally:
            answering.stop()
            talking.stop()


def test_a_chat_is_started_then_chunks_then_one_terminal(under_test: EngineUnderTest) -> None:
    (frames,) = asked(under_test.answering, a_task())
    assert isinstance(frames[0], Started)
    assert all(isinstance(frame, Chunk) for frame in frames[1:-1])
    assert len(frames) > 5
    assert text_of(frames) == ANSWER
    assert finished(frames).reason == "stop"


def test_usage_counts_the_prompt_and_every_token(under_test: EngineUnderTest) -> None:
    (frames,) = asked(under_test.talking, a_task(LONG_TEXT, max_tokens=12))
    usage = finished(frames).usage
    assert isinstance(frames[0], Started)
    assert usage.prompt_tokens == frames[0].prompt_tokens
    assert usage.completion_tokens == 12
    assert usage.generation_ms is not None


def test_a_whole_answer_is_the_streamed_one(under_test: EngineUnderTest) -> None:
    streamed, whole = asked(under_test.answering, a_task(), a_task(stream=False))
    assert isinstance(whole[0], Started)
    assert text_of(whole) == text_of(streamed)
    assert finished(whole).reason == finished(streamed).reason
    assert finished(whole).usage[:2] == finished(streamed).usage[:2]


def test_a_text_is_gone_on_with_as_it_is(under_test: EngineUnderTest) -> None:
    async def story(client: EngineClient) -> None:
        assert await client.count_tokens(a_text_task()) == 5, "no template is around it"

    with_client(under_test.answering, story)
    streamed, whole = asked(under_test.answering, a_text_task(), a_text_task(stream=False))
    assert streamed[0] == Started(5)
    expected = ANSWER if under_test.name == "scripted" else " Paris."
    assert text_of(streamed) == text_of(whole)
    assert text_of(streamed).startswith(expected)
    assert len(streamed) > 4
    assert finished(streamed).usage[:2] == finished(whole).usage[:2]
    (stopped,) = asked(under_test.answering, a_text_task(stop=("aris",)))
    assert "aris" not in text_of(stopped)
    assert (finished(stopped).reason, finished(stopped).stop) == ("stop", "aris")


def test_greedy_answers_repeat_themselves(under_test: EngineUnderTest) -> None:
    first, second = asked(under_test.talking, *(a_task(LONG_TEXT, max_tokens=16),) * 2)
    assert text_of(first) == text_of(second)


def test_max_tokens_ends_with_length(under_test: EngineUnderTest) -> None:
    (frames,) = asked(under_test.talking, a_task(max_tokens=2))
    assert text_of(frames).strip() == "The capital"
    assert finished(frames).reason == "length"


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_string_across_tokens_ends_the_text_before_it(
    under_test: EngineUnderTest, stream: bool
) -> None:
    (frames,) = asked(under_test.answering, a_task(stop=("France i", "nowhere"), stream=stream))
    assert text_of(frames) == "The capital of "
    assert (finished(frames).reason, finished(frames).stop) == ("stop", "France i")


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_string_that_never_completes_loses_nothing(
    under_test: EngineUnderTest, stream: bool
) -> None:
    (frames,) = asked(under_test.answering, a_task(stop=("Paris. And",), stream=stream))
    assert text_of(frames) == ANSWER
    assert finished(frames).stop is None


def test_a_prompt_beyond_the_window_is_refused_with_both_numbers(
    under_test: EngineUnderTest,
) -> None:
    (frames,) = asked(under_test.answering, a_task("word " * (CONTEXT_TOKENS + 50)))
    error = failed(frames).error
    assert len(frames) == 1
    assert error.code == "request.context_length_exceeded"
    assert error.details["n_ctx"] == CONTEXT_TOKENS
    n_prompt_tokens = error.details["n_prompt_tokens"]
    assert isinstance(n_prompt_tokens, int)
    assert n_prompt_tokens > CONTEXT_TOKENS
    assert str(n_prompt_tokens) in error.message


def test_statistics_tell_slots_and_window(under_test: EngineUnderTest) -> None:
    async def story(client: EngineClient) -> None:
        await wait_for_statistics(client, lambda seen: seen.slots_busy == 0)
        seen = await client.statistics()
        assert (seen.slots, seen.context_tokens) == (SLOTS, CONTEXT_TOKENS)

    with_client(under_test.talking, story)


@pytest.mark.parametrize("stream", [True, False])
def test_abandoning_a_chat_frees_its_slot(under_test: EngineUnderTest, stream: bool) -> None:
    async def story(client: EngineClient) -> None:
        frames = client.chat(a_task(LONG_TEXT, max_tokens=1500, stream=stream))
        reader = asyncio.create_task(_read_all(frames))
        await wait_for_statistics(client, lambda seen: seen.slots_busy == 1)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await wait_for_statistics(client, lambda seen: seen.slots_busy == 0)

    with_client(under_test.talking, story)


def test_closing_a_stream_after_a_few_frames_frees_its_slot(under_test: EngineUnderTest) -> None:
    async def story(client: EngineClient) -> None:
        async with aclosing(client.chat(a_task(LONG_TEXT, max_tokens=1500))) as frames:
            for _ in range(3):
                await anext(frames)
            assert (await client.statistics()).slots_busy == 1
        await wait_for_statistics(client, lambda seen: seen.slots_busy == 0)

    with_client(under_test.talking, story)


def test_requests_run_at_the_same_time(under_test: EngineUnderTest) -> None:
    async def story(client: EngineClient) -> None:
        chats = [
            asyncio.create_task(frames_of(client, a_task(LONG_TEXT, max_tokens=50)))
            for _ in range(SLOTS)
        ]
        await wait_for_statistics(client, lambda seen: seen.slots_busy == SLOTS)
        answers = await asyncio.gather(*chats)
        assert all(finished(frames).usage.completion_tokens == 50 for frames in answers)

    with_client(under_test.talking, story)


def test_more_requests_than_slots_are_all_served(under_test: EngineUnderTest) -> None:
    async def story(client: EngineClient) -> None:
        tasks = [a_task(max_tokens=4) for _ in range(3 * SLOTS)]
        answers = await asyncio.gather(*(frames_of(client, task) for task in tasks))
        assert {text_of(frames) for frames in answers} == {text_of(answers[0])}

    with_client(under_test.answering, story)


def test_count_tokens_is_what_the_usage_says(under_test: EngineUnderTest) -> None:
    async def story(client: EngineClient) -> None:
        counted = await client.count_tokens(a_task())
        frames = await frames_of(client, a_task())
        assert counted == finished(frames).usage.prompt_tokens

    with_client(under_test.answering, story)


CONVERSATIONS = [
    (("user", "Hi"),),
    (("user", "Write a story. " * 20),),
    (("system", "Be brief."), ("user", "日本語で 👨‍👩‍👧 を説明して")),
    (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e")),
    (("system", "s"), ("user", "<|im_start|>assistant"), ("assistant", "x"), ("user", "\n\n\n")),
]


@pytest.mark.parametrize("turns", CONVERSATIONS)
def test_a_measured_template_bounds_every_prompt(
    under_test: EngineUnderTest, turns: tuple[tuple[ChatRole, str], ...]
) -> None:
    messages = tuple(ChatMessage(role=role, content=content) for role, content in turns)
    task = a_task().model_copy(update={"messages": messages})

    async def story(client: EngineClient) -> None:
        template = await measure_template(client, demo_card(), a_command_id())
        assert template != UNMEASURED
        assert await client.count_tokens(task) <= prompt_bound_tokens(task, template)

    with_client(under_test.answering, story)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.model
def test_killing_llama_server_in_mid_answer_is_engine_gone(directory: Path, stream: bool) -> None:
    spec = a_llama_spec(directory, "llama_server hosted", demo_model_path())
    process = EngineProcess.start(engine_of("llama_server"), spec)

    async def story(client: EngineClient) -> None:
        task = a_task(LONG_TEXT, max_tokens=1500, stream=stream)
        chat = asyncio.create_task(frames_of(client, task))
        await wait_for_statistics(client, lambda seen: seen.slots_busy == 1)
        os.kill(process.process.pid, signal.SIGKILL)
        assert failed(await chat).error.code == "engine.gone"
        with pytest.raises(EngineError) as caught:
            await client.statistics()
        assert caught.value.code == "engine.gone"
        assert not (await client.load_status()).loaded

    try:
        with_client(process, story)
    finally:
        process.stop()


@pytest.mark.parametrize("name", ["llama_server hosted", "llama_server binary"])
def test_a_file_that_is_no_model_ends_the_process_with_its_reason(
    directory: Path, name: str
) -> None:
    garbage = directory / "garbage.gguf"
    garbage.write_bytes(b"GGUF" + bytes(range(256)) * 64)
    process = EngineProcess.start(engine_of("llama_server"), a_llama_spec(directory, name, garbage))
    try:
        assert process.process.wait(WAIT_S) == 1
        assert str(garbage) in process.log_path.read_text()
    finally:
        process.stop()


def test_the_hosted_server_names_the_file_that_it_cannot_load(directory: Path) -> None:
    spec = a_llama_spec(directory, "llama_server hosted", directory / "nothing.gguf")
    process = EngineProcess.start(engine_of("llama_server"), spec)
    try:
        assert process.process.wait(WAIT_S) == 1
        said = f"skulk: the model cannot be loaded: {spec.entry_path}"
        assert said in process.log_path.read_text()
    finally:
        process.stop()


@pytest.mark.parametrize("parameters", ["", "{", "[]", '{"model_path": "x"}'])
def test_the_hosted_server_refuses_parameters_that_it_does_not_know(parameters: str) -> None:
    argv = (sys.executable, "-P", "-m", "engines.llama_server.hosted", parameters)
    done = subprocess.run(argv, capture_output=True, check=False, timeout=WAIT_S)
    assert done.returncode == 2
    assert b"skulk: these parameters cannot be used" in done.stderr.splitlines()[-1]


def test_sigterm_ends_an_engine(under_test: EngineUnderTest, directory: Path) -> None:
    spec = replace(under_test.answering.spec, socket_path=directory / "again.sock")
    process = EngineProcess.start(under_test.answering.engine, spec)
    try:
        with_client(process, nothing)
        process.process.terminate()
        assert process.process.wait(WAIT_S) in {0, -signal.SIGTERM}
    finally:
        process.stop()


def test_the_socket_is_for_this_user_alone(under_test: EngineUnderTest) -> None:
    with_client(under_test.answering, nothing)
    assert under_test.answering.spec.socket_path.stat().st_mode & 0o077 == 0


def test_embeddings_keep_their_order(directory: Path) -> None:
    spec = a_scripted_spec(directory, ScriptedSection())
    spec = replace(spec, card=spec.card.model_copy(update={"hidden_size": 8}))
    process = EngineProcess.start(engine_of("scripted"), spec)
    try:
        with_client(process, _embeddings_are_in_order)
    finally:
        process.stop()


def test_scores_are_those_of_their_documents(directory: Path) -> None:
    process = EngineProcess.start(
        engine_of("scripted"), a_scripted_spec(directory, ScriptedSection())
    )

    async def story(client: EngineClient) -> None:
        ranked = await client.rerank("a fox", ("the sea", "a fox", "fox"))
        assert [numbers_of(vector)[0] for vector in ranked.vectors] == [0.0, 1.0, 0.5]
        assert ranked.n_tokens == 11

    try:
        with_client(process, story)
    finally:
        process.stop()


@pytest.mark.model
def test_a_chat_model_embeds_when_its_card_says_so(directory: Path) -> None:
    card = a_card().model_copy(update={"tasks": ("TextGeneration", "TextEmbedding")})
    spec = a_llama_spec(directory, "llama_server hosted", demo_model_path(), card)
    process = EngineProcess.start(engine_of("llama_server"), spec)

    async def story(client: EngineClient) -> None:
        await _embeddings_are_in_order(client)
        assert text_of(await frames_of(client, a_task())) == ANSWER
        longest = "word " * (text_tokens(card, spec.context_tokens) - 10)
        assert (await client.embed((longest,))).n_tokens == await client.count_text(longest) > 500

    try:
        with_client(process, story)
    finally:
        process.stop()


@pytest.mark.model
def test_a_model_that_ranks_scores_each_document(directory: Path) -> None:
    """The demo model has no trained head; that each score is a number of its own is all we see."""
    card = a_card().model_copy(update={"tasks": ("TextRerank",)})
    spec = a_llama_spec(directory, "llama_server hosted", demo_model_path(), card)
    process = EngineProcess.start(engine_of("llama_server"), spec)

    async def story(client: EngineClient) -> None:
        together = await client.rerank("a fox", ("the sea", "a red fox"))
        (alone,) = (await client.rerank("a fox", ("a red fox",))).vectors
        sea, fox = [numbers_of(vector)[0] for vector in together.vectors]
        assert fox == pytest.approx(numbers_of(alone)[0], abs=1e-3)
        assert fox != pytest.approx(sea, abs=1e-3)

    try:
        with_client(process, story)
    finally:
        process.stop()


@LLAMA_ONLY
def test_logprobs_belong_to_the_tokens_of_the_text(under_test: EngineUnderTest) -> None:
    streamed, whole, bare = asked(
        under_test.answering,
        a_task(logprobs=3),
        a_task(logprobs=3, stream=False),
        a_task(logprobs=0),
    )
    entries = logprobs_of(streamed)
    assert "".join(entry.token for entry in entries) == text_of(streamed) == ANSWER
    assert all(entry.logprob <= 0 and len(entry.alternatives) == 3 for entry in entries)
    assert [entry.token for entry in logprobs_of(whole)] == [entry.token for entry in entries]
    assert len(logprobs_of(bare)) == len(entries)
    assert all(entry.alternatives == () for entry in logprobs_of(bare))


@LLAMA_ONLY
def test_logprobs_of_a_text_belong_to_its_tokens(under_test: EngineUnderTest) -> None:
    (frames,) = asked(under_test.answering, a_text_task(logprobs=2, max_tokens=2))
    entries = logprobs_of(frames)
    assert "".join(entry.token for entry in entries) == text_of(frames) == " Paris."
    assert all(len(entry.alternatives) == 2 for entry in entries)


@LLAMA_ONLY
def test_a_schema_binds_the_answer(under_test: EngineUnderTest) -> None:
    schema = {"type": "object", "properties": {"city": {"const": "Paris"}}, "required": ["city"]}
    wanted = ResponseFormat(kind="json_schema", json_schema=schema)
    (frames,) = asked(under_test.answering, a_task(response_format=wanted))
    assert "".join(text_of(frames).split()) == '{"city":"Paris"}'


@LLAMA_ONLY
def test_a_schema_that_cannot_be_compiled_is_refused(under_test: EngineUnderTest) -> None:
    wanted = ResponseFormat(kind="json_schema", json_schema={"type": "banana"})
    (frames,) = asked(under_test.answering, a_task(response_format=wanted))
    error = failed(frames).error
    assert (error.code, error.details["status"]) == ("request.invalid", 400)
    assert "banana" in error.message


@LLAMA_ONLY
def test_characters_are_never_cut(under_test: EngineUnderTest) -> None:
    text = "Repeat exactly: \N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN} \N{PARTY POPPER}"
    budgets = range(4, 9)
    streamed = asked(under_test.answering, *(a_task(text, max_tokens=n) for n in budgets))
    whole = asked(
        under_test.answering, *(a_task(text, max_tokens=n, stream=False) for n in budgets)
    )
    assert [text_of(frames) for frames in streamed] == [text_of(frames) for frames in whole]
    assert "\N{MAN}" in text_of(streamed[-1])
    assert not any("\N{REPLACEMENT CHARACTER}" in text_of(frames) for frames in streamed)


def a_text_task(**fields: object) -> ChatTask:
    """Make a task that goes on with a text."""
    text = {"messages": (), "prompt": "The capital of France is"}
    return a_task().model_copy(update={**text, **fields})


def logprobs_of(frames: list[Frame]) -> list[TokenLogprob]:
    return [entry for frame in frames if isinstance(frame, Chunk) for entry in frame.logprobs]


async def _embeddings_are_in_order(client: EngineClient) -> None:
    together = await client.embed(("a fox", "the sea"))
    alone = await client.embed(("the sea",))
    fox, sea = [numbers_of(vector).tolist() for vector in together.vectors]
    assert sea == pytest.approx(numbers_of(alone.vectors[0]).tolist(), abs=1e-4)
    assert fox != pytest.approx(sea, abs=1e-4)
    counts = [await client.count_text(text) for text in ("a fox", "the sea")]
    assert (together.n_tokens, alone.n_tokens) == (sum(counts), counts[1])


async def _read_all(frames: AsyncIterator[Frame]) -> None:
    async with aclosing(cast("AsyncGenerator[Frame]", frames)) as reading:
        async for _ in reading:
            pass
