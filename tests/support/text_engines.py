"""What fake engines say about vectors: nothing, or what follows from the text."""

import asyncio
from collections.abc import AsyncGenerator

from engines.base import EngineStatistics, LoadStatus, Vectors
from protocol.data_frames import Chunk, Finished, Frame, Started, TakeChunk, Usage
from protocol.errors import EngineError
from protocol.tasks import ChatTask, EmbeddingTask, VectorTask
from protocol.vectors import pack_vector


class NoVectors:
    """The part of `engines.base.EngineClient` that a text model's engine refuses."""

    async def embed(self, texts: tuple[str, ...]) -> Vectors:
        raise EngineError("engine.unsupported", f"no embeddings of {len(texts)} texts")

    async def rerank(self, query: str, documents: tuple[str, ...]) -> Vectors:
        raise EngineError("engine.unsupported", f"no scores of {len(documents)} for {query}")

    async def count_text(self, text: str) -> int:
        return len(text.split())


def vector_of(text: str, dimensions: int = 4) -> bytes:
    """Give a vector that depends on the text alone."""
    data = text.encode()
    return pack_vector((sum(data[at::dimensions]) + at) / 7 for at in range(dimensions))


def score_of(query: str, document: str) -> bytes:
    """Give a document's score: how many words it shares with the query."""
    return pack_vector((float(len(set(query.split()) & set(document.split()))),))


def vectors_answer(task: VectorTask) -> list[Frame]:
    """Answer a task: a chunk for every three texts, a token for every word."""
    if isinstance(task, EmbeddingTask):
        texts, vectors = task.texts, [vector_of(text) for text in task.texts]
    else:
        texts, vectors = task.documents, [score_of(task.query, text) for text in task.documents]
    chunks = [Chunk(vectors=tuple(vectors[at : at + 3])) for at in range(0, len(vectors), 3)]
    return [Started(), *chunks, Finished("stop", Usage(_n_words(*texts), 0))]


class TextEngine:
    """Implements `engines.base.EngineClient` for vectors: answers at once, or when it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.fails: EngineError | None = None
        self.counting_fails: EngineError | None = None
        self.counted: list[str] = []
        self.batches: list[tuple[str, ...]] = []
        self.n_open = 0

    async def embed(self, texts: tuple[str, ...]) -> Vectors:
        """Embed each text."""
        await self._work(texts)
        return Vectors(tuple(vector_of(text) for text in texts), _n_words(*texts))

    async def rerank(self, query: str, documents: tuple[str, ...]) -> Vectors:
        """Score each document."""
        await self._work(documents)
        vectors = tuple(score_of(query, document) for document in documents)
        return Vectors(vectors, _n_words(*documents) + len(documents) * _n_words(query))

    async def count_text(self, text: str) -> int:
        """Count words."""
        self.counted.append(text)
        if self.counting_fails is not None:
            raise self.counting_fails
        return _n_words(text)

    def chat(self, task: ChatTask, take: TakeChunk | None = None) -> AsyncGenerator[Frame]:
        """Refuse: it generates nothing."""
        raise AssertionError(task, take)

    async def load_status(self) -> LoadStatus:
        """It is loaded."""
        return LoadStatus(loaded=True)

    async def count_tokens(self, task: ChatTask) -> int:
        """Refuse: it has no template."""
        raise EngineError("engine.unsupported", f"no template for {len(task.messages)} messages")

    async def statistics(self) -> EngineStatistics:
        """Count nothing."""
        return EngineStatistics(slots=1, slots_busy=self.n_open, context_tokens=1)

    async def close(self) -> None:
        """Close; there is nothing to."""

    async def _work(self, texts: tuple[str, ...]) -> None:
        self.batches.append(texts)
        self.n_open += 1
        try:
            await self.may_answer.wait()
        finally:
            self.n_open -= 1
        if self.fails is not None:
            raise self.fails


def _n_words(*texts: str) -> int:
    return sum(len(text.split()) for text in texts)
