"""What an operator switches off or opens, over HTTP and over restarts."""

import json
import shutil
import signal
import socket
from collections.abc import Callable
from typing import Any

import httpx
import psutil
import pytest

from tests.support.chat_client import answer_text, ask, chat_stream
from tests.support.daemon import Daemon, own_address, wait_until
from tests.support.demo_model import DEMO_MODEL_ID
from tests.support.scripted_models import MODEL, add_scripted_model, add_slow_talker

FORWARDED = {"x-forwarded-for": "203.0.113.7"}
"""Makes a loopback peer somebody else: a proxy speaks for whoever is behind it."""


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["skulk_code"] == code, error
    assert error["remediation"]
    return error


def reasons(daemon: Daemon) -> set[str]:
    return {reason["code"] for reason in daemon.http.get("/health").json()["reasons"]}


def has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


# ---- Switched off --------------------------------------------------------------------------


def test_without_worker_nothing_is_placed_and_the_reason_is_told(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon(arguments=["--no-worker"])
    add_scripted_model(daemon.models_dir)
    daemon.start()
    wait_until(lambda: "node.reading_missing" not in reasons(daemon), timeout_s=10, what="readings")
    answer = daemon.http.post("/place_instance", json={"model_id": MODEL})
    error = refused(answer, 400, "placement.no_node")
    assert "--no-worker" in json.dumps(error)
    assert "worker.off" in reasons(daemon)
    (member,) = daemon.http.get("/state").json()["members"].values()
    assert member["role"] == "management"
    placed = daemon.skulk("place", MODEL)
    assert placed.returncode != 0
    assert "--no-worker" in placed.stderr
    assert daemon.children() == []
    assert daemon.stop() == 0


def test_what_was_placed_waits_while_the_node_runs_without_worker(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon()
    waiting = add_scripted_model(daemon.models_dir, "scripted/waiting")
    unwanted = add_scripted_model(daemon.models_dir, "scripted/unwanted")
    daemon.start()
    waiting_id, unwanted_id = daemon.place(waiting), daemon.place(unwanted)
    daemon.wait_phase(waiting_id)
    daemon.wait_phase(unwanted_id)
    assert daemon.stop() == 0

    daemon.arguments = ("--no-worker",)
    daemon.start()
    assert daemon.instance(waiting_id)["phase"] == "pending"
    answer = ask(daemon, waiting)
    assert refused(answer, 503, "request.instance_loading")["loading"]["phase"] == "pending"
    wait_until(
        lambda: "--no-worker" in json.dumps(daemon.instance(waiting_id)["progress"]),
        timeout_s=15,
        what="why it waits",
    )
    assert daemon.http.delete(f"/instance/{unwanted_id}").status_code == 202
    wait_until(
        lambda: daemon.http.get(f"/instance/{unwanted_id}").status_code == 404,
        timeout_s=5,
        what="stopped",
    )
    assert daemon.children() == []
    assert daemon.stop() == 0

    daemon.arguments = ()
    daemon.start()
    daemon.wait_phase(waiting_id)
    assert answer_text(ask(daemon, waiting))


def test_without_api_no_port_is_opened_and_the_node_stops_cleanly(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon(arguments=["--no-api"])
    daemon.spawn()
    wait_until(
        lambda: (
            (daemon.home / "logs" / "skulkd.jsonl").exists()
            and "master of term" in daemon.log_text()
        ),
        timeout_s=15,
        what="started",
    )
    process = psutil.Process(daemon.pid)
    assert [
        item for item in process.net_connections(kind="inet") if item.status == psutil.CONN_LISTEN
    ] == []
    assert daemon.stop() == 0


@pytest.mark.parametrize(
    ("flag", "code", "reason"),
    [
        ("--offline", "store.offline", "network.off"),
        ("--no-downloads", "store.downloads_disabled", "downloads.off"),
    ],
)
def test_nothing_is_fetched_where_that_is_switched_off(
    flag: str, code: str, reason: str, make_daemon: Callable[..., Daemon]
) -> None:
    # Whoever asks the index all the same gets no answer, and the test another code.
    daemon = make_daemon(arguments=[flag], environment={"PIP_INDEX_URL": "http://127.0.0.1:9/"})
    daemon.start()
    assert reason in reasons(daemon)
    assert daemon.http.post(f"/store/models/{DEMO_MODEL_ID}/download").status_code == 202

    def download() -> dict[str, Any]:
        answer = daemon.http.get(f"/store/models/{DEMO_MODEL_ID}/download/status")
        document: dict[str, Any] = answer.json()
        return document

    wait_until(lambda: download()["state"] == "failed", timeout_s=5, what="refused")
    assert download()["error"]["code"] == code
    command = daemon.skulk("models", "pull", DEMO_MODEL_ID)
    assert command.returncode == 4
    assert f"Start without {flag}" in command.stderr

    answer = daemon.http.post("/place_instance", json={"model_id": DEMO_MODEL_ID})
    assert flag in refused(answer, 409, code)["message"]
    placed = daemon.skulk("place", DEMO_MODEL_ID)
    assert placed.returncode == 4
    assert flag in placed.stderr
    assert daemon.http.get("/state").json()["instances"] == {}


def test_more_requests_than_are_allowed_are_refused_and_the_operator_is_not(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon(environment={"SKULK_MAX_CONCURRENT_REQUESTS": "2"})
    add_slow_talker(daemon.models_dir)
    daemon.start()
    daemon.wait_phase(daemon.place(MODEL))
    with chat_stream(daemon, MODEL) as first, chat_stream(daemon, MODEL) as second:
        first.read(1)
        assert second.command_id
        answer = ask(daemon, MODEL)
        assert refused(answer, 503, "request.overloaded")["type"] == "server_error"
        assert int(answer.headers["retry-after"]) >= 1
        assert daemon.http.get("/state").is_success
        assert daemon.http.post(f"/v1/cancel/{first.command_id}").is_success
        first.read_to_end()
        assert answer_text(ask(daemon, MODEL, max_tokens=1))


def test_the_stream_of_events_tells_what_happens_and_ends_with_the_node(daemon: Daemon) -> None:
    model = add_scripted_model(daemon.models_dir)
    seen: list[tuple[int, str]] = []
    with (
        httpx.Client(base_url=daemon.url, timeout=20, trust_env=False) as client,
        client.stream("GET", "/events?follow=1&after_seq=0") as response,
    ):
        lines = response.iter_lines()
        instance_id = daemon.place(model)
        daemon.wait_phase(instance_id)
        for line in lines:
            if line.startswith("data: "):
                event = json.loads(line[6:])
                seen.append((event["seq"], event["kind"]))
                if event["kind"] == "runner_phase_changed" and '"ready"' in line:
                    break
        assert [seq for seq, _ in seen] == list(range(1, len(seen) + 1)), "no gap from the first on"
        assert {"cluster_founded", "instance_placed"} <= {kind for _, kind in seen}
        daemon.process.send_signal(signal.SIGTERM)
        for line in lines:
            assert line.startswith((":", "id: ", "event: ", "data: ")) or not line
    assert daemon.wait_exit() == 0


# ---- Opened --------------------------------------------------------------------------------


def test_the_api_opens_beyond_loopback_with_a_key_only_and_closes_with_the_last_one(
    make_daemon: Callable[..., Daemon],
) -> None:
    address = own_address()
    assert address is not None, "this test needs a network interface beside loopback"
    daemon = make_daemon()
    daemon.start()
    outside = f"http://{address}:{daemon.port}"
    refused(daemon.http.post("/v1/api/open"), 403, "request.forbidden")
    opened = daemon.skulk("api", "open")
    assert opened.returncode != 0
    assert "skulk keys create" in opened.stderr

    created = daemon.http.post("/v1/keys", json={"name": "laptop", "scope": "admin"})
    assert created.status_code == 201
    key, key_id = created.json()["key"], created.json()["key_id"]
    bearer = {"authorization": f"Bearer {key}"}
    urls = daemon.http.post("/v1/api/open").json()["urls"]
    assert any("0.0.0.0" in url or address in url for url in urls)

    def get(path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return httpx.get(outside + path, headers=headers, trust_env=False)

    refused(get("/state"), 401, "request.unauthenticated")
    wrong = {"authorization": "Bearer skulk-aaaaaaaa-" + "a" * 32}
    refused(get("/state", wrong), 401, "request.unauthenticated")
    assert get("/state", bearer).is_success
    assert get("/health").is_success
    assert daemon.http.get("/state").is_success, "loopback needs none"
    refused(daemon.http.get("/state", headers=FORWARDED), 401, "request.unauthenticated")

    assert daemon.stop() == 0
    daemon.start()
    assert get("/state", bearer).is_success, "the choice survives a restart"
    assert_not_kept(key, daemon)

    assert daemon.http.delete(f"/v1/keys/{key_id}").is_success

    def is_closed() -> bool:
        try:
            get("/health")
        except httpx.TransportError:
            return True
        return False

    wait_until(is_closed, timeout_s=3, what="closed with the last key")
    assert daemon.http.get("/health").is_success
    assert "api.no_key" in reasons(daemon)
    assert daemon.stop() == 0
    daemon.start()
    assert is_closed()
    assert "api.no_key" in reasons(daemon)


def assert_not_kept(key: str, daemon: Daemon) -> None:
    """See that a key is neither logged nor told nor journalled."""
    lines = daemon.log_text() + (daemon.home / "logs" / "skulkd.jsonl").read_text()
    assert key not in lines
    secret = key.rpartition("-")[2]
    assert secret not in json.dumps(daemon.http.get("/events?limit=1000").json())
    files = (path for path in (daemon.home / "journal").iterdir() if path.is_file())
    assert all(secret.encode() not in path.read_bytes() for path in files)


def test_keys_reach_as_far_as_their_scope(daemon: Daemon) -> None:
    keys = {
        scope: daemon.http.post("/v1/keys", json={"name": scope, "scope": scope}).json()["key"]
        for scope in ("infer", "read", "operate", "admin")
    }
    asked = {
        "infer": ("GET", "/v1/models"),
        "read": ("GET", "/state"),
        "operate": ("POST", "/place_instance"),
        "admin": ("GET", "/v1/keys"),
    }
    allowed: dict[str, set[str]] = {scope: set() for scope in keys}
    for scope, key in keys.items():
        for needed, (method, path) in asked.items():
            headers = {"authorization": f"Bearer {key}", **FORWARDED}
            answer = daemon.http.request(method, path, headers=headers)
            assert answer.status_code != 401, answer.text
            if answer.status_code != 403:
                allowed[scope].add(needed)
    assert allowed == {
        "infer": {"infer"},
        "read": {"infer", "read"},
        "operate": {"infer", "read", "operate"},
        "admin": {"infer", "read", "operate", "admin"},
    }


def test_b33_both_loopback_families_serve_as_far_as_there_are_two(daemon: Daemon) -> None:
    urls = daemon.http.get("/node/identity").json()["urls"]
    hosts = ["127.0.0.1", "localhost"]
    if has_ipv6_loopback():
        hosts.append("[::1]")
        assert f"http://[::1]:{daemon.port}" in urls
    else:
        assert urls == [f"http://127.0.0.1:{daemon.port}"]
        assert "IPv4 alone serves" in daemon.log_text()
    for host in hosts:
        assert httpx.get(f"http://{host}:{daemon.port}/health", trust_env=False).is_success


# ---- Taken away ----------------------------------------------------------------------------


def test_a_models_volume_that_goes_and_comes_back_costs_placements_only(daemon: Daemon) -> None:
    model = add_scripted_model(daemon.models_dir)
    daemon.wait_phase(daemon.place(model))
    away = daemon.models_dir.with_name("away")
    daemon.models_dir.rename(away)
    wait_until(lambda: "disk.unknown" in reasons(daemon), timeout_s=8, what="told")
    assert daemon.http.get("/store/storage").json()["disk_free_bytes"] is None
    assert daemon.http.get("/v1/models").is_success
    assert answer_text(ask(daemon, model))
    away.rename(daemon.models_dir)
    wait_until(lambda: "disk.unknown" not in reasons(daemon), timeout_s=8, what="well again")
    assert daemon.http.get("/store/storage").json()["disk_free_bytes"] > 0


def test_a_home_that_was_deleted_is_told_as_not_durable(daemon: Daemon) -> None:
    model = add_scripted_model(daemon.models_dir)
    daemon.wait_phase(daemon.place(model))
    shutil.rmtree(daemon.home)
    created = daemon.http.post("/v1/keys", json={"name": "kept nowhere"})
    assert created.status_code == 201
    assert created.json()["durable"] == "memory"
    wait_until(lambda: "journal.not_durable" in reasons(daemon), timeout_s=5, what="told")
    assert answer_text(ask(daemon, model))
    assert daemon.stop() == 0
