"""Real nodes between which an instance moves, by the command, while it answers."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chat_client import answer_text, ask, chat_stream
from tests.support.cluster import Cluster, cluster_of, running_cluster
from tests.support.daemon import Daemon, wait_until
from tests.support.patience import allowed_s
from tests.support.scripted_models import add_slow_talker

TALKER = "scripted/talker"
N_TOKENS = 1500
"""Of a stream that goes on during the whole move: some 15 s."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path, 2) as nodes:
        for node in nodes:
            add_slow_talker(node.models_dir, TALKER, token_delay_ms=10)
        yield nodes


def place_on(node: Daemon) -> str:
    where = [cluster_of(node)["node_id"]]
    return node.place(TALKER, nodes=where, slots=4, context_tokens=8192)


def is_gone(node: Daemon, instance_id: str) -> bool:
    return node.http.get(f"/instance/{instance_id}").status_code == 404


def test_an_answer_goes_on_during_a_move_and_the_next_one_comes_from_the_new_node(
    cluster: Cluster,
) -> None:
    here, there = cluster
    old_id = place_on(here)
    for node in cluster:
        node.wait_phase(old_id)
    target = cluster_of(there)["node_id"]
    with chat_stream(there, TALKER, max_tokens=N_TOKENS) as stream:
        stream.read(3)
        looked = here.skulk("move", TALKER, "--nodes", target, "--dry-run", "--json")
        assert looked.returncode == 0, looked.stderr
        (look,) = json.loads(looked.stdout)["items"]
        assert look["in_flight"] in {None, 1}
        assert len(look["consequences"]) == 2
        plan_id = look["candidates"][0]["plan_id"]
        moved = here.skulk(
            "move", old_id, "--nodes", target, "--plan", plan_id, "--no-wait", "--json"
        )
        assert moved.returncode == 0, moved.stderr
        new_id = json.loads(moved.stdout)["items"][0]["instance_id"]
        for node in cluster:
            node.wait_phase(new_id)
            assert node.instance(old_id)["phase"] == "stopping", "it ends what it is answering"
        assert answer_text(ask(here, TALKER, max_tokens=5))
        stream.read_to_end()
    assert stream.error is None
    assert stream.is_done
    assert stream.n_deltas == N_TOKENS
    wait_until(lambda: is_gone(here, old_id), timeout_s=allowed_s(10), what="the old one is gone")
    assert here.instance(new_id)["replaces"] is None
    assert answer_text(ask(here, TALKER, max_tokens=5))


def test_the_command_waits_for_the_whole_move_and_says_how_to_move_back(cluster: Cluster) -> None:
    here, there = cluster
    old_id = place_on(here)
    here.wait_phase(old_id)
    target = cluster_of(there)["node_id"]
    moved = here.skulk("move", TALKER, "--nodes", target, "--stop-first", "--timeout", "60s")
    assert moved.returncode == 0, moved.stderr
    assert "is stopped first" in moved.stderr
    back = moved.stderr.splitlines()[-1].partition("`skulk ")[2].rstrip("`").split()
    assert back[0] == "move"
    assert is_gone(here, old_id)
    again = here.skulk(*back, "--timeout", "60s")
    assert again.returncode == 0, again.stderr
    (left,) = json.loads(here.skulk("ps", "--json").stdout)["items"]
    assert left["node_ids"] == [cluster_of(here)["node_id"]]
    assert left["phase"] == "ready"
