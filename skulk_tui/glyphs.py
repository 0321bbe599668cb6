"""What the program draws with: two sets of characters, equal in width, and text cut to cells.

Pure. Widths are terminal cells, as Rich counts them, never characters: a name may hold wide
characters, marks that take no cell, and what a terminal would act on.
"""

import unicodedata
from dataclasses import dataclass
from typing import Final, Literal

from rich.cells import cell_len, get_character_cell_size

Align = Literal["left", "right"]

CUT: Final = ">"
"""Ends text that was cut; the same in both sets, because frames are searched for it."""
_LINE_SEPARATORS: Final = frozenset("\t\n\v\f\r\x85\u2028\u2029")
_VARIATION_SELECTORS: Final = frozenset(
    chr(number)
    for first, last in ((0xFE00, 0xFE0F), (0xE0100, 0xE01EF))
    for number in range(first, last + 1)
)
# What Vietnamese or a vowelled Hebrew needs; more of them climb into the rows above.
_MARKS_KEPT: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GlyphSet:
    """Characters by what they mean.

    Invariant: a field has the same width in cells in every set, so that frames differ in characters
    alone. Each is one cell wide, but the tree's parts, which are two, and `ramp`, a cell a level.
    """

    name: Literal["unicode", "ascii"]

    bar_left: str
    bar_right: str
    bar_used: str
    bar_added: str
    """What the thing under the cursor would add."""
    bar_free: str
    bar_reserved: str
    """Used, and inside the reserve."""

    ramp: str
    """Levels of a trace, lowest first."""

    master: str
    alive: str
    suspect: str
    lost: str
    left: str
    unknown: str
    alert: str
    ready: str
    working: str
    failed: str

    cursor: str
    picked: str
    marked: str
    attached: str

    up: str
    down: str
    forward: str
    back: str

    rule: str
    wall: str
    corner_top_left: str
    corner_top_right: str
    corner_bottom_left: str
    corner_bottom_right: str
    tee_right: str
    """Leads from a wall to the right."""
    tee_left: str
    tee_down: str
    tee_up: str
    crossing: str

    link_fast: str
    link_slow: str
    link_head: str

    tree_branch: str
    tree_last: str
    tree_wall: str

    held: str
    """An artifact that a node has and has verified."""
    absent: str
    damaged: str
    unverified: str

    busy: str
    idle: str


ASCII: Final = GlyphSet(
    name="ascii",
    bar_left="[",
    bar_right="]",
    bar_used="#",
    bar_added="+",
    bar_free=".",
    bar_reserved="!",
    ramp=" .:-=+*#",
    master="M",
    alive="o",
    suspect="?",
    lost="x",
    left="-",
    unknown="?",
    alert="!",
    ready="o",
    working="~",
    failed="x",
    cursor=">",
    picked="x",
    marked="*",
    attached="@",
    up="^",
    down="v",
    forward=">",
    back="<",
    rule="-",
    wall="|",
    corner_top_left="+",
    corner_top_right="+",
    corner_bottom_left="+",
    corner_bottom_right="+",
    tee_right="+",
    tee_left="+",
    tee_down="+",
    tee_up="+",
    crossing="+",
    link_fast="=",
    link_slow="-",
    link_head=">",
    tree_branch="|-",
    tree_last="`-",
    tree_wall="| ",
    held="#",
    absent=".",
    damaged="x",
    unverified="~",
    busy="#",
    idle=".",
)

