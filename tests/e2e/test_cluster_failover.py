"""Real daemons on loopback, and what clients notice when one of them ends, stops or is cut off."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.chat_client import ChatStream, answer_text, ask, chat_stream
from tests.support.cluster import (
    Cluster,
    agreed_master,
    cluster_of,
    running_cluster,
    stopped_process,
)
from tests.support.daemon import Daemon, wait_until
from tests.support.patience import allowed_s
from tests.support.scripted_models import MODEL, add_scripted_model, add_slow_talker

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
N_STREAMS: Final = 8
N_WORDS: Final = 120
FREED_S: Final = 3.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path) as formed:
        yield formed


def node_id(daemon: Daemon) -> str:
    return str(cluster_of(daemon)["node_id"])


def place_on(host: Daemon, model_id: str = MODEL) -> str:
    """Place a model of a node's folder on that node, and wait until that serves it."""
    instance_id = host.place(model_id, nodes=[node_id(host)])
    host.wait_phase(instance_id)
    return instance_id


def wait_served(daemon: Daemon, instance_id: str) -> None:
    daemon.wait_phase(instance_id)


def in_flight(daemon: Daemon, instance_id: str) -> int:
    """How many requests the worker of an instance serves, as a node shows it."""
    return int(daemon.instance(instance_id)["inFlight"])


def key_names(daemon: Daemon) -> set[str]:
    return {item["name"] for item in daemon.http.get("/v1/keys").json()["items"]}


class Reader:
    """Reads a stream to its end in a thread of its own."""

    def __init__(self, stream: ChatStream) -> None:
        self.stream = stream
        self.longest_gap_s = 0.0
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        last_s = time.monotonic()
        try:
            while not self.stream.is_done and self.stream.error is None:
                self.stream.read(1)
                now_s = time.monotonic()
                self.longest_gap_s = max(self.longest_gap_s, now_s - last_s)
                last_s = now_s
        except AssertionError:
            pass  # the stream has ended; what it was is in `stream`
        except httpx.TransportError as error:
            self.failure = error

    def join(self) -> None:
        self._thread.join(timeout=60)
        assert not self._thread.is_alive(), "the stream does not end"


def test_killing_the_master_during_eight_streams_loses_no_frame(cluster: Cluster) -> None:
    master = cluster.by_id(cluster.wait_agreed())
    host, door = (node for node in cluster if node is not master)
    add_slow_talker(host.models_dir, token_delay_ms=25)
    instance_id = place_on(host)
    wait_served(door, instance_id)
    with ExitStack() as stack:
        readers = [
            Reader(stack.enter_context(chat_stream(door, MODEL, max_tokens=N_WORDS)))
            for _ in range(N_STREAMS)
        ]
        wait_until(
            lambda: all(reader.stream.n_deltas > 5 for reader in readers), timeout_s=20, what="talk"
        )
        master.kill()
        for reader in readers:
            reader.join()
        assert cluster.wait_agreed((host, door)) in {node_id(host), node_id(door)}
    whole = answer_text(ask(door, MODEL, max_tokens=N_WORDS))
    for reader in readers:
        assert reader.failure is None
        assert reader.stream.error is None
        assert reader.stream.is_done
        assert reader.stream.text == whole, "every word came, once and in its place"


def test_a_stopped_master_is_replaced_and_its_late_events_are_rejected(cluster: Cluster) -> None:
    old = cluster.wait_agreed()
    master = cluster.by_id(old)
    others = tuple(node for node in cluster if node is not master)
    answers: list[httpx.Response] = []

    def make_key() -> None:
        answers.append(master.http.post("/v1/keys", json={"name": "late"}))

    with stopped_process(master):
        # Queued in the master's socket: it is the first thing that it finds when it goes on.
        late = threading.Thread(target=make_key)
        late.start()
        wait_until(
            lambda: agreed_master(others) not in {None, old}, timeout_s=15, what="it is replaced"
        )
        new = agreed_master(others)
        made = others[0].http.post("/v1/keys", json={"name": "meanwhile"})
        assert made.is_success, made.text
        time.sleep(10)
    late.join(timeout=30)
    assert cluster.wait_agreed() == new, "the master that was stopped does not take over again"
    # What the old master was asked last is decided by the new one, or refused: on all nodes alike.
    (answer,) = answers
    expected = {"meanwhile", "late"} if answer.is_success else {"meanwhile"}
    wait_until(
        lambda: all(key_names(node) == expected for node in cluster),
        timeout_s=10,
        what=f"all have {expected} after {answer.text}",
    )


def test_killing_the_worker_ends_its_streams_with_an_error(cluster: Cluster) -> None:
    door, host, _ = cluster
    add_slow_talker(host.models_dir)
    wait_served(door, place_on(host))
    with chat_stream(door, MODEL, max_tokens=2000) as stream:
        stream.read(5)
        killed_s = time.monotonic()
        host.kill()
        stream.read_to_end()
    assert stream.error is not None
    assert not stream.is_done, "a stream that was cut is never shown as complete"
    assert time.monotonic() - killed_s < allowed_s(5)


