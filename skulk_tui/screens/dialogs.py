"""Dialogs: a change before it is made, a list to choose from, a text to read.

The focus begins on the way out: Enter and Esc leave everything as it is, and each way to go on has
a letter of its own.
"""

from collections.abc import Sequence
from typing import ClassVar, Final, final

from textual.app import ComposeResult
from textual.events import Key, Paste
from textual.screen import ModalScreen

from skulk_tui.changes import Change, Option
from skulk_tui.glyphs import GlyphSet
from skulk_tui.line_editor import LineEditor
from skulk_tui.lines import EMPTY, Line, Span, cut, fit, line, span, toned, wrapped
from skulk_tui.widgets.line_widget import LineWidget

_INNER: Final = 72
"""Cells within the frame, as the theme has it."""
_OUTER_RATIO: Final = 0.96
"""Of the screen, at most, with the frame; as the theme has it."""
_FRAME: Final = 4
_PROBED: Final = 8
_LOOK_EVERY_S: Final = 0.5
"""Whether what a dialog shows still holds; and before each key, whatever the time."""

_STEPS: Final = {"up": -1, "down": 1, "pageup": -8, "pagedown": 8}
"""Lines that keys move a text which has no room."""

LEAVE: Final = "ctrl+q"
"""A dialog's answer that means the whole program."""


@final
class Box(LineWidget, can_focus=True):
    """A framed text in the middle of the screen.

    Args:
        title: In the frame's upper edge.
        content: The lines within.
        glyphs: What the frame is drawn with.
    """

    def __init__(self, title: str, content: Sequence[Line], glyphs: GlyphSet) -> None:
        super().__init__(id="box")
        self._title = title
        self._glyphs = glyphs
        self._content = tuple(content)
        self._cursor: int | None = None

    def show(self, content: Sequence[Line], cursor: int | None = None) -> None:
        """Replace the lines; `cursor` is the index of the one that is chosen."""
        self._content = tuple(content)
        self._cursor = cursor
        self.styles.height = len(self._content) + 2
        self.redraw()

    def cursor_line(self) -> int | None:
        """Highlight the chosen line."""
        return None if self._cursor is None else self._cursor + 1

    def make_lines(self, width: int, height: int) -> Sequence[Line]:
        """Draw the frame and what is within."""
        g, inner = self._glyphs, max(0, width - 4)
        head = cut(line(Span(f"{g.rule} "), span(self._title, "title"), " "), max(0, width - 2))
        filled = fit(head, width - 2)
        edge = g.rule * max(0, width - 2)
        used = sum(len(part.text) for part in head)
        top = line(g.corner_top_left, *head, Span(edge[used:]), g.corner_top_right)
        del filled
        wall = Span(g.wall)
        rows = [
            (wall, Span(" "), *fit(content, inner), Span(" "), wall)
            for content in self._content[: max(0, height - 2)]
        ]
        return (top, *rows, line(g.corner_bottom_left, edge, g.corner_bottom_right))


class Dialog(ModalScreen[str | None]):
    """A box over everything; dismissed with the chosen key, or None."""

    BINDINGS: ClassVar = []

    def __init__(self, title: str, content: Sequence[Line], glyphs: GlyphSet) -> None:
        super().__init__(classes="dialog")
        self._content = tuple(content)
        self.box = Box(title, content, glyphs)
        self.box.styles.height = len(self._content) + 2

    def compose(self) -> ComposeResult:
        """Show the box."""
        yield self.box

    def on_mount(self) -> None:
        """Give it the keyboard."""
        self.box.focus()

    @property
    def inner_width(self) -> int:
        """How many cells a line may have here."""
        return max(8, min(_INNER, int(self.size.width * _OUTER_RATIO) - _FRAME))

    def is_exit(self, event: Key) -> bool:
        """Take a key; True where it was Ctrl-Q, which leaves from everywhere."""
        event.stop()
        event.prevent_default()
        if event.key != "ctrl+q":
            return False
        self.dismiss(LEAVE)
        return True


