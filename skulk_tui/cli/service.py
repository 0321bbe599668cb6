"""`skulk service install | status | uninstall`: the node as a service of this machine or user.

A service outlives the terminal it was started from, comes back after a crash and after a boot.
"""

import grp
import os
import pwd
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from protocol.errors import ClientError
from skulk_tui.cli import exit_codes
from skulk_tui.cli.operation_records import ServiceRecord, StepRecord
from skulk_tui.cli.output import Column, Listing, Table, key_values
from skulk_tui.cli.service_files import ServiceSpec
from skulk_tui.cli.service_manager import ServiceDriver
from skulk_tui.cli.service_plans import (
    Account,
    Manager,
    Step,
    WriteFile,
    install_steps,
    step_text,
    uninstall_steps,
)
from skulk_tui.cli.session import Session
from skulk_tui.cli.verb import DryRunOption, group, verb
from skulk_tui.formatting import UNKNOWN
from skulk_tui.own_files import read_text

DAEMON: Final = "skulkd"
_DEVICE_GROUPS: Final = ("render", "video")
_SETTINGS_MAX_BYTES: Final = 64 * 1024
_ENTERED_BY_ALL: Final = 0o001

UserOption = Annotated[
    bool, typer.Option("--user", help="Of the user, also when root runs this command.")
]


def add_service_verbs(app: typer.Typer) -> None:
    """Register the verbs."""
    service = group(app, "service", "The node as a service: of this user, or as root the machine.")
    verb(
        service,
        "install",
        examples=("skulk service install", "skulk service install --dry-run"),
    )(install)
    verb(service, "status", examples=("skulk service status", "skulk service status --json"))(
        show_status
    )
    verb(
        service,
        "uninstall",
        examples=("skulk service uninstall", "skulk service uninstall --dry-run"),
    )(uninstall)


def install(
    session: Session,
    *,
    home: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The node's home [default: SKULK_HOME].")
    ] = None,
    run_as: Annotated[
        str | None,
        typer.Option(
            metavar="USER", help="As root: whose processes [default: who called sudo, else its own]"
        ),
    ] = None,
    user: UserOption = False,
    dry_run: DryRunOption = False,
) -> int | None:
    """Have this machine run the node, from now on and after each boot.

    Exit code: 6 where it runs, but ends with its user's last login.
    """
    manager = manager_of(sys.platform, is_root=os.geteuid() == 0, user=user)
    account = own_account(session.environ)
    if run_as is not None and not manager.endswith("system"):
        raise ClientError(
            "client.usage",
            "--run-as is for a service of the whole machine",
            remediation="Run it as root: `sudo skulk service install --run-as USER`.",
        )
    spec = _spec(session, manager, home=home, run_as=run_as)
    driver = ServiceDriver(manager, account, session.environ, session.clock)
    problems = [*_absence(driver, manager), *_problems(manager, spec)]
    steps = install_steps(manager, account, spec)
    if dry_run:
        for problem in problems:
            session.narrate(f"as things are this would fail: {problem.message}")
        return _show(session, steps, done=())
    if problems:
        raise problems[0]
    return _take(session, driver, steps)


def uninstall(session: Session, *, user: UserOption = False, dry_run: DryRunOption = False) -> int:
    """Stop the service and remove it; home and models stay."""
    manager = manager_of(sys.platform, is_root=os.geteuid() == 0, user=user)
    account = own_account(session.environ)
    steps = uninstall_steps(manager, account)
    if dry_run:
        return _show(session, steps, done=())
    remove_service(session, manager, account)
    _show(session, steps, done=steps)
    session.narrate("Home and models are kept: `skulk uninstall --dry-run` lists them.")
    return exit_codes.OK


def remove_service(session: Session, manager: Manager, account: Account) -> None:
    """Stop the service and take it away.

    Raises:
        ClientError: `client.service_failed`.
    """
    driver = ServiceDriver(manager, account, session.environ, session.clock)
    for absence in _absence(driver, manager):
        raise absence
    for step in uninstall_steps(manager, account):
        driver.take(step)


def show_status(session: Session, *, user: UserOption = False) -> int:
    """Show whether the service is installed and how it is; 1 when it should run and does not."""
    manager = manager_of(sys.platform, is_root=os.geteuid() == 0, user=user)
    record = ServiceDriver(
        manager, own_account(session.environ), session.environ, session.clock
    ).record()
    session.output.show(
        Listing(
            kind="service", items=(record,), tables=(_status_table(record),), names=(record.unit,)
        )
    )
    if not record.installed:
        session.narrate("There is no service. Make one: `skulk service install`.")
        return exit_codes.OK
    if record.lingering is False:
        session.narrate(
            "It ends with your last login: `loginctl enable-linger` has it stay (as root, with "
            "your name, where that is refused).",
        )
    return exit_codes.OK if record.state == "active" else exit_codes.FAILED


def manager_of(platform: str, *, is_root: bool, user: bool) -> Manager:
    """Choose the service manager of a platform, and whose service it is."""
    is_system = is_root and not user
    if platform == "darwin":
        return "launchd-system" if is_system else "launchd-user"
    return "systemd-system" if is_system else "systemd-user"


def own_account(environ: Mapping[str, str]) -> Account:
    """Say whose command this is."""
    entry = pwd.getpwuid(os.geteuid())
    home = Path(environ.get("HOME") or entry.pw_dir)
    config = environ.get("XDG_CONFIG_HOME", "")
    return Account(
        name=entry.pw_name,
        uid=entry.pw_uid,
        home=home,
        config=Path(config) if config.startswith("/") else home / ".config",
    )


