"""How a run of the terminal interface ends: its exit code, and what a crash leaves behind.

Textual prints a traceback with the values of all local variables, API keys among them, and gives no
exit code when its input thread dies. Here a crash is three lines and a file that only its owner can
read, without values.
"""

import platform
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO, TypeVar

from textual import __version__ as textual_version
from textual.app import App
from textual.worker import WorkerFailed

from protocol.clock import Clock
from protocol.errors import ClientError
from skulk_tui.formatting import one_line
from skulk_tui.own_files import replace_file

ReturnT = TypeVar("ReturnT")

CRASHED: Final = 1
KEPT: Final = 10
"""Crash files; older ones are removed."""
BUNDLE_COMMAND: Final = "skulk diag bundle"
_MAX_SUMMARY: Final = 200
_MAX_REPORT: Final = 200_000


class QuietApp(App[ReturnT], inherit_bindings=False):
    """An application that keeps what ended it instead of printing it."""

    @property
    def crash(self) -> BaseException | None:
        """What ended it, if it was not asked to end; of a failed worker its own error."""
        found = self._exception
        return found.error if isinstance(found, WorkerFailed) else found

    def _fatal_error(self) -> None:
        """End; the original collects a traceback with the values of locals first."""
        self._close_messages_no_wait()

    def _print_error_renderables(self) -> None:
        """Print what the application said on leaving, and nothing about a crash."""
        if self._exception is not None:
            self._exit_renderables.clear()
        super()._print_error_renderables()


def run_app(
    app: QuietApp[ReturnT], *, mouse: bool, clock: Clock, state_dir: Path, stderr: TextIO
) -> int:
    """Run an application to its end.

    Args:
        app: Not yet run.
        mouse: Whether the terminal is asked to report the mouse.
        clock: Names the crash file by its wall clock.
        state_dir: Where the crash file goes.
        stderr: Gets three lines after a crash, on a terminal that is as it was before.

    Returns:
        The exit code: the one it was asked to end with, or 1. None is a failure: whatever ended
        the run then was no request.
    """
    crash: BaseException | None = None
    try:
        app.run(mouse=mouse)
    # ruff: ignore[blind-except]  a bug of any kind is to leave the file and the exit code
    except Exception as error:
        crash = error
    crash = app.crash or crash
    if crash is None and app.return_code is not None:
        return app.return_code
    stderr.write(_told(crash, _keep(crash, clock, state_dir)))
    stderr.flush()
    return CRASHED


def _told(crash: BaseException | None, where: str) -> str:
    return (
        f"error: skulk tui crashed: {_summary(crash)}\n"
        f"  at: {where}\n"
        f"  remedy: start it again; the cluster is not affected. `{BUNDLE_COMMAND}` collects what a"
        " report needs.\n"
    )


def _summary(crash: BaseException | None) -> str:
    if crash is None:
        return "it ended without being asked to"
    return one_line(f"{type(crash).__name__}: {crash}")[:_MAX_SUMMARY]


def _keep(crash: BaseException | None, clock: Clock, state_dir: Path) -> str:
    """Write the crash file; gives its path, or why there is none."""
    moment = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
    path = state_dir / f"crash-{moment:%Y%m%dT%H%M%S}-{moment.microsecond // 1000:03d}.txt"
    lines = [] if crash is None else traceback.format_exception(crash)
    report = (
        f"{moment:%Y-%m-%dT%H:%M:%SZ}  python {platform.python_version()}  textual"
        f" {textual_version}  {platform.platform()}\n{_summary(crash)}\n\n{''.join(lines)}"
    )
    try:
        replace_file(path, report[:_MAX_REPORT])
        for old in sorted(state_dir.glob("crash-*.txt"))[:-KEPT]:
            old.unlink(missing_ok=True)
    except (ClientError, OSError) as wrong:
        return f"no crash file: {one_line(str(wrong))}"
    return str(path)
