"""API keys at the gateway: limits, expiry, rotation, and what a revoked key has open."""

import asyncio
from typing import Any, final

import httpx
import pytest

from protocol.commands import ChangeApiKey, RotateApiKey
from protocol.control_api import read_answer
from protocol.data_frames import Chunk, Finished, Started
from protocol.events import ApiKeyRevoked
from protocol.ids import KeyId, NodeId
from protocol.keys_api import CreatedKey, KeyList
from protocol.peer_messages import CallApi
from protocol.state import ApiKey, KeyLimits, PreviousSecret
from skulkd.api.auth import make_key, make_secret
from skulkd.runtime.clock import SystemClock
from tests.support.api_harness import CHAT, Api, chat_body, until, with_api
from tests.support.fake_ports import USAGE, FakeDaemon, Pause

LAN = {"x-forwarded-for": "192.0.2.7"}  # makes a loopback peer count as a stranger


@final
class StoppedClock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.25

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic_s(self) -> float:
        return self.now_s


@final
class Keyed:
    """A node's fakes, and one API key."""

    def __init__(self, **changes: object) -> None:
        fresh = make_key()
        self.daemon = FakeDaemon()
        self.clock = StoppedClock()
        self.daemon.clock = self.clock
        self.text = fresh.text
        self.key = ApiKey(
            key_id=fresh.key_id,
            name="test",
            secret_sha256=fresh.secret_sha256,
            scope="infer",
            created_at_ms=1,
        )
        self.set(**changes)

    @property
    def headers(self) -> dict[str, str]:
        return {**LAN, "authorization": f"Bearer {self.text}"}

    def set(self, **changes: object) -> None:
        self.key = self.key.model_copy(update=changes)
        self._put({self.key.key_id: self.key})

    def revoke(self) -> None:
        self._put({})
        self.daemon.state.commit(ApiKeyRevoked(key_id=self.key.key_id))

    def _put(self, keys: dict[KeyId, ApiKey]) -> None:
        state = self.daemon.state.state
        self.daemon.state.state = state.model_copy(update={"api_keys": keys})

    async def ask(self, api: Api, path: str = CHAT, **fields: object) -> httpx.Response:
        return await api.client.post(path, json=chat_body(**fields), headers=self.headers)


def limited(rate: int | None = None, most: int | None = None) -> Keyed:
    return Keyed(limits=KeyLimits(requests_per_minute=rate, concurrent_requests=most))


# ---- Rate ----------------------------------------------------------------------------------


def test_the_answer_says_how_much_is_left_and_the_one_beyond_is_429() -> None:
    keyed = limited(rate=2)

    async def story(api: Api) -> None:
        for left in ("1", "0"):
            reply = await keyed.ask(api)
            assert reply.status_code == 200
            assert reply.headers["x-ratelimit-limit-requests"] == "2"
            assert reply.headers["x-ratelimit-remaining-requests"] == left
            assert reply.headers["x-ratelimit-reset-requests"] == "61s"
        refused = await keyed.ask(api)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "61"
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert error["skulk_code"] == "request.rate_limited"
        assert error["details"]["requests_per_minute"] == 2
        assert len(api.daemon.inference.tasks) == 2
        keyed.clock.now_s += 61
        assert (await keyed.ask(api)).status_code == 200

    with_api(story, keyed.daemon)


def test_each_dialect_says_it_in_its_own_form() -> None:
    keyed = limited(rate=1)

    async def story(api: Api) -> None:
        await keyed.ask(api)
        for path in ("/v1/responses", "/v1/completions", "/v1/embeddings", "/v1/rerank"):
            refused = await keyed.ask(api, path)
            assert (refused.status_code, refused.json()["error"]["type"]) == (
                429,
                "rate_limit_error",
            )
        anthropic = (await keyed.ask(api, "/v1/messages")).json()
        assert (anthropic["type"], anthropic["error"]["type"]) == ("error", "rate_limit_error")
        ollama = await keyed.ask(api, "/ollama/api/chat")
        assert (ollama.status_code, type(ollama.json()["error"])) == (429, str)

    with_api(story, keyed.daemon)


def test_lists_cancels_and_this_machine_are_not_counted() -> None:
    keyed = limited(rate=1, most=1)

    async def story(api: Api) -> None:
        for _ in range(3):
            listed = await api.client.get("/v1/models", headers=keyed.headers)
            assert listed.status_code == 200
            assert "x-ratelimit-limit-requests" not in listed.headers
            assert (await api.chat()).status_code == 200
        assert (await keyed.ask(api)).status_code == 200

    with_api(story, keyed.daemon)


def test_a_request_that_a_node_hands_on_takes_nothing_of_a_key() -> None:
    keyed = limited(rate=1)

    async def story(api: Api) -> None:
        call = CallApi(method="POST", path="/v1/messages/count_tokens", body=b"{}")
        await api.app.peers.handle(NodeId("n-someone"), call)
        reply = await keyed.ask(api)
        assert reply.headers["x-ratelimit-remaining-requests"] == "0"

    with_api(story, keyed.daemon)


def test_a_task_says_whose_turn_it_takes() -> None:
    keyed = Keyed()

    async def story(api: Api) -> None:
        await keyed.ask(api)
        await api.chat()
        await api.chat(stream=True)
        askers = [task.asker for task in api.daemon.inference.tasks]
        assert askers == [keyed.key.key_id, "loopback", "loopback"]

    with_api(story, keyed.daemon)


# ---- Requests at a time --------------------------------------------------------------------


