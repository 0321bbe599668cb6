"""Ollama's embeddings, the newer form and the older: an object to a task, vectors back. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

from protocol.ids import CommandId
from protocol.tasks import EmbeddingTask
from protocol.vectors import numbers_of
from skulkd.api.dialects.fields import Fields, model_id_of, unsupported
from skulkd.api.dialects.json_text import dumped
from skulkd.api.dialects.ollama import read_keep
from skulkd.api.dialects.text_fields import listed_texts, text_that_says_something

EmbedKind = Literal["embed", "embeddings"]
"""Many texts as `input`, or the older form: one as `prompt`."""
NO_VECTORS: Final[dict[EmbedKind, bytes]] = {
    "embed": b'{"embeddings":[]}',
    "embeddings": b'{"embedding":[]}',
}
"""The answers to requests without a text."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedCall:
    """A task, and which form its answer has; a `VectorCall`."""

    task: EmbeddingTask
    kind: EmbedKind

    def document(self, vectors: Sequence[bytes], n_tokens: int) -> bytes:
        """Write the answer; takes a tenth of a second for a million numbers as text."""
        written = [_written(vector) for vector in vectors]
        if self.kind == "embeddings":
            return b'{"embedding":%b}' % written[0]
        return b'{"model":%b,"embeddings":[%b],"prompt_eval_count":%d}' % (
            dumped(self.task.model_id),
            b",".join(written),
            n_tokens,
        )


def parse_embed(body: Fields, *, command_id: CommandId) -> EmbedCall:
    """Read a request of `/api/embed`.

    Raises:
        RequestError: `request.invalid`, `request.unsupported_field` or, for what cannot be the id
            of any model, `request.model_not_found`; `details["param"]` names the field.
    """
    value = body.get("input")
    if body.get("dimensions"):
        unsupported(
            "dimensions",
            "is not served: vectors come as long as the model makes them",
            "Leave it out, and cut and normalize the vectors yourself if the model allows that.",
        )
    texts = (value,) if isinstance(value, str) else listed_texts("input", value)
    return _call("embed", body, command_id, texts)


def parse_embeddings(body: Fields, *, command_id: CommandId) -> EmbedCall:
    """Read a request of `/api/embeddings`.

    Raises:
        RequestError: As of `parse_embed`.
    """
    text = text_that_says_something("prompt", body.get("prompt"))
    return _call("embeddings", body, command_id, (text,))


def _call(
    kind: EmbedKind, body: Fields, command_id: CommandId, texts: tuple[str, ...]
) -> EmbedCall:
    task = EmbeddingTask(
        command_id=command_id,
        model_id=model_id_of(body),
        texts=texts,
        keep_s=read_keep(body.get("keep_alive")),
    )
    return EmbedCall(task=task, kind=kind)


def _written(vector: bytes) -> bytes:
    return json.dumps(numbers_of(vector).tolist(), separators=(",", ":")).encode()
