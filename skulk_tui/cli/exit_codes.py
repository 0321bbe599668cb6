"""Exit codes: an API that scripts rely on. One table over the error codes, and its help topic."""

from typing import Final

from protocol.errors import ErrorCode

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
REFUSED: Final = 4
CONFLICT: Final = 5
PARTIAL: Final = 6
PENDING: Final = 8
TIMEOUT: Final = 124
SIGNAL_BASE: Final = 128
"""A signal that ends the program gives this and its number: 129, 130, 143."""

MEANINGS: Final[dict[int, str]] = {
    OK: "done; a list may be empty",
    FAILED: "the operation or a check failed",
    USAGE: "the command line, a setting or a name given in it is wrong",
    UNREACHABLE: "a node did not answer; the same command may succeed later",
    REFUSED: "refused: does not fit, not allowed, not authorised; the error's code says which",
    CONFLICT: "conflict: the plan is out of date, or another change won",
    PARTIAL: "partial: some targets are done, some failed",
    PENDING: "not ended: an instance that loads, a transfer that is paused",
    TIMEOUT: "--timeout ran out; the work goes on",
    129: "ended by a hang-up",
    130: "ended by Ctrl-C",
    143: "ended by SIGTERM",
}

_BY_CODE: Final[dict[ErrorCode, int]] = {
    "placement.unknown_model": USAGE,
    "request.invalid_id": USAGE,
    "request.invalid": USAGE,
    "request.unsupported_field": USAGE,
    "client.usage": USAGE,
    "client.unreachable": UNREACHABLE,
    "cluster.peer_unreachable": UNREACHABLE,
    "cluster.peer_timeout": UNREACHABLE,
    "cluster.instance_unreachable": UNREACHABLE,
    "request.node_not_found": USAGE,
    "request.node_ambiguous": USAGE,
    "cluster.token_invalid": USAGE,
    "cluster.join_refused": REFUSED,
    "cluster.token_unknown": REFUSED,
    "cluster.token_expired": REFUSED,
    "cluster.token_used": REFUSED,
    "cluster.removed": REFUSED,
    "cluster.full": REFUSED,
    "cluster.last_voter": REFUSED,
    "cluster.is_master": REFUSED,
    "cluster.no_quorum": REFUSED,
    "cluster.minority_term": REFUSED,
    "client.timeout": TIMEOUT,
    "client.insecure_key": REFUSED,
    "client.certificate_changed": REFUSED,
    "client.readonly": REFUSED,
    "placement.no_fit": REFUSED,
    "placement.no_backend": REFUSED,
    "placement.no_node": REFUSED,
    "placement.no_space": REFUSED,
    "placement.node_draining": REFUSED,
    "placement.unsupported_shape": REFUSED,
    "runner.no_memory": REFUSED,
    "store.no_space": REFUSED,
    "store.offline": REFUSED,
    "store.downloads_disabled": REFUSED,
    "engine.unavailable": REFUSED,
    "engine.cpu_unsupported": REFUSED,
    "request.unauthenticated": REFUSED,
    "request.forbidden": REFUSED,
    "request.host_refused": REFUSED,
    "request.origin_refused": REFUSED,
    "request.too_large": REFUSED,
    "request.context_length_exceeded": REFUSED,
    "placement.plan_changed": CONFLICT,
    "placement.card_changed": CONFLICT,
    "placement.already_live": CONFLICT,
    "placement.not_live": CONFLICT,
    "placement.busy": CONFLICT,
    "store.in_use": CONFLICT,
    "store.no_transfer": CONFLICT,
    "store.damaged": REFUSED,
    "store.paused": PENDING,
    "cluster.restart_pending": CONFLICT,
    "cluster.probe_busy": CONFLICT,
    "cluster.probe_disturbs": REFUSED,
    "request.instance_loading": PENDING,
}


def exit_code_of(code: ErrorCode) -> int:
    """Give the exit code of an error: by its code, else by its prefix, else 1."""
    known = _BY_CODE.get(code)
    if known is not None:
        return known
    return USAGE if code.startswith("config.") else FAILED
