"""Embeddings in both of their forms, and whatever is asked of the routes for vectors."""

import base64
import json
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import RequestError
from protocol.tasks import EmbeddingTask
from protocol.vectors import is_vector, numbers_of, pack_vector
from skulkd.api.dialects.openai_embeddings import EmbeddingsCall, parse_embeddings
from skulkd.api.dialects.rerank import RerankCall, parse_rerank
from tests.support.builders import MODEL, a_command_id

Call = EmbeddingsCall | RerankCall
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def texts(count: int) -> EmbeddingTask:
    return EmbeddingTask(command_id=a_command_id(), model_id=MODEL, texts=("x",) * count)


@given(st.lists(st.lists(FLOAT32, min_size=1, max_size=50), min_size=1, max_size=5))
def test_a29_base64_and_float_are_the_same_numbers(rows: list[list[float]]) -> None:
    vectors = [pack_vector(row) for row in rows]
    task = texts(len(rows))
    as_float = json.loads(EmbeddingsCall(task=task, encoding="float").document(vectors, 3))
    as_base64 = json.loads(EmbeddingsCall(task=task, encoding="base64").document(vectors, 3))
    assert [item["embedding"] for item in as_float["data"]] == rows
    decoded = [base64.b64decode(item["embedding"], validate=True) for item in as_base64["data"]]
    assert decoded == vectors
    for document in (as_float, as_base64):
        assert [item["index"] for item in document["data"]] == [*range(len(rows))]
        assert document["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


@given(st.lists(st.floats(width=32), max_size=20))
def test_a_vector_has_finite_numbers_and_at_least_one(numbers: list[float]) -> None:
    packed = pack_vector(numbers)
    is_finite = all(abs(number) < float("inf") for number in numbers)
    assert is_vector(packed) == (bool(numbers) and is_finite)
    if is_finite:
        assert numbers_of(packed).tolist() == numbers


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
GOOD = {
    "model": MODEL,
    "input": ["a", "b"],
    "query": "q",
    "documents": ["a", {"text": "b"}],
    "encoding_format": "base64",
    "top_n": 1,
    "return_documents": True,
}


@given(st.dictionaries(st.sampled_from([*GOOD, "dimensions", "user", "other"]), JUNK))
def test_whatever_a_body_holds_is_read_or_refused_by_a_field_that_it_names(
    junk: dict[str, object],
) -> None:
    body = {**GOOD, **junk}
    for parse in (parse_embeddings, parse_rerank):
        call = read_or_refuse(parse, body)
        if isinstance(call, RequestError):
            assert isinstance(call.details["param"], str)
            assert call.remediation
            continue
        task = call.task
        texts = task.texts if isinstance(task, EmbeddingTask) else task.documents
        vectors = [pack_vector((float(index),)) for index in range(len(texts))]
        assert json.loads(call.document(vectors, 1))["object"] == "list"


def read_or_refuse(parse: Callable[..., Call], body: dict[str, object]) -> Call | RequestError:
    try:
        return parse(body, command_id=a_command_id())
    except RequestError as error:
        return error
