"""Tab: names that a node knows, within the patience of somebody who pressed it."""

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skulk_tui.cli import completing
from skulk_tui.cli.completing import FRESH_MS, STALE_MS
from skulk_tui.cli.completion import SCRIPTS
from skulk_tui.cli.main import run
from skulk_tui.clock import SystemClock
from tests.support.builders import MODEL, an_instance_id
from tests.support.command_line import skulk
from tests.support.fake_node import Answer, FakeNode, refusal

pytestmark = pytest.mark.usefixtures("state")

DEAD = "http://127.0.0.1:1"


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("SKULK_NODE", "SKULK_CLUSTER", "SKULK_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SKULK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("SKULK_CONFIG_DIR", str(tmp_path / "config"))
    return tmp_path / "state" / "names.json"


@pytest.fixture
def tab(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "Tab":
    return Tab(monkeypatch, capsys)


class Tab:
    """Presses Tab in bash, as the script asks this program."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *words: str) -> list[str]:
        self._monkeypatch.setenv("COMP_WORDS", "\n".join(("skulk", *words)))
        self._monkeypatch.setenv("COMP_CWORD", str(len(words)))
        self._monkeypatch.setenv("_SKULK_COMPLETE", "complete_bash")
        with pytest.raises(SystemExit) as ended:
            run([])
        out, err = self._capsys.readouterr()
        assert (ended.value.code, err) == (0, "")
        return out.split()


def test_names_are_completed_by_how_they_begin(tab: Tab, node: FakeNode) -> None:
    at = ("--node", node.url)
    assert tab(*at, "logs", "bo") == ["box-1"]
    assert tab(*at, "logs", "x") == []
    assert tab(*at, "logs", "") == sorted(["box-1", MODEL, an_instance_id()])
    assert tab(*at, "stop", MODEL[:3]) == [MODEL]
    assert tab(*at, "chat", "") == [MODEL]
    assert tab("place", *at, "") == [MODEL]
    assert tab(*at, "place", MODEL, "--nodes", "other,bo") == ["other,box-1"]


def test_verbs_and_options_need_no_node(tab: Tab) -> None:
    assert tab("sta") == ["status"]
    assert tab("cluster", "hand") == ["handover"]
    assert "--watch" in tab("ps", "--w")


def test_values_that_are_always_the_same_are_completed_without_a_node(tab: Tab) -> None:
    assert tab("ps", "-o", "j") == ["json", "jsonl"]
    assert tab("--color", "a") == ["auto", "always"]
    assert tab("keys", "create", "ci", "--scope", "o") == ["operate"]
    assert tab("wait", "x", "--for", "d") == ["downloaded"]
    assert tab("top", "--by", "m") == ["memory"]
    assert tab("cluster", "policy", "q") == ["quorum"]
    assert tab("models", "import", "--from", "hf,ol") == ["hf,ollama"]
    assert tab("help", "ex") == ["exit-codes"]


def test_what_asking_takes_is_loaded_before_the_node_s_time_begins(
    tab: Tab, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    late_s = 0.0

    def load() -> None:
        nonlocal late_s
        late_s += 1.0

    def now_s(_self: SystemClock) -> float:
        return time.monotonic() + late_s

    monkeypatch.setattr(completing, "_load", load)
    monkeypatch.setattr(SystemClock, "monotonic_s", now_s)
    assert tab("--node", node.url, "place", MODEL[:3]) == [MODEL]


def test_a_second_tab_within_ten_seconds_asks_nobody(tab: Tab, node: FakeNode, state: Path) -> None:
    for _ in range(2):
        assert tab("--node", node.url, "logs", "bo") == ["box-1"]
    assert len(node.asked("GET", "/state")) == 1
    assert stat.S_IMODE(state.stat().st_mode) == 0o600


def test_where_no_node_answers_what_it_said_before_is_given_for_a_day(
    tab: Tab, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tab("--node", node.url, "logs", "bo") == ["box-1"]
    node.on("GET", "/state", refusal("internal.bug", status=500))
    for later_ms, found in ((FRESH_MS, ["box-1"]), (STALE_MS, [])):
        wall_ms = time.time_ns() // 1_000_000 + later_ms + 5_000

        def later(_self: SystemClock, wall_ms: int = wall_ms) -> int:
            return wall_ms

        monkeypatch.setattr(SystemClock, "wall_ms", later)
        assert tab("--node", node.url, "logs", "bo") == found


def test_a_node_that_refuses_or_is_slow_completes_nothing_and_says_nothing(
    tab: Tab, node: FakeNode
) -> None:
    node.on("GET", "/state", refusal("request.unauthenticated", status=401))
    assert tab("--node", node.url, "logs", "b") == []
    node.on("GET", "/state", Answer(pieces=(b"{",), pause_s=1.0))
    began_s = time.perf_counter()
    assert tab("--node", node.url, "logs", "b") == []
    assert time.perf_counter() - began_s < 0.9


def test_nobody_there_and_a_wrong_address_complete_nothing(tab: Tab) -> None:
    assert tab("--node", DEAD, "logs", "b") == []
    assert tab("--node", "http://a:b@c", "logs", "b") == []


@pytest.mark.parametrize("text", ["{", "[]", '{"x": 1}', "\0"])
def test_a_file_of_names_that_is_broken_is_begun_anew(
    tab: Tab, node: FakeNode, state: Path, text: str
) -> None:
    state.parent.mkdir()
    state.write_text(text, encoding="utf-8")
    assert tab("--node", node.url, "logs", "bo") == ["box-1"]
    assert node.url in json.loads(state.read_text(encoding="utf-8"))


def test_saved_clusters_are_completed(tab: Tab, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text(
        '[profile.home]\nseeds = ["den-01"]\n', encoding="utf-8"
    )
    assert tab("--cluster", "h") == ["home"]


# ---- The scripts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", list(SCRIPTS))
def test_a_script_is_printed_as_it_is_to_be_stored(shell: str) -> None:
    ran = skulk("completion", shell)
    assert (ran.code, ran.out, ran.err) == (0, SCRIPTS[shell], "")
    assert "2>/dev/null" in ran.out


def test_an_unknown_shell_names_the_nearest() -> None:
    ran = skulk("completion", "bsh")
    assert (ran.code, ran.err.splitlines()[-1]) == (2, "  remedy: Did you mean 'bash'?")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command, first on the path of every shell."""
    path = tmp_path / "bin" / "skulk"
    path.parent.mkdir()
    path.write_text(
        f"#!{sys.executable}\nfrom skulk_tui.cli.main import main\nmain()\n", encoding="utf-8"
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SKULK_NODE", DEAD)
    monkeypatch.setenv("HOME", str(tmp_path))
    return path


def shell(name: str, *arguments: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    ran = subprocess.run(
        [found, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    assert not ran.stderr
    return ran.stdout


@pytest.mark.usefixtures("program")
def test_bash_completes_with_the_script() -> None:
    story = (
        f"{SCRIPTS['bash']}\nCOMP_WORDS=(skulk cluster hand); COMP_CWORD=2\n"
        '_skulk_completion skulk hand cluster; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    assert shell("bash", "-c", story) == "handover\n"


@pytest.mark.usefixtures("program")
def test_fish_completes_with_the_script(node: FakeNode, tmp_path: Path) -> None:
    script = tmp_path / "skulk.fish"
    script.write_text(SCRIPTS["fish"], encoding="utf-8")

    def complete(line: str) -> list[str]:
        told = shell("fish", "--no-config", "-c", f"source {script}; complete -C '{line}'")
        return [one.partition("\t")[0] for one in told.splitlines()]

    assert complete("skulk cluster hand") == ["handover"]
    assert complete("skulk ps -o js") == ["json", "jsonl"]
    assert complete(f"skulk --node {node.url} logs bo") == ["box-1"]


@pytest.mark.usefixtures("program")
def test_zsh_completes_with_the_script(node: FakeNode, tmp_path: Path) -> None:
    functions = tmp_path / "zfunc"
    functions.mkdir()
    (functions / "_skulk").write_text(SCRIPTS["zsh"], encoding="utf-8")
    # A shell at a pseudo-terminal; each answer is read until what is looked for is there.
    story = f"""
zmodload zsh/zpty
zpty inner zsh -f -i
zpty -w inner 'PS1="> "; fpath=({functions} $fpath); autoload -Uz compinit; compinit -u -D'
zpty -w inner 'bindkey "^I" complete-word; print RE""ADY'
zpty -r inner seen '*READY*'
tab() {{
    zpty -w -n inner "$1"$'\t'
    zpty -r inner seen "*$2*"
    print -- "$2"
    zpty -w -n inner $'\x15'
}}
tab 'skulk cluster hand' handover
tab 'skulk --node {node.url} logs bo' box-1
tab 'skulk ps --w' --watch
"""
    assert shell("zsh", "-f", "-c", story).split() == ["handover", "box-1", "--watch"]
