"""Where a guest may have a member dial, and what is said of each address that led nowhere."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from protocol.codec import encode_values, pack
from protocol.errors import ClusterError
from protocol.joining import JoinConfirmed, JoinRefusal, JoinRequest
from skulkd.cluster.guests import JoinStage, join_failed
from skulkd.cluster.reach import MAX_DIALLED, WayBack
from skulkd.runtime.identity import KeyPair
from tests.support.joins import identity_of, request_of

OWN = identity_of(1)
GUEST = identity_of(2)
DIGEST = b"d" * 32
CONFIRMED = pack(JoinConfirmed(build="b", digest=DIGEST))


class Dialler:
    """Notes who is dialled; answers, or fails at a stage."""

    def __init__(self, answers: Mapping[str, bytes | JoinStage] | None = None) -> None:
        self._answers = answers or {}
        self.dialled: list[str] = []

    async def ask(
        self,
        address: str,
        *,
        server_key: bytes,
        guest: KeyPair,
        payload: bytes,
        timeout_s: float,
    ) -> bytes:
        assert (server_key, guest) == (GUEST.keys.public_key, OWN.keys)
        assert DIGEST in payload
        self.dialled.append(address)
        host, _, port = address.rpartition(":")
        answer = self._answers.get(host, CONFIRMED)
        if isinstance(answer, str):
            raise join_failed(answer, host, int(port))
        return answer


def _request(*addresses: str) -> JoinRequest:
    return request_of(GUEST, addresses=addresses)


def _prove(
    dialler: Dialler,
    *addresses: str,
    came_from: str = "192.0.2.7",
    is_source_only: bool = False,
    is_neighbour: Callable[[str], bool] = lambda host: host.startswith("10.0.0."),
    named_hosts: frozenset[str] = frozenset(),
) -> ClusterError | None:
    way = WayBack(
        make_dialler=lambda: dialler,
        keys=OWN.keys,
        build="b",
        is_neighbour=is_neighbour,
        named_hosts=named_hosts,
    )
    proving = way.prove(
        _request(*addresses), DIGEST, came_from=came_from, is_source_only=is_source_only
    )
    found: ClusterError | None = None
    try:
        asyncio.run(proving)
    except ClusterError as error:
        found = error
    if found is not None:
        assert found.code == "cluster.join_refused"
        assert found.message.startswith("incoming: ")
        assert found.details["direction"] == "incoming"
    return found


def test_one_address_that_confirms_is_enough() -> None:
    dialler = Dialler({"10.0.0.2": "nobody_listens"})
    assert _prove(dialler, "10.0.0.2:12416", "10.0.0.3:12416", "10.0.0.4:12416") is None
    assert dialler.dialled == ["10.0.0.2:12416", "10.0.0.3:12416"]


@pytest.mark.parametrize(
    "address", ["169.254.169.254:80", "127.0.0.1:22", "8.8.8.8:53", "[2001:db8::1]:12416"]
)
def test_neither_strangers_nor_this_machine_are_dialled_for_a_guest(address: str) -> None:
    dialler = Dialler()
    error = _prove(dialler, address)
    assert dialler.dialled == []
    assert error is not None
    assert error.details["stage"] == "no_neighbour"
    assert "--peer" in error.remediation
    assert "--advertise" in error.remediation


@pytest.mark.parametrize(
    ("address", "came_from"),
    [("192.0.2.7:12416", "192.0.2.7"), ("[2001:db8::7]:12416", "2001:db8:0::7")],
)
def test_a_guest_is_dialled_where_it_comes_from_however_far_that_is(
    address: str, came_from: str
) -> None:
    dialler = Dialler()
    assert _prove(dialler, address, came_from=came_from) is None
    assert dialler.dialled == [address]


def test_a_host_that_the_operator_has_named_is_dialled() -> None:
    assert _prove(Dialler(), "198.51.100.1:12416", named_hosts=frozenset({"198.51.100.1"})) is None


def test_where_only_the_source_may_be_dialled_neighbours_are_not() -> None:
    dialler = Dialler()
    named = frozenset({"10.0.0.3"})
    for address in ("10.0.0.2:12416", "10.0.0.3:12416"):
        assert _prove(dialler, address, is_source_only=True, named_hosts=named) is not None
    assert dialler.dialled == []
    assert _prove(dialler, "192.0.2.7:12416", is_source_only=True, named_hosts=named) is None


def test_a_name_is_dialled_at_the_address_that_was_judged() -> None:
    dialler = Dialler()
    assert _prove(dialler, "localhost:12416") is not None
    assert dialler.dialled == []
    assert _prove(dialler, "localhost:12416", is_neighbour=lambda host: host == "127.0.0.1") is None
    assert dialler.dialled == ["127.0.0.1:12416"]


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example"])
def test_a_name_that_no_name_service_can_be_asked_for_is_told(host: str) -> None:
    error = _prove(Dialler(), f"{host}:12416")
    assert error is not None
    assert host in error.message
    assert error.details["stage"] == "no_route"


def test_more_addresses_than_any_machine_has_are_not_tried() -> None:
    hosts = [f"10.0.0.{number}" for number in range(1, 16)]
    addresses = [f"{host}:12416" for host in hosts]
    dialler = Dialler(dict.fromkeys(hosts, "nobody_listens"))
    assert _prove(dialler, *addresses) is not None
    assert dialler.dialled == addresses[:MAX_DIALLED]


@pytest.mark.parametrize(
    ("stage", "what", "remedy"),
    [
        ("no_route", "no connection to 10.0.0.2 port 12416", "ufw allow 12416:12418/tcp"),
        ("nobody_listens", "nobody listens at 10.0.0.2 port 12416", "ufw allow 12416:12418/tcp"),
        ("not_the_server", "10.0.0.2 port 12416 does not have the guest's key", "--advertise"),
        ("key_refused", "10.0.0.2 port 12416 refuses this member's key", "same build"),
        ("no_answer", "10.0.0.2 port 12416 does not say in time", "same build"),
    ],
)
def test_each_end_of_a_dial_is_told_with_address_port_and_remedy(
    stage: JoinStage, what: str, remedy: str
) -> None:
    error = _prove(Dialler({"10.0.0.2": stage}), "10.0.0.2:12416")
    assert error is not None
    assert what in error.message
    assert remedy in error.remediation
    assert (error.details["stage"], error.details["host"]) == (stage, "10.0.0.2")
    assert error.details["port"] == 12416


@pytest.mark.parametrize(
    "answer",
    [
        pack(JoinRefusal(build="b", code="cluster.join_refused", message="no")),
        encode_values({"wire": 99, "build": "b"}),
        b"\xc1",
        pack(JoinConfirmed(build="b", digest=b"e" * 32)),
    ],
    ids=["no", "another wire", "nonsense", "of another request"],
)
def test_only_a_yes_is_one(answer: bytes) -> None:
    error = _prove(Dialler({"10.0.0.2": answer}), "10.0.0.2:12416")
    assert error is not None
    assert error.details["stage"] == "not_confirmed"


def test_what_says_most_of_several_addresses_gives_the_remedy() -> None:
    dialler = Dialler({"10.0.0.2": "not_the_server", "10.0.0.3": "no_route"})
    error = _prove(dialler, "10.0.0.2:1000", "10.0.0.3:2000", "192.0.2.1:3000")
    assert error is not None
    assert error.details["stage"] == "no_route"
    assert "2000:2002/tcp" in error.remediation
    for part in ("10.0.0.2 port 1000", "10.0.0.3 port 2000", "192.0.2.1 port 3000"):
        assert part in error.message
