"""What `:move` does, from any view: what that needs is loaded when it is first done."""

from collections.abc import Mapping

from skulk_tui.screens.asking import Desk
from skulk_tui.screens.view import Handler, Values
from skulk_tui.seat import Seat


def move_handlers(seat: Seat, desk: Desk) -> Mapping[str, Handler]:
    """Give what it does, by action id."""

    async def move(values: Values) -> None:
        from skulk_tui.screens.move_changes import move_asked

        seat.confirm(await move_asked(seat, values, desk.situation.selection))

    return {"placement.move": move}
