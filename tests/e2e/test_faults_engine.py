"""Engines that die, hang or fail to start, as clients and operators meet it."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from skulkd.core.breaker import BACKOFF_S
from tests.support.chat_client import answer_text, ask, chat_stream
from tests.support.daemon import Daemon, wait_until
from tests.support.patience import allowed_s
from tests.support.scripted_models import add_scripted_model, add_slow_talker
from tests.support.shared_daemon import shared_daemon

_SOME = 8
"""Events of a stream, some text among them."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for all of this; each test has models of its own."""
    with shared_daemon(tmp_path_factory.mktemp("faults")) as started:
        yield started


@pytest.fixture
def model(request: pytest.FixtureRequest) -> str:
    """The id of a model that no other test uses."""
    return f"scripted/{request.node.name[:60].strip('_')}"


def engine_pid(daemon: Daemon, instance_id: str) -> int:
    pid = daemon.instance(instance_id)["runners"][0]["pid"]
    assert isinstance(pid, int)
    return pid


def failures_of(daemon: Daemon, instance_id: str) -> list[dict[str, Any]]:
    failures: list[dict[str, Any]] = daemon.http.get("/state").json()["failures"]
    return [failure for failure in failures if failure["instanceId"] == instance_id]


def failed_reasons(daemon: Daemon) -> list[str]:
    reasons = daemon.http.get("/health").json()["reasons"]
    return [reason["message"] for reason in reasons if reason["code"] == "instance.failed"]


def attempt_is(daemon: Daemon, instance_id: str, attempt: int, phase: str) -> bool:
    document = daemon.instance(instance_id)
    return document["attempt"] == attempt and document["phase"] == phase


def test_b26_a10_a_killed_engine_ends_its_streams_with_an_error_and_is_relaunched(
    daemon: Daemon,
) -> None:
    victim = add_slow_talker(daemon.models_dir, "scripted/victim")
    other = add_slow_talker(daemon.models_dir, "scripted/other")
    victim_id, other_id = daemon.place(victim), daemon.place(other)
    daemon.wait_phase(victim_id)
    daemon.wait_phase(other_id)
    with chat_stream(daemon, victim) as broken, chat_stream(daemon, other) as whole:
        broken.read(3)
        whole.read(3)
        os.kill(engine_pid(daemon, victim_id), signal.SIGKILL)
        killed_at_s = time.monotonic()
        broken.read_to_end()
        assert broken.ended_at_s is not None
        assert broken.ended_at_s - killed_at_s < allowed_s(2)
        assert not broken.is_done
        assert broken.error is not None
        assert broken.error["type"] == "server_error"
        assert broken.error["code"] == "engine.gone"
        assert broken.error["param"] is None

        wait_until(lambda: bool(failures_of(daemon, victim_id)), timeout_s=2, what="failure shown")
        failures = failures_of(daemon, victim_id)
        assert len(failures) == 1
        assert failures_of(daemon, other_id) == []
        assert failures[-1]["signal"] == "SIGKILL"
        assert failures[-1]["final"] is False
        assert any("model loaded" in line for line in failures[-1]["logTail"])

        wait_until(
            lambda: attempt_is(daemon, victim_id, 2, "ready"), timeout_s=15, what="relaunched"
        )
        whole.read(3)
        assert daemon.instance(other_id)["attempt"] == 1
    assert answer_text(ask(daemon, victim, max_tokens=3))


def test_a35_a_killed_engine_ends_a_response_with_its_failure(daemon: Daemon, model: str) -> None:
    add_slow_talker(daemon.models_dir, model)
    instance_id = daemon.place(model)
    daemon.wait_phase(instance_id)
    body = {"model": model, "input": "Say something.", "stream": True}
    events: list[dict[str, Any]] = []
    with (
        httpx.Client(base_url=daemon.url, timeout=30, trust_env=False) as client,
        client.stream("POST", "/v1/responses", json=body) as response,
    ):
        killed_at_s = 0.0
        for line in response.iter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
            if len(events) == _SOME and not killed_at_s:
                os.kill(engine_pid(daemon, instance_id), signal.SIGKILL)
                killed_at_s = time.monotonic()
    assert time.monotonic() - killed_at_s < allowed_s(2)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    failed = events[-1]
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"]["skulk_code"] == "engine.gone"
    said = "".join(event["delta"] for event in events if event["type"].endswith("text.delta"))
    assert failed["response"]["output"][0]["content"][0]["text"] == said
    assert said


