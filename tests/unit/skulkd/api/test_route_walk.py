"""Every route of the table, called by everybody, and judged by what docs/api.md says of it."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import httpx
import pytest

from protocol.control_api import API_KEY_PREFIX
from protocol.state import SCOPES, ClusterSettings
from skulkd.api.auth import includes
from skulkd.api.routes import RouteSpec
from tests.support.api_harness import Api, with_api
from tests.support.callers import LAN, bearer, key_of
from tests.support.fake_ports import FakeDaemon, make_instance, make_state
from tests.support.scope_table import documented
from tests.support.session_client import session_with

ORIGIN: Final = "https://page.example"
JSON: Final = {"content-type": "application/json"}


def path_of(route: RouteSpec) -> str:
    """Fill a route's path in."""
    filled = route.path.replace("{model_id:path}", "test/scripted")
    return re.sub(r"\{(\w+?)(_id)?\}", r"\1-aaaaaaaa", filled)


def scopes_documented() -> dict[str, str]:
    """Read the generated table: the scope of each `METHOD /path`."""
    scopes: dict[str, str] = {}
    for row in documented().splitlines()[2:]:
        scope, routes = (cell.strip() for cell in row.strip("| ").split(" | ", 1))
        for entry in re.findall(r"`([^`]+)`", routes):
            *methods, path = entry.split(" ")
            scopes |= {f"{method} {path}": scope.strip("`") for method in methods}
    return scopes


def judged(routes: tuple[RouteSpec, ...]) -> Iterator[tuple[RouteSpec, str]]:
    """Give each route with the scope that the document promises; none is left out."""
    promised = scopes_documented()
    for route in routes:
        path = route.path.replace(":path}", "}")
        if path.startswith("/ollama/v1/"):
            path = path.removeprefix("/ollama")
        yield route, promised[f"{route.method} {path}"]


def code_of(reply: httpx.Response) -> str:
    """Give an error's code in whichever dialect, or nothing."""
    if reply.is_success or not reply.content:
        return ""
    document: dict[str, Any] = reply.json()
    if "skulk_code" in document:  # beside a text, in Ollama's form
        return str(document["skulk_code"])
    return str(document["error"]["skulk_code"])


async def call(api: Api, route: RouteSpec, **headers: str) -> httpx.Response:
    """Call a route with an empty object, as far as it takes a body."""
    content = b"" if route.method == "GET" else b"{}"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await api.client.request(
        route.method, path_of(route), content=content, headers={**JSON, **named}
    )


def refused_everywhere(
    caller: Callable[[Api], Mapping[str, str]],
    status: int,
    code: str,
    *,
    but_open: bool,
    daemon: FakeDaemon | None = None,
) -> None:
    """See that one caller is refused on every route, and that nothing was done for them."""

    async def story(api: Api) -> None:
        headers = {name.replace("-", "_"): value for name, value in caller(api).items()}
        for route, scope in judged(api.app.routes):
            reply = await call(api, route, **headers)
            if but_open and scope == "open":
                assert reply.status_code == 200, route.path
                continue
            assert (reply.status_code, code_of(reply)) == (status, code), route.path
        assert api.daemon.gateway.submitted == []
        assert api.daemon.inference.tasks == []

    with_api(story, daemon)


def test_the_walk_meets_every_documented_route_and_no_other() -> None:
    async def story(api: Api) -> None:
        met = [route for route, _ in judged(api.app.routes)]
        assert len(met) == len(api.app.routes) > 80
        assert all(route.scope == scope for route, scope in judged(api.app.routes))

    with_api(story)


# ---- Without a key that counts ---------------------------------------------------------------


def test_s08_every_route_refuses_a_stranger_without_a_key() -> None:
    refused_everywhere(lambda _: LAN, 401, "request.unauthenticated", but_open=True)


def test_s08_head_tells_a_stranger_no_more_than_get() -> None:
    async def story(api: Api) -> None:
        for route in api.app.routes:
            if route.method == "GET" and route.scope != "open":
                reply = await api.client.head(path_of(route), headers=LAN)
                assert (reply.status_code, reply.content) == (401, b""), route.path

    with_api(story)


def test_s08_keyed_loopback_is_refused_like_a_stranger() -> None:
    daemon = FakeDaemon()
    daemon.state.state = make_state(make_instance(), settings=ClusterSettings(loopback="keyed"))
    refused_everywhere(lambda _: {}, 401, "request.unauthenticated", but_open=True, daemon=daemon)


def test_s05_an_expired_key_opens_nothing() -> None:
    def expired(api: Api) -> Mapping[str, str]:
        return {**LAN, **bearer(key_of(api.daemon, "admin", expires_at_ms=5))}

    refused_everywhere(expired, 401, "request.unauthenticated", but_open=True)


def test_s05_a_revoked_key_opens_nothing() -> None:
    def revoked(api: Api) -> Mapping[str, str]:
        before = api.daemon.state.state
        key = key_of(api.daemon, "admin")
        api.daemon.state.state = before
        return {**LAN, **bearer(key)}

    refused_everywhere(revoked, 401, "request.unauthenticated", but_open=True)


@pytest.mark.parametrize(
    "key", ["x", f"{API_KEY_PREFIX}aaaaaaaa-{'a' * 32}", "skulk-" + "a" * 4000, "\xff\xfe"]
)
def test_s06_no_key_that_was_made_up_opens_anything(key: str) -> None:
    async def story(api: Api) -> None:
        key_of(api.daemon, "admin")
        for header in ("authorization", "x-api-key"):
            sent = f"Bearer {key}" if header == "authorization" else key
            headers = {**LAN, header: sent.encode("latin-1")}
            for path in ("/state", "/v1/models", "/v1/keys", "/v1/session"):
                reply = await api.client.get(path, headers=headers)  # type: ignore[arg-type]
                assert reply.status_code == 401, (path, header)

    with_api(story)


