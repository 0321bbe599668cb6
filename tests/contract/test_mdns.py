"""What only real mDNS can do wrong: conflicts, broken interfaces, garbage, and too many packets."""

import asyncio
import errno
import socket
import struct
from collections.abc import Callable

import pytest
from zeroconf import ServiceInfo, Zeroconf
from zeroconf.asyncio import AsyncZeroconf

from skulkd.cluster import mdns
from skulkd.cluster.addresses import InterfaceAddress
from skulkd.cluster.discovery import Announcement, DiscoveryStatus
from skulkd.cluster.mdns import GROUP, SERVICE_TYPE, service_info
from skulkd.cluster.mdns_discovery import MdnsDiscovery
from skulkd.cluster.packet_pace import ALARM_SECONDS, MAX_PACKETS_PER_S
from tests.support.announcements import announcement_of

LOOPBACK = InterfaceAddress(interface="lo", host="127.0.0.1", prefix=8)
NOBODY = InterfaceAddress(interface="gone0", host="203.0.113.1", prefix=24)
PATIENCE_S = 20.0
MDNS_PORT = 5353


async def _wait(
    discovery: MdnsDiscovery, is_met: Callable[[DiscoveryStatus], bool]
) -> DiscoveryStatus:
    async with asyncio.timeout(PATIENCE_S):
        while not is_met(discovery.status()):
            await asyncio.sleep(0.02)
    return discovery.status()


def test_an_interface_that_is_gone_is_a_warning_and_disturbs_no_other() -> None:
    async def main() -> None:
        discovery = MdnsDiscovery(announcement_of(11).node_id)
        discovery.set_addresses([NOBODY])
        status = await _wait(discovery, lambda status: status.state == "failed")
        assert "203.0.113.1" in status.warning
        discovery.set_addresses([LOOPBACK, NOBODY])
        status = await _wait(discovery, lambda status: status.state == "on")
        assert status.hosts == ("127.0.0.1",)
        assert "203.0.113.1" in status.warning
        discovery.set_addresses([LOOPBACK])
        status = await _wait(discovery, lambda status: not status.warning)
        assert (status.state, status.hosts) == ("on", ("127.0.0.1",))
        discovery.set_addresses([])
        status = await _wait(discovery, lambda status: status.state == "waiting")
        assert status.hosts == ()
        await discovery.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "error", [PermissionError(errno.EPERM, "not permitted"), RuntimeError("a bug of the library")]
)
def test_whatever_the_library_meets_the_node_goes_on(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Zeroconf, "__init__", fail)

    async def main() -> None:
        discovery = MdnsDiscovery(announcement_of(12).node_id)
        discovery.announce(announcement_of(12))
        discovery.set_addresses([LOOPBACK])
        status = await _wait(discovery, lambda status: status.state == "failed")
        assert str(error) in status.warning
        await discovery.close()

    asyncio.run(main())


def test_an_id_that_another_machine_announces_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mdns, "FIRST_RETRY_S", 0.2)

    async def main() -> None:
        said = announcement_of(13)
        original, copy = MdnsDiscovery(said.node_id), MdnsDiscovery(said.node_id)
        original.announce(said)
        original.set_addresses([LOOPBACK])
        await _wait(original, lambda status: status.state == "on" and status.n_sent >= 6)
        copy.announce(said)
        copy.set_addresses([LOOPBACK])
        status = await _wait(copy, lambda status: "own id" in status.warning)
        assert status.state == "on"
        assert not original.status().warning
        # The goodbye of the original frees the name, a second later.
        await original.close()
        await _wait(copy, lambda status: not status.warning)
        await copy.close()

    asyncio.run(main())


def test_what_is_not_of_the_form_is_counted_and_never_listed() -> None:
    async def main() -> None:
        good = announcement_of(14)
        listener = MdnsDiscovery(announcement_of(15).node_id)
        listener.set_addresses([LOOPBACK])
        await _wait(listener, lambda status: status.state == "on")
        neighbour = AsyncZeroconf(interfaces=["127.0.0.1"])
        wrong = [
            ServiceInfo(SERVICE_TYPE, f"den.{SERVICE_TYPE}", 12416, parsed_addresses=["127.0.0.1"]),
            service_info(good, ["198.51.100.1"]),
        ]
        wrong[0].text = b"\x05hello\xff"
        for info in wrong:
            # The library leaves open what the inner awaitable gives.
            await (await neighbour.async_register_service(info))  # pyright: ignore[reportUnknownMemberType]
        status = await _wait(listener, lambda status: bool(status.n_garbled and status.n_off_link))
        assert good.node_id not in {one.node_id for one in listener.sightings()}
        assert status.state == "on"
        await neighbour.async_close()
        await listener.close()

    asyncio.run(main())


