"""Addresses of a node and of its peers: how they are written, and which of its own it uses.

Pure. What the machine has is read in skulkd/cluster/interfaces.py. An address of the cluster is
`HOST:BASE`: three ports in a row, BASE being the first; an IPv6 host stands in brackets.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
)
from typing import Final, Literal

from protocol.envelope import DEFAULT_BASE_PORT, PORTS
from protocol.errors import ConfigError

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

IPV4: Final = 4

DEFAULT_ROUTE: Final = "default"
"""What `--bind` calls the interface of the default route; also what it means when not given."""
MAX_BASE_PORT: Final = (1 << 16) - len(PORTS)

_NAME: Final = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\.?")
_INTERFACE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,63}")
_ZONED: Final = re.compile(r"[0-9A-Fa-f:.]+%[A-Za-z0-9._-]{1,32}")
_KEY: Final = re.compile(r"[0-9a-f]{64}")
_SHOWN_CHARS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class InterfaceAddress:
    """One address of one network interface that is up."""

    interface: str
    host: str
    """The IP address; without brackets or zone."""
    prefix: int
    """How many leading bits its neighbours on the link share."""

    @property
    def ip(self) -> IpAddress:
        """The address as a value."""
        return ip_address(self.host)

    @property
    def network(self) -> IpNetwork:
        """What is on its link."""
        kind = IPv4Network if self.ip.version == IPV4 else IPv6Network
        return kind((self.host, self.prefix), strict=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineAddresses:
    """What one look at the machine has found."""

    addresses: tuple[InterfaceAddress, ...] = ()
    """Sorted."""
    default_interface: str | None = None
    """By which a packet to nowhere in particular would leave; None without a default route."""

    def on(self, interface: str) -> tuple[InterfaceAddress, ...]:
        """Give an interface's usable addresses: IPv4, or without any its IPv6 ones."""
        here = [one for one in self.addresses if one.interface == interface]
        v4 = tuple(one for one in here if one.ip.version == IPV4)
        return v4 or tuple(one for one in here if not one.ip.is_link_local)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bindings:
    """Where a node listens, and what of that which was asked for is not there now."""

    addresses: tuple[InterfaceAddress, ...] = ()
    """In the order in which they were asked for; each once."""
    missing: tuple[str, ...] = ()
    """In words, for the operator. An interface may come later: these are looked for again."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """What to bind."""
        return tuple(one.host for one in self.addresses)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAddress:
    """A peer as an operator named it."""

    public_key: bytes | None
    """None where only the address is known."""
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAddress:
    """Where an operator wants the cluster's ports."""

    host: str | None
    """As for `--bind`; None leaves the choice to it."""
    base_port: int
    """0 has three free ports picked."""


# ---- Text to values and back ----


def join_address(host: str, base_port: int) -> str:
    """Write `HOST:BASE`."""
    return f"[{host}]:{base_port}" if ":" in host else f"{host}:{base_port}"


def split_address(text: str) -> tuple[str, int]:
    """Read `HOST:BASE`; the host is a name, an IPv4 address, or an IPv6 address in brackets.

    Raises:
        ValueError: It is none, in words that go on from "it".
    """
    host, colon, digits = text.rpartition(":")
    if not colon:
        message = "has no port"
        raise ValueError(message)
    port = _port(digits, lowest=1)
    if host.startswith("[") and host.endswith("]"):
        inside = host[1:-1]
        if not _is_ipv6(inside):
            message = "has no IPv6 address between its brackets"
            raise ValueError(message)
        return inside, port
    if ":" in host:
        message = "has colons in its host: an IPv6 address stands in brackets"
        raise ValueError(message)
    if not _is_name_or_ipv4(host):
        message = "has no host name or address before its port"
        raise ValueError(message)
    return host, port


def parse_peer(text: str) -> PeerAddress:
    """Read `[KEY@]HOST:PORT` of `--peer`: KEY is a public key, 64 hexadecimal digits.

    Raises:
        ConfigError: `config.invalid`.
    """
    key, at, address = text.strip().rpartition("@")
    if at and _KEY.fullmatch(key.lower()) is None:
        reason = f"what stands before the @ is no public key: {len(key)} characters"
        raise _invalid("--peer", text, reason, _PEER_REMEDY)
    try:
        host, port = split_address(address)
    except ValueError as error:
        reason = f"it {error}"
        raise _invalid("--peer", text, reason, _PEER_REMEDY) from error
    return PeerAddress(
        public_key=bytes.fromhex(key) if at else None, address=join_address(host, port)
    )


def parse_cluster(text: str) -> ClusterAddress:
    """Read `[HOST:]BASE` of `--cluster`.

    Raises:
        ConfigError: `config.invalid`.
    """
    host, _, digits = text.strip().rpartition(":")
    try:
        base_port = _port(digits, lowest=0)
        bind = _bind_host(host) if host else None
    except ValueError as error:
        reason = f"it {error}"
        raise _invalid("--cluster", text, reason, _CLUSTER_REMEDY) from error
    return ClusterAddress(host=bind, base_port=base_port)


_PEER_REMEDY: Final = (
    f"Write HOST:PORT, such as 192.0.2.7:{DEFAULT_BASE_PORT} or [2001:db8::7]:{DEFAULT_BASE_PORT}, "
    "with KEY@ in front where the peer's public key is known; "
    "`skulk cluster members` on the peer shows both."
)
_CLUSTER_REMEDY: Final = (
    f"Write BASE or HOST:BASE, such as {DEFAULT_BASE_PORT}: that port and the next "
    f"{len(PORTS) - 1} are used; 0 picks free ones."
)
_ADVERTISE_REMEDY: Final = (
    "Write what other machines dial, HOST or HOST:BASE, such as den.example or "
    f"198.51.100.4:{DEFAULT_BASE_PORT}."
)
_BIND_REMEDY: Final = (
    f"Name an interface (eth0), one of this machine's addresses, or `{DEFAULT_ROUTE}` for the "
    "interface of the default route; --bind may be given more than once."
)


