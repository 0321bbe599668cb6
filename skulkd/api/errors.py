"""HTTP status and JSON form of every error; chosen here and nowhere else."""

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from pydantic import ValidationError

from protocol.base import FrozenModel
from protocol.control_api import COMMAND_ID_HEADER, LoadingDocument
from protocol.errors import ErrorCode, RequestError, SkulkError
from protocol.instances import InstanceFailure
from protocol.placements import Plan, Refusal
from skulkd.api.dialects.chat_dialect import Dialect
from skulkd.api.dialects.ollama_output import error_object
from skulkd.api.http import Header, Reply

CLIENT_CLOSED_REQUEST: Final = 499
"""Nginx's number for it: no standard one exists, and SDKs do not repeat a 499."""

STATUS: Final[dict[ErrorCode, int]] = {
    "config.unknown_key": 400,
    "config.invalid": 400,
    "config.home_unusable": 500,
    "config.home_network_fs": 500,
    "config.home_locked": 500,
    "config.port_busy": 409,
    "config.tls_unusable": 400,
    "config.downgrade": 500,
    "protocol.bad_frame": 400,
    "protocol.too_large": 413,
    "cluster.no_master": 503,
    "cluster.no_quorum": 503,
    "cluster.not_durable": 503,
    "cluster.journal_corrupt": 500,
    "cluster.stopping": 503,
    "cluster.join_failed": 502,
    "cluster.no_address": 409,
    "cluster.link_lost": 502,
    "cluster.instance_unreachable": 503,
    "cluster.not_member": 404,
    "cluster.removed": 403,
    "cluster.full": 409,
    "cluster.last_voter": 409,
    "cluster.is_master": 409,
    "cluster.handover_failed": 409,
    "cluster.minority_term": 409,
    "cluster.join_refused": 409,
    "cluster.has_past": 409,
    "cluster.restart_pending": 409,
    "cluster.token_invalid": 400,
    "cluster.token_unknown": 404,
    "cluster.token_expired": 410,
    "cluster.token_used": 409,
    "cluster.peer_unreachable": 503,
    "cluster.peer_timeout": 504,
    "cluster.probe_busy": 409,
    "cluster.probe_disturbs": 409,
    "placement.unknown_model": 404,
    "placement.no_fit": 400,
    "placement.no_backend": 400,
    "placement.no_node": 400,
    "placement.node_unreachable": 503,
    "placement.node_draining": 409,
    "placement.pinned": 409,
    "placement.no_space": 400,
    "placement.unsupported_shape": 400,
    "placement.facts_missing": 503,
    "placement.memory_in_use": 503,
    "placement.plan_changed": 409,
    "placement.card_changed": 409,
    "placement.already_live": 409,
    "placement.not_live": 409,
    "placement.busy": 409,
    "placement.failed": 503,
    "store.card_invalid": 400,
    "store.card_unknown_field": 400,
    "store.gguf_invalid": 400,
    "store.gguf_truncated": 400,
    "store.incomplete": 409,
    "store.digest_mismatch": 502,
    "store.no_space": 507,
    "store.disk_failed": 500,
    "store.source_unavailable": 502,
    "store.source_changed": 409,
    "store.stalled": 504,
    "store.offline": 409,
    "store.downloads_disabled": 409,
    "store.cancelled": 409,
    "store.paused": 409,
    "store.damaged": 409,
    "store.no_transfer": 409,
    "store.not_found": 404,
    "store.in_use": 409,
    "engine.unavailable": 503,
    "engine.binary_invalid": 500,
    "engine.cpu_unsupported": 500,
    "engine.unsupported": 400,
    "engine.request_failed": 500,
    "engine.gone": 503,
    "engine.busy": 503,
    "engine.draining": 503,
    "runner.spawn_failed": 503,
    "runner.exited": 503,
    "runner.out_of_memory": 503,
    "runner.load_stalled": 503,
    "runner.probe_failed": 503,
    "runner.no_memory": 503,
    "runner.rank_lost": 503,
    "runner.unkillable": 500,
    "request.invalid": 400,
    "request.invalid_id": 400,
    "request.unsupported_field": 400,
    "request.too_large": 413,
    "request.image_unavailable": 400,
    "request.timeout": 408,
    "request.context_length_exceeded": 400,
    "request.model_not_found": 404,
    "request.instance_loading": 503,
    "request.not_found": 404,
    "request.node_not_found": 404,
    "request.node_ambiguous": 400,
    "request.method_not_allowed": 405,
    "request.host_refused": 421,
    "request.origin_refused": 403,
    "request.content_type": 415,
    "request.unauthenticated": 401,
    "request.forbidden": 403,
    "request.cancelled": CLIENT_CLOSED_REQUEST,
    "request.overloaded": 503,
    "request.rate_limited": 429,
    "request.concurrency_limited": 429,
    "request.upgrade_required": 426,
    "request.tls_required": 400,
    "request.stream_gone": 410,
    "session.incompatible": 400,
    "session.slow_reader": 408,
    "session.deadline": 504,
    "internal.bug": 500,
}

_OPENAI_CODES: Final[dict[ErrorCode, str]] = {
    "request.model_not_found": "model_not_found",
    "request.context_length_exceeded": "context_length_exceeded",
    "request.unauthenticated": "invalid_api_key",
    "request.rate_limited": "rate_limit_exceeded",
    "request.concurrency_limited": "rate_limit_exceeded",
}

