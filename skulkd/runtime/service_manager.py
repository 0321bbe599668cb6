"""What the daemon tells the service manager that started it: ready, alive, stopping.

The protocol of sd_notify(3): datagrams of `NAME=value` to the socket that NOTIFY_SOCKET names.
Where nothing asked for them, nothing is sent. The signs of life come from the event loop itself, so
that a loop that is stuck is noticed; the datagrams never block it.
"""

import asyncio
import logging
import socket
from collections.abc import Mapping
from typing import Final, Protocol, final

_log = logging.getLogger(__name__)

_US_PER_S: Final = 1_000_000
_BEATS_PER_LIMIT: Final = 3
"""A manager advises half its limit; a third leaves room for one that came late."""


class Sender(Protocol):
    """Sends one datagram; a socket that is connected is one."""

    def send(self, data: bytes, /) -> int:
        """Send, or raise OSError at once."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


@final
class ServiceManager:
    """Tells a service manager how the daemon is; silent where there is none.

    Args:
        sender: The way to it; None where nobody asked.
        watchdog_s: How long it waits for a sign of life; None where it does not.
    """

    def __init__(self, sender: Sender | None, watchdog_s: float | None = None) -> None:
        self._sender = sender
        self._watchdog_s = watchdog_s
        self._next: asyncio.TimerHandle | None = None
        self._has_failed = False

    def start(self) -> None:
        """Give signs of life from the running loop, until `close`."""
        if self._sender is not None and self._watchdog_s is not None:
            self._beat(asyncio.get_running_loop(), self._watchdog_s / _BEATS_PER_LIMIT)

    def ready(self, status: str) -> None:
        """Say that the daemon serves; `status` is one line for people."""
        self._tell(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        """Say that the daemon is on its way down, at its own wish or another's."""
        self._tell("STOPPING=1\nSTATUS=stopping")

    def close(self) -> None:
        """End the signs of life; idempotent."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def _beat(self, loop: asyncio.AbstractEventLoop, interval_s: float) -> None:
        self._tell("WATCHDOG=1")
        self._next = loop.call_later(interval_s, self._beat, loop, interval_s)

    def _tell(self, text: str) -> None:
        if self._sender is None:
            return
        try:
            self._sender.send(text.encode())
        except OSError as error:
            # The manager may be starting anew; what it misses for good it acts upon itself.
            if not self._has_failed:
                _log.warning("the service manager does not hear this daemon: %s", error)
            self._has_failed = True
        else:
            self._has_failed = False


def manager_of(environment: Mapping[str, str], *, pid: int) -> ServiceManager:
    """Find the service manager that started this process, if one did.

    Args:
        environment: The process's: NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID.
        pid: Of this process; signs of life that are asked of another one are not given.
    """
    address = _address(environment)
    if address is None:
        return ServiceManager(None)
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.setblocking(False)  # ruff: ignore[boolean-positional-value-in-call]  the library's own
    try:
        sender.connect(address)
    except OSError as error:
        sender.close()
        _log.warning("NOTIFY_SOCKET %s leads nowhere: %s", address, error)
        return ServiceManager(None)
    return ServiceManager(sender, _watchdog_s(environment, pid))


def _address(environment: Mapping[str, str]) -> str | None:
    """Read the address of the socket; `@` stands for the abstract name space."""
    text = environment.get("NOTIFY_SOCKET", "")
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else None


def _watchdog_s(environment: Mapping[str, str], pid: int) -> float | None:
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    limit = environment.get("WATCHDOG_USEC", "")
    return int(limit) / _US_PER_S if limit.isdecimal() and int(limit) > 0 else None
