"""Strangers and broken members at the ports of real clusters: nobody dies, grows or stumbles."""

import contextlib
import random
import socket
import time
from collections.abc import Generator, Iterator
from typing import Any, Final

import psutil
import pytest
import zmq

from protocol.envelope import MAX_PAYLOAD_BYTES, PLANE_MARK, PLANE_PORT, PORTS, Plane
from skulkd.cluster.curve_keys import key_pair_of
from skulkd.core.invitations import read_token
from tests.support.chat_client import answer_text, ask
from tests.support.cluster import (
    Cluster,
    cluster_of,
    hold_for,
    invite,
    join,
    running_cluster,
    stopped_process,
)
from tests.support.daemon import Daemon, wait_until
from tests.support.raw_peer import HOST, RawLink, RawPeer, key_of
from tests.support.scripted_models import MODEL, add_scripted_model
from tests.support.wire_examples import golden

pytestmark = [pytest.mark.timeout(180)]

MIB: Final = 1 << 20
MAX_GROWTH_BYTES: Final = 50 * MIB
REFUSED: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_DISCONNECTED,
)
GREETING: Final = b"\xff\0\0\0\0\0\0\0\1\x7f\3\1CURVE" + bytes(15) + b"\0" + bytes(31)
"""The first 64 bytes of a connection by CURVE."""
NULL_GREETING: Final = b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL" + bytes(16) + b"\0" + bytes(31)
SILENT_S: Final = 5.0
"""The bound of the issue on what a removed node may still have heard."""
PLANES: Final = tuple(PLANE_MARK)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all of this: what one stranger does must not be felt by the next.

    The third node is ended; its key is what a broken member speaks with.
    """
    with running_cluster(tmp_path_factory.mktemp("garbage")) as formed:
        add_scripted_model(formed[1].models_dir, reply="still here")
        where = [cluster_of(formed[1])["node_id"]]
        formed[1].wait_phase(formed[1].place(MODEL, nodes=where))
        formed[2].stop()
        wait_until(
            lambda: cluster_of(formed[0])["quorum"]["voters"] == 2, timeout_s=30, what="it left"
        )
        formed.wait_agreed(formed.nodes[:2])
        yield formed


@pytest.fixture
def target(cluster: Cluster) -> Iterator[Daemon]:
    """Give the node that is attacked; afterwards both are as they were."""
    pair = cluster.nodes[:2]
    cluster.wait_agreed(pair)
    before = [_terms(node) for node in pair]
    resident = [_resident_bytes(node) for node in pair]
    n_fds = [psutil.Process(node.pid).num_fds() for node in pair]
    yield cluster[0]
    for node in pair:
        assert node.process.poll() is None, node.log_tail()
    cluster.wait_agreed(pair)
    assert [_terms(node) for node in pair] == before, "no election was caused"
    for node in pair:
        assert answer_text(ask(node, MODEL)) == "still here"
        assert "Traceback" not in node.log_text()
        assert "internal.bug" not in node.log_text()
    grown = [_resident_bytes(node) - was for node, was in zip(pair, resident, strict=True)]
    assert max(grown) < MAX_GROWTH_BYTES, grown
    wait_until(
        lambda: all(
            psutil.Process(node.pid).num_fds() <= was + 8
            for node, was in zip(pair, n_fds, strict=True)
        ),
        timeout_s=10,
        what="every connection is closed",
    )


def _terms(node: Daemon) -> tuple[Any, ...]:
    document = cluster_of(node)
    return document["term"], document["master"], len(document["members"])


def _resident_bytes(node: Daemon) -> int:
    return int(psutil.Process(node.pid).memory_info().rss)


def base_port(node: Daemon) -> int:
    return int(cluster_of(node)["base_port"])


def raw(node: Daemon, *, like: Daemon | None = None) -> RawPeer:
    """Make a bare peer of a node, with another's key or an unknown one."""
    keys = None if like is None else key_of(like.home)
    return RawPeer(key_of(node.home).public_key, base_port(node), keys)


def strangers(node: Daemon) -> dict[str, dict[str, Any]]:
    return {one["public_key"]: one for one in cluster_of(node)["strangers"]}


def wait_listed(node: Daemon, public_key: bytes, reason: str) -> dict[str, Any]:
    """Wait until a key is listed as a stranger's for this reason."""
    wait_until(
        lambda: reason in strangers(node).get(public_key.hex(), {}).get("reason", ""),
        timeout_s=10,
        what=f"{reason!r} is listed",
    )
    return strangers(node)[public_key.hex()]