@final
class ConfirmDialog(Dialog):
    """Shows a change with its effect, numbers and `skulk` line; nothing is sent by itself."""

    def __init__(self, change: Change, glyphs: GlyphSet) -> None:
        self._change = change
        self._typed = LineEditor()
        self._words = [word for word in (change.typed_word, change.cluster_word) if word]
        """To be typed yet."""
        self._is_stale = False
        self._top = 0
        """The first line of the effect that is shown, where not all have room."""
        super().__init__(change.title, change.effect, glyphs)

    def _lines(self) -> Sequence[Line]:
        """Give what has room: of the effect a part, where it has to be; of the ways on all."""
        effect, below = self._broken(self._change.effect), self._broken(self._below())
        room = max(2, int(self.size.height * _OUTER_RATIO) - 2 - len(below))
        if len(effect) > room:
            self._top = max(0, min(self._top, len(effect) - room + 1))
            n_left = len(effect) - room + 1 - self._top
            more = f"{n_left} more lines: down, pgdn" if n_left else "that is all: up, pgup"
            effect = [*effect[self._top : self._top + room - 1], toned(more, "dim")]
        return [*effect, *below]

    def _broken(self, lines: Sequence[Line]) -> list[Line]:
        return [piece for item in lines for piece in wrapped(item, self.inner_width)]

    def _below(self) -> Sequence[Line]:
        """Give the command, what is to be typed, and the ways on."""
        lines: list[Line] = [EMPTY, (span(self._change.cli, "accent"),), EMPTY]
        if self._is_stale:
            lines += [
                line(Span("This has changed meanwhile: nothing is sent. Review it again.", "bad")),
                EMPTY,
            ]
        elif self._words:
            before, under, after = self._typed.window(40)
            lines += [
                line(self._why_typed(), " Type ", span(self._words[0], "bad"), " to go on:"),
                line(Span("> ", "accent"), before, Span(under, "inverse"), after),
                EMPTY,
            ]
        lines.append(self._ways())
        return lines

    def on_resize(self) -> None:
        """Break the lines where this screen needs it."""
        self.box.show(self._lines())

    def _why_typed(self) -> str:
        is_last = len(self._words) == 1
        return (
            "This cluster is protected."
            if is_last and self._change.cluster_word
            else ("This cannot be undone.")
        )

    def _ways(self) -> Line:
        parts: list[Span] = [Span("[ Cancel ]", "strong")]
        if self._is_stale:
            return tuple(parts)
        if self._words:
            goes = self._change.options[0].title if self._is_last_step else "go on"
            return (*parts, Span("      enter ", "accent"), Span(goes))
        for option in self._change.options:
            parts += [Span("      "), Span(option.key, "accent"), Span(f" {option.title}")]
        return tuple(parts)

    @property
    def _is_last_step(self) -> bool:
        return len(self._words) == 1 and len(self._change.options) == 1

    def on_mount(self) -> None:
        """Look now and then whether what is shown still holds."""
        super().on_mount()
        self.set_interval(_LOOK_EVERY_S, self._look)

    def _look(self) -> bool:
        """Say whether the change is still what is shown; where not, it is offered no more."""
        if not self._is_stale and not self._change.is_still_so():
            self._is_stale = True
            self.box.show(self._lines())
        return not self._is_stale

    def on_key(self, event: Key) -> None:
        """Choose by letter; Enter and Esc cancel, but Enter goes on once the word is typed."""
        if self.is_exit(event):
            return
        if event.key in {"escape", "ctrl+c"} or (self._is_stale and event.key == "enter"):
            self.dismiss(None)
        elif event.key in _STEPS:
            self._top += _STEPS[event.key]
            self.box.show(self._lines())
        elif not self._look():
            return
        elif self._words:
            self._type(event)
        elif event.key == "enter":
            self.dismiss(None)
        else:
            for option in self._change.options:
                if event.key == option.key:
                    self.dismiss(option.key)
                    return

    def on_paste(self, event: Paste) -> None:
        """A typed word is typed: pasting it would defeat what it is for."""
        event.stop()

    def _type(self, event: Key) -> None:
        if event.key == "enter":
            if self._typed.text.strip() == self._words[0]:
                self._go_on()
            return
        if event.is_printable and event.character:
            self._typed.insert(event.character)
        else:
            self._typed.press(event.key)
        self.box.show(self._lines())

    def _go_on(self) -> None:
        if self._is_last_step:
            self.dismiss(self._change.options[0].key)
            return
        self._words.pop(0)
        self._typed = LineEditor()
        self.box.show(self._lines())


