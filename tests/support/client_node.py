"""A node for real clients: its models, and runs of a client against it."""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from tests.support.client_environments import (
    client_modules,
    client_python,
    closed_environment,
)
from tests.support.daemon import Daemon
from tests.support.scripted_models import add_scripted_model
from tests.support.shared_daemon import shared_daemon
from tests.support.source_tree import ROOT

SCRIPTS: Final = ROOT / "tests" / "clients" / "scripts"
SPEAKER: Final = "scripted/speaker"
CALLER: Final = "scripted/caller"
EMBEDDER: Final = "scripted/embedder"
SAID: Final = "The capital of France is Paris."
CALL: Final = ("weather", {"city": "Paris"})
AFTER_THE_RESULT: Final = "It is sunny in Paris."
BEFORE_DEATH: Final = "one two three"
WINDOW: Final = 1024
WIDTH: Final = 8
"""Of an embedding."""
MODELS: Final = (SPEAKER, CALLER, EMBEDDER)
_RUN_S: Final = 240
_REQUESTS: Final = re.compile(
    r'^skulk_(?:api|inference)_requests_total\{.*(?:status|outcome)="([^"]*)"\} (\S+)$',
    re.MULTILINE,
)


@dataclass(frozen=True)
class Sighting:
    """What a client saw of the node, and the node of the client."""

    seen: dict[str, Any]
    requests: Counter[str]
    """How often each status was answered, and how often each outcome of inference was."""


@final
class ClientNode:
    """A node, and the folder that its clients may write to."""

    def __init__(self, daemon: Daemon, root: Path) -> None:
        self.daemon = daemon
        self._root = root

    def environment(self, name: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Give a client's environment: a home of its own, no settings, and no way out."""
        return {**closed_environment(self._root / f"home-{name}"), **(extra or {})}

    def place(self, model_id: str, *, context_tokens: int = WINDOW) -> None:
        """Place a model and wait until it is ready."""
        self.daemon.wait_phase(self.daemon.place(model_id, context_tokens=context_tokens, slots=2))

    def run_script(self, name: str, environment: str, script: str, *arguments: str) -> Sighting:
        """Run a script of a client in its environment.

        Raises:
            AssertionError: It failed; carries what it printed.
        """
        mortal = mortal_of(name)
        self.place(mortal)
        given = {"node": self.daemon.url, "mortal": mortal}
        given |= {"speaker": SPEAKER, "caller": CALLER, "embedder": EMBEDDER}
        before = self.requests()
        variables = self.environment(name)
        if script.endswith(".cjs"):
            variables["NODE_PATH"] = str(client_modules(environment))
            program = "node"
        else:
            variables["LLM_USER_PATH"] = f"{variables['HOME']}/llm"
            program = str(client_python(environment))
        done = subprocess.run(
            [program, str(SCRIPTS / script), json.dumps(given), *arguments],
            env=variables,
            cwd=variables["HOME"],
            capture_output=True,
            text=True,
            timeout=_RUN_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        seen = json.loads(done.stdout.splitlines()[-1])
        return Sighting(seen, self.requests() - before)

    def requests(self) -> Counter[str]:
        """Count what was answered so far, by status and by outcome of inference."""
        counts: Counter[str] = Counter()
        for name, n in _REQUESTS.findall(self.daemon.http.get("/metrics").text):
            counts[name] += int(float(n))
        return counts


def mortal_of(name: str) -> str:
    """Name the model that dies for one client, so that no other one waits for its return."""
    return f"scripted/mortal-{name}"


@contextmanager
def running_client_node(root: Path, names: Iterable[str]) -> Generator[ClientNode]:
    """Run a node with the models that clients are shown."""
    models = root / "models"
    call = json.dumps({"name": CALL[0], "arguments": CALL[1]})
    add_scripted_model(models, SPEAKER, reply=SAID)
    add_scripted_model(
        models,
        CALLER,
        family="qwen",
        raw_markup=True,
        reply=f"<tool_call>\n{call}\n</tool_call>",
        later_replies=(AFTER_THE_RESULT,),
    )
    add_scripted_model(models, EMBEDDER, tasks=("TextEmbedding",), hidden_size=WIDTH)
    for name in names:
        add_scripted_model(
            models, mortal_of(name), reply=BEFORE_DEATH, repeat=True, exit_after_tokens=3
        )
    with shared_daemon(root, models_dir=models) as daemon:
        node = ClientNode(daemon, root)
        for model_id in MODELS:
            node.place(model_id)
        yield node
