"""A program on a terminal of its own: what it draws is read here, what is typed is sent from here.

The terminal is a pty. Nobody reads it but this class, and only when it is asked to: a program that
draws faster than it is read feels that, as over a slow line. Linux and macOS.
"""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

# Makes standard input the controlling terminal, so that resizes and hang-ups are told, and becomes
# the program; it stays the leader of its session.
_TAKE_TERMINAL: Final = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
_READ_BYTES: Final = 65_536
_MODE: Final = re.compile(rb"\x1b\[\?([\d;]+)([hl])")
_KEYBOARD: Final = re.compile(rb"\x1b\[([><])\d*u")
CURSOR_SHOWN: Final = 25
LINES_WRAP: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Modes:
    """The modes of a terminal that has read some output."""

    on: frozenset[int]
    """Private modes that were set, of those that were named at all."""
    off: frozenset[int]
    keyboard_levels: int
    """How many keyboard protocols were put on and not taken off again."""

    @property
    def are_usual(self) -> bool:
        """Whether a shell would find the terminal as it left it."""
        usual = {CURSOR_SHOWN, LINES_WRAP}
        return not self.on - usual and not self.off & usual and self.keyboard_levels <= 0


def modes_after(output: bytes) -> Modes:
    """Read output as a terminal reads it, as far as its modes go."""
    state: dict[int, bool] = {}
    for match in _MODE.finditer(output):
        for number in match[1].split(b";"):
            if number:
                state[int(number)] = match[2] == b"h"
    levels = sum(1 if match[1] == b">" else -1 for match in _KEYBOARD.finditer(output))
    return Modes(
        on=frozenset(number for number, is_on in state.items() if is_on),
        off=frozenset(number for number, is_on in state.items() if not is_on),
        keyboard_levels=levels,
    )


class PtyProgram:
    """Runs a program on a pty until it ends or the block is left.

    Args:
        argv: The program.
        environ: All of its environment; TERM and the like are the test's to choose.
        size: Columns and rows.
        streams: Replacements of stdin, stdout or stderr, by their number, for what is no terminal.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str],
        size: tuple[int, int] = (80, 24),
        streams: Mapping[int, int] | None = None,
    ) -> None:
        self.output = b""
        """All that was read so far."""
        self._argv = list(argv)
        self._environ = dict(environ)
        self._size = size
        self._streams = dict(streams or {})
        self._mark = 0

    def replace_stream(self, number: int, descriptor: int) -> None:
        """Give the program something else than the terminal as stdin, stdout or stderr."""
        self._streams[number] = descriptor

    def __enter__(self) -> Self:
        self._ours, self._theirs = os.openpty()
        self.resize(*self._size)
        self.attributes_before = self.attributes
        self._process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *self._argv],
            stdin=self._streams.get(0, self._theirs),
            stdout=self._streams.get(1, self._theirs),
            stderr=self._streams.get(2, self._theirs),
            env=self._environ,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(timeout=10)
        self.hang_up()

    @property
    def pid(self) -> int:
        """The program's process."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number if a signal ended it."""
        return self._process.poll()

    @property
    def attributes(self) -> list[Any]:
        """How the terminal treats what is typed (termios)."""
        return termios.tcgetattr(self._theirs)

    @property
    def modes(self) -> Modes:
        """The terminal's modes after all that was read."""
        return modes_after(self.output)

    def resize(self, columns: int, rows: int) -> None:
        """Change the terminal's size; the program gets SIGWINCH."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def send(self, data: bytes, *, within_s: float = 30.0) -> None:
        """Type; reads what the program draws meanwhile, so that neither waits for the other."""
        deadline = time.monotonic() + within_s
        view = memoryview(data)
        while view:
            readable, writable, _ = select.select([self._ours], [self._ours], [], 1.0)
            if readable:
                self._read_once(_READ_BYTES)
            if writable:
                view = view[os.write(self._ours, view[:512]) :]
            assert time.monotonic() < deadline, f"{len(view)} of {len(data)} bytes were not taken"

    def type_unread(self, data: bytes) -> None:
        """Type a few bytes and read nothing."""
        os.write(self._ours, data)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the program alone."""
        self._process.send_signal(number)

    def mark(self) -> None:
        """Let `read_until` look only at what comes from here on."""
        self._mark = len(self.output)

    @property
    def since_mark(self) -> bytes:
        """What was read since the mark."""
        return self.output[self._mark :]

    def read_until(self, needle: bytes, *, within_s: float = 10.0) -> bytes:
        """Read until what came since the mark holds `needle`, and give that."""
        deadline = time.monotonic() + within_s
        while needle not in self.since_mark:
            left_s = deadline - time.monotonic()
            is_open = left_s > 0 and self._read_for(min(left_s, 0.5))
            assert is_open or needle in self.since_mark, (
                f"{needle!r} did not come within {within_s} s, exit code {self.exit_code}; the last"
                f" of it: {self.since_mark[-400:]!r}"
            )
        return self.since_mark

    def read_for(self, duration_s: float) -> int:
        """Read for so long, as fast as it comes; gives the number of bytes."""
        before = len(self.output)
        deadline = time.monotonic() + duration_s
        while (left_s := deadline - time.monotonic()) > 0:
            if not self._read_for(left_s):
                break
        return len(self.output) - before

    def read_slowly(
        self, bytes_per_s: int, *, for_s: float = 60.0, until: bytes | None = None
    ) -> int:
        """Read at the pace of a slow line until `until` or the end; gives the number of bytes."""
        before = len(self.output)
        deadline = time.monotonic() + for_s
        step_s = 0.02
        step = max(1, int(bytes_per_s * step_s))
        while time.monotonic() < deadline:
            readable, _, _ = select.select([self._ours], [], [], 0)
            if readable and not self._read_once(step):
                break
            if until is not None and until in self.since_mark:
                break
            time.sleep(step_s)
        return len(self.output) - before

    def wait(self, *, within_s: float = 10.0) -> int:
        """Read until the program has ended, and all it wrote after that; gives its exit code."""
        deadline = time.monotonic() + within_s
        while self._process.poll() is None:
            assert time.monotonic() < deadline, (
                f"it did not end within {within_s} s; the last of it: {self.output[-400:]!r}"
            )
            self._read_for(0.05)
        while self._read_for(0.0):
            pass
        return self._process.wait(timeout=1)

    def wait_unread(self, *, within_s: float = 10.0) -> int:
        """Wait for the end without reading a byte."""
        return self._process.wait(timeout=within_s)

    def hang_up(self) -> None:
        """Close the terminal from this side, as a cut connection does."""
        for name in ("_ours", "_theirs"):
            descriptor = self.__dict__.pop(name, None)
            if descriptor is not None:
                os.close(descriptor)

    def _read_for(self, duration_s: float) -> bool:
        """Read once if anything comes in that time; False at the end of the output."""
        readable, _, _ = select.select([self._ours], [], [], duration_s)
        if not readable:
            return duration_s > 0
        return self._read_once(_READ_BYTES)

    def _read_once(self, n_bytes: int) -> bool:
        try:
            data = os.read(self._ours, n_bytes)
        except OSError:  # EIO: nobody has the other side open
            return False
        self.output += data
        return bool(data)
