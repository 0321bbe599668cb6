"""A client of one engine that serves OpenAI-style HTTP on this machine.

It holds no policy: queues, slots and deadlines are the worker's. What it adds is the translation
of tasks to requests and of answers to frames, and that every ending has a name.
"""

import binascii
from base64 import b64decode
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Final, TypeVar, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engines.base import Endpoint, EngineStatistics, LoadStatus, Vectors
from engines.http_client import HttpClient, HttpResponse, HttpTimeouts
from engines.openai_request import (
    chat_body,
    completion_body,
    embeddings_body,
    prompt_body,
    rerank_body,
    tokenize_body,
)
from engines.output.openai_stream import (
    StreamDecoder,
    decode_whole,
    error_frame,
    error_of_answer,
)
from engines.output.split_frames import FrameSplitter, OutputRules
from protocol.data_frames import Chunk, Frame, TakeChunk
from protocol.errors import EngineError, SkulkError
from protocol.tasks import ChatTask
from protocol.vectors import is_vector, pack_vector

MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
"""A whole answer: a million tokens with 20 alternatives each stay below it."""
MAX_REFUSAL_BYTES: Final = 64 * 1024
CONTROL_QUIET_S: Final = 10.0
"""For questions that an engine answers beside its work."""

_CHAT: Final = "/v1/chat/completions"
_COMPLETION: Final = "/v1/completions"
_OK: Final = 200
_UNAVAILABLE: Final = 503
_NOT_SUPPORTED: Final = 501


