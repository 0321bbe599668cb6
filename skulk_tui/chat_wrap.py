"""Breaking text into rows of so many cells, at a cost that grows with the text and no faster.

Pure. A model can write a megabyte without a blank; nothing here looks at a character more than a
few times.
"""

from collections.abc import Iterator
from typing import Final, final

from rich.cells import cell_len, chop_cells

from skulk_tui.glyphs import plain
from skulk_tui.lines import EMPTY, Line, Span, Tone

TAB: Final = 4


def clean(text: str) -> str:
    """Give one row of foreign text: tabs as blanks, nothing left that a terminal would act on."""
    return plain(text.expandtabs(TAB) if "\t" in text else text)


def chopped(text: str, width: int) -> list[str]:
    """Break a text after so many cells, wherever that is; at least one piece."""
    if text.isascii():
        return [text[at : at + width] for at in range(0, len(text), width)] or [""]
    return chop_cells(text, width) or [""]


def wrap_text(text: str, width: int) -> list[str]:
    """Break one row of clean text at blanks; a word that is longer than a row is broken too."""
    if cell_len(text) <= width:
        return [text]
    return ["".join(part.text for part in row) for row in wrap((Span(text),), width)]


def wrap(content: Line, width: int) -> list[Line]:
    """Break a line at blanks into rows of at most `width` cells; at least one row."""
    rows = _Rows(width)
    for part in content:
        for word in _words(part.text):
            rows.add(word, part.tone)
    return rows.finish()


def wrap_code(text: str, width: int, tone: Tone = "plain") -> list[Line]:
    """Break a row of code where it is full: its blanks are part of it."""
    return [(Span(piece, tone),) if piece else EMPTY for piece in chopped(clean(text), width)]


def _words(text: str) -> Iterator[str]:
    """Give the words of a text, each with the blanks behind it."""
    start = 0
    while start < len(text):
        end = text.find(" ", start)
        if end < 0:
            yield text[start:]
            return
        while end < len(text) and text[end] == " ":
            end += 1
        yield text[start:end]
        start = end


@final
class _Rows:
    def __init__(self, width: int) -> None:
        self._width = max(1, width)
        self._room = self._width
        self._rows: list[Line] = []
        self._row: list[tuple[Tone, list[str]]] = []

    def add(self, word: str, tone: Tone) -> None:
        n_cells = cell_len(word)
        if n_cells > self._room:
            word = self._make_room(word, tone)
            n_cells = cell_len(word)
        if word:
            self._append(word, tone, n_cells)

    def _make_room(self, word: str, tone: Tone) -> str:
        """Begin rows until the rest of a word fits; give that rest."""
        bare = word.rstrip(" ")
        if cell_len(bare) <= self._room:
            return bare  # the blanks behind it stay behind, at the end of the row
        if self._row:
            self._break()
        if cell_len(word) <= self._width:
            return word
        *full, last = chopped(bare, self._width)
        for piece in full:
            self._append(piece, tone, self._width)
            self._break()
        is_room = cell_len(last) + len(word) - len(bare) <= self._width
        return last + word[len(bare) :] if is_room else last

    def _append(self, text: str, tone: Tone, n_cells: int) -> None:
        if self._row and self._row[-1][0] == tone:
            self._row[-1][1].append(text)
        else:
            self._row.append((tone, [text]))
        self._room -= n_cells

    def _break(self) -> None:
        self._rows.append(tuple(Span("".join(texts), tone) for tone, texts in self._row))
        self._row = []
        self._room = self._width

    def finish(self) -> list[Line]:
        if self._row or not self._rows:
            self._break()
        return self._rows


@final
class PlainFlow:
    """Plain text as it comes, in rows; what was broken into a row once is not looked at again.

    Args:
        width: Of a row, in cells.
        tone: Of the text.
    """

    def __init__(self, width: int, tone: Tone = "plain") -> None:
        self._width = max(1, width)
        self._tone: Tone = tone
        self._rows: list[Line] = []
        self._last = ""
        """The row that is not full yet."""

    def feed(self, text: str) -> None:
        """Take further text."""
        *whole, last = (self._last + text).split("\n")
        for row in whole:
            self._rows.extend(self._line(piece) for piece in wrap_text(clean(row), self._width))
        *full, self._last = wrap_text(clean(last), self._width)
        self._rows.extend(self._line(piece) for piece in full)

    def __len__(self) -> int:
        return len(self._rows) + bool(self._last)

    def rows(self, start: int, end: int) -> list[Line]:
        """Give some of the rows."""
        found = self._rows[start:end]
        if self._last and start <= len(self._rows) < end:
            found.append(self._line(self._last))
        return found

    def _line(self, text: str) -> Line:
        return (Span(text, self._tone),) if text else EMPTY
