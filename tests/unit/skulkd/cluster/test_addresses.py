import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError
from skulkd.cluster.addresses import (
    MAX_BASE_PORT,
    Bindings,
    ClusterAddress,
    InterfaceAddress,
    MachineAddresses,
    PeerAddress,
    advertised,
    bindings,
    is_on_link,
    join_address,
    parse_cluster,
    parse_peer,
    split_address,
)

KEY = bytes(range(32))
LAN = InterfaceAddress(interface="eth0", host="192.0.2.7", prefix=24)
LAN6 = InterfaceAddress(interface="eth0", host="2001:db8::7", prefix=64)
LINK6 = InterfaceAddress(interface="eth0", host="fe80::7", prefix=64)
WIFI = InterfaceAddress(interface="wlan0", host="198.51.100.7", prefix=24)
TUNNEL = InterfaceAddress(interface="tun0", host="100.64.0.7", prefix=32)
ONLY6 = InterfaceAddress(interface="six0", host="2001:db8:6::7", prefix=64)
LOOP = InterfaceAddress(interface="lo", host="127.0.0.1", prefix=8)
MACHINE = MachineAddresses(
    addresses=tuple(sorted((LAN, LAN6, LINK6, WIFI, TUNNEL, ONLY6, LOOP))), default_interface="eth0"
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("192.0.2.7:12416", "192.0.2.7", 12416),
        ("den.example:1", "den.example", 1),
        ("den:65533", "den", 65533),
        ("[2001:db8::7]:12416", "2001:db8::7", 12416),
        ("[fe80::7%eth0]:12416", "fe80::7%eth0", 12416),
    ],
)
def test_an_address_is_read_and_written_back(text: str, host: str, port: int) -> None:
    assert split_address(text) == (host, port)
    assert join_address(host, port) == text


BAD_ADDRESSES = [
    "", ":", "den", "den:", ":12416", "den:0", "den:65534", "den:99999", "den:-1", "den:1e3",
    "den: 12416", "den:١٢٣", "2001:db8::7:12416", "[2001:db8::7]", "[den]:12416", "[]:12416",
    "[1.2.3.4]:12416", "300.1.1.1:12416", "1.2.3:12416", "a b:12416", "den/x:12416", "-x:12416",
    "[fe80::7%]:1", "[fe80::7%a b]:1", "x" * 300 + ":1", "den:12416 ",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_ADDRESSES)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="has "):
        split_address(text)


@given(st.text(max_size=40))
def test_no_text_breaks_the_reading_of_addresses(text: str) -> None:
    try:
        host, port = split_address(text)
    except ValueError:
        return
    assert 1 <= port <= MAX_BASE_PORT
    assert split_address(join_address(host, port)) == (host, port)


def test_a_peer_is_named_with_or_without_its_key() -> None:
    assert parse_peer("den:12416") == PeerAddress(public_key=None, address="den:12416")
    named = PeerAddress(public_key=KEY, address="[2001:db8::7]:12416")
    assert parse_peer(f"{KEY.hex()}@[2001:db8::7]:12416") == named
    assert parse_peer(f" {KEY.hex().upper()}@[2001:db8::7]:12416\n") == named


