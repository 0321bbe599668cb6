"""Hashing an artifact again: what each file is, what that means, and how it is mended."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.errors import StoreError
from skulkd.runtime.clock import SystemClock
from skulkd.runtime.tasks import Tasks
from skulkd.worker.verifications import Verifications
from store.layout import FILES, StoreLayout
from store.manifest import read_manifest
from store.peer_staging import PeerStaging
from store.service import Store, artifact_key
from store.sources.peer import PeerFile
from tests.support.builders import a_node_id
from tests.support.wheel_builder import (
    MEMBER,
    FixedResolver,
    card_of,
    sha256,
    tiny_model,
    write_wheel,
)

SECOND = "llm_tiny/models/second.gguf"
MEMBERS = {MEMBER: tiny_model(200_000), SECOND: tiny_model(100_000)}
CARD = card_of(MEMBERS)
KEY = artifact_key(CARD)


class Bench:
    """A store that holds one model of two files."""

    def __init__(self, folder: Path) -> None:
        self.layout = StoreLayout(folder / "models")
        wheel = write_wheel(folder / "index", MEMBERS)
        self.resolver = FixedResolver(wheel.as_uri(), sha256(wheel.read_bytes()))
        self.store = Store(
            self.layout,
            clock=SystemClock(),
            resolver=self.resolver,
            free_bytes=lambda: 1 << 40,
        )
        asyncio.run(self.store.ensure(CARD))

    def file(self, path: str) -> Path:
        return self.layout.artifact_path(KEY) / FILES / path

    def rot(self, path: str) -> None:
        """Change a bit of a file without a trace in what `stat` says."""
        file = self.file(path)
        known = file.stat()
        file.chmod(0o600)
        with file.open("r+b") as opened:
            opened.seek(50_000)
            opened.write(b"\1")
        os.utime(file, ns=(known.st_atime_ns, known.st_mtime_ns))

    def check(self) -> dict[str, str]:
        check = self.store.open_check(CARD)
        while check.step():
            assert check.done_bytes <= check.total_bytes
        results = check.settle(now_ms=5)
        check.close()
        return {one.path: one.state for one in results}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_files_that_are_well_stay_in_use(bench: Bench) -> None:
    assert bench.check() == {MEMBER: "ok", SECOND: "ok"}
    assert bench.store.locate(CARD) is not None
    assert bench.store.list_damaged() == ()


def test_rot_that_no_date_shows_is_found_and_the_model_is_refused_by_name(bench: Bench) -> None:
    bench.rot(SECOND)
    assert bench.store.locate(CARD) is not None
    assert bench.check() == {MEMBER: "ok", SECOND: "wrong_hash"}
    assert bench.store.locate(CARD) is None
    assert bench.store.offers.held() == ()
    with pytest.raises(StoreError, match=r"second\.gguf \(wrong hash\)") as refused:
        asyncio.run(bench.store.ensure(CARD))
    assert refused.value.code == "store.damaged"
    assert f"skulk models pull {CARD.model_id}" in refused.value.remediation
    assert bench.resolver.n_asked == 1
    (damaged,) = bench.store.list_damaged()
    assert (damaged.model_id, len(damaged.damages.files)) == (CARD.model_id, 1)
    assert bench.file(SECOND).exists(), "nothing is deleted by looking"


def test_what_is_missing_cut_short_or_foreign_is_told_apart(bench: Bench) -> None:
    bench.file(SECOND).unlink()
    bench.file(MEMBER).chmod(0o600)
    os.truncate(bench.file(MEMBER), 10)
    bench.file("llm_tiny/notes.txt").write_text("mine")
    assert bench.check() == {
        MEMBER: "wrong_size",
        SECOND: "missing",
        "llm_tiny/notes.txt": "unexpected",
    }


def test_a_file_that_cannot_be_looked_at_now_is_not_called_damaged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many_open(_root: int, _relative: str, _flags: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr("store.verification.open_beneath", too_many_open)
        with pytest.raises(OSError, match="Too many open files"):
            bench.check()
    assert bench.store.locate(CARD) is not None


def test_a_link_in_place_of_a_file_is_damage(bench: Bench) -> None:
    bench.file(SECOND).unlink()
    bench.file(SECOND).symlink_to("/etc/hostname")
    assert bench.check() == {MEMBER: "ok", SECOND: "missing"}


def test_what_does_not_belong_there_is_no_damage(bench: Bench) -> None:
    bench.file("llm_tiny/notes.txt").write_text("mine")
    assert bench.check()["llm_tiny/notes.txt"] == "unexpected"
    assert bench.store.locate(CARD) is not None


def test_found_well_again_it_counts_again(bench: Bench) -> None:
    content = bench.file(SECOND).read_bytes()
    bench.rot(SECOND)
    bench.check()
    bench.file(SECOND).write_bytes(content)
    assert bench.check() == {MEMBER: "ok", SECOND: "ok"}
    assert bench.store.locate(CARD) is not None


def test_a_repair_keeps_what_is_well_for_the_next_transfer(bench: Bench) -> None:
    bench.rot(SECOND)
    bench.check()
    assert asyncio.run(bench.store.repair(CARD))
    assert not asyncio.run(bench.store.repair(CARD))
    files = tuple(
        PeerFile(path=path, size_bytes=len(content), sha256=sha256(content))
        for path, content in MEMBERS.items()
    )
    staging = PeerStaging(bench.layout, KEY, files)
    staging.open()
    assert [files[index].path for index in staging.missing()] == [SECOND]
    staging.close()


def test_a_pull_after_the_repair_makes_it_whole(bench: Bench) -> None:
    bench.rot(MEMBER)
    bench.check()
    asyncio.run(bench.store.repair(CARD))
    asyncio.run(bench.store.ensure(CARD))
    assert {path: bench.file(path).read_bytes() for path in MEMBERS} == MEMBERS
    assert bench.check() == {MEMBER: "ok", SECOND: "ok"}
    with bench.layout.opened("artifacts", KEY) as directory:
        assert read_manifest(directory) is not None


def test_a_cut_in_the_repair_leaves_nothing_that_passes_for_whole(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.rot(SECOND)
    bench.check()

    def fail(_directory: int) -> None:
        raise OSError(5, "the disk fails")

    monkeypatch.setattr("store.volume.forget_damages", fail)
    with pytest.raises(StoreError):
        asyncio.run(bench.store.repair(CARD))
    assert bench.store.locate(CARD) is None


# ---- As the node runs it ----


def run_verifying(bench: Bench, story: Callable[[Verifications], object]) -> Verifications:
    deaths: list[str] = []

    async def main() -> Verifications:
        tasks = Tasks("test", on_death=lambda told, _: deaths.append(told))
        verifications = Verifications(
            a_node_id(), bench.store.open_check, clock=SystemClock(), tasks=tasks
        )
        verifications.start(CARD)
        story(verifications)
        while verifications.status(CARD.model_id).ended_at_ms is None:
            await asyncio.sleep(0.001)
        await tasks.close(1.0)
        return verifications

    done = asyncio.run(main())
    assert deaths == []
    return done


def test_a_verification_says_of_each_file_what_it_is(bench: Bench) -> None:
    bench.rot(SECOND)
    done = run_verifying(bench, lambda verifications: verifications.start(CARD))
    status = done.status(CARD.model_id)
    assert (status.state, status.done_bytes) == ("damaged", status.total_bytes)
    assert [(one.path, one.state) for one in status.files] == [
        (MEMBER, "ok"),
        (SECOND, "wrong_hash"),
    ]


def test_what_is_not_there_cannot_be_verified(bench: Bench) -> None:
    asyncio.run(bench.store.remove(CARD.model_id))
    status = run_verifying(bench, lambda _: None).status(CARD.model_id)
    assert status.state == "failed"
    assert status.error is not None
    assert status.error.code == "store.not_found"


def test_a_cancelled_verification_says_nothing_of_the_files(bench: Bench) -> None:
    bench.rot(SECOND)

    async def main() -> None:
        tasks = Tasks("test", on_death=lambda told, _: pytest.fail(told))
        verifications = Verifications(
            a_node_id(), bench.store.open_check, clock=SystemClock(), tasks=tasks
        )
        assert verifications.status(CARD.model_id).state == "absent"
        verifications.start(CARD)
        await asyncio.sleep(0)
        assert await verifications.cancel(CARD.model_id)
        assert not await verifications.cancel(CARD.model_id)
        status = verifications.status(CARD.model_id)
        assert (status.state, status.files) == ("cancelled", ())
        await tasks.close(1.0)

    asyncio.run(main())
    assert bench.store.locate(CARD) is not None
