"""The terminal's other screen, for tables that change in place; the shell's stays as it was."""

import shutil
from types import TracebackType
from typing import Final, Self, final

from skulk_tui.cli.session import Session
from skulk_tui.formatting import one_line, shorten

_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_REST_OF_LINE: Final = "\x1b[K"
_REST_OF_SCREEN: Final = "\x1b[J"
_FEWEST_ROWS: Final = 3
_USELESS_TERMS: Final = frozenset({"", "dumb", "unknown"})


def takes_live_screen(session: Session) -> bool:
    """Whether what is shown can be redrawn in place: a person's form, at a terminal that can."""
    is_for_people = session.form in {"table", "wide"}
    can_place = session.environ.get("TERM", "") not in _USELESS_TERMS
    return is_for_people and session.output.is_terminal and can_place


@final
class LiveScreen:
    """A context manager; on leaving, the last text is written to the shell's own screen."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._last = ""
        self._drawn = ""

    def __enter__(self) -> Self:
        self._session.output.write(_ENTER)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, BrokenPipeError):
            self._session.output.write(_LEAVE + self._last)

    def show(self, text: str, *, status: str = "") -> None:
        """Draw text, cut to the screen's height; the same again costs nothing.

        Args:
            text: Lines no wider than the terminal.
            status: Told in the last row, where there is something to tell.
        """
        self._last = text
        columns, rows = shutil.get_terminal_size()
        rows = max(_FEWEST_ROWS, rows)
        lines = text.splitlines()
        room = rows - bool(status)
        if len(lines) > room:
            lines = [*lines[: room - 1], f"({len(lines) - room + 1} more lines)"]
        if status:
            lines.append(shorten(one_line(status), columns))
        drawn = "\r\n".join(f"{line}{_REST_OF_LINE}" for line in lines)
        if drawn != self._drawn:
            self._drawn = drawn
            self._session.output.write(f"{_HOME}{drawn}{_REST_OF_SCREEN}")
