import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop

from engines import http_client
from engines.base import Endpoint
from engines.http_client import HttpClient, HttpTimeouts
from protocol.errors import EngineError

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
Reply = bytes | None
"""What is written for a request; None closes the connection instead."""


@dataclass
class Peer:
    """A server that answers each request on each connection as it is told."""

    scripts: list[list[Reply]]
    requests: list[bytes] = field(default_factory=list[bytes])
    n_connections: int = 0
    n_lost: int = 0
    connections: list["_PeerConnection"] = field(default_factory=list["_PeerConnection"])

    def connect(self) -> "_PeerConnection":
        script = self.scripts[min(self.n_connections, len(self.scripts) - 1)]
        self.n_connections += 1
        connection = _PeerConnection(self, list(script))
        self.connections.append(connection)
        return connection


class _PeerConnection(asyncio.Protocol):
    def __init__(self, peer: Peer, script: list[Reply]) -> None:
        self._peer = peer
        self._script = script
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._peer.requests.append(data)
        reply = self._script.pop(0) if self._script else None
        if reply is None:
            self.transport.close()
        else:
            self.transport.write(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._peer.n_lost += 1


Story = Callable[[HttpClient, Peer], Coroutine[Any, Any, None]]


@asynccontextmanager
async def client_of(
    peer: Peer, timeouts: HttpTimeouts | None, api_key: str | None
) -> AsyncGenerator[HttpClient]:
    with tempfile.TemporaryDirectory(prefix="skulk-") as directory:
        path = Path(directory) / "peer.sock"
        server = await asyncio.get_running_loop().create_unix_server(peer.connect, str(path))
        client = HttpClient(Endpoint(socket_path=path, api_key=api_key), timeouts)
        try:
            yield client
        finally:
            await client.close()
            for connection in peer.connections:
                connection.transport.abort()
            server.close()
            await server.wait_closed()


def play(
    story: Story,
    *scripts: list[Reply],
    timeouts: HttpTimeouts | None = None,
    api_key: str | None = None,
) -> Peer:
    peer = Peer(list(scripts))

    async def run() -> None:
        async with client_of(peer, timeouts, api_key) as client:
            await story(client, peer)

    uvloop.run(run())
    return peer


async def get(client: HttpClient, max_bytes: int = 1 << 20) -> bytes:
    response = await client.request("GET", "/health")
    try:
        return await response.read_all(max_bytes)
    finally:
        response.close()


async def code_of(call: Coroutine[Any, Any, object]) -> str:
    with pytest.raises(EngineError) as caught:
        await call
    return caught.value.code


def test_a_connection_serves_one_request_after_the_other() -> None:
    async def story(client: HttpClient, _peer: Peer) -> None:
        assert [await get(client) for _ in range(3)] == [b"hi"] * 3

    assert play(story, [OK] * 3).n_connections == 1


def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    async def story(client: HttpClient, _peer: Peer) -> None:
        assert await asyncio.gather(*(get(client) for _ in range(3))) == [b"hi"] * 3

    assert play(story, [OK] * 3).n_connections == 3


def test_a_stale_connection_is_replaced_once_before_the_first_byte() -> None:
    async def story(client: HttpClient, _peer: Peer) -> None:
        assert [await get(client), await get(client)] == [b"hi", b"hi"]

    peer = play(story, [OK, None], [OK])
    assert (peer.n_connections, len(peer.requests)) == (2, 3)


def test_a_new_connection_that_ends_is_not_tried_again() -> None:
    async def story(client: HttpClient, _peer: Peer) -> None:
        assert await code_of(get(client)) == "engine.gone"

    assert play(story, [None]).n_connections == 1


def test_nothing_is_sent_again_after_the_first_byte() -> None:
    async def story(client: HttpClient, peer: Peer) -> None:
        await get(client)
        cut_short = asyncio.create_task(get(client))
        while len(peer.requests) < 2:
            await asyncio.sleep(0)
        peer.connections[0].transport.close()
        assert await code_of(_wait(cut_short)) == "engine.gone"

    assert play(story, [OK, b"HTTP/1.1 2"], [OK]).n_connections == 1


def test_an_engine_that_closes_is_not_asked_again_on_that_connection() -> None:
    closing = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)

    async def story(client: HttpClient, _peer: Peer) -> None:
        assert [await get(client), await get(client)] == [b"hi", b"hi"]

    assert play(story, [closing], [closing]).n_connections == 2


