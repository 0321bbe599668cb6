"""`skulk` against a real daemon: the operator's stories, with scripted models."""

import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any

from tests.support.daemon import SCRIPTS, Daemon, wait_until
from tests.support.scripted_models import MODEL, add_scripted_model, add_slow_talker

ANSWER = "The capital of France is Paris.\n"


def items(daemon: Daemon, *arguments: str) -> list[dict[str, Any]]:
    """Run a verb with `--json` and give its items."""
    ran = daemon.skulk(*arguments, "--json")
    assert ran.returncode == 0, ran.stderr
    found: list[dict[str, Any]] = json.loads(ran.stdout)["items"]
    return found


def test_a_model_is_looked_at_placed_asked_and_stopped(daemon: Daemon) -> None:
    add_scripted_model(daemon.models_dir)
    (status,) = items(daemon, "status")
    assert [node["health"] for node in status["nodes"]] in (["ok"], ["warn"])
    candidates = items(daemon, "place", MODEL, "--dry-run")
    assert candidates[0]["fits"] is True
    ran = daemon.skulk("place", MODEL, "--plan", candidates[0]["plan_id"][:12])
    assert ran.returncode == 0, ran.stderr
    assert "ready after" in ran.stderr
    (instance,) = items(daemon, "ps")
    assert (instance["phase"], instance["model_id"]) == ("ready", MODEL)
    ran = daemon.skulk("chat", MODEL, "The capital?", "--stats")
    assert (ran.returncode, ran.stdout) == (0, ANSWER)
    assert ran.stderr.startswith("first token ")
    assert daemon.skulk("chat", MODEL, "--no-stream", stdin="The capital?").stdout == ANSWER
    assert daemon.skulk("stop", MODEL).returncode == 0
    assert items(daemon, "ps") == []


def test_a_load_that_fails_ends_the_wait_with_status_and_last_lines(daemon: Daemon) -> None:
    add_scripted_model(daemon.models_dir, load_exit_code=3, load_stderr="out of tensors\n")
    ran = daemon.skulk("place", MODEL, "--timeout", "50s")
    assert ran.returncode == 1, ran.stderr
    assert "exit status 3" in ran.stderr
    assert "  | out of tensors" in ran.stderr
    shown = daemon.skulk("instance", "show", MODEL)
    assert shown.returncode == 1
    assert "out of tensors" in shown.stdout


def test_a_wait_that_ends_leaves_the_load_and_stop_ends_it(daemon: Daemon) -> None:
    add_scripted_model(daemon.models_dir, load_delay_ms=600_000, load_progress_every_ms=100)
    ran = daemon.skulk("place", MODEL, "--timeout", "2s")
    assert ran.returncode == 124
    assert daemon.skulk("instance", "show", MODEL).returncode == 8
    assert daemon.skulk("chat", MODEL, "hello", "--no-wait").returncode == 8
    ran = daemon.skulk("place", MODEL)
    assert ran.returncode == 5, ran.stderr
    assert daemon.skulk("stop", MODEL).returncode == 0
    assert daemon.children() == []


def test_a_chat_waits_for_a_model_that_is_loading(daemon: Daemon) -> None:
    add_scripted_model(daemon.models_dir, load_delay_ms=1500, load_progress_every_ms=100)
    assert daemon.skulk("place", MODEL, "--detach").returncode == 0
    ran = daemon.skulk("chat", MODEL, "The capital?")
    assert (ran.returncode, ran.stdout) == (0, ANSWER)
    assert "load" in ran.stderr


def test_ctrl_c_ends_an_answer_and_frees_its_slot(daemon: Daemon) -> None:
    add_slow_talker(daemon.models_dir)
    assert daemon.skulk("place", MODEL).returncode == 0
    process = subprocess.Popen(
        [str(SCRIPTS / "skulk"), "chat", MODEL, "talk"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**daemon.environment, "SKULK_NODE": daemon.url},
    )
    assert process.stdout is not None
    assert process.stdout.read(4)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    wait_until(
        lambda: items(daemon, "ps")[0]["in_flight"] == 0, timeout_s=20, what="the slot is free"
    )


def test_what_does_not_fit_is_refused_with_4_and_the_arithmetic(daemon: Daemon) -> None:
    add_scripted_model(daemon.models_dir, size_bytes=1 << 45)
    ran = daemon.skulk("place", MODEL, "--dry-run")
    assert ran.returncode == 4
    assert "no (weights)" in ran.stdout
    assert daemon.skulk("place", MODEL).returncode == 4


def test_keys_open_the_api_and_a_wrong_key_is_refused_with_4(daemon: Daemon) -> None:
    refused = daemon.skulk("api", "open", "--no-persist")
    assert refused.returncode == 4, refused.stderr
    made = daemon.skulk("keys", "create", "laptop", "--scope", "read")
    assert made.returncode == 0
    assert daemon.skulk("api", "open", "--no-persist").returncode == 0
    assert [key["name"] for key in items(daemon, "keys", "list")] == ["laptop"]
    assert daemon.skulk("keys", "revoke", "laptop", "--yes").returncode == 0
    assert items(daemon, "keys", "list") == []
    assert daemon.skulk("api", "close").returncode == 0


def test_a_key_is_held_to_its_limits_rotated_and_ended_without_a_restart(daemon: Daemon) -> None:
    add_scripted_model(daemon.models_dir)
    assert daemon.skulk("place", MODEL).returncode == 0

    def ask(key: str) -> int:
        headers = {"authorization": f"Bearer {key}", "x-forwarded-for": "192.0.2.7"}
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        return daemon.http.post("/v1/chat/completions", json=body, headers=headers).status_code

    old = daemon.skulk("keys", "create", "guests", "--rate", "2/min").stdout.strip()
    assert [ask(old) for _ in range(3)] == [200, 200, 429]
    assert daemon.skulk("keys", "set", "guests", "--rate", "none").returncode == 0
    assert ask(old) == 200
    new = daemon.skulk("keys", "rotate", "guests", "--overlap", "1h").stdout.strip()
    assert new.rpartition("-")[0] == old.rpartition("-")[0]
    assert [ask(key) for key in (old, new)] == [200, 200]
    newest = daemon.skulk("keys", "rotate", "guests", "--overlap", "0").stdout.strip()
    assert [ask(key) for key in (old, new, newest)] == [401, 401, 200]
    (listed,) = items(daemon, "keys", "list")
    assert (listed["requests_per_minute"], listed["previous_until"]) == (None, None)


def test_errors_carry_the_nearest_name_of_the_real_catalogue(daemon: Daemon) -> None:
    add_scripted_model(daemon.models_dir)
    for verb in (("place",), ("models", "show"), ("models", "pull")):
        ran = daemon.skulk(*verb, "scripted/stroy")
        assert ran.returncode == 2, (verb, ran.stderr)
        assert f"Did you mean '{MODEL}'?" in ran.stderr


def test_a_wait_outlives_a_restart_of_the_daemon(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon()
    add_scripted_model(daemon.models_dir, load_delay_ms=3000, load_progress_every_ms=100)
    daemon.start()
    process = subprocess.Popen(
        [str(SCRIPTS / "skulk"), "place", MODEL],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**daemon.environment, "SKULK_NODE": daemon.url},
        text=True,
    )
    wait_until(lambda: bool(items(daemon, "ps")), timeout_s=20, what="the placement is accepted")
    daemon.restart()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "the node does not answer; asking again" in err
