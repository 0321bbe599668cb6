"""What strangers, guests and broken members send to an open node."""

import asyncio
import os
import random
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import psutil
import pytest
import zmq
from zmq.utils import z85

from protocol.envelope import MAX_PAYLOAD_BYTES, PLANE_MARK, PORTS, WIRE_VERSION, Port
from protocol.hello import Hello, hello_frame
from protocol.ids import node_id_of
from skulkd.cluster.curve_keys import make_key_pair
from skulkd.cluster.lanes import MAX_FRAME_BYTES, port_number
from skulkd.cluster.transport import Peer
from skulkd.runtime.identity import KeyPair
from skulkd.runtime.tasks import sleep, timeout
from tests.support.real_transports import CLUSTER, HOST, RealNode, RealNodes, real_nodes

GREETING = b"\xff\0\0\0\0\0\0\0\1\x7f\3\1CURVE" + bytes(15) + b"\0" + bytes(31)
"""The first 64 bytes of a connection by CURVE."""

Scenario = Callable[["_Host"], Coroutine[Any, Any, None]]


class _Host:
    """An open node that has a member, whom the test plays with a bare socket."""

    def __init__(self, made: RealNodes) -> None:
        self.made = made
        self.node: RealNode = made.make()
        self.member = make_key_pair()
        self.got: list[bytes] = []
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.sockets: list[zmq.Socket[bytes]] = []
        for plane in PLANE_MARK:
            self.node.transport.on_receive(plane, lambda _, payload: self.got.append(payload))

    async def open(self) -> None:
        await self.node.open()
        peer = Peer(node_id=self.hello().node_id, public_key=self.member.public_key)
        self.node.transport.set_peers({peer.node_id: peer})

    def number(self, port: Port) -> int:
        return port_number(self.node.transport.base_port or 0, port)

    def hello(self) -> Hello:
        return Hello(
            wire=WIRE_VERSION,
            build="test",
            node_id=node_id_of(self.member.public_key),
            boot_id="b1",
            cluster_id=CLUSTER,
            base_port=1,
        )

    def socket(self) -> "zmq.Socket[bytes]":
        self.sockets.append(self.context.socket(zmq.DEALER))
        return self.sockets[-1]

    def close(self) -> None:
        for one in self.sockets:
            one.close(linger=0)
        self.context.term()

    def dial(self, port: Port, keys: KeyPair | None = None) -> "zmq.Socket[bytes]":
        keys = keys or self.member
        dealer = self.socket()
        dealer.setsockopt(zmq.CURVE_SERVERKEY, z85.encode(self.node.keys.public_key))
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, z85.encode(keys.public_key))
        dealer.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(keys.secret_key))
        dealer.setsockopt(zmq.RECONNECT_IVL, 20)
        dealer.connect(f"tcp://{HOST}:{self.number(port)}")
        return dealer

    async def still_works(self, dealer: "zmq.Socket[bytes]", payload: bytes = b"good") -> None:
        """Send a good payload on the control plane, and wait for it."""
        dealer.send(hello_frame(self.hello()))
        dealer.send(bytes((PLANE_MARK["control"],)) + payload)
        await _until(lambda: payload in self.got)


async def _until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    async with timeout(within_s):
        while not condition():
            await sleep(0.005)


def _run(scenario: Scenario) -> None:
    async def main() -> None:
        async with real_nodes() as made:
            host = _Host(made)
            await host.open()
            try:
                await scenario(host)
            finally:
                host.close()

    asyncio.run(main())


def test_bytes_of_no_sense_on_any_port_change_nothing_and_are_kept_nowhere() -> None:
    async def scenario(host: _Host) -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        rng = random.Random(1)
        process = psutil.Process(os.getpid())
        beginnings = (b"", GREETING, GREETING[:20], b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 10)
        before_bytes = process.memory_info().rss
        for number in range(60):
            for port in PORTS:
                with socket.create_connection((HOST, host.number(port)), timeout=5) as stranger:
                    data = beginnings[number % len(beginnings)] + rng.randbytes(20_000)
                    try:
                        stranger.sendall(data)
                    except OSError:
                        continue  # cut while it was still sending
            await sleep(0)
        await host.still_works(host.dial("cluster"))
        assert process.memory_info().rss - before_bytes < 50 << 20
        assert host.got == [b"good"]

    _run(scenario)


def test_a_stranger_without_encryption_is_refused() -> None:
    async def scenario(host: _Host) -> None:
        for port in PORTS:
            plain = host.socket()
            plain.connect(f"tcp://{HOST}:{host.number(port)}")
            plain.send(b"\2payload")
        await sleep(0.2)
        await host.still_works(host.dial("cluster"))
        assert host.got == [b"good"]

    _run(scenario)


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\xff"],
        [b"\x07payload"],
        [bytes((PLANE_MARK["data"],)) + b"on the wrong port"],
        [b"\0"],
        [b"\0" + os.urandom(300)],
        [b"\0" + bytes(5000)],
        [bytes((PLANE_MARK["events"],)) + bytes(MAX_PAYLOAD_BYTES["events"] + 1)],
        [b"\2", b"in", b"parts"],
        [b"", b"", b""],
    ],
    ids=["empty", "mark", "no plane", "port", "hello", "junk", "long", "size", "parts", "empties"],
)
def test_frames_that_a_broken_member_sends_are_counted_and_delivered_to_nobody(
    frames: list[bytes],
) -> None:
    async def scenario(host: _Host) -> None:
        dealer = host.dial("cluster")
        await host.still_works(dealer, b"first")
        for _ in range(20):
            dealer.send_multipart(frames)
        dealer.send(bytes((PLANE_MARK["control"],)) + b"last")
        await _until(lambda: b"last" in host.got)
        assert host.got == [b"first", b"last"]
        counters = host.node.transport.counters
        assert counters.n_malformed == 20

    _run(scenario)


