"""A real model in a real engine: fetched, imported in place, cut short, killed."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.chat_client import answer_text, ask, chat_stream
from tests.support.daemon import Daemon, wait_until
from tests.support.demo_model import DEMO_MODEL_ID, demo_model_path, demo_models_dir
from tests.support.gguf_builder import GgufBuilder
from tests.support.shared_daemon import shared_daemon

QUESTION = "What is the capital of France? Answer in one sentence."
SMALL = {"context_tokens": 2048, "slots": 2}
READY_S = 90
"""Three seconds on a machine that does nothing else."""


@pytest.fixture(scope="module")
def weights() -> Path:
    """The real file, shared by all tests and never written."""
    return demo_model_path()


@pytest.fixture(scope="module")
def node(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that has the demo model placed and ready."""
    assert weights.is_relative_to(demo_models_dir())
    with shared_daemon(tmp_path_factory.mktemp("demo"), models_dir=demo_models_dir()) as daemon:
        daemon.wait_phase(daemon.place(DEMO_MODEL_ID, **SMALL), timeout_s=READY_S)
        yield daemon


def question(**fields: object) -> dict[str, object]:
    return {
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 24,
        **fields,
    }


def import_file(daemon: Daemon, path: Path, **body: object) -> httpx.Response:
    return daemon.http.post("/models/import", json={"path": str(path), **body})


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["code"] == code, error
    assert error["remediation"]
    return error


# ---- The placed model ----------------------------------------------------------------------


def test_the_demo_model_knows_the_capital_whole_and_streamed(node: Daemon) -> None:
    whole = answer_text(ask(node, DEMO_MODEL_ID, **question()))
    assert "Paris" in whole
    with chat_stream(node, DEMO_MODEL_ID, **question()) as stream:
        stream.read_to_end()
        assert stream.is_done
        assert stream.text == whole
        assert stream.n_deltas > 3
    chatted = node.skulk("chat", DEMO_MODEL_ID, QUESTION, "--temperature", "0")
    assert chatted.returncode == 0, chatted.stderr
    assert "Paris" in chatted.stdout


def test_a23_usage_counts_the_prompt_and_a25_a_long_prompt_is_refused_whole(node: Daemon) -> None:
    answer = ask(node, DEMO_MODEL_ID, **question())
    usage = answer.json()["usage"]
    assert usage["prompt_tokens"] > 10
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    words = "UNIQUE " + "word " * 4000
    messages = [{"role": "user", "content": words}]
    answer = ask(node, DEMO_MODEL_ID, messages=messages)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert "2048" in answer.json()["error"]["message"]


def test_a43_a_message_is_counted_as_the_real_template_counts_it(node: Daemon) -> None:
    body = {
        "model": DEMO_MODEL_ID,
        "system": "You are terse.",
        "max_tokens": 100_000,  # more than the window: what is left of it is meant
        "temperature": 0,
        "messages": [{"role": "user", "content": QUESTION}],
    }
    message = node.http.post("/v1/messages", json=body).json()
    assert "Paris" in message["content"][0]["text"]
    assert message["stop_reason"] == "end_turn"
    counted = node.http.post("/v1/messages/count_tokens", json=body)
    assert counted.json() == {"input_tokens": message["usage"]["input_tokens"]}
    assert counted.json()["input_tokens"] > 20


def test_a_client_that_leaves_frees_the_slot_of_a_real_engine(node: Daemon) -> None:
    (instance_id,) = node.http.get("/state").json()["instances"]
    for _ in range(4):  # more often than there are slots
        with chat_stream(node, DEMO_MODEL_ID, **question(max_tokens=1000)) as stream:
            stream.read(2)
    wait_until(
        lambda: node.instance(instance_id)["inFlight"] == 0, timeout_s=2, what="none in flight"
    )
    assert "Paris" in answer_text(ask(node, DEMO_MODEL_ID, **question()))


def test_a10_a_real_engine_that_is_killed_ends_its_stream_and_comes_back(node: Daemon) -> None:
    (instance_id,) = node.http.get("/state").json()["instances"]
    before = node.instance(instance_id)
    with chat_stream(node, DEMO_MODEL_ID, **question(max_tokens=1000)) as stream:
        stream.read(2)
        os.kill(before["runners"][0]["pid"], signal.SIGKILL)
        stream.read_to_end()
        assert not stream.is_done
        assert stream.error is not None
        assert stream.error["code"] == "engine.gone"
    wait_until(
        lambda: node.instance(instance_id)["attempt"] == before["attempt"] + 1,
        timeout_s=2,
        what="relaunched",
    )
    node.wait_phase(instance_id, timeout_s=READY_S)
    assert "Paris" in answer_text(ask(node, DEMO_MODEL_ID, **question()))


# ---- Importing -----------------------------------------------------------------------------


