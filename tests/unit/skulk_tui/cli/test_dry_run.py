"""What changes something can say so beforehand, and then changes nothing."""

import json
from pathlib import Path

import pytest

from skulk_tui.cli.main import build_app
from skulk_tui.cli.manual import command_of, verbs_of
from tests.support.builders import MODEL, an_instance_id
from tests.support.cluster_documents import SIX_WORDS, TOKEN_ID
from tests.support.command_line import skulk
from tests.support.fake_node import FakeNode, Seen, refusal

CHANGES = [
    ("api", "close"),
    ("api", "open"),
    ("cluster", "forget", "home"),
    ("cluster", "handover"),
    ("cluster", "invite", "--code"),
    ("cluster", "join", "--code", SIX_WORDS),
    ("cluster", "policy", "quorum"),
    ("cluster", "remove", "node-2"),
    ("cluster", "revoke", TOKEN_ID),
    ("cluster", "save", "work", "den-01"),
    ("cluster", "use", "home"),
    ("config", "set", "priority=60"),
    ("connect", "codex", "--write"),
    ("instance", "clear-breaker", MODEL),
    ("keys", "create", "laptop"),
    ("keys", "revoke", "laptop"),
    ("keys", "rotate", "laptop"),
    ("keys", "set", "laptop", "--rate", "60/min"),
    ("models", "import", "/m/a.gguf"),
    ("models", "pull", MODEL),
    ("models", "rm", MODEL),
    ("move", MODEL),
    ("node", "drain", "studio"),
    ("node", "restart", "studio"),
    ("node", "undrain", "node-1"),
    ("pin", MODEL),
    ("place", MODEL),
    ("probe", "links"),
    ("retry", an_instance_id()),
    ("service", "install"),
    ("service", "uninstall"),
    ("stop", MODEL),
    ("store", "limit", "50MB/s"),
    ("store", "pause", MODEL),
    ("store", "resume", MODEL),
    ("uninstall",),
    ("unpin", MODEL),
]
LOOKS = {
    *("bench", "bundle", "chat", "completion", "diag bundle", "doctor", "events", "help", "info"),
    *("api status", "cluster list", "cluster members", "cluster status", "cluster strangers"),
    "cluster links",
    *("cluster tokens", "config get", "instance show", "keys list", "logs", "models files"),
    *("models list", "models show", "nodes", "ps", "service status", "status", "timeline", "top"),
    *("store verify", "tui", "version", "wait"),
}
"""Change nothing that lasts; `tui` asks before it does."""
NEEDS_TLS = {"cluster trust"}
"""Tried in test_saved_clusters.py, against a server that speaks it."""


def words_of(change: tuple[str, ...]) -> str:
    known = {" ".join(path) for path, _ in verbs_of(command_of(build_app()))}
    return next(words for n in (2, 1) if (words := " ".join(change[:n])) in known)


def only_asks(seen: Seen) -> bool:
    """A node that is to say what it would do is told so."""
    is_told = '"dry_run": true' in json.dumps(seen.body) or seen.query.get("dry_run") == ["true"]
    return seen.method == "GET" or is_told


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    path.write_text('[profile.home]\nseeds = ["den-01"]\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.parametrize("change", CHANGES, ids=words_of)
def test_a_dry_run_asks_and_changes_nothing(
    change: tuple[str, ...], node: FakeNode, config: Path
) -> None:
    environment = {"SKULK_CONFIG_DIR": str(config.parent)}
    before = config.read_text(encoding="utf-8")
    ran = skulk(*change, "--dry-run", "--json", node=node.url, environment=environment)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["items"]
    assert [one for one in node.seen if not only_asks(one)] == []
    assert config.read_text(encoding="utf-8") == before
    assert [path.name for path in config.parent.iterdir()] == ["config.toml"]


def test_every_verb_that_changes_something_has_a_dry_run() -> None:
    verbs = {" ".join(path): command for path, command in verbs_of(command_of(build_app()))}
    with_option = {
        words
        for words, command in verbs.items()
        if any("--dry-run" in parameter.opts for parameter in command.params)
    }
    assert with_option == {words_of(change) for change in CHANGES} | NEEDS_TLS
    assert set(verbs) == with_option | LOOKS


def test_what_is_not_there_is_refused_by_a_dry_run_too(node: FakeNode, config: Path) -> None:
    environment = {"SKULK_CONFIG_DIR": str(config.parent)}
    node.on("GET", "/v1/models/nothing", refusal("request.model_not_found", status=404))
    for line in (
        ("stop", "nothing"),
        ("models", "pull", "nothing"),
        ("models", "rm", "nothing"),
        ("keys", "revoke", "nothing"),
        ("keys", "rotate", "nothing"),
        ("cluster", "use", "nothing"),
        ("cluster", "forget", "nothing"),
        ("cluster", "save", "no/name", "den-01"),
    ):
        ran = skulk(*line, "--dry-run", node=node.url, environment=environment)
        assert (ran.code, ran.out) == (2, ""), line


def test_a_dry_run_says_how_much_would_be_fetched_and_what_is_free(node: FakeNode) -> None:
    ran = skulk("models", "pull", MODEL, "--dry-run", node=node.url)
    assert "would be fetched: 100 MiB, and " in ran.out or "is there already" in ran.out


def test_a_dry_run_of_stop_says_how_many_requests_end(node: FakeNode) -> None:
    ran = skulk("stop", MODEL, "--dry-run", node=node.url)
    assert "would be stopped, and 1 requests end" in ran.out


def test_a_dry_run_of_rm_says_what_is_in_use(node: FakeNode) -> None:
    ran = skulk("models", "rm", MODEL, "--dry-run", node=node.url)
    assert (ran.code, "is in use; would be refused" in ran.out) == (0, True)
