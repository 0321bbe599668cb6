"""Signals that end the program, turned into an exception so that every `finally` runs."""

import signal
from types import FrameType

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
