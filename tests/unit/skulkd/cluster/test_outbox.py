"""What waits in front of a connection, and in which order it goes."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from protocol.envelope import HELLO_MARK, MAX_PAYLOAD_BYTES, PLANE_MARK, Plane
from skulkd.cluster import zmq_transport
from skulkd.cluster.outbox import Outbox
from skulkd.runtime.tasks import sleep, timeout
from tests.support.real_transports import RealNode, RealNodes, real_nodes

Arrivals = list[tuple[Plane, bytes]]


def _run(scenario: Callable[[RealNodes], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with real_nodes() as made:
            await scenario(made)

    asyncio.run(main())


def _arrivals(node: RealNode) -> Arrivals:
    arrived: Arrivals = []
    for plane in MAX_PAYLOAD_BYTES:
        node.transport.on_receive(
            plane, lambda _, payload, plane=plane: arrived.append((plane, payload))
        )
    return arrived


async def _until(condition: Callable[[], bool]) -> None:
    async with timeout(20):
        while not condition():
            await sleep(0.005)


def _queued_bytes(node: RealNode, peer: RealNode, plane: Plane) -> int:
    info = node.transport.peer_info(peer.node_id)
    assert info is not None
    return info.planes[plane].queued_bytes


def _fill(node: RealNode, peer: RealNode, plane: Plane, n_queued: int) -> int:
    """Send until that many payloads wait in the queue; gives how many were sent."""
    payload = bytes(64 << 10)
    n_sent = 0
    while _queued_bytes(node, peer, plane) < n_queued * len(payload):
        assert node.transport.send(peer.node_id, plane, payload) is None
        n_sent += 1
    return n_sent


@pytest.mark.parametrize(("urgent", "patient"), [("control", "events"), ("data", "telemetry")])
def test_a_plane_in_front_overtakes_what_waits_in_the_one_behind(
    urgent: Plane, patient: Plane
) -> None:
    async def scenario(made: RealNodes) -> None:
        a, b = await made.mesh(2)
        arrived = _arrivals(b)
        n_sent = _fill(a, b, patient, 8)
        assert a.transport.send(b.node_id, urgent, b"now") is None
        await _until(lambda: len(arrived) == n_sent + 1)
        assert arrived.index((urgent, b"now")) <= n_sent - 8

    _run(scenario)


def test_files_hold_up_no_token() -> None:
    async def scenario(made: RealNodes) -> None:
        a, b = await made.mesh(2)
        arrived = _arrivals(b)
        while a.transport.send(b.node_id, "files", bytes(1 << 20)) is None:
            pass
        assert a.transport.send(b.node_id, "data", b"token") is None
        await _until(lambda: ("data", b"token") in arrived)
        assert len(arrived) < 8

    _run(scenario)


def test_news_of_a_key_that_waits_is_superseded() -> None:
    async def scenario(made: RealNodes) -> None:
        a, b = await made.mesh(2)
        arrived = _arrivals(b)
        n_sent = _fill(a, b, "telemetry", 2)
        for number in range(100):
            refusal = a.transport.send(b.node_id, "telemetry", b"%d" % number, key="k")
            assert refusal is None
        await _until(lambda: ("telemetry", b"99") in arrived)
        assert len(arrived) == n_sent + 1
        info = a.transport.peer_info(b.node_id)
        assert info is not None
        counters = info.planes["telemetry"]
        assert (counters.n_sent, counters.n_dropped) == (n_sent + 1, 99)

    _run(scenario)


def test_who_waits_for_room_goes_on_when_there_is_some_or_the_peer_has_gone() -> None:
    async def scenario(made: RealNodes) -> None:
        a, b = await made.mesh(2)
        arrived = _arrivals(b)
        n_sent = 0
        async with timeout(20):
            while n_sent < 40:
                if a.transport.send(b.node_id, "files", bytes(1 << 20)) is None:
                    n_sent += 1
                else:
                    await a.transport.wait_room(b.node_id, "files")
        await _until(lambda: len(arrived) == 40)
        while a.transport.send(b.node_id, "files", bytes(1 << 20)) is None:
            pass
        a.name()
        async with timeout(1):
            await a.transport.wait_room(b.node_id, "files")

    _run(scenario)


def test_what_waits_when_the_peer_goes_is_dropped_and_never_comes_late() -> None:
    async def scenario(made: RealNodes) -> None:
        a, b = await made.mesh(2)
        while a.transport.send(b.node_id, "events", bytes(1 << 20)) is None:
            pass
        base_port = b.transport.base_port or 0
        await b.transport.close()
        await _until(lambda: a.transport.link(b.node_id) == "refused")
        assert _queued_bytes(a, b, "events") == 0
        again = made.make(b.keys, boot_id="b2")
        arrived = _arrivals(again)
        again.name(a)
        await again.open(base_port=base_port)
        await _until(lambda: a.transport.link(b.node_id) == "up")
        assert a.transport.send(b.node_id, "events", b"new") is None
        await _until(lambda: arrived == [("events", b"new")])

    _run(scenario)


def test_a_payload_is_refused_and_counted_when_its_queue_is_full() -> None:
    async def scenario(made: RealNodes) -> None:
        a, b = await made.mesh(2)
        while (refusal := a.transport.send(b.node_id, "files", bytes(1 << 20))) is None:
            pass
        assert refusal == "queue_full"
        info = a.transport.peer_info(b.node_id)
        assert info is not None
        assert info.planes["files"].n_refused == 1

    _run(scenario)


def test_a_hello_goes_with_the_next_payload_and_alone_only_where_none_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[tuple[Outbox, int]] = []
    send = vars(Outbox)["_try_send"]

    def note(outbox: Outbox, frame: bytes) -> bool:
        sent.append((outbox, frame[0]))
        return send(outbox, frame)

    monkeypatch.setattr(Outbox, "_try_send", note)
    monkeypatch.setattr(zmq_transport, "HELLO_S", 0.1)

    async def scenario(made: RealNodes) -> None:
        a, b = await made.mesh(2)
        sent.clear()
        await _until(lambda: [mark for _, mark in sent].count(HELLO_MARK) >= 4)
        sent.clear()
        for _ in range(40):
            assert a.transport.send(b.node_id, "election", b"beat") is None
            await sleep(0.01)
        talks = next(outbox for outbox, mark in sent if mark != HELLO_MARK)
        marks = [mark for outbox, mark in sent if outbox is talks]
        hellos = [place for place, mark in enumerate(marks) if mark == HELLO_MARK]
        assert len(hellos) >= 2
        beat = PLANE_MARK["election"]
        assert [marks[place : place + 2] for place in hellos] == [[HELLO_MARK, beat]] * len(hellos)

    _run(scenario)
