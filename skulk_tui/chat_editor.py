"""Writing a text in the operator's own editor, while the rest of the program goes on.

The terminal is the editor's meanwhile; the loop is not blocked, so that the link lives on.
"""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from textual.app import App, SuspendNotSupported

from protocol.errors import ClientError
from skulk_tui.own_files import read_text
from skulk_tui.tasks import run_blocking

MAX_BYTES: Final = 4 << 20


async def edit_text(app: App[Any], text: str, folder: Path | None) -> str | None:
    """Have a text edited; gives what it is then, or None where the editor was left with an error.

    Args:
        app: Gives the terminal away and takes it back.
        text: At first.
        folder: Where the file lies meanwhile, readable by its owner alone; None is the system's.

    Raises:
        ClientError: `client.usage`: there is no editor, or the file cannot be written or read.
    """
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        path = await run_blocking(_write, text, folder)
    except OSError as wrong:
        raise _unusable("no file can be written for it", wrong) from wrong
    try:
        with app.suspend():
            # Nothing may be raised in here: the terminal would not be taken back.
            failure = await run_blocking(_run, editor, path)
        edited = await run_blocking(read_text, path, max_bytes=MAX_BYTES)
    except SuspendNotSupported as wrong:
        raise _unusable("this terminal cannot be given away", wrong) from wrong
    finally:
        await run_blocking(path.unlink, missing_ok=True)
    if isinstance(failure, Exception):
        raise _unusable("it cannot be run", failure)
    return None if failure or edited is None else edited.removesuffix("\n")


def _write(text: str, folder: Path | None) -> Path:
    if folder is not None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=folder, prefix="question-", suffix=".md")  # mode 0600
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return Path(name)


def _run(editor: str, path: Path) -> int | Exception:
    """Give the editor's exit status, or why it did not run."""
    try:
        return subprocess.run([*shlex.split(editor), str(path)], check=False).returncode
    except (OSError, ValueError) as wrong:
        return wrong


def _unusable(why: str, wrong: Exception) -> ClientError:
    return ClientError(
        "client.usage",
        f"the editor did not open, as {why}: {wrong}",
        remediation="Set EDITOR to a program that edits a file in the terminal.",
    )
