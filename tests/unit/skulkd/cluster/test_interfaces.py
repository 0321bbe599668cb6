import asyncio
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from skulkd.cluster import interfaces
from skulkd.cluster.addresses import InterfaceAddress, MachineAddresses
from skulkd.cluster.interfaces import AddressWatcher, default_route_in, read_machine
from skulkd.runtime.tasks import Tasks, sleep
from skulkd.runtime.virtual_time import run_virtual

HEADER = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"


def _machine(*hosts: str) -> MachineAddresses:
    found = (InterfaceAddress(interface="eth0", host=host, prefix=24) for host in hosts)
    return MachineAddresses(addresses=tuple(found), default_interface="eth0")


OLD, NEW, THIRD = _machine("192.0.2.1"), _machine("192.0.2.2"), _machine("192.0.2.3")


def test_the_default_route_with_the_lowest_metric_counts() -> None:
    table = HEADER + (
        "wlan0 00000000 010200C0 0003 0 0 600 00000000 0 0 0\n"
        "eth0 00000000 010200C0 0003 0 0 100 00000000 0 0 0\n"
        "eth0 000200C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n"
        "tun0 00000000 010200C0 0003 0 0 0 00000080 0 0 0\n"
        "down0 00000000 010200C0 0002 0 0 0 00000000 0 0 0\n"
        "short\n"
    )
    assert default_route_in(table) == "eth0"
    assert default_route_in(HEADER) is None
    assert default_route_in("") is None


def test_this_machine_has_loopback_and_only_well_formed_addresses() -> None:
    machine = read_machine()
    assert "127.0.0.1" in {one.host for one in machine.addresses}
    assert [one for one in machine.addresses if one.ip not in one.network] == []
    assert list(machine.addresses) == sorted(machine.addresses)


def test_without_a_routing_table_the_routing_is_asked(tmp_path: Path) -> None:
    by_table, by_asking = read_machine(), read_machine(tmp_path / "none")
    assert by_asking.addresses == by_table.addresses
    assert by_asking.default_interface in {None, by_table.default_interface}


def test_a_machine_without_a_route_has_no_default_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interfaces, "_OUTSIDE", ("255.255.255.255", 9))  # refused: no broadcast
    assert read_machine(tmp_path / "none").default_interface is None


def test_interfaces_that_are_down_and_links_without_a_mask_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = {
        "down0": [Entry("192.0.2.1", "255.255.255.0")],
        "ptp0": [Entry("100.64.0.1", None), Entry("x:y", None, psutil.AF_LINK)],
        "six0": [Entry("fe80::1%six0", "ffff:ffff:ffff:ffff::", socket.AF_INET6)],
    }
    states = {"down0": State(isup=False), "ptp0": State(isup=True)}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)
    assert read_machine().addresses == (
        InterfaceAddress(interface="ptp0", host="100.64.0.1", prefix=32),
        InterfaceAddress(interface="six0", host="fe80::1", prefix=64),
    )


@dataclass
class Entry:
    address: str
    netmask: str | None
    family: int = socket.AF_INET


@dataclass
class State:
    isup: bool


class Looks:
    """What each look finds, the last one for ever; None fails."""

    def __init__(self, *found: MachineAddresses | None) -> None:
        self._found = list(found)

    def __call__(self) -> MachineAddresses:
        found = self._found.pop(0) if len(self._found) > 1 else self._found[0]
        if found is None:
            raise OSError(1, "not now")
        return found


def _watched(*found: MachineAddresses | None, for_s: float) -> list[tuple[float, MachineAddresses]]:
    told: list[tuple[float, MachineAddresses]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        tasks = Tasks("test", on_death=lambda story, error: pytest.fail(story))
        watcher = AddressWatcher(
            OLD, lambda machine: told.append((loop.time(), machine)), read=Looks(*found)
        )
        tasks.start(watcher.run(), name="watch")
        await sleep(for_s)
        assert await tasks.close(1.0) == ()

    run_virtual(main)
    return told


def test_a_change_is_told_once_it_has_stood_for_three_seconds() -> None:
    assert _watched(OLD, NEW, for_s=60) == [(23.0, NEW)]


def test_a_flap_that_goes_back_is_not_told() -> None:
    assert _watched(NEW, OLD, for_s=60) == []


def test_a_change_that_changes_again_is_told_in_its_last_form() -> None:
    assert _watched(NEW, THIRD, for_s=60) == [(16.0, THIRD)]


def test_addresses_that_never_rest_are_taken_as_they_are_in_the_end() -> None:
    restless = [NEW, THIRD] * 6
    assert _watched(*restless, for_s=41) == [(40.0, NEW)]


def test_a_look_that_fails_changes_nothing_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert _watched(None, None, None, NEW, for_s=60) == [(43.0, NEW)]
    assert len([record for record in caplog.records if "cannot be read" in record.message]) == 1
