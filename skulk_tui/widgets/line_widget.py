"""A widget that is lines, and draws again only the cells that changed.

Stock widgets repaint their whole body for one cell, which over SSH is most of the traffic there is.
Here a widget makes its lines anew as often as it likes: they are compared with what is on the
screen, and only the stretch of a line from its first to its last changed cell is sent.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, get_args
from weakref import WeakKeyDictionary

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.events import Resize
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from skulk_tui.lines import EMPTY, Line, Tone, cleaned, fit, toned, width_of

_TONES: tuple[Tone, ...] = get_args(Tone)
_CURSOR: Final = ("cursor", "cursor")
_FAILED: Final = toned("this could not be drawn; the log has the story", "bad")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looks:
    """What tones look like in one widget, its theme and its focus."""

    ground: Color
    usual: Mapping[Tone, Style]
    under_cursor: Mapping[Tone, Style]


class LineWidget(Widget):
    """A widget made of lines; subclasses give them."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # ruff: ignore[builtin-argument-shadowing]  # Textual's own names
        super().__init__(id=id, classes=classes)
        self._lines: tuple[Line, ...] = ()
        self._cursor_y: int | None = None
        self._strips: dict[int, Strip] = {}
        self._looks: _Looks | None = None
        self._has_failed = False

    # ---- For subclasses ----

    def make_lines(self, width: int, height: int) -> Sequence[Line]:
        """Give the lines to show, at most `height` of them, each of at most `width` cells."""
        raise NotImplementedError

    def cursor_line(self) -> int | None:
        """Give the line that is drawn as the cursor's, after `make_lines`; None for none."""
        return None

    # ---- Drawing ----

    @property
    def lines(self) -> tuple[Line, ...]:
        """What is on the screen."""
        return self._lines

    def redraw(self) -> int:
        """Make the lines anew, and have what changed drawn; returns how many lines that is."""
        width, height = self.size
        if not self.is_attached or width <= 0 or height <= 0:
            return 0
        made = self._made(width, height)
        made += [fit(EMPTY, width)] * (height - len(made))
        cursor = self.cursor_line()
        changed: list[Region] = []
        for y, new in enumerate(made):
            old = self._lines[y] if y < len(self._lines) else None
            is_moved = (y == cursor) != (y == self._cursor_y)
            if old == new and not is_moved:
                continue
            self._strips.pop(y, None)
            start, end = (0, width) if old is None or is_moved else changed_cells(old, new, width)
            changed.append(Region(start, y, end - start, 1))
        self._lines, self._cursor_y = tuple(made), cursor
        if changed:
            self.refresh(*changed)
        return len(changed)

    def _made(self, width: int, height: int) -> list[Line]:
        """Make the lines; a bug in one widget is told in its place, and the rest is drawn."""
        try:
            content = self.make_lines(width, height)
            # Whoever makes lines cleans foreign text; here nothing gets past that was forgotten.
            made = [fit(cleaned(item), width) for item in content[:height]]
        except Exception:  # ruff: ignore[blind-except]  it would end the program, and come again
            if not self._has_failed:
                _log.exception("drawing %s failed", type(self).__name__)
            self._has_failed = True
            return [fit(_FAILED, width)]
        self._has_failed = False
        return made

    def render_lines(self, crop: Region) -> list[Strip]:
        """Give finished lines; the original looks for borders and the like around each of them.

        It does so for every line of every widget that is in the way of one changed cell, which is
        half of what a frame costs. Here there are none.
        """
        strips = [self.render_line(y) for y in crop.line_range]
        if crop.x or any(strip.cell_length != crop.width for strip in strips):
            # A part of it is shown, or it is about to be laid out for another size.
            return [strip.crop_extend(crop.x, crop.right, self.rich_style) for strip in strips]
        return strips

    def render_line(self, y: int) -> Strip:
        """Give one line as it goes to the terminal."""
        if not self._lines:
            self.redraw()
        strip = self._strips.get(y)
        if strip is not None:
            return strip
        # Not laid out yet, or taken away already: there may be no styles to draw with.
        if y >= len(self._lines) or not self.is_attached:
            blank = Strip.blank(self.size.width, self.rich_style)
            return self._filtered(blank, self.background_colors[1])
        strip = self._strips[y] = self._draw(y)
        return strip

    def _draw(self, y: int) -> Strip:
        looks, content = self._find_looks(), self._lines[y]
        styles = looks.under_cursor if y == self._cursor_y else looks.usual
        return self._filtered(Strip(_segments(content, styles), width_of(content)), looks.ground)

    def _filtered(self, strip: Strip, ground: Color) -> Strip:
        """Take away the colours that the terminal has not, or shall not show."""
        for line_filter in self.get_line_filters():
            strip = strip.apply_filter(line_filter, ground)
        return strip

    def _find_looks(self) -> "_Looks":
        if self._looks is None:
            own, tones = self.rich_style, _tone_styles(self)
            usual: Mapping[Tone, Style] = {tone: own + tones[tone] for tone in _TONES}
            # Over the tones: their colours cannot be read on the cursor's ground.
            under: Mapping[Tone, Style] = {
                tone: style + tones["cursor"] for tone, style in usual.items()
            }
            ground = self.background_colors[1]
            self._looks = _Looks(ground=ground, usual=usual, under_cursor=under)
        return self._looks

    @property
    def tone_rules(self) -> str:
        """Names the style sheet's rules for tones that are this widget's, beside those of all."""
        return ""

    def notify_style_update(self) -> None:
        """Draw anew where theme, focus or a class above has changed what lines look like."""
        super().notify_style_update()
        before, self._looks = self._looks, None
        if before is not None and self.is_attached and self._find_looks() == before:
            return
        self._strips.clear()
        if before is not None:
            self.refresh()

    def on_resize(self, event: Resize) -> None:
        """Lay the lines out for another size."""
        del event
        self._strips.clear()
        self._lines = ()
        self.redraw()
        self.refresh()


