"""What service managers are given to run the daemon by: systemd's units, launchd's property list.

Pure text. The daemon starts engines as its children, which want graphics cards, compile code while
they run, and may be killed for their memory without taking the daemon along; so no private devices,
no ban on writable code, `OOMPolicy=continue`.
"""

import plistlib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast
from xml.parsers.expat import ExpatError

UNIT: Final = "skulkd.service"
LABEL: Final = "org.skulk.skulkd"
STATES: Final = Path("/var/lib")
STATE_DIRECTORY: Final = "skulk"
"""Below it, where the service has a user of its own."""
STOP_WITHIN_S: Final = 15
"""The daemon promises ten."""
WATCHDOG_S: Final = 30
_MAX_FILES: Final = 65_535
_OWNER_ONLY: Final = 0o077


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """What the service is to run, and as whom."""

    program: Path
    """The daemon; absolute."""
    home: Path | None = None
    """The node's home, where it is not the usual one."""
    run_as: str | None = None
    """A user, for a service of the whole machine; None has systemd make up one for it."""
    groups: tuple[str, ...] = ()
    """That may use graphics cards, on this machine."""
    writable: tuple[Path, ...] = ()
    """Folders that it may write to, where `run_as` is set: all others are read-only."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The command line."""
        home = () if self.home is None else ("--home", str(self.home))
        return (str(self.program), *home)


_SECCOMP: Final = (
    "NoNewPrivileges=yes",
    "LockPersonality=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "RestrictNamespaces=yes",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallErrorNumber=EPERM",
)
"""What takes effect without a mount namespace, which a user's manager may not be allowed to make:
a unit that asks for one does not start there."""

_NAMESPACES: Final = (
    "CapabilityBoundingSet=",
    "AmbientCapabilities=",
    "ProtectSystem=strict",
    "ProtectHome=read-only",
    "PrivateTmp=yes",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "ProtectHostname=yes",
    "ProtectProc=invisible",
    "RemoveIPC=yes",
)
"""`ProtectClock` is not among them: it closes all devices but the clock's, graphics cards too."""


def user_unit(spec: ServiceSpec) -> str:
    """Write the unit of one user."""
    return _unit(spec, unit=(), service=_SECCOMP, wanted_by="default.target")


def system_unit(spec: ServiceSpec) -> str:
    """Write the unit of the whole machine."""
    groups = (f"SupplementaryGroups={' '.join(spec.groups)}",) if spec.groups else ()
    if spec.run_as is None:
        state = f"{STATES}/{STATE_DIRECTORY}"
        who: tuple[str, ...] = (
            "DynamicUser=yes",
            f"StateDirectory={STATE_DIRECTORY}",
            "StateDirectoryMode=0700",
            f"Environment=HOME={state} XDG_DATA_HOME={state}",
        )
    else:
        written = " ".join(quoted(str(path)) for path in spec.writable)
        who = (f"User={spec.run_as}", *((f"ReadWritePaths={written}",) if written else ()))
    return _unit(
        spec,
        unit=("After=network-online.target", "Wants=network-online.target"),
        service=(*who, *groups, *_SECCOMP, *_NAMESPACES),
        wanted_by="multi-user.target",
    )


def _unit(
    spec: ServiceSpec, *, unit: tuple[str, ...], service: tuple[str, ...], wanted_by: str
) -> str:
    lines = (
        "# Written by `skulk service install`; changes belong into a drop-in: `systemctl edit`.",
        "[Unit]",
        "Description=skulk, models on the machines of this network",
        *unit,
        "StartLimitIntervalSec=60",
        "StartLimitBurst=5",
        "",
        "[Service]",
        "Type=notify",
        "NotifyAccess=main",
        f"ExecStart={' '.join(map(quoted, spec.arguments))}",
        "Restart=on-failure",
        "RestartSec=2",
        "# A wrong flag; settings, home, journal or port that are unusable.",
        "RestartPreventExitStatus=2 78",
        "TimeoutStartSec=180",
        f"TimeoutStopSec={STOP_WITHIN_S}",
        f"WatchdogSec={WATCHDOG_S}",
        "KillMode=mixed",
        "OOMPolicy=continue",
        f"LimitNOFILE={_MAX_FILES}",
        "UMask=0077",
        *service,
        "",
        "[Install]",
        f"WantedBy={wanted_by}",
        "",
    )
    return "\n".join(lines)


def spec_in(content: bytes) -> ServiceSpec | None:
    """Read back what an installed service runs and as whom; None from what is not ours.

    Args:
        content: A unit or a property list.
    """
    if content.lstrip().startswith(b"<?xml"):
        return _spec_in_job(content)
    lines = (line.partition("=") for line in content.decode(errors="replace").splitlines())
    fields = {name: value for name, _, value in lines}
    try:
        words = shlex.split(fields.get("ExecStart", ""))
    except ValueError:
        return None
    arguments = [word.replace("%%", "%").replace("$$", "$") for word in words]
    return _spec_of(arguments, run_as=fields.get("User"))


def _spec_in_job(content: bytes) -> ServiceSpec | None:
    try:
        job: object = plistlib.loads(content)
    except (ValueError, plistlib.InvalidFileException, ExpatError):
        return None
    fields = cast("dict[str, object]", job) if isinstance(job, dict) else {}
    arguments, user = fields.get("ProgramArguments"), fields.get("UserName")
    if not isinstance(arguments, list):
        return None
    words = [str(word) for word in cast("list[object]", arguments)]
    return _spec_of(words, run_as=None if user is None else str(user))


def _spec_of(arguments: list[str], *, run_as: str | None) -> ServiceSpec | None:
    if not arguments:
        return None
    home = arguments[2:3] if arguments[1:2] == ["--home"] else []
    return ServiceSpec(
        program=Path(arguments[0]), home=Path(home[0]) if home else None, run_as=run_as
    )


def quoted(word: str) -> str:
    """Write a word as a unit file has it: with its own escapes, specifiers and variables."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if text != word or not text or any(char.isspace() for char in text) else text


def launchd_job(spec: ServiceSpec, *, log: Path) -> bytes:
    """Write launchd's job: an agent of one user, or a daemon of the machine with `run_as`.

    Args:
        spec: What is to run.
        log: Where its standard error goes; the daemon's own log lies in its home.
    """
    job: dict[str, object] = {
        "Label": LABEL,
        "ProgramArguments": list(spec.arguments),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 10,
        "ExitTimeOut": STOP_WITHIN_S,
        "ProcessType": "Interactive",  # others have their processors and disks throttled
        "SoftResourceLimits": {"NumberOfFiles": _MAX_FILES},
        "Umask": _OWNER_ONLY,
        "StandardErrorPath": str(log),
    }
    if spec.run_as is None:
        # Loaded into the domain that a login over SSH has too.
        job["LimitLoadToSessionType"] = "Background"
    else:
        job["UserName"] = spec.run_as
    return plistlib.dumps(job)
