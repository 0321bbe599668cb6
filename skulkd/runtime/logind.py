"""Hears of the machine's sleep from systemd-logind, over the system bus of D-Bus (Linux).

logind announces a sleep by the signal `PrepareForSleep` and waits for whoever holds a delay
inhibitor, for 5 s by default. The inhibitor is a descriptor: it is given back by closing it, and a
new one is taken once the machine is awake. Source: org.freedesktop.login1(5).

Nothing depends on it: where there is no bus or no logind, as in a container, a node is told
nothing. The library is loaded by a machine that has a bus only.
"""

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from skulkd.runtime.machine_sleep import GOODBYE_S, SleepListener
from skulkd.runtime.tasks import Tasks, run_blocking, sleep, timeout

if TYPE_CHECKING:
    from dbus_fast import Message
    from dbus_fast.aio import MessageBus

_log = logging.getLogger(__name__)

SYSTEM_BUS: Final = "unix:path=/run/dbus/system_bus_socket"
RETRY_S: Final = 60.0
"""After a bus that was lost, as when it is started anew by an update."""
CALL_S: Final = 5.0
MAX_WAITING: Final = 16
"""Announcements; more of them at a time come from no machine."""

_WHY: Final = "says goodbye to its cluster"
_BUS: Final = "org.freedesktop.DBus"
_BUS_PATH: Final = "/org/freedesktop/DBus"
_LOGIND: Final = "org.freedesktop.login1"
_PATH: Final = "/org/freedesktop/login1"
_MANAGER: Final = "org.freedesktop.login1.Manager"
_SIGNAL: Final = "PrepareForSleep"
_RULE: Final = (
    f"type='signal',sender='{_LOGIND}',path='{_PATH}',interface='{_MANAGER}',member='{_SIGNAL}'"
)


@final
class LogindSleep:
    """Implements `SleepSource`.

    Args:
        address: Of the bus, as D-Bus writes it; by default where every Linux has it.
        retry_s: After how long a bus that was lost is looked for again.
    """

    def __init__(self, address: str | None = None, *, retry_s: float = RETRY_S) -> None:
        self.address: Final = address or os.environ.get("DBUS_SYSTEM_BUS_ADDRESS") or SYSTEM_BUS
        self._retry_s = retry_s

    async def tell(self, listener: SleepListener) -> None:
        """Tell a listener, until cancelled; returns where there is no bus, or no logind on it."""
        path = self.address.removeprefix("unix:path=").partition(",")[0]
        if path != self.address and not await run_blocking(Path(path).exists):
            _log.debug("nothing tells of this machine's sleep: there is no %s", path)
            return
        has_told = False
        while True:
            try:
                await self._watch(listener)
            except _BusLostError as error:
                has_told = True
                _log.debug("the system bus was lost: %s", error)
            except (_NothingToldError, _RefusedError) as error:
                _log.debug("nothing tells of this machine's sleep: %s", error)
                if not has_told:
                    return
            await sleep(self._retry_s)

    async def _watch(self, listener: SleepListener) -> None:
        bus = await self._connect()
        try:
            await _Watch(bus, listener).run()
        finally:
            bus.disconnect()

    async def _connect(self) -> "MessageBus":
        from dbus_fast import AuthError, BusType, InvalidAddressError
        from dbus_fast.aio import MessageBus

        try:
            async with timeout(CALL_S):
                bus = MessageBus(
                    bus_address=self.address, bus_type=BusType.SYSTEM, negotiate_unix_fd=True
                )
                return await bus.connect()
        except (OSError, EOFError, AuthError, InvalidAddressError) as error:
            raise _NothingToldError(error) from error


class _NothingToldError(Exception):
    """There is no bus here, or nobody on it who knows."""


class _BusLostError(Exception):
    """The connection to the bus has ended."""


