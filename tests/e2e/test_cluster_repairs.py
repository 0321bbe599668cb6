"""Real nodes of which one is killed while it runs a model."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.chat_client import answer_text, ask, chat_stream
from tests.support.cluster import Cluster, cluster_of, running_cluster
from tests.support.daemon import Daemon, wait_until
from tests.support.patience import allowed_s
from tests.support.scripted_models import add_slow_talker

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
TALKER = "scripted/talker"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path) as nodes:
        for node in nodes:
            add_slow_talker(node.models_dir, TALKER, token_delay_ms=20)
        yield nodes


def place_of(node: Daemon, instance_id: str) -> str:
    return str(node.instance(instance_id)["plan"]["shards"][0]["nodeId"])


def test_a_model_whose_node_is_killed_is_served_by_another_under_the_same_id(
    cluster: Cluster,
) -> None:
    door = cluster.by_id(cluster.wait_agreed())
    placed = door.skulk(
        "place", TALKER, "--exclude", cluster_of(door)["node_id"], "--lost-after", "1s",
        "--slots", "4", "--json", "--timeout", "60s",
    )  # fmt: skip
    assert placed.returncode == 0, placed.stderr
    (record,) = json.loads(placed.stdout)["items"]
    instance_id = record["instance_id"]
    host = cluster.by_id(record["node_ids"][0])
    other = next(node for node in cluster if node not in {door, host})
    other.wait_phase(instance_id)
    with chat_stream(door, TALKER, max_tokens=2000) as stream:
        stream.read(3)
        host.kill()
        stream.read_to_end()
        assert stream.error is not None, "never as if it were complete"
    gap: list[httpx.Response] = []

    def is_served_again() -> bool:
        answer = ask(door, TALKER, max_tokens=3)
        if answer.status_code != 200:
            gap.append(answer)
        return answer.status_code == 200

    wait_until(is_served_again, timeout_s=allowed_s(30), what="it is served again")
    assert gap, "nothing serves it at once"
    for answer in gap:
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["retry-after"]) >= 0
        assert answer.json()["error"]["code"]
    assert place_of(door, instance_id) == cluster_of(other)["node_id"]
    shown = door.skulk("instance", "show", instance_id)
    assert "repaired" in shown.stdout
    assert "is away" in shown.stdout
    host.start()
    wait_until(
        lambda: bool(cluster.wait_agreed()) and host.instance(instance_id)["phase"] == "ready",
        timeout_s=allowed_s(20),
        what="the killed one is back",
    )
    assert place_of(host, instance_id) == cluster_of(other)["node_id"]
    assert answer_text(ask(host, TALKER, max_tokens=3))
    # Engine builds are tried at a start, and leave by themselves; an engine would stay.
    wait_until(
        lambda: not host.children(),
        timeout_s=allowed_s(20),
        what="what it had is not started again",
    )
