"""Structured logs: one JSON object a line, in a capped file and on standard error.

Standard output is never written: it belongs to whoever reads the daemon's answers. A full disk
costs log lines, which are counted, and nothing else.
"""

import contextlib
import json
import logging
import os
import re
import select
import sys
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO, final

LOG_FILE_NAME: Final = "skulkd.jsonl"
MAX_FILE_BYTES: Final = 8 << 20
N_FILES: Final = 4
"""The current file and its predecessors `.1` to `.3`: 32 MiB in all."""

CHATTY_LIBRARIES: Final = ("httpx", "httpcore")
"""Heard from `warning` on: at `info` they name every URL they fetch."""

command_id: ContextVar[str | None] = ContextVar("command_id", default=None)
"""The causal chain that the running task works for; stamped on its log lines."""

node_name: ContextVar[Callable[[str], str] | None] = ContextVar("node_name", default=None)
"""Gives a member's name by its id, empty for others; ids in log lines are shown with it."""

_NODE_ID: Final = re.compile(r"(?<![\w(])n[a-z2-7]{16}\b")
"""Not in brackets, where its name stands before it already."""

_UNSAFE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control codes but tab and line feed, and what turns the direction of text."""

_STANDARD_FIELDS: Final = frozenset(
    vars(logging.LogRecord("", 0, "", 0, "", None, None)).keys()
) | {"message", "asctime", "taskName"}


@final
class JsonFormatter(logging.Formatter):
    """One line: `ts`, `level`, `logger`, `msg`, `command_id` and whatever `extra` holds."""

    def format(self, record: logging.LogRecord) -> str:
        """Give the record as JSON; a value that JSON does not know is given as its text."""
        line: dict[str, object] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": _message(record),
        }
        line |= _extras(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line, ensure_ascii=False, default=str)


@final
class HumanFormatter(logging.Formatter):
    """One line for a person at a terminal, local time; what has more lines goes on indented.

    Requests and engines put text of their own into the log: control codes are shown, not sent, and
    no line of theirs can begin like one of ours.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Give the record as text."""
        time = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        extras = "".join(f" {key}={value}" for key, value in _extras(record).items())
        room = record.name.removeprefix("skulkd.")
        text = f"{time} {record.levelname.lower():<8} {room}: {_message(record)}{extras}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return _UNSAFE.sub(_shown, text).replace("\n", "\n    ")


def _message(record: logging.LogRecord) -> str:
    """Give a record's text, with the names of the nodes that it speaks of."""
    text, name_of = record.getMessage(), node_name.get()
    if name_of is None:
        return text

    def named(match: re.Match[str]) -> str:
        name = name_of(match[0])
        return f"{name} ({match[0]})" if name else match[0]

    return _NODE_ID.sub(named, text)


