"""A text field of several lines: it owns all keys that write, and leaves all others alone."""

from collections.abc import Callable, Sequence
from typing import Final, final

from textual.events import Key, Paste
from textual.message import Message

from skulk_tui.chat_draft import Draft
from skulk_tui.lines import Line, Span
from skulk_tui.widgets.pane import Pane

MAX_ROWS: Final = 6
_INDENT: Final = 3


@final
class TextField(Pane):
    """The field.

    Args:
        name: As in `Pane`.
        title: On its rule.
        command: Does what a key means that is about the text; False for any other key. It is done
            here, and not by the screen: what was typed behind the key has to come after it.
    """

    class Edited(Message):
        """The text is another one."""

    class Overflowed(Message):
        """Some of what was pasted had no room."""

        def __init__(self, n_lost: int) -> None:
            super().__init__()
            self.n_lost = n_lost

    def __init__(
        self, name: str, title: str, *, command: Callable[[str], bool], dash: str = "-"
    ) -> None:
        super().__init__(name, title, dash=dash)
        self._command = command
        self.draft = Draft()
        self.note = ""

    @property
    def state(self) -> str:
        """The note that was set."""
        return self.note

    def rows_wanted(self, width: int) -> int:
        """How high the field should be, its rule counted."""
        rows, _ = self.draft.rows(max(2, width - _INDENT - 1))
        return 1 + min(MAX_ROWS, len(rows))

    def body(self, width: int, height: int) -> Sequence[Line]:
        """Draw the rows around the cursor."""
        rows, cursor = self.draft.rows(max(2, width - _INDENT - 1))
        first = max(0, min(cursor - height + 1, len(rows) - height))
        if not self.has_focus:
            rows = [tuple(_without_cursor(part) for part in row) for row in rows]
        return [
            (Span(" > " if index == 0 else "   ", "accent"), *row)
            for index, row in enumerate(rows[first : first + height], start=first)
        ]

    def on_key(self, event: Key) -> None:
        """Write; what is no key of writing goes on to the screen, as all do once it was left."""
        if self.screen.focused is not self:
            return
        if event.is_printable and event.character:
            self.draft.type(event.character)
            self.after_edit()
        elif self.draft.press(event.key, max(2, self.size.width - _INDENT - 1)):
            self.after_edit()
        elif not self._command(event.key):
            return
        event.stop()
        event.prevent_default()

    def on_paste(self, event: Paste) -> None:
        """Take what was pasted; it is never sent by itself."""
        event.stop()
        n_lost = self.draft.paste(event.text)
        if n_lost:
            self.post_message(self.Overflowed(n_lost))
        self.after_edit()

    def newline(self) -> None:
        """Begin a further line."""
        self.draft.type("\n")
        self.after_edit()

    def after_edit(self) -> None:
        """Draw the field anew, and tell that it is another text."""
        self.post_message(self.Edited())
        self.redraw()


def _without_cursor(part: Span) -> Span:
    return Span(part.text) if part.tone == "inverse" else part
