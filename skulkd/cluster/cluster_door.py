"""Opens a node's cluster ports, keeps them on the addresses it should have, and has it found.

A node that was never opened has no socket, no multicast and no wire library. Once open it stays
open over restarts; addresses that come and go with their interfaces are followed.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, final

from protocol.errors import SkulkError
from skulkd.cluster.addresses import (
    Bindings,
    ClusterAddress,
    MachineAddresses,
    advertised,
    bindings,
    is_on_link,
)
from skulkd.cluster.closed_transport import ClosedTransport, OpenTransport
from skulkd.cluster.discovery import Announcement, Discovery, DiscoveryStatus, OnSighting, Sighting
from skulkd.cluster.interfaces import AddressWatcher, ReadMachine
from skulkd.cluster.transport import ClusterPorts
from skulkd.runtime.tasks import Tasks, run_blocking

_log = logging.getLogger(__name__)


class DoorTransport(OpenTransport, ClusterPorts, Protocol):
    """A transport with ports of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorSettings:
    """What the operator says about where this node listens."""

    address: ClusterAddress
    bind: tuple[str, ...] = ()
    advertise: tuple[str, ...] = ()
    kept_base_port: int = 0
    """The base that an earlier start picked; 0 before there was one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorParts:
    """What opening takes; made only then."""

    load: Callable[[], None]
    """Imports what the others need; in a thread, because it takes a tenth of a second."""
    make_transport: Callable[[], DoorTransport]
    make_discovery: Callable[[], Discovery] | None
    """None: neither announced nor looked for."""
    read_machine: ReadMachine


Announce = Callable[[int], Announcement]
"""Gives what neighbours are told by a node whose first port it is."""

OnAddresses = Callable[[tuple[str, ...]], None]
"""Called with the addresses that others shall dial, whenever they change; must not block."""


@final
class ClusterDoor:
    """The cluster ports of one node; closed until `open`.

    Args:
        transport: Gets the real one when the door opens.
        settings: Where to listen.
        parts: What opening takes.
        announce: What neighbours are told.
        tasks: Owns the watching of addresses.
        on_addresses: Told where this node can be dialled.
        on_sighting: Told of neighbours.
    """

    def __init__(
        self,
        transport: ClosedTransport,
        settings: DoorSettings,
        parts: DoorParts,
        *,
        announce: Announce,
        tasks: Tasks,
        on_addresses: OnAddresses,
        on_sighting: OnSighting,
    ) -> None:
        self._transport = transport
        self._settings = settings
        self._parts = parts
        self._announce = announce
        self._tasks = tasks
        self._on_addresses = on_addresses
        self._on_sighting = on_sighting
        self._opening = asyncio.Lock()
        self._ports: ClusterPorts | None = None
        self._discovery: Discovery | None = None
        self._bindings = Bindings()
        self.advertised: tuple[str, ...] = ()
        """Where others shall dial, `HOST:BASE`, best first."""

    @property
    def base_port(self) -> int | None:
        """The first of the three ports; None while they are closed."""
        return None if self._ports is None else self._ports.base_port

    @property
    def bound(self) -> tuple[str, ...]:
        """The addresses that this node listens on."""
        return self._bindings.hosts if self._ports is not None else ()

    def is_neighbour(self, host: str) -> bool:
        """Say whether an IP address is on a link that this node listens on."""
        return is_on_link(host, self._bindings.addresses)

    @property
    def missing(self) -> tuple[str, ...]:
        """What was asked for and is not there now, in words."""
        return self._bindings.missing

    @property
    def discovery(self) -> DiscoveryStatus | None:
        """How discovery is; None where it is switched off or the door is closed."""
        return None if self._discovery is None else self._discovery.status()

    def sightings(self) -> tuple[Sighting, ...]:
        """List the neighbours."""
        return () if self._discovery is None else self._discovery.sightings()

    async def open(self) -> int:
        """Listen, dial and look around from now on; returns the first port. Idempotent.

        Raises:
            ConfigError: `config.port_busy`, `config.invalid`; the node is as closed as before.
        """
        async with self._opening:
            if self._ports is not None and self._ports.base_port is not None:
                return self._ports.base_port
            machine = await run_blocking(self._parts.read_machine)
            await run_blocking(self._parts.load)
            transport = self._parts.make_transport()
            try:
                base_port = await self._listen(transport, machine)
            except BaseException:
                await transport.close()
                raise
            self._ports = transport
            self._transport.attach(transport)
            if self._parts.make_discovery is not None:
                self._discovery = self._parts.make_discovery()
                self._discovery.on_sighting(self._on_sighting)
                self._discovery.set_addresses(self._bindings.addresses)
                self._discovery.announce(self._announce(base_port))
            watcher = AddressWatcher(machine, self._on_machine, read=self._parts.read_machine)
            self._tasks.start(watcher.run(), name="watch addresses")
            self._on_addresses(self.advertised)
            return base_port

    async def close(self) -> None:
        """Be found no more. The transport is closed by whoever owns it."""
        if self._discovery is not None:
            await self._discovery.close()

    async def _listen(self, ports: ClusterPorts, machine: MachineAddresses) -> int:
        found = self._wanted(machine)
        wanted_port = self._settings.address.base_port or self._settings.kept_base_port
        base_port = await ports.open(found.hosts, wanted_port)
        self._bindings = found
        self.advertised = advertised(found.addresses, base_port, self._settings.advertise)
        _log.info(
            "open to other nodes at %s, ports %d to %d",
            ", ".join(found.hosts) or "no address yet", base_port, base_port + 2,
        )  # fmt: skip
        return base_port

    def _wanted(self, machine: MachineAddresses) -> Bindings:
        settings = self._settings
        host = settings.address.host
        bind: Sequence[str] = settings.bind if host is None else (host,)
        return bindings(machine, bind)

    def _on_machine(self, machine: MachineAddresses) -> None:
        self._tasks.start(self._follow(machine), name="follow addresses", essential=False)

    async def _follow(self, machine: MachineAddresses) -> None:
        """Listen where the interfaces are now; what cannot be had is tried at the next change."""
        async with self._opening:
            ports = self._ports
            found = self._wanted(machine)
            if ports is None or ports.base_port is None or found == self._bindings:
                return
            before = self.advertised
            try:
                await ports.open(found.hosts, ports.base_port)
            except SkulkError as error:
                _log.warning("%s %s", error.message, error.remediation, extra={"code": error.code})
                return
            self._bindings = found
            self.advertised = advertised(found.addresses, ports.base_port, self._settings.advertise)
            _log.info("this node's addresses have changed to %s", ", ".join(found.hosts) or "none")
            if self._discovery is not None:
                self._discovery.set_addresses(found.addresses)
            if self.advertised != before:
                self._on_addresses(self.advertised)
