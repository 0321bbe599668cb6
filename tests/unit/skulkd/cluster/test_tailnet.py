"""Finding the tailnet: by its program, by an address, and never for long."""

import asyncio
import json
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from skulkd.cluster import tailnet as tailnet_module
from skulkd.cluster.addresses import InterfaceAddress, MachineAddresses
from skulkd.cluster.tailnet import Tailnet, find_tailnet

RUNNING = {
    "BackendState": "Running",
    "Self": {"DNSName": "Studio.tail1234.ts.net.", "TailscaleIPs": ["100.101.102.103", "fd7a::1"]},
    "Peer": None,
}
INSIDE = MachineAddresses(
    addresses=(
        InterfaceAddress(interface="eth0", host="192.0.2.7", prefix=24),
        InterfaceAddress(interface="tailscale0", host="100.101.102.103", prefix=32),
    )
)


@pytest.fixture
def program(tmp_path: Path) -> str:
    """A program that is there; what it says is up to whoever runs it."""
    path = tmp_path / "tailscale"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def found(
    said: object, *programs: str, machine: MachineAddresses | None = None
) -> tuple[Tailnet | None, list[tuple[str, ...]]]:
    """Look, with a program that says something, or fails with None."""
    runs: list[tuple[str, ...]] = []

    async def run(argv: Sequence[str], timeout_s: float) -> bytes | None:
        assert timeout_s == tailnet_module.ANSWER_WITHIN_S
        runs.append(tuple(argv))
        return said if isinstance(said, bytes) or said is None else json.dumps(said).encode()

    looked = find_tailnet(machine or MachineAddresses(), run=run, programs=programs)
    return asyncio.run(looked), runs


def test_the_program_tells_name_and_addresses(program: str) -> None:
    tailnet, runs = found(RUNNING, "/nowhere/tailscale", program)
    assert tailnet == Tailnet(
        name="studio.tail1234.ts.net", addresses=("100.101.102.103", "fd7a::1")
    )
    assert runs == [(program, "status", "--json", "--peers=false")]


@pytest.mark.parametrize(
    "said",
    [
        None,
        b"",
        b"not json",
        b"[]",
        b'{"Self": 1}',
        {**RUNNING, "BackendState": "Stopped"},
        {**RUNNING, "Self": None},
        {**RUNNING, "Self": {"DNSName": "evil name/\u2028", "TailscaleIPs": []}},
        {**RUNNING, "Self": {"DNSName": "a.ts.net.", "TailscaleIPs": ["not an address"]}},
        {**RUNNING, "Self": {"DNSName": "a" * 300, "TailscaleIPs": []}},
    ],
)
def test_a_program_that_tells_nothing_of_use_is_not_believed(program: str, said: object) -> None:
    tailnet, runs = found(said, program)
    assert tailnet is None
    assert len(runs) == 1


def test_without_the_program_nobody_is_asked_where_no_address_is_in_the_range() -> None:
    assert found(RUNNING, "/nowhere/tailscale") == (None, [])


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("Studio.tail1234.ts.net", "studio.tail1234.ts.net"),
        ("100-101-102-103.provider.example", ""),
        (OSError("no name"), ""),
    ],
)
def test_an_address_in_the_range_shows_a_tailnet_whose_name_a_resolver_may_tell(
    monkeypatch: pytest.MonkeyPatch, told: str | OSError, name: str
) -> None:
    async def getnameinfo(_loop: object, address: tuple[str, int], flags: int) -> tuple[str, str]:
        assert (address, flags) == (("100.101.102.103", 0), socket.NI_NAMEREQD)
        if isinstance(told, OSError):
            raise told
        return told, "0"

    monkeypatch.setattr(asyncio.BaseEventLoop, "getnameinfo", getnameinfo)
    tailnet, _ = found(None, machine=INSIDE)
    assert tailnet == Tailnet(name=name, addresses=("100.101.102.103",))


def test_a_resolver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def getnameinfo(*_: object) -> tuple[str, str]:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(asyncio.BaseEventLoop, "getnameinfo", getnameinfo)
    monkeypatch.setattr(tailnet_module, "ANSWER_WITHIN_S", 0.05)
    tailnet, _ = found(None, machine=INSIDE)
    assert tailnet == Tailnet(addresses=("100.101.102.103",))
