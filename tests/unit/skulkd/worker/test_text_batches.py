import pytest

from protocol.errors import EngineError, RequestError
from protocol.tasks import EmbeddingTask, RerankTask
from skulkd.worker.text_batches import MAX_BATCH_TEXTS, TextBatch, batches, measure
from tests.support.builders import MODEL, a_command_id
from tests.support.text_engines import TextEngine
from tests.support.turns import run

LIMIT = 32


def embedding(*texts: str) -> EmbeddingTask:
    return EmbeddingTask(command_id=a_command_id(), model_id=MODEL, texts=texts)


def rerank(query: str, *documents: str) -> RerankTask:
    return RerankTask(command_id=a_command_id(), model_id=MODEL, query=query, documents=documents)


def test_batches_keep_the_order_and_fit_the_pool() -> None:
    made = batches(("a", "b", "c", "d"), (10, 20, 30, 5), 35)
    assert made == (
        TextBatch(texts=("a", "b"), n_tokens=30),
        TextBatch(texts=("c", "d"), n_tokens=35),
    )
    assert [batch.n_tokens for batch in batches(("a", "b"), (35, 35), 35)] == [35, 35]


def test_a_batch_has_a_bearable_number_of_texts() -> None:
    texts = ("x",) * (2 * MAX_BATCH_TEXTS + 1)
    made = batches(texts, (1,) * len(texts), 1 << 20)
    assert [len(batch.texts) for batch in made] == [MAX_BATCH_TEXTS, MAX_BATCH_TEXTS, 1]


def test_a_text_whose_bytes_tell_is_not_counted() -> None:
    async def story() -> None:
        engine = TextEngine()
        assert await measure(engine, embedding("a fox", "the sea"), LIMIT) == (13, 15)
        assert engine.counted == []
        assert await measure(engine, embedding("a fox", "four long words there"), 20) == (13, 4)
        assert engine.counted == ["four long words there"]

    run(story)


def test_a_text_that_is_too_long_is_refused_with_both_numbers_and_its_place() -> None:
    async def story() -> None:
        with pytest.raises(RequestError) as caught:
            await measure(TextEngine(), embedding("a", "w " * 40), LIMIT)
        assert caught.value.code == "request.context_length_exceeded"
        assert caught.value.details == {
            "param": "input[1]",
            "prompt_tokens": 40,
            "context_tokens": LIMIT,
        }

    run(story)


def test_a_document_is_read_with_the_query_which_is_counted_once() -> None:
    async def story() -> None:
        engine = TextEngine()
        query = "a query of five words"
        sizes = await measure(engine, rerank(query, "one", "one word more", "two"), LIMIT)
        assert sizes == (32, 5 + 3, 32)
        assert engine.counted == [query, "one word more"]
        with pytest.raises(RequestError, match="with the query") as caught:
            await measure(engine, rerank(query, "w " * 28), LIMIT)
        assert caught.value.details["param"] == "documents[0]"
        assert caught.value.details["prompt_tokens"] == 33

    run(story)


def test_an_engine_that_cannot_count_guards_its_own_window() -> None:
    async def story() -> None:
        engine = TextEngine()
        engine.counting_fails = EngineError("engine.unsupported", "no such route")
        assert await measure(engine, embedding("a", "w " * 40), LIMIT) == (9, LIMIT)
        engine.counting_fails = EngineError("engine.gone", "it died")
        with pytest.raises(EngineError, match="it died"):
            await measure(engine, embedding("w " * 40), LIMIT)

    run(story)
