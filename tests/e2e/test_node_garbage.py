"""Strangers at the door: bytes that are no request, bodies that are no JSON, crowds."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Generator, Iterator
from typing import Any

import httpx
import psutil
import pytest

from tests.support.chat_client import answer_text, ask, chat_body
from tests.support.daemon import Daemon, wait_until
from tests.support.patience import allowed_s
from tests.support.scripted_models import MODEL, add_scripted_model
from tests.support.shared_daemon import shared_daemon

MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("unharmed")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for all of this: what one stranger does must not be felt by the next."""
    with shared_daemon(tmp_path_factory.mktemp("garbage")) as daemon:
        add_scripted_model(daemon.models_dir, reply="still here")
        daemon.wait_phase(daemon.place(MODEL))
        yield daemon


@pytest.fixture
def unharmed(node: Daemon) -> Iterator[None]:
    """Check after each test that the node serves, and has neither grown nor died of a bug."""
    before = resident_bytes(node)
    yield
    assert node.process.poll() is None, node.log_tail()
    assert answer_text(ask(node, MODEL)) == "still here"
    assert "Traceback" not in node.log_text()
    assert "internal.bug" not in node.log_text()
    assert resident_bytes(node) - before < 64 * MIB


def resident_bytes(daemon: Daemon) -> int:
    return int(psutil.Process(daemon.pid).memory_info().rss)


@contextlib.contextmanager
def connected(daemon: Daemon) -> Generator[socket.socket]:
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=20) as connection:
        yield connection


def raw(daemon: Daemon, data: bytes) -> bytes:
    """Send bytes and read until the server closes."""
    with connected(daemon) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        received = b""
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(65536):
                received += piece
        return received


def post(daemon: Daemon, path: str, body: bytes, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return daemon.http.post(
        path, content=body, headers={"content-type": "application/json", **named}
    )


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["skulk_code"] == code, error
    assert error["message"]
    return error


BODIES = {
    "deep arrays": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "deep and closed": b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "a million digits": b'{"model":"x","seed":' + b"9" * 1_000_000 + b"}",
    "a float of a million digits": b'{"temperature":1' + b"0" * 1_000_000 + b".5}",
    "a huge exponent": b'{"model":"x","temperature":1e999}',
    "NaN": b'{"model":"x","temperature":NaN}',
    "Infinity": b'{"model":"x","temperature":-Infinity}',
    "lone surrogate": b'{"model":"\\ud800"}',
    "not UTF-8": b'{"model":"\xff\xfe"}',
    "UTF-16": '{"model":"x"}'.encode("utf-16"),
    "a million members": b"{" + b",".join(b'"%d":0' % n for n in range(200_000)) + b"}",
    "a string": b'"model"',
    "null": b"null",
    "nothing": b"",
    "half": b'{"model":',
    "NUL bytes": b"\0" * 1000,
    "trailing": b'{"model":"x"} {"model":"y"}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/place_instance"])
def test_bodies_that_are_no_request_are_refused_quickly(
    body: bytes, path: str, node: Daemon
) -> None:
    began_s = time.monotonic()
    answer = post(node, path, body)
    assert time.monotonic() - began_s < allowed_s(3)
    refused(answer, 400, "request.invalid")


def test_a_body_of_64_mb_is_refused_before_it_is_read(node: Daemon) -> None:
    began_s = time.monotonic()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 67108864\r\n\r\n"
    )
    answer = raw(node, head + b"x" * MIB)
    assert b" 413 " in answer.split(b"\r\n", 1)[0]
    assert time.monotonic() - began_s < allowed_s(10)


def test_a_chunked_body_without_end_is_cut_at_the_bound(node: Daemon) -> None:
    before = resident_bytes(node)
    with connected(node) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        piece = b"%x\r\n" % MIB + b" " * MIB + b"\r\n"
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                connection.sendall(piece)
        with contextlib.suppress(ConnectionError):
            assert b" 413 " in connection.recv(65536).split(b"\r\n", 1)[0]
    assert resident_bytes(node) - before < 40 * MIB


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_control_routes_take_json_only(kind: str, node: Daemon) -> None:
    body = json.dumps({"model_id": MODEL}).encode()
    refused(post(node, "/place_instance", body, content_type=kind), 415, "request.content_type")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:52415", "127.0.0.1.nip.io", "", "localhost@evil.example"]
)
@pytest.mark.parametrize("path", ["/health", "/state", "/v1/models", "/nowhere"])
def test_another_ones_host_is_refused_everywhere(host: str, path: str, node: Daemon) -> None:
    answer = node.http.get(path, headers={"host": host})
    error = refused(answer, 421, "request.host_refused")
    assert "allowed_hosts" in error["remediation"]