def test_no_engine_is_engine_gone() -> None:
    async def story() -> None:
        client = HttpClient(Endpoint(socket_path=Path("/nowhere/engine.sock")))
        assert await code_of(get(client)) == "engine.gone"

    uvloop.run(story())


def test_a_body_in_chunks_comes_as_it_arrives() -> None:
    async def story(client: HttpClient, peer: Peer) -> None:
        response = await client.request("POST", "/", b"{}")
        assert await response.next_piece() == b"abc"
        peer.connections[0].transport.write(b"2\r\nde\r\n")
        assert await response.next_piece() == b"de"
        peer.connections[0].transport.write(b"0\r\n\r\n")
        assert await response.next_piece() == b""
        response.close()
        assert await get(client) == b"hi"

    assert play(story, [CHUNKED + b"3\r\nabc\r\n", OK]).n_connections == 1


def test_a_body_is_handed_over_in_the_read_that_brings_it_until_that_is_enough() -> None:
    got: list[bytes] = []

    def takes_until_e(piece: bytes) -> bool:
        got.append(piece)
        return not piece.endswith(b"e")

    async def story(client: HttpClient, peer: Peer) -> None:
        response = await client.request("GET", "/")
        delivering = asyncio.create_task(response.deliver(takes_until_e))
        while got != [b"abc"]:
            await asyncio.sleep(0.001)
        peer.connections[0].transport.write(b"1\r\nd\r\n1\r\ne\r\n1\r\nf\r\n")
        await delivering
        assert got == [b"abc", b"d", b"e"]
        peer.connections[0].transport.write(b"1\r\ng\r\n0\r\n\r\n")
        await response.deliver(takes_until_e)
        assert b"".join(got) == b"abcdefg"
        assert got[-1] == b""
        response.close()
        assert await get(client) == b"hi"

    assert play(story, [CHUNKED + b"3\r\nabc\r\n", OK]).n_connections == 1


def test_a_body_that_breaks_off_while_it_is_handed_over_is_engine_gone() -> None:
    async def story(client: HttpClient, peer: Peer) -> None:
        response = await client.request("GET", "/")
        delivering = asyncio.create_task(code_of(response.deliver(lambda _: True)))
        await asyncio.sleep(0.01)
        peer.connections[0].transport.close()
        assert await delivering == "engine.gone"
        response.close()

    play(story, [CHUNKED])


def test_what_a_receiver_raises_is_raised_to_whoever_waits() -> None:
    def fails(piece: bytes) -> bool:
        raise ValueError(piece)

    async def story(client: HttpClient, peer: Peer) -> None:
        response = await client.request("GET", "/")
        delivering = asyncio.create_task(response.deliver(fails))
        await asyncio.sleep(0.01)
        peer.connections[0].transport.write(b"1\r\nd\r\n")
        with pytest.raises(ValueError, match="d"):
            await delivering
        response.close()
        while not peer.n_lost:
            await asyncio.sleep(0.001)

    play(story, [CHUNKED])


def test_a_receiver_whose_wait_was_cancelled_gets_nothing_more() -> None:
    got: list[bytes] = []

    async def story(client: HttpClient, peer: Peer) -> None:
        response = await client.request("GET", "/")
        delivering = asyncio.create_task(response.deliver(lambda piece: bool(got.append(piece))))
        await asyncio.sleep(0.01)
        delivering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await delivering
        peer.connections[0].transport.write(b"1\r\nd\r\n")
        assert await response.next_piece() == b"d"
        assert got == []
        response.close()

    play(story, [CHUNKED])


def test_closing_in_mid_body_cuts_the_connection() -> None:
    async def story(client: HttpClient, peer: Peer) -> None:
        response = await client.request("GET", "/")
        response.close()
        response.close()
        while not peer.n_lost:
            await asyncio.sleep(0.001)
        assert await response.next_piece() == b""

    play(story, [CHUNKED + b"3\r\nabc\r\n"])