def test_a_file_in_place_is_imported_placed_asked_and_outlives_a_restart(
    weights: Path, daemon: Daemon
) -> None:
    before = weights.stat()
    imported = daemon.skulk("models", "import", str(weights), "--id", "mine/smol")
    assert imported.returncode == 0, imported.stderr
    entry = daemon.http.get("/v1/models/mine/smol").json()
    assert entry["installed"] is True
    assert entry["storage_size_bytes"] == before.st_size
    assert entry["context_length"] == 8192
    stored = daemon.http.get("/store/storage").json()["items"]
    assert [(item["model_id"], item["linked"], item["path"]) for item in stored] == [
        ("mine/smol", True, str(weights))
    ]
    instance_id = daemon.place("mine/smol", **SMALL)
    assert daemon.wait_phase(instance_id, timeout_s=READY_S)["plan"]["downloadBytes"] == 0
    assert "Paris" in answer_text(ask(daemon, "mine/smol", **question()))

    engines = daemon.children()
    daemon.kill()
    wait_until(
        lambda: not any(engine.is_running() for engine in engines), timeout_s=2, what="engines gone"
    )
    daemon.start()
    daemon.wait_phase(instance_id, timeout_s=READY_S)
    assert "Paris" in answer_text(ask(daemon, "mine/smol", **question()))

    assert daemon.http.delete("/store/models/mine/smol").status_code == 409, "it is placed"
    assert daemon.http.delete(f"/instance/{instance_id}").status_code == 202
    wait_until(
        lambda: daemon.http.get(f"/instance/{instance_id}").status_code == 404,
        timeout_s=8,
        what="stopped",
    )
    removed = daemon.http.delete("/store/models/mine/smol")
    assert removed.status_code == 200, removed.text
    assert removed.json()["freed_bytes"] == 0
    after = weights.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_files_that_are_no_model_are_refused_by_kind(
    weights: Path, daemon: Daemon, tmp_path: Path
) -> None:
    with weights.open("rb") as file:
        head = file.read(8 << 20)
    lying = bytearray(head[:4096])
    lying[8:16] = (1 << 62).to_bytes(8, "little")  # tensors that no file could hold
    cases = {
        "text.gguf": (b"this is no model\n" * 100, "store.gguf_invalid"),
        "empty.gguf": (b"", "store.gguf_truncated"),
        "magic.gguf": (b"GGUF", "store.gguf_truncated"),
        "header.gguf": (head[:1000], "store.gguf_truncated"),
        "short.gguf": (head, "store.gguf_truncated"),
        "lying.gguf": (bytes(lying), "store.gguf_invalid"),
        "zeros.gguf": (bytes(1 << 16), "store.gguf_invalid"),
    }
    for name, (content, code) in cases.items():
        path = tmp_path / name
        path.write_bytes(content)
        error = refused(import_file(daemon, path), 400, code)
        assert name in error["message"], error
        command = daemon.skulk("models", "import", str(path))
        assert command.returncode != 0
        assert name in command.stderr
    (tmp_path / "pipe.gguf").mkdir()
    assert import_file(daemon, tmp_path / "pipe.gguf").status_code == 400
    os.mkfifo(tmp_path / "fifo.gguf")
    assert import_file(daemon, tmp_path / "fifo.gguf").status_code == 400
    assert import_file(daemon, Path("/dev/zero")).status_code == 400
    refused(import_file(daemon, tmp_path / "missing.gguf"), 404, "store.not_found")
    refused(daemon.http.post("/models/import", json={"path": "here"}), 400, "request.invalid")
    refused(import_file(daemon, weights, model_id="../../etc"), 400, "request.invalid")
    models = {item["id"] for item in daemon.http.get("/v1/models").json()["data"]}
    assert models == {DEMO_MODEL_ID}


def test_a_header_that_promises_more_than_the_engine_finds_fails_with_its_words(
    daemon: Daemon, tmp_path: Path
) -> None:
    path = GgufBuilder().write(tmp_path / "tiny.gguf")
    assert import_file(daemon, path, model_id="tiny").status_code == 201
    instance_id = daemon.place("tiny")
    wait_until(
        lambda: daemon.instance(instance_id)["phase"] == "failed", timeout_s=30, what="failed"
    )
    failure = daemon.instance(instance_id)["failure"]
    assert failure["final"] is True
    assert failure["error"]["code"] == "runner.exited"
    assert failure["logTail"], failure
    answer = ask(daemon, "tiny")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "placement.failed"
    assert daemon.http.get("/health").is_success


def test_a_file_that_changed_after_its_import_is_not_placed(
    weights: Path, daemon: Daemon, tmp_path: Path
) -> None:
    path = tmp_path / "mine.gguf"
    shutil.copy(weights, path)
    assert import_file(daemon, path, model_id="mine").status_code == 201
    with path.open("r+b") as file:
        file.truncate(1 << 20)
    answer = daemon.http.post("/place_instance", json={"model_id": "mine", **SMALL})
    error = refused(answer, 400, "placement.no_node")
    assert str(path) in error["message"]
    assert "import it again" in error["remediation"]
    entry = daemon.http.get("/v1/models/mine").json()
    assert entry["installed"] is False


def test_a_file_that_vanished_under_its_engine_costs_the_relaunch_and_says_so(
    weights: Path, make_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = make_daemon()
    daemon.start()
    path = tmp_path / "mine.gguf"
    shutil.copy(weights, path)
    assert import_file(daemon, path, model_id="mine").status_code == 201
    instance_id = daemon.place("mine", **SMALL)
    daemon.wait_phase(instance_id, timeout_s=READY_S)
    path.unlink()
    assert "Paris" in answer_text(ask(daemon, "mine", **question())), "it is in memory"
    os.kill(daemon.instance(instance_id)["runners"][0]["pid"], signal.SIGKILL)
    wait_until(
        lambda: daemon.instance(instance_id)["phase"] == "failed", timeout_s=10, what="failed"
    )
    failure = daemon.instance(instance_id)["failure"]
    assert failure["error"]["code"] == "store.incomplete"
    assert str(path) in failure["error"]["message"]
