"""What moving, marking and sorting do in whichever pane holds the keyboard."""

from collections.abc import Callable, Mapping

from skulk_tui.screens.view import Handler, Values
from skulk_tui.table_model import TableModel
from skulk_tui.widgets.pane import Pane, TablePane

Moved = Callable[[Callable[[Pane], None]], None]
"""Moves in the focused pane, and has redrawn what changed."""


def row_handlers(moved: Moved) -> Mapping[str, Handler]:
    """Give the handlers, by action id."""

    def moving(move: Callable[[Pane], None]) -> Handler:
        def handle(values: Values) -> None:
            del values
            moved(move)

        return handle

    def in_table(work: Callable[[TableModel], None]) -> Handler:
        def in_pane(pane: Pane) -> None:
            if isinstance(pane, TablePane):
                work(pane.model)

        return moving(in_pane)

    return {
        "move.down": moving(lambda pane: pane.move(1)),
        "move.up": moving(lambda pane: pane.move(-1)),
        "move.page_down": moving(lambda pane: pane.move(pane.page)),
        "move.page_up": moving(lambda pane: pane.move(-pane.page)),
        "move.first": moving(lambda pane: pane.move_to_end(last=False)),
        "move.last": moving(lambda pane: pane.move_to_end(last=True)),
        "rows.mark": in_table(TableModel.mark),
        "rows.mark_range": in_table(TableModel.mark_range),
        "rows.mark_all": in_table(TableModel.mark_all),
        "rows.reverse": in_table(TableModel.reverse),
    }
