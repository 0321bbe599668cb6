"""Other gateways, run beside ours before the same engines; none of them is needed.

Each is installed once, by its own lock, into an environment of its own in the benchmark's cache,
and runs without any way out of this machine: LiteLLM's proxy, in Python, and SGLang's router, in
Rust. Why these: docs/decisions/0019.
"""

import contextlib
import http.client
import json
import os
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from bench.harness import ROOT
from bench.load import Job
from bench.sides import Ask, chat_job
from tests.support.client_environments import (
    NotInstalledError,
    closed_environment,
    make_ready,
)
from tests.support.daemon import free_port

LOCKS: Final = ROOT / "bench" / "locks"
MADE: Final = Path.home() / ".cache" / "skulk-bench"
READY_S: Final = 60.0
POLL_S: Final = 0.1
_HOST: Final = "127.0.0.1"


class PeerError(RuntimeError):
    """A peer does not answer."""


@final
@dataclass(slots=True)
class Peer:
    """One gateway, with a process for all models or one for each."""

    name: str
    ports: Mapping[str, int]
    """By model."""
    pids: tuple[int, ...]

    def job(self, model_id: str, ask: Ask) -> Job:
        """Give the same request as the other sides get."""
        address = f"tcp:{_HOST}:{self.ports[model_id]}"
        return chat_job(address, model_id, ask)


@contextmanager
def running_peers(
    upstreams: Mapping[str, int], root: Path
) -> Generator[tuple[tuple[Peer, ...], tuple[str, ...]]]:
    """Run all peers that there are before engines on ports of loopback.

    Args:
        upstreams: The engines' ports, by model.
        root: For their settings and logs.

    Yields:
        The peers that answer, and a line for each that does not, with the reason.
    """
    peers: list[Peer] = []
    missing: list[str] = []
    with ExitStack() as stack:
        for name, start in (("LiteLLM", _litellm), ("SGLang router", _sglang)):
            try:
                peers.append(stack.enter_context(start(upstreams, root)))
            except (NotInstalledError, PeerError) as error:
                missing.append(f"{name} is missing: {str(error).splitlines()[0]}")
        yield tuple(peers), tuple(missing)


@contextmanager
def _litellm(upstreams: Mapping[str, int], root: Path) -> Generator[Peer]:
    folder = make_ready(LOCKS / "litellm.txt", MADE)
    config = root / "litellm.yaml"
    models = [
        {
            "model_name": model_id,
            "litellm_params": {
                "model": f"openai/{model_id}",
                "api_base": f"http://{_HOST}:{port}/v1",
                "api_key": "none",
            },
        }
        for model_id, port in upstreams.items()
    ]
    config.write_text(json.dumps({"model_list": models}), encoding="utf-8")  # JSON is YAML
    port = free_port()
    argv = [str(folder / "bin" / "litellm"), "--config", str(config), "--telemetry", "False"]
    argv += ["--host", _HOST, "--port", str(port)]
    extra = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "DISABLE_ADMIN_UI": "True",
        "NO_DOCS": "True",
    }
    with _process("litellm", argv, root, extra) as process:
        peer = Peer("LiteLLM", dict.fromkeys(upstreams, port), (process.pid,))
        _wait_ready(peer, process, root)
        yield peer


@contextmanager
def _sglang(upstreams: Mapping[str, int], root: Path) -> Generator[Peer]:
    folder = make_ready(LOCKS / "sglang-router.txt", MADE)
    ports: dict[str, int] = {}
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        for number, (model_id, upstream) in enumerate(upstreams.items()):
            port = ports[model_id] = free_port()
            argv = [str(folder / "bin" / "smg"), "launch", "--host", _HOST, "--port", str(port)]
            argv += ["--worker-urls", f"http://{_HOST}:{upstream}", "--log-level", "warn"]
            argv += ["--prometheus-host", _HOST, "--prometheus-port", str(free_port())]
            argv += ["--policy", "round_robin", "--disable-health-check"]
            process = stack.enter_context(_process(f"sglang-{number}", argv, root, {}))
            processes.append(process)
        peer = Peer("SGLang router", ports, tuple(process.pid for process in processes))
        for process in processes:
            _wait_ready(peer, process, root)
        yield peer


@contextmanager
def _process(
    name: str, argv: Sequence[str], root: Path, extra: Mapping[str, str]
) -> Generator[subprocess.Popen[bytes]]:
    environment = {**closed_environment(root / f"home-{name}"), **extra}
    with (root / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            argv, cwd=root, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(peer: Peer, process: subprocess.Popen[bytes], root: Path) -> None:
    deadline_s = time.monotonic() + READY_S
    ask = Ask(concurrency=1, requests=1, stream=False)
    for model_id in peer.ports:
        while not _answers(peer.job(model_id, ask)):
            if process.poll() is not None or time.monotonic() > deadline_s:
                # Its logs go with the folder, so the end of the last one written to is told.
                logs = sorted(root.glob("*.log"), key=os.path.getmtime)
                last = logs[-1].read_text(errors="replace").strip().splitlines()[-1:]
                message = f"it does not answer for {model_id}: {' '.join(last)[:200]}"
                raise PeerError(message)
            time.sleep(POLL_S)


def _answers(job: Job) -> bool:
    host, _, port = job.address.removeprefix("tcp:").rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    headers = {"Content-Type": "application/json"}
    try:
        connection.request("POST", job.path, job.body, headers)
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException):
        return False
    else:
        return answer.status == http.client.OK
    finally:
        with contextlib.suppress(OSError):
            connection.close()
