"""A move as both of its instances show it, and why an instance is on its way. Pure."""

from protocol.control_api import InstanceView
from skulk_tui.formatting import joined
from skulk_tui.view_state import ViewState


def move_text(item: InstanceView, view: ViewState) -> str:
    """Say where an instance moves to, or where it comes from until it serves; else nothing."""
    if item.replaces is not None:
        waits = item.replaces.stop_first and item.phase == "pending"
        old = joined(view.name_of(node_id) for node_id in item.moved_from)
        return f"{'waits for' if waits else 'from'} {old}"
    for other in view.instances:
        replaced = other.replaces
        if replaced is None or replaced.instance_id != item.instance_id:
            continue
        if other.phase not in {"failed", "stopping"}:
            return f"moves to {joined(view.name_of(one.node_id) for one in other.plan.shards)}"
    if item.repairs and item.phase not in {"ready", "asleep"}:
        last = item.repairs[-1]
        old = joined(view.name_of(node_id) for node_id in last.from_nodes)
        return f"from {old}: {last.error.code}"
    return ""
