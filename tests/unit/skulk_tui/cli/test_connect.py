"""`skulk connect`: other people's tools get what they need, and their files back."""

import json
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from protocol.ids import ModelId
from protocol.models_api import ModelList, ResolvedCapabilities
from skulk_tui.cli.connect_tools import TOOLS
from tests.support.builders import MODEL, a_key_id
from tests.support.command_line import Ran, skulk
from tests.support.fake_node import KEY, FakeNode, a_model, refusal

BIG = ModelId("my/big")
WRITES = ResolvedCapabilities(supports_text_generation=True)
ALL = WRITES.model_copy(
    update={
        "supports_tool_calling": True,
        "supports_vision": True,
        "supports_thinking": True,
        "supports_thinking_toggle": True,
    }
)
OWN_KEY = "skulk-bbbbbbbb-" + "b2" * 16
WITH_KEY = {"SKULK_API_KEY": OWN_KEY}
NO_KEY_NO_ANSWER = refusal("request.unauthenticated", status=401)


def models() -> ModelList:
    small = a_model(placed=True, ready=True, context_window=4096, resolved_capabilities=WRITES)
    big = a_model(BIG, placed=True, ready=True, context_window=65536, resolved_capabilities=ALL)
    away = a_model(ModelId("my/away"), resolved_capabilities=WRITES)
    return ModelList(data=(small, big, away))