# ---- With each scope -------------------------------------------------------------------------


@pytest.mark.parametrize("held", SCOPES)
def test_s08_a_key_opens_the_routes_of_its_scope_and_no_other(held: str) -> None:
    async def story(api: Api) -> None:
        key = key_of(api.daemon, held)
        n_open = 0
        for route, scope in judged(api.app.routes):
            reply = await call(api, route, **{"x_forwarded_for": "192.0.2.7", **bearer(key)})
            assert reply.status_code < 500, (route.path, reply.text)
            if scope == "open" or SCOPES.index(held) >= SCOPES.index(scope):  # type: ignore[arg-type]
                assert reply.status_code != 401, route.path
                assert "scope" not in code_of(reply)
                assert code_of(reply) != "request.forbidden", (route.path, reply.text)
                n_open += 1
            else:
                assert (reply.status_code, code_of(reply)) == (403, "request.forbidden"), route.path
                assert scope in reply.text
            assert key not in reply.text
        assert 0 < n_open <= len(api.app.routes)

    with_api(story)


@pytest.mark.parametrize("held", SCOPES)
def test_s08_a_session_opens_the_same_routes_as_its_key(held: str) -> None:
    async def story(api: Api) -> None:
        headers = {**LAN, **bearer(key_of(api.daemon, held))}
        async with session_with(api.port, headers=headers) as session:
            for route in api.app.routes:
                body: dict[str, object] | None = None if route.method == "GET" else {}
                answer = await session.ask(route.method, path_of(route), body=body)
                is_refused = answer["status"] == 403
                assert is_refused != includes(held, route.scope), (route.path, answer)  # type: ignore[arg-type]

    with_api(story)


# ---- Foreign pages and names -----------------------------------------------------------------


def test_s03_a_foreign_host_is_refused_before_anything_else() -> None:
    def rebound(api: Api) -> Mapping[str, str]:
        return {"host": "evil.example", **bearer(key_of(api.daemon, "admin"))}

    refused_everywhere(rebound, 421, "request.host_refused", but_open=False)

    async def story(api: Api) -> None:
        for path in ("/nowhere", "/v1/chat/completions", "/health"):
            for method in ("OPTIONS", "PATCH", "TRACE"):
                headers = {"host": "evil.example", "origin": "https://evil.example"}
                reply = await api.client.request(method, path, headers=headers)
                assert reply.status_code == 421, (method, path)
                assert "access-control-allow-origin" not in reply.headers

    with_api(story)


@pytest.mark.parametrize("is_keyed", [False, True], ids=["loopback", "admin"])
def test_s04_a_foreign_page_reaches_inference_alone_and_never_with_credentials(
    is_keyed: bool,
) -> None:
    async def story(api: Api) -> None:
        key = bearer(key_of(api.daemon, "admin")) if is_keyed else {}
        for route in api.app.routes:
            reply = await call(api, route, origin=ORIGIN, cookie="session=1", **key)
            asked = await api.client.options(path_of(route), headers={"origin": ORIGIN})
            for one in (reply, asked):
                assert one.headers.get("access-control-allow-origin") != "*", route.path
                assert "access-control-allow-credentials" not in one.headers
            if route.kind == "control":
                for one in (reply, asked):
                    assert (one.status_code, code_of(one)) == (403, "request.origin_refused")
                    assert "access-control-allow-origin" not in one.headers
            else:
                assert code_of(reply) != "request.origin_refused", route.path
                assert reply.headers["access-control-allow-origin"] == ORIGIN
                assert reply.headers["vary"] == "origin"
                assert asked.status_code == 204
        assert api.daemon.gateway.submitted == []

    with_api(story)


def test_s03_a_page_cannot_open_a_session() -> None:
    async def story(api: Api) -> None:
        reply = await api.raw(
            b"GET /v1/session HTTP/1.1\r\nhost: localhost\r\norigin: https://evil.example\r\n"
            b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
            b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            wait_s=0.3,
        )
        assert reply.startswith(b"HTTP/1.1 403 ")

    with_api(story)


# ---- The audit -------------------------------------------------------------------------------


def audit(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [vars(record) for record in caplog.records if record.name == "skulkd.audit"]


@pytest.mark.parametrize("caller", ["admin", "infer", "nobody"])
def test_s33_each_call_that_changes_something_leaves_one_audit_line(
    caller: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "skulkd.audit")

    async def story(api: Api) -> None:
        key = "" if caller == "nobody" else key_of(api.daemon, caller)
        headers = {**LAN, **bearer(key)} if key else LAN
        named = {name.replace("-", "_"): value for name, value in headers.items()}
        for route in api.app.routes:
            caplog.clear()
            reply = await call(api, route, **named)
            lines = audit(caplog)
            if route.kind == "inference" or route.method == "GET":
                assert lines == [], route.path
                continue
            (line,) = lines
            assert line["status"] == reply.status_code
            assert line["peer"] == "127.0.0.1"
            assert str(line["who"]).startswith("key-" if key else "anonymous")
            assert f"{route.method} {path_of(route)}: " in caplog.text
            assert (line["error_code"] or "") == code_of(reply)
            assert not key or key.rpartition("-")[2] not in caplog.text + repr(lines)

    with_api(story)
