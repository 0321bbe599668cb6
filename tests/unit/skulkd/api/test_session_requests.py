"""What a session asks of the API: requests, as HTTP would have them, by the same keys."""

import asyncio
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from protocol.state import ApiKey, ClusterSettings, Scope
from skulkd.api.auth import make_key
from tests.support.api_harness import (
    CHAT,
    Api,
    chat_body,
    running_api,
    until,
    with_api,
)
from tests.support.fake_ports import FakeDaemon
from tests.support.session_client import session_with
from tests.support.two_nodes import TwoNodes

# ---- Requests ------------------------------------------------------------------------------


def test_a_request_is_answered_as_http_answers_it() -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port) as client:
            for method, path, body in (
                ("GET", "/health", None),
                ("GET", "/v1/nodes", None),
                ("GET", "/no/such", None),
                ("POST", "/health", None),
                ("POST", "/place_instance", {"model_id": 3}),
                ("GET", "/v1/models/no/such", None),
                ("GET", "/", None),
            ):
                over_http = await api.client.request(method, path, json=body)
                answer = await client.ask(method, path, body=body)
                assert answer["status"] == over_http.status_code, path
                if path == "/":
                    assert answer["body"] == over_http.text
                elif path != "/v1/nodes":
                    assert without_id(answer["body"]) == without_id(over_http.json()), path

    with_api(story)


def without_id(body: dict[str, Any]) -> dict[str, Any]:
    """Leave out what tells two requests apart."""
    error = {key: value for key, value in body.get("error", {}).items() if key != "command_id"}
    return body | ({"error": error} if error else {})


def test_a_request_may_name_a_node() -> None:
    async def story() -> None:
        nodes = TwoNodes()
        async with running_api(nodes.alpha) as api, session_with(api.port) as client:
            answer = await client.ask("GET", "/node/identity", query="node=beta")
            assert answer["status"] == 200
            assert answer["body"]["name"] == "beta"
            await client.subscribe("logs", node="beta")
            frame = await client.next("lines")
            assert [item["message"] for item in frame["items"]] == ["of beta"]
            unknown = await client.ask("GET", "/node/identity", query="node=gamma")
            assert unknown["status"] == 404

    asyncio.run(story())


@pytest.mark.parametrize("path", ["/events", "/v1/logs"])
def test_what_streams_is_no_request_of_a_session(path: str) -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port) as client:
            answer = await client.ask("GET", path, query="follow=1")
            assert answer["status"] == 400
            assert "subscribe" in answer["body"]["error"]["remediation"]
            chat = await client.ask("POST", CHAT, body=chat_body(stream=True))
            assert chat["status"] == 400
            assert "open" in chat["body"]["error"]["remediation"]
            assert api.daemon.inference.tasks == []

    with_api(story)


def test_a_deadline_ends_a_request_with_504_and_a_cancel_with_499() -> None:
    async def story(api: Api) -> None:
        api.daemon.placements.held = asyncio.Event()
        body = {"model_id": "test/scripted"}
        async with session_with(api.port) as client:
            late = await client.ask("POST", "/place_instance", body=body, deadline_s=0.05)
            assert late["status"] == 504
            assert late["body"]["error"]["code"] == "session.deadline"
            number = client.new_id()
            await client.send(
                type="request", id=number, method="POST", path="/place_instance", body=body
            )
            await until(lambda: len(api.daemon.placements.asked) == 2)
            await client.send(type="cancel", id=number)
            answer = await client.next("answer")
            assert (answer["id"], answer["status"]) == (number, 499)
            assert api.app.n_open == 0
            await client.send(type="cancel", id=number)
            await client.send(type="ping")
            assert (await client.next())["type"] == "pong", "it was answered once"

    with_api(story)


def test_sixty_four_unanswered_requests_and_no_more() -> None:
    async def story(api: Api) -> None:
        held = api.daemon.gateway.held = asyncio.Event()
        async with session_with(api.port) as client:
            for _ in range(65):
                await client.send(
                    type="request",
                    id=client.new_id(),
                    method="PUT",
                    path="/v1/cluster/policy",
                    body={"policy": "quorum"},
                )
            answer = await client.next("answer")
            assert (answer["id"], answer["status"]) == (65, 503)
            held.set()
            answered = {(await client.next("answer"))["id"] for _ in range(64)}
            assert answered == set(range(1, 65))

    with_api(story)