def test_finishing_early_keeps_the_connection_once_the_end_has_come() -> None:
    async def story(client: HttpClient, peer: Peer) -> None:
        response = await client.request("GET", "/")
        assert await response.next_piece() == b"abc"
        response.finish()
        peer.connections[0].transport.write(b"0\r\n\r\n")
        await asyncio.sleep(0.01)
        assert await get(client) == b"hi"

    assert play(story, [CHUNKED + b"3\r\nabc\r\n", OK]).n_connections == 1


def test_cancelling_a_request_cuts_its_connection() -> None:
    async def story(client: HttpClient, peer: Peer) -> None:
        waiting = asyncio.create_task(get(client))
        while not peer.requests:
            await asyncio.sleep(0.001)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        while not peer.n_lost:
            await asyncio.sleep(0.001)

    play(story, [b""])


@pytest.mark.parametrize("reply", [b"", CHUNKED])
def test_silence_has_an_end(reply: bytes) -> None:
    async def story(client: HttpClient, _peer: Peer) -> None:
        assert await code_of(get(client)) == "engine.gone"

    play(story, [reply], timeouts=HttpTimeouts(quiet_s=0.02))


def test_a_consumer_that_takes_its_time_is_not_silence() -> None:
    async def story(client: HttpClient, _peer: Peer) -> None:
        response = await client.request("GET", "/")
        await asyncio.sleep(0.1)
        assert await response.next_piece() == b"hi"
        response.close()

    play(story, [OK], timeouts=HttpTimeouts(quiet_s=0.02))


def test_an_unread_body_stops_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_UNREAD_BYTES", 64 << 10)
    body = b"x" * (16 << 20)
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def story(client: HttpClient, peer: Peer) -> None:
        response = await client.request("GET", "/")
        await asyncio.sleep(0.05)
        assert peer.connections[0].transport.get_write_buffer_size() > len(body) // 2
        first = await response.next_piece()
        assert len(first) < 2 << 20
        assert len(first) + len(await response.read_all(len(body))) == len(body)
        response.close()

    play(story, [head + body])


def test_what_had_arrived_before_a_cut_can_still_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_UNREAD_BYTES", 1)

    async def story(client: HttpClient, _peer: Peer) -> None:
        response = await client.request("GET", "/")
        await client.close()
        assert await response.next_piece() == b"abc"
        assert await code_of(response.next_piece()) == "engine.gone"

    play(story, [CHUNKED + b"3\r\nabc\r\n"])


@pytest.mark.parametrize(
    "reply",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * (http_client.MAX_HEAD_BYTES + 1),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nbanana\r\n",
    ],
)
def test_what_is_not_http_is_a_failed_request(reply: bytes) -> None:
    async def story(client: HttpClient, _peer: Peer) -> None:
        assert await code_of(get(client)) == "engine.request_failed"

    play(story, [reply])


def test_a_second_answer_to_one_request_is_not_kept_for_the_next() -> None:
    async def story(client: HttpClient, _peer: Peer) -> None:
        assert await code_of(get(client)) == "engine.request_failed"

    play(story, [OK + OK])


def test_bytes_nobody_asked_for_end_the_connection() -> None:
    async def story(client: HttpClient, peer: Peer) -> None:
        await get(client)
        peer.connections[0].transport.write(OK)
        while not peer.n_lost:
            await asyncio.sleep(0.001)
        assert await get(client) == b"hi"

    assert play(story, [OK], [OK]).n_connections == 2


def test_an_answer_larger_than_its_limit_is_refused() -> None:
    async def story(client: HttpClient, _peer: Peer) -> None:
        assert await code_of(get(client, max_bytes=1)) == "engine.request_failed"

    play(story, [OK])


def test_closing_the_client_ends_the_requests_under_way() -> None:
    async def story(client: HttpClient, peer: Peer) -> None:
        waiting = asyncio.create_task(get(client))
        while not peer.requests:
            await asyncio.sleep(0.001)
        await client.close()
        assert await code_of(_wait(waiting)) == "engine.gone"
        assert await code_of(get(client)) == "engine.gone"

    play(story, [b""])


def test_the_key_of_an_endpoint_travels_as_bearer() -> None:
    async def story(client: HttpClient, peer: Peer) -> None:
        await get(client)
        assert b"\r\nAuthorization: Bearer secret\r\n" in peer.requests[0]

    play(story, [OK], api_key="secret")


async def _wait(task: "asyncio.Task[bytes]") -> bytes:
    return await task
