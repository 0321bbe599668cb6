"""What a scripted session answers: documents, errors and the chunks of a chat."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protocol.base import FrozenModel
from protocol.control_api import ErrorDocument, ErrorEnvelope
from protocol.errors import ErrorCode
from protocol.session import SessionRequest
from tests.support.builders import a_command_id

Json = Any
"""What `json.loads` gives."""
Answerer = Callable[[SessionRequest], "Scripted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """What is answered to a request."""

    status: int = 200
    body: Any = None
    after_s: float = 0.0
    is_silent: bool = False
    """Never answered, until the client gives it up."""


def plain(document: object) -> Json:
    """Give a document as plain JSON values, in snake_case."""
    return document.model_dump(mode="json") if isinstance(document, FrozenModel) else document


def refusal(
    code: ErrorCode,
    message: str = "it cannot be done",
    *,
    status: int = 400,
    remediation: str = "do it otherwise",
    **documents: object,
) -> Scripted:
    """Answer with an error, and documents beside its words."""
    envelope = ErrorEnvelope.model_validate(
        {
            "message": message,
            "type": "invalid_request_error",
            "code": code,
            "skulk_code": code,
            "remediation": remediation,
            **documents,
        }
    )
    return Scripted(status=status, body=plain(ErrorDocument(error=envelope)))


def chunk(text: str) -> dict[str, Any]:
    """Make one chunk of a chat."""
    delta = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return {"id": a_command_id(), "object": "chat.completion.chunk", "choices": [delta]}


def last_chunks(n_tokens: int, finish: str = "stop") -> list[dict[str, Any]]:
    """Make the chunks that end a chat well."""
    end: dict[str, object] = {"index": 0, "delta": {}, "finish_reason": finish}
    usage = {"prompt_tokens": 12, "completion_tokens": n_tokens, "total_tokens": 12 + n_tokens}
    return [
        {"id": a_command_id(), "choices": [end]},
        {"id": a_command_id(), "choices": [], "usage": usage},
    ]
