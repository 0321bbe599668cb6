"""OpenAI embeddings: a JSON object to a task, and vectors to the answer. Pure.

Client libraries ask for base64 unless they are told otherwise, and are silently wrong about vectors
that come in another form than they asked for.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

from protocol.ids import CommandId, ModelId
from protocol.tasks import EmbeddingTask
from protocol.vectors import numbers_of
from skulkd.api.dialects.fields import Fields, model_id_of, unsupported, wrong
from skulkd.api.dialects.text_fields import listed_texts, text_that_says_something

Encoding = Literal["float", "base64"]
_ENCODINGS: Final[dict[str, Encoding]] = {"float": "float", "base64": "base64"}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsCall:
    """A task, and how its vectors are wanted."""

    task: EmbeddingTask
    encoding: Encoding

    def document(self, vectors: Sequence[bytes], n_tokens: int) -> bytes:
        """Write the answer; takes a tenth of a second for a million numbers as text."""
        return b'{"object":"list","data":[%b],"model":%b,"usage":%b}' % (
            b",".join(
                b'{"object":"embedding","index":%d,"embedding":%b}' % (index, self._written(vector))
                for index, vector in enumerate(vectors)
            ),
            written_id(self.task.model_id),
            written_usage(n_tokens),
        )

    def _written(self, vector: bytes) -> bytes:
        if self.encoding == "base64":
            return b'"%b"' % b64encode(vector)
        return json.dumps(numbers_of(vector).tolist(), separators=(",", ":")).encode()


def parse_embeddings(body: Fields, *, command_id: CommandId) -> EmbeddingsCall:
    """Read a request.

    Raises:
        RequestError: `request.invalid`, `request.unsupported_field` or, for what cannot be the id
            of any model, `request.model_not_found`; `details["param"]` names the field.
    """
    model_id = model_id_of(body)
    if body.get("dimensions") is not None:
        unsupported(
            "dimensions",
            "is not served: vectors come as long as the model makes them",
            "Leave it out, and cut and normalize the vectors yourself if the model allows that.",
        )
    return EmbeddingsCall(
        task=EmbeddingTask(command_id=command_id, model_id=model_id, texts=_texts(body)),
        encoding=_encoding(body.get("encoding_format")),
    )


def written_id(model_id: ModelId) -> bytes:
    """Write a model's id as JSON."""
    return json.dumps(model_id).encode()


def written_usage(n_tokens: int) -> bytes:
    """Write what a request that generates nothing has used."""
    return b'{"prompt_tokens":%d,"total_tokens":%d}' % (n_tokens, n_tokens)


def _texts(body: Fields) -> tuple[str, ...]:
    value = body.get("input")
    if isinstance(value, str):
        return (text_that_says_something("input", value),)
    return listed_texts("input", value)


def _encoding(value: object) -> Encoding:
    if value is None:
        return "float"
    known = _ENCODINGS.get(value) if isinstance(value, str) else None
    if known is None:
        wrong("encoding_format", "`float` or `base64`", value)
    return known