def test_killing_the_api_node_frees_its_slots(cluster: Cluster) -> None:
    watcher, host, door = cluster
    add_slow_talker(host.models_dir)
    instance_id = place_on(host)
    wait_served(door, instance_id)
    with ExitStack() as stack:
        streams = [stack.enter_context(chat_stream(door, MODEL, max_tokens=2000)) for _ in range(3)]
        for stream in streams:
            stream.read(2)
        wait_until(lambda: in_flight(host, instance_id) == 3, timeout_s=20, what="three served")
        killed_s = time.monotonic()
        door.kill()
        wait_until(lambda: in_flight(host, instance_id) == 0, timeout_s=10, what="slots freed")
        assert time.monotonic() - killed_s < allowed_s(FREED_S + 1.5), (
            "three seconds, and a reading's age"
        )
    del watcher


def test_a_cancel_reaches_its_request_through_any_node(cluster: Cluster) -> None:
    door, host, other = cluster
    add_slow_talker(host.models_dir)
    instance_id = place_on(host)
    wait_served(door, instance_id)
    with chat_stream(door, MODEL, max_tokens=4000) as stream:
        stream.read(3)
        cancelled = other.http.post(f"/v1/cancel/{stream.command_id}")
        assert cancelled.is_success, cancelled.text
        stream.read_to_end()
    assert stream.error is not None
    assert stream.error["code"] == "request.cancelled" or "cancel" in str(stream.error)
    wait_until(lambda: in_flight(host, instance_id) == 0, timeout_s=5, what="the slot is free")


def test_b30_an_instance_on_a_node_that_is_away_answers_503_and_recovers(cluster: Cluster) -> None:
    door, host, _ = cluster
    add_scripted_model(host.models_dir)
    wait_served(door, place_on(host))
    assert ask(door, MODEL).is_success
    with stopped_process(host):
        wait_until(lambda: ask(door, MODEL).status_code == 503, timeout_s=15, what="503")
        answer = ask(door, MODEL)
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        assert "kitchen" in answer.text, "it says which node is away"
        assert ask(door, "scripted/nobody-knows").status_code == 404
    wait_until(lambda: ask(door, MODEL).is_success, timeout_s=30, what="it recovers alone")


def test_b31_a_stream_whose_node_stops_is_never_ended_well(cluster: Cluster) -> None:
    door, host, _ = cluster
    add_slow_talker(host.models_dir)
    wait_served(door, place_on(host))
    outcome: list[Any] = []

    def ask_whole() -> None:
        try:
            outcome.append(ask(door, MODEL, max_tokens=400).status_code)
        except httpx.TransportError as error:
            outcome.append(error)

    whole = threading.Thread(target=ask_whole)
    whole.start()
    with chat_stream(door, MODEL, max_tokens=4000) as stream:
        stream.read(5)
        with stopped_process(host):
            stream.read_to_end()
    whole.join(timeout=30)
    assert stream.error is not None
    assert not stream.is_done
    (seen,) = outcome
    assert isinstance(seen, httpx.TransportError) or seen in {502, 503}


def test_b01_a_node_that_was_killed_leaves_the_plans_and_returns_as_one(cluster: Cluster) -> None:
    door, _, gone = cluster
    add_scripted_model(door.models_dir)
    gone_id = node_id(gone)

    def planned() -> set[str]:
        previews = door.http.get("/instance/previews", params={"model_id": MODEL}).json()
        return {shard["nodeId"] for plan in previews["plans"] for shard in plan["shards"]}

    wait_until(lambda: gone_id in planned(), timeout_s=15, what="the node is planned onto")
    for _ in range(3):
        gone.kill()
        wait_until(
            lambda: gone_id not in planned(), timeout_s=30, what="it is planned onto no more"
        )
        gone.start()
        cluster.wait_agreed()
        ids = [member["node_id"] for member in cluster_of(door)["members"]]
        assert ids.count(gone_id) == 1
        assert len(ids) == 3, "a restart is no new identity"


def test_b05_each_node_is_reached_at_its_own_api_port(cluster: Cluster) -> None:
    seen = {member["node_id"]: member["api_port"] for member in cluster_of(cluster[0])["members"]}
    assert seen == {node_id(node): node.port for node in cluster}
    assert 52415 not in seen.values()


def test_b09_a_prompt_of_two_megabytes_reaches_the_other_node_or_is_refused(
    cluster: Cluster,
) -> None:
    door, host, _ = cluster
    add_scripted_model(host.models_dir, context_length=1 << 22)
    instance_id = host.place(MODEL, nodes=[node_id(host)], context_tokens=1 << 22)
    host.wait_phase(instance_id)
    wait_served(door, instance_id)
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "word " * (2 << 20 // 5)}],
        "max_tokens": 8,
    }
    answer = door.http.post("/v1/chat/completions", json=body)
    assert answer.status_code in {200, 400, 413}, answer.text
    assert ask(door, MODEL).is_success, "other requests still pass"
    cluster.wait_agreed()
