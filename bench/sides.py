"""The two sides of a comparison: the daemon, and the engine behind it asked directly.

Both get the same bytes from the same generator; only the socket differs: the daemon's port, or the
engine's own Unix socket.
"""

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self, final

import psutil

from bench.harness import ROOT
from bench.load import Job, Outcome
from tests.support.daemon import Daemon

SLOTS: Final = 32
CONTEXT_TOKENS: Final = 32768
POLL_S: Final = 0.002
CHAT_PATH: Final = "/v1/chat/completions"
SCRIPTED_SERVER: Final = "engines.scripted.server"

QUICK: Final = "bench/quick"
"""Answers eight tokens at once."""
PACED: Final = "bench/paced"
"""50 tokens a second a stream."""

_CARD: Final = """
model_id = "{model_id}"
n_layers = 1
hidden_size = 64
num_key_value_heads = 1
supports_tensor = false
tasks = ["TextGeneration"]
context_length = 65536
storage_size = {{ in_bytes = 1048576 }}
placement = {{ compatible_backends = ["scripted"] }}

[gguf_cache_geometry]
n_attention_layers = 1
n_kv_heads = 1
key_length = 64
value_length = 64

[scripted]
reply = "The capital of France is the city Paris."
repeat = {repeat}
token_delay_ms = {delay_ms}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a side is asked."""

    concurrency: int
    requests: int
    stream: bool
    max_tokens: int = 8
    prompt: str = "What is the capital of France?"
    times_gaps: bool = False

    def body(self, model_id: str) -> str:
        """Give the chat request as both the daemon and llama-server take it."""
        request: dict[str, Any] = {
            "model": model_id,
            "messages": [{"role": "user", "content": self.prompt}],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": self.stream,
        }
        if self.stream:
            request["stream_options"] = {"include_usage": True}
        return json.dumps(request)


def chat_job(address: str, model_id: str, ask: Ask) -> Job:
    """Give the generator's job for what is asked at an address."""
    return Job(
        address=address,
        path=CHAT_PATH,
        body=ask.body(model_id),
        concurrency=ask.concurrency,
        requests=ask.requests,
        times_gaps=ask.times_gaps,
    )


def daemon_address(daemon: Daemon) -> str:
    """Give the address of a daemon's API, as a job names it."""
    return f"tcp:127.0.0.1:{daemon.port}"


@final
class LoadGenerator:
    """The generator's process; a context manager."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.load"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def __call__(self, job: Job) -> Outcome:
        """Run one job to its end.

        Raises:
            RuntimeError: An answer was not 200, or a connection broke.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(job)) + "\n")
        self._process.stdin.flush()
        fields: dict[str, Any] = json.loads(self._process.stdout.readline())
        outcome = Outcome(**fields)
        if outcome.error:
            message = f"{job.address}: {outcome.error}"
            raise RuntimeError(message)
        return outcome


def engine_processes(daemon: Daemon, needle: str) -> dict[int, list[str]]:
    """Find the engines that have `needle` in their command line; gives that, by process."""
    found: dict[int, list[str]] = {}
    for child in daemon.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            command = child.cmdline()
            is_shim = any(part.endswith("shim.py") for part in command)
            if not is_shim and any(needle in part for part in command):
                found[child.pid] = command
    return found


def engine_command(daemon: Daemon, needle: str) -> list[str]:
    """Find the command line of the engine that has `needle` in it.

    Raises:
        LookupError: No child of the daemon has it.
    """
    for command in engine_processes(daemon, needle).values():
        return command
    message = f"no engine of the daemon has {needle} in its command line"
    raise LookupError(message)


def engine_address(command: list[str]) -> str:
    """Find the Unix socket in an engine's command line."""
    if "--host" in command:
        return f"unix:{command[command.index('--host') + 1]}"
    parameters: dict[str, Any] = json.loads(command[-1])
    return f"unix:{parameters.get('socket') or parameters['socket_path']}"


@final
class Sides:
    """The same request to the engine and through the daemon."""

    def __init__(
        self, daemon: Daemon, generator: LoadGenerator, model_id: str, needle: str
    ) -> None:
        self.daemon = daemon
        self._generator = generator
        self._model_id = model_id
        self._engine = engine_address(engine_command(daemon, needle))

    def direct(self, ask: Ask) -> Outcome:
        """Ask the engine."""
        return self._generator(chat_job(self._engine, self._model_id, ask))

    def through(self, ask: Ask) -> Outcome:
        """Ask the daemon."""
        return self._generator(chat_job(daemon_address(self.daemon), self._model_id, ask))


def write_cards(models: Path) -> None:
    """Put the cards of the two scripted models where a daemon with this models folder sees them."""
    cards = models / "cards"
    cards.mkdir(parents=True, exist_ok=True)
    for model_id, repeat, delay_ms in ((QUICK, "false", 0), (PACED, "true", 20)):
        text = _CARD.format(model_id=model_id, repeat=repeat, delay_ms=delay_ms)
        (cards / f"{model_id.replace('/', '-')}.toml").write_text(text, encoding="utf-8")


def place(daemon: Daemon, model_id: str, *, context_tokens: int = CONTEXT_TOKENS) -> str:
    """Place a model with 32 slots and room for all of them, and give its instance once ready.

    A task reserves an upper bound of its prompt's size until the pool is tight, so the window of
    the scripted models is such that no task waits for tokens: waiting is not what is measured.
    """
    instance = daemon.place(model_id, slots=SLOTS, context_tokens=context_tokens)
    daemon.wait_phase(instance, timeout_s=300)
    return instance


def stop(daemon: Daemon, instance: str) -> None:
    """Stop an instance and wait until it is gone."""
    daemon.http.delete(f"/instance/{instance}")
    deadline_s = time.monotonic() + 30
    while daemon.http.get(f"/instance/{instance}").is_success:
        if time.monotonic() > deadline_s:
            message = f"instance {instance} is still there 30 s after its deletion"
            raise TimeoutError(message)
        time.sleep(POLL_S)