@contextlib.contextmanager
def connected(port: int) -> Generator[socket.socket]:
    with socket.create_connection((HOST, port), timeout=10) as connection:
        yield connection


# ---- Strangers ---------------------------------------------------------------------------------


def test_a_strangers_key_opens_no_port_and_is_listed_with_the_reason(target: Daemon) -> None:
    with raw(target) as peer:
        for port in PORTS:
            link = peer.dial(port)
            assert link.wait_for(REFUSED, timeout_s=10) is not None
            assert zmq.EVENT_HANDSHAKE_SUCCEEDED not in link.events
        seen = wait_listed(target, peer.keys.public_key, "neither a member's nor an invitation's")
        assert seen["address"] == HOST
        assert seen["tries"] >= len(PORTS)
    ran = target.skulk("cluster", "strangers", "-o", "wide")
    assert ran.returncode == 0
    assert peer.keys.public_key.hex()[:8] in ran.stdout


def test_an_invitations_key_opens_the_election_port_and_no_other(target: Daemon) -> None:
    secret = read_token(invite(target)).secret
    with RawPeer(key_of(target.home).public_key, base_port(target), key_pair_of(secret)) as peer:
        for port in ("cluster", "bulk"):
            link = peer.dial(port)
            assert link.wait_for(REFUSED, timeout_s=10) is not None
            assert zmq.EVENT_HANDSHAKE_SUCCEEDED not in link.events
        wait_listed(target, peer.keys.public_key, "on the election port only")
        link = peer.dial("election")
        assert link.wait_for((zmq.EVENT_HANDSHAKE_SUCCEEDED,), timeout_s=10) is not None
        rng = random.Random(7)  # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        cluster_id = cluster_of(target)["cluster_id"]
        for data in (b"", b"\0", peer.hello(cluster_id), *golden().values()):
            for mark in (0, 1, 2, 7, 255):
                link.send(bytes((mark,)) + data[:60_000])
        for _ in range(200):
            link.send(rng.randbytes(rng.randrange(1, 3000)))
        time.sleep(1)
    assert len(cluster_of(target)["members"]) == 3, "nobody was admitted by that"


def test_a_stranger_without_encryption_gets_nowhere(target: Daemon) -> None:
    with raw(target) as peer:
        for port in PORTS:
            link = peer.dial(port, is_plain=True)
            link.send(b"\1payload")
            assert link.wait_for((zmq.EVENT_HANDSHAKE_SUCCEEDED,), timeout_s=1) is None


def test_bytes_of_no_sense_on_every_port_change_nothing(target: Daemon) -> None:
    rng = random.Random(3)  # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
    base = base_port(target)
    beginnings = (
        b"",
        GREETING,
        GREETING[:11],
        NULL_GREETING,
        NULL_GREETING + b"\4\x26\5READY\x0bSocket-Type\0\0\0\6DEALER\x08Identity\0\0\0\0",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\xff" * 10,
        GREETING + b"\6\xff\xff\xff\xff\xff\xff\xff\xff",
        GREETING + b"\4\xc8\5HELLO" + bytes(194),
    )
    for number in range(120):
        for offset in range(len(PORTS)):
            with (
                contextlib.suppress(ConnectionError, TimeoutError),
                connected(base + offset) as one,
            ):
                one.sendall(beginnings[number % len(beginnings)] + rng.randbytes(20_000))


def test_300_idle_and_half_greeted_connections_keep_no_member_out(
    target: Daemon, cluster: Cluster
) -> None:
    base = base_port(target)
    with contextlib.ExitStack() as stack:
        for number in range(300):
            one = stack.enter_context(connected(base + number % 3))
            one.sendall(GREETING[: number % 65])
        hold_for(
            5,
            lambda: _heard_by(cluster[1], target) and _heard_by(target, cluster[1]),
            what="both hear each other",
        )
        assert answer_text(ask(target, MODEL)) == "still here"


def _heard_by(node: Daemon, other: Daemon) -> bool:
    other_id = cluster_of(other)["node_id"]
    return any(
        member["node_id"] == other_id and member["liveness"] == "alive"
        for member in cluster_of(node)["members"]
    )