# ---- Which of this machine's addresses ----


def bindings(machine: MachineAddresses, bind: Sequence[str] = ()) -> Bindings:
    """Choose the addresses to listen on.

    Args:
        machine: What there is.
        bind: Interface names, addresses, or `default`; nothing means `default`.

    Raises:
        ConfigError: `config.invalid`, for what can name neither an interface nor an address, and
            for the wildcard addresses: a node listens on chosen interfaces only.
    """
    found: dict[InterfaceAddress, None] = {}
    missing: list[str] = []
    for text in bind or (DEFAULT_ROUTE,):
        try:
            wanted = _bind_host(text.strip())
        except ValueError as error:
            reason = f"it {error}"
            raise _invalid("--bind", text, reason, _BIND_REMEDY) from error
        addresses, reason = _matching(machine, wanted)
        found.update(dict.fromkeys(addresses))
        if not addresses:
            missing.append(reason)
    return Bindings(addresses=tuple(found), missing=tuple(missing))


def advertised(
    addresses: Sequence[InterfaceAddress], base_port: int, advertise: Sequence[str] = ()
) -> tuple[str, ...]:
    """Give what others shall dial, as `HOST:BASE`, best first.

    Args:
        addresses: Where this node listens.
        base_port: The first of its ports.
        advertise: `HOST` or `HOST:BASE` as the operator says it; replaces what was found.

    Raises:
        ConfigError: `config.invalid`.
    """
    if advertise:
        return tuple(dict.fromkeys(_advertised(text, base_port) for text in advertise))
    # A link-local address means nothing without the name of the other side's own interface.
    hosts = [one for one in addresses if not (one.ip.version != IPV4 and one.ip.is_link_local)]
    hosts.sort(key=lambda one: one.ip.is_loopback)
    return tuple(join_address(one.host, base_port) for one in hosts)


def is_on_link(host: str, addresses: Iterable[InterfaceAddress]) -> bool:
    """Say whether an IP address is a direct neighbour of one of these; a name never is."""
    try:
        ip = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if ip.is_multicast or ip.is_unspecified:
        return False
    return any(ip.version == one.ip.version and ip in one.network for one in addresses)


def _matching(machine: MachineAddresses, wanted: str) -> tuple[tuple[InterfaceAddress, ...], str]:
    """Give the addresses that a name stands for, or why there are none."""
    if wanted == DEFAULT_ROUTE:
        interface = machine.default_interface or _only_interface(machine)
        if interface is None:
            names = sorted({one.interface for one in machine.addresses if not one.ip.is_loopback})
            seen = ", ".join(names) or "none but loopback"
            return (), f"there is no default route; interfaces with an address: {seen}"
        return machine.on(interface), f"{interface}, the default route's, has no address now"
    try:
        ip = ip_address(wanted)
    except ValueError:
        return machine.on(wanted), f"the interface {wanted} is not there, or has no address now"
    here = tuple(one for one in machine.addresses if one.ip == ip)
    return here, f"the address {wanted} is on none of this machine's interfaces now"


def _only_interface(machine: MachineAddresses) -> str | None:
    """Without a default route: the interface that nobody can confuse with another."""
    names = {one.interface for one in machine.addresses if not one.ip.is_loopback}
    return names.pop() if len(names) == 1 else None


def _advertised(text: str, base_port: int) -> str:
    host = text.strip().removeprefix("[").removesuffix("]")
    if _is_ipv6(host) or _is_name_or_ipv4(host):
        return join_address(host, base_port)
    try:
        return join_address(*split_address(text.strip()))
    except ValueError as error:
        reason = f"it {error}"
        raise _invalid("--advertise", text, reason, _ADVERTISE_REMEDY) from error


def _bind_host(text: str) -> str:
    host = text.removeprefix("[").removesuffix("]") if text.startswith("[") else text
    try:
        ip = ip_address(host.partition("%")[0])
    except ValueError:
        if _INTERFACE.fullmatch(host) is None:
            message = "names neither an interface nor an address"
            raise ValueError(message) from None
        return host
    if ip.is_unspecified:
        message = "stands for every interface there is, and a node listens on chosen ones only"
        raise ValueError(message)
    return str(ip)


def _port(digits: str, *, lowest: Literal[0, 1]) -> int:
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(MAX_BASE_PORT))):
        message = "has no port number at its end"
        raise ValueError(message)
    port = int(digits)
    if not lowest <= port <= MAX_BASE_PORT:
        message = f"has port {port}, which is not between {lowest} and {MAX_BASE_PORT}"
        raise ValueError(message)
    return port


def _is_ipv6(text: str) -> bool:
    if "%" in text and _ZONED.fullmatch(text) is None:
        return False
    try:
        return ip_address(text.partition("%")[0]).version != IPV4
    except ValueError:
        return False


def _is_name_or_ipv4(text: str) -> bool:
    if _NAME.fullmatch(text) is None:
        return False
    if text.replace(".", "").isdigit():
        try:
            return ip_address(text).version == IPV4
        except ValueError:
            return False
    return True


def _invalid(flag: str, text: str, reason: str, remedy: str) -> ConfigError:
    # A key may be pasted in the wrong place; what stands before an @ is not repeated.
    shown = text.rpartition("@")[2][:_SHOWN_CHARS]
    return ConfigError(
        "config.invalid",
        f"{flag}: {shown!r} cannot be used: {reason}",
        remediation=remedy,
        details={"key": flag.removeprefix("--")},
    )
