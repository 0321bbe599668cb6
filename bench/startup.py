"""How long starting takes: the daemon itself, and an instance less its engine's own start."""

import http.client
import json
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.harness import Result, cpu_seconds, interleaved, spread
from bench.sides import (
    CONTEXT_TOKENS,
    POLL_S,
    QUICK,
    SCRIPTED_SERVER,
    SLOTS,
    engine_command,
    place,
    stop,
    write_cards,
)
from tests.support.daemon import SCRIPTS, Daemon, clean_environment, free_port

N_ROUNDS: Final = 7


def _get(connection: http.client.HTTPConnection, path: str) -> tuple[int, bytes]:
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        connection.close()
        return 0, b""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(self._path)


def _wait_ok(connection: http.client.HTTPConnection, path: str, *, timeout_s: float = 30) -> None:
    deadline_s = time.monotonic() + timeout_s
    while _get(connection, path)[0] != http.client.OK:
        if time.monotonic() > deadline_s:
            message = f"{path} does not answer 200 within {timeout_s:g} s"
            raise TimeoutError(message)
        time.sleep(POLL_S)


def exec_to_health(root: Path) -> Result:
    """P30: from exec to the first answer of `/health`, in a home that exists."""
    port = free_port()
    command = [str(SCRIPTS / "skulkd"), "--home", str(root / "home"), "--api", str(port)]
    environment = clean_environment({"SKULK_MODELS_DIR": str(root / "models")})

    cpu_s: list[float] = []

    def once() -> float:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        began_s = time.perf_counter()
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            _wait_ok(connection, "/health")
            took_s = time.perf_counter() - began_s
            cpu_s.append(cpu_seconds(process.pid, descendants=False))
            return took_s
        finally:
            connection.close()
            process.terminate()
            process.wait(15)

    once()
    seen = spread([once() for _ in range(N_ROUNDS)])
    return Result(
        goal="P30",
        metric="exec to /health",
        unit="s",
        gate=0.8,
        stretch=0.4,
        seen=seen.median,
        detail=f"{seen}, CPU {median(cpu_s):.2f} s; 7 starts, bytecode cached",
    )


def place_to_ready(daemon: Daemon, argv: list[str], scratch: Path) -> Result:
    """P16: from `place` to ready, less what the same engine takes from exec to healthy."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=10)
    parameters: dict[str, Any] = json.loads(argv[-1])
    path = str(scratch / "engine.sock")
    command = [*argv[:-1], json.dumps({**parameters, "socket": path})]

    def alone() -> float:
        Path(path).unlink(missing_ok=True)
        began_s = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        own = _UnixConnection(path)
        try:
            _wait_ok(own, "/health")
            return (time.perf_counter() - began_s) * 1e3
        finally:
            own.close()
            process.kill()
            process.wait(10)

    def placed() -> float:
        began_s = time.perf_counter()
        instance = daemon.place(QUICK, slots=SLOTS, context_tokens=CONTEXT_TOKENS)
        while not _is_ready(_get(connection, f"/instance/{instance}")[1]):
            if time.perf_counter() - began_s > 30:
                message = f"not ready within 30 s: {daemon.instance(instance)}"
                raise TimeoutError(message)
            time.sleep(POLL_S)
        took_s = time.perf_counter() - began_s
        stop(daemon, instance)
        return took_s * 1e3

    pair = interleaved(alone, placed, rounds=N_ROUNDS)
    added = pair.difference()
    return Result(
        goal="P16",
        metric="place to ready, less the engine's own start",
        unit="ms",
        gate=300,
        stretch=100,
        seen=added.median,
        detail=f"engine alone {median(pair.a):.0f} ms, added {added}; 7 rounds, scripted engine",
    )


def _is_ready(document: bytes) -> bool:
    return bool(document) and json.loads(document).get("phase") == "ready"


def _instances(root: Path) -> Result:
    models = root / "models"
    write_cards(models)
    with Daemon(root, models_dir=models) as daemon:
        instance = place(daemon, QUICK)
        argv = engine_command(daemon, SCRIPTED_SERVER)
        stop(daemon, instance)
        return place_to_ready(daemon, argv, root)


def run() -> list[Result]:
    """Measure P16 and P30."""
    with tempfile.TemporaryDirectory(prefix="skulk-bench-") as name:
        root = Path(name)
        return [_instances(root / "instances"), exec_to_health(root / "start")]
