"""Which steps install the service and take it away, for each manager. Pure: nothing is done."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, assert_never

from skulk_tui.cli.service_files import (
    LABEL,
    UNIT,
    ServiceSpec,
    launchd_job,
    system_unit,
    user_unit,
)

Manager = Literal["systemd-user", "systemd-system", "launchd-user", "launchd-system"]
SYSTEMD: Final = ("systemd-user", "systemd-system")
_SYSTEM_UNITS: Final = Path("/etc/systemd/system")
_SYSTEM_JOBS: Final = Path("/Library/LaunchDaemons")
_SYSTEM_LOG: Final = Path("/Library/Logs/skulkd.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeFolder:
    """Make a folder that only the service's user sees, unless it is there."""

    path: Path
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFile:
    """Write a file whole."""

    path: Path
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveFile:
    """Remove a file, if it is there."""

    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommand:
    """Run a program of the service manager."""

    arguments: tuple[str, ...]
    may_fail: bool = False
    """Its failure means that there was nothing to do."""
    warning: str = ""
    """What its failure means, where the service is of use without it; the rest goes on."""
    is_repeated: bool = False
    """Tried for some seconds: the manager it speaks to may just be starting."""


Step = MakeFolder | WriteFile | RemoveFile | RunCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Whose service it is."""

    name: str
    uid: int
    home: Path
    config: Path
    """The XDG configuration directory."""


def step_text(step: Step) -> str:
    """Say what a step does, in one line."""
    match step:
        case MakeFolder():
            return f"make {step.path} for {step.owner}"
        case WriteFile():
            return f"write {step.path}"
        case RemoveFile():
            return f"remove {step.path}"
        case RunCommand():
            return f"run {' '.join(step.arguments)}"
        case _ as never:
            assert_never(never)


def unit_path(manager: Manager, account: Account) -> Path:
    """Say where the manager looks for the service."""
    match manager:
        case "systemd-user":
            return account.config / "systemd" / "user" / UNIT
        case "systemd-system":
            return _SYSTEM_UNITS / UNIT
        case "launchd-user":
            return account.home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        case "launchd-system":
            return _SYSTEM_JOBS / f"{LABEL}.plist"
        case _ as never:
            assert_never(never)


def unit_content(manager: Manager, account: Account, spec: ServiceSpec) -> bytes:
    """Write what the manager is given."""
    match manager:
        case "systemd-user":
            return user_unit(spec).encode()
        case "systemd-system":
            return system_unit(spec).encode()
        case "launchd-user":
            return launchd_job(spec, log=account.home / "Library" / "Logs" / "skulkd.log")
        case "launchd-system":
            return launchd_job(spec, log=_SYSTEM_LOG)
        case _ as never:
            assert_never(never)


def systemctl(manager: Manager, *arguments: str) -> tuple[str, ...]:
    """Give the command line that asks the right systemd."""
    return ("systemctl", *(("--user",) if manager == "systemd-user" else ()), *arguments)


def install_steps(manager: Manager, account: Account, spec: ServiceSpec) -> tuple[Step, ...]:
    """Plan the installation; the same once more changes nothing."""
    path = unit_path(manager, account)
    write = WriteFile(path=path, content=unit_content(manager, account, spec))
    folders = (
        ()
        if spec.run_as is None
        else tuple(MakeFolder(path=one, owner=spec.run_as) for one in spec.writable)
    )
    match manager:
        case "systemd-user":
            return (
                write,
                RunCommand(
                    arguments=("loginctl", "enable-linger", account.name),
                    # Where no polkit runs, only root may.
                    warning=f"the node will end with your last login: have root run "
                    f"`loginctl enable-linger {account.name}`",
                ),
                RunCommand(arguments=systemctl(manager, "daemon-reload"), is_repeated=True),
                RunCommand(arguments=systemctl(manager, "enable", "--now", UNIT)),
            )
        case "systemd-system":
            return (
                *folders,
                write,
                RunCommand(arguments=systemctl(manager, "daemon-reload")),
                RunCommand(arguments=systemctl(manager, "enable", "--now", UNIT)),
            )
        case "launchd-user" | "launchd-system":
            domain = _domain(manager, account)
            return (
                *folders,
                write,
                RunCommand(arguments=("launchctl", "bootout", f"{domain}/{LABEL}"), may_fail=True),
                RunCommand(arguments=("launchctl", "bootstrap", domain, str(path))),
            )
        case _ as never:
            assert_never(never)


def uninstall_steps(manager: Manager, account: Account) -> tuple[Step, ...]:
    """Plan the removal. Home, models and lingering stay: other things may need them."""
    path = unit_path(manager, account)
    match manager:
        case "systemd-user" | "systemd-system":
            return (
                RunCommand(arguments=systemctl(manager, "disable", "--now", UNIT), may_fail=True),
                RemoveFile(path=path),
                RunCommand(arguments=systemctl(manager, "daemon-reload")),
            )
        case "launchd-user" | "launchd-system":
            target = f"{_domain(manager, account)}/{LABEL}"
            return (
                RunCommand(arguments=("launchctl", "bootout", target), may_fail=True),
                RemoveFile(path=path),
            )
        case _ as never:
            assert_never(never)


def _domain(manager: Manager, account: Account) -> str:
    return "system" if manager == "launchd-system" else f"user/{account.uid}"
