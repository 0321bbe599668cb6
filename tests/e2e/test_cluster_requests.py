"""Requests of real nodes for models on other nodes, and what is left when one of them is killed."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chat_client import answer_text, ask, chat_stream
from tests.support.cluster import Cluster, cluster_of, running_cluster, stopped_process
from tests.support.daemon import Daemon, wait_until
from tests.support.patience import allowed_s
from tests.support.prometheus_text import ReadFamily, read_metrics
from tests.support.scripted_models import add_scripted_model, add_slow_talker

QUICK = "scripted/quick"
TALKER = "scripted/talker"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes; both models are on the second."""
    with running_cluster(tmp_path_factory.mktemp("requests")) as nodes:
        place_both(nodes)
        yield nodes


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes of which the test kills some."""
    with running_cluster(tmp_path) as nodes:
        place_both(nodes)
        yield nodes


def place_both(nodes: Cluster) -> None:
    """Place both models on the second node, with slots for ten, and wait until all know."""
    server = nodes[1]
    add_scripted_model(server.models_dir, QUICK, reply="A short answer.")
    add_slow_talker(server.models_dir, TALKER, token_delay_ms=10)
    where = [cluster_of(server)["node_id"]]
    for model in (QUICK, TALKER):
        instance_id = server.place(model, nodes=where, slots=10, context_tokens=8192)
        for node in nodes:
            node.wait_phase(instance_id)


def instance_of(node: Daemon, model: str) -> str:
    """Find a model's instance as a node sees it."""
    instances = node.http.get("/state").json()["instances"]
    return next(key for key, value in instances.items() if value["modelId"] == model)


def in_flight(node: Daemon, model: str = TALKER) -> int:
    """Say how many requests a model's instance serves, as a node is told of it."""
    return int(node.instance(instance_of(node, model))["inFlight"] or 0)


def wait_in_flight(node: Daemon, count: int, *, timeout_s: float) -> None:
    wait_until(
        lambda: in_flight(node) == count,
        timeout_s=timeout_s,
        what=f"{count} in flight, as {node.root.name} sees it",
    )


def kill(node: Daemon) -> None:
    os.kill(node.pid, signal.SIGKILL)
    node.process.wait()


def test_every_node_answers_for_a_model_that_one_has(cluster: Cluster) -> None:
    texts = {answer_text(ask(node, QUICK)) for node in cluster}
    assert len(texts) == 1
    assert texts != {""}


def test_a_stream_from_another_node_is_the_same_as_from_its_own(cluster: Cluster) -> None:
    texts: list[str] = []
    for node in cluster:
        with chat_stream(node, TALKER, max_tokens=50) as stream:
            stream.read_to_end()
        assert stream.is_done
        texts.append(stream.text)
    assert texts[0] == texts[1] == texts[2]


def test_b09_a_prompt_of_2_mb_is_served_or_refused_and_the_nodes_go_on(cluster: Cluster) -> None:
    answer = cluster[0].http.post(
        "/v1/chat/completions",
        json={"model": QUICK, "messages": [{"role": "user", "content": "word " * 400_000}]},
    )
    assert answer.status_code in {200, 400, 413}, answer.text
    assert answer_text(ask(cluster[0], QUICK))


def test_metrics_of_a_request_are_its_takers_and_of_its_slot_its_servers(cluster: Cluster) -> None:
    taker, server = cluster[0], cluster[1]
    before = metrics_of(taker)["skulk_inference_requests_total"].samples
    answer = taker.http.post(
        "/bench/chat/completions",
        json={"model": QUICK, "messages": [{"role": "user", "content": "hi"}]},
    ).json()
    assert answer["generation_stats"]["generation_tokens"] > 0
    after = metrics_of(taker)
    counted = after["skulk_inference_requests_total"]
    assert sum(counted.samples.values()) == sum(before.values()) + 1
    assert after["skulk_queue_wait_seconds"].samples == {}
    assert after["skulk_instance_slots"].samples == {}
    assert after["skulk_cluster_nodes"].value(liveness="alive") == len(list(cluster))
    # The server's, through the taker.
    of_server = metrics_of(taker, node=server.root.name)
    assert of_server["skulk_queue_wait_seconds"].value("_count", model=QUICK) >= 1
    assert of_server["skulk_instance_slots"].value(model=QUICK) == 10
    assert of_server["skulk_engine_info"].value(engine="scripted") == 1


def metrics_of(asked: Daemon, **query: str) -> dict[str, ReadFamily]:
    reply = asked.http.get("/metrics", params=query)
    assert reply.status_code == 200, reply.text
    return read_metrics(reply.text)


def test_all_nodes_are_told_what_an_instance_does(cluster: Cluster) -> None:
    with chat_stream(cluster[0], TALKER, max_tokens=5000) as stream:
        stream.read(3)
        for node in cluster:
            wait_in_flight(node, 1, timeout_s=5)
    for node in cluster:
        wait_in_flight(node, 0, timeout_s=5)


@pytest.mark.parametrize("through", [0, 1, 2], ids=["taker", "server", "other"])
def test_a_request_is_cancelled_through_any_node(cluster: Cluster, through: int) -> None:
    with chat_stream(cluster[0], TALKER, max_tokens=5000) as stream:
        stream.read(3)
        answer = cluster[through].http.post(f"/v1/cancel/{stream.command_id}")
        assert answer.is_success, answer.text
        stream.read_to_end()
    assert stream.error is not None
    assert stream.error["code"] == "request.cancelled"
    wait_in_flight(cluster[1], 0, timeout_s=2)
    gone = cluster[through].http.post(f"/v1/cancel/{stream.command_id}")
    assert gone.status_code == 404


def test_b31_the_death_of_the_serving_node_ends_a_stream_with_an_error(doomed: Cluster) -> None:
    with chat_stream(doomed[0], TALKER, max_tokens=5000) as stream:
        stream.read(3)
        kill(doomed[1])
        died_s = time.monotonic()
        stream.read_to_end()
    assert time.monotonic() - died_s < allowed_s(5)
    assert not stream.is_done
    assert stream.error is not None
    assert stream.error["code"] == "cluster.link_lost"
    answer = ask(doomed[0], TALKER)
    assert answer.status_code == 503, answer.text
    assert answer.headers["retry-after"]


def test_b30_a_node_that_stands_still_is_503_for_a_while_and_404_never(doomed: Cluster) -> None:
    with stopped_process(doomed[1]):
        # Once before it is missed, once after.
        for _ in range(2):
            answer = ask(doomed[0], QUICK)
            assert answer.status_code == 503, answer.text
            assert answer.headers["retry-after"]
        assert ask(doomed[0], "no/such").status_code == 404
    wait_until(
        lambda: ask(doomed[0], QUICK).is_success, timeout_s=30, what="it is served again by itself"
    )


def test_the_death_of_the_asked_node_frees_its_slots_within_three_seconds(
    doomed: Cluster,
) -> None:
    with chat_stream(doomed[0], TALKER, max_tokens=5000) as stream:
        stream.read(3)
        wait_in_flight(doomed[1], 1, timeout_s=5)
        kill(doomed[0])
        wait_in_flight(doomed[1], 0, timeout_s=3)
    assert answer_text(ask(doomed[2], QUICK))