_SHOWN_CHARS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachments:
    """Documents that an error carries beside its words."""

    loading: LoadingDocument | None = None
    failure: InstanceFailure | None = None
    plan: Plan | None = None
    refusals: tuple[Refusal, ...] = ()
    missing_facts: tuple[str, ...] = ()


class DocumentedError(SkulkError):
    """An error with documents attached: what is loading, which plan is of now, who refused."""

    def __init__(self, error: SkulkError, attachments: Attachments) -> None:
        super().__init__(
            error.code,
            error.message,
            remediation=error.remediation,
            details=error.details,
            retry_after_s=error.retry_after_s,
        )
        self.attachments = attachments


def status_of(code: ErrorCode) -> int:
    """Choose the status of an error code; codes of the operator's own program never get here."""
    return STATUS.get(code, 500)


def envelope(error: SkulkError, *, dialect: Dialect, command_id: str | None) -> dict[str, Any]:
    """Give an error as the JSON that clients of the dialect read.

    The form is one for all routes: what OpenAI clients read (`message`, `type`, `param`, `code`),
    what ours read (`skulk_code`, `remediation`, `details`), and documents where there are any.
    Anthropic's clients read `type`, of a set of its own, and `message`; for Ollama's, who writes
    the answer makes one text of it.
    """
    status = status_of(error.code)
    details = dict(error.details)
    param = details.pop("param", None)
    message = error.message
    if dialect == "openai" and error.code == "request.context_length_exceeded":
        message = f"context_length_exceeded: {message}"
    if dialect == "anthropic" and error.code == "request.context_length_exceeded":
        message = f"prompt is too long: {message}"  # agents look for these words, and compact
    body: dict[str, Any] = {
        "message": message,
        "type": _anthropic_type(status) if dialect == "anthropic" else _openai_type(status),
        "param": param,
        "code": _OPENAI_CODES.get(error.code, error.code) if dialect == "openai" else error.code,
        "skulk_code": error.code,
        "remediation": error.remediation,
        "details": details,
    }
    if command_id is not None:
        body["command_id"] = command_id
    if error.retry_after_s is not None:
        body["retry_after_s"] = error.retry_after_s
    if isinstance(error, DocumentedError):
        body |= _documents(error.attachments)
    return body


def error_reply(
    error: SkulkError,
    *,
    dialect: Dialect,
    command_id: str | None = None,
    headers: tuple[Header, ...] = (),
) -> Reply:
    """Answer with an error."""
    extra: list[Header] = [(b"content-type", b"application/json"), *headers]
    if command_id is not None:
        extra.append((COMMAND_ID_HEADER.encode(), command_id.encode()))
    if error.retry_after_s is not None:
        extra.append((b"retry-after", str(error.retry_after_s).encode()))
    status = status_of(error.code)
    if status == HTTPStatus.UNAUTHORIZED:
        extra.append((b"www-authenticate", b'Bearer realm="skulk"'))
    body = envelope(error, dialect=dialect, command_id=command_id)
    if dialect == "ollama":
        document = error_object(body)
    elif dialect == "anthropic":
        document = {"type": "error", "error": body}
    else:
        document = {"error": body}
    return Reply(status=status, body=json.dumps(document).encode(), headers=tuple(extra))


def bug() -> SkulkError:
    """Give the error that stands for a bug; its story is in the log under the command id."""
    return SkulkError(
        "internal.bug",
        "the node failed to handle this request; its log has the story",
        remediation="Report it with the lines of `skulk logs` that carry this command id.",
    )


def invalid_body(error: ValidationError, kind: type[FrozenModel]) -> RequestError:
    """Turn what a wire type refused into one sentence per field, naming each."""
    problems: list[str] = []
    first = ""
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        # An unknown field's name is the client's own, and may be as long as a body.
        place = ".".join(str(part)[:_SHOWN_CHARS] for part in problem["loc"])
        first = first or place
        known = ", ".join(kind.model_fields)
        text = (
            f"is not a field here (known: {known})"
            if problem["type"] == "extra_forbidden"
            else problem["msg"]
        )
        problems.append(f"{place}: {text}" if place else text)
    return RequestError(
        "request.invalid",
        "; ".join(problems[:5]),
        remediation="See docs/api.md for the fields of this route.",
        details={"param": first or None},
    )


def _openai_type(status: int) -> str:
    if status == HTTPStatus.UNAUTHORIZED:
        return "authentication_error"
    if status == HTTPStatus.FORBIDDEN:
        return "permission_error"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    return "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"


_ANTHROPIC_TYPES: Final[dict[int, str]] = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}


def _anthropic_type(status: int) -> str:
    is_ours = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return _ANTHROPIC_TYPES.get(status, "api_error" if is_ours else "invalid_request_error")


def _documents(attachments: Attachments) -> dict[str, Any]:
    documents: dict[str, Any] = {}
    if attachments.loading is not None:
        documents["loading"] = attachments.loading.model_dump(mode="json")
    if attachments.failure is not None:
        documents["failure"] = attachments.failure.model_dump(mode="json")
    if attachments.plan is not None:
        documents["plan"] = attachments.plan.model_dump(mode="json")
    if attachments.refusals:
        documents["refusals"] = [item.model_dump(mode="json") for item in attachments.refusals]
    if attachments.missing_facts:
        documents["missing_facts"] = list(attachments.missing_facts)
    return documents
