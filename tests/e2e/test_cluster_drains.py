"""Real nodes of which one is drained, by the command, while it answers."""

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
N_TOKENS = 600
"""Of a stream that goes on during the whole drain: some 6 s."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path, 2) as nodes:
        for node in nodes:
            add_slow_talker(node.models_dir, TALKER, token_delay_ms=10)
        yield nodes


def place_on(node: Daemon) -> str:
    where = [cluster_of(node)["node_id"]]
    instance_id = node.place(TALKER, nodes=where, slots=4, context_tokens=8192)
    node.wait_phase(instance_id)
    return instance_id


def eligibility(seen_by: Daemon, node: Daemon) -> str:
    node_id = cluster_of(node)["node_id"]
    members = {one["node_id"]: one for one in cluster_of(seen_by)["members"]}
    return str(members[node_id]["eligibility"])


def test_a_stream_of_a_drained_node_loses_no_token_and_nothing_is_placed_there_meanwhile(
    cluster: Cluster,
) -> None:
    here, there = cluster
    name = cluster_of(there)["name"]
    instance_id = place_on(there)
    here.wait_phase(instance_id)
    with chat_stream(here, TALKER, max_tokens=N_TOKENS) as far:
        with chat_stream(there, TALKER, max_tokens=N_TOKENS) as near:
            far.read(3)
            near.read(3)
            drained = here.skulk("node", "drain", name, "--yes", "--no-wait", "--json")
            assert drained.returncode == 0, drained.stderr
            (item,) = json.loads(drained.stdout)["items"]
            (stopped,) = item["stops"]
            assert (stopped["instance_id"], stopped["copies"]) == (instance_id, 0)
            assert stopped["elsewhere"] == cluster_of(here)["name"]
            wait_until(
                lambda: there.instance(instance_id)["phase"] == "stopping",
                timeout_s=allowed_s(5),
                what="the drain known there",
            )
            assert [eligibility(node, there) for node in cluster] == ["draining", "draining"]
            refused = ask(there, TALKER, max_tokens=5)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            assert refused.json()["error"]["skulk_code"] == "engine.draining"
            placed = here.skulk("place", TALKER, "--nodes", name)
            assert placed.returncode == 4
            assert "is drained" in placed.stderr
            near.read_to_end()
        far.read_to_end()
    for stream in (near, far):
        assert stream.error is None
        assert stream.is_done
        assert stream.n_deltas == N_TOKENS
    wait_until(
        lambda: eligibility(here, there) == "drained", timeout_s=allowed_s(10), what="drained"
    )
    place_on(here)
    assert answer_text(ask(there, TALKER, max_tokens=5))


def test_what_has_not_ended_at_the_deadline_ends_with_an_error_and_the_drain_outlives_a_restart(
    cluster: Cluster,
) -> None:
    here, there = cluster
    name = cluster_of(there)["name"]
    instance_id = place_on(there)
    here.wait_phase(instance_id)
    with chat_stream(here, TALKER, max_tokens=6000) as stream:
        stream.read(3)
        drained = here.skulk("node", "drain", name, "--deadline", "1s", "--yes")
        assert drained.returncode == 0, drained.stderr
        stream.read_to_end()
    assert stream.error is not None
    assert stream.error["skulk_code"] == "engine.gone"
    assert "time that its requests had to end" in stream.error["message"]
    assert "alive, drained" in here.skulk("nodes").stdout
    there.restart()
    wait_until(
        lambda: eligibility(there, there) == "drained", timeout_s=allowed_s(20), what="drained yet"
    )
    back = there.skulk("node", "undrain", name)
    assert back.returncode == 0, back.stderr
    wait_until(
        lambda: eligibility(here, there) == "eligible", timeout_s=allowed_s(10), what="undrained"
    )
    place_on(there)
    assert answer_text(ask(there, TALKER, max_tokens=5))
