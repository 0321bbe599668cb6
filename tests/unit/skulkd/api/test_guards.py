"""Who may ask what from where: Host, Origin, keys, scopes (S3 to S8, S17, F30, G24)."""

import asyncio
import json
import logging

import pytest

from protocol.data_frames import Finished, Started
from protocol.nodes import HealthReason, NodeHealth
from protocol.state import SCOPES, ClusterSettings
from skulkd.api.auth import includes, is_loopback, make_key
from skulkd.api.connection import ConnectionLimits
from skulkd.api.origin import host_name
from skulkd.api.other_nodes import OtherNodes
from skulkd.api.routes import Services, build_routes
from skulkd.runtime.tasks import Tasks
from tests.support.api_harness import CHAT, Api, chat_body, until, with_api
from tests.support.callers import LAN, bearer, key_of
from tests.support.fake_ports import NODE, USAGE, FakeDaemon, make_instance, make_state

DESCRIPTIONS = {"/openapi.json", "/docs"}
OPEN_PROBES = {"/ollama", "/ollama/"} | {
    f"/ollama/api/{alias}version" for alias in ("", "api/", "v1/")
}
"""They say the same on every node of the world."""


# ---- Scopes --------------------------------------------------------------------------------


def test_every_route_declares_a_scope_and_nothing_state_changing_is_open() -> None:
    deps = FakeDaemon().dependencies(Tasks("none", on_death=lambda _, error: None))
    routes = build_routes(Services.build(deps, OtherNodes(deps)))
    assert len(routes) > 30
    for route in routes:
        assert route.scope in {"open", *SCOPES}
        if route.method != "GET":
            assert route.scope != "open", route.path
        if route.scope == "open":
            assert route.path in {
                "/",
                "/health",
                "/version",
                "/node_id",
                *OPEN_PROBES,
                *DESCRIPTIONS,
            }
        if route.path.startswith(("/v1/keys", "/v1/api")):
            assert route.scope == "admin"


def test_each_scope_includes_the_ones_before_it() -> None:
    for held_index, held in enumerate(SCOPES):
        for index, wanted in enumerate(SCOPES):
            assert includes(held, wanted) == (index <= held_index)
    assert includes(None, "open")
    assert not includes(None, "infer")


def test_key_with_too_low_a_scope_is_refused_by_name() -> None:
    async def story(api: Api) -> None:
        key = key_of(api.daemon, "read")
        assert (await api.client.get("/state", headers={**LAN, **bearer(key)})).status_code == 200
        refused = await api.client.post("/place_instance", headers={**LAN, **bearer(key)})
        assert refused.status_code == 403
        assert "operate" in refused.json()["error"]["message"]
        assert key not in refused.text

    with_api(story)


def test_strangers_learn_how_well_the_node_is_but_not_why() -> None:
    daemon = FakeDaemon()
    reason = HealthReason(code="x", level="warning", message="/home/a is full", remediation="r")
    daemon.health.nodes = {NODE: NodeHealth(level="warning", reasons=(reason,))}

    async def story(api: Api) -> None:
        for headers in (LAN, {**LAN, **bearer(key_of(daemon, "infer"))}):
            assert (await api.client.get("/health", headers=headers)).json() == {
                "status": "warn", "node_id": NODE, "boot_id": "boot1", "name": "alpha",
                "version": "0.1.0", "durable": None, "term": None, "seq": None, "reasons": [],
            }  # fmt: skip
        for headers in ({}, {**LAN, **bearer(key_of(daemon, "read"))}):
            told = (await api.client.get("/health", headers=headers)).json()
            assert told["durable"] is True
            assert told["reasons"][0]["message"] == reason.message

    with_api(story, daemon)