@dataclass(slots=True)
class _KnownTones:
    """What a style sheet says of tones, as long as its rules are these."""

    rules: object
    by_rules_of: dict[str, Mapping[str, Style]]
    """By `LineWidget.tone_rules`."""


_known_tones: WeakKeyDictionary[Stylesheet, _KnownTones] = WeakKeyDictionary()


def _tone_styles(widget: LineWidget) -> Mapping[str, Style]:
    """Work out what the style sheet says of tones and of the cursor, once a theme.

    Textual's own way (`COMPONENT_CLASSES`) does so for each widget whenever a class or the focus
    changes somewhere above it: a third of the way to the first paint, and of each change of view.
    """
    sheet = widget.app.stylesheet  # pyright: ignore[reportUnknownMemberType]  its `App` names no result type
    known = _known_tones.get(sheet)
    if known is None or known.rules is not sheet.rules_map:
        known = _known_tones[sheet] = _KnownTones(sheet.rules_map, {})
    own = widget.tone_rules
    if own not in known.by_rules_of:
        named = (*((tone, f"tone--{tone}") for tone in _TONES), _CURSOR)
        known.by_rules_of[own] = {name: _style_in(widget, part, sheet) for name, part in named}
    return known.by_rules_of[own]


def _style_in(widget: LineWidget, class_name: str, sheet: Stylesheet) -> Style:
    """Give the style of a part of a widget that is no widget of its own."""
    part = DOMNode(classes=class_name)
    part._attach(widget)  # pyright: ignore[reportPrivateUsage]  # ruff: ignore[private-member-access]  as Textual does for component classes
    sheet.apply(part)  # pyright: ignore[reportUnknownMemberType]  its cache names no types
    return part.styles.partial_rich_style


def _segments(content: Line, styles: Mapping[Tone, Style]) -> Sequence[Segment]:
    """Give a line's text with its styles; neighbours of one tone become one, which saves bytes."""
    segments: list[Segment] = []
    text, tone = "", content[0].tone if content else "plain"
    for part in content:
        if part.tone != tone:
            segments.append(Segment(text, styles[tone]))
            text, tone = "", part.tone
        text += part.text
    segments.append(Segment(text, styles[tone]))
    return segments


def changed_cells(old: Line, new: Line, width: int) -> tuple[int, int]:
    """Give the first and one after the last cell in which two lines differ.

    Whole spans are compared, so that a wide character is never cut in two.
    """
    start = 0
    for before, after in zip(old, new, strict=False):
        if before != after:
            break
        start += cell_len(after.text)
    end = width
    for before, after in zip(reversed(old), reversed(new), strict=False):
        if before != after:
            break
        end -= cell_len(after.text)
    return (start, end) if start < end else (0, width)
