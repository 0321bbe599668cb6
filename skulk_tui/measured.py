"""What an instance was predicted to take, beside what it was seen to take."""

from protocol.control_api import InstanceView
from skulk_tui.formatting import UNKNOWN, format_bytes


def measured_bytes(view: InstanceView) -> int | None:
    """Add up what all ranks were seen to take; None until every one of them was measured."""
    memories = [runner.memory for runner in view.runners]
    if len(memories) < len(view.plan.shards) or None in memories:
        return None
    return sum(memory.measured_bytes for memory in memories if memory is not None)


def memory_error_percent(view: InstanceView) -> float | None:
    """Say by how much the plan was too large, in percent of the truth; negative: too small."""
    seen = measured_bytes(view)
    if not seen:
        return None
    predicted = sum(shard.memory.needed_bytes for shard in view.plan.shards)
    return round(100 * (predicted - seen) / seen, 1)


def measured_text(measured: int | None, error_percent: float | None) -> str:
    """Write what was measured, with how far the prediction was off."""
    if measured is None or error_percent is None:
        return UNKNOWN
    return f"{format_bytes(measured)} ({error_percent:+.1f} %)"
