"""`skulk service` as a user, against programs that stand in for systemd's."""

import json
import os
import pwd
import sys
from pathlib import Path
from typing import Final, final

import pytest

from skulk_tui.cli.service import manager_of
from skulk_tui.cli.service_plans import Manager
from tests.support.command_line import Ran, skulk

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")

_PROGRAM: Final = """#!/bin/sh
echo "$(basename "$0") $*" >> "{root}/asked"
line="$(basename "$0") $*"
[ -e "{root}/answers/$line" ] && cat "{root}/answers/$line"
[ -e "{root}/codes/$line" ] && exit "$(cat "{root}/codes/$line")"
exit 0
"""


@final
class Programs:
    """Stand-ins for systemctl and its like: they note what is asked and answer as they are told."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("bin", "answers", "codes", "home"):
            (root / name).mkdir()
        for name in ("systemctl", "loginctl", "journalctl"):
            path = root / "bin" / name
            path.write_text(_PROGRAM.format(root=root))
            path.chmod(0o755)
        self.answers("systemctl is-system-running", "running")

    def answers(self, line: str, text: str, *, code: int = 0) -> None:
        (self.root / "answers" / line).write_text(text)
        (self.root / "codes" / line).write_text(str(code))

    @property
    def asked(self) -> list[str]:
        path = self.root / "asked"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def unit(self) -> Path:
        return self.root / "home" / ".config" / "systemd" / "user" / "skulkd.service"

    def skulk(self, *arguments: str) -> Ran:
        return skulk(
            "service",
            *arguments,
            "--user",
            environment={
                "PATH": f"{self.root / 'bin'}:/usr/bin:/bin",
                "HOME": str(self.root / "home"),
            },
        )


SHOW = (
    "systemctl --user show skulkd.service "
    "--property=LoadState,UnitFileState,ActiveState,StatusText,MainPID,NRestarts"
)
UP = (
    "LoadState=loaded\nUnitFileState=enabled\nActiveState=active\n"
    "StatusText=serving on port 52415\nMainPID=4711\nNRestarts=2\n"
)


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


def test_installing_writes_the_unit_has_it_linger_and_starts_it(programs: Programs) -> None:
    ran = programs.skulk("install")
    assert ran.code == 0, ran.err
    assert "WantedBy=default.target" in programs.unit.read_text()
    assert programs.asked[0] == "systemctl is-system-running"
    assert programs.asked[1].startswith("loginctl enable-linger ")
    assert programs.asked[2:] == [
        "systemctl --user daemon-reload",
        "systemctl --user enable --now skulkd.service",
    ]


def test_where_only_root_may_have_it_linger_the_rest_goes_on_and_it_is_told(
    programs: Programs,
) -> None:
    name = pwd.getpwuid(os.geteuid()).pw_name
    programs.answers(f"loginctl enable-linger {name}", "", code=1)
    ran = programs.skulk("install", "--json")
    assert ran.code == 6
    assert programs.asked[-1] == "systemctl --user enable --now skulkd.service"
    done = {item["step"]: item["done"] for item in json.loads(ran.out)["items"]}
    assert [step for step, is_done in done.items() if not is_done] == [
        f"run loginctl enable-linger {name}"
    ]
    assert f"have root run `loginctl enable-linger {name}`" in ran.err
    assert "enable-linger" not in programs.skulk("install").out


def test_a_dry_run_shows_the_unit_and_touches_nothing(programs: Programs) -> None:
    ran = programs.skulk("install", "--dry-run", "--home", "/srv/den")
    assert ran.code == 0
    assert f"write {programs.unit}" in ran.out
    assert "Type=notify" in ran.out
    assert " --home /srv/den\n" in ran.out
    assert not programs.unit.exists()
    assert programs.asked == ["systemctl is-system-running"]


def test_a_daemon_that_does_not_start_is_told_with_its_own_reason(programs: Programs) -> None:
    line = "systemctl --user enable --now skulkd.service"
    programs.answers(line, "", code=1)
    programs.answers(
        "journalctl --user -u skulkd.service -n 50 -o cat",
        "Starting\nerror: port 52415 is taken by process 7 [config.port_busy]\n  remedy: x\n",
    )
    ran = programs.skulk("install", "--json")
    assert ran.code == 1
    error = json.loads(ran.err)["error"]
    assert error["code"] == "client.service_failed"
    reason = "port 52415 is taken by process 7 [config.port_busy]"
    assert error["message"] == f"`{line}` failed: {reason}"
    assert "journalctl --user" in error["remediation"]


@pytest.mark.usefixtures("no_real_waiting")
def test_a_manager_that_is_only_just_starting_is_asked_again(programs: Programs) -> None:
    programs.answers("systemctl --user daemon-reload", "no bus", code=1)
    ran = programs.skulk("install")
    assert ran.code == 1
    assert "no bus" in ran.err
    assert programs.asked.count("systemctl --user daemon-reload") > 10


def test_where_systemd_does_not_run_nothing_is_written(programs: Programs) -> None:
    programs.answers("systemctl is-system-running", "offline", code=1)
    ran = programs.skulk("install")
    assert ran.code == 1
    assert "systemd does not run here" in ran.err
    assert not programs.unit.exists()


def test_status_says_how_it_is_and_1_when_it_should_run_and_does_not(programs: Programs) -> None:
    programs.skulk("install")
    programs.answers(SHOW, UP)
    ran = programs.skulk("status", "--json")
    assert ran.code == 0, ran.err
    (item,) = json.loads(ran.out)["items"]
    assert item["state"] == "active"
    assert item["status"] == "serving on port 52415"
    assert (item["pid"], item["restarts"], item["enabled"]) == (4711, 2, True)
    assert item["lingering"] is False
    assert "enable-linger" in ran.err
    programs.answers(SHOW, UP.replace("=active", "=failed"))
    assert programs.skulk("status").code == 1


def test_uninstalling_stops_it_first_and_says_what_is_kept(programs: Programs) -> None:
    programs.skulk("install")
    programs.answers("systemctl --user disable --now skulkd.service", "not loaded", code=1)
    ran = programs.skulk("uninstall")
    assert ran.code == 0, ran.err
    assert not programs.unit.exists()
    assert programs.asked[-2:] == [
        "systemctl --user disable --now skulkd.service",
        "systemctl --user daemon-reload",
    ]
    assert "kept" in ran.err


def test_naming_whose_processes_is_for_root_alone(programs: Programs) -> None:
    ran = programs.skulk("install", "--run-as", "somebody")
    assert ran.code == 2
    assert "sudo skulk service install" in ran.err


@pytest.mark.parametrize(
    ("platform", "is_root", "user", "manager"),
    [
        ("linux", False, False, "systemd-user"),
        ("linux", True, False, "systemd-system"),
        ("linux", True, True, "systemd-user"),
        ("darwin", False, False, "launchd-user"),
        ("darwin", True, False, "launchd-system"),
    ],
)
def test_root_installs_for_the_machine_and_others_for_themselves(
    platform: str, is_root: bool, user: bool, manager: Manager
) -> None:
    assert manager_of(platform, is_root=is_root, user=user) == manager
