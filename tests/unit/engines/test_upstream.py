import asyncio
import json
import tempfile
from base64 import b64encode
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from engines.base import Endpoint, EngineStatistics, LoadStatus, Vectors
from engines.http_client import HttpTimeouts
from engines.output.markup import MARKUPS
from engines.output.split_frames import OutputRules
from engines.upstream import UpstreamClient
from protocol.data_frames import Chunk, Failed, Finished, Frame, Started
from protocol.errors import EngineError
from protocol.tasks import ChatMessage, ChatTask, ToolDefinition
from protocol.vectors import pack_vector
from tests.support.builders import MODEL, a_command_id

Answers = dict[str, tuple[int, object]]
"""Status and JSON body by path, or pieces that come in turn; a path that is not there is 404."""
TASK = ChatTask(
    command_id=a_command_id(),
    model_id=MODEL,
    messages=(ChatMessage(role="user", content="hi"),),
    stream=False,
)
SPOKEN = tuple(
    b"data: %b\n\n" % payload.encode()
    for payload in (
        '{"choices": [{"delta": {"role": "assistant", "content": null}}]}',
        *(f'{{"choices": [{{"delta": {{"content": "{text}"}}}}]}}' for text in "abcd"),
        '{"choices": [{"delta": {}, "finish_reason": "stop"}]}',
        '{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 4}}',
    )
)
WHOLE = {"choices": [{"finish_reason": "stop", "message": {"content": "Paris."}}]}


class _Peer(asyncio.Protocol):
    def __init__(self, answers: Answers, asked: list[tuple[str, Any]]) -> None:
        self._answers = answers
        self._asked = asked
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        path = head.split()[1].decode()
        self._asked.append((path, json.loads(body) if body else None))
        status, answer = self._answers.get(path, (404, {"error": {"message": "no route"}}))
        if isinstance(answer, tuple):
            self._write_in_turn(cast("tuple[bytes, ...]", answer))
            return
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self._transport.write(
            f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
        )

    def _write_in_turn(self, pieces: tuple[bytes, ...]) -> None:
        self._transport.write(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number, piece in enumerate((*pieces, b"")):
            chunk = b"%x\r\n%b\r\n" % (len(piece), piece)
            asyncio.get_running_loop().call_later(0.002 * number, self._transport.write, chunk)


def play(
    story: Callable[[UpstreamClient], Coroutine[Any, Any, None]],
    answers: Answers,
    *,
    can_answer_whole: bool = True,
    rules: OutputRules | None = None,
) -> list[tuple[str, Any]]:
    """Tell a story against canned answers and give what was asked."""
    asked: list[tuple[str, Any]] = []

    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="skulk-") as directory:
            path = Path(directory) / "peer.sock"
            loop = asyncio.get_running_loop()
            server = await loop.create_unix_server(lambda: _Peer(answers, asked), str(path))
            client = UpstreamClient(
                Endpoint(socket_path=path),
                HttpTimeouts(quiet_s=5.0),
                can_answer_whole=can_answer_whole,
                rules=rules,
            )
            try:
                await story(client)
            finally:
                await client.close()
                server.close()
                await server.wait_closed()

    uvloop.run(run())
    return asked


async def code_of(call: Coroutine[Any, Any, object]) -> str:
    with pytest.raises(EngineError) as caught:
        await call
    return caught.value.code


async def frames_of(client: UpstreamClient, task: ChatTask) -> list[Frame]:
    return [frame async for frame in client.chat(task)]


def test_an_engine_that_does_not_listen_yet_is_not_loaded() -> None:
    async def story() -> None:
        status = await UpstreamClient(Endpoint(socket_path=Path("/nowhere"))).load_status()
        assert not status.loaded
        assert status.note == "the engine does not listen yet"

    uvloop.run(story())


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((200, {"status": "ok"}), LoadStatus(loaded=True, done_ratio=1.0)),
        (
            (503, {"status": "loading", "progress": 0.4}),
            LoadStatus(loaded=False, done_ratio=0.4, note="loading the model"),
        ),
        (
            (503, {"error": {"message": "Loading model"}}),
            LoadStatus(loaded=False, note="loading the model"),
        ),
        (
            (503, {"status": "loading", "progress": 7}),
            LoadStatus(loaded=False, note="loading the model"),
        ),
    ],
)
def test_health_tells_how_far_the_load_is(answer: tuple[int, object], expected: LoadStatus) -> None:
    async def story(client: UpstreamClient) -> None:
        assert await client.load_status() == expected

    play(story, {"/health": answer})


def test_an_engine_that_answers_that_loading_failed_is_an_error() -> None:
    async def story(client: UpstreamClient) -> None:
        assert await code_of(client.load_status()) == "engine.request_failed"

    play(story, {"/health": (500, {"error": {"message": "cannot load"}})})


def test_slots_are_counted() -> None:
    slots = [{"n_ctx": 512, "is_processing": busy, "id": 0} for busy in (True, False, True)]

    async def story(client: UpstreamClient) -> None:
        expected = EngineStatistics(slots=3, slots_busy=2, context_tokens=512)
        assert await client.statistics() == expected

    play(story, {"/slots": (200, slots)})


