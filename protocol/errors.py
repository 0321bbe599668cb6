"""The errors an operator or client can meet, each with a stable code and a remedy.

    SkulkError
    ├── ConfigError      settings, home directory, listeners
    ├── ProtocolError    frames and records that cannot be decoded
    ├── ClusterError     mastership, durability, peers
    ├── PlacementError   planning and the instance's desired state
    ├── StoreError       cards, artifacts, transfers
    ├── EngineError      the inference process and what it answers
    ├── RunnerError      starting, watching and ending that process
    ├── RequestError     what a client asked for
    ├── ClientError      what the operator's program meets before a node has answered
    └── SessionError     why a session between that program and a node ends

A bug is none of these: it is logged with its story and answered as `internal.bug`.
"""

from collections.abc import Mapping
from typing import Final, Literal, get_args

from protocol.base import FrozenModel

ErrorCode = Literal[
    "config.unknown_key",
    "config.invalid",
    "config.home_unusable",
    "config.home_network_fs",
    "config.home_locked",
    "config.port_busy",
    "config.tls_unusable",
    "config.downgrade",
    "protocol.bad_frame",
    "protocol.too_large",
    "cluster.no_master",
    "cluster.no_quorum",
    "cluster.not_durable",
    "cluster.journal_corrupt",
    "cluster.stopping",
    "cluster.join_failed",
    "cluster.no_address",
    "cluster.link_lost",
    "cluster.instance_unreachable",
    "cluster.not_member",
    "cluster.removed",
    "cluster.full",
    "cluster.last_voter",
    "cluster.is_master",
    "cluster.handover_failed",
    "cluster.minority_term",
    "cluster.join_refused",
    "cluster.has_past",
    "cluster.restart_pending",
    "cluster.token_invalid",
    "cluster.token_unknown",
    "cluster.token_expired",
    "cluster.token_used",
    "cluster.peer_unreachable",
    "cluster.peer_timeout",
    "cluster.probe_busy",
    "cluster.probe_disturbs",
    "placement.unknown_model",
    "placement.no_fit",
    "placement.no_backend",
    "placement.no_node",
    "placement.node_unreachable",
    "placement.node_draining",
    "placement.pinned",
    "placement.no_space",
    "placement.unsupported_shape",
    "placement.facts_missing",
    "placement.memory_in_use",
    "placement.plan_changed",
    "placement.card_changed",
    "placement.already_live",
    "placement.not_live",
    "placement.busy",
    "placement.failed",
    "store.card_invalid",
    "store.card_unknown_field",
    "store.gguf_invalid",
    "store.gguf_truncated",
    "store.incomplete",
    "store.digest_mismatch",
    "store.no_space",
    "store.disk_failed",
    "store.source_unavailable",
    "store.source_changed",
    "store.stalled",
    "store.offline",
    "store.downloads_disabled",
    "store.cancelled",
    "store.paused",
    "store.damaged",
    "store.no_transfer",
    "store.not_found",
    "store.in_use",
    "engine.unavailable",
    "engine.binary_invalid",
    "engine.cpu_unsupported",
    "engine.unsupported",
    "engine.request_failed",
    "engine.gone",
    "engine.busy",
    "engine.draining",
    "runner.spawn_failed",
    "runner.exited",
    "runner.out_of_memory",
    "runner.load_stalled",
    "runner.probe_failed",
    "runner.no_memory",
    "runner.rank_lost",
    "runner.unkillable",
    "request.invalid",
    "request.invalid_id",
    "request.unsupported_field",
    "request.too_large",
    "request.image_unavailable",
    "request.timeout",
    "request.context_length_exceeded",
    "request.model_not_found",
    "request.instance_loading",
    "request.not_found",
    "request.node_not_found",
    "request.node_ambiguous",
    "request.method_not_allowed",
    "request.host_refused",
    "request.origin_refused",
    "request.content_type",
    "request.unauthenticated",
    "request.forbidden",
    "request.cancelled",
    "request.overloaded",
    "request.rate_limited",
    "request.concurrency_limited",
    "request.upgrade_required",
    "request.tls_required",
    "request.stream_gone",
    "client.usage",
    "client.unreachable",
    "client.timeout",
    "client.bad_answer",
    "client.insecure_key",
    "client.certificate_changed",
    "client.stream_cut",
    "client.service_failed",
    "client.readonly",
    "client.output_failed",
    "session.incompatible",
    "session.slow_reader",
    "session.deadline",
    "internal.bug",
]
"""Stable and never reused; each has an entry in docs/errors.md."""

ERROR_CODES: Final[tuple[ErrorCode, ...]] = get_args(ErrorCode)

DetailValue = str | int | float | bool | None
Details = Mapping[str, DetailValue]


class ErrorBody(FrozenModel):
    """An error as it crosses a process boundary."""

    code: ErrorCode
    message: str
    remediation: str = ""
    details: dict[str, DetailValue] = {}
    retry_after_s: int | None = None


class SkulkError(Exception):
    """Something an operator or client can act on.

    Args:
        code: A member of `ErrorCode`.
        message: What happened, with the numbers.
        remediation: What the reader can do next; a command or a setting.
        details: Typed facts for logs and machines.
        retry_after_s: Set when the same call may succeed later.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        remediation: str = "",
        details: Details | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code: ErrorCode = code
        self.message = message
        self.remediation = remediation
        self.details: Details = details or {}
        self.retry_after_s = retry_after_s

    def body(self) -> ErrorBody:
        """Give the error as a wire value."""
        return ErrorBody(
            code=self.code,
            message=self.message,
            remediation=self.remediation,
            details=dict(self.details),
            retry_after_s=self.retry_after_s,
        )


class ConfigError(SkulkError):
    """Settings, home directory or listeners are unusable."""


class ProtocolError(SkulkError):
    """A frame or record cannot be decoded."""


class ClusterError(SkulkError):
    """Mastership, durability or a peer is missing."""


class PlacementError(SkulkError):
    """A plan cannot be made, or no longer holds."""


class StoreError(SkulkError):
    """A card, an artifact or a transfer is not usable."""


class EngineError(SkulkError):
    """The inference engine refuses or fails."""


class RunnerError(SkulkError):
    """The engine's process cannot be started, or ended."""


class RequestError(SkulkError):
    """The client's request cannot be served as it is."""


class ClientError(SkulkError):
    """The operator's program cannot ask a node, or cannot read its answer."""


class SessionError(SkulkError):
    """A session cannot be, or goes on no longer."""


_BY_PREFIX: Final[dict[str, type[SkulkError]]] = {
    "config": ConfigError,
    "protocol": ProtocolError,
    "cluster": ClusterError,
    "placement": PlacementError,
    "store": StoreError,
    "engine": EngineError,
    "runner": RunnerError,
    "request": RequestError,
    "client": ClientError,
    "session": SessionError,
}


def error_of(body: ErrorBody) -> SkulkError:
    """Turn a wire error back into the exception it came from."""
    kind = _BY_PREFIX.get(body.code.partition(".")[0], SkulkError)
    return kind(
        body.code,
        body.message,
        remediation=body.remediation,
        details=body.details,
        retry_after_s=body.retry_after_s,
    )