def test_a_flood_of_unknown_keys_fills_neither_list_nor_log(target: Daemon) -> None:
    n_lines = target.log_text().count("refused 127.0.0.1")
    for _ in range(100):
        with raw(target) as peer:
            assert peer.dial("election").wait_for(REFUSED, timeout_s=10) is not None
    assert len(cluster_of(target)["strangers"]) <= 64
    assert target.log_text().count("refused 127.0.0.1") - n_lines <= 20


# ---- A member that is broken -------------------------------------------------------------------


@pytest.fixture
def member(cluster: Cluster, target: Daemon) -> Iterator[RawPeer]:
    """Speak with the key of the third node, which is not running."""
    with raw(target, like=cluster[2]) as peer:
        yield peer
    # What broken members have said is over before the next look at the cluster.
    time.sleep(0.5)


def _open_links(peer: RawPeer, target: Daemon) -> dict[str, RawLink]:
    links = {port: peer.dial(port) for port in PORTS}
    hello = peer.hello(cluster_of(target)["cluster_id"])
    for link in links.values():
        assert link.wait_for((zmq.EVENT_HANDSHAKE_SUCCEEDED,), timeout_s=10) is not None
        link.send(hello)
    return links


@pytest.mark.parametrize("plane", PLANES)
def test_noise_from_a_members_key_is_dropped_on_every_plane(
    plane: Plane, target: Daemon, member: RawPeer
) -> None:
    rng = random.Random(plane)  # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
    link = _open_links(member, target)[PLANE_PORT[plane]]
    mark = bytes((PLANE_MARK[plane],))
    for payload in (
        b"",
        b"\0",
        b"\xc1",
        b"\x91" * 50_000,
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x81\xa4kind\xa4none",
        b"\x81\xa4kind\x91\xa9heartbeat",
        bytes(MAX_PAYLOAD_BYTES[plane] + 1),
    ):
        link.send(mark + payload)
        link.send(mark + payload, b"further")
    for _ in range(2000):
        link.send(mark + rng.randbytes(rng.randrange(1, 400)))
    time.sleep(0.5)


@pytest.mark.parametrize("plane", PLANES)
def test_true_frames_cut_short_from_a_members_key_are_dropped(
    plane: Plane, target: Daemon, member: RawPeer
) -> None:
    link = _open_links(member, target)[PLANE_PORT[plane]]
    mark = bytes((PLANE_MARK[plane],))
    for data in golden().values():
        for cut in range(1, min(12, len(data))):
            link.send(mark + data[:-cut])
    time.sleep(0.5)


def test_frames_beyond_every_bound_cut_the_connection_and_nothing_else(
    target: Daemon, member: RawPeer
) -> None:
    links = _open_links(member, target)
    for link in links.values():
        link.send(b"\2" + bytes(8 * MIB))
        assert link.wait_for((zmq.EVENT_DISCONNECTED,), timeout_s=10) is not None


def test_hellos_that_lie_or_cannot_be_read_are_refused(
    target: Daemon, member: RawPeer, cluster: Cluster
) -> None:
    cluster_id = cluster_of(target)["cluster_id"]
    link = member.dial("election")
    with raw(target, like=cluster[1]) as other:
        lie = other.hello(cluster_id)
    for hello in (
        lie,
        b"\0",
        b"\0" + bytes(2000),
        b"\0\x80",
        member.hello(cluster_id)[:-3],
        member.hello("k" + "a" * 16),
    ):
        link.send(hello)
        link.send(b"\1" + golden()["election/Heartbeat"])
    time.sleep(1)


# ---- True frames in the wrong mouth ------------------------------------------------------------