@pytest.mark.parametrize("name", ["authorization", "x-api-key"])
def test_both_key_headers_work(name: str) -> None:
    async def story(api: Api) -> None:
        key = key_of(api.daemon, "infer")
        value = f"Bearer {key}" if name == "authorization" else key
        reply = await api.client.post(CHAT, json=chat_body(), headers={**LAN, name: value})
        assert reply.status_code == 200
        wrong = value[:-1] + ("a" if value[-1] != "a" else "b")
        reply = await api.client.post(CHAT, json=chat_body(), headers={**LAN, name: wrong})
        assert reply.status_code == 401
        assert reply.json()["error"]["code"] == "invalid_api_key"

    with_api(story)


def test_expired_key_is_none() -> None:
    async def story(api: Api) -> None:
        key = key_of(api.daemon, "admin", expires_at_ms=5)
        reply = await api.client.get("/state", headers={**LAN, **bearer(key)})
        assert reply.status_code == 401

    with_api(story)


def test_unknown_key_from_loopback_means_none() -> None:
    async def story(api: Api) -> None:
        reply = await api.client.post(CHAT, json=chat_body(), headers=bearer("unused"))
        assert reply.status_code == 200

    with_api(story)


def test_keyed_loopback_asks_everybody() -> None:
    daemon = FakeDaemon()
    daemon.state.state = make_state(make_instance(), settings=ClusterSettings(loopback="keyed"))

    async def story(api: Api) -> None:
        assert (await api.client.get("/health")).status_code == 200
        assert (await api.chat()).status_code == 401
        key = key_of(api.daemon, "infer")
        reply = await api.client.post(CHAT, json=chat_body(), headers=bearer(key))
        assert reply.status_code == 200

    with_api(story, daemon)


@pytest.mark.parametrize(
    "header",
    [
        "forwarded",
        "via",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-forwarded-proto",
        "x-forwarded-server",
        "x-real-ip",
        "x-client-ip",
        "true-client-ip",
        "cf-connecting-ip",
    ],
)
def test_a_proxy_on_this_machine_is_not_loopback(header: str) -> None:
    async def story(api: Api) -> None:
        reply = await api.client.get("/state", headers={header: "for=192.0.2.1"})
        assert reply.status_code == 401

    with_api(story)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.168.1.4", False),
        ("::ffff:192.168.1.4", False),
        ("", False),
        ("localhost.evil", False),
    ],
)
def test_loopback_addresses(address: str, expected: bool) -> None:
    assert is_loopback(address) == expected


def test_s05_fresh_keys_have_160_random_bits_and_only_a_hash_is_kept() -> None:
    first, second = make_key(), make_key()
    assert first.text != second.text
    assert first.text.startswith(f"skulk-{first.key_id.removeprefix('key-')}-")
    assert len(first.text.rpartition("-")[2]) == 32
    assert first.secret_sha256 not in first.text


# ---- Host and Origin -----------------------------------------------------------------------

GOOD_HOSTS = ["localhost", "localhost:1", "127.0.0.1", "[::1]:52415", "127.5.5.5", "alpha.lan",
              "alpha", "ALPHA.local:52415", "alpha.local.", "gateway.example:80"]  # fmt: skip
BAD_HOSTS = ["evil.example", "localhost.evil.example", "evil.example:52415", "", "[::1", "a:b:c",
             "192.168.7.7", "0.0.0.0", "127.0.0.1.evil.example", "localhost:80@evil"]  # fmt: skip


@pytest.mark.parametrize("host", GOOD_HOSTS)
def test_own_names_are_accepted(host: str) -> None:
    daemon = FakeDaemon()
    daemon.allowed_hosts = ("gateway.example",)

    async def story(api: Api) -> None:
        for _ in range(2):
            assert (await api.client.get("/health", headers={"host": host})).status_code == 200

    with_api(story, daemon)


@pytest.mark.parametrize("host", BAD_HOSTS)
def test_foreign_names_are_refused_on_every_kind_of_route(host: str) -> None:
    async def story(api: Api) -> None:
        for method, path in (
            ("GET", "/health"), ("GET", "/v1/models"), ("POST", CHAT), ("POST", "/place_instance"),
            ("DELETE", "/store/models/a/b"), ("OPTIONS", CHAT), ("GET", "/nowhere"),
        ):  # fmt: skip
            reply = await api.client.request(method, path, headers={"host": host})
            assert reply.status_code == 421, path
            assert reply.json()["error"]["skulk_code"] == "request.host_refused"
            assert "allowed_hosts" in reply.json()["error"]["remediation"]

    with_api(story)


