"""A real `skulkd` in a home of its own, on a free port: what every end-to-end test stands on.

Starts the installed script, waits for `/health`, keeps everything it prints, and kills by pid. What
the daemon itself started is counted and killed too, so that no test leaves an engine behind.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, final

import httpx
import psutil

from tests.support.patience import allowed_s

SCRIPTS: Final = Path(sys.executable).parent
HEALTHY_TIMEOUT_S: Final = 30.0
"""Generous: several daemons and a compiler may share two cores with this one."""
POLL_S: Final = 0.02


def free_port() -> int:
    """Find a TCP port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def own_address() -> str | None:
    """Give an IPv4 address of this machine beyond loopback; None where it has none."""
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family == socket.AF_INET and not address.address.startswith("127."):
                return address.address
    return None


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Copy this process's environment without any setting of skulk's, and add `extra`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SKULK_")}
    return {**kept, **(extra or {})}


def wait_until(condition: Callable[[], bool], *, timeout_s: float, what: str) -> None:
    """Poll until `condition` holds.

    Raises:
        AssertionError: It did not within `timeout_s`, on a busy machine longer; names `what`.
    """
    limit_s = allowed_s(timeout_s)
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            message = f"{what}: not within {limit_s:g} s"
            raise AssertionError(message)
        time.sleep(POLL_S)


@final
class Daemon:
    """One node. A context manager: started on entry, gone with all its children on exit.

    Args:
        root: An empty folder; the home, the models and the log lie in it.
        arguments: Further flags for `skulkd`.
        environment: Further variables; a setting there overrides what this class sets.
        models_dir: Where models lie, to share a download between daemons.
        port: Of the API; a free one by default.
    """

    def __init__(
        self,
        root: Path,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        models_dir: Path | None = None,
        port: int | None = None,
    ) -> None:
        self.root = root
        self.home = root / "home"
        self.models_dir = models_dir or root / "models"
        self.log_path = root / "skulkd.log"
        self.port = port or free_port()
        self.arguments = tuple(arguments)
        self.environment = clean_environment(
            {
                "SKULK_MODELS_DIR": str(self.models_dir),
                "XDG_CONFIG_HOME": str(root / "config"),
                **(environment or {}),
            }
        )
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where the API answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running or last process.

        Raises:
            AssertionError: It was never started.
        """
        assert self._process is not None, "the daemon was never started"
        return self._process

    @property
    def pid(self) -> int:
        """The process id of the running or last process."""
        return self.process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    # ---- Life ----------------------------------------------------------------------------------

    def spawn(self, *, stdin: str | None = None) -> None:
        """Start the process and return at once; `stdin` is what it can read there, at most 4 KB."""
        assert self._process is None or self._process.poll() is not None, "it runs already"
        self.root.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(SCRIPTS / "skulkd"),
                    "--home",
                    str(self.home),
                    "--api",
                    str(self.port),
                    *self.arguments,
                ],
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.root,
                start_new_session=True,
            )
        if stdin is not None:
            assert self._process.stdin is not None
            with self._process.stdin as pipe:
                pipe.write(stdin.encode())

    def start(self, *, timeout_s: float = HEALTHY_TIMEOUT_S) -> None:
        """Start the process and wait until `/health` answers."""
        self.spawn()
        self.wait_healthy(timeout_s=timeout_s)

    def wait_healthy(self, *, timeout_s: float = HEALTHY_TIMEOUT_S) -> None:
        """Wait until `/health` answers.

        Raises:
            AssertionError: The process ended or did not answer; carries the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            code = self.process.poll()
            if code is not None:
                message = f"skulkd ended with {code} before it was healthy:\n{self.log_tail()}"
                raise AssertionError(message)
            with contextlib.suppress(httpx.TransportError):
                if self.http.get("/health", timeout=5).is_success:
                    return
            if time.monotonic() > deadline:
                message = f"skulkd not healthy within {timeout_s:g} s:\n{self.log_tail()}"
                raise AssertionError(message)
            time.sleep(POLL_S)

    def wait_exit(self, *, timeout_s: float = 15) -> int:
        """Wait for the end of the process and give its exit status (negative: the signal)."""
        return self.process.wait(timeout=timeout_s)

    def stop(self, *, timeout_s: float = 15) -> int:
        """End it as systemd would (SIGTERM) and give its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait_exit(timeout_s=timeout_s)

    def kill(self) -> None:
        """End it as a power cut would (SIGKILL)."""
        self.process.kill()
        self.process.wait(timeout=10)

    def restart(self) -> None:
        """Stop it if it runs, and start it on the same home and port."""
        if self.process.poll() is None:
            self.stop()
        self.start()

    def children(self) -> list[psutil.Process]:
        """Every process below the daemon, engines and shims alike."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def destroy(self) -> None:
        """Kill the daemon and whatever it started; close the HTTP client. May be called twice."""
        self.http.close()
        if self._process is None:
            return
        below = self.children()
        if self._process.poll() is None:
            self.kill()
        for child in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(below, timeout=5)

    # ---- What it says --------------------------------------------------------------------------

    def log_text(self) -> str:
        """Everything it printed."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self, n_lines: int = 40) -> str:
        """The last lines it printed."""
        return "\n".join(self.log_text().splitlines()[-n_lines:])

    # ---- Models --------------------------------------------------------------------------------

    def place(self, model_id: str, **body: object) -> str:
        """Place a model and give the id of its instance.

        Raises:
            AssertionError: The answer is not 2xx; carries it.
        """
        answer = self.http.post("/place_instance", json={"model_id": model_id, **body})
        assert answer.is_success, f"{answer.status_code}: {answer.text}"
        return str(answer.json()["instance_id"])

    def instance(self, instance_id: str) -> dict[str, Any]:
        """Give the instance's document, as `GET /instance/{id}` shows it."""
        answer = self.http.get(f"/instance/{instance_id}")
        assert answer.is_success, f"{answer.status_code}: {answer.text}"
        document: dict[str, Any] = answer.json()
        return document

    def wait_heard(self, instance_id: str) -> None:
        """Wait until this node has heard of an instance that was placed through another one."""
        path = f"/instance/{instance_id}"
        wait_until(lambda: self.http.get(path).is_success, timeout_s=5, what="it hears of it")

    def wait_phase(
        self, instance_id: str, phase: str = "ready", *, timeout_s: float = 60
    ) -> dict[str, Any]:
        """Wait until an instance is in `phase`, and give its document.

        Raises:
            AssertionError: It failed instead, or took longer; carries the document.
        """
        deadline = time.monotonic() + timeout_s
        self.wait_heard(instance_id)
        while True:
            document = self.instance(instance_id)
            if document["phase"] == phase:
                return document
            assert document["phase"] != "failed", document
            assert time.monotonic() < deadline, document
            time.sleep(POLL_S)

    def skulk(
        self,
        *arguments: str,
        stdin: str | None = None,
        timeout_s: float = 60,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run the operator's command against this node."""
        return subprocess.run(
            [str(SCRIPTS / "skulk"), *arguments],
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**self.environment, "SKULK_NODE": self.url, **(environment or {})},
            cwd=self.root,
        )
