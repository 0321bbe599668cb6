"""Embeddings and reranking: from a request to an instance, and its vectors back to the client.

Nothing is streamed: a client has its vectors at once, or an error with a status of its own.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, final

from protocol.cards import ModelTask
from protocol.data_frames import Chunk, Finished, Started, Usage
from protocol.errors import EngineError, ErrorBody, ErrorCode, RequestError, SkulkError, error_of
from protocol.ids import CommandId
from protocol.instances import Instance
from protocol.tasks import EmbeddingTask, VectorTask
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.dialects.chat_dialect import Dialect
from skulkd.api.dialects.fields import Fields
from skulkd.api.dialects.openai_embeddings import parse_embeddings
from skulkd.api.dialects.rerank import parse_rerank
from skulkd.api.http import Reply, Request
from skulkd.api.inference import ChatService
from skulkd.api.interrupt import Interruptible, stopping
from skulkd.api.json_body import decode_object
from skulkd.api.waking import WHOLE_WAIT_S, wait_of
from skulkd.runtime.logs import command_id as log_command_id
from skulkd.runtime.tasks import run_blocking

MAX_VECTOR_BYTES: Final = 16 << 20
"""Of one answer; as text it is five times as long."""
_OFF_LOOP_BYTES: Final = 64 << 10
"""From here on a thread writes the answer."""
_RETRIED: Final[frozenset[ErrorCode]] = frozenset({"engine.busy", "engine.draining", "engine.gone"})
_RETRY_S: Final = 1


class Vectors(NamedTuple):
    """What a request asked for."""

    vectors: tuple[bytes, ...]
    """One a text, in their order; see `protocol.vectors`."""
    n_tokens: int
    """Of all texts."""


class VectorCall(Protocol):
    """One request that has been read."""

    @property
    def task(self) -> VectorTask:
        """What is to be done."""
        ...

    def document(self, vectors: tuple[bytes, ...], n_tokens: int) -> bytes:
        """Write the answer as JSON."""
        ...


_Parse = Callable[..., VectorCall]
"""Takes the fields of a body, and the `command_id`."""


@final
class VectorService:
    """Serves requests for vectors, in every dialect.

    Args:
        deps: The rest of the daemon.
        chat: Knows what this node's clients have asked of each instance.
    """

    def __init__(self, deps: ApiDependencies, chat: ChatService) -> None:
        self._deps = deps
        self._chat = chat
        self._open: dict[CommandId, Interruptible] = {}
        deps.cancels.add_here(self.cancel_here)

    def stop(self) -> None:
        """End every request with an error that says so."""
        for running in list(self._open.values()):
            running.interrupt(stopping())

    def interrupt(self, command_id: CommandId, reason: SkulkError) -> None:
        """End a request with an error, if there is one of this id."""
        if command_id in self._open:
            self._open[command_id].interrupt(reason)

    def cancel_here(self, command_id: CommandId) -> bool:
        """End a request that this node has taken; False when there is none of that id."""
        running = self._open.get(command_id)
        if running is None:
            return False
        if not self._deps.inference.cancel(command_id):
            # Not taken up yet, or just over: the client is owed an end all the same.
            running.interrupt(RequestError("request.cancelled", "the request was cancelled"))
        return True

    async def embeddings(self, request: Request) -> Reply:
        """`POST /v1/embeddings`."""
        return await self.serve(request, await _fields(request), parse_embeddings)

    async def rerank(self, request: Request) -> Reply:
        """`POST /v1/rerank`."""
        return await self.serve(request, await _fields(request), parse_rerank)

    async def serve(
        self, request: Request, fields: Fields, parse: _Parse, dialect: Dialect = "openai"
    ) -> Reply:
        """Answer a request in the form that `parse` reads.

        Args:
            request: Gets the command id; when its client goes, the task ends.
            fields: Its body.
            parse: Raises what the request is refused with.
            dialect: That the client speaks; for what is counted.

        Raises:
            SkulkError: As `gather`.
        """
        call = parse(fields, command_id=self.mint_id(request))
        vectors, n_tokens = await self.gather(request, call.task, dialect)
        if sum(map(len, vectors)) < _OFF_LOOP_BYTES:
            return Reply(body=call.document(vectors, n_tokens))
        return Reply(body=await run_blocking(call.document, vectors, n_tokens))

    def mint_id(self, request: Request) -> CommandId:
        """Give a request its command id: of its task, its answer and its log lines."""
        command_id = self._deps.gateway.mint_command_id()
        request.command_id = command_id
        log_command_id.set(command_id)
        return command_id

    async def gather(
        self, request: Request, task: VectorTask, dialect: Dialect = "openai"
    ) -> Vectors:
        """Have a task served by whichever instance of its model admits it.

        Args:
            request: Whose client waits: when it goes, the task ends.
            task: With the id that `mint_id` gave.
            dialect: That the client speaks; for what is counted.

        Raises:
            SkulkError: What no instance serves is refused before any is asked; what the engine
                says; `request.too_large`; `request.cancelled`.
        """
        candidates, waking = self._admit(task), self._chat.waking
        task = task.model_copy(update={"asker": request.principal.name})
        meter = self._deps.meters.begin(candidates[0].model_id, dialect)
        block = Interruptible(request.connection)
        self._open[task.command_id] = block
        try:
            with meter, block:
                deadline_s = waking.deadline_s(wait_of(request, WHOLE_WAIT_S))
                candidates = await waking.awake(candidates, deadline_s)
                served = await self._served(task, candidates, deadline_s)
                meter.finish("stop", Usage(served.n_tokens, 0))
                return served
        finally:
            del self._open[task.command_id]

    def _admit(self, task: VectorTask) -> tuple[Instance, ...]:
        candidates = self._chat.ready(task.model_id)
        wanted: ModelTask = "TextEmbedding" if isinstance(task, EmbeddingTask) else "TextRerank"
        listed = candidates[0].card.tasks
        if wanted not in listed:
            does = "makes no embeddings" if wanted == "TextEmbedding" else "reranks nothing"
            raise RequestError(
                "request.invalid",
                f"{task.model_id} {does}; its card lists {', '.join(listed)}",
                remediation=f"Choose a model with {wanted}; see `skulk models list`.",
                details={"param": "model"},
            )
        return candidates

    async def _served(
        self, task: VectorTask, candidates: tuple[Instance, ...], deadline_s: float
    ) -> Vectors:
        """Serve by the first candidate that admits the task."""
        while True:
            refusal: SkulkError = EngineError("engine.gone", "nobody was asked")
            for instance in candidates:
                try:
                    return await self._ask(instance, task)
                except _NotStartedError as error:
                    refusal = error
            candidates = await self._chat.waking.again(candidates, refusal, deadline_s)

    async def _ask(self, instance: Instance, task: VectorTask) -> Vectors:
        """Have one instance serve a task.

        Raises:
            _NotStartedError: Another instance may be asked.
            SkulkError: Why there are no vectors.
        """
        instance_id = instance.instance_id
        self._chat.asking.count(instance_id, 1)
        frames = self._deps.inference.vectors(instance_id, task)
        gathered = _Gathered(task)
        try:
            async for frame in frames:
                if isinstance(frame, Chunk):
                    gathered.add(frame.vectors)
                elif isinstance(frame, Started):
                    gathered.has_started = True
                elif isinstance(frame, Finished):
                    return gathered.whole(frame.usage.prompt_tokens)
                else:
                    raise _failure(frame.error, has_started=gathered.has_started)
        finally:
            self._chat.asking.count(instance_id, -1)
            await frames.aclose()
        raise EngineError("engine.gone", "the stream of this task ended without saying how")


async def _fields(request: Request) -> Fields:
    return await decode_object(await request.body())


class _NotStartedError(SkulkError):
    """Nothing has been read of the task: it may be asked of another instance."""


@final
class _Gathered:
    """The vectors of one task, as they arrive from whatever node."""

    def __init__(self, task: VectorTask) -> None:
        is_embedding = isinstance(task, EmbeddingTask)
        self._n_texts = len(task.texts if is_embedding else task.documents)
        self._vectors: list[bytes] = []
        self._n_bytes = 0
        self.has_started = False

    def add(self, vectors: tuple[bytes, ...]) -> None:
        """Take the next ones.

        Raises:
            RequestError: `request.too_large`.
            EngineError: `engine.request_failed` for more than were asked for.
        """
        self._vectors += vectors
        self._n_bytes += sum(map(len, vectors))
        if len(self._vectors) > self._n_texts:
            raise self._wrong()
        if self._n_bytes > MAX_VECTOR_BYTES:
            raise RequestError(
                "request.too_large",
                f"the vectors of {self._n_texts} texts take more than {MAX_VECTOR_BYTES} bytes, "
                f"the limit of one answer: {len(self._vectors[0])} bytes each",
                remediation="Send fewer texts in one request.",
            )

    def whole(self, n_tokens: int) -> Vectors:
        """Give them all.

        Raises:
            EngineError: `engine.request_failed` where some are missing or of another length.
        """
        lengths = {len(vector) for vector in self._vectors}
        if len(self._vectors) != self._n_texts or len(lengths) != 1:
            raise self._wrong()
        return Vectors(tuple(self._vectors), n_tokens)

    def _wrong(self) -> EngineError:
        n_lengths = len({len(vector) for vector in self._vectors})
        return EngineError(
            "engine.request_failed",
            f"{self._n_texts} texts got {len(self._vectors)} vectors of {n_lengths} lengths",
            remediation="Report it with the engine's log of this command id.",
        )


def _failure(error: ErrorBody, *, has_started: bool) -> SkulkError:
    if error.code not in _RETRIED:
        return error_of(error)
    if error.retry_after_s is None:
        error = error.model_copy(update={"retry_after_s": _RETRY_S})
    return error_of(error) if has_started else _not_started(error)


def _not_started(error: ErrorBody) -> _NotStartedError:
    return _NotStartedError(
        error.code,
        error.message,
        remediation=error.remediation,
        details=error.details,
        retry_after_s=error.retry_after_s,
    )
