"""Listeners: binding, the port's holder, opening and closing, an orderly end."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable

import httpx
import pytest
import uvloop

from protocol.data_frames import Chunk, Started
from protocol.errors import ConfigError
from protocol.ids import KeyId
from protocol.state import ApiKey
from skulkd.api.app import create_app
from skulkd.api.connection import ConnectionLimits, GuardedHttp
from skulkd.api.server import ApiServer
from skulkd.runtime.tasks import Tasks
from tests.support.api_harness import (
    CHAT,
    Api,
    chat_body,
    events_of,
    request_bytes,
    until,
    with_api,
)
from tests.support.fake_ports import FakeDaemon, plain_answer

KEY = ApiKey(
    key_id=KeyId("key-aaaaaaaa"), name="k", secret_sha256="ab" * 32, scope="read", created_at_ms=1
)


def test_both_loopback_families_serve_on_one_port() -> None:
    async def story(api: Api) -> None:
        assert api.server.urls() == (f"http://127.0.0.1:{api.port}", f"http://[::1]:{api.port}")
        reply = await api.client.get(f"http://[::1]:{api.port}/health")
        assert reply.status_code == 200

    with_api(story)


@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_head_and_body_of_an_answer_are_not_held_back(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def story(api: Api) -> None:
        await api.client.get("/health")
        (connection,) = api.server.connections()
        assert isinstance(connection, GuardedHttp)
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0

    with_api(story, loop_factory=loop_factory)


def test_a_client_that_never_takes_its_last_answer_is_let_go() -> None:
    async def story(api: Api) -> None:
        api.daemon.inference.script = plain_answer("x" * (16 << 20))
        with socket.create_connection(("127.0.0.1", api.port)) as client:
            client.sendall(request_bytes("POST", CHAT, chat_body()))
            await until(lambda: len(api.daemon.inference.tasks) == 1)
            await until(lambda: api.server.connections() == [])

    with_api(story, limits=ConnectionLimits(keep_alive_s=0))


LISTEN = """
import socket, sys
held = socket.socket()
held.bind(("127.0.0.1", 0))
held.listen()
print(held.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_busy_port_names_its_holder() -> None:
    async def run(port: int, pid: int) -> None:
        daemon = FakeDaemon()
        tasks = Tasks("test", on_death=lambda story, _: daemon.deaths.append(story))
        server = ApiServer(clock=daemon.clock)
        with pytest.raises(ConfigError) as caught:
            await server.start(create_app(daemon.dependencies(tasks)), port=port)
        assert caught.value.code == "config.port_busy"
        assert str(port) in caught.value.message
        assert f"(pid {pid})" in caught.value.message
        assert server.urls() == ()
        await server.close(0.1)

    with subprocess.Popen(
        [sys.executable, "-c", LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        asyncio.run(run(int(holder.stdout.readline()), holder.pid))
        holder.communicate()


def test_a_holder_of_the_ipv6_side_is_busy_too() -> None:
    async def run() -> None:
        with socket.socket(socket.AF_INET6) as held:
            held.bind(("::1", 0))
            held.listen()
            port = held.getsockname()[1]
            daemon = FakeDaemon()
            tasks = Tasks("test", on_death=lambda story, _: daemon.deaths.append(story))
            server = ApiServer(clock=daemon.clock)
            with pytest.raises(ConfigError, match="port_busy"):
                await server.start(create_app(daemon.dependencies(tasks)), port=port)
            await asyncio.sleep(0.02)
            with socket.socket() as again:  # the IPv4 side was let go
                again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                again.bind(("127.0.0.1", port))
            await server.close(0.1)

    asyncio.run(run())


def test_without_ipv6_ipv4_alone_serves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = ApiServer._bind  # pyright: ignore[reportPrivateUsage] - a machine without IPv6

    async def no_v6(self: ApiServer, host: str) -> socket.socket:
        if ":" in host:
            raise OSError(99, "Cannot assign requested address")
        return await real(self, host)

    monkeypatch.setattr(ApiServer, "_bind", no_v6)

    async def story(api: Api) -> None:
        assert api.server.urls() == (f"http://127.0.0.1:{api.port}",)
        assert (await api.client.get("/health")).status_code == 200

    with_api(story)
    assert "IPv4 alone serves" in caplog.text


def test_wildcard_takes_over_from_loopback_and_gives_back() -> None:
    async def story(api: Api) -> None:
        for _ in range(2):
            await api.server.open("0.0.0.0")
            assert f"http://0.0.0.0:{api.port}" in api.server.urls()
            async with httpx.AsyncClient(trust_env=False) as fresh:
                reply = await fresh.get(f"http://127.0.0.1:{api.port}/health")
                assert reply.status_code == 200
            await api.server.close_beyond_loopback()
            assert api.server.urls()[0] == f"http://127.0.0.1:{api.port}"
            async with httpx.AsyncClient(trust_env=False) as fresh:
                reply = await fresh.get(f"http://127.0.0.1:{api.port}/health")
                assert reply.status_code == 200

    with_api(story)


def test_address_of_another_machine_cannot_be_opened_and_loopback_stays() -> None:
    async def story(api: Api) -> None:
        before = api.server.urls()
        for host in ("192.0.2.77", "not an address"):
            with pytest.raises(ConfigError) as caught:
                await api.server.open(host)
            assert caught.value.code == "config.invalid"
        assert api.server.urls() == before

    with_api(story)


def test_closing_ends_streams_with_an_error_and_whole_answers_with_503() -> None:
    gate = asyncio.Event()

    async def story(api: Api) -> None:
        api.daemon.inference.script = [Started(1), Chunk("a"), gate]
        streaming = asyncio.ensure_future(api.chat(stream=True))
        asking = asyncio.ensure_future(api.chat())
        following = asyncio.ensure_future(api.client.get("/events?follow=1"))
        await until(lambda: api.app.n_open == 3 and len(api.daemon.inference.running) == 2)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await api.server.close(grace_s=5)
        assert loop.time() - began < 2
        assert events_of((await streaming).text)[-1]["error"]["code"] == "cluster.stopping"
        whole = await asking
        assert whole.status_code == 503
        assert whole.headers["retry-after"] == "5"
        assert (await following).status_code == 200
        assert api.daemon.inference.running == {}
        with pytest.raises(httpx.ConnectError):
            await api.client.get("/health")

    with_api(story)


def test_a_client_that_does_not_leave_is_cut_after_the_grace() -> None:
    async def story(api: Api) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{"
        )
        await until(lambda: api.app.n_open == 1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await api.server.close(grace_s=0.2)
        assert 0.15 < loop.time() - began < 3
        await until(lambda: api.app.n_open == 0)
        writer.close()

    with_api(story)


def test_keep_alive_and_pipelining_keep_their_order() -> None:
    async def story(api: Api) -> None:
        request = b"GET /%b HTTP/1.1\r\nhost: localhost\r\n%b\r\n"
        received = await api.raw(
            request % (b"node_id", b"")
            + request % (b"version", b"")
            + request % (b"nowhere", b"connection: close\r\n")
        )
        assert received.count(b"HTTP/1.1 200 OK") == 2
        assert received.count(b"HTTP/1.1 404 Not Found") == 1
        assert received.index(b"naaaaaaaaaaaaaaaa") < received.index(b'"python"')

    with_api(story)


def test_a_request_that_comes_during_a_stream_takes_nothing_from_it_and_waits() -> None:
    gate = asyncio.Event()

    async def story(api: Api) -> None:
        api.daemon.inference.script = [Started(1), Chunk("first"), gate, *plain_answer("Hello")[1:]]
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(request_bytes("POST", CHAT, chat_body(stream=True)))
        received = await reader.readuntil(b"first")
        writer.write(request_bytes("GET", "/node_id", headers="connection: close\r\n"))
        await asyncio.sleep(0.05)
        gate.set()
        received += await asyncio.wait_for(reader.read(), 5)
        writer.close()
        stream, _, following = received.partition(b"\r\n0\r\n\r\n")
        assert b'"content":"Hello"' in stream
        assert stream.endswith(b"data: [DONE]\n\n")
        assert following.startswith(b"HTTP/1.1 200 OK")
        assert b"naaaaaaaaaaaaaaaa" in following

    with_api(story)


def test_idle_connections_are_closed() -> None:
    async def story(api: Api) -> None:
        received = await api.raw(b"GET /node_id HTTP/1.1\r\nhost: localhost\r\n\r\n", wait_s=3)
        assert received.startswith(b"HTTP/1.1 200 OK")

    with_api(story, limits=ConnectionLimits(keep_alive_s=0))


def test_date_header_is_there() -> None:
    async def story(api: Api) -> None:
        assert (await api.client.get("/health")).headers["date"].endswith("GMT")
        assert (await api.client.post(CHAT, json=chat_body())).headers["date"].endswith("GMT")

    with_api(story)