def _ear() -> socket.socket:
    """Hear what is multicast on loopback."""
    ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    ear.bind(("", MDNS_PORT))
    membership = socket.inet_aton(GROUP) + socket.inet_aton("127.0.0.1")
    ear.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    ear.setblocking(False)
    return ear


def _question(number: int) -> bytes:
    """Ask for our service, each time as another would."""
    header = struct.pack("!6H", number, 0, 1, 0, 0, 0)
    labels = b"".join(bytes([len(part)]) + part for part in (b"_skulk", b"_tcp", b"local"))
    return header + labels + b"\0" + struct.pack("!2H", 12, 1)


async def _heard_of(
    ear: socket.socket, said: Announcement, for_s: float
) -> list[tuple[float, int]]:
    """Collect when, and how long, the packets were that name this node."""
    loop = asyncio.get_running_loop()
    packets: list[tuple[float, int]] = []
    try:
        async with asyncio.timeout(for_s):
            while True:
                packet = await loop.sock_recv(ear, 9000)
                if said.node_id.encode() in packet:
                    packets.append((loop.time(), len(packet)))
    except TimeoutError:
        return packets


def test_announcements_are_short_and_at_most_five_packets_leave_in_a_second() -> None:
    async def main() -> None:
        said = announcement_of(16)
        discovery = MdnsDiscovery(said.node_id)
        with _ear() as ear:
            discovery.announce(said)
            discovery.set_addresses([LOOPBACK])
            quiet = await _heard_of(ear, said, 3.0)
            assert len(quiet) >= 6  # three probes, three announcements
            assert max(size for _, size in quiet) < 400
            sent = discovery.status().n_sent
            # A crowd that asks without end, from many ports, so that nobody counts as the same.
            asking = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(50)]
            for number, one in enumerate(asking * 4):
                one.sendto(_question(number), ("127.0.0.1", MDNS_PORT))
            await _heard_of(ear, said, 1.0)
            for one in asking:
                one.close()
            status = discovery.status()
            # What is sent counts when it gets its slot, up to three seconds ahead.
            assert 0 < status.n_sent - sent <= 5 * MAX_PACKETS_PER_S
            assert status.n_withheld > 100
            assert not status.warning
            assert status.state == "on"
            times = [at_s for at_s, _ in quiet]
            for first, sixth in zip(times, times[MAX_PACKETS_PER_S:], strict=False):
                assert sixth - first > 0.95
        await discovery.close()

    asyncio.run(main())


def test_a_node_that_is_kept_from_sending_for_long_says_so() -> None:
    async def main() -> None:
        discovery = MdnsDiscovery(announcement_of(17).node_id)
        discovery.set_addresses([LOOPBACK])
        await _wait(discovery, lambda status: status.state == "on")
        now_s = asyncio.get_running_loop().time()
        pace = discovery._thread.pace  # pyright: ignore[reportPrivateUsage]  twice 5 s of a flood
        for second in range(ALARM_SECONDS):
            for _ in range(30):
                pace.reserve(1, now_s=now_s - ALARM_SECONDS + second)
        status = discovery.status()
        assert "5 mDNS packets a second" in status.warning
        assert str(status.n_withheld) in status.warning
        await discovery.close()

    asyncio.run(main())


def test_an_address_that_a_neighbour_has_given_up_is_forgotten_within_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Between the library's looks for what is over; 10 s outside of tests.
    monkeypatch.setattr("zeroconf._engine._CACHE_CLEANUP_INTERVAL", 1)

    async def main() -> None:
        listener, said = MdnsDiscovery(announcement_of(18).node_id), announcement_of(19)
        listener.set_addresses([LOOPBACK])
        await _wait(listener, lambda status: status.state == "on")
        neighbour = AsyncZeroconf(interfaces=["127.0.0.1"])
        moved = service_info(said, ["127.0.0.9"])
        # The library leaves open what the inner awaitables give.
        await (  # pyright: ignore[reportUnknownVariableType]
            await neighbour.async_register_service(service_info(said, ["127.0.0.8"]))  # pyright: ignore[reportUnknownMemberType]
        )
        assert _addresses(listener, said) == ("127.0.0.8:12416",)
        await asyncio.sleep(1.5)  # what is younger than a second is not replaced (RFC 6762, 10.2)
        await (await neighbour.async_update_service(moved))  # pyright: ignore[reportUnknownMemberType]
        async with asyncio.timeout(PATIENCE_S):
            while _addresses(listener, said) != ("127.0.0.9:12416",):
                await asyncio.sleep(0.05)
        await neighbour.async_close()
        await listener.close()

    asyncio.run(main())


def _addresses(listener: MdnsDiscovery, said: Announcement) -> tuple[str, ...]:
    found = [one.addresses for one in listener.sightings() if one.node_id == said.node_id]
    return found[0] if found else ()
