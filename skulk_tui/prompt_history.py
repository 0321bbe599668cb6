"""The commands that were typed, kept for each cluster on the operator's own disk; blocking.

Lines are only ever added, so that several programs may keep theirs in one file.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

from protocol.errors import ClientError
from skulk_tui.line_editor import HISTORY_KEPT, MAX_CHARS
from skulk_tui.own_files import PRIVATE_DIRECTORY, read_text, replace_file

MAX_BYTES: Final = 1 << 20
_REWRITTEN_FROM: Final = 4 * HISTORY_KEPT
"""Lines of a file that is cut to the newest ones when it is read."""
_FOLDER: Final = "history"
_OF_NO_NAME: Final = "default"
_MODE: Final = 0o600
_PRIVATE_COMMANDS: Final = frozenset({"set", "system"})
"""What is typed behind them may be nobody else's business."""


@final
class PromptHistory:
    """The files of one operator.

    Args:
        state_dir: Where the program leaves things behind; None keeps nothing.
    """

    def __init__(self, state_dir: Path | None) -> None:
        self._folder = None if state_dir is None else state_dir / _FOLDER

    def load(self, cluster: str) -> Sequence[str]:
        """Give what was typed for a cluster, the oldest first.

        Raises:
            ClientError: `client.usage`: it cannot be read.
        """
        path = self._path(cluster)
        text = None if path is None else read_text(path, max_bytes=MAX_BYTES)
        if path is None or text is None:
            return ()
        lines = [line for line in text.split("\n") if line]
        kept = lines[-HISTORY_KEPT:]
        if len(lines) > _REWRITTEN_FROM:
            replace_file(path, "".join(f"{line}\n" for line in kept))
        return kept

    def add(self, cluster: str, text: str) -> None:
        """Keep a command, unless what stands behind it should not be kept.

        Raises:
            ClientError: `client.usage`: the disk does not allow it.
        """
        path, words = self._path(cluster), text.split()
        if path is None or not words or words[0] in _PRIVATE_COMMANDS:
            return
        line = " ".join(words)[:MAX_CHARS]
        try:
            path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _MODE)
            with os.fdopen(descriptor, "a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        except OSError as wrong:
            raise ClientError(
                "client.usage",
                f"{path} cannot be written: {wrong.strerror or wrong}",
                remediation="Look at the directory's owner and free space.",
            ) from wrong

    def _path(self, cluster: str) -> Path | None:
        # A profile's name is made of letters, digits, `_` and `-`.
        return None if self._folder is None else self._folder / (cluster or _OF_NO_NAME)
