import configparser
import plistlib
from pathlib import Path

import pytest

from skulk_tui.cli.service_files import (
    ServiceSpec,
    launchd_job,
    quoted,
    spec_in,
    system_unit,
    user_unit,
)
from skulk_tui.cli.service_plans import (
    Account,
    Manager,
    RunCommand,
    WriteFile,
    install_steps,
    step_text,
    uninstall_steps,
    unit_path,
)

PROGRAM = Path("/opt/skulk/bin/skulkd")
ACCOUNT = Account(
    name="op", uid=1000, home=Path("/home/op"), config=Path("/home/op/.config")
)  # fmt: skip
SYSTEMS: tuple[Manager, ...] = (
    "systemd-user",
    "systemd-system",
    "launchd-user",
    "launchd-system",
)


def read(unit: str) -> dict[str, str]:
    parser = configparser.RawConfigParser(delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] - as its documentation has it
    parser.read_string(unit)
    return dict(parser["Service"])


@pytest.mark.parametrize("write", [user_unit, system_unit])
def test_a_unit_waits_for_the_daemon_watches_it_and_lets_engines_die_alone(write: object) -> None:
    unit = user_unit if write is user_unit else system_unit
    service = read(unit(ServiceSpec(program=PROGRAM)))
    assert service["Type"] == "notify"
    assert service["WatchdogSec"] == "30"
    assert service["OOMPolicy"] == "continue"
    assert service["KillMode"] == "mixed"
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"].split() == ["2", "78"]
    assert int(service["TimeoutStopSec"]) > 10
    assert service["NoNewPrivileges"] == "yes"
    assert "MemoryDenyWriteExecute" not in service
    assert not {"PrivateDevices", "ProtectClock"} & service.keys()


def test_a_users_unit_asks_for_no_name_space_which_its_manager_may_not_make() -> None:
    service = read(user_unit(ServiceSpec(program=PROGRAM)))
    mounts = {"ProtectSystem", "ProtectHome", "PrivateTmp", "ProtectProc", "ReadWritePaths"}
    assert not mounts & service.keys()
    assert service["ExecStart"] == str(PROGRAM)


def test_a_machines_unit_makes_up_a_user_with_a_folder_of_its_own() -> None:
    service = read(system_unit(ServiceSpec(program=PROGRAM, groups=("render",))))
    assert service["DynamicUser"] == "yes"
    assert service["StateDirectory"] == "skulk"
    assert service["Environment"] == "HOME=/var/lib/skulk XDG_DATA_HOME=/var/lib/skulk"
    assert service["SupplementaryGroups"] == "render"
    assert service["ProtectSystem"] == "strict"
    assert not service["CapabilityBoundingSet"]


def test_a_machines_unit_that_runs_as_somebody_writes_to_home_and_models_alone() -> None:
    home, models = Path("/srv/my skulk"), Path("/srv/models")
    spec = ServiceSpec(program=PROGRAM, home=home, run_as="op", writable=(home, models))
    service = read(system_unit(spec))
    assert service["User"] == "op"
    assert service["ReadWritePaths"] == '"/srv/my skulk" /srv/models'
    assert service["ExecStart"] == '/opt/skulk/bin/skulkd --home "/srv/my skulk"'
    assert not {"DynamicUser", "StateDirectory"} & service.keys()


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("/plain/path", "/plain/path"),
        ("/with space", '"/with space"'),
        ("100%", '"100%%"'),
        ("$HOME", '"$$HOME"'),
        ('say "x"', r'"say \"x\""'),
        ("back\\slash", r'"back\\slash"'),
        ("", '""'),
    ],
)
def test_words_are_written_so_that_systemd_reads_them_back(word: str, written: str) -> None:
    assert quoted(word) == written


def test_launchds_agent_starts_at_once_and_comes_back_after_a_failure_only() -> None:
    spec = ServiceSpec(program=PROGRAM, home=Path("/Users/op/den & kitchen"))
    job = plistlib.loads(launchd_job(spec, log=Path("/Users/op/Library/Logs/skulkd.log")))
    assert job["Label"] == "org.skulk.skulkd"
    assert job["ProgramArguments"] == [str(PROGRAM), "--home", "/Users/op/den & kitchen"]
    assert job["RunAtLoad"] is True
    assert job["KeepAlive"] == {"SuccessfulExit": False}
    assert job["ExitTimeOut"] > 10
    assert job["Umask"] == 0o077
    assert job["LimitLoadToSessionType"] == "Background"
    assert "UserName" not in job


def test_launchds_daemon_of_the_machine_names_its_user() -> None:
    spec = ServiceSpec(program=PROGRAM, run_as="op")
    job = plistlib.loads(launchd_job(spec, log=Path("/Library/Logs/skulkd.log")))
    assert job["UserName"] == "op"
    assert "LimitLoadToSessionType" not in job


@pytest.mark.parametrize("manager", SYSTEMS)
def test_what_is_installed_is_written_before_it_is_started_and_removed_after_it_is_stopped(
    manager: Manager,
) -> None:
    spec = ServiceSpec(program=PROGRAM, run_as="op" if manager.endswith("system") else None)
    steps = install_steps(manager, ACCOUNT, spec)
    (written,) = [step for step in steps if isinstance(step, WriteFile)]
    assert written.path == unit_path(manager, ACCOUNT)
    assert steps.index(written) < len(steps) - 1
    assert isinstance(steps[-1], RunCommand)
    texts = [step_text(step) for step in uninstall_steps(manager, ACCOUNT)]
    assert texts[0].startswith(("run systemctl", "run launchctl bootout"))
    assert texts[1] == f"remove {written.path}"


def test_a_users_node_lingers_before_its_manager_is_asked() -> None:
    texts = [
        step_text(step)
        for step in install_steps("systemd-user", ACCOUNT, ServiceSpec(program=PROGRAM))
    ]
    assert texts[1:] == [
        "run loginctl enable-linger op",
        "run systemctl --user daemon-reload",
        "run systemctl --user enable --now skulkd.service",
    ]


# ---- Read back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("home", [None, Path("/srv/den"), Path("/srv/a den/100 %/$x")])
@pytest.mark.parametrize("run_as", [None, "op"])
def test_what_an_installed_service_runs_is_read_back(home: Path | None, run_as: str | None) -> None:
    spec = ServiceSpec(program=PROGRAM, home=home, run_as=run_as)
    assert spec_in(system_unit(spec).encode()) == spec
    assert spec_in(launchd_job(spec, log=Path("/var/log/skulkd"))) == spec


@pytest.mark.parametrize(
    "content",
    [b"", b"[Service]\nExecStart=\n", b'ExecStart="', b"<?xml", b"<?xml version='1.0'?><plist/>"],
)
def test_what_is_no_service_of_ours_is_read_as_none(content: bytes) -> None:
    assert spec_in(content) is None