def test_names_that_come_and_go_are_accepted_while_they_are_there() -> None:
    async def story(api: Api) -> None:
        for names, status in ((set[str](), 421), ({"studio.ts.net"}, 200), (set[str](), 421)):
            api.daemon.listeners.further_names = names
            for host in ("studio.ts.net", "Studio.ts.net.:52415"):
                reply = await api.client.get("/health", headers={"host": host})
                assert reply.status_code == status, (host, names)
        assert (await api.client.get("/health")).status_code == 200

    with_api(story)


def test_request_without_a_host_is_refused() -> None:
    async def story(api: Api) -> None:
        reply = await api.raw(b"GET /health HTTP/1.0\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 421")

    with_api(story)


def test_conflicting_hosts_are_refused() -> None:
    async def story(api: Api) -> None:
        reply = await api.raw(
            b"GET /health HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n"
            b"connection: close\r\n\r\n"
        )
        assert reply.startswith(b"HTTP/1.1 400")

    with_api(story)


@pytest.mark.parametrize(
    ("text", "name"),
    [("a:80", "a"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("a:x", None), ("[::1]x", None),
     (":80", None), ("A.b.", "a.b"), ("[::1]:", None)],
)  # fmt: skip
def test_host_names(text: str, name: str | None) -> None:
    if text == "[::1]:":
        name = None
    assert host_name(text) == name


ORIGINS = ["https://evil.example", "null", "http://localhost", "http://localhost.evil.example",
           "file://", "http://127.0.0.1:1", "https://127.0.0.1", "garbage"]  # fmt: skip


@pytest.mark.parametrize("origin", ORIGINS)
def test_foreign_origins_reach_no_control_route(origin: str) -> None:
    async def story(api: Api) -> None:
        for method, path in (
            ("POST", "/place_instance"), ("DELETE", "/store/models/a/b"), ("POST", "/v1/keys"),
            ("GET", "/state"), ("GET", "/events"), ("POST", "/v1/api/open"), ("GET", "/health"),
        ):  # fmt: skip
            reply = await api.client.request(
                method, path, headers={"origin": origin, "content-type": "application/json"}
            )
            assert reply.status_code == 403, path
            assert reply.json()["error"]["skulk_code"] == "request.origin_refused"
            assert "access-control-allow-origin" not in reply.headers
        assert api.daemon.gateway.submitted == []

    with_api(story)


def test_own_origin_may_use_control_routes() -> None:
    async def story(api: Api) -> None:
        own = f"http://127.0.0.1:{api.port}"
        assert (await api.client.get("/state", headers={"origin": own})).status_code == 200

    with_api(story)


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "text/json"]
)
def test_control_bodies_must_be_json(content_type: str | None) -> None:
    async def story(api: Api) -> None:
        headers = {"content-type": content_type} if content_type else {}
        body = json.dumps({"model_id": "a/b"}).encode()
        reply = await api.client.post("/place_instance", content=body, headers=headers)
        assert reply.status_code == 415

    with_api(story)


# ---- Bounds --------------------------------------------------------------------------------


def test_declared_large_body_is_refused_before_it_is_read() -> None:
    async def story(api: Api) -> None:
        reply = await api.raw(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
            b"content-length: 67108864\r\n\r\n",
            wait_s=0.3,
        )
        assert reply.startswith(b"HTTP/1.1 413")
        assert b"request.too_large" in reply

    with_api(story)


def test_large_body_is_refused_and_the_client_can_read_that() -> None:
    async def story(api: Api) -> None:
        reply = await api.client.post(CHAT, content=b" " * (64 << 20))
        assert reply.status_code == 413
        assert (await api.client.get("/health")).status_code == 200

    with_api(story)


