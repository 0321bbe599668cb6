"""`skulk service` for real: a user of its own, and a user's unit that lingers.

Both are installed as an operator does it, from a place that others may read. They are left out
where this machine has such a service, or its port is taken.
"""

import os
import pwd
import shutil
import socket
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from skulk_tui.cli.service_files import STATE_DIRECTORY, STATES, UNIT
from tests.support.source_tree import ROOT

PYTHON: Final = Path("/usr/bin/python3")
USER: Final = f"skulk-{os.getpid()}"
PORT: Final = 52415
PRIVATE: Final = STATES / "private" / STATE_DIRECTORY


def has_python() -> bool:
    probe = "import sys, venv; sys.exit(sys.version_info[:2] != (%d, %d))"
    wanted = sysconfig.get_python_version().split(".")
    if not PYTHON.exists():
        return False
    asked = probe % (int(wanted[0]), int(wanted[1]))
    return subprocess.run([PYTHON, "-c", asked], check=False, timeout=30).returncode == 0


def is_free() -> bool:
    if (Path("/etc/systemd/system") / UNIT).exists() or PRIVATE.exists():
        return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", PORT)) != 0


pytestmark = [
    pytest.mark.skipif(
        not Path("/run/systemd/system").exists(), reason="this machine was not booted by systemd"
    ),
    pytest.mark.skipif(not has_python(), reason="the system has no Python of this version"),
    pytest.mark.skipif(not is_free(), reason="this machine has a node of its own"),
]


@pytest.fixture
def programs() -> Iterator[Path]:
    """Install where every user may run it: the tests' own environment may be root's alone."""
    root = Path(tempfile.mkdtemp(prefix="skulk-test-", dir="/opt"))
    root.chmod(0o755)
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", root / "venv"], check=True, timeout=60)
    site = next((root / "venv" / "lib").glob("python*/site-packages"))
    shutil.copytree(
        sysconfig.get_path("purelib"),
        site,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("*.pth"),
    )
    for package in ("engines", "protocol", "skulk_tui", "skulkd", "store"):
        shutil.copytree(ROOT / package, site / package, dirs_exist_ok=True)
    for name, module in (("skulk", "skulk_tui.cli.main"), ("skulkd", "skulkd.cli")):
        script = root / "venv" / "bin" / name
        script.write_text(
            f"#!{root / 'venv' / 'bin' / 'python3'}\n"
            f"import sys\nfrom {module} import main\nsys.exit(main())\n"
        )
        script.chmod(0o755)
    yield root / "venv" / "bin"
    shutil.rmtree(root)


def run(*command: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end, with nothing of this environment but where programs lie."""
    program = shutil.which(command[0])
    assert program is not None
    return subprocess.run(
        [program, *command[1:]],
        env={"PATH": os.environ["PATH"], "HOME": "/root", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def must(*command: str | Path, **variables: str) -> str:
    """Run a program that has to end well; give what it wrote."""
    ran = run(*command, **variables)
    assert ran.returncode == 0, f"{command}: {ran.stdout}{ran.stderr}"
    return ran.stdout


@pytest.fixture
def user() -> Iterator[pwd.struct_passwd]:
    """A user who is logged in nowhere."""
    folder = f"/opt/{USER}"
    must("systemctl", "start", "dbus.service", "systemd-logind.service")
    must("useradd", "--create-home", "--home-dir", folder, USER)
    entry = pwd.getpwnam(USER)
    try:
        must("loginctl", "enable-linger", USER)
        yield entry
    finally:
        run("loginctl", "disable-linger", USER)
        run("systemctl", "stop", f"user@{entry.pw_uid}.service")
        must("userdel", USER)
        shutil.rmtree(folder)


def test_a_service_with_a_user_of_its_own_serves_and_leaves_what_is_listed(programs: Path) -> None:
    skulk = programs / "skulk"
    try:
        must(skulk, "service", "install")
        assert f"serving on port {PORT}" in must(skulk, "service", "status")
        assert "another user of this machine" in must(skulk, "info")
        must(skulk, "status")
    finally:
        removed = run(skulk, "uninstall", "--yes")
        shutil.rmtree(PRIVATE, ignore_errors=True)
        (STATES / STATE_DIRECTORY).unlink(missing_ok=True)
    assert removed.returncode == 0, removed.stderr
    assert f"{STATES / STATE_DIRECTORY}/skulk-models" in removed.stdout
    assert not (Path("/etc/systemd/system") / UNIT).exists()


@pytest.mark.skipif(shutil.which("loginctl") is None, reason="there is no logind")
def test_a_users_service_runs_while_its_user_is_logged_in_nowhere(
    programs: Path, user: pwd.struct_passwd
) -> None:
    as_user = ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
    skulk = (*as_user, programs / "skulk")
    must(*skulk, "service", "install", HOME=user.pw_dir)
    shown = must(*skulk, "service", "status", "-o", "yaml", HOME=user.pw_dir)
    assert f"status: serving on port {PORT}" in shown
    assert "lingering: true" in shown
    assert not must("loginctl", "list-sessions", "--no-legend").strip()
    must(*skulk, "status", HOME=user.pw_dir)
    must(*skulk, "service", "uninstall", HOME=user.pw_dir)
    gone = must(*skulk, "service", "status", "-o", "yaml", HOME=user.pw_dir)
    assert "installed: false" in gone