@final
class _Watch:
    """One connection to the bus."""

    def __init__(self, bus: "MessageBus", listener: SleepListener) -> None:
        self._bus = bus
        self._listener = listener
        self._heard: asyncio.Queue[tuple[str, bool] | None] = asyncio.Queue(MAX_WAITING)
        """Announcements, each with its sender; None once the bus is lost."""
        self._inhibitor: int | None = None
        self._is_going = False
        """A sleep was announced, and its end not yet."""

    async def run(self) -> None:
        """Tell what logind announces, until the bus is lost."""
        tasks = Tasks("logind", on_death=lambda story, _error: _log.error("%s", story))
        self._bus.add_message_handler(self._on_message)
        try:
            await self._call(_BUS, _BUS_PATH, "AddMatch", _RULE)
            if await self._owner() is None:
                raise _NothingToldError("nobody has the name " + _LOGIND)
            await self._inhibit()
            tasks.start(self._await_loss(), name="await loss", essential=False)
            _log.debug("this machine's sleep is told by %s", _LOGIND)
            while (heard := await self._heard.get()) is not None:
                sender, is_before = heard
                if sender == await self._owner():
                    await self._tell(is_before=is_before)
            raise _BusLostError("it has hung up")
        finally:
            self._let_go()
            await tasks.close(1.0)

    async def _tell(self, *, is_before: bool) -> None:
        if not is_before:
            self._is_going = False
            self._listener.after_sleep()
            await self._inhibit()
        elif not self._is_going:
            self._is_going = True
            try:
                async with timeout(GOODBYE_S):
                    await self._listener.before_sleep()
            except TimeoutError:
                _log.warning("the machine sleeps before the goodbye was said")
            finally:
                self._let_go()

    async def _inhibit(self) -> None:
        """Have the machine wait; without leave to, it is told and not waited for."""
        if self._inhibitor is not None:
            return
        try:
            reply = await self._call(
                _LOGIND, _PATH, "Inhibit", "sleep", "skulkd", _WHY, "delay", interface=_MANAGER
            )
        except _RefusedError as error:
            _log.debug("the machine does not wait for a goodbye: %s", error)
            return
        if reply.unix_fds:
            self._inhibitor = reply.unix_fds[0]

    def _let_go(self) -> None:
        if self._inhibitor is not None:
            os.close(self._inhibitor)
            self._inhibitor = None

    async def _owner(self) -> str | None:
        """Give the connection that has logind's name now; anybody can send a signal."""
        try:
            reply = await self._call(_BUS, _BUS_PATH, "GetNameOwner", _LOGIND)
        except _RefusedError:
            return None
        owner: object = reply.body[0] if reply.body else None
        return owner if isinstance(owner, str) else None

    async def _call(
        self, destination: str, path: str, member: str, *body: str, interface: str = _BUS
    ) -> "Message":
        from dbus_fast import DBusFastError, Message, MessageType

        message = Message(
            destination=destination,
            path=path,
            interface=interface,
            member=member,
            signature="s" * len(body),
            body=list(body),
        )
        try:
            async with timeout(CALL_S):
                reply = await self._bus.call(message)
        except (OSError, EOFError, DBusFastError) as error:
            raise _BusLostError(error) from error
        if reply.message_type == MessageType.ERROR:
            reason = f"{reply.error_name}: {reply.body[:1]}"
            raise _RefusedError(reason)
        return reply

    def _on_message(self, message: "Message") -> None:
        is_signal = (message.path, message.interface, message.member) == (_PATH, _MANAGER, _SIGNAL)
        if is_signal and message.signature == "b":
            with contextlib.suppress(asyncio.QueueFull):
                self._heard.put_nowait((message.sender or "", bool(message.body[0])))

    async def _await_loss(self) -> None:
        from dbus_fast import DBusFastError

        try:
            await self._bus.wait_for_disconnect()
        except (OSError, EOFError, DBusFastError) as error:
            _log.debug("the system bus is lost: %s", error)
        await self._heard.put(None)


class _RefusedError(Exception):
    """A call was answered with an error."""
