"""The link's timing as its shell keeps it, in virtual time: no socket, no thread, no waiting."""

import asyncio
import json

import pytest

from protocol.errors import ClientError
from skulk_tui.session_link import SessionLink
from skulk_tui.session_socket import Socket, SocketClosedError
from skulk_tui.target import Target
from skulk_tui.view_state import ViewState
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import NOW_MS, a_cluster_id, a_node_id
from tests.support.linked import Impatience, Seen

HELLO = {
    "type": "hello",
    "version": 1,
    "build": "0.1.0",
    "node_id": a_node_id(),
    "name": "den-01",
    "boot_id": "boot-1",
    "cluster_id": a_cluster_id(),
    "at_ms": NOW_MS,
}


class LoopClock:
    """The loop's own time, and a wall clock that a test can let jump."""

    def __init__(self) -> None:
        self.slept_s = 0.0

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        return int((self.monotonic_s() + self.slept_s) * 1000)


class Line:
    """A socket that says hello and then what a test puts into it."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.incoming.put_nowait(json.dumps(HELLO).encode())
        self.sent: list[str] = []
        self.is_closed = False

    async def send(self, text: str) -> None:
        self.sent.append(text)

    async def receive(self) -> bytes:
        message = await self.incoming.get()
        if message is None:
            raise SocketClosedError("it closed the connection")
        return message

    async def close(self) -> None:
        self.is_closed = True


class Network:
    """Gives out lines, refuses, or never answers."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.dialled_at: list[float] = []
        self.mode = "up"

    async def __call__(self, target: Target) -> Socket:
        self.dialled_at.append(asyncio.get_running_loop().time())
        if self.mode == "mute":
            await asyncio.Event().wait()
        if self.mode == "down":
            raise ClientError("client.unreachable", "connection refused")
        self.lines.append(Line())
        return self.lines[-1]


def a_link(network: Network, clock: LoopClock, seen: Seen) -> SessionLink:
    link = SessionLink(
        Target(url="http://den-01:52415", url_rule="--node"),
        ViewState(),
        clock=clock,
        randomness=Impatience(),
        on_change=seen.take,
        connect=network,
    )
    seen.link = link
    return link


def test_silence_is_stale_after_three_seconds_and_lost_after_ten() -> None:
    async def story() -> None:
        network, seen = Network(), Seen()
        link = a_link(network, LoopClock(), seen)
        link.start()
        await asyncio.sleep(2.99)
        assert link.view.word == "live"
        await asyncio.sleep(0.02)
        assert link.view.word == "stale"
        network.mode = "down"
        await asyncio.sleep(6.98)
        assert link.view.word == "stale"
        await asyncio.sleep(0.02)
        assert seen.words[-2:] == ["stale", "lost"]
        assert network.lines[0].is_closed
        await link.close()

    run_virtual(story, limit_s=60)


def test_an_attempt_that_is_never_answered_is_given_up_after_three_seconds() -> None:
    async def story() -> None:
        network, seen = Network(), Seen()
        network.mode = "mute"
        link = a_link(network, LoopClock(), seen)
        link.start()
        await asyncio.sleep(2.9)
        assert link.view.attempt == 0
        await asyncio.sleep(0.2)
        assert link.view.attempt == 1
        assert "did not answer within 3 s" in link.view.reason
        assert network.dialled_at[1] == pytest.approx(3.01, abs=0.01)
        await link.close()

    run_virtual(story, limit_s=60)


def test_a_machine_that_slept_asks_at_once_and_gives_the_node_three_seconds() -> None:
    async def story() -> None:
        network, clock = Network(), LoopClock()
        link = a_link(network, clock, Seen())
        link.start()
        for _ in range(5):
            await asyncio.sleep(1)
            network.lines[0].incoming.put_nowait(b'{"type":"ping","n":1}')
        clock.slept_s = 3600
        await asyncio.sleep(3.1)
        assert link.view.word in {"stale", "lost"}
        assert '{"type":"ping","n":0}' in network.lines[0].sent
        await asyncio.sleep(3.1)
        assert len(network.lines) == 2
        await link.close()

    run_virtual(story, limit_s=60)