def test_a05_a_killed_engine_answers_a_whole_request_with_an_error_status(
    daemon: Daemon, model: str
) -> None:
    add_slow_talker(daemon.models_dir, model)
    instance_id = daemon.place(model)
    daemon.wait_phase(instance_id)
    answers: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: answers.append(ask(daemon, model)))
    asking.start()
    wait_until(
        lambda: daemon.instance(instance_id)["inFlight"] == 1, timeout_s=5, what="one in flight"
    )
    os.kill(engine_pid(daemon, instance_id), signal.SIGKILL)
    asking.join(2)
    assert not asking.is_alive()
    assert answers[0].status_code == 503
    error = answers[0].json()["error"]
    assert error["type"] == "server_error"
    assert error["code"] == "engine.gone"
    assert int(answers[0].headers["retry-after"]) >= 1


def test_while_an_engine_is_relaunched_requests_are_told_to_come_back(
    daemon: Daemon, model: str
) -> None:
    add_scripted_model(daemon.models_dir, model, load_delay_ms=500)
    instance_id = daemon.place(model)
    daemon.wait_phase(instance_id)
    os.kill(engine_pid(daemon, instance_id), signal.SIGKILL)
    wait_until(lambda: daemon.instance(instance_id)["attempt"] == 2, timeout_s=2, what="attempt 2")
    answer = ask(daemon, model)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "request.instance_loading"
    assert answer.json()["error"]["loading"]["attempt"] == 2
    assert int(answer.headers["retry-after"]) >= 1
    daemon.wait_phase(instance_id)
    assert answer_text(ask(daemon, model))


def test_b24_an_engine_that_exits_during_load_is_shown_with_code_and_last_lines(
    daemon: Daemon, model: str
) -> None:
    add_scripted_model(
        daemon.models_dir,
        model,
        load_delay_ms=300,
        load_exit_code=3,
        load_stderr="error: tensor blk.0 is missing\nerror: cannot load model",
    )
    instance_id = daemon.place(model)
    placed_at_s = time.monotonic()
    wait_until(
        lambda: daemon.instance(instance_id)["phase"] == "failed", timeout_s=5, what="failed"
    )
    assert time.monotonic() - placed_at_s < allowed_s(3)
    failure = daemon.instance(instance_id)["failure"]
    assert failure["exitCode"] == 3
    assert failure["final"] is True
    assert failure["phase"] == "load"
    assert failure["error"]["code"] == "runner.exited"
    assert "code 3" in failure["error"]["message"]
    assert "cannot load model" in failure["error"]["message"]
    assert failure["logTail"][-1] == "error: cannot load model"
    assert len(failure["logTail"]) <= 20

    answer = ask(daemon, model)
    assert answer.status_code == 503
    assert answer.json()["error"]["failure"]["exit_code"] == 3
    assert model in " ".join(failed_reasons(daemon))


def test_b24_the_cli_shows_exit_code_and_last_lines_of_a_failed_placement(
    daemon: Daemon, model: str
) -> None:
    add_scripted_model(
        daemon.models_dir, model, load_exit_code=3, load_stderr="error: cannot load model"
    )
    placed = daemon.skulk("place", model, "--wait")
    assert placed.returncode != 0
    assert "exited with code 3" in placed.stderr
    assert "cannot load model" in placed.stderr


