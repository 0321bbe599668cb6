"""The terminal: the one module that touches it.

Textual's driver for Linux and macOS, with what it lacks for a program that stays open for days in
terminals of all kinds: input that cannot end it, output that cannot hold it up, signals and a lost
terminal as ways to leave, and a terminal that is as it was before. Each override says what the
original does. Written against Textual 8.2.8, which is pinned.
"""

import contextlib
import os
import re
import select
import selectors
import signal
import sys
import termios
from collections.abc import Callable, Generator, Iterator
from functools import partial
from types import FrameType
from typing import Any, Final, TextIO, final

from textual import constants, events
from textual._xterm_parser import XTermParser  # ruff: ignore[import-private-name]  there is no other
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from skulk_tui.clock import SystemClock
from skulk_tui.terminal import Background, background_of
from skulk_tui.terminal_input import Item, LoneEscape, Pasted, TerminalInput
from skulk_tui.terminal_output import TerminalOutput

LEAVE_WITHIN_S: Final = 2.0
"""How long the terminal has to take what sets it right; then the program leaves all the same."""
MAX_WAITING_MESSAGES: Final = 1000
"""Nothing more is read while the program has so many to attend to."""
MAX_COLUMNS: Final = 1000
MAX_ROWS: Final = 500
SIGNAL_EXIT_BASE: Final = 128

_MODES_OFF: Final = (
    "\x1b[?2026l"  # synchronized output
    "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l"  # the mouse
    "\x1b[?2004l"  # bracketed paste
    "\x1b[?2048l"  # resizes told in the input
    "\x1b[?1004l"  # focus
    "\x1b[?7h"  # lines wrap
    "\x1b[?25h"  # the cursor
    "\x1b[0m"
)
_ABANDON: Final = "\x18\x1b\\"
"""Ends whatever sequence was cut off in its middle."""
RESTORE: Final = f"{_ABANDON}\x1b[<u\x1b[?1049l{_MODES_OFF}"
"""Sets right all that this program changes, for a terminal that it was torn from."""

_LOCAL_FLAGS: Final = 3
_READ_BYTES: Final = 65_536
_LOOK_AGAIN_S: Final = 0.1
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
# What is not part of a frame: modes, questions, strings such as the clipboard's.
_KEPT: Final = ("\x1b[?", "\x1b[>", "\x1b[<", "\x1b]")
_SYNCHRONIZED: Final = ("\x1b[?2026h", "\x1b[?2026l")
_ASK_BACKGROUND: Final = b"\x1b]11;?\x1b\\"
# Every terminal answers this, so nobody waits for the one before that many do not answer.
_ASK_ATTRIBUTES: Final = b"\x1b[c"
_ATTRIBUTES: Final = re.compile(rb"\x1b\[\?[\d;]*c")
Handler = Callable[[int, FrameType | None], Any] | int | None

_typed_ahead = bytearray()
"""What was typed while `ask_background` read; a process has one terminal."""