@pytest.mark.parametrize("end", ["finish", "leave", "cancel"])
def test_a_place_comes_back_however_a_stream_ends(end: str) -> None:
    keyed, gate = limited(most=1), asyncio.Event()
    keyed.daemon.inference.script = [Started(7), Chunk("hi"), gate, Finished("stop", USAGE)]

    async def story(api: Api) -> None:
        body = chat_body(stream=True)
        async with api.client.stream("POST", CHAT, json=body, headers=keyed.headers) as reply:
            lines = reply.aiter_lines()
            await anext(lines)
            await until(lambda: len(api.daemon.inference.running) == 1)
            refused = await keyed.ask(api)
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["skulk_code"] == "request.concurrency_limited"
            listed = await api.client.get("/v1/keys")
            assert read_answer(KeyList, listed.content).items[0].open_requests == 1
            if end == "finish":
                gate.set()
            elif end == "cancel":
                await api.client.post(f"/v1/cancel/{reply.headers['x-skulk-command-id']}")
            if end != "leave":
                assert [line async for line in lines]
        await until(lambda: api.app.n_open == 0)
        gate.set()
        assert (await keyed.ask(api)).status_code == 200

    with_api(story, keyed.daemon)


@pytest.mark.parametrize("fields", [{"model": "no/such"}, {"messages": 7}, {"max_tokens": 0}])
def test_a_place_comes_back_when_the_request_is_refused(fields: dict[str, Any]) -> None:
    keyed = limited(most=1)

    async def story(api: Api) -> None:
        for _ in range(3):
            assert (await keyed.ask(api, **fields)).status_code in {400, 404}
        assert (await keyed.ask(api)).status_code == 200

    with_api(story, keyed.daemon)


# ---- Expiry and rotation -------------------------------------------------------------------


def test_an_expired_key_is_told_so_and_a_wrong_one_is_not() -> None:
    keyed = Keyed(expires_at_ms=1_005_000)

    async def story(api: Api) -> None:
        assert (await keyed.ask(api)).status_code == 200
        keyed.clock.now_s = 1065.0
        refused = await keyed.ask(api)
        assert refused.status_code == 401
        assert "(test) expired 60 s ago" in refused.json()["error"]["message"]
        keyed.text = keyed.text[:-1] + ("a" if keyed.text[-1] != "a" else "b")
        wrong = await keyed.ask(api)
        assert (wrong.status_code, "expired" in wrong.text) == (401, False)

    with_api(story, keyed.daemon)


def test_both_secrets_of_a_rotated_key_are_accepted_until_the_first_is_over() -> None:
    keyed = Keyed()
    fresh = make_secret(keyed.key.key_id)
    keyed.set(
        secret_sha256=fresh.secret_sha256,
        previous=PreviousSecret(secret_sha256=keyed.key.secret_sha256, until_ms=1_060_000),
    )
    old, new = keyed.text, fresh.text

    async def story(api: Api) -> None:
        for text, now_s, status in (
            (old, 1059.0, 200),
            (new, 1059.0, 200),
            (old, 1060.0, 401),
            (new, 1060.0, 200),
        ):
            keyed.text, keyed.clock.now_s = text, now_s
            assert (await keyed.ask(api)).status_code == status

    with_api(story, keyed.daemon)


def test_a_key_is_rotated_and_changed_and_what_is_left_out_stays() -> None:
    keyed = limited(rate=5, most=2)
    path = f"/v1/keys/{keyed.key.key_id}"

    async def story(api: Api) -> None:
        rotated = await api.client.post(f"{path}/rotate", json={"overlap_s": 60})
        assert (rotated.status_code, rotated.headers["cache-control"]) == (200, "no-store")
        made = read_answer(CreatedKey, rotated.content)
        assert (made.key_id, made.previous_until_ms) == (keyed.key.key_id, 1_060_250)
        changes = {"limits": {"requests_per_minute": 9}, "unset": ["concurrent_requests"]}
        assert (await api.client.put(path, json=changes)).status_code == 200
        await api.client.put(path, json={"expires_in_s": 100})
        rotate, first, second = api.daemon.gateway.submitted
        assert isinstance(rotate, RotateApiKey)
        assert rotate.overlap_ms == 60_000
        assert made.key.rpartition("-")[2] not in rotate.model_dump_json()
        assert isinstance(first, ChangeApiKey)
        assert first.limits == KeyLimits(requests_per_minute=9)
        assert first.expires_at_ms is None
        assert isinstance(second, ChangeApiKey)
        assert (second.limits, second.expires_at_ms) == (keyed.key.limits, 1_100_250)
        for body in ({"unset": ["scope"]}, {"limits": {"requests_per_minute": 0}}):
            assert (await api.client.put(path, json=body)).status_code == 400
        assert (await api.client.put("/v1/keys/key-zzzzzzzz", json={})).status_code == 404
        assert (await api.client.post("/v1/keys/key-zzzzzzzz/rotate")).status_code == 404

    with_api(story, keyed.daemon)


# ---- Revoking ------------------------------------------------------------------------------


def test_a_revoked_key_ends_what_it_has_open() -> None:
    keyed = Keyed()
    keyed.daemon.clock = SystemClock()
    keyed.daemon.inference.script = [Started(7), Chunk("hi"), Pause(60), Finished("stop", USAGE)]

    async def story(api: Api) -> None:
        body, inference = chat_body(stream=True), api.daemon.inference
        async with api.client.stream("POST", CHAT, json=body, headers=keyed.headers) as reply:
            whole = asyncio.ensure_future(keyed.ask(api))
            await until(lambda: len(inference.running) == 2)
            mine = asyncio.ensure_future(api.chat())
            await until(lambda: len(inference.running) == 3)
            keyed.revoke()
            rest = [line async for line in reply.aiter_lines()]
            assert any('"request.unauthenticated"' in line for line in rest)
        assert (await whole).status_code == 401
        await until(lambda: len(inference.running) == 1)
        assert not mine.done()
        mine.cancel()

    with_api(story, keyed.daemon)
