"""Takes the steps of service_plans.py, and asks a service manager how the service is.

The one place of the command that starts programs: systemctl, loginctl, journalctl and launchctl,
each with a bound on its time and on what is read of it.
"""

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, assert_never, final

from protocol.errors import ClientError
from skulk_tui.cli.operation_records import ServiceRecord
from skulk_tui.cli.service_files import LABEL, UNIT
from skulk_tui.cli.service_plans import (
    SYSTEMD,
    Account,
    MakeFolder,
    Manager,
    RemoveFile,
    RunCommand,
    Step,
    WriteFile,
    systemctl,
    unit_path,
)
from skulk_tui.clock import WaitingClock
from skulk_tui.formatting import one_line, shorten

COMMAND_WITHIN_S: Final = 200.0
"""More than the unit gives the daemon to start in."""
_TRIES: Final = 20
_RETRY_S: Final = 0.5
_SAID_MAX_CHARS: Final = 300
_UNIT_MODE: Final = 0o644
_SHOWN: Final = ("LoadState", "UnitFileState", "ActiveState", "StatusText", "MainPID", "NRestarts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """How a program ended, and what it wrote."""

    code: int
    out: str
    err: str


@final
class ServiceDriver:
    """Does what a plan says.

    Args:
        manager: Which service manager.
        account: Whose service.
        environ: Of the command; programs are found by its PATH.
        clock: To wait by.
    """

    def __init__(
        self,
        manager: Manager,
        account: Account,
        environ: Mapping[str, str],
        clock: WaitingClock,
    ) -> None:
        self._manager: Manager = manager
        self._account = account
        self._environ = _with_runtime_dir(environ, account.uid)
        self._clock = clock

    def is_present(self) -> bool:
        """Say whether that manager runs here."""
        if self._manager not in SYSTEMD:
            return self._found("launchctl") is not None
        if self._found("systemctl") is None:
            return False
        # The system's own also for a user: a user's may not have been started yet.
        answer = self._run(("systemctl", "is-system-running")).out.strip()
        return answer not in {"", "offline", "unknown"}

    def take(self, step: Step) -> str:
        """Take one step.

        Returns:
            What the operator has to know where it failed and the rest goes on; "" is done.

        Raises:
            ClientError: `client.service_failed`, with what the manager said.
        """
        try:
            return self._take(step)
        except (OSError, KeyError) as wrong:
            raise ClientError(
                "client.service_failed",
                f"the service could not be changed: {wrong}",
                remediation="Look at who owns the folder; a service of the whole machine takes "
                "root.",
            ) from wrong

    def _take(self, step: Step) -> str:
        match step:
            case MakeFolder():
                _make_folder(step)
            case WriteFile():
                _write(step)
            case RemoveFile():
                step.path.unlink(missing_ok=True)
            case RunCommand():
                return self._command(step)
            case _ as never:
                assert_never(never)
        return ""

    def record(self) -> ServiceRecord:
        """Ask how the service is."""
        path = unit_path(self._manager, self._account)
        if self._manager in SYSTEMD:
            return self._systemd_record(path)
        said = self._run(("launchctl", "list", LABEL))
        pid = _pid_in(said.out)
        state = "active" if pid else ("inactive" if said.code == 0 else "absent")
        return ServiceRecord(
            manager=self._manager,
            unit=str(path),
            installed=path.exists(),
            enabled=said.code == 0,
            state=state,
            status=None,
            pid=pid,
            restarts=None,
            lingering=None,
        )

    def _systemd_record(self, path: Path) -> ServiceRecord:
        said = self._run(systemctl(self._manager, "show", UNIT, f"--property={','.join(_SHOWN)}"))
        parts = (line.partition("=") for line in said.out.splitlines())
        shown = {name: value for name, _, value in parts}
        is_loaded = shown.get("LoadState") == "loaded"
        pid, restarts = shown.get("MainPID", ""), shown.get("NRestarts", "")
        return ServiceRecord(
            manager=self._manager,
            unit=str(path),
            installed=path.exists(),
            enabled=shown["UnitFileState"] == "enabled" if "UnitFileState" in shown else None,
            state=shown.get("ActiveState", "unknown") if is_loaded else "absent",
            status=shown.get("StatusText") or None,
            pid=int(pid) if pid.isdecimal() and pid != "0" else None,
            restarts=int(restarts) if restarts.isdecimal() else None,
            lingering=self._lingering(),
        )

    def _lingering(self) -> bool | None:
        if self._manager != "systemd-user":
            return None
        said = self._run(("loginctl", "show-user", self._account.name, "--property=Linger"))
        return said.out.strip() == "Linger=yes"

    def _command(self, step: RunCommand) -> str:
        said = self._run(step.arguments)
        for _ in range(_TRIES if step.is_repeated else 0):
            if said.code == 0:
                break
            self._clock.wait_s(_RETRY_S)
            said = self._run(step.arguments)
        if said.code == 0 or step.may_fail:
            return ""
        if step.warning:
            return f"{step.warning} ({_why(said)})"
        raise self._failed(step, said)

    def _failed(self, step: RunCommand, said: Said) -> ClientError:
        why = self._last_error() if UNIT in step.arguments else ""
        text = why or _why(said)
        user = " --user" if self._manager == "systemd-user" else ""
        remedy = (
            f"See `journalctl{user} -u {UNIT} -n 20`."
            if self._manager in SYSTEMD
            else "See `launchctl print`, and the log that the job names."
        )
        return ClientError(
            "client.service_failed",
            f"`{' '.join(step.arguments)}` failed: {text}",
            remediation=remedy,
        )

    def _last_error(self) -> str:
        """Find what the daemon itself gave as its reason: systemctl only says that there is one."""
        if self._manager not in SYSTEMD or self._found("journalctl") is None:
            return ""
        user = ("--user",) if self._manager == "systemd-user" else ()
        lines = self._run(("journalctl", *user, "-u", UNIT, "-n", "50", "-o", "cat")).out
        errors = [line for line in lines.splitlines() if line.startswith("error: ")]
        last = errors[-1].removeprefix("error: ") if errors else ""
        return shorten(one_line(last), _SAID_MAX_CHARS)

    def _found(self, program: str) -> str | None:
        return shutil.which(program, path=self._environ.get("PATH", os.defpath))

    def _run(self, arguments: tuple[str, ...]) -> Said:
        program = self._found(arguments[0])
        if program is None:
            return Said(code=127, out="", err=f"{arguments[0]} is not installed")
        try:
            ended = subprocess.run(
                (program, *arguments[1:]),
                env=dict(self._environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=COMMAND_WITHIN_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Said(code=124, out="", err=f"no answer within {COMMAND_WITHIN_S:g} s")
        return Said(
            code=ended.returncode,
            out=ended.stdout.decode(errors="replace"),
            err=ended.stderr.decode(errors="replace"),
        )


def _why(said: Said) -> str:
    text = said.err.strip() or said.out.strip() or f"exit status {said.code}"
    return shorten(one_line(text), _SAID_MAX_CHARS)


def _with_runtime_dir(environ: Mapping[str, str], uid: int) -> dict[str, str]:
    """Name the way to the user's manager, which `su` and a bare SSH command leave out."""
    given = dict(environ)
    if "XDG_RUNTIME_DIR" not in given:
        given["XDG_RUNTIME_DIR"] = f"/run/user/{uid}"
    return given


def _write(step: WriteFile) -> None:
    step.path.parent.mkdir(parents=True, exist_ok=True)
    written = step.path.with_name(f".{step.path.name}.new")
    written.write_bytes(step.content)
    written.chmod(_UNIT_MODE)
    written.replace(step.path)


def _make_folder(step: MakeFolder) -> None:
    """Make a folder and those above it that are missing, all for their owner."""
    owner = pwd.getpwnam(step.owner)
    missing = [step.path, *step.path.parents]
    for path in reversed([one for one in missing if not one.exists()]):
        path.mkdir(mode=0o700)
        os.chown(path, owner.pw_uid, owner.pw_gid)


def _pid_in(listing: str) -> int | None:
    """Read the process id out of what `launchctl list LABEL` prints."""
    for line in listing.splitlines():
        name, _, value = line.strip().rstrip(";").partition(" = ")
        if name == '"PID"' and value.isdecimal():
            return int(value)
    return None
