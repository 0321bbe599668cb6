"""`skulk cluster list | use | save | forget | trust`, with a configuration of the test's own."""

import json
from pathlib import Path

import pytest

from skulk_tui.profiles import read_config
from tests.support.certificates import SECOND
from tests.support.command_line import Ran, skulk
from tests.support.fake_node import KEY, FakeNode
from tests.support.tls_proxy import TlsProxy


@pytest.fixture
def config_dir(tmp_path: Path) -> Path:
    return tmp_path / "config"


def run(config_dir: Path, *arguments: str, stdin: str = "") -> Ran:
    environment = {"SKULK_CONFIG_DIR": str(config_dir)}
    return skulk(*arguments, stdin=stdin, environment=environment)


def test_a_cluster_is_saved_used_listed_and_forgotten(node: FakeNode, config_dir: Path) -> None:
    assert run(config_dir, "cluster", "save", "home", node.url, "--protect").code == 0
    assert run(config_dir, "cluster", "save", "work", "10.0.0.1", "10.0.0.2").code == 0
    assert run(config_dir, "cluster", "use", "home").code == 0
    listed = json.loads(run(config_dir, "cluster", "list", "--json").out)
    assert listed["kind"] == "clusters"
    assert [(one["name"], one["is_current"], one["protect"]) for one in listed["items"]] == [
        ("home", True, True), ("work", False, False),
    ]  # fmt: skip
    assert listed["items"][1]["seeds"] == ["10.0.0.1", "10.0.0.2"]
    assert run(config_dir, "cluster", "list", "-o", "name").out == "home\nwork\n"
    table = run(config_dir, "cluster", "list").out.splitlines()
    assert table[0].split() == ["CLUSTER", "CURRENT", "NODES", "KEY", "MODE"]
    assert table[1].split() == ["home", "yes", node.url, "common", "protected"]

    assert run(config_dir, "ps").code == 0
    assert node.seen
    info = json.loads(run(config_dir, "info", "--json").out)["items"][0]
    assert (info["node"], info["node_rule"]) == (node.url, "current profile home")

    assert run(config_dir, "cluster", "use", "--none").code == 0
    assert run(config_dir, "cluster", "forget", "home").code == 0
    config = read_config(config_dir)
    assert (config.current, list(config.profile)) == (None, ["work"])


def test_a_cluster_is_asked_by_name_and_its_next_address_when_one_is_down(
    node: FakeNode, config_dir: Path
) -> None:
    run(config_dir, "cluster", "save", "home", "127.0.0.1:1", node.url)
    assert run(config_dir, "ps", "--cluster", "home").code == 0
    assert run(config_dir, "--cluster", "home", "ps").code == 0
    environment = {"SKULK_CONFIG_DIR": str(config_dir), "SKULK_CLUSTER": "home"}
    assert skulk("ps", environment=environment).code == 0
    ran = run(config_dir, "ps", "--cluster", "hoem")
    assert ran.code == 2
    assert "Did you mean 'home'?" in ran.err


def test_a_key_comes_from_standard_input_and_is_kept_for_its_owner(
    node: FakeNode, config_dir: Path
) -> None:
    saved = run(config_dir, "cluster", "save", "home", node.url, "--with-key", stdin=f"{KEY}\n")
    assert saved.code == 0
    assert KEY not in saved.out + saved.err
    path = config_dir / "keys" / "home"
    assert path.stat().st_mode & 0o777 == 0o600
    run(config_dir, "ps", "--cluster", "home")
    assert node.seen[-1].headers["authorization"] == f"Bearer {KEY}"
    listed = json.loads(run(config_dir, "cluster", "list", "--json").out)
    assert listed["items"][0]["has_key"]
    run(config_dir, "cluster", "forget", "home")
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("save", "home"), "NODE"),
        (("save", "a b", "den-01"), "no name for a cluster"),
        (("save", "home", "ftp://den-01"), "neither http nor https"),
        (("save", "home", "den-01", "--with-key"), "holds no API key"),
        (("use",), "--none"),
        (("use", "home", "--none"), "--none"),
        (("use", "home"), "unknown cluster"),
        (("forget", "home"), "unknown cluster"),
        (("trust", "den-01"), "speaks no TLS"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_written(
    config_dir: Path, arguments: tuple[str, ...], said: str
) -> None:
    ran = run(config_dir, "cluster", *arguments)
    assert ran.code == 2
    assert said in ran.err
    assert not config_dir.exists()


def test_a_certificate_is_told_once_refused_when_it_changes_and_accepted_by_name(
    node: FakeNode, config_dir: Path, tmp_path: Path
) -> None:
    port = int(node.url.rpartition(":")[2])
    with TlsProxy(port, tmp_path) as proxy:
        first = run(config_dir, "ps", "--node", proxy.url)
        assert first.code == 0
        assert "for the first time" in first.err
        assert not run(config_dir, "ps", "--node", proxy.url).err
    with TlsProxy(port, tmp_path, pem=SECOND, own_port=proxy.port) as other:
        changed = run(config_dir, "ps", "--node", other.url)
        assert changed.code == 4
        assert f"skulk cluster trust {other.url}" in changed.err
        looked = run(config_dir, "cluster", "trust", other.url, "--dry-run")
        assert (looked.code, "would be believed" in looked.out) == (0, True)
        assert run(config_dir, "ps", "--node", other.url).code == 4
        assert run(config_dir, "cluster", "trust", other.url).code == 0
        assert run(config_dir, "ps", "--node", other.url).code == 0
