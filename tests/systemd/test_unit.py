"""The unit of the machine under a real systemd: ready when it serves, alive, back after a crash."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from skulk_tui.cli.service_files import ServiceSpec, system_unit
from tests.support.daemon import SCRIPTS, free_port, wait_until

NAME: Final = f"skulk-test-{os.getpid()}.service"
SYSTEMCTL: Final = shutil.which("systemctl") or "systemctl"
UNIT: Final = Path("/run/systemd/system") / NAME
"""Gone with the next boot at the latest."""

pytestmark = pytest.mark.skipif(
    not UNIT.parent.exists(), reason="this machine was not booted by systemd"
)


def systemctl(*arguments: str) -> str:
    ended = subprocess.run(
        [SYSTEMCTL, *arguments, NAME], capture_output=True, text=True, timeout=60, check=True
    )
    return ended.stdout


def shown(name: str) -> str:
    return systemctl("show", "--value", f"--property={name}").strip()


@pytest.fixture
def port() -> Iterator[int]:
    # Not below the system's temporary files, of which the service has its own.
    root = Path(tempfile.mkdtemp(prefix="skulk-test-", dir="/opt"))
    home, models, port = root / "home", root / "models", free_port()
    for folder in (home, models):
        folder.mkdir()
    (home / "skulk.yaml").write_text(f"api: {port}\nmodels_dir: {models}\nmdns: false\n")
    spec = ServiceSpec(
        program=SCRIPTS / "skulkd", home=home, run_as="root", writable=(home, models)
    )
    UNIT.write_text(system_unit(spec))
    subprocess.run([SYSTEMCTL, "daemon-reload"], check=True, timeout=60)
    try:
        systemctl("start")
        yield port
    finally:
        subprocess.run([SYSTEMCTL, "stop", NAME], check=False, timeout=60)
        UNIT.unlink()
        subprocess.run([SYSTEMCTL, "daemon-reload"], check=True, timeout=60)
        shutil.rmtree(root)


def is_up(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).is_success
    except httpx.TransportError:
        return False


def test_the_unit_is_started_once_it_serves_and_comes_back_after_a_crash(port: int) -> None:
    assert is_up(port), "systemctl returns no earlier than the API answers"
    assert shown("StatusText") == f"serving on port {port}"
    first = shown("WatchdogTimestampMonotonic")
    wait_until(
        lambda: shown("WatchdogTimestampMonotonic") != first, timeout_s=20, what="a sign of life"
    )
    crashed = int(shown("MainPID"))
    os.kill(crashed, signal.SIGKILL)
    wait_until(lambda: shown("NRestarts") == "1" and is_up(port), timeout_s=30, what="a restart")
    assert int(shown("MainPID")) != crashed
    systemctl("stop")
    assert (shown("ActiveState"), shown("Result")) == ("inactive", "success")
