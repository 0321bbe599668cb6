"""Signals that end the program, turned into an exception so that every `finally` runs."""

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupted(BaseException):
    """A signal other than Ctrl-C asks the program to end.

    Not an Exception: like KeyboardInterrupt it passes every handler that expects errors.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


def _interrupt(signal_number: int, _frame: FrameType | None) -> None:
    raise Interrupted(signal_number)


def turn_signals_into_exceptions() -> None:
    """Install the handlers; a signal that is ignored (nohup) stays ignored."""
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


@contextmanager
def signals_on_loop(
    loop: "asyncio.AbstractEventLoop", on_signal: Callable[[int], None]
) -> Generator[None]:
    """Have the loop told of Ctrl-C and ending signals, which an exception in a callback is not.

    Raised there, an exception would end one callback and be forgotten. What is ignored stays
    ignored; afterwards every handler is as it was.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_ENDING)}
    handled = {
        number: handler
        for number, handler in before.items()
        if handler is not None and handler is not signal.SIG_IGN
    }
    for number in handled:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number, handler in handled.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