def _spec(
    session: Session, manager: Manager, *, home: Path | None, run_as: str | None
) -> ServiceSpec:
    program = Path(sysconfig.get_path("scripts")) / DAEMON
    chosen = session.environ.get("SKULK_HOME")
    home = home or (Path(chosen) if chosen else None)
    home = None if home is None else home.absolute()
    if not manager.endswith("system"):
        return ServiceSpec(program=program, home=home)
    run_as = run_as or session.environ.get("SUDO_USER")
    if run_as is None:
        if home is not None:
            raise ClientError(
                "client.usage",
                "a service with a user of its own has its home in /var/lib/skulk",
                remediation="Name the home's owner with --run-as, or leave --home out.",
            )
        return ServiceSpec(program=program, groups=_device_groups())
    data = user_folder(run_as) / ".local" / "share"
    home = home or data / "skulk"
    return ServiceSpec(
        program=program,
        home=home,
        run_as=run_as,
        groups=_device_groups(),
        writable=(home, models_dir_of(home) or data / "skulk-models"),
    )


def user_folder(name: str) -> Path:
    """Give a user's home folder.

    Raises:
        ClientError: `client.usage`; there is no such user.
    """
    try:
        return Path(pwd.getpwnam(name).pw_dir)
    except KeyError as wrong:
        raise ClientError(
            "client.usage",
            f"--run-as: this machine has no user {name[:40]!r}",
            remediation="Make it, for instance `useradd --system --create-home skulk`.",
        ) from wrong


def models_dir_of(home: Path) -> Path | None:
    """Read where a node keeps its models, if its settings say so: the service must write there."""
    text = read_text(home / "skulk.yaml", max_bytes=_SETTINGS_MAX_BYTES)
    for line in (text or "").splitlines():
        key, _, value = line.partition(":")
        named = value.split(" #")[0].strip().strip("'\"")
        if key == "models_dir" and named.startswith("/"):
            return Path(named)
    return None


def _device_groups() -> tuple[str, ...]:
    known = {entry.gr_name for entry in grp.getgrall()}
    return tuple(name for name in _DEVICE_GROUPS if name in known)


def _absence(driver: ServiceDriver, manager: Manager) -> list[ClientError]:
    if driver.is_present():
        return []
    name = manager.partition("-")[0]
    return [
        ClientError(
            "client.service_failed",
            f"{name} does not run here",
            remediation="Have whatever starts programs on this machine run `skulkd`.",
        )
    ]


def _problems(manager: Manager, spec: ServiceSpec) -> list[ClientError]:
    """Find why the service could not start the daemon."""
    if not os.access(spec.program, os.X_OK):
        return [
            ClientError(
                "client.service_failed",
                f"there is no {spec.program}",
                remediation="Install skulk again, as one program: `uv tool install .`.",
            )
        ]
    if not manager.endswith("system"):
        return []
    for path in spec.writable:
        if path.is_relative_to("/tmp") or path.is_relative_to("/var/tmp"):  # ruff: ignore[hardcoded-temp-file]  named to be refused
            return [
                ClientError(
                    "client.service_failed",
                    f"{path} is temporary, and a service has temporary files of its own",
                    remediation="Keep home and models elsewhere: --home DIR, and models_dir in "
                    "its skulk.yaml.",
                )
            ]
    if spec.run_as == "root":
        return []
    interpreter = Path(sys.executable)
    closed = [
        folder
        for path in (spec.program, interpreter, interpreter.resolve())
        for folder in path.parents
        if not folder.stat().st_mode & _ENTERED_BY_ALL and not _owns(spec.run_as, folder)
    ]
    if not closed:
        return []
    return [
        ClientError(
            "client.service_failed",
            f"{closed[0]} lets nobody else in, and the service's user has to run what lies there",
            remediation="Install skulk where all may read, such as /opt, or name that folder's "
            "owner with --run-as.",
        )
    ]


def _owns(name: str | None, folder: Path) -> bool:
    return name is not None and folder.stat().st_uid == pwd.getpwnam(name).pw_uid


def _take(session: Session, driver: ServiceDriver, steps: tuple[Step, ...]) -> int:
    warnings = {step: driver.take(step) for step in steps}
    _show(session, steps, done=tuple(step for step in steps if not warnings[step]))
    for warning in filter(None, warnings.values()):
        session.narrate(f"warning: {warning}")
    return exit_codes.PARTIAL if any(warnings.values()) else exit_codes.OK


def _show(session: Session, steps: tuple[Step, ...], *, done: tuple[Step, ...]) -> int:
    records = [
        StepRecord(
            step=step_text(step),
            done=step in done,
            content=step.content.decode() if isinstance(step, WriteFile) else None,
        )
        for step in steps
    ]
    head = "DONE" if done else "WOULD"
    rows = tuple((one.step,) for one in records if one.done or not done)
    session.output.show(
        Listing(
            kind="steps",
            items=records,
            tables=(Table((Column(head, wraps=True),), rows),),
            names=[one.step for one in records],
        )
    )
    if not done and session.form in {"table", "wide"}:
        for one in records:
            if one.content is not None:
                session.output.write(f"\n{one.content}")
    return exit_codes.OK


def _status_table(record: ServiceRecord) -> Table:
    def said(flag: bool | None) -> str:
        return UNKNOWN if flag is None else ("yes" if flag else "no")

    return key_values(
        [
            ("manager", record.manager),
            ("unit", record.unit if record.installed else f"{record.unit} (not there)"),
            ("state", f"{record.state}: {record.status}" if record.status else record.state),
            ("process", UNKNOWN if record.pid is None else str(record.pid)),
            ("restarts", UNKNOWN if record.restarts is None else str(record.restarts)),
            ("at boot", said(record.enabled)),
            *([("lingers", said(record.lingering))] if record.lingering is not None else []),
        ]
    )
