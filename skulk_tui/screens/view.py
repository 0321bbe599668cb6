"""A view: what fills the body between the rows on top and below. Five roots, and details."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.containers import Container
from textual.events import Resize
from textual.widget import Widget

from skulk_tui.registry import Situation
from skulk_tui.seat import Seat
from skulk_tui.table_model import Ref
from skulk_tui.view_state import Changes
from skulk_tui.widgets.pane import Pane

WIDE: Final = 100
"""Columns from which panes stand side by side."""
LOW: Final = 18
"""Rows of the body (20 of 24, 18 below a notice) below which only what is essential is shown."""
Values = Mapping[str, str]
"""Arguments of a `:` command by name; empty for a key."""
Handler = Callable[[Values], Awaitable[None] | None]


class View(Container):
    """One view.

    Args:
        seat: The run.
        ref: What a detail is about; None for a root.
    """

    view_id: ClassVar[str] = ""
    """`cluster`, `models`, …; a detail's kind: `node`, `instance`, …"""
    title: ClassVar[str] = ""

    def __init__(self, seat: Seat, ref: Ref | None = None) -> None:
        super().__init__(classes="view")
        self.seat = seat
        self.ref = ref
        self.zoomed: Pane | None = None
        self.is_dense = False
        """Strips and details are left out, whatever room there is."""
        self._is_low = False
        self._last_focused: Pane | None = None

    # ---- For subclasses ----

    def panes(self) -> Sequence[Pane]:
        """Give the panes in the order that Tab goes through them."""
        raise NotImplementedError

    def handlers(self) -> Mapping[str, Handler]:
        """Give what this view's own actions do, by action id."""
        return {}

    def commit(self, changes: Changes | None) -> None:
        """Take what changed from the seat's view, and redraw what shows it.

        `changes` is None when everything may have: the view has just been shown, or resynced.
        """
        raise NotImplementedError

    def tick(self) -> None:
        """A second has passed: redraw what shows ages."""

    def on_shown(self) -> None:
        """The view has come to the front: subscribe to what only it needs."""

    def on_hidden(self) -> None:
        """It has gone to the back."""

    def on_moved(self) -> None:
        """The cursor of a pane has moved: redraw what follows it."""

    def on_values(self, values: Values) -> None:
        """Take the arguments of the `:` command that led here."""

    def to_next_alert(self) -> bool:
        """Put the cursor on the next alert; False where there is none here."""
        return False

    @property
    def selection(self) -> tuple[Ref, ...]:
        """What actions are about: the focused pane's selection, or the detail's own object."""
        pane = self.focused_pane
        found = pane.selection if pane is not None else ()
        return found or (() if self.ref is None else (self.ref,))

    # ---- Shared ----

    @property
    def focused_pane(self) -> Pane | None:
        """The pane that holds the keyboard, or will again once a prompt or dialog is closed."""
        focused: Widget | None = self.screen.focused if self.is_attached else None
        panes = self.panes()
        for pane in panes:
            if pane is focused:
                self._last_focused = pane
        if self._last_focused in panes:
            return self._last_focused
        return panes[0] if panes else None

    def situation(self) -> Situation:
        """Give what conditions are asked about."""
        seat, pane = self.seat, self.focused_pane
        return Situation(
            view=self.view_id,
            pane=pane.pane_name if pane is not None else "",
            selection=self.selection,
            scope=seat.scope,
            is_readonly=seat.is_readonly,
            is_linked=seat.link.view.may_change,
            is_lost=seat.link.view.word in {"lost", "connecting"},
            has_undo=seat.has_undo,
            is_streaming=seat.n_streaming > 0,
        )

    def focus_first(self) -> None:
        """Give the keyboard to the first pane that is shown."""
        shown = [pane for pane in self.panes() if pane.display]
        if shown:
            shown[0].focus()

    def focus_next_pane(self, by: int) -> None:
        """Give the keyboard to the next pane that is shown, or the one before."""
        shown = [pane for pane in self.panes() if pane.display]
        if not shown:
            return
        here = self.focused_pane
        index = shown.index(here) if here in shown else 0
        shown[(index + by) % len(shown)].focus()

    def zoom(self) -> None:
        """Give the whole body to the focused pane, or take it back."""
        self.zoomed = None if self.zoomed is not None else self.focused_pane
        for pane in self.panes():
            pane.set_class(self.zoomed is not None and pane is not self.zoomed, "hidden")
            pane.set_class(pane is self.zoomed, "zoomed")

    def turn_density(self) -> None:
        """Leave strips and details out, or show them again."""
        self.is_dense = not self.is_dense
        self.set_class(self._is_low or self.is_dense, "low")

    def redraw(self) -> None:
        """Redraw all panes."""
        for pane in self.panes():
            pane.redraw()

    def on_resize(self, event: Resize) -> None:
        """Mark the view `wide` (side panes) or `low` (strips and details give way to tables)."""
        del event
        width, height = self.size  # the event's may be that of a layout before this one
        self.set_class(width >= WIDE, "wide")
        self._is_low = height < LOW and width < WIDE
        self.set_class(self._is_low or self.is_dense, "low")

    def compose(self) -> ComposeResult:
        """Lay the panes out one below the other; views with more to say override this."""
        yield from self.panes()
