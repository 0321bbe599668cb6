"""One command: everything that events and logs of all nodes tell of it, in order."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, final

from skulk_tui.screens.diag_rows import timeline_line
from skulk_tui.screens.view import View
from skulk_tui.seat import Seat
from skulk_tui.table_model import Ref
from skulk_tui.view_state import Changes
from skulk_tui.widgets.log_pane import LogPane
from skulk_tui.widgets.pane import Pane


@final
class CommandDetail(View):
    """A command's timeline."""

    view_id: ClassVar[str] = "command"
    title: ClassVar[str] = "Command"

    def __init__(self, seat: Seat, ref: Ref | None = None) -> None:
        super().__init__(seat, ref)
        self.timeline = LogPane(
            "timeline",
            f"Command {ref.shown if ref else ''}",
            form=partial(timeline_line, utc_offset_s=seat.utc_offset_s),
            dash=seat.glyphs.rule,
        )
        self._subscription: int | None = None

    def panes(self) -> Sequence[Pane]:
        """Give the one pane."""
        return (self.timeline,)

    def on_shown(self) -> None:
        """Follow the command."""
        if self._subscription is None and self.ref is not None:
            link = self.seat.link
            self._subscription = link.subscribe("command", command_id=self.ref.id)

    def on_hidden(self) -> None:
        """Follow it no more."""
        if self._subscription is not None:
            self.seat.link.unsubscribe(self._subscription)
            self._subscription = None

    def commit(self, changes: Changes | None) -> None:
        """Show what has come."""
        del changes
        if self._subscription is not None:
            self.timeline.show(
                self.seat.view.lines(self._subscription),
                refusal=self.seat.link.error_of(self._subscription),
            )
