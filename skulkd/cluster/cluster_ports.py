"""Listening on three ports in a row, and reading what comes in."""

import errno
import ipaddress
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, final

import zmq

from protocol.clock import Clock
from protocol.envelope import DEFAULT_BASE_PORT, PORTS, Port
from protocol.errors import ConfigError
from skulkd.cluster.admission import Admission
from skulkd.cluster.inbox import Inbox, OnFrame
from skulkd.cluster.lanes import port_number
from skulkd.cluster.stranger_list import StrangerList
from skulkd.cluster.zap import ZapHandler
from skulkd.cluster.zmq_sockets import Context, make_contexts
from skulkd.runtime.identity import KeyPair
from skulkd.runtime.port_holder import holder_of
from skulkd.runtime.tasks import run_blocking, timeout

EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL_EPHEMERAL: Final = 32768
"""Where the ports begin that a system gives to outgoing connections, if it does not say."""
LOWEST_BASE: Final = 10240
N_TRIES: Final = 64
TERM_S: Final = 3.0


@final
class ClusterInboxes:
    """The sockets of a node's open ports, each port with its context and its ZAP handler.

    Args:
        keys: This node's.
        admission: Who may connect.
        strangers: Where refusals are noted.
        clock: For turns and times.
        on_frame: Gets every frame.
    """

    def __init__(
        self,
        *,
        keys: KeyPair,
        admission: Admission,
        strangers: StrangerList,
        clock: Clock,
        on_frame: OnFrame,
    ) -> None:
        self.contexts: Final[Mapping[Port, Context]] = make_contexts()
        self._handlers = [
            ZapHandler(context, port, judge=admission.judge, strangers=strangers, clock=clock)
            for port, context in self.contexts.items()
        ]
        self._inboxes: dict[Port, Inbox] = {
            port: Inbox(context, port, keys=keys, clock=clock, on_frame=on_frame)
            for port, context in self.contexts.items()
        }

    def __getitem__(self, port: Port) -> Inbox:
        return self._inboxes[port]

    async def bind(self, hosts: Sequence[str], base_port: int, rng: random.Random) -> int:
        """Listen on exactly these addresses; returns the first port.

        Args:
            hosts: IP addresses of this machine.
            base_port: 0 looks for three that are free.
            rng: Where the looking begins.

        Raises:
            ConfigError: `config.port_busy`, `config.invalid`; what was open before still is.
        """
        _check(hosts)
        if base_port:
            try:
                self._bind_all(hosts, base_port)
            except _NotBoundError as error:
                raise await _refusal(error) from error
            return base_port
        for candidate in _candidates(rng):
            try:
                self._bind_all(hosts, candidate)
            except _NotBoundError as error:
                if error.errno != errno.EADDRINUSE:
                    raise await _refusal(error) from error
            else:
                return candidate
        raise ConfigError(
            "config.port_busy",
            f"no three free ports in a row were found in {N_TRIES} tries",
            remediation="Name one: skulkd --cluster :PORT",
        )

    async def close(self) -> tuple[Port, ...]:
        """Listen no more, and give everything back; returns the ports that would not end in time.

        Every other socket of the contexts must have been closed.
        """
        for inbox in self._inboxes.values():
            inbox.close()
        for handler in self._handlers:
            handler.close()
        late: list[Port] = []
        for port, context in self.contexts.items():
            try:
                async with timeout(TERM_S):
                    await run_blocking(context.term)
            except TimeoutError:
                late.append(port)
        return tuple(late)

    def _bind_all(self, hosts: Sequence[str], base_port: int) -> None:
        added: list[tuple[Inbox, tuple[str, ...]]] = []
        for port, inbox in self._inboxes.items():
            number = port_number(base_port, port)
            try:
                added.append((inbox, inbox.add(hosts, number)))
            except zmq.ZMQError as error:
                for other, addresses in added:
                    other.drop(addresses)
                raise _NotBoundError(error, hosts, number) from error
        for port, inbox in self._inboxes.items():
            inbox.settle(hosts, port_number(base_port, port))


class _NotBoundError(Exception):
    def __init__(self, error: zmq.ZMQError, hosts: Sequence[str], number: int) -> None:
        super().__init__(str(error))
        self.errno = error.errno
        self.hosts = hosts
        self.number = number


def _check(hosts: Sequence[str]) -> None:
    for host in hosts:
        try:
            ipaddress.ip_address(host.partition("%")[0])
        except ValueError as error:
            raise ConfigError(
                "config.invalid",
                f"{host[:100]!r} is not an IP address",
                remediation="Name an address of this machine, or an interface: skulkd --bind",
            ) from error


async def _refusal(error: _NotBoundError) -> ConfigError:
    where = ", ".join(error.hosts)
    if error.errno == errno.EADDRINUSE:
        holders = [await run_blocking(holder_of, host, error.number) for host in error.hosts]
        holder = next((one for one in holders if one), "")
        return ConfigError(
            "config.port_busy",
            f"port {error.number} on {where} is taken" + (f" by {holder}" if holder else ""),
            remediation="Stop what holds it, or set other ports: skulkd --cluster :PORT",
            details={"port": error.number, "host": where, "holder": holder or None},
        )
    return ConfigError(
        "config.invalid",
        f"cannot listen on {where} port {error.number}: {error}",
        remediation="Name addresses of this machine that are up: skulkd --bind",
        details={"port": error.number, "host": where},
    )


def _candidates(rng: random.Random) -> Iterator[int]:
    """Give bases of three ports that no outgoing connection is given.

    The usual one is not among them: who asks for any has another daemon on the machine.
    """
    usual = range(DEFAULT_BASE_PORT - len(PORTS) + 1, DEFAULT_BASE_PORT + len(PORTS))
    highest = _first_ephemeral() - len(PORTS)
    for _ in range(N_TRIES):
        candidate = rng.randrange(LOWEST_BASE, highest + 1)
        if candidate not in usual:
            yield candidate


def _first_ephemeral() -> int:
    try:
        first = int(EPHEMERAL.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return USUAL_EPHEMERAL
    # A system that gives nearly all ports away leaves no room below.
    return first if first > LOWEST_BASE + len(PORTS) else USUAL_EPHEMERAL
