"""Keys are shown once, kept as hashes, compared alike, and never told (S5, S6, S7)."""

import hmac
import logging

import pytest

from protocol.commands import CreateApiKey
from skulkd.api import auth
from skulkd.worker.launchers.environment import scrubbed
from tests.support.api_harness import CHAT, Api, chat_body, with_api
from tests.support.callers import LAN, bearer, key_of
from tests.support.fake_ports import FakeDaemon

SECRETS = {
    "SKULK_API_KEY": "skulk-aaaaaaaa-secret",
    "SKULK_API_KEY_FILE": "/home/me/key",
    "HF_TOKEN": "hf_secret",
    "HUGGING_FACE_HUB_TOKEN": "hf_secret",
    "OPENAI_API_KEY": "sk-secret",
    "ANTHROPIC_API_KEY": "sk-secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "HTTPS_PROXY": "http://me:secret@proxy",
    "SKULK_JOIN_FILE": "/home/me/token",
}


def test_s05_a_key_is_shown_once_and_kept_as_a_hash() -> None:
    async def story(api: Api) -> None:
        made = (await api.client.post("/v1/keys", json={"name": "laptop"})).json()
        secret = made["key"].rpartition("-")[2]
        assert len(secret) * 5 >= 128, "bits"
        (command,) = api.daemon.gateway.submitted
        assert isinstance(command, CreateApiKey)
        assert secret not in command.model_dump_json()
        assert len(command.secret_sha256) == 64
        for path in ("/v1/keys", "/state", "/events", "/config", "/health", "/metrics"):
            assert secret not in (await api.client.get(path)).text, path

    with_api(story)


def test_s06_each_wrong_key_costs_the_same_comparisons_of_one_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[tuple[int, int]] = []

    def digest(first: str, second: str) -> bool:
        compared.append((len(first), len(second)))
        return hmac.compare_digest(first, second)

    class Counting:
        compare_digest = staticmethod(digest)

    daemon = FakeDaemon()
    known = key_of(daemon, "admin")
    monkeypatch.setattr(auth, "hmac", Counting)
    costs: dict[str, tuple[tuple[int, int], ...]] = {}
    for kind, sent in {
        "unknown id": "skulk-aaaaaaaa-" + "a" * 32,
        "wrong secret": known[:-1] + ("a" if known[-1] != "a" else "b"),
        "dummy": "dummy",
        "long": "skulk-" + "a" * 5000,
    }.items():
        assert auth.find_key(daemon.state.state, sent, now_ms=10) is None
        costs[kind] = tuple(compared)
        compared.clear()
    assert len(set(costs.values())) == 1, costs
    assert set(costs["dummy"]) == {(64, 64)}


def test_s07_no_key_is_logged_whatever_is_done_with_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def story(api: Api) -> None:
        known = key_of(api.daemon, "infer")
        wrong = "skulk-aaaaaaaa-" + "b" * 32
        secrets = [key.rpartition("-")[2] for key in (known, wrong)]
        for key in (known, wrong):
            headers = {**LAN, **bearer(key)}
            assert (await api.client.post(CHAT, json=chat_body(), headers=headers)).content
            assert (await api.client.post("/v1/keys", json={}, headers=headers)).status_code != 200
            assert (await api.client.get(f"/nowhere?key={key}", headers=headers)).content
        told = [one for one in caplog.records if not one.name.startswith(("httpx", "httpcore"))]
        said = repr([(one.getMessage(), vars(one)) for one in told])
        assert "skulkd.audit" in said
        for task in api.daemon.inference.tasks:
            said += task.model_dump_json()
        for command in api.daemon.gateway.submitted:
            said += command.model_dump_json()
        assert [secret for secret in secrets if secret in said] == []

    with_api(story)


@pytest.mark.parametrize("name", ["key", "api_key", "api-key", "access_token", "token", "auth"])
def test_s07_a_key_in_the_address_counts_as_none(name: str) -> None:
    async def story(api: Api) -> None:
        key = key_of(api.daemon, "admin")
        reply = await api.client.get(f"/state?{name}={key}", headers=LAN)
        assert reply.status_code == 401
        assert key not in reply.text

    with_api(story)


def test_s07_an_engine_inherits_no_secret() -> None:
    kept = scrubbed({**SECRETS, "PATH": "/usr/bin"}, {}, "launch-1")
    assert "PATH" in kept
    assert [name for name in SECRETS if name in kept] == []
    assert "secret" not in repr(kept)
