"""How an error is told: at most three lines for people, one object for machines. Pure.

error: what: why
  at: node, phase
  remedy: one command or setting
"""

import json
from dataclasses import dataclass, field

from protocol.errors import DetailValue, ErrorCode, SkulkError
from skulk_tui.cli.exit_codes import exit_code_of
from skulk_tui.client import envelope_of
from skulk_tui.formatting import one_line

_RETRYABLE: frozenset[ErrorCode] = frozenset(
    {
        "client.unreachable",
        "client.timeout",
        "cluster.no_master",
        "cluster.peer_timeout",
        "cluster.peer_unreachable",
        "engine.busy",
        "engine.gone",
        "placement.busy",
        "placement.facts_missing",
        "request.instance_loading",
        "request.overloaded",
        "request.timeout",
        "store.source_unavailable",
        "store.stalled",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error with everything that is told of it."""

    code: ErrorCode
    message: str
    remediation: str
    exit_code: int
    retryable: bool
    node: str | None = None
    phase: str | None = None
    command_id: str | None = None
    details: dict[str, DetailValue] = field(default_factory=dict[str, DetailValue])


def failure_of(error: SkulkError, *, node: str | None = None) -> Failure:
    """Collect what an error and the answer behind it say.

    Args:
        error: What was raised.
        node: The address that was asked, if any was.
    """
    envelope = envelope_of(error)
    phase: str | None = None
    command_id: str | None = None
    details = dict(error.details)
    if envelope is not None:
        command_id = envelope.command_id
        if envelope.failure is not None:
            phase = envelope.failure.phase
            command_id = command_id or envelope.failure.instance_id
        elif envelope.loading is not None:
            phase = envelope.loading.phase
    if phase is None and isinstance(details.get("phase"), str):
        phase = str(details["phase"])
    where = details.get("node_name") or details.get("node_id") or node
    return Failure(
        code=error.code,
        message=error.message,
        remediation=error.remediation,
        exit_code=exit_code_of(error.code),
        retryable=error.retry_after_s is not None or error.code in _RETRYABLE,
        node=None if error.code == "client.usage" or where is None else str(where),
        phase=phase,
        command_id=command_id,
        details=details,
    )


def as_text(failure: Failure) -> str:
    """Write the two or three lines; foreign text in them is made safe for a terminal."""
    lines = [f"error: {one_line(failure.message)}"]
    where = [part for part in (failure.node, failure.phase) if part]
    if where:
        lines.append(f"  at: {one_line(', '.join(where))}")
    if failure.remediation:
        lines.append(f"  remedy: {one_line(failure.remediation)}")
    return "\n".join(lines) + "\n"


def as_json(failure: Failure) -> str:
    """Write the object that JSON mode puts on stderr."""
    body = {
        "code": failure.code,
        "message": failure.message,
        "remediation": failure.remediation,
        "details": failure.details,
        "retryable": failure.retryable,
        "node": failure.node,
        "command_id": failure.command_id,
        "exit": failure.exit_code,
    }
    return json.dumps({"error": body}, ensure_ascii=False) + "\n"