@final
class SkulkDriver(LinuxDriver):
    """Draws on standard error and reads standard input, as Textual does."""

    def __init__(
        self,
        app: App[Any],
        *,
        debug: bool = False,
        mouse: bool = True,
        size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)  # pyright: ignore[reportUnknownMemberType]  its `App` names no result type
        self._output: TerminalOutput | None = None
        self._is_active = False
        self._was_active = False
        self._handlers: dict[signal.Signals, Handler] = {}

    @property
    def backlog(self) -> int:
        """How many writes the terminal has not taken; above 1, new values had better wait."""
        return 0 if self._output is None else self._output.backlog

    def write(self, data: str) -> None:
        """Queue output; returns at once, where the original waits when 30 writes are queued.

        Dropped while the program is suspended: the whole screen is drawn when it comes back.
        """
        if self._output is not None:
            is_frame = not data.startswith(_KEPT) or data.startswith(_SYNCHRONIZED)
            self._output.write(data, is_frame=is_frame)

    # ---- Coming and leaving ----

    def start_application_mode(self) -> None:
        """Take the terminal; nothing if it is taken, as after a SIGCONT that no stop preceded."""
        if self._is_active:
            return
        if self._output is None:
            self._output = TerminalOutput(
                _open_for_writing(), on_drop=self._redraw, on_gone=self._on_gone
            )
        for number in _ENDING:
            # What is ignored stays so, as under nohup.
            if number not in self._handlers and signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._on_ending_signal)
        super().start_application_mode()
        # In the background it is not ours to take; the next SIGCONT tries again.
        self._is_active = self._key_thread is not None and self._key_thread.is_alive()
        if self._is_active and self._was_active:
            self._redraw()
        self._was_active = True

    def stop_application_mode(self) -> None:
        """Give the terminal back as it was; frames that are still on their way are dropped."""
        if not self._is_active:
            return
        self._is_active = False
        if self._output is not None:
            self._output.abandon_frames()
        super().stop_application_mode()
        self.write(_MODES_OFF)  # the original forgets some, and the terminal sets others

    def close(self) -> None:
        """End the threads; waits for the terminal, but not for ever."""
        super().close()
        output, self._output = self._output, None
        if output is not None:
            output.close(within_s=LEAVE_WITHIN_S)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def _on_ending_signal(self, number: int, _frame: FrameType | None) -> None:
        """Leave in order at the first signal, and at once at the second."""
        signal.signal(number, self._on_second_signal)
        self._leave(SIGNAL_EXIT_BASE + number)

    def _on_second_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.attrs_before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self.fileno, termios.TCSANOW, self.attrs_before)
        with contextlib.suppress(OSError):
            reset_terminal()
        os._exit(SIGNAL_EXIT_BASE + number)

    def _on_gone(self) -> None:
        """Leave as after a hang-up: nobody sees this program any more."""
        self._leave(SIGNAL_EXIT_BASE + signal.SIGHUP)

    def _leave(self, exit_code: int) -> None:
        self._call(partial(self._app.exit, return_code=exit_code))

    def _redraw(self) -> None:
        self._call(partial(self._app.refresh, layout=True))

    def _call(self, callback: Callable[[], object]) -> None:
        """Have the program do something, from any thread or signal handler."""
        with contextlib.suppress(RuntimeError):  # the loop has ended: nothing is left to do
            self._loop.call_soon_threadsafe(self._app.call_later, callback)

    # ---- What the original asks of the terminal, changed ----

    def _enable_mouse_support(self) -> None:
        """Ask for buttons and drags; the original asks for every movement, sent up the line."""
        if self._mouse:
            self.write("\x1b[?1000h\x1b[?1002h\x1b[?1006h")

    def turn_mouse(self, *, is_on: bool) -> None:
        """Ask the terminal for the mouse from now on, or leave it to the terminal."""
        if not is_on:
            self._disable_mouse_support()
        self._mouse = is_on
        self._enable_mouse_support()

    def _get_terminal_size(self) -> tuple[int, int]:
        """Ask the terminal; the original believes COLUMNS and LINES, which do not change."""
        try:
            columns, rows = os.get_terminal_size(self.fileno)
        except OSError:
            columns, rows = 0, 0
        return min(columns or 80, MAX_COLUMNS), min(rows or 24, MAX_ROWS)

    # ---- Input ----

    def _run_input_thread(self) -> None:
        """End the program if the thread dies; the original does so without an exit code."""
        try:
            self.run_input_thread()
        # ruff: ignore[blind-except]  a bug of any kind; without this thread no key works
        except Exception as error:
            self._call(partial(_raise, error))

    def run_input_thread(self) -> None:
        """Read until told to end; bytes of any kind end neither the thread nor the program."""
        now = SystemClock().monotonic_s
        machine = TerminalInput(escape_delay_s=constants.ESCAPE_DELAY)
        feed = _KeyFeed(debug=self._debug)
        if _typed_ahead:
            self._take(machine.feed(bytes(_typed_ahead), now=now()), feed)
            _typed_ahead.clear()
        with selectors.SelectSelector() as selector:  # kqueue knows no terminals
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if self._app.message_queue_size > MAX_WAITING_MESSAGES:
                    self.exit_event.wait(_LOOK_AGAIN_S / 10)
                    continue
                pause_s = _LOOK_AGAIN_S
                if machine.deadline is not None:
                    pause_s = min(pause_s, max(0.0, machine.deadline - now()))
                if selector.select(pause_s):
                    data = self._read()
                    if not data:  # the original would spin here
                        self._on_gone()
                        return
                    self._take(machine.feed(data, now=now()), feed)
                self._take(machine.tick(now=now()), feed)
                for message in feed.tick():
                    self.process_message(message)

    def _read(self) -> bytes:
        """Read what there is; nothing when the terminal is gone."""
        try:
            return os.read(self.fileno, _READ_BYTES)
        except OSError:
            return b""

    def _take(self, items: list[Item], feed: "_KeyFeed") -> None:
        for item in items:
            match item:
                case Pasted():
                    self.process_message(events.Paste(item.text))
                case LoneEscape():
                    self.process_message(events.Key("escape", "\x1b"))
                case str():
                    for message in feed.feed(item):
                        self.process_message(message)


