"""Instances and requests over HTTP: stopped in every phase, placed again, cancelled, queued."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest

from skulkd.worker.paths import worker_paths
from tests.support.chat_client import answer_text, ask, chat_body, chat_stream
from tests.support.daemon import Daemon, wait_until
from tests.support.patience import allowed_s
from tests.support.scripted_models import ENDLESS, add_scripted_model, add_slow_talker
from tests.support.shared_daemon import shared_daemon


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for all of this; each test stops what it has placed."""
    with shared_daemon(tmp_path_factory.mktemp("instances")) as daemon:
        yield daemon


@pytest.fixture
def nothing_left(node: Daemon) -> Iterator[None]:
    """Check that stopped instances leave no process, socket or launch record behind."""
    yield
    for instance_id in instances_of(node):
        stop(node, instance_id)
    wait_until(lambda: instances_of(node) == [], timeout_s=8, what="all instances gone")
    assert node.children() == []
    assert list(worker_paths(node.home, node.environment).sockets.iterdir()) == []
    wait_until(
        lambda: list((node.home / "launches").glob("*")) == [], timeout_s=2, what="no record"
    )


pytestmark = pytest.mark.usefixtures("nothing_left")


def instances_of(daemon: Daemon) -> list[str]:
    return list(daemon.http.get("/state").json()["instances"])


def stop(daemon: Daemon, instance_id: str) -> int:
    return daemon.http.delete(f"/instance/{instance_id}").status_code


def is_forgotten(daemon: Daemon, instance_id: str) -> bool:
    return daemon.http.get(f"/instance/{instance_id}").status_code == 404


def place_ready(daemon: Daemon, model: str, **body: object) -> str:
    instance_id = daemon.place(model, **body)
    daemon.wait_phase(instance_id)
    return instance_id


def in_flight(daemon: Daemon, instance_id: str) -> int:
    return int(daemon.instance(instance_id)["inFlight"])


# ---- Stopping ------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["pending", "load", "probe", "ready"])
def test_a_stop_is_honoured_in_every_phase_and_twice(phase: str, node: Daemon) -> None:
    model = add_scripted_model(
        node.models_dir,
        load_delay_ms=30_000 if phase == "load" else 0,
        first_token_delay_ms=30_000 if phase == "probe" else 0,
    )
    instance_id = node.place(model)
    if phase != "pending":
        node.wait_phase(instance_id, phase)
    asked_at_s = time.monotonic()
    assert stop(node, instance_id) == 202
    assert stop(node, instance_id) in {202, 404}
    wait_until(lambda: is_forgotten(node, instance_id), timeout_s=8, what="gone")
    assert time.monotonic() - asked_at_s < allowed_s(5)
    assert stop(node, instance_id) == 404
    assert node.children() == []


def test_a_stop_between_two_attempts_is_honoured_at_once(node: Daemon) -> None:
    model = add_scripted_model(node.models_dir, reply="one two", exit_after_tokens=1)
    instance_id = place_ready(node, model)
    for attempt in (2, 3):
        assert ask(node, model, max_tokens=2).status_code == 503
        wait_until(
            lambda attempt=attempt: node.instance(instance_id)["attempt"] == attempt,
            timeout_s=5,
            what=f"attempt {attempt}",
        )
        if attempt == 2:
            node.wait_phase(instance_id)
    assert node.instance(instance_id)["phase"] == "pending", "it waits for 5 s"
    assert stop(node, instance_id) == 202
    wait_until(lambda: is_forgotten(node, instance_id), timeout_s=2, what="gone")


def test_b13_placing_again_at_once_is_never_refused_for_memory(node: Daemon) -> None:
    model = add_scripted_model(node.models_dir, memory_bytes=64 << 20, size_bytes=64 << 20)
    for _ in range(10):
        instance_id = place_ready(node, model)
        assert answer_text(ask(node, model))
        assert stop(node, instance_id) == 202
    assert len(node.http.get("/state").json()["failures"]) <= 4, "none of this test"