class _Foreign(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Loading(_Foreign):
    status: str = ""
    progress: Annotated[float, Field(ge=0, le=1)] | None = None


class _Slot(_Foreign):
    n_ctx: Annotated[int, Field(ge=0)]
    is_processing: bool


class _Slots(_Foreign):
    slots: tuple[_Slot, ...]


class _Prompt(_Foreign):
    prompt: str


class _Tokens(_Foreign):
    tokens: tuple[int, ...]


class _TextUsage(_Foreign):
    prompt_tokens: Annotated[int, Field(ge=0)]


class _OfText(_Foreign):
    index: Annotated[int, Field(ge=0)]


class _Embedding(_OfText):
    embedding: str
    """Base64."""


class _Embeddings(_Foreign):
    data: tuple[_Embedding, ...]
    usage: _TextUsage


class _Score(_OfText):
    relevance_score: float


class _Scores(_Foreign):
    results: tuple[_Score, ...]
    usage: _TextUsage


_Part = TypeVar("_Part", bound=_Foreign)
_Item = TypeVar("_Item", bound=_OfText)


@final
class UpstreamClient:
    """`engines.base.EngineClient` over HTTP.

    Args:
        endpoint: Where the engine listens.
        timeouts: How long it may be silent.
        can_answer_whole: The engine notices within a second when the client of an answer that is
            not streamed has gone. Only then is it asked for whole answers; a slot that works on
            for nobody costs more than the frames do.
        rules: How calls and reasoning are split out of its text; None leaves the text as it is.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        timeouts: HttpTimeouts | None = None,
        *,
        can_answer_whole: bool = False,
        rules: OutputRules | None = None,
    ) -> None:
        self._http = HttpClient(endpoint, timeouts)
        self._can_answer_whole = can_answer_whole
        self._rules = rules

    async def load_status(self) -> LoadStatus:
        """Ask `/health`; an engine that does not listen yet is one that is not loaded."""
        try:
            response = await self._http.request("GET", "/health", quiet_s=CONTROL_QUIET_S)
            body = await _whole(response, MAX_REFUSAL_BYTES)
        except EngineError:
            # Until it listens, a refused connection is the ordinary case and says nothing new.
            return LoadStatus(loaded=False, note="the engine does not listen yet")
        if response.status == _OK:
            return LoadStatus(loaded=True, done_ratio=1.0)
        if response.status != _UNAVAILABLE:
            raise error_of_answer(response.status, body)
        try:
            loading = _Loading.model_validate_json(body)
        except ValidationError:
            loading = _Loading()
        return LoadStatus(loaded=False, done_ratio=loading.progress, note="loading the model")

    def chat(self, task: ChatTask, take: TakeChunk | None = None) -> AsyncGenerator[Frame, None]:
        """Serve one task; see `EngineClient.chat`."""
        stop, rules = task.stop, self._rules_for(task)
        if rules is not None:
            task = rules.stop(task)
        if task.stream or task.logprobs is not None or not self._can_answer_whole:
            return self._stream(task, stop, take)
        return self._whole_answer(task, stop)

    async def embed(self, texts: tuple[str, ...]) -> Vectors:
        """Embed each text, in order; see `EngineClient.embed`."""
        body = embeddings_body(texts)
        answer = await self._ask("/v1/embeddings", body, self._http.timeouts.quiet_s)
        parsed = _parse(_Embeddings, answer)
        found = _in_order(parsed.data, len(texts))
        vectors = tuple(_vector(item.embedding) for item in found)
        return Vectors(vectors, parsed.usage.prompt_tokens)

    async def rerank(self, query: str, documents: tuple[str, ...]) -> Vectors:
        """Score each document, in order; see `EngineClient.rerank`."""
        body = rerank_body(query, documents)
        answer = await self._ask("/v1/rerank", body, self._http.timeouts.quiet_s)
        parsed = _parse(_Scores, answer)
        found = _in_order(parsed.results, len(documents))
        vectors = tuple(_checked(pack_vector((item.relevance_score,))) for item in found)
        return Vectors(vectors, parsed.usage.prompt_tokens)

    async def count_tokens(self, task: ChatTask) -> int:
        """Render the prompt and count it; takes no slot."""
        prompt = task.prompt
        if prompt is None:
            prompt = _parse(_Prompt, await self._ask("/apply-template", prompt_body(task))).prompt
        return await self.count_text(prompt)

    async def count_text(self, text: str) -> int:
        """Count a text; takes no slot."""
        return len(_parse(_Tokens, await self._ask("/tokenize", tokenize_body(text))).tokens)

    async def statistics(self) -> EngineStatistics:
        """Ask `/slots`."""
        response = await self._http.request("GET", "/slots", quiet_s=CONTROL_QUIET_S)
        body = await _whole(response, MAX_ANSWER_BYTES)
        if response.status != _OK:
            raise error_of_answer(response.status, body)
        slots = _parse(_Slots, b'{"slots":' + body + b"}").slots
        return EngineStatistics(
            slots=len(slots),
            slots_busy=sum(slot.is_processing for slot in slots),
            context_tokens=min((slot.n_ctx for slot in slots), default=0),
        )

    async def close(self) -> None:
        """Cut all connections."""
        await self._http.close()

    async def _stream(
        self, task: ChatTask, stop: tuple[str, ...], take: TakeChunk | None
    ) -> AsyncGenerator[Frame, None]:
        decoder = StreamDecoder(task.logprobs or 0, stop)
        arrivals = _Arrivals(decoder, self._splitter(task), take)
        response: HttpResponse | None = None
        try:
            response = await self._accepted(task, is_stream=True)
            while not decoder.is_over:
                await response.deliver(arrivals)
                for frame in arrivals.untaken:
                    yield frame
        except SkulkError as error:
            yield error_frame(error)
        finally:
            if response is not None and decoder.is_over:
                response.finish()
            elif response is not None:
                response.close()

    async def _accepted(self, task: ChatTask, *, is_stream: bool) -> HttpResponse:
        if task.prompt is None:
            path, body = _CHAT, chat_body(task, is_stream=is_stream)
        else:
            path, body = _COMPLETION, completion_body(task, is_stream=is_stream)
        response = await self._http.request("POST", path, body)
        if response.status == _OK:
            return response
        raise error_of_answer(response.status, await _whole(response, MAX_REFUSAL_BYTES))

    async def _whole_answer(
        self, task: ChatTask, stop: tuple[str, ...]
    ) -> AsyncGenerator[Frame, None]:
        frames: list[Frame]
        try:
            body = await _whole(await self._accepted(task, is_stream=False), MAX_ANSWER_BYTES)
            frames = list(decode_whole(body, stop))
        except SkulkError as error:
            frames = [error_frame(error)]
        splitter = self._splitter(task)
        for frame in frames if splitter is None else splitter.take(frames):
            yield frame

    def _splitter(self, task: ChatTask) -> FrameSplitter | None:
        rules = self._rules_for(task)
        return None if rules is None else rules.splitter(task)

    def _rules_for(self, task: ChatTask) -> OutputRules | None:
        """A text's continuation is handed on as it is, whatever marks it holds."""
        return self._rules if task.prompt is None else None

    async def _ask(self, path: str, body: bytes, quiet_s: float = CONTROL_QUIET_S) -> bytes:
        response = await self._http.request("POST", path, body, quiet_s=quiet_s)
        answer = await _whole(response, MAX_ANSWER_BYTES)
        if response.status == _OK:
            return answer
        error = error_of_answer(response.status, answer)
        if response.status == _NOT_SUPPORTED:
            raise EngineError("engine.unsupported", error.message)
        raise error


@final
class _Arrivals:
    """From the bytes of a stream to who takes its chunks; what is not taken stops it for now.

    Args:
        decoder: Of the stream.
        splitter: Of the answer, where there is one.
        take: Who takes chunks, if anybody does.
    """

    def __init__(
        self, decoder: StreamDecoder, splitter: FrameSplitter | None, take: TakeChunk | None
    ) -> None:
        self._decoder = decoder
        self._splitter = splitter
        self._take = take
        self.untaken: list[Frame] = []
        """What came out of the bytes after which no more were wanted."""

    def __call__(self, piece: bytes) -> bool:
        """Take bytes; False once there are frames in `untaken`, which go before any other."""
        frames = self._decoder.feed(piece)
        if self._splitter is not None:
            frames = self._splitter.take(frames)
        take = self._take
        for index, frame in enumerate(frames):
            if take is None or type(frame) is not Chunk or not take(frame):
                self.untaken = frames[index:]
                return False
        self.untaken = []
        return True


async def _whole(response: HttpResponse, max_bytes: int) -> bytes:
    try:
        return await response.read_all(max_bytes)
    finally:
        response.close()


def _in_order(items: Sequence[_Item], n_texts: int) -> list[_Item]:
    found = sorted(items, key=lambda item: item.index)
    if [item.index for item in found] != list(range(n_texts)):
        raise EngineError(
            "engine.request_failed", f"the engine gave {len(found)} vectors for {n_texts} texts"
        )
    return found


def _vector(encoded: str) -> bytes:
    try:
        return _checked(b64decode(encoded, validate=True))
    except binascii.Error as error:
        raise EngineError(
            "engine.request_failed", f"the engine gave a vector that is no base64: {error}"
        ) from error


def _checked(vector: bytes) -> bytes:
    if not is_vector(vector):
        raise EngineError(
            "engine.request_failed",
            f"the engine gave a vector of {len(vector)} bytes that holds no finite numbers",
            remediation="The model's files may be damaged, or its header may name another pooling "
            "than it was trained with.",
        )
    return vector


def _parse(kind: type[_Part], body: bytes) -> _Part:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise EngineError(
            "engine.request_failed",
            f"the engine's answer cannot be read: {error.errors()[0]['msg']}",
        ) from error
