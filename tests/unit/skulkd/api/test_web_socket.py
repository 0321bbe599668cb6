"""The node's end of a WebSocket: its own frames, and what is none."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from websockets.frames import Close, CloseCode, Frame, Opcode

from skulkd.api.web_socket import CLOSE_WITHIN_S, WRITE_BUFFER_BYTES
from tests.support.api_harness import Api, until, with_api
from tests.support.session_client import session_with

UPGRADE = (
    b"GET /v1/session HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\n"
    b"upgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
HELLO = b'{"type":"hello"}'


def frame(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin=fin).serialize(mask=True)


async def upgraded(api: Api) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(UPGRADE)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    assert b" 101 " in head
    assert b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head, "RFC 6455's own example"
    return reader, writer


def play(
    story: Callable[[Api, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> None:
    async def run(api: Api) -> None:
        reader, writer = await upgraded(api)
        try:
            await story(api, reader, writer)
        finally:
            writer.close()

    with_api(run)


async def read_all(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.read(-1), 5)


@pytest.mark.parametrize(
    "wrong",
    [
        Frame(Opcode.TEXT, HELLO).serialize(mask=False),
        frame(Opcode.CONT, b"x"),
        frame(Opcode.TEXT, b"{", fin=False) + frame(Opcode.TEXT, b"}"),
        b"\xf1" + frame(Opcode.TEXT, HELLO)[1:],
        b"\x83" + frame(Opcode.TEXT, HELLO)[1:],
        b"\x89\xfe\x00\xff" + b"x" * 300,
        frame(Opcode.CLOSE, b"\x00"),
    ],
    ids=["unmasked", "no beginning", "two beginnings", "extension", "opcode", "long ping", "close"],
)
def test_what_is_no_frame_is_refused_with_its_reason_and_the_socket_closed(wrong: bytes) -> None:
    async def story(api: Api, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(wrong)
        told = await read_all(reader)
        assert b"protocol.bad_frame" in told
        assert Close(CloseCode.PROTOCOL_ERROR, "").serialize() in told
        writer.close()
        await until(lambda: api.server.connections() == [])

    play(story)


def test_a_ping_of_the_protocol_is_answered_and_a_close_is_echoed() -> None:
    async def story(api: Api, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(Opcode.PING, b"there?") + frame(Opcode.CLOSE, b"\x03\xe8"))
        answer = await read_all(reader)
        assert answer == (
            Frame(Opcode.PONG, b"there?").serialize(mask=False)
            + Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=False)
        )
        writer.close()
        await until(lambda: api.server.connections() == [])

    play(story)


def test_garbage_ends_its_own_session_and_no_other() -> None:
    async def story(api: Api) -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  seeded, so that a failure repeats
        chance = random.Random(11)
        async with session_with(api.port) as client:
            for _ in range(60):
                reader, writer = await upgraded(api)
                if chance.random() < 0.5:
                    writer.write(frame(Opcode.TEXT, HELLO))
                writer.write(chance.randbytes(chance.randrange(1, 400)))
                writer.write_eof()
                await read_all(reader)
                writer.close()
            assert (await client.ask("GET", "/health"))["status"] == 200
        await until(lambda: api.server.connections() == [])

    with_api(story)


def test_messages_without_an_end_are_bounded() -> None:
    async def story(api: Api, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(Opcode.TEXT, b"x" * 65536, fin=False))
        for _ in range(15):
            writer.write(frame(Opcode.CONT, b"x" * 65536, fin=False))
        writer.write(frame(Opcode.CONT, b"x", fin=False))
        told = await read_all(reader)
        assert b"protocol.too_large" in told
        assert Close(CloseCode.MESSAGE_TOO_BIG, "").serialize() in told

    play(story)


def test_one_that_asks_and_never_reads_is_not_read_from_either() -> None:
    async def story(api: Api, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        writer.write(frame(Opcode.TEXT, HELLO))
        ping = frame(Opcode.TEXT, b'{"type":"ping","n":123456789}') * 2000
        sent = 0
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.transport.set_write_buffer_limits(high=1)
        try:
            async with asyncio.timeout(1.5):
                while sent < 64 << 20:
                    writer.write(ping)
                    await writer.drain()
                    sent += len(ping)
        except TimeoutError:
            pass
        assert sent < 64 << 20, "it was not held up"
        (connection,) = api.server.connections()
        transport = cast("asyncio.Transport", vars(connection)["_transport"])
        assert transport.get_write_buffer_size() < 4 * WRITE_BUFFER_BYTES
        writer.transport.abort()

    play(story)


def test_one_that_does_not_answer_the_goodbye_is_dropped() -> None:
    async def story(api: Api, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(Opcode.TEXT, b"nonsense"))
        await until(lambda: api.server.connections() == [], within_s=CLOSE_WITHIN_S + 2)
        assert b"protocol.bad_frame" in await read_all(reader)

    play(story)
