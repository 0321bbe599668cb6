"""Text as screens are made of it: lines of spans, each span with a tone; no terminal, no theme.

A tone says what a text means. What it looks like is the theme's business, and a theme without
colours shows the same text: state is always a word too.
"""

import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from rich.cells import cell_len

from skulk_tui.glyphs import cut_cells, plain

Tone = Literal[
    "plain",
    "dim",  # of less use, or old
    "strong",
    "emphasis",
    "good",
    "warn",
    "bad",
    "accent",  # what a key or a command is
    "title",
    "inverse",  # protected, and the prompt of what changes something
]
Align = Literal["left", "right"]


class Span(NamedTuple):
    """A piece of a line. Invariant: no control character in `text`.

    A frame makes and compares thousands of them: comparing costs a named tuple a fifth of what it
    costs a frozen dataclass.
    """

    text: str
    tone: Tone = "plain"


Line = tuple[Span, ...]
EMPTY: Final[Line] = ()


def span(text: str, tone: Tone = "plain") -> Span:
    """Make a span of foreign text: what a terminal would act on goes."""
    return Span(plain(text), tone)


def line(*parts: str | Span) -> Line:
    """Make a line of our own words and of spans."""
    return tuple(part if isinstance(part, Span) else Span(part) for part in parts if part)


def toned(text: str, tone: Tone) -> Line:
    """Make a line of one tone."""
    return (Span(text, tone),) if text else EMPTY


def cleaned(content: Line) -> Line:
    """Give a line in which nothing is left that a terminal would act on."""
    for text, _ in content:
        if not (text.isascii() and text.isprintable()):
            return tuple(Span(plain(part.text), part.tone) for part in content)
    return content


def width_of(content: Line) -> int:
    """Give a line's width in terminal cells."""
    width = 0
    for text, _ in content:
        width += len(text) if text.isascii() else cell_len(text)
    return width


def text_of(content: Line) -> str:
    """Give a line's text."""
    return "".join(part.text for part in content)


def cut(content: Line, width: int) -> Line:
    """Give at most `width` cells of a line; what is cut ends in `>`."""
    if width <= 0:
        return EMPTY
    if width_of(content) <= width:
        return content
    kept: list[Span] = []
    left = width
    for index, part in enumerate(content):
        is_last = index == len(content) - 1
        n_cells = cell_len(part.text)
        if n_cells < left or (n_cells == left and is_last):
            kept.append(part)
            left -= n_cells
            continue
        # Even where this part fits to the cell, more follows, and the last cell has to say so.
        shown = part.text if n_cells > left else part.text + " "
        kept.append(Span(cut_cells(shown, left), part.tone))
        break
    return tuple(kept)


def fit(content: Line, width: int, *, align: Align = "left") -> Line:
    """Give a line of exactly `width` cells, cut or filled up with blanks."""
    missing = width - width_of(content)
    if missing < 0:
        content = cut(content, width)
        missing = max(0, width) - width_of(content)
    if not missing:
        return content
    blank = Span(" " * missing)
    return (blank, *content) if align == "right" else (*content, blank)


def spread(left: Line, right: Line, width: int, *, fill: str = " ", tone: Tone = "plain") -> Line:
    """Put one line to the left and another to the right; the left one gives way.

    Args:
        left: Cut where both do not fit.
        right: Whole as long as it fits at all.
        width: In cells.
        fill: One cell wide; stands between them.
        tone: Of the fill.
    """
    right = cut(right, width)
    room = width - width_of(right)
    left = cut(left, room - 1 if right and room > 0 else room)
    gap = width - width_of(left) - width_of(right)
    return (*left, Span(fill * gap, tone), *right) if gap > 0 else (*left, *right)


def wrapped(content: Line, width: int) -> Sequence[Line]:
    """Break a line at blanks into pieces of at most `width` cells; a longer word is broken too."""
    if width_of(content) <= width:
        return (content,)
    rows: list[list[Span]] = [[]]
    room = width
    for part in content:
        for word in re.split(r"(?<= )", part.text):
            text = word
            if cell_len(text.rstrip()) > room and rows[-1]:
                rows.append([])
                room = width
            while cell_len(text) > width:
                n = max(1, _fitting(text, width))
                rows[-1].append(Span(text[:n], part.tone))
                rows.append([])
                text, room = text[n:], width
            rows[-1].append(Span(text, part.tone))
            room -= cell_len(text)
    return tuple(tuple(row) for row in rows)


def _fitting(text: str, width: int) -> int:
    """Count the characters of a text that fit a width."""
    n, used = 0, 0
    for character in text:
        used += cell_len(character)
        if used > width:
            break
        n += 1
    return n


def joined(parts: Sequence[Line], separator: str = " ") -> Line:
    """Put lines one behind the other, leaving out empty ones."""
    made: list[Span] = []
    for part in parts:
        if not part:
            continue
        if made:
            made.append(Span(separator))
        made.extend(part)
    return tuple(made)


def retoned(content: Line, tone: Tone) -> Line:
    """Give the same text in one tone."""
    return tuple(Span(part.text, tone) for part in content)


_AROUND_STATE: Final = 4
"""Cells around the state on a rule: a gap, and the rule's end."""


def rule(title: str, state: str, width: int, *, dash: str = "-", is_focused: bool = False) -> Line:
    """Draw the titled rule above a pane: title to the left, the pane's state to the right.

    A state that is too long gives way before the title does, which has up to half of the rule.
    """
    tone: Tone = "title" if is_focused else "dim"
    left = line(Span(f"{dash} ", tone), span(title, "title" if is_focused else "strong"), " ")
    right = EMPTY
    if state:
        room = width - min(width_of(left), width // 2) - _AROUND_STATE
        right = (*line(" "), *cut(line(span(state, "dim")), room), Span(f" {dash}", tone))
    return spread(left, right, width, fill=dash, tone=tone)
