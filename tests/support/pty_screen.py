"""What a terminal shows after a program's output: rows of text, without colours.

Enough of a terminal for programs that place their cursor before they write, as Textual's do.
"""

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self, final

from rich.cells import get_character_cell_size

from tests.support.daemon import SCRIPTS, clean_environment
from tests.support.pty_program import PtyProgram

_SEQUENCE: Final = re.compile(
    r"\x1b\[(?P<arguments>[<-?]?[\d;:]*)(?P<final>[ -/]*[@-~])"
    r"|\x1b[\]P^_].*?(?:\x07|\x1b\\)|\x1b[()].|\x1b[=>78DEMc]"
    r"|(?P<text>[^\x1b\x00-\x1f\x7f]+)|(?P<control>[\x00-\x1f\x7f])",
    re.DOTALL,
)
_UNFINISHED: Final = re.compile(r"\x1b(?:\[[<-?]?[\d;:]*[ -/]*|[\]P^_][^\x07]*|[()])?\Z", re.DOTALL)


@final
class Grid:
    """Rows of cells.

    Args:
        columns: How many.
        rows: How many.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self._columns, self._rows = columns, rows
        self._cells = [[" "] * columns for _ in range(rows)]
        self._x = self._y = 0
        self._held = ""

    @property
    def lines(self) -> list[str]:
        """The rows, without what is blank at their ends."""
        return ["".join(row).rstrip() for row in self._cells]

    def feed(self, text: str) -> None:
        """Take output; a sequence that is cut is held until its rest comes."""
        text = self._held + text
        cut = _UNFINISHED.search(text)
        self._held = text[cut.start() :] if cut else ""
        for part in _SEQUENCE.finditer(text[: cut.start()] if cut else text):
            if part["text"]:
                self._write(part["text"])
            elif part["control"]:
                self._control(part["control"])
            elif part["final"]:
                self._sequence(part["final"], part["arguments"])

    def _write(self, text: str) -> None:
        for character in text:
            width = get_character_cell_size(character)
            if self._y < self._rows and self._x + width <= self._columns and width:
                self._cells[self._y][self._x] = character
                self._cells[self._y][self._x + 1 : self._x + width] = [""] * (width - 1)
                self._x += width

    def _control(self, character: str) -> None:
        if character == "\r":
            self._x = 0
        elif character == "\n":
            self._y = min(self._y + 1, self._rows - 1)
        elif character == "\b":
            self._x = max(0, self._x - 1)

    def _sequence(self, final: str, arguments: str) -> None:
        numbers = [int(one) for one in arguments.split(";") if one.isdecimal()]
        match final:
            case "H" | "f":
                row, column = [*numbers, 1, 1][:2] if numbers else (1, 1)
                self._y = max(0, min(row, self._rows) - 1)
                self._x = max(0, min(column, self._columns) - 1)
            case "J" if numbers[:1] == [2]:
                self._cells = [[" "] * self._columns for _ in range(self._rows)]
            case "K":
                self._cells[self._y][self._x :] = [" "] * (self._columns - self._x)
            case "C":
                self._x = min(self._x + (numbers or [1])[0], self._columns - 1)
            case _:
                pass  # colours and modes


@final
class TuiProgram:
    """`skulk tui` on a pty, and its screen; a context manager.

    Args:
        root: An empty folder, for the operator's files.
        arguments: Before the verb: whom to attach to.
        flags: After it.
        size: Columns and rows.
        environ: Further variables.
    """

    def __init__(
        self,
        root: Path,
        *arguments: str,
        flags: tuple[str, ...] = (),
        size: tuple[int, int] = (100, 30),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        base = {
            "HOME": str(root),
            "SKULK_CONFIG_DIR": str(root / "config"),
            "SKULK_STATE_DIR": str(root / "state"),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
        }
        argv = [str(SCRIPTS / "skulk"), *arguments, "tui", "--ascii", *flags]
        environment = clean_environment({**base, **(environ or {})})
        self.program = PtyProgram(argv, environ=environment, size=size)
        self._grid = Grid(*size)
        self._n_fed = 0

    def __enter__(self) -> Self:
        self.program.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.program.__exit__(None, None, None)

    @property
    def text(self) -> str:
        """The screen now, as far as it was read."""
        new = self.program.output[self._n_fed :]
        # A character that is cut is left for the next time.
        n_whole = len(new)
        while n_whole and n_whole > len(new) - 4:
            try:
                decoded = new[:n_whole].decode()
                break
            except UnicodeDecodeError:
                n_whole -= 1
        else:
            decoded = new[:n_whole].decode(errors="replace")
        self._n_fed += n_whole
        self._grid.feed(decoded)
        return "\n".join(self._grid.lines)

    @property
    def frame(self) -> list[str]:
        """The screen's rows."""
        return self.text.split("\n")

    def type(self, text: str) -> None:
        """Type; `\\r` is Enter, `\\x1b` Escape."""
        self.program.send(text.encode())

    def until_shows(self, *words: str, within_s: float = 15.0) -> float:
        """Wait until all words are on the screen; gives the seconds that took.

        Raises:
            AssertionError: They did not come; holds the screen.
        """
        began_s = time.monotonic()
        while missing := [word for word in words if word not in self.text]:
            waited_s = time.monotonic() - began_s
            assert waited_s < within_s, f"{missing} not within {within_s:g} s:\n{self.text}"
            assert self.program.exit_code is None, f"it has ended:\n{self.text}"
            self.program.read_for(0.02)
        return time.monotonic() - began_s

    def until_gone(self, *words: str, within_s: float = 15.0) -> None:
        """Wait until none of the words is on the screen.

        Raises:
            AssertionError: They stayed; holds the screen.
        """
        ends_s = time.monotonic() + within_s
        while kept := [word for word in words if word in self.text]:
            assert time.monotonic() < ends_s, f"{kept} still after {within_s:g} s:\n{self.text}"
            self.program.read_for(0.02)

    def until(
        self, holds: Callable[[], object], what: str = "it", *, within_s: float = 15.0
    ) -> None:
        """Wait until something holds, and read what the program draws meanwhile.

        Raises:
            AssertionError: It did not come to be; holds the screen.
        """
        ends_s = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < ends_s, f"not within {within_s:g} s: {what}\n{self.text}"
            assert self.program.exit_code is None, f"it has ended:\n{self.text}"
            self.program.read_for(0.02)

    def leave(self) -> int:
        """Press Ctrl-Q, and give the exit code."""
        self.type("\x11")
        return self.program.wait()
