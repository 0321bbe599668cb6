"""Runs `skulk` inside this process, with streams that the test chose."""

import io
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TextIO, final
from unittest import mock

from skulk_tui.cli.main import run


@final
class Stream(io.StringIO):
    """Text in memory that may say it is a terminal."""

    def __init__(self, text: str = "", *, is_terminal: bool = False) -> None:
        super().__init__(text)
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str


@contextmanager
def unread_pipe() -> Generator[TextIO]:
    """Give the writing end of a pipe whose reader has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w", buffering=1, encoding="utf-8")
    try:
        yield stream
    finally:
        with suppress(BrokenPipeError):  # of what is left in its buffer
            stream.close()


@contextmanager
def _swapped(**streams: TextIO) -> Generator[None]:
    kept: dict[str, Any] = {name: getattr(sys, name) for name in streams}
    try:
        for name, stream in streams.items():
            setattr(sys, name, stream)
        yield
    finally:
        for name, stream in kept.items():
            setattr(sys, name, stream)


def skulk(
    *arguments: str,
    node: str | None = None,
    stdin: str = "",
    terminals: frozenset[str] = frozenset(),
    environment: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
) -> Ran:
    """Run one command line.

    Args:
        arguments: After the program's name.
        node: Becomes SKULK_NODE.
        stdin: What can be read there.
        terminals: Which of `stdin`, `stdout`, `stderr` say that they are terminals.
        environment: Further variables; HOME is a folder that does not exist.
        stdout: Takes what it writes there, in place of the memory.
    """
    variables = {"HOME": "/nonexistent", "TERM": "xterm", **(environment or {})}
    if node is not None:
        variables["SKULK_NODE"] = node
    out = Stream(is_terminal="stdout" in terminals)
    err = Stream(is_terminal="stderr" in terminals)
    streams: dict[str, TextIO] = {"stdout": stdout or out, "stderr": err}
    streams["stdin"] = Stream(stdin, is_terminal="stdin" in terminals)
    with mock.patch.dict(os.environ, variables, clear=True), _swapped(**streams):
        code = run(arguments)
    return Ran(code=code, out=out.getvalue(), err=err.getvalue())
