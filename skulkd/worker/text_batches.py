"""Texts on their way to an engine that makes vectors of them: their lengths, and their batches.

The engine reads the texts of a batch at the same time, in the pool of tokens that all its slots
share; so a task reserves its largest batch. Between batches a task that nobody waits for any more
is let go of, and what has been made is on its way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from engines.base import EngineClient, Vectors
from protocol.errors import EngineError, RequestError
from protocol.tasks import EmbeddingTask, RerankTask, VectorTask

MAX_BATCH_TEXTS: Final = 64
"""One of 4,096 numbers each is a megabyte of vectors."""
_SPECIAL_TOKENS: Final = 8
"""What a model puts around a text, or around a query and a document, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBatch:
    """Texts that are sent to the engine together."""

    texts: tuple[str, ...]
    n_tokens: int
    """Of all of them, at most."""


def texts_of(task: VectorTask) -> tuple[str, ...]:
    """Give what a task asks vectors for."""
    return task.texts if isinstance(task, EmbeddingTask) else task.documents


async def read_batch(client: EngineClient, task: VectorTask, batch: TextBatch) -> Vectors:
    """Have the engine make the vectors of one batch.

    Raises:
        EngineError: What the engine says.
    """
    if isinstance(task, EmbeddingTask):
        return await client.embed(batch.texts)
    return await client.rerank(task.query, batch.texts)


async def measure(client: EngineClient, task: VectorTask, limit_tokens: int) -> tuple[int, ...]:
    """Bound the tokens of each text, with those of the query where there is one.

    No tokenizer makes more tokens than bytes; where the bytes do not tell, the engine counts.

    Raises:
        RequestError: `request.context_length_exceeded`, with both numbers.
        EngineError: What counting raised.
    """
    counter = _Counter(client, task.query if isinstance(task, RerankTask) else "")
    sizes: list[int] = []
    for index, text in enumerate(texts_of(task)):
        n_tokens = counter.bound(text)
        if n_tokens > limit_tokens:
            n_tokens = await counter.count(text, otherwise=limit_tokens)
        if n_tokens > limit_tokens:
            raise _too_long(task, index, n_tokens, limit_tokens)
        sizes.append(n_tokens)
    return tuple(sizes)


def batches(
    texts: tuple[str, ...], sizes: Sequence[int], pool_tokens: int
) -> tuple[TextBatch, ...]:
    """Put texts together in their order, as many as fit the pool. Pure."""
    made: list[TextBatch] = []
    start = n_tokens = 0
    for index, size in enumerate(sizes):
        is_full = n_tokens + size > pool_tokens or index - start == MAX_BATCH_TEXTS
        if is_full and index > start:
            made.append(TextBatch(texts=texts[start:index], n_tokens=n_tokens))
            start, n_tokens = index, 0
        n_tokens += size
    made.append(TextBatch(texts=texts[start:], n_tokens=n_tokens))
    return tuple(made)


@final
class _Counter:
    """Sizes of texts that are read with the same query, or with none."""

    def __init__(self, client: EngineClient, query: str) -> None:
        self._client = client
        self._query = query
        self._query_bound = len(query.encode())
        self._query_tokens = None if query else 0

    def bound(self, text: str) -> int:
        return self._query_bound + len(text.encode()) + _SPECIAL_TOKENS

    async def count(self, text: str, *, otherwise: int) -> int:
        """Have the engine count; `otherwise` is for one that cannot, and guards its own window."""
        try:
            if self._query_tokens is None:
                self._query_tokens = await self._client.count_text(self._query)
            return self._query_tokens + await self._client.count_text(text)
        except EngineError as error:
            if error.code != "engine.unsupported":
                raise
            return otherwise


def _too_long(task: VectorTask, index: int, n_tokens: int, limit_tokens: int) -> RequestError:
    is_rerank = isinstance(task, RerankTask)
    name = "documents" if is_rerank else "input"
    return RequestError(
        "request.context_length_exceeded",
        f"`{name}[{index}]` has {n_tokens} tokens{' with the query' if is_rerank else ''}, and "
        f"{task.model_id} reads {limit_tokens} at a time",
        remediation="Cut it into shorter texts, or place the model with a larger --context if it "
        "has one.",
        details={
            "param": f"{name}[{index}]",
            "prompt_tokens": n_tokens,
            "context_tokens": limit_tokens,
        },
    )