def _shown(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def _extras(record: logging.LogRecord) -> dict[str, object]:
    extras = {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}
    chain = extras.pop("command_id", None) or command_id.get()
    return {"command_id": chain, **extras} if chain else extras


@final
class CappedFileHandler(logging.Handler):
    """Appends lines to a file; when it is full, it becomes `.1`, and so on up to the cap.

    The standard library's rotating handler would do, but importing it loads sockets and pickle.

    Args:
        path: The current file; its directory exists.
        max_bytes: The size from which a file is closed.
        n_files: How many files there are at most.
    """

    def __init__(
        self, path: Path, *, max_bytes: int = MAX_FILE_BYTES, n_files: int = N_FILES
    ) -> None:
        self._file = path.open("ab", buffering=0)
        super().__init__()
        self._path = path
        self._max_bytes = max_bytes
        self._n_files = n_files
        self._size_bytes = path.stat().st_size
        self.n_dropped_lines = 0
        """Lines that the disk did not take."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; never raises."""
        try:
            line = self.format(record).encode("utf-8", "backslashreplace") + b"\n"
            if self._size_bytes + len(line) > self._max_bytes and self._size_bytes > 0:
                self._rotate()
            self._size_bytes += self._file.write(line)
        except OSError:
            self.n_dropped_lines += 1
        except (TypeError, ValueError):
            # A log call whose arguments do not fit its text; shown where the daemon's other
            # complaints go.
            self.handleError(record)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def _rotate(self) -> None:
        for number in range(self._n_files - 1, 0, -1):
            source = self._numbered(number - 1)
            with contextlib.suppress(FileNotFoundError):
                source.replace(self._numbered(number))
        self._size_bytes = 0
        # Where no new file can be made, lines go on into the old one, under its new name.
        fresh = self._path.open("ab", buffering=0)
        self._file.close()
        self._file = fresh

    def _numbered(self, number: int) -> Path:
        return self._path if number == 0 else self._path.with_name(f"{self._path.name}.{number}")


@final
class ScreenHandler(logging.Handler):
    """Writes lines to a terminal or pipe, and never waits for whoever reads there.

    A paused terminal or a reader that hangs would otherwise stop the event loop at the first line
    that does not fit.

    Args:
        stream: Written by its descriptor; one that has none is written as it is.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._poll = select.poll()
        try:
            self._fd = stream.fileno()
        except (OSError, ValueError):
            self._fd = -1
        else:
            self._poll.register(self._fd, select.POLLOUT)
        self._is_cut = False
        self.n_dropped_lines = 0
        """Lines that were not taken, or not whole."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; never raises."""
        try:
            line = self.format(record) + "\n"
        except (TypeError, ValueError):
            self.handleError(record)
            return
        try:
            if self._fd < 0:
                self._stream.write(line)
            elif not self._has_taken(line.encode("utf-8", "backslashreplace")):
                self.n_dropped_lines += 1
        except (OSError, ValueError):  # the reader has gone, the stream is closed
            self.n_dropped_lines += 1

    def _has_taken(self, line: bytes) -> bool:
        """Write what fits now; a line that had to be cut is ended before the next one begins."""
        rest = memoryview(b"\n" + line if self._is_cut else line)
        while rest and self._poll.poll(0):
            # So much can be written without waiting wherever anything can.
            rest = rest[os.write(self._fd, rest[: select.PIPE_BUF]) :]
            self._is_cut = bool(rest)
        return not rest


@final
class Logs:
    """The process's log set-up; undone by `close`.

    Args:
        directory: Where the file goes; it exists. None writes to standard error only.
        level: The lowest level that is written.
        stderr: Where the other copy goes: for people when it is a terminal, JSON otherwise.
    """

    def __init__(
        self, *, directory: Path | None, level: int = logging.INFO, stderr: TextIO | None = None
    ) -> None:
        stream = sys.stderr if stderr is None else stderr
        screen = ScreenHandler(stream)
        screen.setFormatter(HumanFormatter() if stream.isatty() else JsonFormatter())
        self._handlers: list[logging.Handler] = [screen]
        self._file: CappedFileHandler | None = None
        if directory is not None:
            self._file = CappedFileHandler(directory / LOG_FILE_NAME)
            self._file.setFormatter(JsonFormatter())
            self._handlers.append(self._file)
        root = logging.getLogger()
        self._previous_level = root.level
        root.setLevel(level)
        for chatty in CHATTY_LIBRARIES:
            logging.getLogger(chatty).setLevel(max(level, logging.WARNING))
        for handler in self._handlers:
            root.addHandler(handler)

    @property
    def n_dropped_lines(self) -> int:
        """Lines that the disk did not take since the start."""
        return 0 if self._file is None else self._file.n_dropped_lines

    def close(self) -> None:
        """Remove and close the handlers; idempotent."""
        root = logging.getLogger()
        for handler in self._handlers:
            root.removeHandler(handler)
            handler.close()
        self._handlers.clear()
        root.setLevel(self._previous_level)