@pytest.mark.parametrize("answer", [(501, {}), (200, {"slots": 3}), (200, b"[")])
def test_statistics_that_cannot_be_read_are_an_error(answer: tuple[int, object]) -> None:
    async def story(client: UpstreamClient) -> None:
        assert await code_of(client.statistics()) == "engine.request_failed"

    play(story, {"/slots": answer})


def test_tokens_are_counted_on_the_rendered_prompt() -> None:
    async def story(client: UpstreamClient) -> None:
        assert await client.count_tokens(TASK) == 3

    asked = play(
        story,
        {
            "/apply-template": (200, {"prompt": "<user>hi"}),
            "/tokenize": (200, {"tokens": [1, 2, 3]}),
        },
    )
    assert asked[1][1] == {"content": "<user>hi", "add_special": True, "parse_special": True}


def encoded(*numbers: float) -> str:
    return b64encode(pack_vector(numbers)).decode()


USED = {"usage": {"prompt_tokens": 5, "total_tokens": 5}}


def test_embeddings_come_in_the_order_of_the_texts() -> None:
    data = [{"index": 1, "embedding": encoded(1, 2)}, {"index": 0, "embedding": encoded(0.5, 0)}]

    async def story(client: UpstreamClient) -> None:
        vectors = (pack_vector((0.5, 0)), pack_vector((1, 2)))
        assert await client.embed(("a", "b")) == Vectors(vectors, 5)
        assert await code_of(client.embed(("a",))) == "engine.request_failed"

    asked = play(story, {"/v1/embeddings": (200, {"data": data, **USED})})
    assert asked[0][1] == {"input": ["a", "b"], "encoding_format": "base64"}


@pytest.mark.parametrize(
    "embedding", ["", "AAAA", "not base64", encoded(float("nan")), encoded(1, float("inf")), None]
)
def test_an_embedding_that_is_none_is_refused(embedding: str | None) -> None:
    async def story(client: UpstreamClient) -> None:
        assert await code_of(client.embed(("a",))) == "engine.request_failed"

    data = [{"index": 0, "embedding": embedding}]
    play(story, {"/v1/embeddings": (200, {"data": data, **USED})})


def test_scores_come_in_the_order_of_the_documents() -> None:
    results = [{"index": 1, "relevance_score": 0.75}, {"index": 0, "relevance_score": -2}]

    async def story(client: UpstreamClient) -> None:
        vectors = (pack_vector((-2,)), pack_vector((0.75,)))
        assert await client.rerank("q", ("a", "b")) == Vectors(vectors, 5)
        assert await code_of(client.rerank("q", ("a",))) == "engine.request_failed"

    asked = play(story, {"/v1/rerank": (200, {"results": results, **USED})})
    assert asked[0][1] == {"query": "q", "documents": ["a", "b"]}


def test_a_score_beyond_float32_is_refused() -> None:
    async def story(client: UpstreamClient) -> None:
        assert await code_of(client.rerank("q", ("a",))) == "engine.request_failed"

    results = [{"index": 0, "relevance_score": 1e300}]
    play(story, {"/v1/rerank": (200, {"results": results, **USED})})


def test_an_engine_without_embeddings_says_unsupported() -> None:
    async def story(client: UpstreamClient) -> None:
        assert await code_of(client.embed(("a",))) == "engine.unsupported"

    play(story, {"/v1/embeddings": (501, {"error": {"message": "no embeddings"}})})


@pytest.mark.parametrize(
    ("can_answer_whole", "logprobs", "is_streamed"),
    [(True, None, False), (False, None, True), (True, 0, True)],
)
def test_a_whole_answer_is_asked_for_only_where_it_is_safe(
    can_answer_whole: bool, logprobs: int | None, is_streamed: bool
) -> None:
    async def story(client: UpstreamClient) -> None:
        await frames_of(client, TASK.model_copy(update={"logprobs": logprobs}))

    answers: Answers = {"/v1/chat/completions": (200, WHOLE)}
    ((_, body),) = play(story, answers, can_answer_whole=can_answer_whole)
    assert body["stream"] is is_streamed


def test_a_whole_answer_becomes_frames() -> None:
    async def story(client: UpstreamClient) -> None:
        frames = await frames_of(client, TASK)
        assert frames[1] == Chunk("Paris.")
        assert isinstance(frames[2], Finished)

    play(story, {"/v1/chat/completions": (200, WHOLE)})


