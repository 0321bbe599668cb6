"""Clusters that are saved as read-only or protected, and SKULK_READONLY: what may be changed."""

import json
from pathlib import Path

import pytest

from tests.support.builders import MODEL
from tests.support.command_line import Ran, skulk
from tests.support.fake_node import FakeNode

PERSON = frozenset({"stdin", "stderr"})
STOP = ("stop", MODEL, "--no-wait")


class Saved:
    """A saved cluster of one node."""

    def __init__(self, config_dir: Path, node: FakeNode, flag: str) -> None:
        self.config_dir = config_dir
        text = f'[profile.home]\nseeds = ["{node.url}"]\n{flag} = true\n'
        (config_dir / "config.toml").write_text(text, encoding="utf-8")

    def skulk(self, *arguments: str, answer: str = "", is_asked: bool = False) -> Ran:
        return skulk(
            *("--cluster", "home"),
            *arguments,
            stdin=answer,
            terminals=PERSON if is_asked else frozenset(),
            environment={"SKULK_CONFIG_DIR": str(self.config_dir)},
        )


def changes(node: FakeNode) -> list[str]:
    return [one.method for one in node.seen if one.method != "GET"]


def test_a_readonly_cluster_is_looked_at_and_never_changed(node: FakeNode, tmp_path: Path) -> None:
    saved = Saved(tmp_path, node, "readonly")
    assert saved.skulk("ps").code == 0
    ran = saved.skulk(*STOP, "--json")
    assert (ran.code, ran.out, changes(node)) == (4, "", [])
    error = json.loads(ran.err)["error"]
    assert error["code"] == "client.readonly"
    assert "home is saved as read-only" in error["message"]
    assert saved.skulk(*STOP, "--dry-run").code == 0


@pytest.mark.parametrize(
    "line",
    [
        STOP,
        ("place", MODEL),
        ("keys", "create", "ci"),
        ("models", "rm", MODEL, "--yes"),
        ("config", "set", "priority=60"),
        ("cluster", "policy", "quorum"),
    ],
)
def test_a_variable_keeps_any_change_from_being_sent(line: tuple[str, ...], node: FakeNode) -> None:
    ran = skulk(*line, node=node.url, environment={"SKULK_READONLY": "1"})
    assert (ran.code, ran.out, changes(node)) == (4, "", [])
    assert ran.err.startswith("error: nothing is changed: SKULK_READONLY is set\n")


def test_info_says_what_may_be_changed_and_of_which_cluster(node: FakeNode, tmp_path: Path) -> None:
    saved = Saved(tmp_path, node, "protect")
    (item,) = json.loads(saved.skulk("info", "--json").out)["items"]
    assert (item["cluster"], item["protect"], item["readonly"]) == ("home", True, False)
    assert "asked about: protected" in saved.skulk("info").out
    told = skulk("info", node=node.url, environment={"SKULK_READONLY": "1"}).out
    assert "refused: read-only" in told


def test_asking_a_model_changes_nothing_that_is_protected(node: FakeNode, tmp_path: Path) -> None:
    assert Saved(tmp_path, node, "readonly").skulk("chat", MODEL, "What?").code == 0


def test_what_only_asks_the_node_what_it_would_do_is_allowed(
    node: FakeNode, tmp_path: Path
) -> None:
    saved = Saved(tmp_path, node, "readonly")
    assert saved.skulk("config", "set", "priority=60", "--dry-run").code == 0
    assert saved.skulk("node", "restart", "studio", "--dry-run").code == 0


def test_a_change_of_a_protected_cluster_is_asked_about_once(
    node: FakeNode, tmp_path: Path
) -> None:
    saved = Saved(tmp_path, node, "protect")
    refused = saved.skulk(*STOP, answer="n\n", is_asked=True)
    assert (refused.code, changes(node)) == (2, [])
    assert "Change the protected cluster home? [y/N]" in refused.err
    agreed = saved.skulk(*STOP, answer="y\n", is_asked=True)
    assert (agreed.code, changes(node)) == (0, ["DELETE"])


def test_what_has_its_own_question_is_not_asked_about_twice(node: FakeNode, tmp_path: Path) -> None:
    saved = Saved(tmp_path, node, "protect")
    ran = saved.skulk("models", "rm", MODEL, answer="y\n", is_asked=True)
    assert (ran.code, ran.err.count("[y/N]")) == (0, 1)
    assert saved.skulk("keys", "revoke", "laptop", "--yes").code == 0


def test_where_nobody_can_be_asked_a_protected_cluster_is_not_changed(
    node: FakeNode, tmp_path: Path
) -> None:
    ran = Saved(tmp_path, node, "protect").skulk(*STOP)
    assert (ran.code, changes(node)) == (2, [])
    assert ran.err.splitlines()[-1].startswith("  remedy: Name its node: `--node URL`")
