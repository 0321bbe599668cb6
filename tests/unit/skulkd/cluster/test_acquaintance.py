import pytest

from protocol.envelope import WIRE_VERSION, Port
from protocol.hello import Hello, OtherWire, hello_frame
from protocol.ids import cluster_id_of, node_id_of
from skulkd.cluster.acquaintance import Acquaintance, Connection

OWN, PEER = node_id_of(b"o" * 32), node_id_of(b"p" * 32)
CLUSTER = cluster_id_of(b"c" * 16)
HOST = "10.0.0.7"
KEY: tuple[Port, bytes] = ("election", b"1")


def _hello(node: str = PEER, **changes: object) -> Hello:
    fields = {
        "wire": WIRE_VERSION,
        "build": "0.2",
        "node_id": node,
        "boot_id": "b1",
        "cluster_id": CLUSTER,
        "base_port": 12416,
    }
    return Hello.model_validate(fields | changes)


OWN_HELLO = _hello(OWN, build="0.1")


def _met() -> Acquaintance:
    acquaintance = Acquaintance(PEER)
    assert acquaintance.meet(("election", b"1"), Connection("election", 5, HOST))
    return acquaintance


def test_a_hello_in_order_tells_build_boot_and_where_to_dial() -> None:
    acquaintance = _met()
    assert not acquaintance.hear(_hello(), OWN_HELLO, now_s=1.0)
    assert (acquaintance.build, acquaintance.boot_id) == ("0.2", "b1")
    assert acquaintance.address == f"{HOST}:12416"


def test_an_ipv6_host_stands_in_brackets() -> None:
    acquaintance = Acquaintance(PEER)
    acquaintance.meet(("election", b"1"), Connection("election", 5, "fd00::7"))
    acquaintance.hear(_hello(), OWN_HELLO, now_s=1.0)
    assert acquaintance.address == "[fd00::7]:12416"


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        (OtherWire(9, "9.9"), ("9", "9.9", "0.1", "same build")),
        (_hello(OWN), (PEER, OWN, "calls itself")),
        (
            _hello(cluster_id=cluster_id_of(b"other" * 4)),
            (CLUSTER, "join again"),
        ),
    ],
)
def test_what_is_wrong_with_a_hello_is_said_in_words(
    hello: Hello | OtherWire, words: tuple[str, ...]
) -> None:
    acquaintance = _met()
    reason = acquaintance.hear(hello, OWN_HELLO, now_s=1.0)
    assert [word for word in words if word not in reason] == []
    assert acquaintance.address is None


def test_a_connection_is_new_once_and_the_newest_sixteen_are_known() -> None:
    acquaintance = _met()
    assert not acquaintance.meet(("election", b"1"), Connection("election", 5, HOST))
    for number in range(100):
        assert acquaintance.meet(("bulk", b"%d" % number), Connection("bulk", number, HOST))
    assert [one.fd for one in acquaintance.connections()] == list(range(84, 100))


def test_two_boots_from_two_hosts_are_a_duplicate() -> None:
    acquaintance = _met()
    for second in range(10):
        host, boot_id = ((HOST, "b1"), ("10.0.0.8", "b2"))[second % 2]
        acquaintance.meet(("election", b"%d" % second), Connection("election", second, host))
        acquaintance.hear(_hello(boot_id=boot_id), OWN_HELLO, now_s=float(second))
    found = acquaintance.duplicate(10.0)
    assert found is not None
    base = _hello().base_port
    assert found.addresses == (f"{HOST}:{base}", f"10.0.0.8:{base}")


def test_two_boots_on_one_host_are_told_apart_by_their_ports() -> None:
    acquaintance = _met()
    for second in range(10):
        boot_id, base = (("b1", 1000), ("b2", 2000))[second % 2]
        hello = _hello(boot_id=boot_id).model_copy(update={"base_port": base})
        acquaintance.hear(hello, OWN_HELLO, now_s=float(second))
    found = acquaintance.duplicate(10.0)
    assert found is not None
    assert found.addresses == (f"{HOST}:1000", f"{HOST}:2000")


def _heard(acquaintance: Acquaintance, hello: Hello, now_s: float) -> bytes:
    """Have it hear a hello as it comes over a connection; gives its bytes."""
    data = hello_frame(hello)[1:]
    acquaintance.hear(acquaintance.read(data), OWN_HELLO, now_s=now_s)
    return data


def test_a_repeated_hello_need_not_be_read_and_counts_as_a_sign_of_its_process() -> None:
    acquaintance = _met()
    first = _heard(acquaintance, _hello(), 1.0)
    _heard(acquaintance, _hello(boot_id="b2"), 2.0)
    assert not acquaintance.is_repeated(KEY, first, OWN_HELLO, now_s=3.0), "another spoke since"
    _heard(acquaintance, _hello(), 3.0)
    for now_s in (6.0, 9.0, 12.0):
        assert acquaintance.is_repeated(KEY, first, OWN_HELLO, now_s=now_s)
    _heard(acquaintance, _hello(boot_id="b2"), 12.5)
    found = acquaintance.duplicate(12.5)
    assert found is not None
    assert found.boot_ids == ("b1", "b2")


@pytest.mark.parametrize("case", ["connection", "host", "own", "refused", "bytes"])
def test_a_hello_counts_as_repeated_only_where_nothing_has_changed(case: str) -> None:
    acquaintance, key, own = _met(), KEY, OWN_HELLO
    data = _heard(acquaintance, _hello(), 1.0)
    assert acquaintance.is_repeated(key, data, own, now_s=2.0)
    match case:
        case "connection":
            key = ("election", b"2")
        case "host":
            acquaintance.meet(("election", b"2"), Connection("election", 6, "10.0.0.8"))
        case "own":
            own = _hello(OWN, build="0.1", base_port=99)
        case "refused":
            _heard(acquaintance, _hello(cluster_id=cluster_id_of(b"other" * 4)), 2.5)
        case _:
            data += b" "
    assert not acquaintance.is_repeated(key, data, own, now_s=3.0)