# No character that some terminals draw as an emoji, two cells wide.
UNICODE: Final = GlyphSet(
    name="unicode",
    bar_left="▕",
    bar_right="▏",
    bar_used="█",
    bar_added="▒",
    bar_free="·",
    bar_reserved="▓",
    ramp=" ▁▂▃▄▅▆█",
    master="★",
    alive="●",
    suspect="◐",
    lost="✗",
    left="○",
    unknown="?",
    alert="▲",
    ready="●",
    working="◌",
    failed="✗",
    cursor="▸",
    picked="✓",
    marked="◆",
    attached="◎",
    up="↑",
    down="↓",
    forward="→",
    back="←",
    rule="─",
    wall="│",
    corner_top_left="┌",
    corner_top_right="┐",
    corner_bottom_left="└",
    corner_bottom_right="┘",
    tee_right="├",
    tee_left="┤",
    tee_down="┬",
    tee_up="┴",
    crossing="┼",
    link_fast="═",
    link_slow="─",
    link_head="▸",
    tree_branch="├─",
    tree_last="└─",
    tree_wall="│ ",
    held="■",
    absent="·",
    damaged="✗",
    unverified="◇",
    busy="█",
    idle="·",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BarCells:
    """How many cells of a bar show what, in this order; they add up to its width."""

    used: int
    used_reserved: int
    added: int
    added_reserved: int
    free: int


def plain(text: str) -> str:
    """Make foreign text safe for one row: nothing that a terminal would act on or measure wrongly.

    Escapes and other control characters, characters that reorder their surroundings, joiners and
    variation selectors go; ends of lines and tabs become a space, half of a surrogate pair a `?`;
    of marks that take no cell, those beyond the third on a character go.
    """
    if text.isascii() and text.isprintable():
        return text
    kept: list[str] = []
    n_marks = _MARKS_KEPT  # a mark with nothing below it would land on the cell to the left
    for character in text:
        category = unicodedata.category(character)
        if character in _LINE_SEPARATORS:
            kept.append(" ")
            n_marks = 0
        elif category == "Cs":
            kept.append("?")
            n_marks = 0
        elif category in {"Cc", "Cf"} or character in _VARIATION_SELECTORS:
            continue
        elif get_character_cell_size(character) == 0:
            if n_marks < _MARKS_KEPT:
                kept.append(character)
                n_marks += 1
        else:
            kept.append(character)
            n_marks = 0
    return "".join(kept)


def cut_cells(text: str, width: int) -> str:
    """Cut text to at most so many cells, with `>` in the last one if anything is missing.

    A wide character that does not fit is left out, so the result may be a cell narrower.
    """
    if width <= 0:
        return ""
    # A character is at most two cells wide and often none: only text of few characters can fit.
    if len(text) <= width and cell_len(text) <= width:
        return text
    kept: list[str] = []
    left = width - len(CUT)
    fits_whole: list[str] = []
    used = 0
    for character in text:
        size = get_character_cell_size(character)
        used += size
        if used > width:
            return "".join(kept) + CUT
        fits_whole.append(character)
        if used <= left:
            kept.append(character)
    return "".join(fits_whole)


def pad_cells(text: str, width: int, align: Align = "left") -> str:
    """Give text exactly so many cells: cut, or filled up with spaces."""
    cut = cut_cells(text, width)
    space = " " * (width - cell_len(cut)) if width > 0 else ""
    return space + cut if align == "right" else cut + space


def bar_cells(width: int, *, used: float, added: float = 0.0, reserve: float = 0.0) -> BarCells:
    """Share the cells of a bar out.

    Args:
        width: Cells between the ends, at least 0.
        used: Ratio of the whole, 0 to 1; what is in use at all shows at least one cell.
        added: Ratio of the whole that would come on top.
        reserve: Ratio at the far end that should stay free.
    """
    width = max(0, width)
    n_used = _cells_of(used, width)
    n_all = max(n_used, _cells_of(used + added, width))
    if added > 0 and n_all == n_used < width:
        n_all += 1
    open_to = width - min(width, round(min(1.0, max(0.0, reserve)) * width))
    n_used_open = min(n_used, open_to)
    n_all_open = min(n_all, max(n_used, open_to))
    return BarCells(
        used=n_used_open,
        used_reserved=n_used - n_used_open,
        added=n_all_open - n_used,
        added_reserved=n_all - n_all_open,
        free=width - n_all,
    )


def bar(
    glyphs: GlyphSet, width: int, *, used: float, added: float = 0.0, reserve: float = 0.0
) -> str:
    """Draw a bar of `width` cells between its ends: `[####++....]`."""
    cells = bar_cells(width, used=used, added=added, reserve=reserve)
    return "".join(
        (
            glyphs.bar_left,
            glyphs.bar_used * cells.used,
            glyphs.bar_reserved * cells.used_reserved,
            glyphs.bar_added * cells.added,
            glyphs.bar_reserved * cells.added_reserved,
            glyphs.bar_free * cells.free,
            glyphs.bar_right,
        )
    )


def level(glyphs: GlyphSet, ratio: float | None) -> str:
    """Give the character of a trace for a ratio of 0 to 1; a space where nothing is known.

    Only nothing is empty: what is above 0 shows the lowest level at least.
    """
    if ratio is None or ratio <= 0:
        return glyphs.ramp[0]
    top = len(glyphs.ramp) - 1
    return glyphs.ramp[min(top, max(1, round(ratio * top)))]


def _cells_of(ratio: float, width: int) -> int:
    if ratio <= 0 or width == 0:
        return 0
    return min(width, max(1, round(ratio * width)))