def test_placing_over_a_stopping_instance_waits_for_it(node: Daemon) -> None:
    model = add_scripted_model(node.models_dir, ignore_sigterm=True)
    first = place_ready(node, model)
    pid = node.instance(first)["runners"][0]["pid"]
    assert stop(node, first) == 202
    second = node.place(model)
    node.wait_phase(second, timeout_s=20)
    assert answer_text(ask(node, model))
    wait_until(lambda: not psutil.pid_exists(pid), timeout_s=8, what="the first killed")


def test_a_second_placement_of_a_live_model_is_refused(node: Daemon) -> None:
    model = add_scripted_model(node.models_dir)
    instance_id = place_ready(node, model)
    answer = node.http.post("/place_instance", json={"model_id": model})
    assert answer.status_code == 409
    error = answer.json()["error"]
    assert error["code"] == "placement.already_live"
    assert error["details"]["instance_id"] == instance_id


def test_b26_stopping_an_instance_ends_its_streams_and_its_queue(node: Daemon) -> None:
    model = add_slow_talker(node.models_dir)
    instance_id = place_ready(node, model, slots=1)
    with chat_stream(node, model) as running, chat_stream(node, model) as waiting:
        running.read(3)
        wait_until(
            lambda: node.instance(instance_id)["queued"] == 1, timeout_s=2, what="one queued"
        )
        asked_at_s = time.monotonic()
        assert stop(node, instance_id) == 202
        running.read_to_end()
        waiting.read_to_end()
        assert time.monotonic() - asked_at_s < allowed_s(2)
        for stream in (running, waiting):
            assert not stream.is_done
            assert stream.error is not None
            assert stream.error["code"] == "engine.gone"
    answer = ask(node, model)
    assert answer.status_code in {404, 503}
    assert answer.json()["error"]["type"] in {"invalid_request_error", "server_error"}


# ---- Ending a request ----------------------------------------------------------------------


def test_a11_a_client_that_leaves_frees_its_slot(node: Daemon) -> None:
    model = add_slow_talker(node.models_dir)
    instance_id = place_ready(node, model, slots=1)
    with chat_stream(node, model) as stream:
        stream.read(2)
        command_id = stream.command_id
        assert command_id
        wait_until(lambda: in_flight(node, instance_id) == 1, timeout_s=2, what="one in flight")
    left_at_s = time.monotonic()
    assert answer_text(ask(node, model, max_tokens=1)) == ENDLESS
    assert time.monotonic() - left_at_s < allowed_s(1.5)
    wait_until(lambda: in_flight(node, instance_id) == 0, timeout_s=1, what="none in flight")
    assert node.http.post(f"/v1/cancel/{command_id}").status_code == 404


def test_a_client_that_leaves_a_whole_request_frees_its_slot(node: Daemon) -> None:
    model = add_slow_talker(node.models_dir)
    instance_id = place_ready(node, model, slots=1)
    body = json.dumps(chat_body(model)).encode()
    with socket.create_connection(("127.0.0.1", node.port)) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
            % len(body)
            + body
        )
        wait_until(lambda: in_flight(node, instance_id) == 1, timeout_s=2, what="one in flight")
    wait_until(lambda: in_flight(node, instance_id) == 0, timeout_s=1.5, what="none in flight")


def test_a_client_that_leaves_the_queue_is_never_served(node: Daemon) -> None:
    model = add_slow_talker(node.models_dir)
    instance_id = place_ready(node, model, slots=1)
    with chat_stream(node, model) as running:
        running.read(1)
        with chat_stream(node, model):
            wait_until(
                lambda: node.instance(instance_id)["queued"] == 1, timeout_s=2, what="one queued"
            )
        wait_until(
            lambda: node.instance(instance_id)["queued"] == 0, timeout_s=1.5, what="none queued"
        )
        running.read(1)


def test_cancel_ends_a_stream_with_an_error_and_is_told_twice_apart(node: Daemon) -> None:
    model = add_slow_talker(node.models_dir)
    instance_id = place_ready(node, model)
    with chat_stream(node, model) as stream:
        stream.read(2)
        cancelled = node.http.post(f"/v1/cancel/{stream.command_id}")
        assert cancelled.status_code == 200
        assert cancelled.json()["command_id"] == stream.command_id
        stream.read_to_end()
        assert not stream.is_done
        assert stream.error is not None
        assert stream.error["code"] == "request.cancelled"
        assert node.http.post(f"/v1/cancel/{stream.command_id}").status_code == 404
    wait_until(lambda: in_flight(node, instance_id) == 0, timeout_s=1, what="none in flight")


