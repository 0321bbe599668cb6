"""The addresses by which other machines reach this node, the best first. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from skulkd.api.auth import is_loopback
from skulkd.cluster.addresses import InterfaceAddress, MachineAddresses
from skulkd.cluster.tailnet import Tailnet

_ANY: Final = {"0.0.0.0": 4, "::": 6}
"""Wildcards, and the version of the addresses that they stand for."""
_INNER: Final = ("br-", "cni", "docker", "lxc", "podman", "veth", "virbr", "vmnet")
"""Beginnings of interfaces to containers and guests of this machine: nobody else is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What this machine is part of."""

    machine: MachineAddresses = field(default_factory=MachineAddresses)
    tailnet: Tailnet | None = None
    certificate_names: tuple[str, ...] = ()
    """Names that clients can check; none without TLS."""

    @property
    def names(self) -> frozenset[str]:
        """Names of this node besides the machine's own."""
        tailnet = {self.tailnet.name} if self.tailnet is not None else set[str]()
        return frozenset(tailnet | set(self.certificate_names)) - {""}


def base_urls(
    listening: Iterable[str], around: Surroundings, *, scheme: str, port: int
) -> tuple[str, ...]:
    """Give the URLs that work from another machine: names first, each once.

    Args:
        listening: Addresses that are listened on, loopback and wildcards among them.
        around: Where this machine is.
        scheme: What is spoken beyond loopback.
        port: Of all of them.
    """
    opened = [host for host in listening if not is_loopback(host)]
    if not opened:
        return ()
    hosts = list(around.certificate_names)
    addresses = [address for host in opened for address in _addresses(host, around)]
    tailnet = around.tailnet
    if tailnet is not None and tailnet.name and set(tailnet.addresses) & _reached(opened, tailnet):
        hosts.append(tailnet.name)
    return tuple(
        f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        for host in dict.fromkeys([*hosts, *addresses])
    )


def _reached(opened: Sequence[str], tailnet: Tailnet) -> set[str]:
    """Give those of a tailnet's addresses that are listened on."""
    versions = {_ANY[host] for host in opened if host in _ANY}
    return {
        host for host in tailnet.addresses if host in opened or ip_address(host).version in versions
    }


def _addresses(host: str, around: Surroundings) -> list[str]:
    version = _ANY.get(host)
    if version is None:
        return [host]
    machine, own = around.machine, around.tailnet
    inside = set(own.addresses) if own is not None else set[str]()

    def rank(one: InterfaceAddress) -> tuple[bool, bool]:
        return one.host in inside, one.interface != machine.default_interface

    usable = [
        one
        for one in machine.addresses
        if one.ip.version == version
        and not one.ip.is_loopback
        and not one.ip.is_link_local
        and not one.interface.startswith(_INNER)
    ]
    return [one.host for one in sorted(usable, key=rank)]
