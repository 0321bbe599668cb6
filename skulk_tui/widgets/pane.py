"""A pane: one titled rule, and lines below it. What holds the keyboard is marked by its rule."""

from collections.abc import Sequence
from typing import Self

from textual.events import Blur, Click, Focus, MouseScrollDown, MouseScrollUp

from skulk_tui.lines import EMPTY, Line, rule, toned
from skulk_tui.table_model import Ref, TableModel
from skulk_tui.widgets.line_widget import LineWidget

_WHEEL_ROWS = 3


class Pane(LineWidget, can_focus=True):
    """A titled part of a view.

    Args:
        name: By which key bindings and conditions know it.
        title: On its rule.
        dash: What rules are drawn with.
    """

    def __init__(self, name: str, title: str, *, dash: str = "-") -> None:
        super().__init__(id=f"pane-{name}")
        self.pane_name = name
        self.title = title
        self.dash = dash
        self.staleness = ""
        """How old what it shows is, where that is too old; stands first on the rule."""

    def body(self, width: int, height: int) -> Sequence[Line]:
        """Give the lines below the rule."""
        raise NotImplementedError

    @property
    def state(self) -> str:
        """What the rule says to the right: order, filter, age, how to get at more."""
        return ""

    @property
    def selection(self) -> tuple[Ref, ...]:
        """What an action would be about."""
        return ()

    def unfilter(self) -> bool:
        """Show again what was left out; False where nothing was."""
        return False

    def move(self, by: int) -> None:
        """Move the cursor, or scroll, by so many lines."""

    def move_to_end(self, *, last: bool) -> None:
        """Move to the first or last line."""

    @property
    def tone_rules(self) -> str:
        """What is old is dimmed, in panes alone."""
        return "stale" if self.screen.has_class("stale") else ""

    @property
    def page(self) -> int:
        """How many lines a page has."""
        return max(1, self.size.height - 2)

    def focus(self, scroll_visible: bool = True) -> Self:  # ruff: ignore[boolean-type-hint-positional-argument, boolean-default-value-positional-argument]  Textual's signature
        """Take the keyboard at once: Textual's own waits behind keys that are meant for this."""
        self.screen.set_focus(self, scroll_visible)
        return self

    def make_lines(self, width: int, height: int) -> Sequence[Line]:
        """Draw rule and body."""
        body = self.body(width, max(0, height - 1))
        state = "   ".join(part for part in (self.staleness, self.state) if part)
        head = rule(self.title, state, width, dash=self.dash, is_focused=self.has_focus)
        return (head, *body)

    def on_focus(self, event: Focus) -> None:
        """Show that the keyboard is here."""
        del event
        self.redraw()

    def on_blur(self, event: Blur) -> None:
        """Show that it is not."""
        del event
        self.redraw()

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """Scroll as the wheel turns."""
        event.stop()
        self.move(_WHEEL_ROWS)
        self.redraw()

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """Scroll as the wheel turns."""
        event.stop()
        self.move(-_WHEEL_ROWS)
        self.redraw()


class TextPane(Pane):
    """A pane of lines that scroll; the lines are set, not made."""

    def __init__(self, name: str, title: str, *, dash: str = "-") -> None:
        super().__init__(name, title, dash=dash)
        self._content: tuple[Line, ...] = ()
        self._top = 0
        self._state = ""

    @property
    def state(self) -> str:
        """What was set, and where in the lines this is."""
        hidden = len(self._content) - self._top - max(0, self.size.height - 1)
        more = f"{hidden} more below" if hidden > 0 else ""
        return "   ".join(part for part in (self._state, more) if part)

    def show(self, content: Sequence[Line], *, title: str | None = None, state: str = "") -> None:
        """Replace the lines; where in them the operator is stays."""
        self._content = tuple(content)
        self._state = state
        if title is not None:
            self.title = title
        self._keep_within()
        self.redraw()

    def move(self, by: int) -> None:
        """Scroll."""
        self._top += by
        self._keep_within()

    def move_to_end(self, *, last: bool) -> None:
        """Scroll to an end."""
        self._top = len(self._content) if last else 0
        self._keep_within()

    def body(self, width: int, height: int) -> Sequence[Line]:
        """Give the lines that fit."""
        del width
        self._keep_within()
        return self._content[self._top : self._top + height]

    def _keep_within(self) -> None:
        lowest = max(0, len(self._content) - max(1, self.size.height - 1))
        self._top = max(0, min(self._top, lowest))


class TablePane(Pane):
    """A pane with a table.

    Args:
        name: As in `Pane`.
        title: Before the count of rows.
        model: The rows, and where the operator is in them.
        empty: What stands there while there is no row: why, and what to do.
    """

    def __init__(
        self, name: str, title: str, model: TableModel, *, empty: Sequence[str], dash: str = "-"
    ) -> None:
        super().__init__(name, title, dash=dash)
        self.model = model
        self.noun = title
        self.empty = tuple(empty)
        self.note = ""
        """Further words on the rule."""
        self.foot: Line = EMPTY
        """Stands below the rows, as long as there is room."""
        self._drawn_cursor: int | None = None

    @property
    def state(self) -> str:
        """Order, filter, marks and the note."""
        return "   ".join(part for part in (self.note, self.model.state) if part)

    @property
    def selection(self) -> tuple[Ref, ...]:
        """The marked objects, or the one under the cursor."""
        return self.model.selection

    def unfilter(self) -> bool:
        """Take the marks away, or else the filter; False where there was neither."""
        if self.model.clear_marks():
            return True
        if not self.model.filter:
            return False
        self.model.set_filter("")
        return True

    def move(self, by: int) -> None:
        """Move the cursor."""
        self.model.move(by)

    def move_to_end(self, *, last: bool) -> None:
        """Move the cursor to an end."""
        self.model.move_to(len(self.model.rows) - 1 if last else 0)

    def cursor_line(self) -> int | None:
        """The cursor shows in the focused pane alone; `>` shows where it is in the others."""
        return self._drawn_cursor if self.has_focus else None

    def body(self, width: int, height: int) -> Sequence[Line]:
        """Draw header and rows, or the empty state."""
        self.title = f"{self.noun} {self.model.n_all}" if self.model.n_all else self.noun
        self._drawn_cursor = None
        if not self.model.n_all:
            return [toned(f"   {text}", "dim") for text in self.empty]
        if not self.model.rows:
            text = f"   nothing matches {self.model.filter.text!r}; esc clears the filter"
            return [toned(text, "dim")]
        return self.rows_body(width, height)

    def rows_body(self, width: int, height: int) -> Sequence[Line]:
        """Draw header and rows; there is at least one."""
        n_foot = 1 if self.foot and height > len(self.model.rows) + 1 else 0
        shown = self.model.shown(width, height - 1 - n_foot)
        if shown.cursor is not None:
            self._drawn_cursor = shown.cursor + 2
        lines = [shown.header, *(content for _, content in shown.rows)]
        if n_foot:
            lines += [EMPTY] * (height - 1 - len(lines)) + [self.foot]
        return lines

    def index_at(self, x: int, y: int) -> int | None:
        """Give the row that is drawn at a cell of the pane; None where there is none."""
        del x
        top = self.model.shown(self.size.width, max(0, self.size.height - 2)).top
        return top + y - 2 if y >= 2 else None  # ruff: ignore[magic-value-comparison]  # rule and header

    def on_click(self, event: Click) -> None:
        """Put the cursor where the operator clicks."""
        # Textual calls what each class has by this name: subclasses say where, not what.
        index = self.index_at(event.x, event.y)
        if index is not None and index < len(self.model.rows):
            self.model.move_to(index)
            self.redraw()