def test_cancel_reaches_a_queued_stream_and_leaves_the_running_one(node: Daemon) -> None:
    model = add_slow_talker(node.models_dir)
    instance_id = place_ready(node, model, slots=1)
    with chat_stream(node, model) as running, chat_stream(node, model) as queued:
        running.read(1)
        wait_until(
            lambda: node.instance(instance_id)["queued"] == 1, timeout_s=2, what="one queued"
        )
        assert node.http.post(f"/v1/cancel/{queued.command_id}").status_code == 200
        queued.read_to_end()
        assert queued.error is not None
        assert queued.error["code"] == "request.cancelled"
        running.read(2)


def test_cancel_of_what_never_was_is_not_found(node: Daemon) -> None:
    assert node.http.post("/v1/cancel/abcdef-aaaaaaaaaaaaaaaaaaaa").status_code == 404
    assert node.http.post("/v1/cancel/..").status_code in {400, 404}
    assert node.http.post("/v1/cancel/abcdef").status_code == 400


def test_a08_the_head_and_the_command_id_come_before_the_first_token(node: Daemon) -> None:
    model = add_scripted_model(node.models_dir, first_token_delay_ms=1500)
    place_ready(node, model)
    began_s = time.monotonic()
    with chat_stream(node, model) as stream:
        assert stream.command_id
        assert time.monotonic() - began_s < allowed_s(1)
        stream.read_to_end()
        assert stream.is_done
    assert time.monotonic() - began_s >= 1.5


# ---- Many at a time ------------------------------------------------------------------------


def test_40_requests_over_16_slots_are_all_answered_first_come_first_served(node: Daemon) -> None:
    model = add_scripted_model(
        node.models_dir, reply="one two three four", token_delay_ms=40, first_token_delay_ms=40
    )
    place_ready(node, model, slots=16)
    began: list[int] = []

    async def one(client: httpx.AsyncClient, number: int) -> str:
        await asyncio.sleep(number * 0.004)  # so that they arrive in the order of their numbers
        text = ""
        body = chat_body(model, stream=True, max_tokens=4)
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.is_success, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    delta = json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
                    if delta and not text:
                        began.append(number)
                    text += delta
        return text

    async def crowd() -> list[str]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(
            base_url=node.url, timeout=60, trust_env=False, limits=limits
        ) as client:
            return await asyncio.gather(*(one(client, number) for number in range(40)))

    texts = asyncio.run(crowd())
    assert texts == ["one two three four"] * 40
    assert set(began[:16]) == set(range(16))
    assert set(began[16:32]) == set(range(16, 32))


def test_a_full_queue_is_refused_with_retry_after(node: Daemon) -> None:
    model = add_slow_talker(node.models_dir)
    instance_id = place_ready(node, model, slots=1)
    n_queued = 192  # of 256: the last quarter is for those of whom nothing waits

    async def one(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/chat/completions", json=chat_body(model, max_tokens=4000))

    async def crowd() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(
            base_url=node.url, timeout=60, trust_env=False, limits=limits
        ) as client:
            tasks = [asyncio.ensure_future(one(client)) for _ in range(n_queued + 1)]
            while node.instance(instance_id)["queued"] != n_queued:
                await asyncio.sleep(0.1)
            refused = [await one(client) for _ in range(3)]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            return refused

    for answer in asyncio.run(asyncio.wait_for(crowd(), 30)):
        assert answer.status_code == 503, answer.text
        assert answer.json()["error"]["code"] == "engine.busy"
        assert int(answer.headers["retry-after"]) >= 1
    wait_until(
        lambda: (in_flight(node, instance_id), node.instance(instance_id)["queued"]) == (0, 0),
        timeout_s=3,
        what="all places free",
    )
