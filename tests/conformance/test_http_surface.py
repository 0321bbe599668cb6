"""Acceptance cases A26 to A28: model ids, CORS and probes, over real sockets."""

import re

import pytest

from skulkd.api.routes import RouteSpec
from tests.support.api_harness import CHAT, Api, with_api
from tests.support.fake_models import FakeModels
from tests.support.fake_ports import NODE, FakeDaemon, make_card

ORIGIN = "https://chat.example"
ASKED = (
    "authorization,content-type,x-stainless-helper-method,x-stainless-timeout,"
    "anthropic-version,x-api-key,dangerously-allow-browser"
)


@pytest.mark.parametrize("model_id", ["org/name-GGUF:Q4_K_M", "a/b/c", "plain", "test/scripted"])
def test_a26_model_ids_in_all_spellings(model_id: str) -> None:
    daemon = FakeDaemon()
    daemon.models = FakeModels(NODE, make_card(model_id))

    async def story(api: Api) -> None:
        listed = (await api.client.get("/v1/models")).json()
        assert listed["object"] == "list"
        assert {entry["id"] for entry in listed["data"]} == {model_id, "test/scripted"}
        spellings = {
            model_id,
            model_id.replace("/", "%2F"),
            model_id.replace(":", "%3A"),
            model_id.replace("/", "%2f").replace(":", "%3a"),
        }
        for spelling in spellings:
            reply = await api.client.get(f"/v1/models/{spelling}")
            assert reply.status_code == 200, spelling
            entry = reply.json()
            assert entry["id"] == model_id
            assert entry["object"] == "model"
            assert isinstance(entry["created"], int)
            assert isinstance(entry["owned_by"], str)
            begun = await api.client.post(f"/store/models/{spelling}/download")
            assert begun.json()["model_id"] == model_id
            status = await api.client.get(f"/store/models/{spelling}/download/status")
            assert status.json()["state"] == "running"
            removed = await api.client.delete(f"/store/models/{spelling}/download")
            assert removed.json()["state"] == "cancelled"
        deleted = await api.client.delete(f"/models/custom/{model_id.replace('/', '%2F')}")
        assert deleted.status_code == (409 if model_id == "test/scripted" else 200)

    with_api(story, daemon)


def test_a26_unknown_model_is_a_404_envelope() -> None:
    async def story(api: Api) -> None:
        for spelling in ("no/such", "no%2Fsuch", "..%2F..%2Fetc", "%00"):
            reply = await api.client.get(f"/v1/models/{spelling}")
            assert reply.status_code == 404
            assert reply.json()["error"]["code"] == "model_not_found"

    with_api(story)


def path_of(route: RouteSpec) -> str:
    return re.sub(r"\{\w+(:path)?\}", "x", route.path)


def test_a27_preflight_of_inference_routes() -> None:
    async def story(api: Api) -> None:
        routes = [route for route in api.app.routes if route.kind == "inference"]
        assert {"/v1/messages", "/v1/responses", "/ollama/api/chat"} <= {one.path for one in routes}
        for route in routes:
            reply = await api.client.options(
                path_of(route),
                headers={
                    "origin": ORIGIN,
                    "access-control-request-method": route.method,
                    "access-control-request-headers": ASKED,
                },
            )
            assert reply.status_code == 204, route.path
            assert reply.headers["access-control-allow-origin"] == ORIGIN
            assert route.method in reply.headers["access-control-allow-methods"]
            allowed = reply.headers["access-control-allow-headers"].split(",")
            assert set(ASKED.split(",")) <= {name.strip() for name in allowed}
            assert "access-control-allow-credentials" not in reply.headers

    with_api(story)


@pytest.mark.parametrize("n_bytes", [2048, 2049, 30_000])
def test_a27_what_a_preflight_asks_for_is_bounded(n_bytes: int) -> None:
    async def story(api: Api) -> None:
        asked = "x" * n_bytes
        headers = {"origin": ORIGIN, "access-control-request-headers": asked}
        reply = await api.client.options(CHAT, headers=headers)
        assert reply.status_code == 204
        allowed = reply.headers["access-control-allow-headers"]
        assert (allowed == asked) == (n_bytes <= 2048)
        assert n_bytes <= 2048 or "authorization" in allowed
        reply = await api.client.options(CHAT, headers={"origin": f"https://{asked}"})
        assert "access-control-allow-origin" not in reply.headers

    with_api(story)


def test_a27_named_origins_alone_are_let_in() -> None:
    daemon = FakeDaemon()
    daemon.allowed_origins = ("https://chat.example", "app://obsidian.md")

    async def story(api: Api) -> None:
        own = f"http://127.0.0.1:{api.port}"
        for origin in ("https://chat.example", "app://obsidian.md", own):
            reply = await api.client.get("/v1/models", headers={"origin": origin})
            assert reply.status_code == 200
            assert reply.headers["access-control-allow-origin"] == origin
            asked = await api.client.options(CHAT, headers={"origin": origin})
            assert asked.status_code == 204
        for origin in (
            "https://other.example",
            "null",
            "http://chat.example",
            "https://chat.example.evil",
        ):
            for method in ("OPTIONS", "POST"):
                reply = await api.client.request(method, CHAT, headers={"origin": origin})
                assert reply.status_code == 403
                assert reply.json()["error"]["skulk_code"] == "request.origin_refused"
                assert "allowed_origins" in reply.json()["error"]["remediation"]
                assert "access-control-allow-origin" not in reply.headers
                assert reply.headers["vary"] == "origin"
        assert (await api.client.get("/v1/models")).status_code == 200, "no page"

    with_api(story, daemon)


def test_a27_errors_carry_the_cors_header_too() -> None:
    async def story(api: Api) -> None:
        headers = {"origin": ORIGIN}
        missing = await api.client.post(CHAT, json={"model": "no/such"}, headers=headers)
        assert missing.status_code == 400
        assert missing.headers["access-control-allow-origin"] == ORIGIN
        broken = await api.client.post(CHAT, content=b"{bad", headers=headers)
        assert broken.headers["access-control-allow-origin"] == ORIGIN
        nowhere = await api.client.get("/v1/nowhere", headers=headers)
        assert nowhere.status_code == 404
        assert nowhere.headers["access-control-allow-origin"] == ORIGIN
        unasked = await api.client.get("/v1/models")
        assert unasked.headers["vary"] == "origin", "a cache may keep it for a page"
        served = await api.client.post(
            CHAT,
            json={"model": "test/scripted", "messages": [{"role": "user", "content": "x"}]},
            headers=headers,
        )
        assert served.status_code == 200
        assert served.headers["access-control-allow-origin"] == ORIGIN
        assert served.headers["vary"] == "origin"

    with_api(story)


def test_a27_control_routes_keep_their_origin_check() -> None:
    async def story(api: Api) -> None:
        for path in ("/place_instance", "/v1/keys", "/store/storage", "/models/import"):
            reply = await api.client.options(
                path, headers={"origin": ORIGIN, "access-control-request-method": "POST"}
            )
            assert reply.status_code == 403
            assert "access-control-allow-origin" not in reply.headers

    with_api(story)


@pytest.mark.parametrize("path", ["/", "/v1/models", "/health", "/version", "/state"])
def test_a28_head_is_answered_without_a_body(path: str) -> None:
    async def story(api: Api) -> None:
        head = await api.client.head(path)
        assert head.status_code == 200
        assert head.content == b""
        assert (await api.client.get(path)).content != b""

    with_api(story)