@final
class ChoiceDialog(Dialog):
    """A list with a letter for each entry; arrows and Enter choose too."""

    def __init__(self, title: str, options: Sequence[Option], glyphs: GlyphSet) -> None:
        self._options = tuple(options)
        self._index = 0
        super().__init__(title, self._lines(), glyphs)

    def _lines(self) -> Sequence[Line]:
        if not self._options:
            return [toned("nothing can be done here now", "dim")]
        return [
            line(
                Span("> " if index == self._index else "  ", "accent"),
                Span(f"{option.key:<6}", "accent"),
                span(option.title, "bad" if option.is_default_danger else "plain"),
            )
            for index, option in enumerate(self._options)
        ]

    def on_key(self, event: Key) -> None:
        """Choose."""
        if self.is_exit(event):
            return
        if event.key in {"escape", "backspace", "ctrl+c", "q"} or not self._options:
            self.dismiss(None)
        elif event.key == "enter":
            self.dismiss(self._options[self._index].key)
        elif event.key in {"up", "k", "down", "j"} and not self._has_letter(event.key):
            step = -1 if event.key in {"up", "k"} else 1
            self._index = (self._index + step) % len(self._options)
            self.box.show(self._lines(), self._index)
        elif self._has_letter(event.key):
            self.dismiss(event.key)

    def _has_letter(self, key: str) -> bool:
        return any(option.key == key for option in self._options)


@final
class ProbeDialog(Dialog):
    """Shows each key as it arrives here, through terminal and multiplexer; two Esc leave."""

    def __init__(self, glyphs: GlyphSet) -> None:
        self._seen: list[str] = []
        super().__init__("Keys as they arrive", self._lines(), glyphs)

    def _lines(self) -> Sequence[Line]:
        hint = line(Span("esc esc", "accent"), " leaves; [tui.keymap] in config.toml takes names.")
        seen: list[Line] = [line(span(key, "strong")) for key in self._seen[-_PROBED:]]
        return [*(seen or [toned("press a key", "dim")]), EMPTY, hint]

    def on_key(self, event: Key) -> None:
        """Show it."""
        if self.is_exit(event):
            return
        if event.key == "escape" and self._seen[-1:] == ["escape"]:
            self.dismiss(None)
            return
        self._seen.append(event.key)
        self.box.show(self._lines())


@final
class TextDialog(Dialog):
    """A text to read: scrolls, and any way out leaves it. Enter gives the chosen line's key."""

    def __init__(
        self,
        title: str,
        content: Sequence[Line],
        glyphs: GlyphSet,
        *,
        keys: Sequence[str | None] = (),
    ) -> None:
        self._source = self._all = tuple(content)
        self._keys = tuple(keys)
        self._index = next((i for i, key in enumerate(self._keys) if key), 0)
        super().__init__(title, self._all, glyphs)

    def on_resize(self) -> None:
        """Take as much room as there is; a text is broken into lines that fit."""
        if not self._keys:
            width = self.inner_width
            self._all = tuple(piece for item in self._source for piece in wrapped(item, width))
        self._show()

    def on_key(self, event: Key) -> None:
        """Scroll, choose, leave."""
        if self.is_exit(event):
            return
        page = max(1, self._height - 1)
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page}
        if event.key in steps:
            self._move(steps[event.key])
        elif event.key in {"home", "g"}:
            self._move(-len(self._all))
        elif event.key in {"end", "G"}:
            self._move(len(self._all))
        elif event.key == "enter" and self._keys and self._keys[self._index]:
            self.dismiss(self._keys[self._index])
        else:
            self.dismiss(None)

    @property
    def _height(self) -> int:
        return max(1, min(len(self._all), self.size.height - 4))

    def _move(self, by: int) -> None:
        last = len(self._all) - 1
        if not self._keys:
            last = max(0, len(self._all) - self._height)
        self._index = max(0, min(self._index + by, last))
        self._show()

    def _show(self) -> None:
        height = self._height
        top = self._index
        if self._keys:
            top = max(0, min(self._index - height // 2, len(self._all) - height))
        shown = self._all[top : top + height]
        self.box.show(shown, self._index - top if self._keys else None)
