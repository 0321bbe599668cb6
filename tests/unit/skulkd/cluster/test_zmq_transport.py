import asyncio
import socket
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from protocol.envelope import Plane
from protocol.errors import ConfigError
from protocol.ids import cluster_id_of, node_id_of
from skulkd.cluster.curve_keys import make_key_pair
from skulkd.cluster.transport import LinkState, Peer
from skulkd.runtime.tasks import sleep, timeout
from tests.support.real_transports import (
    HOST,
    RealNode,
    RealNodes,
    introduce,
    real_nodes,
    until_up,
)

WITHIN_S = 15.0
DEAD = "127.0.0.1:9"
"""A port that nobody listens on."""

Scenario = Callable[[RealNodes], Coroutine[Any, Any, None]]


def _run(scenario: Scenario) -> None:
    async def main() -> None:
        async with real_nodes() as made:
            await scenario(made)

    asyncio.run(main())


async def _until(condition: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    async with timeout(within_s):
        while not condition():
            await sleep(0.002)


def _states(node: RealNode, peer: RealNode) -> list[LinkState]:
    seen: list[LinkState] = []

    def watch(changed: str, state: LinkState) -> None:
        if changed == peer.node_id:
            seen.append(state)

    node.transport.on_link(watch)
    return seen


def _inbox(node: RealNode) -> list[bytes]:
    got: list[bytes] = []
    for plane in ("control", "data", "election"):
        node.transport.on_receive(plane, lambda _, payload: got.append(payload))
    return got


def _received(node: RealNode, peer: RealNode, plane: Plane) -> int:
    info = node.transport.peer_info(peer.node_id)
    assert info is not None
    return info.planes[plane].n_received


def _is_free(port: int) -> bool:
    try:
        with socket.create_server((HOST, port)):
            return True
    except OSError:
        return False


def _reason(node: RealNode, peer: RealNode) -> str:
    info = node.transport.peer_info(peer.node_id)
    assert info is not None
    return info.reason


# ---- Links ----


def test_a_peer_that_ends_is_refused_within_a_moment_and_up_when_it_is_back() -> None:
    async def scenario(made: RealNodes) -> None:
        a, b, c = await made.mesh(3)
        seen, seen_c = _states(a, b), _states(a, c)
        address = b.address()
        base_port = b.transport.base_port
        await b.transport.close()
        await _until(lambda: a.transport.link(b.node_id) == "refused", 5.0)
        assert "up" not in seen
        assert a.transport.send(b.node_id, "control", b"") == "no_link"
        assert a.transport.peers() == (c.node_id,)
        again = made.make(b.keys, boot_id="b2")
        again.name(a, c)
        await again.open(base_port=base_port or 0)
        assert again.address() == address
        await until_up(a, again, c)
        assert [state for state in seen if state in {"refused", "up"}] == ["refused", "up"]
        assert seen_c == []

    _run(scenario)


def test_a_peer_is_dialled_at_the_address_that_works_and_one_without_answers_who_dials() -> None:
    async def scenario(made: RealNodes) -> None:
        a, b = made.make(), made.make()
        await a.open()
        await b.open()
        a.transport.set_peers({b.node_id: b.peer(DEAD, "no address", b.address())})
        b.transport.set_peers({a.node_id: replace(a.peer(), addresses=())})
        await until_up(a, b)
        info = a.transport.peer_info(b.node_id)
        assert info is not None
        assert info.dialled == b.address()
        learned = b.transport.peer_info(a.node_id)
        assert learned is not None
        assert learned.dialled == a.address()
        assert (learned.heard_from, learned.build, learned.boot_id) == (HOST, "test", "b1")
        assert learned.last_heard_s is not None

    _run(scenario)


def test_a_peer_that_was_never_there_is_connecting_and_says_why() -> None:
    async def scenario(made: RealNodes) -> None:
        a, b = made.make(), made.make()
        await a.open()
        a.transport.set_peers({b.node_id: b.peer(DEAD)})
        await _until(lambda: "nobody listens" in _reason(a, b))
        assert a.transport.link(b.node_id) == "connecting"

    _run(scenario)


def test_a_port_that_stays_closed_keeps_the_link_from_being_up_and_is_named() -> None:
    async def scenario(made: RealNodes) -> None:
        a, b = await made.mesh(2)
        inboxes = b.transport._inboxes  # pyright: ignore[reportPrivateUsage]  as a firewall does
        assert inboxes is not None
        inboxes["bulk"].close()
        number = (b.transport.base_port or 0) + 2
        await _until(lambda: f"port {number}" in _reason(a, b) and "firewall" in _reason(a, b))
        assert a.transport.link(b.node_id) == "connecting"
        assert a.transport.send(b.node_id, "data", b"") == "no_link"
        assert a.transport.send(b.node_id, "election", b"") is None

    _run(scenario)


def test_a_watcher_that_fails_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(made: RealNodes) -> None:
        a, b = await made.mesh(2)

        def fail(_peer: str, _state: LinkState) -> None:
            raise RuntimeError

        a.transport.on_link(fail)
        seen = _states(a, b)
        await b.transport.close()
        await _until(lambda: seen != [] and seen[-1] == "refused")
        assert "a watcher did not take" in caplog.text

    _run(scenario)


def test_a_node_that_does_not_name_the_other_refuses_it_and_lists_it() -> None:
    async def scenario(made: RealNodes) -> None:
        a, b = made.make(), made.make()
        await a.open()
        await b.open()
        a.name(b)
        await _until(lambda: "refuses this node's key" in _reason(a, b))
        assert a.transport.link(b.node_id) == "connecting"
        (stranger,) = b.transport.strangers()
        assert (stranger.public_key, stranger.address) == (a.keys.public_key, HOST)
        b.name(a)
        await until_up(a, b)

    _run(scenario)


def test_another_key_at_a_peers_address_is_never_taken_for_it() -> None:
    async def scenario(made: RealNodes) -> None:
        a, b, other = made.make(), made.make(), made.make()
        for node in (a, b, other):
            await node.open()
        other.name(a)
        a.transport.set_peers({b.node_id: b.peer(other.address())})
        await _until(lambda: "does not have the key" in _reason(a, b))
        assert a.transport.peers() == ()

    _run(scenario)


def test_a_member_of_another_cluster_gets_and_gives_nothing() -> None:
    async def scenario(made: RealNodes) -> None:
        a, b = made.make(), made.make(cluster_id=cluster_id_of(b"another cluster!"))
        await a.open()
        await b.open()
        introduce(a, b)
        await _until(
            lambda: a.transport.link(b.node_id) == b.transport.link(a.node_id) == "incompatible"
        )
        assert "belongs to cluster" in _reason(a, b)
        assert a.transport.send(b.node_id, "control", b"") == "no_link"
        b.cluster_id = a.cluster_id
        await until_up(a, b)

    _run(scenario)


def test_another_wire_version_is_incompatible_and_both_builds_are_named() -> None:
    async def scenario(made: RealNodes) -> None:
        a, b = made.make(build="0.1"), made.make(build="9.9", wire=7)
        await a.open()
        await b.open()
        introduce(a, b)
        await _until(lambda: a.transport.link(b.node_id) == "incompatible")
        assert "0.1" in _reason(a, b)
        assert "9.9" in _reason(a, b)

    _run(scenario)


def test_two_processes_on_one_key_are_found_with_both_addresses() -> None:
    async def scenario(made: RealNodes) -> None:
        a, b = await made.mesh(2)
        copy = made.make(b.keys, boot_id="b2")
        await copy.open(host="127.0.0.2")
        copy.transport.set_peers({a.node_id: a.peer()})
        await _until(lambda: bool(a.transport.duplicates()), 10.0)
        (found,) = a.transport.duplicates()
        assert found.node_id == b.node_id
        assert found.boot_ids == ("b1", "b2")

    _run(scenario)


def test_links_work_over_ipv6() -> None:
    async def scenario(made: RealNodes) -> None:
        a, b = made.make(), made.make()
        for node in (a, b):
            await node.open("::1")
        a.transport.set_peers({b.node_id: b.peer(b.address("::1"))})
        b.transport.set_peers({a.node_id: a.peer(a.address("::1"))})
        await until_up(a, b)
        info = a.transport.peer_info(b.node_id)
        assert info is not None
        assert info.heard_from == "::1"

    _run(scenario)


# ---- Removal ----


def test_a_removed_peer_is_silent_at_once_and_the_others_notice_nothing() -> None:
    async def scenario(made: RealNodes) -> None:
        a, b, c = await made.mesh(3)
        seen = _states(a, c), _states(c, a)
        got = _inbox(a)
        assert b.transport.send(a.node_id, "control", b"before") is None
        await _until(lambda: got == [b"before"])
        assert b.transport.send(a.node_id, "control", b"under way") is None
        a.name(c)
        assert a.transport.send(b.node_id, "control", b"") == "unknown_peer"
        await _until(lambda: b.transport.link(a.node_id) != "up", 5.0)
        await _until(lambda: "refuses this node's key" in _reason(b, a), 5.0)
        info = b.transport.peer_info(a.node_id)
        assert info is not None
        assert info.is_denied
        assert b.transport.send(a.node_id, "control", b"after") == "no_link"
        assert got == [b"before"]
        assert c.transport.send(a.node_id, "control", b"c") is None
        await _until(lambda: got == [b"before", b"c"])
        assert seen == ([], [])
        assert "removed" in a.transport.strangers()[0].reason
        a.name(b, c)
        await until_up(a, b, c)

    _run(scenario)


def test_where_a_connection_cannot_be_told_all_show_their_keys_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skulkd.cluster.inbox._FrameOrigin.fd", None)

    async def scenario(made: RealNodes) -> None:
        a, b, c = await made.mesh(3)
        for _ in range(20):  # a second connection on the bulk port
            assert b.transport.send(a.node_id, "files", b"") is None
        await _until(lambda: _received(a, b, "files") == 20)
        a.name(c)
        await _until(lambda: "refuses this node's key" in _reason(b, a), 5.0)
        await _until(lambda: c.transport.link(a.node_id) == a.transport.link(c.node_id) == "up")

    _run(scenario)


# ---- Ports ----


def test_three_free_ports_in_a_row_are_found_below_those_for_outgoing_connections() -> None:
    async def scenario(made: RealNodes) -> None:
        nodes = [made.make() for _ in range(5)]
        for node in nodes:
            await node.open()
        bases = [node.transport.base_port or 0 for node in nodes]
        assert all(10240 <= base <= 32765 for base in bases)
        assert len({base + number for base in bases for number in range(3)}) == 15

    _run(scenario)


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_a_port_that_is_taken_is_named_and_nothing_is_open(offset: int) -> None:
    async def scenario(made: RealNodes) -> None:
        finder, node = made.make(), made.make()
        await finder.open()
        base_port = finder.transport.base_port or 0
        await finder.transport.close_ports()
        with socket.create_server((HOST, base_port + offset)):
            with pytest.raises(ConfigError) as caught:
                await node.open(base_port=base_port)
            assert caught.value.code == "config.port_busy"
            assert caught.value.details["port"] == base_port + offset
            assert node.transport.base_port is None
        await node.open(base_port=base_port)
        assert node.transport.base_port == base_port

    _run(scenario)


@pytest.mark.parametrize("host", ["192.0.2.1", "example", ""])
def test_an_address_that_is_not_this_machines_is_refused(host: str) -> None:
    async def scenario(made: RealNodes) -> None:
        node = made.make()
        with pytest.raises(ConfigError) as caught:
            await node.open(host)
        assert caught.value.code == "config.invalid"

    _run(scenario)


def test_other_addresses_are_taken_over_without_breaking_links_through_those_that_stay() -> None:
    async def scenario(made: RealNodes) -> None:
        a, b = await made.mesh(2)
        seen = _states(b, a)
        base_port = a.transport.base_port or 0
        await a.transport.open([HOST, "127.0.0.3"], base_port)
        await a.transport.open([HOST], base_port)
        await sleep(0.1)
        assert b.transport.link(a.node_id) == "up"
        assert seen == []

    _run(scenario)


@pytest.mark.parametrize("hosts", [[HOST, "192.0.2.1"], ["192.0.2.1"]])
def test_addresses_that_cannot_be_had_leave_open_what_was(hosts: list[str]) -> None:
    async def scenario(made: RealNodes) -> None:
        a, b = await made.mesh(2)
        seen = _states(b, a)
        base_port = a.transport.base_port or 0
        with pytest.raises(ConfigError):
            await a.transport.open(hosts, base_port)
        assert a.transport.base_port == base_port
        await a.transport.open([HOST], base_port)
        await sleep(0.1)
        assert seen == []

    _run(scenario)


def test_other_ports_are_taken_over_when_they_are_free_and_not_when_one_is_taken() -> None:
    async def scenario(made: RealNodes) -> None:
        a, b = await made.mesh(2)
        base_port, other = a.transport.base_port or 0, b.transport.base_port or 0
        seen = _states(b, a)
        for _ in range(20):  # what is given up is not free at once: nothing may be before all is
            with pytest.raises(ConfigError):
                await a.transport.open([HOST], other - 1)
        assert a.transport.base_port == base_port
        assert b.transport.link(a.node_id) == "up"
        assert seen == []
        await a.transport.open([HOST], 0)
        assert a.transport.base_port not in {base_port, other}
        await _until(lambda: _is_free(base_port))
        introduce(a, b)
        await until_up(a, b)

    _run(scenario)


def test_ports_close_and_open_again() -> None:
    async def scenario(made: RealNodes) -> None:
        a, b = await made.mesh(2)
        base_port = a.transport.base_port or 0
        await a.transport.close_ports()
        await a.transport.close_ports()
        assert a.transport.base_port is None
        assert a.transport.link(b.node_id) == "connecting"
        await _until(lambda: b.transport.link(a.node_id) == "refused")
        await a.open(base_port=base_port)
        await until_up(a, b)

    _run(scenario)


def test_last_words_on_the_election_plane_arrive_though_the_node_closes_at_once() -> None:
    async def scenario(made: RealNodes) -> None:
        nodes = await made.mesh(4)
        got = [_inbox(node) for node in nodes[1:]]
        for node in nodes[1:]:
            assert nodes[0].transport.send(node.node_id, "election", b"bye") is None
        await nodes[0].transport.close()
        await _until(lambda: got == [[b"bye"]] * 3)

    _run(scenario)


def test_a_node_that_has_opened_nothing_closes_at_once() -> None:
    async def scenario(made: RealNodes) -> None:
        node = made.make()
        node.transport.set_peers({})
        await node.transport.close()
        await node.transport.close()

    _run(scenario)


def test_an_id_that_does_not_follow_from_its_key_is_a_bug() -> None:
    async def scenario(made: RealNodes) -> None:
        node, keys = made.make(), make_key_pair()
        wrong = node_id_of(b"x" * 32)
        with pytest.raises(ValueError, match="not the id of its key"):
            node.transport.set_peers({wrong: Peer(node_id=wrong, public_key=keys.public_key)})

    _run(scenario)
