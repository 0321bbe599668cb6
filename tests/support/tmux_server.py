"""A tmux of its own, with default settings, inside a pty: what an operator's terminal would get."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from tests.support.pty_program import PtyProgram

TMUX: Final = shutil.which("tmux")


class TmuxServer:
    """Runs a program in the one window of a server that nothing else knows.

    Args:
        argv: The program.
        environ: All of its environment, and the server's.
        root: An empty folder, for the socket.
        size: Columns and rows of the terminal outside; the status line takes one row.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str],
        root: Path,
        size: tuple[int, int] = (100, 30),
    ) -> None:
        assert TMUX is not None
        self._socket = str(root / "tmux")
        self._environ = dict(environ)
        self.outside = PtyProgram(
            [TMUX, "-S", self._socket, "-f", "/dev/null", "-u", "new-session", *argv],
            environ=self._environ,
            size=size,
        )

    def __enter__(self) -> Self:
        self.outside.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.command("kill-server")
        finally:
            self.outside.__exit__(None, None, None)

    def command(self, *arguments: str) -> str:
        """Ask the server; gives what it says."""
        assert TMUX is not None
        answer = subprocess.run(
            [TMUX, "-S", self._socket, *arguments],
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
        return answer.stdout
