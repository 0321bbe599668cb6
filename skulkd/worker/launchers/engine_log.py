"""The file an engine writes its output to: capped in size, read for its last lines.

The engine writes the file itself (a pipe would die with the daemon), opened for appending, so that
it can be cut from outside at any moment.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import Final

LOG_CAP_BYTES: Final = 4 << 20
"""A log that has grown beyond this is cut to its last quarter."""
LOG_FILES_KEPT: Final = 64
TAIL_LINES: Final = 20
TAIL_READ_BYTES: Final = 64 << 10
LINE_MAX_CHARS: Final = 2000
"""As `protocol.commands.LogLine` allows."""

_ESCAPE_SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def open_log(path: Path) -> int:
    """Open a log for appending, creating it with mode 0600, and give its descriptor."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def prune_logs(
    directory: Path, *, kept: int = LOG_FILES_KEPT, in_use: frozenset[str] = frozenset()
) -> None:
    """Remove the oldest logs beyond `kept`; a log that is in use stays, however quiet it is."""
    if not directory.is_dir():
        return
    logs: list[tuple[float, Path]] = []
    for path in directory.glob("*.log"):
        if path.name in in_use:
            continue
        with contextlib.suppress(FileNotFoundError):
            logs.append((path.stat().st_mtime, path))
    for _, path in sorted(logs)[:-kept]:
        path.unlink(missing_ok=True)


def trim_log(path: Path, *, cap_bytes: int = LOG_CAP_BYTES) -> bool:
    """Cut a log that has outgrown its cap to its last quarter; tell whether that was needed.

    A line that the engine writes in the microseconds between reading and cutting is lost.
    """
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW)
    try:
        size_bytes = os.fstat(fd).st_size
        if size_bytes <= cap_bytes:
            return False
        kept = os.pread(fd, cap_bytes // 4, size_bytes - cap_bytes // 4)
        os.ftruncate(fd, 0)
        os.write(fd, b"[earlier lines were cut]\n" + kept.partition(b"\n")[2])
        return True
    finally:
        os.close(fd)


def read_tail(path: Path, *, n_lines: int = TAIL_LINES) -> tuple[str, ...]:
    """Read the last lines of a log; a log that is not there has none."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - TAIL_READ_BYTES)
            file.seek(start)
            data = file.read(TAIL_READ_BYTES)
    except FileNotFoundError:
        return ()
    return last_lines(data, n_lines=n_lines)


def last_lines(data: bytes, *, n_lines: int = TAIL_LINES) -> tuple[str, ...]:
    """Give the last non-empty lines of raw output, safe to show on a terminal.

    Escape sequences, control codes and bidirectional overrides are taken out, bytes that are not
    UTF-8 replaced, and long lines cut.
    """
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    lines = (_clean(line) for line in text.split("\n"))
    return tuple([line for line in lines if line][-n_lines:])


def _clean(line: str) -> str:
    # What a progress bar wrote before its last carriage return was never meant to stay.
    line = line.rstrip("\r").rpartition("\r")[2]
    return _CONTROL.sub("", _ESCAPE_SEQUENCE.sub("", line)).rstrip()[:LINE_MAX_CHARS]
