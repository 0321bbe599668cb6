"""Pictures of the terminal interface as SVG: its own cells, drawn as text in a monospaced font.

Textual's own export names fonts of a server elsewhere and counts its pictures; these hold nothing
but what was on the screen, so that two of the same screen are equal.
"""

from collections.abc import Iterator, Sequence
from typing import Final
from xml.sax.saxutils import escape

from rich.cells import cell_len
from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

CELL_WIDTH: Final = 8.4
CELL_HEIGHT: Final = 18
FONT_SIZE: Final = 14
MARGIN: Final = 12
BAR: Final = 28
"""Height of the bar with the title."""
_FONTS: Final = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
_BASELINE: Final = 13


def picture_of(strips: Sequence[Strip], *, title: str, foreground: str, background: str) -> str:
    """Draw rows of cells.

    Args:
        strips: The rows.
        title: In the bar above.
        foreground: Of cells that have no colour of their own, `#rrggbb`.
        background: Likewise.
    """
    columns = max((strip.cell_length for strip in strips), default=0)
    width = columns * CELL_WIDTH + 2 * MARGIN
    height = len(strips) * CELL_HEIGHT + 2 * MARGIN + BAR
    label = escape(title)
    size = f'viewBox="0 0 {width:.1f} {height}"'
    bar = f'x="{width / 2:.1f}" y="20" text-anchor="middle" opacity="0.6"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">',
        f'<rect width="{width:.1f}" height="{height}" rx="8" fill="{background}"/>',
        f'<g font-family="{_FONTS}" font-size="{FONT_SIZE}" fill="{foreground}">',
        f"<text {bar}>{label}</text>",
    ]
    for number, strip in enumerate(strips):
        lines += _row(strip, MARGIN + BAR + number * CELL_HEIGHT, foreground, background)
    return "\n".join([*lines, "</g>", "</svg>", ""])


def _row(strip: Strip, top: int, foreground: str, background: str) -> Iterator[str]:
    column = 0
    for segment in strip:
        cells = cell_len(segment.text)
        yield from _part(segment, column, cells, top, foreground, background)
        column += cells


def _part(
    segment: Segment, column: int, cells: int, top: int, foreground: str, background: str
) -> Iterator[str]:
    style = segment.style or Style()
    ink, paper = _hex(style.color, foreground), _hex(style.bgcolor, background)
    if style.reverse:
        ink, paper = paper, ink
    left = MARGIN + column * CELL_WIDTH
    if paper != background:
        yield (
            f'<rect x="{left:.1f}" y="{top}" width="{cells * CELL_WIDTH:.1f}"'
            f' height="{CELL_HEIGHT}" fill="{paper}"/>'
        )
    text = segment.text.strip()
    if not text:
        return
    ahead = cell_len(segment.text) - cell_len(segment.text.lstrip())
    looks = "" if ink == foreground else f' fill="{ink}"'
    looks += ' font-weight="bold"' if style.bold else ""
    looks += ' opacity="0.6"' if style.dim else ""
    yield (
        f'<text x="{left + ahead * CELL_WIDTH:.1f}" y="{top + _BASELINE}"'
        f' textLength="{cell_len(text) * CELL_WIDTH:.1f}" xml:space="preserve"{looks}>'
        f"{escape(text)}</text>"
    )


def _hex(color: Color | None, otherwise: str) -> str:
    if color is None or color.is_default:
        return otherwise
    return color.get_truecolor().hex
