"""By which interface of this machine an address is reached, and what that interface is.

What is not known is None: an interface that names no speed, or one that means nothing. A tunnel
says 10 Mbit/s and a virtual cable 10 Gbit/s, whatever they carry.
"""

import socket
import string
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from protocol.readings import LinkKind

SYSFS: Final = Path("/sys/class/net")
_MBIT: Final = 1_000_000
_ANY_PORT: Final = 9
_IPV6: Final = 6
_ETHER: Final = "1"
_LOOPBACK: Final = "772"
_NO_LINK_LAYER: Final = "65534"
_NAMES_SPEED: Final[frozenset[LinkKind]] = frozenset({"thunderbolt", "ethernet", "wifi"})
_BY_TYPE: Final[Mapping[str, LinkKind]] = {
    "wlan": "wifi",
    "wireguard": "vpn",
    "bridge": "bridge",
}
_THUNDERBOLT: Final = frozenset({"thunderbolt-net", "thunderbolt_net"})
_MACOS_PREFIXES: Final[Mapping[str, LinkKind]] = {
    "lo": "loopback",
    "utun": "vpn",
    "ipsec": "vpn",
    "ppp": "vpn",
}
_MACOS_THUNDERBOLT: Final = "bridge0"
"""macOS makes this bridge of the machine's Thunderbolt ports; further ones are for sharing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPath:
    """How an address is reached."""

    interface: str | None = None
    kind: LinkKind | None = None
    nominal_bits_s: int | None = None


ReadPaths = Callable[[Iterable[str]], Mapping[str, LinkPath]]
"""Gives the path to each of some IP addresses; blocks."""


def read_paths(hosts: Iterable[str], sysfs: Path = SYSFS) -> dict[str, LinkPath]:
    """Find the paths to some IP addresses. Blocks (1 ms); one without a route has an unknown path.

    Raises:
        OSError: The system does not name its interfaces.
    """
    import psutil  # 10 ms, and a node that is alone never asks

    states = psutil.net_if_stats()
    by_host = {
        entry.address.partition("%")[0]: interface
        for interface, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in {socket.AF_INET, socket.AF_INET6}
    }

    def path_to(host: str) -> LinkPath:
        if host in by_host:  # packets to an address of one's own never reach its interface
            return LinkPath(interface=by_host[host], kind="loopback")
        interface = by_host.get(_source_for(host) or "")
        if interface is None:
            return LinkPath()
        kind = kind_of(interface, sysfs)
        speed_mbit = states[interface].speed if interface in states else 0
        is_named = kind in _NAMES_SPEED and speed_mbit > 0
        return LinkPath(
            interface=interface,
            kind=kind,
            nominal_bits_s=speed_mbit * _MBIT if is_named else None,
        )

    return {host: path_to(host) for host in hosts}


def _source_for(host: str) -> str | None:
    """Have the routing choose the address that packets to a host leave from; nothing is sent."""
    try:
        family = socket.AF_INET6 if ip_address(host).version == _IPV6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.connect((host, _ANY_PORT))
            return str(asking.getsockname()[0]).partition("%")[0]
    except (OSError, ValueError):  # no route; a name, which a resolver would have to be asked for
        return None


def kind_of(interface: str, sysfs: Path = SYSFS) -> LinkKind | None:
    """Say what an interface is; None where the system does not tell."""
    if sys.platform == "darwin":
        return macos_kind(interface)
    folder = sysfs / interface
    link_type = _text(folder / "type")
    if link_type is None:
        return None
    known = _BY_TYPE.get(_device_type(folder))
    if link_type == _LOOPBACK:
        return "loopback"
    if known is not None:
        return known
    if (folder / "wireless").exists() or (folder / "phy80211").exists():
        return "wifi"
    if (folder / "bridge").exists():
        return "bridge"
    if link_type == _NO_LINK_LAYER:
        return "vpn"
    if link_type != _ETHER:
        return "other"
    if not (folder / "device").exists():
        return "virtual"
    driver = (folder / "device" / "driver").resolve().name
    return "thunderbolt" if driver in _THUNDERBOLT else "ethernet"


def macos_kind(interface: str) -> LinkKind | None:
    """Say what an interface of macOS is by its name; one called `en` may be anything."""
    if interface == _MACOS_THUNDERBOLT:
        return "thunderbolt"
    name = interface.rstrip(string.digits)
    return "bridge" if name == "bridge" else _MACOS_PREFIXES.get(name)


def _device_type(folder: Path) -> str:
    for line in (_text(folder / "uevent") or "").splitlines():
        key, _, value = line.partition("=")
        if key == "DEVTYPE":
            return value
    return ""


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
