"""`skulk connect` against a real daemon: what it writes is what the node answers to."""

import json
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.daemon import Daemon
from tests.support.scripted_models import MODEL, add_scripted_model

pytestmark = pytest.mark.usefixtures("own_state")


@pytest.fixture
def own_state(daemon: Daemon, tmp_path: Path) -> None:
    daemon.environment["XDG_STATE_HOME"] = str(tmp_path / "state")


def test_codex_is_connected_and_disconnected(daemon: Daemon, tmp_path: Path) -> None:
    add_scripted_model(daemon.models_dir)
    ran = daemon.skulk("connect", "codex")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "skulk place" in ran.stderr
    assert daemon.skulk("place", MODEL).returncode == 0
    (instance,) = json.loads(daemon.skulk("ps", "--json").stdout)["items"]
    path = tmp_path / "codex" / "config.toml"
    path.parent.mkdir()
    mine = b'# mine\nmodel = "gpt"\n\n[tui]\ntheme = "x"\n'
    path.write_bytes(mine)
    daemon.environment["CODEX_HOME"] = str(path.parent)
    for _ in range(2):
        ran = daemon.skulk("connect", "codex", "--write")
        assert ran.returncode == 0, ran.stderr
    assert "unchanged" in ran.stdout
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    assert document["model"] == MODEL
    assert document["model_context_window"] == instance["context_tokens"]
    base_url = document["model_providers"]["skulk"]["base_url"]
    answer = ask(f"{base_url}/responses", {"model": document["model"], "input": "The capital?"})
    assert answer["status"] == "completed"
    assert daemon.skulk("connect", "codex", "--undo").returncode == 0
    assert path.read_bytes() == mine


def test_where_loopback_is_keyed_the_tool_gets_a_key_that_only_asks_models(
    daemon: Daemon, tmp_path: Path
) -> None:
    add_scripted_model(daemon.models_dir)
    assert daemon.skulk("place", MODEL).returncode == 0
    made = daemon.skulk("keys", "create", "me", "--scope", "admin")
    daemon.environment["SKULK_API_KEY"] = made.stdout.strip()
    assert daemon.skulk("config", "set", "cluster.loopback=keyed").returncode == 0
    daemon.environment["CLAUDE_CONFIG_DIR"] = str(tmp_path / "claude")
    ran = daemon.skulk("connect", "claude", "--write")
    assert ran.returncode == 0, ran.stderr
    path = tmp_path / "claude" / "settings.json"
    assert path.stat().st_mode & 0o777 == 0o600
    variables = json.loads(path.read_text(encoding="utf-8"))["env"]
    key = variables["ANTHROPIC_AUTH_TOKEN"]
    assert key not in ran.stdout + ran.stderr
    body = {
        "model": variables["ANTHROPIC_MODEL"],
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "The capital?"}],
    }
    url = f"{variables['ANTHROPIC_BASE_URL']}/v1/messages"
    assert ask(url, body, key=key)["type"] == "message"
    assert "unchanged" in daemon.skulk("connect", "claude", "--write").stdout
    keys = json.loads(daemon.skulk("keys", "list", "--json").stdout)["items"]
    assert sorted(one["scope"] for one in keys) == ["admin", "infer"]


def test_what_is_printed_for_a_shell_is_what_clients_take(daemon: Daemon) -> None:
    add_scripted_model(daemon.models_dir)
    assert daemon.skulk("place", MODEL).returncode == 0
    ran = daemon.skulk("connect", "env")
    words = (shlex.split(line)[1] for line in ran.stdout.splitlines())
    variables = dict(word.split("=", 1) for word in words)
    message = {"role": "user", "content": "The capital?"}
    body = {"model": MODEL, "messages": [message], "stream": False}
    key = variables["OPENAI_API_KEY"]
    assert ask(f"{variables['OPENAI_BASE_URL']}/chat/completions", body, key=key)["choices"]
    assert ask(f"{variables['OLLAMA_HOST']}/api/chat", body)["done"] is True


def ask(url: str, body: Mapping[str, object], *, key: str | None = None) -> dict[str, Any]:
    """Post and read, as a plain client does."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    answer = httpx.post(url, json=body, headers=headers, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.json()
