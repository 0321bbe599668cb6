"""Whether the addresses in the settings can mean something, before anything is started."""

from protocol.envelope import DEFAULT_BASE_PORT
from protocol.errors import ConfigError
from skulkd.cluster.addresses import (
    MachineAddresses,
    advertised,
    bindings,
    parse_cluster,
    parse_peer,
)
from skulkd.config import Settings


def check_addresses(settings: Settings) -> None:
    """Refuse addresses that can mean nothing.

    Raises:
        ConfigError: `config.invalid`, naming the option and what it takes.
    """
    wanted = parse_cluster(settings.cluster_address)
    if wanted.host is not None and settings.bind:
        raise ConfigError(
            "config.invalid",
            f"--cluster {settings.cluster_address} names a host, and --bind names others",
            remediation="Name the host in one of the two: --cluster BASE --bind NAME.",
            details={"key": "bind"},
        )
    bindings(MachineAddresses(), settings.bind)
    advertised((), wanted.base_port or DEFAULT_BASE_PORT, settings.advertise)
    for text in settings.peers:
        parse_peer(text)
