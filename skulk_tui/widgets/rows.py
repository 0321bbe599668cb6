"""The single rows around the body: status, tabs, flash, keys; and the prompt, in place of flash."""

from collections.abc import Callable, Sequence
from typing import Final, Literal, final

from textual.events import Key

from skulk_tui.line_editor import LineEditor
from skulk_tui.lines import EMPTY, Line, Span, spread, toned
from skulk_tui.widgets.line_widget import LineWidget

_PASTE_MAX_CHARS: Final = 8_000


@final
class Row(LineWidget):
    """One row; what it shows is asked for at each redraw.

    Args:
        content: Gives the row for a width.
    """

    def __init__(self, id: str, content: Callable[[int], Line]) -> None:  # ruff: ignore[builtin-argument-shadowing]  # Textual's own name
        super().__init__(id=id, classes="row")
        self._content = content

    def make_lines(self, width: int, height: int) -> Sequence[Line]:
        """Draw it."""
        del height
        return (self._content(width),)


@final
class Notice(LineWidget):
    """Rows that are there only while there is something to say.

    Args:
        content: Gives the rows.
    """

    def __init__(self, id: str, content: Callable[[], Sequence[Line]]) -> None:  # ruff: ignore[builtin-argument-shadowing]  # Textual's own name
        super().__init__(id=id, classes="notice")
        self._content = content
        self.display = False

    def show(self, *, is_shown: bool) -> None:
        """Be there, or not."""
        if self.display != is_shown:
            self.display = is_shown
        if is_shown:
            self.redraw()

    def make_lines(self, width: int, height: int) -> Sequence[Line]:
        """Draw them."""
        del width, height
        return self._content()


PromptKind = Literal["command", "filter"]
PromptOutcome = Literal["submitted", "edited", "dismissed"]
"""What a key did: Enter ends the line, Esc (or Backspace in an empty one) gives it up."""


@final
class Prompt(LineWidget):
    """The `:` and `/` line.

    It never holds the focus: keys that come in one lump after `:` are on their way to a pane
    already, and the screen hands them on in their order. What a key did is told by value, not by a
    message: that would come after the keys that were typed behind it.

    Args:
        preview: Says what Enter would do with a text, and whether that changes something.
        complete: Gives completions of the word before the cursor.
    """

    def __init__(
        self,
        *,
        preview: Callable[[str], tuple[str, bool]],
        complete: Callable[[str], Sequence[str]],
    ) -> None:
        super().__init__(id="prompt", classes="row")
        self.kind: PromptKind = "command"
        self._preview = preview
        self._complete = complete
        self._editor = LineEditor()
        self._history: dict[PromptKind, list[str]] = {"command": [], "filter": []}
        self._completions: tuple[str, ...] = ()
        self._completion_index = -1

    @property
    def text(self) -> str:
        """What stands there."""
        return self._editor.text

    def open(self, kind: PromptKind, text: str = "") -> None:
        """Begin a line."""
        self.kind = kind
        self._editor = LineEditor(text, self._history[kind])
        self._completions = ()
        self.redraw()

    def recall(self, lines: Sequence[str]) -> None:
        """Have earlier commands at hand, the oldest first, in place of those before."""
        self._history["command"] = list(lines)

    def make_lines(self, width: int, height: int) -> Sequence[Line]:
        """Draw the mark, the text around its cursor, and what Enter would do."""
        del height
        hint, is_change = ("", False)
        if self.kind == "command":
            hint, is_change = self._preview(self._editor.text)
        mark = ":" if self.kind == "command" else "/"
        tone = "warn" if is_change else "plain"
        before, under, after = self._editor.window(max(4, width - 3))
        left = (
            Span(" "),
            Span(mark, "accent"),
            Span(before, tone),
            Span(under, "inverse"),
            Span(after, tone),
        )
        return (
            spread(left, toned(hint, "warn" if is_change else "dim") if hint else EMPTY, width),
        )

    def press(self, event: Key) -> PromptOutcome | None:
        """Edit; every printable key is text here. None where the text is as it was."""
        before = self._editor.text
        if event.key == "enter":
            self._remember()
            return "submitted"
        if event.key == "escape" or (event.key == "backspace" and not before):
            return "dismissed"
        if event.key == "tab":
            self._next_completion()
        elif event.is_printable and event.character:
            self._editor.insert(event.character)
        else:
            self._editor.press(event.key)
        if event.key != "tab":
            self._completions, self._completion_index = (), -1
        return self._after_edit(before)

    def paste(self, text: str) -> PromptOutcome | None:
        """Paste; the lines of what is pasted become one."""
        before = self._editor.text
        self._editor.insert(" ".join(text[:_PASTE_MAX_CHARS].split()))
        return self._after_edit(before)

    def _after_edit(self, before: str) -> PromptOutcome | None:
        self.redraw()
        return "edited" if self._editor.text != before else None

    def _remember(self) -> None:
        text = self._editor.text
        history = self._history[self.kind]
        if text and (not history or history[-1] != text):
            history.append(text)

    def _next_completion(self) -> None:
        if self.kind != "command":
            return
        if not self._completions:
            self._completions = tuple(self._complete(self._editor.before))
        if self._completions:
            self._completion_index = (self._completion_index + 1) % len(self._completions)
            self._editor.replace_word(self._completions[self._completion_index])
