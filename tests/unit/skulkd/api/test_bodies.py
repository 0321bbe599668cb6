"""What a body may be, on every kind of route: lies about length, slowness, hostile JSON (S17)."""

import asyncio
import gzip
import json

import pytest

from skulkd.api.connection import ConnectionLimits
from skulkd.api.http import MAX_BODY_BYTES
from skulkd.api.json_body import MAX_DEPTH
from tests.support.api_harness import CHAT, Api, chat_body, until, with_api

ROUTES = [CHAT, "/v1/messages", "/v1/responses", "/v1/embeddings", "/ollama/api/chat"]
CONTROL = [("POST", "/place_instance"), ("POST", "/v1/keys"), ("PUT", "/config")]
EVERYWHERE = [*(("POST", path) for path in ROUTES), *CONTROL]


def head(path: str, lines: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n\r\n".encode()


def test_s17_the_bounds_are_those_of_the_checklist() -> None:
    limits = ConnectionLimits()
    assert (limits.header_bytes, limits.header_s, limits.body_s) == (32 * 1024, 10.0, 60.0)
    assert MAX_BODY_BYTES == 8 << 20


# ---- Lengths ---------------------------------------------------------------------------------


def test_s17_a_body_that_is_longer_than_it_says_is_no_second_request() -> None:
    async def story(api: Api) -> None:
        body = json.dumps(chat_body()).encode()
        hidden = b"DELETE /instance/i-aaaa HTTP/1.1\r\nhost: evil.example\r\n\r\n"
        reply = await api.raw(
            head(CHAT, f"content-length: {len(body)}") + body + b"xx" + hidden, wait_s=0.5
        )
        # What follows is another request, and none: the connection is cut, whatever was answered.
        assert reply.count(b"HTTP/1.1 2") <= 1
        assert api.daemon.gateway.submitted == []
        await until(lambda: api.server.connections() == [] and api.app.n_open == 0)

    with_api(story)


def test_s17_a_body_that_is_shorter_than_it_says_reaches_nobody() -> None:
    async def story(api: Api) -> None:
        body = json.dumps(chat_body()).encode()
        reply = await api.raw(head(CHAT, f"content-length: {len(body) + 1}") + body)
        assert reply.startswith(b"HTTP/1.1 408 ")
        assert api.daemon.inference.tasks == []
        await until(lambda: api.app.n_open == 0)

    with_api(story, limits=ConnectionLimits(body_s=0.1, linger_s=0.05))


@pytest.mark.parametrize("length", ["0x10", "1e3", "+5", "5,5", "9" * 30, "", " ", "5\r\n x: 1"])
def test_s17_a_length_that_is_no_number_is_refused(length: str) -> None:
    async def story(api: Api) -> None:
        reply = await api.raw(head(CHAT, f"content-length: {length}") + b"{}", wait_s=0.5)
        assert reply.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 "))
        assert api.daemon.inference.tasks == []

    with_api(story)


@pytest.mark.parametrize(
    "chunks",
    [
        b"g\r\n{}\r\n0\r\n\r\n",
        b"-1\r\n{}\r\n0\r\n\r\n",
        b"ffffffffffffffffff\r\n{}\r\n",
        b"2\r\n{}garbage\r\n0\r\n\r\n",
        b"2;" + b"x" * 40_000 + b"\r\n{}\r\n0\r\n\r\n",
    ],
)
def test_s17_chunks_that_are_none_are_refused(chunks: bytes) -> None:
    async def story(api: Api) -> None:
        reply = await api.raw(head(CHAT, "transfer-encoding: chunked") + chunks, wait_s=0.5)
        assert reply.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 ")) or not reply
        assert api.daemon.inference.tasks == []
        await until(lambda: api.app.n_open == 0)

    with_api(story)


def test_s17_a_chunked_body_without_an_end_is_bounded() -> None:
    async def story(api: Api) -> None:
        async def endless() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
            writer.write(head(CHAT, "transfer-encoding: chunked"))
            chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
            for _ in range(MAX_BODY_BYTES // 0x10000 + 1):
                writer.write(chunk)
            assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
            writer.close()

        await asyncio.wait_for(endless(), 10)
        await until(lambda: api.app.n_open == 0)

    with_api(story)


# ---- Slow senders ----------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["head", "body", "chunks"])
def test_s17_who_trickles_does_not_move_the_deadline(part: str) -> None:
    begins = {
        "head": b"GET /health HTTP/1.1\r\nx: ",
        "body": head(CHAT, "content-length: 1000"),
        "chunks": head(CHAT, "transfer-encoding: chunked"),
    }[part]
    piece = b"1\r\n \r\n" if part == "chunks" else b"a"

    async def story(api: Api) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(begins)

        async def trickle() -> None:
            while True:
                writer.write(piece)
                await asyncio.sleep(0.02)

        trickling = asyncio.ensure_future(trickle())
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 408 ")
        trickling.cancel()
        writer.close()
        await until(lambda: api.app.n_open == 0)
        assert api.daemon.inference.tasks == []

    with_api(story, limits=ConnectionLimits(header_s=0.3, body_s=0.3, linger_s=0.05))


# ---- Content ---------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate", "gzip, identity", "x-weird"])
def test_s17_a_compressed_body_is_refused_by_name(encoding: str) -> None:
    async def story(api: Api) -> None:
        bomb = gzip.compress(b" " * (4 << 20))
        for method, path in EVERYWHERE:
            reply = await api.client.request(
                method,
                path,
                content=bomb,
                headers={"content-encoding": encoding, "content-type": "application/json"},
            )
            assert reply.status_code == 415, path
            assert encoding in reply.text
            assert "Content-Encoding" in reply.text

    with_api(story)


def test_a_body_that_says_it_is_plain_is_taken() -> None:
    async def story(api: Api) -> None:
        reply = await api.client.post(CHAT, json=chat_body(), headers={"content-encoding": ""})
        assert reply.status_code == 200
        plain = {"content-encoding": "identity"}
        assert (await api.client.post(CHAT, json=chat_body(), headers=plain)).status_code == 200

    with_api(story)


HOSTILE = {
    "nested": b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1),
    "nested without end": b"[" * 100_000,
    "a number without end": b'{"max_tokens": ' + b"9" * 5_000 + b"}",
    "NaN": b'{"temperature": NaN}',
    "not UTF-8": b'{"model": "\xff\xfe"}',
    "half a surrogate": b'{"model": "\\ud800"}',
    "UTF-16": '{"model": "m"}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "two documents": b"{} {}",
    "an array": b"[]",
    "a string": b'"{}"',
    "null": b"null",
    "a null byte": b'{"model": "m"}\x00',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_s17_hostile_json_is_a_400_on_every_kind_of_route(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(api: Api) -> None:
        for method, path in EVERYWHERE:
            reply = await api.client.request(
                method, path, content=HOSTILE[name], headers={"content-type": "application/json"}
            )
            assert reply.status_code == 400, (path, reply.text)
        assert api.daemon.gateway.submitted == []
        assert api.daemon.inference.tasks == []

    with_api(story)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_of_duplicate_keys_the_last_one_counts_everywhere() -> None:
    async def story(api: Api) -> None:
        twice = b'{"model": "no/such", ' + json.dumps(chat_body()).encode()[1:]
        assert (await api.client.post(CHAT, content=twice)).status_code == 200
        named = await api.client.post(
            "/v1/keys",
            content=b'{"name": "a", "scope": "admin", "scope": "infer"}',
            headers={"content-type": "application/json"},
        )
        assert named.status_code == 201
        assert api.daemon.gateway.submitted[-1].scope == "infer"  # type: ignore[attr-defined]

    with_api(story)
