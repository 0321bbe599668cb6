"""What an interface is, and which of them leads to an address."""

from pathlib import Path

import pytest

from skulkd.cluster.link_paths import LinkPath, kind_of, macos_kind, read_paths


def interface(
    sysfs: Path, *, link_type: str = "1", device_type: str = "", marks: tuple[str, ...] = ()
) -> None:
    """Write what the kernel says of an interface called `test0`."""
    folder = sysfs / "test0"
    folder.mkdir()
    (folder / "type").write_text(f"{link_type}\n")
    lines = [f"DEVTYPE={device_type}"] if device_type else []
    (folder / "uevent").write_text("\n".join([*lines, "INTERFACE=test0"]))
    for mark in marks:
        (folder / mark).mkdir(parents=True)


@pytest.mark.parametrize(
    ("link_type", "device_type", "marks", "kind"),
    [
        ("1", "", ("device",), "ethernet"),
        ("1", "wlan", ("device",), "wifi"),
        ("1", "", ("device", "wireless"), "wifi"),
        ("1", "bridge", (), "bridge"),
        ("1", "", ("bridge",), "bridge"),
        ("1", "", (), "virtual"),
        ("1", "vlan", (), "virtual"),
        ("65534", "", (), "vpn"),
        ("65534", "wireguard", (), "vpn"),
        ("772", "", (), "loopback"),
        ("32", "", ("device",), "other"),
    ],
)
def test_an_interface_is_what_the_kernel_says(
    tmp_path: Path, link_type: str, device_type: str, marks: tuple[str, ...], kind: str
) -> None:
    interface(tmp_path, link_type=link_type, device_type=device_type, marks=marks)
    assert kind_of("test0", tmp_path) == kind


def test_a_cable_between_thunderbolt_ports_is_known_by_its_driver(tmp_path: Path) -> None:
    interface(tmp_path, marks=("device",))
    (tmp_path / "drivers" / "thunderbolt-net").mkdir(parents=True)
    (tmp_path / "test0" / "device" / "driver").symlink_to(tmp_path / "drivers" / "thunderbolt-net")
    assert kind_of("test0", tmp_path) == "thunderbolt"


def test_an_interface_that_has_gone_is_unknown(tmp_path: Path) -> None:
    assert kind_of("test0", tmp_path) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("lo0", "loopback"),
        ("utun4", "vpn"),
        ("bridge0", "thunderbolt"),
        ("bridge100", "bridge"),
        ("en0", None),
    ],
)
def test_macos_names_some_interfaces_and_of_the_others_nothing_is_said(
    name: str, kind: str | None
) -> None:
    assert macos_kind(name) == kind


def test_an_address_of_this_machine_is_reached_by_loopback_and_names_no_speed() -> None:
    path = read_paths(["127.0.0.1"])["127.0.0.1"]
    assert path.kind == "loopback"
    assert path.interface
    assert path.nominal_bits_s is None


def test_what_no_route_leads_to_and_what_is_no_address_is_unknown() -> None:
    assert read_paths(["a.name.example"]) == {"a.name.example": LinkPath()}