def test_every_true_frame_on_every_plane_from_a_member_that_makes_no_sense_is_survived(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Whatever it brings about, an election at most, the others go on and agree again."""
    with running_cluster(tmp_path_factory.mktemp("liar")) as formed:
        pair = formed.nodes[:2]
        formed[2].kill()
        formed.wait_agreed(pair)
        rng = random.Random(11)  # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        with raw(formed[0], like=formed[2]) as peer:
            links = _open_links(peer, formed[0])
            for plane in PLANES:
                mark = bytes((PLANE_MARK[plane],))
                link = links[PLANE_PORT[plane]]
                for data in golden().values():
                    link.send(mark + data)
                    for _ in range(20):
                        broken = bytearray(data)
                        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
                        link.send(mark + bytes(broken))
            time.sleep(2)
        for node in pair:
            assert node.process.poll() is None, node.log_tail()
            assert "Traceback" not in node.log_text(), node.log_tail()
            assert "internal.bug" not in node.log_text()
        formed.wait_agreed(pair, timeout_s=60)
        made = formed[1].http.post("/v1/keys", json={"name": "after"})
        assert made.is_success, made.text
        formed[2].start()
        formed.wait_agreed(timeout_s=60)


# ---- Removed members ---------------------------------------------------------------------------


def test_a_removed_members_key_is_silent_within_five_seconds(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with running_cluster(tmp_path_factory.mktemp("removed")) as formed:
        pair = formed.nodes[:2]
        gone_id = cluster_of(formed[2])["node_id"]
        formed[2].kill()
        formed.wait_agreed(pair)
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(raw(node, like=formed[2])) for node in pair]
            links = [
                link
                for peer, node in zip(peers, pair, strict=True)
                for link in _open_links(peer, node).values()
            ]
            ran = formed[1].skulk("cluster", "remove", "study", "--yes")
            assert ran.returncode == 0, ran.stderr
            removed_s = time.monotonic()
            for link in links:
                left_s = removed_s + SILENT_S - time.monotonic()
                assert link.wait_for((zmq.EVENT_DISCONNECTED,), timeout_s=left_s) is not None
            for link in links:
                assert link.wait_for(REFUSED[:3], timeout_s=10) is not None
            for node, peer in zip(pair, peers, strict=True):
                wait_listed(node, peer.keys.public_key, "removed")
        formed.wait_agreed(pair)
        for node in pair:
            assert gone_id not in {one["node_id"] for one in cluster_of(node)["members"]}


def test_a_removed_node_that_hears_of_it_goes_on_alone_and_closed_and_may_come_again(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with running_cluster(tmp_path_factory.mktemp("alone")) as formed:
        pair, gone = formed.nodes[:2], formed[2]
        old_id = cluster_of(gone)["cluster_id"]
        add_scripted_model(gone.models_dir)
        gone.wait_phase(gone.place(MODEL, nodes=[cluster_of(gone)["node_id"]]))
        engines = gone.children()
        ran = formed[0].skulk("cluster", "remove", "study", "--yes")
        assert ran.returncode == 0, ran.stderr
        wait_until(lambda: _is_closed_and_alone(gone, old_id), timeout_s=20, what="it is alone")
        assert psutil.wait_procs(engines, timeout=10)[1] == [], "its engines have ended"
        formed.wait_agreed(pair)
        join(gone, invite(formed[1]))
        formed.wait_agreed()
        assert cluster_of(gone)["cluster_id"] == old_id


def _is_closed_and_alone(node: Daemon, old_id: str) -> bool:
    with contextlib.suppress(Exception):
        document = cluster_of(node)
        return (
            document["cluster_id"] != old_id
            and not document["is_open"]
            and len(document["members"]) == 1
            and document["role"] == "master"
        )
    return False


def test_a_node_that_was_away_while_it_was_removed_is_a_stranger_until_it_joins_anew(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with running_cluster(tmp_path_factory.mktemp("away")) as formed:
        pair, gone = formed.nodes[:2], formed[2]
        key = key_of(gone.home).public_key
        gone.kill()
        formed.wait_agreed(pair)
        ran = formed[0].skulk("cluster", "remove", "study", "--yes")
        assert ran.returncode == 0, ran.stderr
        gone.start()
        for node in pair:
            wait_listed(node, key, "removed")
        formed.wait_agreed(pair)
        token = invite(formed[0])
        answer = gone.http.post("/v1/cluster/join", json={"token": token, "discard": True})
        assert answer.is_success, answer.text
        formed.wait_agreed()


# ---- Two of one --------------------------------------------------------------------------------


def test_a_member_that_stands_still_while_it_is_removed_is_refused_when_it_goes_on(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with running_cluster(tmp_path_factory.mktemp("still")) as formed:
        pair, gone = formed.nodes[:2], formed[2]
        key = key_of(gone.home).public_key
        with stopped_process(gone):
            formed.wait_agreed(pair)
            ran = formed[0].skulk("cluster", "remove", "study", "--yes")
            assert ran.returncode == 0, ran.stderr
            time.sleep(3)
        for node in pair:
            wait_listed(node, key, "removed")
        formed.wait_agreed(pair)
