"""What a runner's end means: error bodies by the phase and the way it went."""

from dataclasses import dataclass
from typing import Final

from protocol.errors import DetailValue, ErrorBody
from protocol.instances import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """The process ended; how, and what it said last.

    An exit whose status could not be read (an adopted process) has neither code nor signal.
    """

    exit_code: int | None = None
    signal: str | None = None
    """`SIGKILL` and the like, when a signal ended it."""
    oom_killed: bool = False
    """The kernel's out-of-memory counter moved while it ran."""
    log_tail: tuple[str, ...] = ()
    """The last lines of its log, oldest first; at most 20."""


_LAST_WORDS_CHARS: Final = 300


def exit_error(exited: Exited, phase: Phase) -> ErrorBody:
    """Say why the process ended, from how it ended and in which phase.

    Returns:
        `runner.out_of_memory`, `engine.cpu_unsupported` or `runner.exited`.
    """
    details: dict[str, DetailValue] = {
        "phase": phase,
        "exit_code": exited.exit_code,
        "signal": exited.signal,
    }
    if exited.signal == "SIGKILL" and exited.oom_killed:
        return ErrorBody(
            code="runner.out_of_memory",
            message=f"the kernel killed the engine in phase {phase}: out of memory",
            remediation="Place the model with a smaller --context, or free memory on the node.",
            details=details,
        )
    if exited.signal == "SIGILL":
        return ErrorBody(
            code="engine.cpu_unsupported",
            message=f"the engine died of SIGILL in phase {phase}: its build uses instructions "
            "that this CPU does not have",
            remediation="Use the default engine build (xllamacpp), or one compiled for this CPU.",
            details=details,
        )
    return ErrorBody(
        code="runner.exited",
        message=f"the engine {_how(exited)} in phase {phase}{_last_words(exited)}",
        remediation="Read the engine's log; `skulk ps` shows its last lines.",
        details=details,
    )


def load_stalled(silent_s: float, done_bytes: int | None, size_bytes: int) -> ErrorBody:
    """Say that a load stopped getting on."""
    seen = "nothing" if done_bytes is None else f"{done_bytes} of {size_bytes} bytes"
    return ErrorBody(
        code="runner.load_stalled",
        message=f"the load made no progress for {silent_s:.0f} s; {seen} had been seen",
        remediation="Read the engine's log, check the disk, then place the model again.",
        details={"silent_s": round(silent_s), "done_bytes": done_bytes, "size_bytes": size_bytes},
    )


def phase_stalled(phase: Phase, silent_s: float) -> ErrorBody:
    """Say that the store stopped getting on with the files."""
    return ErrorBody(
        code="store.stalled",
        message=f"phase {phase} made no progress for {silent_s:.0f} s",
        remediation="Check the disk and the network, then place the model again.",
        details={"phase": phase, "silent_s": round(silent_s)},
    )


def spawn_late(limit_s: float) -> ErrorBody:
    """Say that the process did not come into being."""
    return ErrorBody(
        code="runner.spawn_failed",
        message=f"the engine's process was not there after {limit_s:.0f} s",
        remediation="Look at the load of the node; a slow disk or a swap storm delays exec.",
        details={"limit_s": round(limit_s)},
    )


def probe_unanswered(limit_s: float) -> ErrorBody:
    """Say that the engine loaded, and did not answer one real request."""
    return ErrorBody(
        code="runner.probe_failed",
        message=f"the engine loaded, then did not answer a request of one token in {limit_s:.0f} s",
        remediation="Read the engine's log; a busy machine may need a smaller model.",
        details={"limit_s": round(limit_s)},
    )


def engine_hung() -> ErrorBody:
    """Say that an engine was there and answered nobody."""
    return ErrorBody(
        code="engine.gone",
        message="the engine said nothing to a request for as long as it may, and answers no "
        "question either",
        remediation="It is ended and started again; read its log (`skulk logs`) if it recurs.",
    )


def device_lost(name: str) -> ErrorBody:
    """Say that what an engine computes on is gone, whatever it answers now."""
    return ErrorBody(
        code="engine.gone",
        message=f"{name}, on which the engine computed, is gone",
        remediation="The model is placed again where it fits; `skulk doctor` says what brings the "
        "device back.",
    )


def _how(exited: Exited) -> str:
    if exited.signal is not None:
        return f"was ended by {exited.signal}"
    if exited.exit_code is not None:
        return f"exited with code {exited.exit_code}"
    return "is gone"


def _last_words(exited: Exited) -> str:
    said = next((line.strip() for line in reversed(exited.log_tail) if line.strip()), "")
    return f"; it last said: {said[:_LAST_WORDS_CHARS]}" if said else ""
