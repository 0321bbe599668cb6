"""How long an instance stays loaded, in a few words. Pure."""

from protocol.control_api import InstanceView
from skulk_tui.formatting import format_duration


def stay_text(item: InstanceView) -> str:
    """Say that it is pinned, or when it is unloaded; nothing of one that is simply placed."""
    if item.pinned:
        return "pinned"
    if item.made_room_for is not None:
        return f"made room for {item.made_room_for}"
    if item.ttl_ms is None or item.phase == "asleep":
        return ""
    if item.sleeps_in_s is not None:
        return f"sleeps in {format_duration(item.sleeps_in_s)}"
    return f"on demand, {format_duration(item.ttl_ms / 1000)}"