def test_chunked_large_body_is_refused() -> None:
    async def story(api: Api) -> None:
        async def body() -> object:
            for _ in range(40):
                yield b" " * (1 << 18)

        reply = await api.client.post(CHAT, content=body())  # type: ignore[arg-type]
        assert reply.status_code == 413

    with_api(story)


def test_large_headers_are_refused_whole_or_in_pieces() -> None:
    async def story(api: Api) -> None:
        whole = await api.raw(
            b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 40_000 + b"\r\n\r\n"
        )
        assert whole.startswith(b"HTTP/1.1 431")
        endless = await api.raw(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 200_000)
        assert endless.startswith(b"HTTP/1.1 431")
        url = await api.raw(b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert url.startswith(b"HTTP/1.1 431")

    with_api(story)


def test_slow_headers_and_bodies_are_timed_out() -> None:
    limits = ConnectionLimits(header_s=0.05, body_s=0.05, linger_s=0.05)

    async def story(api: Api) -> None:
        assert (await api.raw(b"")).startswith(b"HTTP/1.1 408")
        assert (await api.raw(b"GET /health HT")).startswith(b"HTTP/1.1 408")
        partial = await api.raw(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
            b'content-length: 100\r\n\r\n{"model"'
        )
        assert partial.startswith(b"HTTP/1.1 408")
        assert b"request.timeout" in partial

    with_api(story, limits=limits)


def test_what_is_not_http_gets_the_same_envelope() -> None:
    async def story(api: Api) -> None:
        reply = await api.raw(b"\x16\x03\x01 hello\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 400")
        assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"] == "request.invalid"

    with_api(story)


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
        b"content-length: 5\r\ncontent-length: 6\r\n",
        b"content-length: -1\r\n",
        b"content-length: 5 5\r\n",
    ],
)
def test_ambiguous_lengths_are_refused(head: bytes) -> None:
    async def story(api: Api) -> None:
        reply = await api.raw(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n" + head + b"\r\n{}   "
        )
        assert reply.startswith(b"HTTP/1.1 400")

    with_api(story)


def test_too_many_connections_are_refused() -> None:
    async def story(api: Api) -> None:
        await api.client.get("/health")
        reply = await api.raw(b"")
        assert reply.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in reply

    with_api(story, limits=ConnectionLimits(max_connections=1))


def test_too_many_requests_are_refused_and_control_still_answers() -> None:
    daemon = FakeDaemon()
    daemon.max_concurrent_requests = 2
    gate = asyncio.Event()
    daemon.inference.script = [Started(1), gate]

    async def story(api: Api) -> None:
        asking = [asyncio.ensure_future(api.chat()) for _ in range(2)]
        await until(lambda: api.app.n_open == 2)
        refused = await api.chat()
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["skulk_code"] == "request.overloaded"
        assert (await api.client.get("/state")).status_code == 200
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
        await until(lambda: api.app.n_open == 0)

    with_api(story, daemon)


LARGE = 100_000
LARGE_HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n"
)
CHUNKED_HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
)


def gated(max_held_body_bytes: int) -> tuple[FakeDaemon, asyncio.Event]:
    """Make a daemon whose requests wait for a gate, with room for so much of their bodies."""
    daemon = FakeDaemon()
    daemon.max_held_body_bytes = max_held_body_bytes
    gate = asyncio.Event()
    daemon.inference.script = [Started(1), gate, Finished("stop", USAGE)]
    return daemon, gate


