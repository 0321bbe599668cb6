"""The arithmetic of placement as text: what operators read in plans, refusals and errors."""

from collections.abc import Sequence
from typing import Final

from protocol.errors import ErrorCode, PlacementError
from protocol.ids import ModelId
from protocol.placements import MemoryArithmetic, PlacementOutcome, Refusal

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP: Final = 1024
FACTS_RETRY_S: Final = 2
"""Readings come every second or two; a call repeated after this has news."""
_NEAREST_FIRST: Final[tuple[ErrorCode, ...]] = (
    "placement.no_fit",
    "placement.no_space",
    "store.offline",
    "store.downloads_disabled",
    "placement.node_draining",
    "placement.node_unreachable",
    "placement.no_backend",
    "placement.no_node",
    "placement.unsupported_shape",
)


def size_text(size_bytes: int) -> str:
    """Write a size with one decimal, as `du -h` would; exact below 1 KiB."""
    amount = float(size_bytes)
    unit = _UNITS[0]
    for unit in _UNITS:
        if abs(amount) < _STEP or unit == _UNITS[-1]:
            break
        amount /= _STEP
    return f"{size_bytes} B" if unit == "B" else f"{amount:.1f} {unit}"


def sum_text(memory: MemoryArithmetic) -> str:
    """Write the sum on one line: the three terms, what they come to, what there is."""
    return (
        f"weights {size_text(memory.weights_bytes)} + kv cache "
        f"{size_text(memory.kv_cache_bytes)} ({memory.context_tokens} tokens) + overhead "
        f"{size_text(memory.overhead_bytes)} = {size_text(memory.needed_bytes)}; "
        f"{memory.pool} has {size_text(memory.available_bytes)} available, "
        f"{size_text(memory.reserved_bytes)} of it reserved"
    )


def outcome_error(outcome: PlacementOutcome, model_id: ModelId) -> PlacementError:
    """Turn an outcome without a plan into the error that a caller raises.

    Returns:
        `placement.facts_missing` while facts are still arriving; otherwise the refusal that came
        nearest to fitting, with the others in its message.
    """
    if outcome.missing_facts:
        missing = ", ".join(outcome.missing_facts)
        return PlacementError(
            "placement.facts_missing",
            f"{model_id} cannot be planned yet; still missing: {missing}",
            remediation="Wait for the node's next reading; `skulk status` shows its age.",
            retry_after_s=FACTS_RETRY_S,
        )
    if not outcome.refusals:
        return PlacementError(
            "placement.no_node",
            f"no node is known that could hold {model_id}",
            remediation="Start skulkd without --no-worker on a machine that may run models.",
        )
    ordered = sorted(outcome.refusals, key=_distance)
    nearest = ordered[0].error
    others = [refusal.error.message for refusal in ordered[1:4]]
    if len(ordered) > 4:  # ruff: ignore[magic-value-comparison] - three others are named
        others.append(f"{len(ordered) - 4} more nodes refused")
    return PlacementError(
        nearest.code,
        "; ".join((nearest.message, *others)),
        remediation=nearest.remediation,
        details=nearest.details,
        retry_after_s=nearest.retry_after_s,
    )


def nearest_refusal(refusals: Sequence[Refusal]) -> Refusal:
    """Give the refusal that came nearest to fitting: the first of those that came equally near."""
    return min(refusals, key=_distance)


def _distance(refusal: Refusal) -> tuple[int, int]:
    code = refusal.error.code
    rank = _NEAREST_FIRST.index(code) if code in _NEAREST_FIRST else len(_NEAREST_FIRST)
    short = 0 if refusal.memory is None else -refusal.memory.headroom_bytes
    return rank, short