def test_nothing_counts_before_a_hello() -> None:
    async def scenario(host: _Host) -> None:
        dealer = host.dial("cluster")
        dealer.send(bytes((PLANE_MARK["control"],)) + b"early")
        await _until(lambda: host.node.transport.counters.n_ignored == 1)
        await host.still_works(dealer)
        assert host.got == [b"good"]

    _run(scenario)


def test_a_hello_in_anothers_name_is_refused_and_said() -> None:
    async def scenario(host: _Host) -> None:
        liar = host.hello().model_copy(update={"node_id": host.node.node_id})
        dealer = host.dial("cluster")
        dealer.send(hello_frame(liar))
        dealer.send(bytes((PLANE_MARK["control"],)) + b"lie")
        await _until(lambda: host.node.transport.counters.n_ignored == 1)
        info = host.node.transport.peer_info(host.hello().node_id)
        assert info is not None
        assert "calls itself" in info.reason
        assert host.got == []

    _run(scenario)


def test_an_oversized_frame_cuts_its_connection_and_no_other() -> None:
    async def scenario(host: _Host) -> None:
        process = psutil.Process(os.getpid())
        guilty, good = host.dial("election"), host.dial("cluster")
        await host.still_works(good, b"first")
        before_bytes = process.memory_info().rss
        frame = bytes(MAX_FRAME_BYTES["election"] + 10_000)
        for _ in range(20):
            guilty.send(frame)
            await sleep(0.02)
        await host.still_works(good, b"last")
        assert host.got == [b"first", b"last"]
        assert host.node.transport.counters.n_malformed == 0
        assert process.memory_info().rss - before_bytes < 50 << 20

    _run(scenario)


def test_a_name_that_a_member_gives_its_connection_means_nothing() -> None:
    async def scenario(host: _Host) -> None:
        senders: list[str] = []
        host.node.transport.on_receive("control", lambda sender, _: senders.append(sender))
        dealer = host.socket()
        dealer.setsockopt(zmq.ROUTING_ID, host.node.node_id.encode())
        dealer.setsockopt(zmq.CURVE_SERVERKEY, z85.encode(host.node.keys.public_key))
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, z85.encode(host.member.public_key))
        dealer.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(host.member.secret_key))
        dealer.connect(f"tcp://{HOST}:{host.number('cluster')}")
        dealer.send(hello_frame(host.hello()))
        dealer.send(bytes((PLANE_MARK["control"],)))
        await _until(lambda: senders == [host.hello().node_id])

    _run(scenario)


@pytest.mark.parametrize("port", ["cluster", "bulk"])
def test_a_guest_is_refused_beyond_the_election_port(port: Port) -> None:
    async def scenario(host: _Host) -> None:
        guest = make_key_pair()
        host.node.transport.set_guest_keys({guest.public_key: "i-1"})
        host.dial(port, guest)
        await _until(lambda: bool(host.node.transport.strangers()))
        (stranger,) = host.node.transport.strangers()
        assert stranger.public_key == guest.public_key
        assert "election port only" in stranger.reason

    _run(scenario)


def test_a_guest_whose_key_is_withdrawn_is_cut_when_it_speaks() -> None:
    async def scenario(host: _Host) -> None:
        guest, heard = make_key_pair(), list[bytes]()
        transport = host.node.transport
        transport.on_guest(lambda _name, _address, payload, _reply: heard.append(payload))
        transport.set_guest_keys({guest.public_key: "i-1"})
        dealer = host.dial("election", guest)
        dealer.send(b"one")
        await _until(lambda: heard == [b"one"])
        transport.set_guest_keys({})
        dealer.send(b"two")
        await _until(lambda: bool(transport.strangers()))  # it dials anew, and is refused
        assert heard == [b"one"]
        assert transport.counters.n_unadmitted == 1

    _run(scenario)


def test_nothing_of_a_guest_reaches_a_plane() -> None:
    async def scenario(host: _Host) -> None:
        guest = make_key_pair()
        host.node.transport.set_guest_keys({guest.public_key: host.hello().node_id})
        dealer = host.dial("election", guest)
        dealer.send(hello_frame(host.hello()))
        dealer.send(bytes((PLANE_MARK["election"],)) + b"vote for me")
        await sleep(0.2)
        assert host.got == []

    _run(scenario)


def test_a_copy_of_this_nodes_own_home_is_refused_and_named() -> None:
    async def scenario(host: _Host) -> None:
        host.dial("election", host.node.keys)
        await _until(lambda: bool(host.node.transport.strangers()))
        assert "copy of its home" in host.node.transport.strangers()[0].reason

    _run(scenario)


def test_a_receiver_that_fails_costs_its_frame_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(host: _Host) -> None:
        def fail(_sender: str, payload: bytes) -> None:
            if payload == b"bad":
                raise RuntimeError
            host.got.append(payload)

        host.node.transport.on_receive("control", fail)
        dealer = host.dial("cluster")
        dealer.send(hello_frame(host.hello()))
        dealer.send(bytes((PLANE_MARK["control"],)) + b"bad")
        await host.still_works(dealer)
        assert "lost to a bug" in caplog.text

    _run(scenario)