def test_a_change_through_a_session_is_in_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port) as client:
            with caplog.at_level("INFO", logger="skulkd.audit"):
                await client.ask("PUT", "/v1/cluster/policy", body={"policy": "quorum"})
        (line,) = [record for record in caplog.records if record.name == "skulkd.audit"]
        assert line.__dict__["who"] == "loopback"
        assert line.__dict__["peer"] == "127.0.0.1"

    with_api(story)


# ---- Keys ----------------------------------------------------------------------------------


def with_key(daemon: FakeDaemon, scope: Scope) -> str:
    """Make a key, and have loopback need one."""
    fresh = make_key()
    key = ApiKey(
        key_id=fresh.key_id,
        name="k",
        secret_sha256=fresh.secret_sha256,
        scope=scope,
        created_at_ms=1,
    )
    daemon.state.state = daemon.state.state.model_copy(
        update={"api_keys": {key.key_id: key}, "settings": ClusterSettings(loopback="keyed")}
    )
    return fresh.text


def test_a_session_takes_a_key_where_one_is_needed() -> None:
    async def story(api: Api) -> None:
        with_key(api.daemon, "read")
        with pytest.raises(InvalidStatus) as refused:
            async with session_with(api.port):
                pass
        assert refused.value.response.status_code == 401

    with_api(story)


@pytest.mark.parametrize("scope", ["infer", "read", "operate"])
def test_a_key_allows_in_a_session_what_it_allows_over_http(scope: Scope) -> None:
    async def story(api: Api) -> None:
        headers = {"authorization": f"Bearer {with_key(api.daemon, scope)}"}
        async with session_with(api.port, headers=headers) as client:
            await client.subscribe("cluster")
            frame = await client.next("rows", "ended")
            assert (frame["type"] == "rows") == (scope != "infer")
            if scope == "infer":
                assert frame["error"]["code"] == "request.forbidden"
            for method, path, body in (
                ("GET", "/v1/models", None),
                ("GET", "/v1/nodes", None),
                ("PUT", "/v1/cluster/policy", {"policy": "quorum"}),
                ("DELETE", "/models/custom/no/such", None),
            ):
                over_http = await api.client.request(method, path, json=body, headers=headers)
                answer = await client.ask(method, path, body=body)
                assert answer["status"] == over_http.status_code, path

    with_api(story)


def test_clients_of_models_leave_room_for_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skulkd.api.session_routes.MAX_WITHOUT_READ", 1)

    async def story(api: Api) -> None:
        infer = {"x-api-key": with_key(api.daemon, "infer")}
        state = api.daemon.state.state
        keys = dict(state.api_keys)
        read = {"x-api-key": with_key(api.daemon, "read")}
        keys |= api.daemon.state.state.api_keys
        api.daemon.state.state = state.model_copy(update={"api_keys": keys})
        async with session_with(api.port, headers=infer):
            with pytest.raises(InvalidStatus) as refused:
                async with session_with(api.port, headers=infer):
                    pass
            assert refused.value.response.status_code == 503
            async with session_with(api.port, headers=read):
                pass

    with_api(story)


def test_a_revoked_key_ends_its_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skulkd.api.session.KEY_CHECK_S", 0.2)

    async def story(api: Api) -> None:
        headers = {"x-api-key": with_key(api.daemon, "admin")}
        async with session_with(api.port, headers=headers) as client:
            await client.ask("GET", "/v1/nodes")
            state = api.daemon.state.state
            api.daemon.state.state = state.model_copy(update={"api_keys": {}})
            assert (await client.ask("GET", "/v1/nodes"))["status"] == 401
            closing = await client.closed()
            assert closing is not None
            assert closing["error"]["code"] == "request.unauthenticated"

    with_api(story)
