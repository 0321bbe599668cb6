"""A bus of its own, with something on it that answers as systemd-logind does."""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast, final

from dbus_fast import BusType, Message, MessageType
from dbus_fast.aio import MessageBus

LOGIND = "org.freedesktop.login1"
PATH = "/org/freedesktop/login1"
MANAGER = "org.freedesktop.login1.Manager"

_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={socket}</listen>
  <policy context="default">
    <allow send_destination="*" eavesdrop="false"/>
    <allow receive_sender="*"/>
    <allow own="*"/>
    <allow user="*"/>
  </policy>
</busconfig>
"""


@asynccontextmanager
async def private_bus(directory: Path) -> AsyncGenerator[str]:
    """Run a dbus-daemon; gives its address.

    Args:
        directory: Where its socket lies.
    """
    daemon = shutil.which("dbus-daemon")
    assert daemon is not None, "these tests need dbus-daemon (apt-get install dbus)"
    socket, config = directory / "bus", directory / "bus.conf"
    config.write_text(_CONFIG.format(socket=socket))
    process = await asyncio.create_subprocess_exec(
        daemon,
        f"--config-file={config}",
        "--nofork",
        "--nopidfile",
        "--nosyslog",
        "--print-address=1",
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(10):
            assert await process.stdout.readline(), "the bus did not start"
        yield f"unix:path={socket}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@final
class FakeLogind:
    """Announces sleep, and says whether somebody holds it up.

    Args:
        bus: Its connection.
        refuses: Whether it gives no inhibitors.
    """

    def __init__(self, bus: MessageBus, *, refuses: bool = False) -> None:
        self._bus = bus
        self._refuses = refuses
        self.asked: list[list[str]] = []
        self._pipes: list[int] = []
        bus.add_message_handler(self._on_message)

    @classmethod
    @asynccontextmanager
    async def on(
        cls, address: str, *, name: str = LOGIND, refuses: bool = False
    ) -> "AsyncGenerator[FakeLogind]":
        """Put one on a bus, under a name."""
        bus = await MessageBus(
            bus_address=address, bus_type=BusType.SYSTEM, negotiate_unix_fd=True
        ).connect()
        logind = cls(bus, refuses=refuses)
        await bus.request_name(name)
        try:
            yield logind
        finally:
            for pipe in logind._pipes:
                os.close(pipe)
            bus.disconnect()
            await bus.wait_for_disconnect()

    async def announce(self, *, is_before: bool, path: str = PATH, signature: str = "b") -> None:
        """Say that the machine is about to sleep, or awake again."""
        body: list[object] = [is_before] if signature == "b" else ["odd"]
        signal = Message(
            message_type=MessageType.SIGNAL,
            path=path,
            interface=MANAGER,
            member="PrepareForSleep",
            signature=signature,
            body=body,
        )
        await cast("Awaitable[None]", self._bus.send(signal))  # pyright: ignore[reportUnknownMemberType]  its future has no type

    @property
    def n_held_up(self) -> int:
        """How many inhibitors somebody holds now."""
        return sum(not _is_closed(pipe) for pipe in self._pipes)

    def _on_message(self, message: Message) -> "Message | bool":
        if message.member != "Inhibit" or message.message_type != MessageType.METHOD_CALL:
            return False
        self.asked.append(message.body)
        if self._refuses:
            return Message.new_error(message, f"{LOGIND}.AccessDenied", "no")
        kept, given = os.pipe()
        os.set_blocking(kept, False)
        self._pipes.append(kept)
        # Sent by then; the other side has a descriptor of its own.
        asyncio.get_running_loop().call_later(0.2, os.close, given)
        return Message.new_method_return(message, "h", [0], unix_fds=[given])


def _is_closed(pipe: int) -> bool:
    try:
        return os.read(pipe, 1) == b""
    except BlockingIOError:
        return False
