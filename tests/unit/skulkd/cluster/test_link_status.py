import pytest

from protocol.envelope import PORTS
from skulkd.cluster.link_status import NOT_GREETED, LinkStatus
from skulkd.cluster.transport import LinkState


def _open() -> LinkStatus:
    status = LinkStatus()
    for port in PORTS:
        status.note(port, "up")
    return status


def test_a_link_is_up_when_all_ports_are_and_the_peer_has_said_hello() -> None:
    status = LinkStatus()
    for port in PORTS:
        assert status.state == "connecting"
        status.note(port, "up")
    assert (status.state, status.reason) == ("connecting", NOT_GREETED)
    status.greet()
    assert (status.state, status.reason) == ("up", "")


@pytest.mark.parametrize("state", ["silent", "refused"])
def test_nobody_falls_silent_or_ends_before_the_link_was_up(state: LinkState) -> None:
    status = LinkStatus()
    status.note("election", state, "why")
    assert (status.state, status.reason) == ("connecting", "why")
    status = _open()
    status.greet()
    status.note("election", state, "why")
    assert (status.state, status.reason) == (state, "why")
    status.reset()
    status.note("election", state)
    assert status.state == "connecting"


def test_another_port_than_the_election_one_only_keeps_the_link_from_being_up() -> None:
    status = _open()
    status.greet()
    status.note("bulk", "silent", "broke")
    assert (status.state, status.reason) == ("connecting", "broke")
    status.note("bulk", "up")
    assert status.state == "up"


def test_a_refusal_of_the_hello_stands_above_all_until_a_better_one_comes() -> None:
    status = _open()
    status.greet("another wire")
    assert (status.state, status.reason) == ("incompatible", "another wire")
    assert not status.is_greeted
    status.note("election", "refused", "gone")
    assert status.state == "incompatible"
    status.note("election", "up")
    status.greet()
    assert status.state == "up"


def test_a_refused_key_is_told_until_the_election_port_is_found_otherwise() -> None:
    status = LinkStatus()
    assert not status.is_denied
    status.note("election", "connecting", "refuses this node's key", is_denied=True)
    status.note("bulk", "silent")
    assert (status.state, status.is_denied) == ("connecting", True)
    status.note("election", "up")
    assert not status.is_denied
    status.note("election", "connecting", is_denied=True)
    status.reset()
    assert not status.is_denied
