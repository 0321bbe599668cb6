"""Reranking, in the form that Cohere, Jina and llama-server share. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast, final

from protocol.ids import CommandId
from protocol.tasks import MAX_TEXTS, RerankTask
from protocol.vectors import numbers_of
from skulkd.api.dialects.fields import Fields, model_id_of, read_flag, read_integer
from skulkd.api.dialects.openai_embeddings import written_id, written_usage
from skulkd.api.dialects.text_fields import listed_texts, text_that_says_something


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RerankCall:
    """A task, and how much of its result is wanted."""

    task: RerankTask
    top_n: int | None
    return_documents: bool

    def document(self, vectors: Sequence[bytes], n_tokens: int) -> bytes:
        """Write the answer, the best document first; of equals the earlier one."""
        scores = [numbers_of(vector)[0] for vector in vectors]
        ranked = sorted(range(len(scores)), key=lambda index: -scores[index])
        results = [self._result(index, scores[index]) for index in ranked[: self.top_n]]
        return b'{"object":"list","model":%b,"results":%b,"usage":%b}' % (
            written_id(self.task.model_id),
            json.dumps(results, separators=(",", ":")).encode(),
            written_usage(n_tokens),
        )

    def _result(self, index: int, score: float) -> dict[str, object]:
        result: dict[str, object] = {"index": index, "relevance_score": score}
        if self.return_documents:
            result["document"] = {"text": self.task.documents[index]}
        return result


def parse_rerank(body: Fields, *, command_id: CommandId) -> RerankCall:
    """Read a request.

    Raises:
        RequestError: `request.invalid`, `request.unsupported_field` or, for what cannot be the id
            of any model, `request.model_not_found`; `details["param"]` names the field.
    """
    task = RerankTask(
        command_id=command_id,
        model_id=model_id_of(body),
        query=text_that_says_something("query", body.get("query")),
        documents=listed_texts("documents", _plain(body.get("documents"))),
    )
    return RerankCall(
        task=task,
        top_n=read_integer(body, "top_n", 1, MAX_TEXTS),
        return_documents=read_flag(body, "return_documents") or False,
    )


def _plain(value: object) -> object:
    """Take the text out of documents that are objects."""
    if not isinstance(value, list):
        return value
    return [
        cast("Mapping[str, object]", item).get("text") if isinstance(item, Mapping) else item
        for item in cast("list[object]", value)
    ]
