"""A model that is loaded when somebody asks for it, on the other one of two real nodes."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.chat_client import answer_text, ask, chat_stream
from tests.support.cluster import Cluster, cluster_of, running_cluster
from tests.support.daemon import Daemon, wait_until
from tests.support.patience import allowed_s
from tests.support.scripted_models import add_slow_talker

TALKER = "scripted/talker"
TTL_S = 2
N_TOKENS = 300
"""Of a stream that takes longer than an idle model stays loaded: some 3 s."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path, 2) as nodes:
        for node in nodes:
            add_slow_talker(node.models_dir, TALKER, token_delay_ms=10)
        yield nodes


def place_on_demand(asked: Daemon, node: Daemon) -> str:
    name = cluster_of(node)["name"]
    placed = asked.skulk(
        "place", TALKER, "--on-demand", "--ttl", f"{TTL_S}s", "--nodes", name, "--slots", "4",
        "--context", "8192", "--json",
    )  # fmt: skip
    assert placed.returncode == 0, placed.stderr
    (item,) = json.loads(placed.stdout)["items"]
    return str(item["instance_id"])


def wait_asleep(node: Daemon, instance_id: str) -> None:
    node.wait_phase(instance_id, "asleep", timeout_s=allowed_s(TTL_S + 8))
    wait_until(lambda: not node.children(), timeout_s=8, what="no engine left")


def test_a_model_is_loaded_once_for_all_who_ask_and_unloaded_when_nobody_has_for_its_time(
    cluster: Cluster,
) -> None:
    here, there = cluster
    instance_id = place_on_demand(here, there)
    wait_asleep(there, instance_id)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, node, TALKER, max_tokens=3) for node in cluster for _ in (1, 2)]
        answers = [answer_text(one.result()) for one in asked]
    assert all(answers)
    assert len(there.children()) == 1
    assert there.instance(instance_id)["attempt"] == 1
    with chat_stream(here, TALKER, max_tokens=N_TOKENS) as stream:
        stream.read_to_end()
    assert stream.error is None
    assert stream.is_done
    assert stream.n_deltas == N_TOKENS
    wait_asleep(there, instance_id)
    assert here.http.get(f"/instance/{instance_id}").json()["phase"] == "asleep"


def test_what_is_pinned_stays_loaded_and_is_still_both_after_a_restart(cluster: Cluster) -> None:
    here, there = cluster
    instance_id = place_on_demand(here, there)
    assert here.skulk("pin", instance_id).returncode == 0
    assert answer_text(ask(here, TALKER, max_tokens=3))
    time.sleep(TTL_S + 1)
    assert there.instance(instance_id)["phase"] == "ready"
    there.restart()
    there.wait_heard(instance_id)
    assert answer_text(ask(here, TALKER, max_tokens=3))
    shown = here.http.get(f"/instance/{instance_id}").json()
    assert (shown["pinned"], shown["ttlMs"]) == (True, TTL_S * 1000)
    assert here.skulk("unpin", instance_id).returncode == 0
    wait_asleep(there, instance_id)
