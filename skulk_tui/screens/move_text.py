"""A move as both of its instances show it. Pure."""

from protocol.control_api import InstanceView
from skulk_tui.formatting import joined
from skulk_tui.view_state import ViewState


def move_text(item: InstanceView, view: ViewState) -> str:
    """Say where an instance moves to, or where what it takes the place of is; else nothing."""
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
    return ""
