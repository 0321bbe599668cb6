"""What an installed skulk does at the very least; also run against the built wheel."""

import json
import subprocess
from importlib.metadata import version

import pytest

from protocol.cards import ScriptedSection
from store.cards import to_toml
from tests.support.builders import a_scripted_card
from tests.support.daemon import SCRIPTS, Daemon, clean_environment
from tests.support.demo_model import DEMO_MODEL_ID

MODEL = "smoke/scripted"


def _scripted_card(daemon: Daemon) -> None:
    card = a_scripted_card(
        model_id=MODEL, scripted=ScriptedSection(reply="The capital of France is Paris.")
    )
    folder = daemon.models_dir / "cards"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "smoke.toml").write_text(to_toml(card))


@pytest.mark.parametrize(("script", "argument"), [("skulkd", "--version"), ("skulk", "version")])
def test_both_scripts_tell_the_version_of_the_distribution(script: str, argument: str) -> None:
    answer = subprocess.run(
        [str(SCRIPTS / script), argument],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        env=clean_environment(),
    )
    assert version("skulkd") in answer.stdout


def test_a_fresh_node_is_healthy_and_knows_the_bundled_model(daemon: Daemon) -> None:
    health = daemon.http.get("/health").json()
    assert health["status"] in {"ok", "warn"}
    assert health["version"] == version("skulkd")
    models = daemon.skulk("models", "list", "--json")
    assert models.returncode == 0, models.stderr
    assert DEMO_MODEL_ID in models.stdout


def test_a_placed_model_answers_whole_and_streamed(daemon: Daemon) -> None:
    _scripted_card(daemon)
    instance = daemon.place(MODEL)
    daemon.wait_phase(instance)
    request = {"model": MODEL, "messages": [{"role": "user", "content": "The capital?"}]}
    whole = daemon.http.post("/v1/chat/completions", json=request)
    assert whole.is_success, whole.text
    assert whole.json()["choices"][0]["message"]["content"] == "The capital of France is Paris."

    streamed = daemon.http.post("/v1/chat/completions", json={**request, "stream": True})
    events = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
    text = "".join(delta.get("content") or "" for delta in deltas)
    assert text == "The capital of France is Paris."


def test_an_orderly_end_leaves_no_process(daemon: Daemon) -> None:
    _scripted_card(daemon)
    daemon.wait_phase(daemon.place(MODEL))
    engines = daemon.children()
    assert engines
    assert daemon.stop() == 0
    assert [engine for engine in engines if engine.is_running()] == []
