"""Engines as the daemon starts them, listening on loopback: most gateways know no Unix sockets."""

import http.client
import json
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psutil

from bench.harness import ROOT
from tests.support.daemon import free_port

READY_S: Final = 120.0
_POLL_S: Final = 0.05
_HOST: Final = "127.0.0.1"


def on_port(command: Sequence[str], port: int) -> list[str]:
    """Rewrite the command line of an engine on a Unix socket to one on a port."""
    argv = list(command)
    if "--host" in argv:
        argv[argv.index("--host") + 1] = _HOST
        return [*argv, "--port", str(port)]
    parameters: dict[str, Any] = json.loads(argv[-1])
    if "socket_path" in parameters:
        parameters["socket_path"] = _HOST
    parameters.pop("socket", None)
    argv[-1] = json.dumps({**parameters, "port": port})
    return argv


@contextmanager
def tcp_engine(pid: int, command: Sequence[str]) -> Generator[tuple[int, int]]:
    """Run a second engine like one that runs; gives its port and its process id.

    Args:
        pid: The first one's, for its priority.
        command: And its command line.

    Raises:
        RuntimeError: It is not ready in time, or ends.
    """
    port = free_port()
    niceness = str(psutil.Process(pid).nice())
    process = subprocess.Popen(
        ["nice", "-n", niceness, *on_port(command, port)],  # ruff: ignore[start-process-with-partial-path]  it becomes the engine
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline_s = time.monotonic() + READY_S
        while not _is_ready(port):
            if process.poll() is not None or time.monotonic() > deadline_s:
                message = f"the engine on port {port} does not get ready"
                raise RuntimeError(message)
            time.sleep(_POLL_S)
        yield port, process.pid
    finally:
        process.kill()
        process.wait()


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection(_HOST, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