def test_pages_of_other_origins_may_infer_and_nothing_else(node: Daemon) -> None:
    foreign = {"origin": "https://evil.example"}
    for method, path in (
        ("GET", "/state"),
        ("GET", "/events"),
        ("POST", "/place_instance"),
        ("DELETE", "/instance/abcdef-aaaaaaaaaaaaaaaaaaaa"),
        ("POST", "/v1/keys"),
        ("POST", "/v1/api/open"),
        ("POST", "/models/import"),
    ):
        answer = node.http.request(method, path, headers=foreign)
        assert answer.status_code == 403, (method, path, answer.text)
        assert "access-control-allow-origin" not in answer.headers, (method, path)
    answer = node.http.post("/v1/chat/completions", json=chat_body(MODEL), headers=foreign)
    assert answer_text(answer)
    assert answer.headers["access-control-allow-origin"] in {"*", "https://evil.example"}
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/models/no%2Fsuch", 404, "request.model_not_found"),
        ("/v1/models/..%2F..%2Fetc%2Fpasswd", 404, "request.model_not_found"),
        ("/v1/models/%00", 404, "request.model_not_found"),
        ("/v1/models/%ff%fe", 404, "request.model_not_found"),
        ("/v1/models/a%0d%0aSet-Cookie:%20x", 404, "request.not_found"),
        ("/instance/%2e%2e%2fstate", 404, "request.not_found"),
        ("/instance/" + "a" * 5000, 400, "request.invalid_id"),
        ("/instance/abcdef-aaaaaaaaaaaaaaaaaaaa", 404, "request.not_found"),
        ("/store/models/..%2f..%2fetc/download/status", 400, "request.invalid_id"),
        ("/%2e%2e/%2e%2e/etc/passwd", 404, "request.not_found"),
        ("/events?after_seq=" + "9" * 400, 400, "request.invalid"),
        ("/events?after_seq=-1", 400, "request.invalid"),
        ("/events?" + "&".join(f"a{n}=1" for n in range(100)), 400, "request.invalid"),
        ("/instance/previews?model_id=%ff", 400, "request.invalid"),
        ("/instance/previews?model_id=a&context_tokens=" + "9" * 400, 400, "request.invalid"),
    ],
)  # fmt: skip
def test_ids_and_queries_from_strangers_are_refused_by_name(
    path: str, status: int, code: str, node: Daemon
) -> None:
    answer = node.http.get(path)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["skulk_code"] == code, answer.text
    assert "set-cookie" not in answer.headers


def test_ids_may_be_percent_encoded(node: Daemon) -> None:
    for spelling in ("scripted/story", "scripted%2Fstory", "%73cripted/story"):
        answer = node.http.get(f"/v1/models/{spelling}")
        assert answer.is_success, answer.text
        assert answer.json()["id"] == MODEL


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x5a" * 300,
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x00" * 4096,
        b"GET\r\n\r\n",
        b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost:a\r\ncontent-length:9\r\ntransfer-encoding:chunked\r\n\r\n",
        b"POST /v1/keys HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 20 + b"\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 20_000 + b"\r\n",
    ],
)  # fmt: skip
def test_bytes_that_are_no_request_get_a_refusal_or_a_closed_door(
    data: bytes, node: Daemon
) -> None:
    answer = raw(node, data)
    if answer:
        status = int(answer.split(b" ", 2)[1])
        assert 400 <= status < 500, answer[:500]


def test_500_idle_connections_and_500_requests_at_a_time_are_served(node: Daemon) -> None:
    async def one(client: httpx.AsyncClient) -> int:
        return (await client.get("/health")).status_code

    async def crowd() -> list[int]:
        limits = httpx.Limits(max_connections=200, max_keepalive_connections=0)
        async with httpx.AsyncClient(
            base_url=node.url, timeout=30, trust_env=False, limits=limits
        ) as client:
            return await asyncio.gather(*(one(client) for _ in range(500)))

    with contextlib.ExitStack() as stack:
        for _ in range(500):
            stack.enter_context(connected(node))
        statuses = asyncio.run(crowd())
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= 100


def test_clients_that_leave_in_the_middle_of_their_request_leave_nothing(node: Daemon) -> None:
    body = json.dumps(chat_body(MODEL, stream=True)).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        % len(body)
    )
    n_before = psutil.Process(node.pid).num_fds()
    for at in range(0, len(head) + len(body), 7):
        with connected(node) as connection:
            connection.sendall((head + body)[:at])
    wait_until(
        lambda: psutil.Process(node.pid).num_fds() <= n_before + 2, timeout_s=5, what="closed"
    )
