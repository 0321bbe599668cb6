"""Agents, as they are installed, that read and edit a file through the tools they offer."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.client_environments import client_modules
from tests.support.client_node import ClientNode
from tests.support.scripted_models import add_scripted_model
from tests.support.shared_daemon import shared_daemon

TASK: Final = "Make greeting.txt greet the world."
BEFORE: Final = "hello moon\n"
AFTER: Final = "hello world\n"
DONE: Final = "The file greets the world."
WINDOW: Final = 65536
NARROW: Final = 1024
"""A window that no prompt of an agent fits."""
LIMIT_S: Final = 240
CLAUDE: Final = "scripted/claude"
CODEX: Final = "scripted/codex"
TOO_SMALL: Final = "scripted/too-small"
PATCH: Final = (
    "apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: greeting.txt\n@@\n"
    f"-{BEFORE}+{AFTER}*** End Patch\nEOF"
)


def call(tool: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def add_editor(models: Path, model_id: str, *calls: str) -> None:
    first, *others = calls
    add_scripted_model(
        models,
        model_id,
        family="qwen",
        raw_markup=True,
        context_length=WINDOW,
        reply=f"I read it first.\n{first}",
        later_replies=(*others, DONE),
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agents")


@pytest.fixture(scope="module")
def node(root: Path) -> Iterator[ClientNode]:
    models, path = root / "models", str(root / "work" / "greeting.txt")
    edit = call("Edit", file_path=path, old_string="moon", new_string="world")
    add_editor(models, CLAUDE, call("Read", file_path=path), edit)
    read = call("exec_command", cmd="cat greeting.txt")
    add_editor(models, CODEX, read, call("exec_command", cmd=PATCH))
    add_scripted_model(models, TOO_SMALL, family="qwen", context_length=NARROW)
    with shared_daemon(root, models_dir=models) as daemon:
        made = ClientNode(daemon, root)
        for model_id in (CLAUDE, CODEX):
            made.place(model_id, context_tokens=WINDOW)
        made.place(TOO_SMALL, context_tokens=NARROW)
        yield made


@pytest.fixture
def work(root: Path) -> Path:
    """Give the folder that an agent works in, with the file as it was."""
    folder = root / "work"
    folder.mkdir(exist_ok=True)
    (folder / "greeting.txt").write_text(BEFORE)
    return folder


def run(
    command: list[str], environment: dict[str, str], work: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, TASK],
        env=environment,
        cwd=work,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def run_claude(node: ClientNode, model_id: str, work: Path) -> subprocess.CompletedProcess[str]:
    settings = {
        "ANTHROPIC_BASE_URL": node.daemon.url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": model_id,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model_id,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    # The command itself is put in its place by a script of the package, which is not run.
    (program,) = (client_modules("claude-code") / "@anthropic-ai").glob("claude-code-*/claude")
    flags = ["--output-format", "json", "--permission-mode", "acceptEdits", "-p"]
    return run([str(program), *flags], node.environment("claude", settings), work)


def run_codex(node: ClientNode, model_id: str, work: Path) -> subprocess.CompletedProcess[str]:
    environment = node.environment("codex")
    home = Path(environment["HOME"]) / ".codex"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'model = "{model_id}"\nmodel_provider = "skulk"\nmodel_context_window = {WINDOW}\n'
        f'[model_providers.skulk]\nname = "skulk"\nbase_url = "{node.daemon.url}/v1"\n'
        'wire_api = "responses"\n'
    )
    program = str(client_modules("codex") / ".bin" / "codex")
    # Its sandbox needs rights that a test may not have; the test itself is the sandbox.
    flags = ["--skip-git-repo-check", "--json", "--dangerously-bypass-approvals-and-sandbox"]
    return run([program, "exec", *flags], environment, work)


def test_claude_code_reads_a_file_edits_it_and_says_so(node: ClientNode, work: Path) -> None:
    before = node.requests()
    done = run_claude(node, CLAUDE, work)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (work / "greeting.txt").read_text() == AFTER
    told = json.loads(done.stdout)
    assert (told["is_error"], told["num_turns"], told["result"]) == (False, 3, DONE)
    assert told["usage"]["output_tokens"] > 0
    asked = node.requests() - before
    assert (asked["tool_calls"], asked["stop"]) == (2, 1)


def test_claude_code_says_that_a_window_is_too_small_and_asks_no_further(
    node: ClientNode, work: Path
) -> None:
    before = node.requests()
    done = run_claude(node, TOO_SMALL, work)
    told = json.loads(done.stdout)
    assert told["is_error"]
    assert "rompt is too long" in told["result"]
    asked = node.requests() - before
    assert (asked["request.context_length_exceeded"], asked["400"]) == (1, 1)


def test_codex_reads_a_file_patches_it_and_says_so(node: ClientNode, work: Path) -> None:
    before = node.requests()
    done = run_codex(node, CODEX, work)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (work / "greeting.txt").read_text() == AFTER
    events = [json.loads(line) for line in done.stdout.splitlines()]
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    kinds = [item["type"] for item in items if item["type"] != "error"]
    assert kinds == ["agent_message", "command_execution", "file_change", "agent_message"]
    assert items[-1]["text"] == DONE
    assert events[-1]["type"] == "turn.completed"
    assert events[-1]["usage"]["output_tokens"] > 0
    asked = node.requests() - before
    assert (asked["tool_calls"], asked["stop"]) == (2, 1)


def test_codex_says_that_a_window_is_too_small_and_asks_once(node: ClientNode, work: Path) -> None:
    before = node.requests()
    done = run_codex(node, TOO_SMALL, work)
    assert done.returncode != 0
    assert "context window" in done.stdout
    assert (node.requests() - before)["request.context_length_exceeded"] == 1
