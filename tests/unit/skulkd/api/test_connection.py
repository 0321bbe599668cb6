"""Clients that keep the letter of HTTP and not its spirit cost a bounded time and memory."""

import asyncio
import socket
from contextlib import suppress
from dataclasses import replace

import pytest

from protocol.data_frames import Chunk, Started
from skulkd.api import connection, server
from skulkd.api.connection import ConnectionLimits, GuardedHttp
from skulkd.api.sse import StreamLimits
from tests.support.api_harness import CHAT, Api, chat_body, request_bytes, until, with_api
from tests.support.fake_ports import plain_answer

HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(b"GET /health HT", id="late"),
        pytest.param(b"\x00\x01\x02\r\n\r\n", id="garbage"),
        pytest.param(b"GET /health HTTP/1.1\r\nx: " + b"x" * 5000, id="huge"),
    ],
)
def test_a_refused_request_never_lands_in_the_answer_to_an_earlier_one(
    second: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = [Started(1), Chunk("a"), asyncio.Event()]
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(request_bytes("POST", CHAT, chat_body(stream=True)))
        await reader.readuntil(b'"a"')
        writer.write(second)
        await until(lambda: api.server.connections() == [] and not api.daemon.inference.running)
        rest = b""
        with suppress(ConnectionResetError):
            rest = await reader.read()
        assert b"HTTP/1.1" not in rest
        writer.close()

    with_api(story, limits=ConnectionLimits(header_s=0.2, header_bytes=4096))
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


def test_blank_lines_between_requests_do_not_hold_a_connection() -> None:
    async def story(api: Api) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(HEALTH)
        await reader.readuntil(b"}")
        writer.write(b"\r\n")
        await until(lambda: api.server.connections() == [])
        writer.close()

    with_api(story, limits=ConnectionLimits(header_s=0.2, linger_s=0.1))


def test_trailers_are_no_headers() -> None:
    body = b"2\r\n{}\r\n0\r\nx-forwarded-for: 192.0.2.1\r\n\r\n"

    async def story(api: Api) -> None:
        answer = await api.raw(CHUNKED + b"connection: close\r\n\r\n" + body)
        assert answer.startswith(b"HTTP/1.1 400")  # no model is named; a proxy would get 401

    with_api(story)


@pytest.mark.parametrize("piece", [b"x: y\r\n", b"x"])
def test_trailers_are_bounded(piece: bytes) -> None:
    async def story(api: Api) -> None:
        endless = await api.raw(CHUNKED + b"\r\n2\r\n{}\r\n0\r\n" + piece * (2 << 20))
        assert endless.startswith(b"HTTP/1.1 431")

    with_api(story)


def test_a_client_that_asks_on_and_takes_no_answer_is_cut() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = plain_answer("x" * (16 << 20))
        with socket.create_connection(("127.0.0.1", api.port)) as client:
            client.sendall(request_bytes("POST", CHAT, chat_body()) + HEALTH)
            await until(lambda: api.server.connections() != [])
            (only,) = api.server.connections()
            assert isinstance(only, GuardedHttp)
            await until(lambda: api.app.n_open == 1 and only.is_choked)
            await until(lambda: api.app.n_open == 0 and api.server.connections() == [])

    with_api(story, limits=ConnectionLimits(stall_s=0.3))


def test_a_stream_is_cut_by_itself_before_its_connection_is() -> None:
    streams = StreamLimits()
    assert streams.stall_s + streams.check_s < ConnectionLimits().stall_s


def test_hundreds_of_requests_in_one_piece_are_not_kept_for_later() -> None:
    async def story(api: Api) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(HEALTH * 700)
        with suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 3)  # to the end, which a kept one has not
        writer.close()
        assert (await api.client.get("/health")).status_code == 200

    with_api(story)


def test_what_is_not_http_is_answered_once_and_fills_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(api: Api) -> None:
        for garbage in (b"CONNECT localhost:80 HTTP/1.1\r\n\r\n", b"\x16\x03\x01\r\n\r\n"):
            answer = await api.raw(garbage)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert answer.count(b"content-length") == 1

    with_api(story)
    assert caplog.messages == []


def _is_never(_address: str) -> bool:
    return False


def _few(_what: int) -> tuple[int, int]:
    return (1024, 1024)


def test_strangers_who_connect_and_wait_leave_room_for_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(api: Api) -> None:
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(connection, "is_loopback", _is_never)
            waiting = [await asyncio.open_connection("127.0.0.1", api.port) for _ in range(8)]
            await until(lambda: len(api.server.connections()) == 6)
        assert (await api.client.get("/health")).status_code == 200
        for _, writer in waiting:
            writer.close()

    with_api(story, limits=ConnectionLimits(max_connections=8, kept_for_loopback=2))


def test_every_limit_survives_a_low_limit_of_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = ConnectionLimits(
        max_connections=5000,
        kept_for_loopback=1,
        header_bytes=2,
        header_s=3,
        body_s=4,
        linger_s=5,
        stall_s=6,
        keep_alive_s=7,
    )
    monkeypatch.setattr(server.resource, "getrlimit", _few)
    kept = server._within_descriptors(given)  # pyright: ignore[reportPrivateUsage] - its only use is at start
    assert kept == replace(given, max_connections=1024 - 256)


# ---- What leaves together ----------------------------------------------------------------------


class Pieces(asyncio.Protocol):
    """A client that keeps what each read gives."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)


async def pieces_of(api: Api, *requests: bytes) -> list[bytes]:
    """Ask on one connection, each time once the last answer has been there for a while."""
    transport, client = await asyncio.get_running_loop().create_connection(
        Pieces, "127.0.0.1", api.port
    )
    for number, request in enumerate(requests, start=1):
        transport.write(request)
        await until(lambda number=number: len(client.pieces) >= number)
        await asyncio.sleep(0.05)
    transport.close()
    return client.pieces


def test_the_head_of_an_answer_leaves_with_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    class Counted:
        """A connection's transport that keeps what each write was given."""

        def __init__(self, transport: asyncio.Transport) -> None:
            self._transport = transport

        def write(self, data: bytes) -> None:
            written.append(data)
            self._transport.write(data)

        def __getattr__(self, name: str) -> object:
            return getattr(self._transport, name)

    made = GuardedHttp.connection_made

    def count(connection: GuardedHttp, transport: asyncio.Transport) -> None:
        made(connection, Counted(transport))  # type: ignore[arg-type]

    monkeypatch.setattr(GuardedHttp, "connection_made", count)

    async def story(api: Api) -> None:
        api.daemon.inference.script = plain_answer("hello")
        chat = request_bytes("POST", CHAT, chat_body())
        await pieces_of(api, HEALTH, chat, HEALTH)
        assert [one.startswith(b"HTTP/1.1 200") for one in written] == [True] * 3
        assert [one.endswith(b"}") for one in written] == [True] * 3

    with_api(story)


def test_a_head_that_has_no_body_leaves_too() -> None:
    async def story(api: Api) -> None:
        (piece,) = await pieces_of(api, HEALTH.replace(b"GET", b"HEAD"))
        assert piece.endswith(b"\r\n\r\n")

    with_api(story)


def test_a_client_that_asks_whether_to_go_on_is_told_to() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = plain_answer("hello")
        request = request_bytes("POST", CHAT, chat_body(), "expect: 100-continue\r\n")
        head, _, body = request.partition(b"\r\n\r\n")
        first, second = await pieces_of(api, head + b"\r\n\r\n", body)
        assert first == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert second.startswith(b"HTTP/1.1 200")

    with_api(story)
