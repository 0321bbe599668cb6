"""What addresses this machine has, and a watcher that tells when they change."""

import logging
import socket
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Final, final

from skulkd.cluster.addresses import IPV4, InterfaceAddress, MachineAddresses
from skulkd.runtime.tasks import run_blocking, sleep

_log = logging.getLogger(__name__)

INTERVAL_S: Final = 10.0
STABLE_S: Final = 3.0
"""A change is believed once two looks, this far apart, agree on it."""
MAX_UNSTABLE_S: Final = 30.0
"""Addresses that never come to rest are taken as they are after this long."""

ROUTES: Final = Path("/proc/net/route")
_RTF_UP: Final = 0x1
_ANY: Final = "00000000"
_METRIC_COLUMN: Final = 6
_OUTSIDE: Final = ("192.0.2.1", 9)
"""Reserved for documentation: nobody has it. A connected datagram socket sends nothing."""

ReadMachine = Callable[[], MachineAddresses]
"""Blocks; raises OSError when the machine does not say."""


def read_machine(routes: Path = ROUTES) -> MachineAddresses:
    """List the addresses of interfaces that are up, and find the default route's. Blocks (1 ms).

    Args:
        routes: The kernel's routing table; where there is none the routing itself is asked.

    Raises:
        OSError: The system does not say.
    """
    import psutil  # 10 ms, and a closed node never asks

    states = psutil.net_if_stats()
    addresses: list[InterfaceAddress] = []
    for interface, entries in psutil.net_if_addrs().items():
        if interface in states and not states[interface].isup:
            continue
        for entry in entries:
            if entry.family in {socket.AF_INET, socket.AF_INET6}:
                address = _address(interface, entry.address, entry.netmask)
                addresses += [address] if address is not None else []
    addresses.sort()
    return MachineAddresses(
        addresses=tuple(addresses), default_interface=_default_interface(routes, addresses)
    )


def _address(interface: str, text: str, netmask: str | None) -> InterfaceAddress | None:
    try:
        ip = ip_address(text.partition("%")[0])
        # Bits from the left; a point-to-point link has no mask, and nobody else on it.
        mask = ip_address(netmask) if netmask else None
    except ValueError:
        return None
    prefix = ip.max_prefixlen if mask is None else int(mask).bit_count()
    return InterfaceAddress(interface=interface, host=str(ip), prefix=prefix)


def _default_interface(routes: Path, addresses: list[InterfaceAddress]) -> str | None:
    try:
        return default_route_in(routes.read_text(encoding="utf-8"))
    except FileNotFoundError:  # not Linux
        return _asked_interface(addresses)


def default_route_in(table: str) -> str | None:
    """Find the interface of the default route with the lowest metric in /proc/net/route."""
    best: tuple[int, str] | None = None
    for line in table.splitlines()[1:]:
        columns = line.split()
        if len(columns) <= _METRIC_COLUMN + 1:
            continue
        interface, destination, flags = columns[0], columns[1], int(columns[3], 16)
        mask = columns[_METRIC_COLUMN + 1]
        if destination == _ANY and mask == _ANY and flags & _RTF_UP:
            found = (int(columns[_METRIC_COLUMN]), interface)
            best = found if best is None else min(best, found)
    return best[1] if best else None


def _asked_interface(addresses: list[InterfaceAddress]) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(_OUTSIDE)
        except OSError:
            return None  # no route
        host = asking.getsockname()[0]
    for address in addresses:
        if address.ip.version == IPV4 and address.host == host:
            return address.interface
    return None


@final
class AddressWatcher:
    """Looks again every 10 s, and tells of a change once it has come to rest.

    Args:
        known: What the last look found.
        on_change: Called on the event loop with what there is now; must not raise.
        read: Does the looking, in a thread.
    """

    def __init__(
        self,
        known: MachineAddresses,
        on_change: Callable[[MachineAddresses], None],
        *,
        read: ReadMachine = read_machine,
    ) -> None:
        self._known = known
        self._on_change = on_change
        self._read = read
        self._is_failing = False

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await sleep(INTERVAL_S)
            seen = await self._look()
            if seen != self._known:
                seen = await self._settled(seen)
            if seen != self._known:
                self._known = seen
                self._on_change(seen)

    async def _settled(self, seen: MachineAddresses) -> MachineAddresses:
        waited_s = 0.0
        while waited_s < MAX_UNSTABLE_S:
            await sleep(STABLE_S)
            waited_s += STABLE_S
            again = await self._look()
            if again == seen:
                return seen
            seen = again
        return seen

    async def _look(self) -> MachineAddresses:
        """Look; whoever cannot see goes on with what was known."""
        try:
            seen = await run_blocking(self._read)
        except OSError as error:
            if not self._is_failing:
                _log.warning("the machine's addresses cannot be read: %s", error)
            self._is_failing = True
            return self._known
        self._is_failing = False
        return seen
