import pytest

from protocol.envelope import PORTS, Port
from protocol.ids import node_id_of
from skulkd.cluster.admission import (
    GUEST_BEYOND,
    OWN_KEY,
    REMOVED,
    Admission,
    Verdict,
)
from skulkd.cluster.stranger_list import NO_MEMBER
from skulkd.cluster.transport import Peer

OWN, MEMBER, OTHER, GUEST = (bytes([number]) * 32 for number in range(4))


def _peer(key: bytes) -> Peer:
    return Peer(node_id=node_id_of(key), public_key=key)


@pytest.mark.parametrize("port", PORTS)
def test_members_are_let_in_by_their_ids_and_nobody_else(port: Port) -> None:
    admission = Admission(OWN)
    assert admission.judge(port, MEMBER) == Verdict(None, NO_MEMBER)
    admission.set_members([_peer(MEMBER)])
    assert admission.judge(port, MEMBER) == Verdict(node_id_of(MEMBER))
    assert admission.judge(port, OTHER) == Verdict(None, NO_MEMBER)
    assert admission.judge(port, OWN) == Verdict(None, OWN_KEY)


def test_a_removed_member_is_told_from_a_stranger_until_it_is_named_again() -> None:
    admission = Admission(OWN)
    admission.set_members([_peer(MEMBER), _peer(OTHER)])
    admission.set_members([_peer(OTHER)])
    assert admission.judge("bulk", MEMBER) == Verdict(None, REMOVED)
    admission.set_members([_peer(OTHER), _peer(MEMBER)])
    admission.set_members([])
    assert admission.judge("bulk", MEMBER) == admission.judge("bulk", OTHER)
    assert admission.judge("bulk", OTHER) == Verdict(None, REMOVED)


def test_guests_come_in_by_name_on_the_election_port_alone() -> None:
    admission = Admission(OWN)
    admission.set_guests({GUEST: "i-1"})
    assert admission.judge("election", GUEST) == Verdict("guest/i-1")
    assert admission.judge("cluster", GUEST) == Verdict(None, GUEST_BEYOND)
    assert admission.guest_of("guest/i-1") == "i-1"
    assert admission.guest_of("i-1") is None
    assert admission.guest_of("guest/i-2") is None
    admission.set_guests({})
    assert admission.judge("election", GUEST) == Verdict(None, NO_MEMBER)
    assert admission.guest_of("guest/i-1") is None


def test_a_guest_that_has_become_a_member_is_one() -> None:
    admission = Admission(OWN)
    admission.set_guests({GUEST: "i-1"})
    admission.set_members([_peer(GUEST)])
    assert admission.judge("cluster", GUEST) == Verdict(node_id_of(GUEST))


def test_those_removed_long_ago_are_forgotten() -> None:
    admission = Admission(OWN)
    keys = [number.to_bytes(32, "big") for number in range(100, 500)]
    for key in keys:
        admission.set_members([_peer(key)])
    admission.set_members([])
    assert admission.judge("bulk", keys[0]) == Verdict(None, NO_MEMBER)
    assert admission.judge("bulk", keys[-1]) == Verdict(None, REMOVED)


def test_a_member_that_this_node_asks_to_be_let_in_dials_back_as_a_guest() -> None:
    admission = Admission(OWN)
    admission.set_members([_peer(MEMBER)])
    admission.set_guests({MEMBER: "host/n-1"})
    assert admission.judge("election", MEMBER) == Verdict("guest/host/n-1")
    assert admission.judge("cluster", MEMBER) == Verdict(node_id_of(MEMBER))
    admission.set_guests({})
    assert admission.judge("election", MEMBER) == Verdict(node_id_of(MEMBER))
