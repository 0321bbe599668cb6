"""Whose daemon answers at an address of this machine: the user that its socket belongs to.

Linux tells it in /proc/net/tcp and tcp6; elsewhere, and for other machines, it is not known.
"""

import os
import socket
import sys
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from skulk_tui.target import Target

MAX_BYTES: Final = 4 << 20
_LISTENING: Final = "0A"
_PORTS: Final = {"http": 80, "https": 443}
_WORD_DIGITS: Final = 8
"""The kernel writes addresses in words of 32 bits, each in the machine's byte order."""
_FIELDS: Final = 8
_PROC_NET: Final = Path("/proc/net")

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The user that a listening socket belongs to."""

    uid: int
    name: str
    """The uid in digits where the machine knows no name for it."""
    is_me: bool


def owner_of(target: Target, *, proc_net: Path = _PROC_NET) -> Owner | None:
    """Find who listens at a loopback address; None where that cannot be told."""
    if not target.is_loopback:
        return None
    parts = urlsplit(target.url)
    port = parts.port or _PORTS.get(parts.scheme, 0)
    listeners = [
        (address, uid)
        for name in ("tcp", "tcp6")
        for address, listened, uid in _listeners(proc_net / name)
        if listened == port
    ]
    # A socket of the very address is asked before one that listens everywhere.
    for uids in (_at(listeners, parts.hostname or ""), _everywhere(listeners)):
        if len(uids) == 1:
            return _owner(uids.pop())
        if uids:
            return None
    return None


def _at(listeners: list[tuple[Address, int]], host: str) -> set[int]:
    if host == "localhost" or host.endswith(".localhost"):
        return {uid for address, uid in listeners if address.is_loopback}
    return {uid for address, uid in listeners if address == ip_address(host)}


def _everywhere(listeners: list[tuple[Address, int]]) -> set[int]:
    return {uid for address, uid in listeners if address.is_unspecified}


def _listeners(path: Path) -> list[tuple[Address, int, int]]:
    """Read the listening sockets of one table: address, port, uid."""
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            lines = file.read(MAX_BYTES).splitlines()[1:]
    except OSError:
        return []
    found: list[tuple[Address, int, int]] = []
    for line in lines:
        fields = line.split()
        if len(fields) < _FIELDS or fields[3] != _LISTENING:
            continue
        host, _, port = fields[1].partition(":")
        try:
            found.append((_address(host), int(port, 16), int(fields[7])))
        except ValueError:  # a kernel that writes it otherwise
            continue
    return found


def _address(digits: str) -> Address:
    words = [digits[at : at + _WORD_DIGITS] for at in range(0, len(digits), _WORD_DIGITS)]
    raw = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return ip_address(socket.inet_ntop(family, raw))


def _owner(uid: int) -> Owner:
    import pwd

    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    return Owner(uid=uid, name=name, is_me=uid == os.getuid())
