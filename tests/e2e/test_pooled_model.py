"""One model over three real nodes: a driver and two donors that lend it memory for layers."""

import os
import signal
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.support.chat_client import answer_text, chat_stream
from tests.support.cluster import Cluster, cluster_of, running_cluster
from tests.support.daemon import Daemon, wait_until
from tests.support.demo_model import DEMO_MODEL_ID, demo_model_path, demo_models_dir
from tests.support.patience import allowed_s
from tests.support.pooling_build import pooling_binary

QUESTION: Final = "What is the capital of France? Answer in one sentence."
READY_S: Final = 60.0


@contextmanager
def pooling_cluster(root: Path) -> Generator[Cluster]:
    """Have three nodes with a build that can pool; only the first has the model's files."""
    demo_model_path()
    cpus = os.sched_getaffinity(0)
    # Each daemon takes the machine for its own: engines of several threads each, that wait for one
    # another in loops, would take seconds for a token.
    os.sched_setaffinity(0, {min(cpus)})
    try:
        with running_cluster(
            root,
            3,
            environment={"SKULK_LLAMA_SERVER_BIN": str(pooling_binary())},
            models_dir=demo_models_dir(),
        ) as nodes:
            os.sched_setaffinity(0, cpus)
            yield nodes
    finally:
        os.sched_setaffinity(0, cpus)


def ask(node: Daemon) -> str:
    body = {
        "model": DEMO_MODEL_ID,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 24,
    }
    return answer_text(node.http.post("/v1/chat/completions", json=body, timeout=allowed_s(30)))


def pid_of(instance: dict[str, Any], rank: int) -> int:
    return int(next(one["pid"] for one in instance["runners"] if one["rank"] == rank))


@pytest.mark.skipif(sys.platform != "linux", reason="the build is for Linux")
def test_b32_a_pooled_model_answers_and_a_lost_donor_costs_one_attempt(tmp_path: Path) -> None:
    with pooling_cluster(tmp_path) as cluster:
        nodes = [cluster_of(node)["node_id"] for node in cluster]
        instance_id = cluster[0].place(
            DEMO_MODEL_ID, shape="rpc", min_nodes=3, nodes=nodes, context_tokens=2048, slots=2
        )
        instance = cluster[0].wait_phase(instance_id, timeout_s=READY_S)
        assert {shard["nodeId"] for shard in instance["plan"]["shards"]} == set(nodes)
        for node in cluster:
            assert ask(node) == "The capital of France is Paris."
        driver, donor = pid_of(instance, 0), pid_of(instance, 2)
        command = psutil.Process(donor).cmdline()
        assert command[command.index("--host") + 1] == "127.0.0.1"

        with chat_stream(cluster[0], DEMO_MODEL_ID, max_tokens=1500) as stream:
            stream.read(3)
            os.kill(donor, signal.SIGKILL)
            killed_s = time.monotonic()
            stream.read_to_end()
        assert stream.ended_at_s is not None
        assert stream.ended_at_s - killed_s < allowed_s(5)
        assert stream.error is not None
        assert stream.error["skulk_code"] == "engine.gone"

        wait_until(
            lambda: cluster[0].instance(instance_id)["attempt"] == 2,
            timeout_s=10,
            what="the attempt without its donor ends",
        )
        again = cluster[0].wait_phase(instance_id, timeout_s=READY_S)
        assert {driver, donor}.isdisjoint(runner["pid"] for runner in again["runners"])
        assert not psutil.pid_exists(driver)
        assert ask(cluster[1]) == "The capital of France is Paris."
