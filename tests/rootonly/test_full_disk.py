"""A disk that is full, read-only or too small, under a running node."""

import errno
from collections.abc import Callable
from io import RawIOBase
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.chat_client import answer_text, ask, chat_stream
from tests.support.daemon import Daemon, wait_until
from tests.support.demo_model import DEMO_MODEL_ID
from tests.support.mounts import remount
from tests.support.scripted_models import add_scripted_model, add_slow_talker

MakeDisk = Callable[[str, int], Path]
MakeDaemon = Callable[..., Daemon]
EX_CONFIG: Final = 78


def fill(disk: Path) -> Path:
    """Take every free byte of a file system."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for piece_bytes in (1 << 20, 4096, 1):
            while _has_taken(file, b"x" * piece_bytes):
                pass
    return filler


def _has_taken(file: RawIOBase, piece: bytes) -> bool:
    try:
        file.write(piece)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


def make_keys_until_degraded(daemon: Daemon) -> set[str]:
    """Make keys until one is not durable: the file's last page may have room for some."""
    made: set[str] = set()
    for number in range(100):
        answer = daemon.http.post("/v1/keys", json={"name": f"key {number}"})
        assert answer.status_code == 201, answer.text
        made.add(answer.json()["key_id"])
        if answer.json()["durable"] == "memory":
            return made
    pytest.fail("the disk is full and the journal still durable")


def health(daemon: Daemon) -> dict[str, Any]:
    document: dict[str, Any] = daemon.http.get("/health").json()
    return document


def reasons(daemon: Daemon) -> set[str]:
    return {reason["code"] for reason in health(daemon)["reasons"]}


def test_a_full_home_costs_durability_only_and_heals_by_itself(
    small_disk: MakeDisk, make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    disk = small_disk("small", 16)
    daemon = make_daemon(disk, models_dir=tmp_path / "models")
    talker = add_slow_talker(daemon.models_dir, "scripted/talker")
    other = add_scripted_model(daemon.models_dir, "scripted/other")
    daemon.start()
    talker_id = daemon.place(talker)
    daemon.wait_phase(talker_id)
    assert health(daemon)["durable"] is True
    with chat_stream(daemon, talker, max_tokens=4000) as stream:
        stream.read(2)
        filler = fill(disk)
        key_ids = make_keys_until_degraded(daemon)
        wait_until(lambda: health(daemon)["durable"] is False, timeout_s=5, what="degraded")
        assert "journal.not_durable" in reasons(daemon)
        (resources,) = daemon.http.get("/state").json()["nodeResources"].values()
        assert resources["journalDurable"] is False
        assert resources["journalUnwritten"] >= 1
        stream.read(5)
        assert answer_text(ask(daemon, talker, max_tokens=2))

        # Nothing is started that could not be found again after a crash; it says so.
        refused_id = daemon.place(other)
        wait_until(
            lambda: daemon.instance(refused_id)["phase"] in {"failed", "ready"},
            timeout_s=10,
            what="an end",
        )
        document = daemon.instance(refused_id)
        if document["phase"] == "failed":
            assert document["failure"]["error"]["code"] == "runner.spawn_failed"
            assert "space" in document["failure"]["error"]["remediation"]
        assert daemon.process.poll() is None

        filler.unlink()
        wait_until(lambda: health(daemon)["durable"] is True, timeout_s=15, what="healed")
        assert "journal.not_durable" not in reasons(daemon)
        stream.read(2)
    if document["phase"] == "failed":
        assert daemon.http.post(f"/instance/{refused_id}/retry").status_code == 202
        daemon.wait_phase(refused_id)

    daemon.kill()
    daemon.start()
    keys = daemon.http.get("/v1/keys").json()["items"]
    assert {key["key_id"] for key in keys} == key_ids, "what was counted is written since"
    daemon.wait_phase(talker_id)
    daemon.wait_phase(refused_id)


def test_a_full_home_is_refused_at_start_by_name_and_nothing_is_lost(
    small_disk: MakeDisk, make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    disk = small_disk("small", 16)
    daemon = make_daemon(disk, models_dir=tmp_path / "models")
    model = add_scripted_model(daemon.models_dir)
    daemon.start()
    instance_id = daemon.place(model)
    daemon.wait_phase(instance_id)
    daemon.kill()
    filler = fill(disk)
    daemon.spawn()
    assert daemon.wait_exit() == EX_CONFIG, daemon.log_tail()
    assert "[config.home_unusable]" in daemon.log_tail()
    assert "No space left on device" in daemon.log_tail()
    assert "Traceback" not in daemon.log_tail()
    filler.unlink()
    daemon.start()
    assert list(daemon.http.get("/state").json()["instances"]) == [instance_id]


def test_b14_b19_what_does_not_fit_on_the_disk_is_refused_before_its_first_byte(
    small_disk: MakeDisk, make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    models = small_disk("models", 64)
    daemon = make_daemon(tmp_path / "node", models_dir=models)
    daemon.root.mkdir()
    # Whoever asks the index all the same gets another answer.
    daemon.environment["PIP_INDEX_URL"] = "http://127.0.0.1:9/"
    daemon.start()
    answer = daemon.http.post("/place_instance", json={"model_id": DEMO_MODEL_ID})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["code"] == "placement.no_space"
    assert error["details"] == {} or error["details"]["missing_bytes"] > 0
    assert "too little" in error["message"]
    previews = daemon.http.get(f"/instance/previews?model_id={DEMO_MODEL_ID}").json()
    assert previews["plans"] == []
    assert [item["error"]["code"] for item in previews["refusals"]] == ["placement.no_space"]

    assert daemon.http.post(f"/store/models/{DEMO_MODEL_ID}/download").status_code == 202

    def download() -> dict[str, Any]:
        status: dict[str, Any] = daemon.http.get(
            f"/store/models/{DEMO_MODEL_ID}/download/status"
        ).json()
        return status

    wait_until(lambda: download()["state"] == "failed", timeout_s=10, what="refused")
    assert download()["error"]["code"] == "store.no_space"
    assert download()["done_bytes"] == 0
    assert daemon.http.get("/store/storage").json()["staging_bytes"] == 0
    assert "disk.full" in reasons(daemon)
    pulled = daemon.skulk("models", "pull", DEMO_MODEL_ID)
    assert pulled.returncode == 4, pulled.stderr


def test_a_read_only_home_is_refused(
    small_disk: MakeDisk, make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    disk = small_disk("small", 16)
    daemon = make_daemon(disk, models_dir=tmp_path / "models")
    daemon.start()
    assert daemon.stop() == 0
    remount(disk, "ro")
    daemon.spawn()
    assert daemon.wait_exit() == EX_CONFIG
    assert "[config.home_unusable]" in daemon.log_tail()
    assert "Read-only file system" in daemon.log_tail()
    remount(disk, "rw")
    daemon.start()