def _raise(error: Exception) -> None:
    raise error


@final
class _KeyFeed:
    """Textual's parser, replaced by a new one when something ends it."""

    def __init__(self, *, debug: bool) -> None:
        self._debug = debug
        self._parser = XTermParser(debug)

    def feed(self, text: str) -> Iterator[Message]:
        yield from self._guarded(lambda: self._parser.feed(text))

    def tick(self) -> Iterator[Message]:
        yield from self._guarded(self._parser.tick)

    def _guarded(self, parse: Callable[[], Any]) -> Iterator[Message]:
        try:
            yield from parse()
        # ruff: ignore[blind-except]  a number that is no character raises one error, others others
        except Exception:
            self._parser = XTermParser(self._debug)


def ask_background(timeout_s: float) -> Background | None:
    """Ask the terminal for its background (OSC 11), before the program takes it.

    What is typed meanwhile is kept for the program; an answer that comes later is dropped there.

    Args:
        timeout_s: How long to wait; every terminal that answers at all ends the wait at once.
    """
    with _uncooked(_descriptor_of(sys.__stdin__, 0)) as descriptor:
        try:
            _write_once(_ASK_BACKGROUND + _ASK_ATTRIBUTES)
            answer = _read_answer(descriptor, timeout_s)
        except OSError:
            return None  # the driver meets the same, and leaves
    _typed_ahead.extend(answer)  # the answers among it are dropped on the way to the keys
    return background_of(answer)


def _read_answer(descriptor: int, timeout_s: float) -> bytes:
    now = SystemClock().monotonic_s
    deadline = now() + timeout_s
    answer = b""
    while not _ATTRIBUTES.search(answer) and (left_s := deadline - now()) > 0:
        if select.select([descriptor], [], [], left_s)[0]:
            data = os.read(descriptor, _READ_BYTES)
            if not data:
                break
            answer += data
    return answer


def reset_terminal() -> None:
    """Set a terminal right that a program was torn from (`skulk tui --reset-terminal`)."""
    _write_once(RESTORE.encode())


def _write_once(data: bytes) -> None:
    output = _open_for_writing()
    try:
        os.write(output, data)
    finally:
        os.close(output)


def _open_for_writing() -> int:
    """Open the terminal once more: not to block belongs to this opening alone, not to the shell's.

    Where it cannot be opened, the stream that is there is used, and a write may block its thread.
    """
    descriptor = _descriptor_of(sys.__stderr__, 2)
    try:
        flags = os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(os.ttyname(descriptor), flags)
    except OSError:
        return os.dup(descriptor)


def _descriptor_of(stream: TextIO | None, default: int) -> int:
    return default if stream is None else stream.fileno()


@contextlib.contextmanager
def _uncooked(descriptor: int) -> Generator[int]:
    """Have input come at once and unseen; as it was at the end."""
    before = termios.tcgetattr(descriptor)
    changed = termios.tcgetattr(descriptor)
    changed[_LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(descriptor, termios.TCSANOW, changed)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