@dataclass(frozen=True, kw_only=True)
class Desk:
    """A person's machine with the node it asks."""

    home: Path
    node: FakeNode

    @property
    def environ(self) -> dict[str, str]:
        folders = {"XDG_CONFIG_HOME": "config", "XDG_STATE_HOME": "state"}
        paths = {name: str(self.home / folder) for name, folder in folders.items()}
        return {"HOME": str(self.home), **paths}

    def skulk(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Ran:
        variables = {**self.environ, **(environment or {})}
        return skulk("connect", *arguments, node=self.node.url, environment=variables)

    def path(self, tool: str) -> Path:
        return TOOLS[tool].path_in(self.environ)

    def item(self, *arguments: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
        ran = self.skulk(*arguments, "--json", environment=environment)
        assert ran.code == 0, ran.err
        (found,) = json.loads(ran.out)["items"]
        return found


@pytest.fixture
def desk(node: FakeNode, tmp_path: Path) -> Desk:
    node.on("GET", "/v1/models", models())
    return Desk(home=tmp_path, node=node)


def test_codex_is_told_of_address_model_window_and_effort(desk: Desk) -> None:
    ran = desk.skulk("codex")
    assert ran.code == 0
    assert tomllib.loads(ran.out) == {
        "model": BIG,
        "model_provider": "skulk",
        "model_context_window": 65536,
        "model_reasoning_effort": "high",
        "model_providers": {
            "skulk": {
                "name": "skulk",
                "base_url": f"{desk.node.url}/v1",
                "wire_api": "responses",
            }
        },
    }
    assert "--write" in ran.err


def test_a_model_that_does_not_think_gets_no_effort(desk: Desk) -> None:
    document = tomllib.loads(desk.skulk("codex", "--model", MODEL).out)
    assert (document["model"], document["model_context_window"]) == (MODEL, 4096)
    assert "model_reasoning_effort" not in document


def test_the_effort_that_somebody_chose_stays(desk: Desk) -> None:
    path = desk.path("codex")
    path.parent.mkdir()
    path.write_text('model_reasoning_effort = "low"\n', encoding="utf-8")
    assert desk.skulk("codex", "--write").code == 0
    assert tomllib.loads(path.read_text(encoding="utf-8"))["model_reasoning_effort"] == "low"


def test_claude_asks_the_node_for_all_its_models(desk: Desk) -> None:
    variables = json.loads(desk.skulk("claude").out)["env"]
    assert variables.pop("ANTHROPIC_BASE_URL") == desk.node.url
    assert variables.pop("ANTHROPIC_AUTH_TOKEN") == "none"
    assert variables.pop("CLAUDE_CODE_MAX_CONTEXT_TOKENS") == "65536"
    assert variables.pop("CLAUDE_CODE_AUTO_COMPACT_WINDOW") == "65536"
    assert set(variables.values()) == {BIG}
    assert len(variables) == 4


def test_opencode_knows_every_ready_model_and_what_it_can(desk: Desk) -> None:
    document = json.loads(desk.skulk("opencode", "--model", MODEL).out)
    assert document["model"] == f"skulk/{MODEL}"
    provider = document["provider"]["skulk"]
    assert provider["npm"] == "@ai-sdk/openai-compatible"
    assert provider["options"]["baseURL"] == f"{desk.node.url}/v1"
    assert list(provider["models"]) == [MODEL, BIG]
    big, small = provider["models"][BIG], provider["models"][MODEL]
    assert big["limit"] == {"context": 65536, "output": 16384}
    assert (big["reasoning"], big["tool_call"], big["attachment"]) == (True, True, True)
    assert (small["reasoning"], small["tool_call"], small["attachment"]) == (False, False, False)
    assert small["modalities"]["input"] == ["text"]


def test_continue_gets_an_entry_a_model(desk: Desk) -> None:
    document = yaml.safe_load(desk.skulk("continue").out)
    assert {"name", "version", "schema"} <= document.keys()
    assert [one["model"] for one in document["models"]] == [BIG, MODEL]
    first = document["models"][0]
    assert (first["provider"], first["apiBase"]) == ("openai", f"{desk.node.url}/v1")
    assert first["capabilities"] == ["tool_use", "image_input"]
    assert first["defaultCompletionOptions"]["contextLength"] == 65536


def test_variables_are_what_a_shell_reads(desk: Desk) -> None:
    lines = desk.skulk("env").out.splitlines()
    words = [shlex.split(line) for line in lines]
    assert {word[0] for word in words} == {"export"}
    variables = dict(word[1].split("=", 1) for word in words)
    assert variables["OPENAI_BASE_URL"] == f"{desk.node.url}/v1"
    assert variables["OLLAMA_HOST"] == f"{desk.node.url}/ollama"
    assert variables["ANTHROPIC_MODEL"] == BIG


def test_open_webui_gets_lines_without_quotes(desk: Desk) -> None:
    variables = dict(line.split("=", 1) for line in desk.skulk("open-webui").out.splitlines())
    assert variables["OPENAI_API_BASE_URL"] == f"{desk.node.url}/v1"
    assert variables["DEFAULT_MODELS"] == BIG


OLD: dict[str, str] = {
    "codex": '# mine\nmodel = "gpt-5"\n\n[mcp_servers.x]\ncommand = "x"\n',
    "claude": '{\n  "theme": "dark",\n  "env": {"FOO": "bar"}\n}\n',
    "opencode": '{"provider": {"other": {"npm": "x"}}}',
    "open-webui": "OLD=1\n",
    "continue": "name: mine\nmodels:\n  - name: other\n    provider: ollama\n# end\n",
    "env": "export OLD=1\n",
}
READ: dict[str, Callable[[str], object]] = {
    "codex": tomllib.loads,
    "claude": json.loads,
    "opencode": json.loads,
    "continue": yaml.safe_load,
}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_file_is_written_once_and_brought_back_to_the_byte(desk: Desk, tool: str) -> None:
    path = desk.path(tool)
    path.parent.mkdir(parents=True)
    path.write_bytes(OLD[tool].encode())
    path.chmod(0o640)
    first = desk.item(tool, "--write")
    assert (first["outcome"], Path(first["backup"]).read_text("utf-8")) == ("written", OLD[tool])
    written = path.read_text("utf-8")
    assert BIG in written
    READ.get(tool, str)(written)
    assert desk.item(tool, "--write")["outcome"] == "unchanged"
    assert desk.item(tool, "--write", "--model", MODEL)["outcome"] == "written"
    assert path.stat().st_mode & 0o777 == 0o640
    assert desk.item(tool, "--undo", "--dry-run")["outcome"] == "would be restored"
    assert desk.item(tool, "--undo")["outcome"] == "restored"
    assert path.read_bytes() == OLD[tool].encode()
    assert path.stat().st_mode & 0o777 == 0o640
    assert [one.name for one in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_file_that_was_not_there_goes_again(desk: Desk, tool: str) -> None:
    assert desk.item(tool, "--write")["backup"] is None
    path = desk.path(tool)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text("utf-8") == desk.skulk(tool).out
    assert desk.item(tool, "--undo")["outcome"] == "removed"
    assert not path.exists()
    ran = desk.skulk(tool, "--undo")
    assert (ran.code, "was not written" in ran.err) == (2, True)


def test_the_list_says_which_files_are_there(desk: Desk) -> None:
    desk.path("claude").parent.mkdir()
    desk.path("claude").write_text("{}", encoding="utf-8")
    desk.skulk("codex", "--write")
    ran = desk.skulk("--json")
    found = {one["tool"]: (one["found"], one["connected"]) for one in json.loads(ran.out)["items"]}
    assert list(found) == list(TOOLS)
    assert found["claude"] == (True, False)
    assert found["codex"] == (True, True)
    assert found["env"] == (False, False)


def test_files_lie_where_each_tool_looks(tmp_path: Path) -> None:
    environ = {
        "HOME": "/home/x",
        "CODEX_HOME": str(tmp_path / "codex"),
        "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "CONTINUE_GLOBAL_DIR": str(tmp_path / "continue"),
    }
    found = {str(tool.path_in(environ).relative_to(tmp_path)) for tool in TOOLS.values()}
    assert found == {
        "codex/config.toml",
        "claude/settings.json",
        "config/opencode/opencode.json",
        "config/skulk/open-webui.env",
        "config/skulk/connect.env",
        "continue/config.yaml",
    }


EDITS: dict[str, Callable[[str], str]] = {
    "codex": lambda text: text + '\n[projects."/x"]\ntrust_level = "trusted"\n',
    "claude": lambda text: text.rstrip()[:-1].rstrip() + ',\n  "more": 1\n}\n',
    "opencode": lambda text: text.rstrip()[:-1] + ', "more": 1}',
}


@pytest.mark.parametrize("tool", EDITS)
@pytest.mark.parametrize("was_there", [True, False])
def test_of_what_somebody_changed_since_only_ours_is_taken_out(
    desk: Desk, tool: str, *, was_there: bool
) -> None:
    path, edit, read = desk.path(tool), EDITS[tool], READ[tool]
    path.parent.mkdir(parents=True)
    if was_there:
        path.write_text(OLD[tool], encoding="utf-8")
    desk.item(tool, "--write")
    path.write_text(edit(path.read_text("utf-8")), encoding="utf-8")
    assert desk.item(tool, "--undo")["outcome"] == "taken out"
    left = path.read_text("utf-8")
    if was_there:
        assert read(left) == read(edit(OLD[tool]))
    assert "skulk" not in left
    assert BIG not in left
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_what_was_changed_and_cannot_be_taken_out_is_left_alone_and_kept(desk: Desk) -> None:
    path = desk.path("continue")
    path.parent.mkdir()
    path.write_text(OLD["continue"], encoding="utf-8")
    desk.item("continue", "--write")
    edited = path.read_text("utf-8") + "rules: []\n"
    path.write_text(edited, encoding="utf-8")
    ran = desk.skulk("continue", "--undo")
    assert (ran.code, path.read_text("utf-8")) == (2, edited)
    assert "config.yaml.before-skulk" in ran.err
    again = desk.item("continue", "--write", "--model", MODEL)
    assert again["backup"].endswith("before-skulk-2")
    assert desk.item("continue", "--undo")["outcome"] == "restored"
    assert path.read_text("utf-8") == edited
    assert path.with_name("config.yaml.before-skulk").read_text("utf-8") == OLD["continue"]


def test_an_agent_with_a_model_that_calls_no_tools_is_warned_of(desk: Desk) -> None:
    assert "calls no tools" in desk.skulk("codex", "--model", MODEL).err
    assert "calls no tools" not in desk.skulk("codex").err + desk.skulk("env").err


def test_a_link_stays_and_what_it_leads_to_is_written(desk: Desk, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "settings.json"
    real.parent.mkdir()
    real.write_text("{}", encoding="utf-8")
    link = desk.path("claude")
    link.parent.mkdir()
    link.symlink_to(real)
    assert desk.item("claude", "--write")["path"] == str(real)
    assert link.is_symlink()
    assert "ANTHROPIC_BASE_URL" in real.read_text("utf-8")
    desk.item("claude", "--undo")
    assert (link.is_symlink(), real.read_text("utf-8")) == (True, "{}")


def test_a_link_in_a_circle_is_told(desk: Desk) -> None:
    link = desk.path("claude")
    link.parent.mkdir()
    link.symlink_to(link)
    ran = desk.skulk("claude", "--write")
    assert (ran.code, "internal" in ran.err, str(link) in ran.err) == (2, False, True)


def test_a_read_only_file_is_left_alone(desk: Desk) -> None:
    path = desk.path("claude")
    path.parent.mkdir()
    path.write_text("{}", encoding="utf-8")
    path.chmod(0o444)
    ran = desk.skulk("claude", "--write")
    assert (ran.code, path.read_text("utf-8")) == (2, "{}")
    assert "read-only" in ran.err
    assert desk.skulk("claude").code == 0


def test_a_file_that_cannot_be_merged_is_left_alone_and_no_key_is_made(desk: Desk) -> None:
    path = desk.path("opencode")
    path.parent.mkdir(parents=True)
    path.write_text("// mine\n{}\n", encoding="utf-8")
    desk.node.on("GET", "/v1/models", models(), NO_KEY_NO_ANSWER)
    ran = desk.skulk("opencode", "--write", environment=WITH_KEY)
    assert (ran.code, path.read_text("utf-8")) == (2, "// mine\n{}\n")
    assert ran.err.splitlines()[-1].endswith("Add by hand what `skulk connect opencode` prints.")
    assert desk.node.asked("POST", "/v1/keys") == []


# ---- Keys ----------------------------------------------------------------------------------------


def test_where_the_node_asks_for_none_no_key_is_made(desk: Desk) -> None:
    for environment in ({}, WITH_KEY):
        item = desk.item("codex", environment=environment)
        assert (item["key_id"], "bearer" in item["content"]) == (None, False)
    assert desk.node.asked("POST", "/v1/keys") == []


@pytest.mark.parametrize("tool", TOOLS)
def test_where_it_asks_for_one_it_is_made_and_stands_in_the_file_alone(
    desk: Desk, tool: str
) -> None:
    path = desk.path(tool)
    path.parent.mkdir(parents=True)
    path.write_text(OLD[tool], encoding="utf-8")
    path.chmod(0o644)
    desk.node.on("GET", "/v1/models", models(), NO_KEY_NO_ANSWER)
    ran = desk.skulk(tool, "--write", environment=WITH_KEY)
    assert ran.code == 0, ran.err
    assert KEY in path.read_text("utf-8")
    assert path.stat().st_mode & 0o777 == 0o600
    assert KEY not in ran.out + ran.err
    (asked,) = desk.node.asked("POST", "/v1/keys")
    assert '"scope": "infer"' in json.dumps(asked.body)
    # The next time the node takes the key that stands there.
    desk.node.on("GET", "/v1/models", models(), NO_KEY_NO_ANSWER, models())
    assert desk.item(tool, "--write", environment=WITH_KEY)["outcome"] == "unchanged"
    assert len(desk.node.asked("POST", "/v1/keys")) == 1
    ran = desk.skulk(tool, "--undo")
    assert (ran.code, f"skulk keys revoke {a_key_id()}" in ran.err) == (0, True)
    assert (path.read_text("utf-8"), path.stat().st_mode & 0o777) == (OLD[tool], 0o644)


def test_a_key_that_opens_nothing_any_more_is_replaced(desk: Desk) -> None:
    path = desk.path("claude")
    path.parent.mkdir()
    old = "skulk-cccccccc-" + "c2" * 16
    path.write_text(json.dumps({"env": {"ANTHROPIC_AUTH_TOKEN": old}}), encoding="utf-8")
    desk.node.on("GET", "/v1/models", models(), NO_KEY_NO_ANSWER, NO_KEY_NO_ANSWER)
    assert desk.item("claude", "--write", environment=WITH_KEY)["key_id"] == a_key_id()
    assert old not in path.read_text("utf-8")


def test_a_token_of_another_service_is_never_sent_to_the_node(desk: Desk) -> None:
    path = desk.path("claude")
    path.parent.mkdir()
    path.write_text(json.dumps({"env": {"ANTHROPIC_AUTH_TOKEN": "sk-theirs"}}), encoding="utf-8")
    desk.node.on("GET", "/v1/models", models(), NO_KEY_NO_ANSWER)
    desk.item("claude", "--write", environment=WITH_KEY)
    assert all("theirs" not in str(seen) for seen in desk.node.seen)


def test_who_may_make_no_keys_gives_the_tool_its_own(desk: Desk) -> None:
    desk.node.on("GET", "/v1/models", models(), NO_KEY_NO_ANSWER)
    desk.node.on("POST", "/v1/keys", refusal("request.forbidden", status=403))
    ran = desk.skulk("codex", environment=WITH_KEY)
    assert (ran.code, OWN_KEY in ran.out) == (0, True)
    assert "may make no keys" in ran.err


def test_a_dry_run_makes_no_key(desk: Desk) -> None:
    desk.node.on("GET", "/v1/models", models(), NO_KEY_NO_ANSWER)
    item = desk.item("codex", "--dry-run", environment=WITH_KEY)
    assert "skulk-…" in item["content"]
    assert desk.node.asked("POST", "/v1/keys") == []


# ---- What cannot be ------------------------------------------------------------------------------


def test_without_a_ready_model_the_remedy_is_to_place_one(desk: Desk) -> None:
    desk.node.on("GET", "/v1/models", ModelList(data=(a_model(resolved_capabilities=WRITES),)))
    ran = desk.skulk("codex")
    assert (ran.code, ran.out) == (1, "")
    assert "skulk place" in ran.err
    ran = desk.skulk("codex", "--model", MODEL)
    assert (ran.code, f"skulk place {MODEL}" in ran.err) == (1, True)


def test_a_model_that_is_loading_is_pending(desk: Desk) -> None:
    loading = a_model(placed=True, resolved_capabilities=WRITES)
    desk.node.on("GET", "/v1/models", ModelList(data=(loading,)))
    for line in (("codex",), ("codex", "--model", MODEL)):
        ran = desk.skulk(*line)
        assert (ran.code, f"skulk wait {MODEL}" in ran.err) == (8, True)


def test_wrong_words_are_refused_with_the_nearest(desk: Desk) -> None:
    ran = desk.skulk("codx")
    assert (ran.code, "'codex'" in ran.err) == (2, True)
    ran = desk.skulk("codex", "--model", "my/bgi")
    assert (ran.code, f"'{BIG}'" in ran.err) == (2, True)
    assert desk.skulk("--write").code == 2
    assert desk.skulk("codex", "--write", "--undo").code == 2
