"""Transports in processes of their own: killed, stopped, and told apart."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from protocol.envelope import Plane
from protocol.ids import NodeId, node_id_of
from skulkd.cluster.transport import LinkState, Peer
from skulkd.runtime.tasks import sleep, timeout
from tests.support.patience import allowed_s
from tests.support.real_transports import RealNode, real_nodes
from tests.support.source_tree import ROOT

pytestmark = pytest.mark.e2e


class _Pair:
    """A node here, and one in a child process."""

    def __init__(self, node: RealNode, child: "subprocess.Popen[str]", peer: NodeId) -> None:
        self.node = node
        self.child = child
        self.peer = peer
        self.seen: list[tuple[LinkState, float]] = []
        self.got: list[bytes] = []
        node.transport.on_link(lambda _, state: self.seen.append((state, time.monotonic())))
        node.transport.on_receive("control", lambda _, payload: self.got.append(payload))

    async def until(self, state: LinkState, within_s: float) -> float:
        """Wait for a state; gives the time at which it came."""
        await _until(lambda: self.seen != [] and self.seen[-1][0] == state, within_s)
        return self.seen[-1][1]

    async def until_got(self, payload: bytes) -> None:
        """Wait until this is the newest answer."""
        await _until(lambda: self.got[-1:] == [payload], 10.0)


async def _until(condition: Callable[[], bool], within_s: float) -> None:
    async with timeout(within_s):
        while not condition():
            await sleep(0.005)


@asynccontextmanager
async def _pair() -> AsyncGenerator[_Pair]:
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.support.transport_child"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        async with real_nodes() as made:
            node = made.make()
            await node.open()
            key, address = (await asyncio.to_thread(child.stdout.readline)).split()
            public_key = bytes.fromhex(key)
            peer = Peer(node_id=node_id_of(public_key), public_key=public_key, addresses=(address,))
            pair = _Pair(node, child, peer.node_id)
            node.transport.set_peers({peer.node_id: peer})
            child.stdin.write(f"{node.keys.public_key.hex()} {node.address()}\n")
            child.stdin.flush()
            await pair.until("up", 20.0)
            pair.seen.clear()
            yield pair
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.stdin.close()
        child.stdout.close()
        child.wait(10)


def test_a_process_that_is_killed_is_refused_within_a_moment() -> None:
    async def main() -> None:
        async with _pair() as pair:
            killed_s = time.monotonic()
            os.kill(pair.child.pid, signal.SIGKILL)
            refused_s = await pair.until("refused", 5.0)
            # 2 ms on a quiet machine; the bound is for a busy one.
            assert refused_s - killed_s < allowed_s(2.0)
            assert "up" not in [state for state, _ in pair.seen]

    asyncio.run(main())


def test_a_process_that_is_stopped_is_silent_after_five_seconds_and_up_when_it_goes_on() -> None:
    async def main() -> None:
        async with _pair() as pair:
            stopped_s = time.monotonic()
            os.kill(pair.child.pid, signal.SIGSTOP)
            silent_s = await pair.until("silent", 12.0)
            assert 4.0 < silent_s - stopped_s < 9.0
            assert pair.node.transport.send(pair.peer, "control", b"old") == "no_link"
            # Dialling it again ends in nothing after 3 s, and it is silent still.
            await sleep(3.5)
            assert [state for state, _ in pair.seen] == ["silent"]
            os.kill(pair.child.pid, signal.SIGCONT)
            await pair.until("up", 15.0)
            assert pair.node.transport.send(pair.peer, "control", b"new") is None
            await _until(lambda: pair.got == [b"new"], 5.0)

    asyncio.run(main())


def test_a_wish_is_answered_while_data_and_files_take_all_they_can() -> None:
    async def main() -> None:
        async with _pair() as pair:
            transport = pair.node.transport
            is_over = False

            async def flood(plane: Plane, n_bytes: int) -> None:
                while not is_over:
                    for _ in range(16):
                        transport.send(pair.peer, plane, bytes(n_bytes))
                    await transport.wait_room(pair.peer, plane)
                    await sleep(0)

            async with asyncio.TaskGroup() as floods:
                floods.create_task(flood("data", 4_000))
                floods.create_task(flood("files", 256 << 10))
                late_s: list[float] = []
                for number in range(40):
                    asked_s = time.monotonic()
                    assert transport.send(pair.peer, "control", b"%d" % number) is None
                    await pair.until_got(b"%d" % number)
                    late_s.append(time.monotonic() - asked_s)
                    await sleep(0.02)
                is_over = True
            info = transport.peer_info(pair.peer)
            assert info is not None
            assert info.planes["files"].n_sent_bytes > 20_000_000
            # 1 ms on a quiet machine, 5 ms on one with two cores that both ends keep busy.
            assert sorted(late_s)[20] < 1.0
            assert pair.seen == []

    asyncio.run(main())


def test_closing_takes_a_moment_though_a_stopped_peer_has_not_taken_what_was_sent() -> None:
    async def main() -> None:
        async with _pair() as pair:
            os.kill(pair.child.pid, signal.SIGSTOP)
            transport = pair.node.transport
            for plane in ("election", "events", "files"):
                for _ in range(200):
                    transport.send(pair.peer, plane, bytes(60_000))
            began_s = time.monotonic()
            await transport.close()
            assert time.monotonic() - began_s < allowed_s(2.0)

    asyncio.run(main())
