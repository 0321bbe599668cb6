"""What `:move`, `:pin`, `:unpin` and `:clear-breaker` do, from any view.

What they need is loaded when it is first done.
"""

from collections.abc import Mapping
from functools import partial

from skulk_tui.screens.asking import Desk
from skulk_tui.screens.view import Handler, Values
from skulk_tui.seat import Seat


def move_handlers(seat: Seat, desk: Desk) -> Mapping[str, Handler]:
    """Give what they do, by action id."""

    async def move(values: Values) -> None:
        from skulk_tui.screens.move_changes import move_asked

        seat.confirm(await move_asked(seat, values, desk.situation.selection))

    def clear_breaker(values: Values) -> None:
        from skulk_tui.screens.plan_changes import breaker_clearance
        from skulk_tui.screens.plan_inputs import one_instance

        named, selection = values.get("instance", ""), desk.situation.selection
        seat.confirm(breaker_clearance(seat, one_instance(seat.view, named, selection)))

    def pin(values: Values, *, is_wanted: bool) -> None:
        from skulk_tui.screens.pin_changes import pinning
        from skulk_tui.screens.plan_inputs import one_instance

        named, selection = values.get("instance", ""), desk.situation.selection
        item = one_instance(seat.view, named, selection)
        seat.confirm(pinning(seat, item, is_wanted=is_wanted))

    return {
        "placement.move": move,
        "placement.clear_breaker": clear_breaker,
        "placement.pin": partial(pin, is_wanted=True),
        "placement.unpin": partial(pin, is_wanted=False),
    }
