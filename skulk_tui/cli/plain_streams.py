"""A terminal whose locale is not UTF-8 is written ASCII; what goes into a pipe stays as it is."""

import codecs
import io
from collections.abc import Mapping
from typing import Final

_ERRORS: Final = "skulk-ascii"
# One column each, so that tables stay as wide as they were laid out.
_LOOK_ALIKES: Final = {
    "\N{HORIZONTAL ELLIPSIS}": "~",
    "\N{EN DASH}": "-",
    "\N{EM DASH}": "-",
    "\N{NO-BREAK SPACE}": " ",
    "\N{MIDDLE DOT}": ".",
    "\N{MULTIPLICATION SIGN}": "x",
    "\N{LEFT SINGLE QUOTATION MARK}": "'",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{LEFT DOUBLE QUOTATION MARK}": '"',
    "\N{RIGHT DOUBLE QUOTATION MARK}": '"',
}


def fit_to_locale(stream: object, environ: Mapping[str, str]) -> None:
    """Have a terminal get ASCII alone where its locale, its kind or SKULK_ASCII says so."""
    if not isinstance(stream, io.TextIOWrapper):
        return
    stream.reconfigure(errors="replace")
    if not stream.isatty():
        return
    from skulk_tui.glyphs import ASCII
    from skulk_tui.terminal import read_terminal

    if read_terminal(environ, ascii_only=bool(environ.get("SKULK_ASCII"))).glyphs is ASCII:
        codecs.register_error(_ERRORS, _replace)
        stream.reconfigure(encoding="ascii", errors=_ERRORS)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_LOOK_ALIKES.get(letter, "?") for letter in text), error.end