@pytest.mark.parametrize("key", [KEY.hex()[:-1], KEY.hex() + "0", "", "z" * 64, "x@" + KEY.hex()])
def test_a_peer_with_a_wrong_key_is_refused_and_the_key_not_repeated(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_peer(f"{key}@den:12416")
    assert caught.value.code == "config.invalid"
    assert "--peer" in caught.value.message
    assert "KEY@" in caught.value.remediation
    assert not key or key not in str(caught.value)


@pytest.mark.parametrize("text", BAD_ADDRESSES[:-1])
def test_a_peer_with_a_wrong_address_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_peer(text)
    assert caught.value.code == "config.invalid"
    assert "HOST:PORT" in caught.value.remediation
    assert len(str(caught.value)) < 400


def test_the_clusters_ports_are_read() -> None:
    assert parse_cluster("12416") == ClusterAddress(host=None, base_port=12416)
    assert parse_cluster("0") == ClusterAddress(host=None, base_port=0)
    assert parse_cluster("eth0:0") == ClusterAddress(host="eth0", base_port=0)
    assert parse_cluster("127.0.0.1:9000") == ClusterAddress(host="127.0.0.1", base_port=9000)
    assert parse_cluster("[2001:db8::7]:9") == ClusterAddress(host="2001:db8::7", base_port=9)


@pytest.mark.parametrize(
    "text", ["", "eth0", "eth0:", "eth0:65534", "0.0.0.0:12416", "[::]:12416", "a b:12416", "::"]
)
def test_other_ports_are_refused_with_the_form(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cluster(text)
    assert caught.value.code == "config.invalid"
    assert "BASE" in caught.value.remediation


def test_a_node_listens_on_the_default_routes_ipv4_address_unless_told_otherwise() -> None:
    assert bindings(MACHINE) == Bindings(addresses=(LAN,))
    assert bindings(MACHINE, ["default"]) == Bindings(addresses=(LAN,))
    assert bindings(MACHINE).hosts == ("192.0.2.7",)


def test_interfaces_and_addresses_can_be_named_and_each_counts_once() -> None:
    chosen = bindings(MACHINE, ["wlan0", "192.0.2.7", "default", "2001:db8::7", "lo"])
    assert chosen.addresses == (WIFI, LAN, LAN6, LOOP)
    assert chosen.missing == ()


def test_an_interface_without_ipv4_is_used_by_its_ipv6_address() -> None:
    assert bindings(MACHINE, ["six0"]).addresses == (ONLY6,)
    only_link = MachineAddresses(addresses=(LINK6,), default_interface="eth0")
    assert bindings(only_link).addresses == ()


def test_what_is_not_there_now_is_told_and_not_fatal() -> None:
    chosen = bindings(MACHINE, ["tun9", "192.0.2.99", "lo"])
    assert chosen.addresses == (LOOP,)
    assert [name for name in ("tun9", "192.0.2.99") if name in " ".join(chosen.missing)] == [
        "tun9",
        "192.0.2.99",
    ]


def test_without_a_default_route_the_only_interface_is_used_and_never_one_of_several() -> None:
    single = MachineAddresses(addresses=(LAN, LOOP))
    assert bindings(single).addresses == (LAN,)
    several = MachineAddresses(addresses=(LAN, LOOP, WIFI))
    assert bindings(several).addresses == ()
    assert "eth0, wlan0" in bindings(several).missing[0]
    assert "none but loopback" in bindings(MachineAddresses(addresses=(LOOP,))).missing[0]


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::", "[::]"])
def test_the_wildcard_is_refused(wildcard: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bindings(MACHINE, [wildcard])
    assert caught.value.code == "config.invalid"
    assert "chosen ones" in caught.value.message


@pytest.mark.parametrize("text", ["", "a b", "/dev", "x" * 100, "é"])
def test_what_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bindings(MACHINE, [text])
    assert caught.value.code == "config.invalid"


def test_others_are_told_the_addresses_that_they_can_dial_loopback_last() -> None:
    assert advertised([LOOP, LAN, LINK6, LAN6], 12416) == (
        "192.0.2.7:12416",
        "[2001:db8::7]:12416",
        "127.0.0.1:12416",
    )


def test_an_operator_may_say_what_others_dial() -> None:
    said = advertised([LAN], 12416, ["den.example", "198.51.100.4:9000", "2001:db8::1", "[::1]:7"])
    assert said == ("den.example:12416", "198.51.100.4:9000", "[2001:db8::1]:12416", "[::1]:7")
    assert advertised([LAN], 12416, ["den", "den:12416"]) == ("den:12416",)


@pytest.mark.parametrize("text", ["", "den:0", "a b", "300.1.1.1", ":12416"])
def test_what_nobody_can_dial_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        advertised([LAN], 12416, [text])
    assert "--advertise" in caught.value.message


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("192.0.2.200", True),
        ("192.0.3.200", False),
        ("100.64.0.7", True),
        ("100.64.0.8", False),
        ("2001:db8::99", False),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("den", False),
        ("", False),
    ],
)
def test_only_direct_neighbours_are_on_the_link(host: str, expected: bool) -> None:
    assert is_on_link(host, [LAN, TUNNEL]) is expected
