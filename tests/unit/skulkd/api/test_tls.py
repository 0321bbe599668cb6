"""The API over TLS: every kind of answer, who may speak plainly, and strangers who do neither."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest
import uvloop

from protocol.errors import RequestError
from skulk_tui.clock import SystemClock
from skulk_tui.session_link import SessionLink
from skulk_tui.session_socket import WebSocketConnector
from skulk_tui.target import Target
from skulk_tui.tls_pins import TlsTrust
from skulk_tui.view_state import ViewState
from skulkd.api import certificate as certificates
from skulkd.api import tls_listener
from skulkd.api.certificate import ServedCertificate
from skulkd.api.connection import ConnectionLimits
from tests.support.api_harness import (
    CHAT,
    Api,
    chat_body,
    events_of,
    request_bytes,
    running_api,
    until,
)
from tests.support.certificates import SECOND, written
from tests.support.fake_ports import FakeDaemon, plain_answer
from tests.support.linked import Impatience

LOOPS: Final = [uvloop.new_event_loop, asyncio.new_event_loop]


def served(
    directory: Path,
    story: Callable[[Api], Awaitable[None]],
    *,
    limits: ConnectionLimits | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
) -> None:
    """Run a story against an API that has a certificate."""

    async def run() -> None:
        daemon = FakeDaemon()
        shown = ServedCertificate(written(directory), daemon.clock)
        async with running_api(daemon, limits, shown) as api:
            await story(api)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())


def trusting(directory: Path) -> ssl.SSLContext:
    """Believe the certificate that lies there."""
    return ssl.create_default_context(cafile=str(directory / "node.crt"))


@asynccontextmanager
async def client_of(api: Api, directory: Path) -> AsyncGenerator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=f"https://127.0.0.1:{api.port}",
        verify=trusting(directory),
        trust_env=False,
        timeout=10,
    ) as client:
        yield client


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the listener take every peer for another machine."""

    def never(_address: str) -> bool:
        return False

    monkeypatch.setattr(tls_listener, "is_loopback", never)


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_answers_and_streams_go_over_tls(
    tmp_path: Path, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def story(api: Api) -> None:
        async with client_of(api, tmp_path) as client:
            assert (await client.get("/health")).status_code == 200
            api.daemon.inference.script = plain_answer("x" * (1 << 20))
            whole = await client.post(CHAT, json=chat_body())
            assert len(whole.json()["choices"][0]["message"]["content"]) == 1 << 20
            api.daemon.inference.script = plain_answer("one ", "two")
            streamed = await client.post(CHAT, json=chat_body(stream=True))
            pieces = [event["choices"] for event in events_of(streamed.text)]
            said = "".join(one[0]["delta"].get("content") or "" for one in pieces if one)
            assert said == "one two"
            refused = await client.post(CHAT, json=chat_body(messages=[]))
            assert refused.status_code == 400
            large = await client.post(CHAT, content=b"[" + b"1," * (6 << 20) + b"1]")
            assert large.status_code == 413, "also of a body that is still being sent"

    served(tmp_path, story, loop_factory=loop_factory)


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_1_2_and_1_3_are_spoken_and_http_1_1_is_agreed_on(
    tmp_path: Path, newest: ssl.TLSVersion
) -> None:
    async def story(api: Api) -> None:
        context = trusting(tmp_path)
        context.maximum_version = newest
        context.set_alpn_protocols(["h2", "http/1.1"])
        _, writer = await asyncio.open_connection("127.0.0.1", api.port, ssl=context)
        tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
        assert tls.version() == newest.name.replace("_", ".")
        assert tls.selected_alpn_protocol() == "http/1.1"
        writer.close()

    served(tmp_path, story)
    context = certificates.load_certificate(written(tmp_path)).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_session_is_attached_over_tls_and_pins_what_it_sees(tmp_path: Path) -> None:
    async def story(api: Api) -> None:
        link = SessionLink(
            Target(url=f"https://127.0.0.1:{api.port}", url_rule="test"),
            ViewState(),
            clock=SystemClock(),
            randomness=Impatience(),
            on_change=lambda changes: None,
            connect=WebSocketConnector(TlsTrust(tmp_path / "pins")),
        )
        link.subscribe("cluster")
        link.start()
        try:
            await until(lambda: link.view.word == "live")
            assert (tmp_path / "pins").read_text().startswith(f"127.0.0.1:{api.port} ")
        finally:
            await link.close()

    served(tmp_path, story)


def test_this_machine_may_speak_plainly(tmp_path: Path) -> None:
    async def story(api: Api) -> None:
        assert (await api.client.get("/health")).status_code == 200
        assert api.server.urls()[0].startswith("http://127.0.0.1:")
        assert api.server.scheme_beyond_loopback == "https"

    served(tmp_path, story)


@pytest.mark.parametrize(
    "first",
    [
        request_bytes("GET", "/state", headers="authorization: Bearer skulk-aaaaaaaa-b\r\n"),
        request_bytes("POST", CHAT, chat_body(pad="x" * 100_000)),
        b"GET /v1/session HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\n\r\n",
        b"what is this",
    ],
)
@pytest.mark.usefixtures("elsewhere")
def test_plain_http_from_elsewhere_is_told_where_tls_is(tmp_path: Path, first: bytes) -> None:
    async def story(api: Api) -> None:
        head, _, body = (await api.raw(first)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        error = json.loads(body)["error"]
        assert error["skulk_code"] == "request.tls_required"
        assert f"https://127.0.0.1:{api.port}" in error["remediation"]
        assert api.daemon.inference.tasks == []

    served(tmp_path, story)


@pytest.mark.usefixtures("elsewhere")
def test_the_program_shows_what_a_node_says_that_wants_tls(tmp_path: Path) -> None:
    async def story(api: Api) -> None:
        target = Target(url=f"http://127.0.0.1:{api.port}", url_rule="--node")
        connect = WebSocketConnector(TlsTrust(tmp_path / "pins"))
        with pytest.raises(RequestError) as caught:
            await connect(target)
        assert caught.value.code == "request.tls_required"

    served(tmp_path, story)


def test_who_connects_and_says_nothing_is_let_go(tmp_path: Path) -> None:
    async def story(api: Api) -> None:
        for said in (b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"):
            reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
            writer.write(said)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 3) == b""
            writer.close()

    served(tmp_path, story, limits=ConnectionLimits(header_s=0.1))


def test_what_begins_like_tls_and_is_none_fills_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(api: Api) -> None:
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
            writer.write(b"\x16" + b"nonsense" * 100)
            with contextlib.suppress(ConnectionResetError):
                await asyncio.wait_for(reader.read(), 3)
            writer.close()
        async with client_of(api, tmp_path) as client:
            assert (await client.get("/health")).status_code == 200
        assert caplog.messages == []

    served(tmp_path, story)


def test_those_who_have_said_nothing_yet_count_as_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(_address: str) -> bool:
        return False

    async def story(api: Api) -> None:
        with monkeypatch.context() as far, contextlib.ExitStack() as held:
            far.setattr(tls_listener, "is_loopback", never)
            ends = [
                held.enter_context(socket.create_connection(("127.0.0.1", api.port)))
                for _ in range(6)
            ]
            reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
            assert await asyncio.wait_for(reader.read(), 3) == b"", "it is one too many"
            writer.close()
            far.undo()
            async with client_of(api, tmp_path) as client:
                assert (await client.get("/health")).status_code == 200, "two are kept"
            assert len(ends) == 6

    served(tmp_path, story, limits=ConnectionLimits(max_connections=8, kept_for_loopback=2))


def test_a_renewed_certificate_is_shown_while_older_connections_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "LOOK_EVERY_S", 0.0)

    async def story(api: Api) -> None:
        async with client_of(api, tmp_path) as old:
            assert (await old.get("/health")).status_code == 200
            written(tmp_path, SECOND)
            async with client_of(api, tmp_path) as new:
                assert (await new.get("/health")).status_code == 200
            assert (await old.get("/health")).status_code == 200

    served(tmp_path, story)


def test_closing_lets_go_of_those_who_have_not_come_in(tmp_path: Path) -> None:
    async def story(api: Api) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        other_reader, other = await asyncio.open_connection("127.0.0.1", api.port)
        other.write(b"\x16\x03")
        await asyncio.sleep(0.02)
        await api.server.close(grace_s=1)
        for end in (reader, other_reader):
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(end.read(), 3) == b""
        writer.close()
        other.close()

    served(tmp_path, story)
