"""Machines of a small network, as namespaces on one bridge: own addresses, real multicast.

Needs root in a network and mount namespace of its own (`make test-net`): nothing here touches the
machine's own network, and all of it is gone with the namespace.
"""

import itertools
import json
import shutil
import signal
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from tests.support.daemon import SCRIPTS, clean_environment, wait_until

BRIDGE: Final = "skulk0"
SUBNET: Final = "10.77.0"
_STOP_S: Final = 15.0
_SERIALS: Final = itertools.count(1)


@dataclass(frozen=True)
class Machine:
    """One namespace on the bridge.

    Args:
        name: What its node is called.
        address: On the bridge.
        serial: Of all machines ever made here: a namespace goes with its last process, and its
            name must not be waited for.
    """

    name: str
    address: str
    serial: int

    @property
    def namespace(self) -> str:
        """The name of its namespace."""
        return f"skulk-{self.serial}"

    @property
    def cable(self) -> str:
        """The bridge's end of its cable."""
        return f"cable-{self.serial}"

    def argv(self, command: Sequence[str]) -> list[str]:
        """Wrap a command so that it runs on this machine."""
        return [_program("ip"), "netns", "exec", self.namespace, *command]

    def unplug(self) -> None:
        """Pull the cable at the switch; the machine itself sees its link stay up."""
        _ip("link", "set", self.cable, "nomaster")

    def plug_in(self) -> None:
        """Put the cable back."""
        _ip("link", "set", self.cable, "master", BRIDGE)

    def throttle(self, mbit_s: int) -> None:
        """Let no more than this pass from the switch to this machine; what it sends is free."""
        how = ("tbf", "rate", f"{mbit_s}mbit", "burst", "64kb", "latency", "50ms")
        tc = _program("tc")
        subprocess.run(
            [tc, "qdisc", "add", "dev", self.cable, "root", *how], check=True, timeout=10
        )

    def allow_multicast(self, *, is_allowed: bool) -> None:
        """Let multicast leave this machine, or route it nowhere, as some networks do."""
        if is_allowed:
            _ip("-n", self.namespace, "route", "del", "blackhole", "224.0.0.0/4")
        else:
            _ip("-n", self.namespace, "route", "add", "blackhole", "224.0.0.0/4")


@contextmanager
def small_network(n_machines: int) -> Generator[tuple[Machine, ...]]:
    """Make machines on a bridge; they are gone on exit."""
    machines = tuple(
        Machine(name=f"m{number}", address=f"{SUBNET}.{number}", serial=next(_SERIALS))
        for number in range(1, n_machines + 1)
    )
    _ip("link", "set", "lo", "up")
    _ip("link", "add", BRIDGE, "type", "bridge", "mcast_snooping", "0")
    made: list[Machine] = []
    try:
        _ip("link", "set", BRIDGE, "up")
        for machine in machines:
            _ip("netns", "add", machine.namespace)
            made.append(machine)
            _connect(machine)
        yield machines
    finally:
        for machine in made:
            _ip("netns", "del", machine.namespace)
        _ip("link", "del", BRIDGE)


def _connect(machine: Machine) -> None:
    inside = ("-n", machine.namespace)
    peer = ("peer", "name", "eth0", "netns", machine.namespace)
    _ip("link", "add", machine.cable, "type", "veth", *peer)
    _ip("link", "set", machine.cable, "master", BRIDGE, "up")
    _ip(*inside, "link", "set", "lo", "up")
    _ip(*inside, "addr", "add", f"{machine.address}/24", "dev", "eth0")
    _ip(*inside, "link", "set", "eth0", "up")
    _ip(*inside, "route", "add", "default", "via", f"{SUBNET}.254")


@final
class NodeOnMachine:
    """A daemon on a machine of the network, seen as its operator sees it: through `skulk`.

    Args:
        machine: Where it runs.
        root: An empty folder for home, models and log.
        arguments: Further flags for `skulkd`.
    """

    def __init__(self, machine: Machine, root: Path, *, arguments: Sequence[str] = ()) -> None:
        self.machine = machine
        self.root = root
        self.arguments = tuple(arguments)
        self.log_path = root / "skulkd.log"
        self.environment = clean_environment(
            {
                "SKULK_MODELS_DIR": str(root / "models"),
                "XDG_CONFIG_HOME": str(root / "config"),
            }
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the daemon and wait until it answers its operator."""
        self.root.mkdir(parents=True, exist_ok=True)
        argv = [str(SCRIPTS / "skulkd"), "--home", str(self.root / "home")]
        argv += ["--name", self.machine.name, *self.arguments]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.machine.argv(argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.root,
                start_new_session=True,
            )
        wait_until(self._answers, timeout_s=30, what=f"{self.machine.name} answers")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log_tail()
        return self.skulk("cluster", "status").returncode == 0

    def stop(self) -> None:
        """End it as a service manager would; idempotent."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout=_STOP_S)

    def kill(self) -> None:
        """End it as a power cut would; idempotent."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(timeout=_STOP_S)

    def skulk(
        self, *arguments: str, stdin: str = "", timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run the operator's command on this machine."""
        return subprocess.run(
            self.machine.argv([str(SCRIPTS / "skulk"), *arguments]),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=self.environment,
            cwd=self.root,
        )

    def skulk_json(self, *arguments: str, stdin: str = "", timeout_s: float = 60) -> Any:  # ruff: ignore[any-type]  JSON
        """Run the operator's command and give what it prints with `--json`.

        Raises:
            AssertionError: It failed; carries what it said.
        """
        ended = self.skulk(*arguments, "--json", stdin=stdin, timeout_s=timeout_s)
        assert ended.returncode == 0, f"{arguments}: {ended.stderr}\n{self.log_tail()}"
        return json.loads(ended.stdout)

    def log_tail(self, n_lines: int = 60) -> str:
        """Give the last lines that the daemon printed."""
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-n_lines:])


def _ip(*arguments: str) -> None:
    subprocess.run([_program("ip"), *arguments], check=True, timeout=10)


def _program(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"{name} is not installed"
    return found