def test_bodies_that_do_not_fit_together_are_refused_before_they_are_read() -> None:
    daemon, gate = gated(LARGE * 3 // 2)

    async def story(api: Api) -> None:
        held = asyncio.ensure_future(api.chat(user="x" * LARGE))
        await until(lambda: api.daemon.inference.tasks != [])
        refused = await api.raw(LARGE_HEAD, wait_s=0.3)
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"request.overloaded" in refused
        assert b"retry-after: 1" in refused
        small = asyncio.ensure_future(api.chat())  # is not counted
        await until(lambda: len(api.daemon.inference.tasks) == 2)
        gate.set()
        assert (await held).status_code == 200
        assert (await small).status_code == 200
        assert (await api.chat(user="x" * LARGE)).status_code == 200

    with_api(story, daemon)


def test_a_body_that_has_not_come_yet_is_held_until_its_client_goes() -> None:
    daemon, gate = gated(LARGE)
    gate.set()

    async def story(api: Api) -> None:
        _, slow = await asyncio.open_connection("127.0.0.1", api.port)
        slow.write(LARGE_HEAD)
        await until(lambda: api.app.n_open == 1)
        assert (await api.raw(LARGE_HEAD, wait_s=0.3)).startswith(b"HTTP/1.1 503")
        slow.close()
        await until(lambda: api.app.n_open == 0)
        assert await api.raw(LARGE_HEAD, wait_s=0.1) == b""  # has room, and is waited for

    with_api(story, daemon)


def test_a_chunked_body_is_held_as_it_grows() -> None:
    daemon, gate = gated(LARGE)
    gate.set()

    async def story(api: Api) -> None:
        chunk = b"ea60\r\n" + b" " * 60_000 + b"\r\n"
        assert await api.raw(CHUNKED_HEAD + chunk, wait_s=0.1) == b""
        refused = await api.raw(CHUNKED_HEAD + chunk * 2, wait_s=0.3)
        assert refused.startswith(b"HTTP/1.1 503")
        assert (await api.chat(user="x" * 90_000)).status_code == 200  # nothing is left behind

    with_api(story, daemon)


# ---- Errors and the audit ------------------------------------------------------------------


def test_unknown_route_and_method_are_envelopes() -> None:
    async def story(api: Api) -> None:
        for path in ("/nowhere", "/v1/nowhere", "/v1/chat/completions/", "/instance/"):
            reply = await api.client.get(path)
            assert reply.status_code == 404
            assert set(reply.json()) == {"error"}
        wrong = await api.client.get(CHAT)
        assert wrong.status_code == 405
        assert wrong.headers["allow"] == "POST"
        assert wrong.json()["error"]["skulk_code"] == "request.method_not_allowed"

    with_api(story)


def test_a_bug_is_a_500_with_the_command_id_and_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(api: Api) -> None:
        def broken(*_: object) -> object:
            message = "secret detail"
            raise ZeroDivisionError(message)

        api.daemon.inference.chat = broken  # type: ignore[method-assign, assignment]
        reply = await api.chat()
        assert reply.status_code == 500
        error = reply.json()["error"]
        assert error["code"] == "internal.bug"
        assert error["command_id"] == reply.headers["x-skulk-command-id"]
        assert "secret detail" not in reply.text
        streamed = await api.chat(stream=True)
        assert "internal.bug" in streamed.text
        assert "secret detail" not in streamed.text

    with_api(story)
    assert "secret detail" in caplog.text


def test_each_change_leaves_an_audit_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "skulkd.audit")

    async def story(api: Api) -> None:
        key = key_of(api.daemon, "admin")
        headers = {**LAN, **bearer(key)}
        made = await api.client.post("/v1/keys", json={"name": "new"}, headers=headers)
        assert made.status_code == 201
        await api.client.delete("/v1/keys/key-aaaaaaaa", headers=LAN)
        await api.client.get("/state")
        lines = [record for record in caplog.records if record.name == "skulkd.audit"]
        assert [line.status for line in lines] == [201, 401]  # type: ignore[attr-defined]
        assert lines[0].who.startswith("key-")  # type: ignore[attr-defined]
        assert lines[1].who == "anonymous"  # type: ignore[attr-defined]
        assert lines[0].peer == "127.0.0.1"  # type: ignore[attr-defined]
        everything = caplog.text + repr([vars(line) for line in caplog.records])
        assert key.rpartition("-")[2] not in everything
        assert made.json()["key"].rpartition("-")[2] not in everything

    with_api(story)