def test_b22_an_engine_that_keeps_dying_is_left_alone_until_an_operator_acts(
    daemon: Daemon, model: str
) -> None:
    # Survives the probe, which asks for one token, and dies of every real request.
    add_scripted_model(daemon.models_dir, model, reply="one two three", exit_after_tokens=1)
    instance_id = daemon.place(model)
    died_at_s: list[float] = []
    for attempt in (1, 2, 3, 4):
        wait_until(
            partial(attempt_is, daemon, instance_id, attempt, "ready"),
            timeout_s=35,
            what=f"attempt {attempt} ready",
        )
        if died_at_s:
            waited_s = time.monotonic() - died_at_s[-1]
            assert waited_s >= BACKOFF_S[attempt - 2]
        answer = ask(daemon, model, max_tokens=3)
        assert answer.status_code == 503, answer.text
        died_at_s.append(time.monotonic())
    wait_until(
        lambda: daemon.instance(instance_id)["phase"] == "failed", timeout_s=2, what="failed"
    )
    failures = failures_of(daemon, instance_id)
    assert [failure["attempt"] for failure in failures] == [1, 2, 3, 4]
    assert [failure["final"] for failure in failures] == [False, False, False, True]
    assert failures[-1]["signal"] == "SIGKILL"
    assert failures[-1]["logTail"]
    answer = ask(daemon, model)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "placement.failed"

    assert daemon.http.post(f"/instance/{instance_id}/retry").status_code == 202
    document = daemon.wait_phase(instance_id)
    assert document["attempt"] == 5
    assert daemon.http.post(f"/instance/{instance_id}/retry").status_code == 409, "it is ready"
    assert answer_text(ask(daemon, model, max_tokens=1)) == "one"
    assert model not in " ".join(failed_reasons(daemon))


def test_an_invalid_engine_override_is_loud_and_the_bundled_engine_still_offered(
    make_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    wrong = tmp_path / "llama-server"
    wrong.write_text("#!/bin/sh\necho 'cannot execute' >&2\nexit 127\n")
    wrong.chmod(0o755)
    daemon = make_daemon(environment={"SKULK_LLAMA_SERVER_BIN": str(wrong)})
    daemon.start()

    def conflicts() -> list[dict[str, Any]]:
        reasons: list[dict[str, Any]] = daemon.http.get("/health").json()["reasons"]
        return [reason for reason in reasons if reason["code"] == "invalid_engine_binary"]

    wait_until(lambda: bool(conflicts()), timeout_s=20, what="the conflict in health")
    (conflict,) = conflicts()
    assert conflict["level"] == "error"
    assert str(wrong) in conflict["message"]
    assert "SKULK_LLAMA_SERVER_BIN" in conflict["remediation"]
    state = daemon.http.get("/state").json()
    (resources,) = state["nodeResources"].values()
    assert "llama_server-cpu" in resources["backends"]
    assert daemon.skulk("status").stdout.count("invalid_engine_binary") >= 1


def test_b25_a_slow_load_that_gets_on_is_left_alone_and_shown(daemon: Daemon, model: str) -> None:
    add_scripted_model(
        daemon.models_dir,
        model,
        size_bytes=100 << 20,
        load_delay_ms=4000,
        load_progress_every_ms=200,
    )
    instance_id = daemon.place(model)
    daemon.wait_phase(instance_id, "load")
    seen: list[dict[str, Any]] = []
    while (document := daemon.instance(instance_id))["phase"] == "load":
        seen.extend(document["progress"])
        answer = ask(daemon, model)
        if answer.status_code == 503:
            assert answer.json()["error"]["loading"]["phase"] in {"load", "probe"}
        time.sleep(0.1)
    done = [item["doneBytes"] for item in seen if item["doneBytes"] is not None]
    assert done == sorted(done)
    assert len(set(done)) > 5
    assert {item["totalBytes"] for item in seen} <= {100 << 20, None}
    rated = [item for item in seen if item["rateBytesS"] is not None]
    assert rated
    assert all(item["etaS"] is not None for item in rated)
    daemon.wait_phase(instance_id)
