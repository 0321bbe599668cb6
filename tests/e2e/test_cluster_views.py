"""What an operator sees of a cluster of real daemons: the same through any node, whoever dies."""

import json
import subprocess
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, cluster_of, running_cluster, stopped_process
from tests.support.daemon import SCRIPTS, Daemon, wait_until
from tests.support.patience import allowed_s
from tests.support.scripted_models import MODEL, add_scripted_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path) as formed:
        yield formed


class Follower:
    """A `skulk … -f` whose lines are collected in a thread."""

    def __init__(self, node: Daemon, *arguments: str) -> None:
        self.lines: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [str(SCRIPTS / "skulk"), *arguments, "-o", "jsonl"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**node.environment, "SKULK_NODE": node.url},
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=10)
        self._thread.join(timeout=10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def following(node: Daemon, *arguments: str) -> Generator[Follower]:
    follower = Follower(node, *arguments)
    try:
        yield follower
    finally:
        follower.close()


def items(node: Daemon, *arguments: str) -> list[dict[str, Any]]:
    ran = node.skulk(*arguments, "--json")
    assert ran.returncode == 0, ran.stderr
    found: list[dict[str, Any]] = json.loads(ran.stdout)["items"]
    return found


def make_key(node: Daemon, name: str) -> None:
    made = node.http.post("/v1/keys", json={"name": name})
    assert made.is_success, made.text


def test_nodes_and_members_are_the_same_through_any_node(cluster: Cluster) -> None:
    for verb in (("nodes",), ("cluster", "members")):
        seen = [
            {one["node_id"]: (one["name"], one["liveness"]) for one in items(node, *verb)}
            for node in cluster
        ]
        assert seen[0] == seen[1] == seen[2]
        assert {name for name, _ in seen[0].values()} == {"attic", "kitchen", "study"}
        assert {liveness for _, liveness in seen[0].values()} == {"alive"}
    for asked in cluster:
        for about in cluster:
            document = asked.http.get("/v1/cluster", params={"node": about.root.name}).json()
            assert document["node_id"] == cluster_of(about)["node_id"]


def test_events_are_followed_over_the_death_of_the_master_without_gap_or_repeat(
    cluster: Cluster,
) -> None:
    master = cluster.by_id(cluster.wait_agreed())
    follower, other = (node for node in cluster if node is not master)
    with following(follower, "events", "-f", "--after", "0") as events:
        for number in range(5):
            make_key(master, f"before-{number}")
        wait_until(lambda: len(events.lines) > 5, timeout_s=10, what="it follows")
        master.kill()
        for number in range(5):
            make_key(other, f"after-{number}")
        last = cluster_of(other)["commit_seq"]
        wait_until(
            lambda: bool(events.lines) and events.lines[-1]["seq"] >= last,
            timeout_s=20,
            what="it goes on",
        )
        seqs = [line["seq"] for line in events.lines]
    assert seqs == list(range(1, len(seqs) + 1))
    told = json.dumps(events.lines)
    for number in range(5):
        assert told.count(f"before-{number}") == 1
        assert told.count(f"after-{number}") == 1


def test_the_log_of_an_engine_is_read_through_another_node(cluster: Cluster) -> None:
    host, door, _ = cluster
    add_scripted_model(host.models_dir)
    instance_id = host.place(MODEL, nodes=[cluster_of(host)["node_id"]])
    host.wait_phase(instance_id)
    door.wait_phase(instance_id)
    for word in (instance_id, MODEL):
        lines = items(door, "logs", word, "-n", "1000")
        assert {line["instance_id"] for line in lines} == {instance_id}
        assert {line["node_name"] for line in lines} == {"attic"}
    with following(door, "logs", instance_id, "-f", "-n", "1000") as log:
        wait_until(lambda: len(log.lines) == len(lines), timeout_s=20, what="it is followed")


def test_a_node_that_stands_still_holds_nobody_up(cluster: Cluster) -> None:
    door, still, _ = cluster
    with stopped_process(still):
        began_s = time.monotonic()
        for path in ("/v1/nodes", "/v1/cluster", "/state"):
            assert door.http.get(path).is_success
        assert time.monotonic() - began_s < allowed_s(1), "what it knows itself, it says at once"
        assert len(items(door, "nodes")) == 3
        ran = door.skulk("logs", "kitchen")
        assert ran.returncode == 3, ran.stderr
        assert "kitchen" in ran.stderr
        wait_until(
            lambda: (
                {one["name"]: one["liveness"] for one in items(door, "nodes")}["kitchen"]
                in {"suspect", "lost"}
            ),
            timeout_s=10,
            what="it is missed",
        )
    cluster.wait_agreed()


def test_a_node_that_does_not_exist_is_named_by_every_verb(cluster: Cluster) -> None:
    for verb in (
        ("logs", "nobody"),
        ("cluster", "remove", "nobody", "--yes"),
        ("cluster", "handover", "nobody"),
        ("place", MODEL, "--nodes", "nobody"),
        ("models", "pull", MODEL, "--on", "nobody"),
    ):
        ran = cluster[1].skulk(*verb)
        assert ran.returncode not in {0, 1}, (verb, ran.stderr)
        assert "nobody" in ran.stderr, (verb, ran.stderr)
        assert "Traceback" not in ran.stderr
    cluster.wait_agreed()
