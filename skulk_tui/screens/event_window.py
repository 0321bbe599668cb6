"""Looking back in the cluster's events by time, as `skulk events --since` does."""

from collections.abc import Mapping

from skulk_tui.screens.asking import Desk
from skulk_tui.screens.view import Handler, Values
from skulk_tui.seat import Seat


def event_handlers(seat: Seat, desk: Desk) -> Mapping[str, Handler]:
    """Give what the actions about it do, by action id."""
    return {"diag.events_since": lambda values: _show_since(seat, desk, values["duration"])}


async def _show_since(seat: Seat, desk: Desk, duration: str) -> None:
    """Show the events of the time that is named, up to now and on.

    Raises:
        ClientError: `client.usage`: it is no duration.
    """
    # Neither is needed before somebody asks for this.
    from skulk_tui.cli.session import parse_duration
    from skulk_tui.widgets.log_pane import LogPane

    before_ms = int(parse_duration(duration, "since") * 1000)
    everything: Values = {}
    await desk.perform(seat.registry.get("diag.events"), everything)
    if isinstance(desk.pane, LogPane):
        desk.pane.look_back(seat.clock.wall_ms() - before_ms, duration)
