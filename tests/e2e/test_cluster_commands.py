"""`skulk cluster`, `nodes`, `logs` and `events` against real daemons: the operator's stories."""

import json
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.daemon import SCRIPTS, Daemon, wait_until
from tests.support.scripted_models import MODEL, add_scripted_model

MakeDaemon = Callable[..., Daemon]
ON_LOOPBACK = ("--cluster", "127.0.0.1:0", "--no-mdns")
LOST_WITHIN_S = 30.0


def items(daemon: Daemon, *arguments: str) -> list[dict[str, Any]]:
    """Run a verb with `--json` and give its items."""
    ran = daemon.skulk(*arguments, "--json")
    assert ran.returncode == 0, ran.stderr
    found: list[dict[str, Any]] = json.loads(ran.stdout)["items"]
    return found


def liveness(daemon: Daemon) -> dict[str, str]:
    return {node["name"]: node["liveness"] for node in items(daemon, "nodes")}


def wait_alive(*nodes: Daemon) -> None:
    """Wait until each of these hears all of them."""
    all_alive = {node.root.name: "alive" for node in nodes}
    for node in nodes:
        wait_until(
            lambda node=node: liveness(node) == all_alive,
            timeout_s=30,
            what=f"{node.root.name} hears all",
        )


@pytest.fixture
def alpha(make_daemon: MakeDaemon) -> Daemon:
    node = make_daemon("alpha", arguments=(*ON_LOOPBACK, "--name", "alpha"))
    node.start()
    return node


@pytest.fixture
def beta(make_daemon: MakeDaemon) -> Daemon:
    node = make_daemon("beta", arguments=(*ON_LOOPBACK, "--name", "beta"))
    node.start()
    return node


def joined(alpha: Daemon, beta: Daemon) -> None:
    """Have beta join alpha's cluster by a token, and wait until they hear each other."""
    token = alpha.skulk("cluster", "invite").stdout
    ran = beta.skulk("cluster", "join", "-", stdin=token)
    assert ran.returncode == 0, ran.stderr
    wait_alive(alpha, beta)


def test_a_cluster_is_made_by_six_words_and_operated_through_either_node(
    alpha: Daemon, beta: Daemon
) -> None:
    invited = alpha.skulk("cluster", "invite", "--code")
    (peer,) = re.findall(r"`--peer (\S+)`", invited.stderr)
    code = invited.stdout.strip()
    ran = beta.skulk("cluster", "join", "--code", code, "--peer", peer)
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"members +alpha, beta", ran.stdout)
    wait_alive(alpha, beta)

    (master,) = items(beta, "cluster", "handover", "beta")
    assert master["name"] == "beta"
    for node in (alpha, beta):
        wait_until(
            lambda node=node: items(node, "cluster", "status")[0]["master"] == master["node_id"],
            timeout_s=10,
            what="beta is master",
        )
    assert items(alpha, "cluster", "policy", "quorum") == [{"policy": "quorum"}]
    wait_until(
        lambda: items(beta, "cluster", "policy") == [{"policy": "quorum"}],
        timeout_s=10,
        what="the policy is known",
    )


def test_files_and_logs_of_a_node_come_through_the_other(alpha: Daemon, beta: Daemon) -> None:
    add_scripted_model(beta.models_dir)
    joined(alpha, beta)
    ran = beta.skulk("place", MODEL, "--nodes", "beta", "--timeout", "60s")
    assert ran.returncode == 0, ran.stderr
    (placed,) = items(beta, "ps")
    alpha.wait_phase(placed["instance_id"])
    lines = items(alpha, "logs", "beta", "-n", "1000")
    assert {line["node_name"] for line in lines} == {"beta"}
    assert any("serving at" in line["message"] for line in lines)
    engine = items(alpha, "logs", MODEL)
    assert {line["instance_id"] for line in engine} == {placed["instance_id"]}
    files = alpha.skulk("models", "files", "--on", "beta")
    assert files.returncode == 0, files.stderr
    assert "beta: " in files.stderr


def test_a_log_is_followed_through_another_node(alpha: Daemon, beta: Daemon) -> None:
    joined(alpha, beta)
    following = subprocess.Popen(
        [str(SCRIPTS / "skulk"), "logs", "beta", "-f", "-n", "1", "-o", "jsonl"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**alpha.environment, "SKULK_NODE": alpha.url},
    )
    try:
        assert following.stdout is not None
        following.stdout.readline()
        assert beta.skulk("keys", "create", "laptop").returncode == 0
        seen = ""
        while "POST /v1/keys" not in seen:
            seen = following.stdout.readline()
            assert seen, "the stream ended"
        assert json.loads(seen)["node_name"] == "beta"
    finally:
        following.terminate()
        following.communicate(timeout=10)
    assert following.returncode == 143