@pytest.mark.parametrize("is_text", [True, False])
def test_marks_in_the_continuation_of_a_text_are_text(is_text: bool) -> None:
    thought = "<think>hm</think>yes"
    said: dict[str, object] = {"message": {"content": thought}}
    task = TASK
    if is_text:
        said = {"text": thought}
        task = TASK.model_copy(update={"messages": (), "prompt": "One,"})
    whole = {"choices": [{"finish_reason": "stop", **said}]}

    async def story(client: UpstreamClient) -> None:
        chunks = [frame for frame in await frames_of(client, task) if isinstance(frame, Chunk)]
        assert "".join(chunk.text for chunk in chunks) == (thought if is_text else "yes")

    rules = OutputRules(markup=MARKUPS["tags"], stops_at_turn_ends=True)
    answers: Answers = {"/v1/chat/completions": (200, whole), "/v1/completions": (200, whole)}
    ((path, body),) = play(story, answers, rules=rules)
    assert path == ("/v1/completions" if is_text else "/v1/chat/completions")
    assert ("stop" in body) is not is_text


def test_chunks_that_are_not_taken_come_by_the_iterator_in_their_place() -> None:
    told: list[Frame] = []

    def take(chunk: Chunk) -> bool:
        is_taken = chunk.text in "ac"
        if is_taken:
            told.append(chunk)
        return is_taken

    async def story(client: UpstreamClient) -> None:
        by_iterator: list[Frame] = []
        async for frame in client.chat(TASK.model_copy(update={"stream": True}), take):
            by_iterator.append(frame)
            told.append(frame)
        assert [type(frame) for frame in told] == [Started, *[Chunk] * 4, Finished]
        assert [frame.text for frame in told if isinstance(frame, Chunk)] == list("abcd")
        assert [frame for frame in by_iterator if isinstance(frame, Chunk)] == [
            Chunk("b"),
            Chunk("d"),
        ]

    play(story, {"/v1/chat/completions": (200, SPOKEN)})


def test_what_taking_a_chunk_raises_comes_out_of_the_iterator() -> None:
    def take(chunk: Chunk) -> bool:
        raise ValueError(chunk.text)

    async def story(client: UpstreamClient) -> None:
        frames = client.chat(TASK.model_copy(update={"stream": True}), take)
        assert isinstance(await anext(frames), Started)
        with pytest.raises(ValueError, match="a"):
            async for _ in frames:
                pass

    play(story, {"/v1/chat/completions": (200, SPOKEN)})


@pytest.mark.parametrize("is_stream", [False, True])
def test_what_an_engine_leaves_in_its_text_is_split_out_of_it(*, is_stream: bool) -> None:
    """llama-server does so where a request has no tools, or a template is unknown to it."""
    said = 'Sure.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    events: list[dict[str, object]] = [
        *({"choices": [{"delta": {"content": letter}}]} for letter in said),
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 1}},
    ]
    streamed = tuple(b"data: %b\n\n" % json.dumps(event).encode() for event in events)
    whole = {"choices": [{"finish_reason": "stop", "message": {"content": said}}]}
    rules = OutputRules(markup=MARKUPS["any"])
    bare = TASK.model_copy(update={"stream": is_stream})
    tooled = bare.model_copy(update={"tools": (ToolDefinition(name="f"),)})

    async def story(client: UpstreamClient) -> None:
        frames = await frames_of(client, bare)
        text = "".join(frame.text for frame in frames if isinstance(frame, Chunk))
        assert text == 'Sure.\n{"name": "f", "arguments": {"a": 1}}\n'
        *_, sentence, call, finished = await frames_of(client, tooled)
        assert isinstance(sentence, Chunk)
        assert sentence.text.endswith(".")
        assert isinstance(call, Chunk)
        assert [delta[2:] for delta in call.tool_calls] == [("f", '{"a": 1}')]
        assert isinstance(finished, Finished)
        assert finished.reason == "tool_calls"

    answer = streamed if is_stream else whole
    play(story, {"/v1/chat/completions": (200, answer)}, rules=rules)


def test_an_engine_that_goes_on_after_a_turn_is_told_where_one_ends() -> None:
    async def story(client: UpstreamClient) -> None:
        await frames_of(client, TASK.model_copy(update={"stop": ("x",)}))

    rules = OutputRules(markup=MARKUPS["harmony"], stops_at_turn_ends=True)
    ((_, body),) = play(story, {"/v1/chat/completions": (200, WHOLE)}, rules=rules)
    assert body["stop"] == ["x", "<|return|>", "<|call|>"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_refusal_is_the_only_frame(stream: bool) -> None:
    async def story(client: UpstreamClient) -> None:
        (frame,) = await frames_of(client, TASK.model_copy(update={"stream": stream}))
        assert isinstance(frame, Failed)
        assert frame.error.code == "engine.request_failed"
        assert "busy" in frame.error.message

    play(story, {"/v1/chat/completions": (500, {"error": {"message": "busy"}})})


@pytest.mark.parametrize("stream", [True, False])
def test_no_engine_is_a_failed_frame_and_no_exception(stream: bool) -> None:
    async def story() -> None:
        client = UpstreamClient(Endpoint(socket_path=Path("/nowhere")), can_answer_whole=True)
        (frame,) = await frames_of(client, TASK.model_copy(update={"stream": stream}))
        assert isinstance(frame, Failed)
        assert frame.error.code == "engine.gone"

    uvloop.run(story())