def test_a_node_that_is_killed_is_lost_and_never_shown_as_alive_again(
    alpha: Daemon, beta: Daemon
) -> None:
    joined(alpha, beta)
    beta.kill()
    wait_until(
        lambda: liveness(alpha)["beta"] == "lost", timeout_s=LOST_WITHIN_S, what="beta is lost"
    )
    state = alpha.http.get("/state").json()
    assert state["topology"]["nodes"] == [state["nodeId"]]
    ran = alpha.skulk("logs", "beta")
    assert ran.returncode == 3, ran.stderr
    assert "at: beta" in ran.stderr
    partial = alpha.skulk("models", "files")
    assert partial.returncode == 6
    assert "beta did not answer" in partial.stderr
    beta.start()
    wait_alive(alpha, beta)


def test_a_removed_node_is_no_member_any_more_and_goes_on_alone(
    alpha: Daemon, beta: Daemon
) -> None:
    joined(alpha, beta)
    dry = alpha.skulk("cluster", "remove", "beta", "--dry-run")
    assert "would be removed" in dry.stdout
    assert liveness(alpha) == {"alpha": "alive", "beta": "alive"}
    assert alpha.skulk("cluster", "remove", "beta", "--yes").returncode == 0
    assert liveness(alpha) == {"alpha": "alive"}
    former = items(alpha, "cluster", "status")[0]["cluster_id"]

    def is_alone() -> bool:
        ran = beta.skulk("cluster", "status", "--json")
        if ran.returncode != 0:
            return False  # its rooms are starting anew
        (status,) = json.loads(ran.stdout)["items"]
        return status["cluster_id"] != former and not status["is_open"]

    wait_until(is_alone, timeout_s=30, what="beta is a closed cluster of one")
    assert liveness(beta) == {"beta": "alive"}


def test_a_join_that_fails_says_how_far_it_came_and_changes_nothing(
    alpha: Daemon, beta: Daemon
) -> None:
    token = alpha.skulk("cluster", "invite").stdout
    assert beta.skulk("keys", "create", "laptop").returncode == 0
    ran = beta.skulk("cluster", "join", "-", stdin=token)
    assert ran.returncode != 0
    assert "--discard" in ran.stderr
    alpha.kill()
    ran = beta.skulk("cluster", "join", "-", "--discard", "--yes", stdin=token)
    assert ran.returncode == 1, ran.stderr
    assert "outgoing" in ran.stderr
    assert "127.0.0.1" in ran.stderr
    assert len(ran.stderr.splitlines()) == 3
    assert [key["name"] for key in items(beta, "keys", "list")] == ["laptop"]
    wrong = beta.skulk("cluster", "join", "-", stdin="skulk1-nonsense")
    assert wrong.returncode == 2, wrong.stderr


def test_an_invitation_that_is_used_up_or_revoked_opens_nothing(
    make_daemon: MakeDaemon, alpha: Daemon, beta: Daemon
) -> None:
    token = alpha.skulk("cluster", "invite").stdout
    assert beta.skulk("cluster", "join", "-", stdin=token).returncode == 0
    gamma = make_daemon("gamma", arguments=(*ON_LOOPBACK, "--name", "gamma"))
    gamma.start()
    late = gamma.skulk("cluster", "join", "-", stdin=token)
    assert late.returncode != 0
    assert "used" in late.stderr
    made = json.loads(alpha.skulk("cluster", "invite", "--json").stdout)["items"][0]
    assert alpha.skulk("cluster", "revoke", made["token_id"]).returncode == 0
    revoked = gamma.skulk("cluster", "join", "-", stdin=made["token"])
    assert revoked.returncode != 0, revoked.stdout


def test_events_are_followed_from_a_seq(alpha: Daemon) -> None:
    events = items(alpha, "events", "--after", "0", "-n", "1000")
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["kind"] == "cluster_founded"
    ran = alpha.skulk("events", "-f", "--after", "0", "-o", "jsonl", "--timeout", "2s")
    assert ran.returncode == 124
    assert [json.loads(line)["seq"] for line in ran.stdout.splitlines()] == [
        event["seq"] for event in events
    ]
