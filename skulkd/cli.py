"""The `skulkd` command: read arguments, run one node until a signal ends it.

Imports little before the arguments are known to be good. Exit codes: 0 after a signal, 2 for usage,
78 (EX_CONFIG) when settings, home, journal or port are unusable, so that a service manager does not
retry what cannot succeed, 1 when the daemon died of its own fault, 143 when a second signal forced
it.
"""

import argparse
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NoReturn

from protocol.errors import ConfigError, SkulkError
from skulkd.config import (
    LoadedSettings,
    default_home,
    load_settings,
)
from skulkd.runtime.settings_file import read_settings_file

EX_CONFIG: Final = 78
JOIN_FILE_MAX_BYTES: Final = 4096


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="skulkd",
        description="Serve models on this machine, alone or with the others of its cluster.",
        epilog="Settings come from skulk.yaml in the home, SKULK_* variables and these flags; "
        "the later one wins.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--home", type=Path, metavar="DIR", help="state of this node (default: XDG data, skulk)")
    add("--models-dir", metavar="DIR", help="model files (default: XDG data, skulk-models)")
    add("--api", metavar="[HOST:]PORT", help="where HTTP listens (default: loopback, 52415)")
    add("--tls-cert", metavar="FILE", help="serve TLS beyond loopback with this certificate (PEM)")
    add("--tls-key", metavar="FILE", help="the key of that certificate")
    add("--name", help="what people call this node (default: the host name)")
    add("--no-worker", dest="worker", action="store_false", default=None, help="run no models here")
    add("--no-api", dest="serve_api", action="store_false", default=None, help="serve no HTTP")
    add(
        "--no-downloads",
        dest="downloads",
        action="store_false",
        default=None,
        help="fetch no model files",
    )
    add(
        "--no-mdns",
        dest="mdns",
        action="store_false",
        default=None,
        help="neither announce this node nor look for others",
    )
    add("--offline", action="store_true", default=None, help="make no call that leaves the cluster")
    _add_cluster_flags(parser)
    add("--log-level", choices=("debug", "info", "warning", "error"), help="default: info")
    add("--version", action="version", version=f"skulkd {version('skulkd')}")
    return parser


def _add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("cluster").add_argument
    add(
        "--join-file",
        metavar="FILE",
        help="join by the invitation in FILE, `-` for standard input, unless a member already",
    )
    add(
        "--join",
        metavar="TOKEN",
        help="the same; every user of this machine can read it there, so prefer --join-file",
    )
    add(
        "--discard",
        action="store_true",
        help="let joining give up what this node has decided: instances stop, the journal is kept",
    )
    add(
        "--peer", dest="peers", action="append", metavar="[KEY@]HOST:PORT", help="look for it there"
    )
    add("--bind", action="append", metavar="NAME", help="interface or address to listen on")
    add("--advertise", action="append", metavar="HOST[:BASE]", help="what other nodes shall dial")
    add(
        "--cluster",
        dest="cluster_address",
        metavar="[HOST:]BASE",
        help="first of the three cluster ports (default: 12416; 0 picks once)",
    )
    add("--priority", metavar="0..100", help="the highest is elected first (default: 50)")


_ON_THE_COMMAND_LINE: Final = (
    "the invitation of --join stands in the list of processes, where every user of this machine "
    "can read it, and in the shell's history; use --join-file"
)


def _with_invitation(loaded: LoadedSettings, *, token: str | None, discard: bool) -> LoadedSettings:
    """Read the invitation that this start was given, if any."""
    path = loaded.settings.join_file
    if token is not None:
        warning = _ON_THE_COMMAND_LINE
    elif path is not None:
        token, warning = read_join_file(path, is_first_start=not is_used(loaded.home))
    else:
        warning = ""
    warnings = (*loaded.warnings, warning) if warning else loaded.warnings
    return replace(loaded, warnings=warnings, join_token=token, discard=discard)


def is_used(home: Path) -> bool:
    """Say whether a node has lived in a home before."""
    return (home / "identity.json").exists()


def read_join_file(path: str, *, is_first_start: bool) -> tuple[str | None, str]:
    """Read an invitation from a file, `-` for standard input; and what is to be warned about.

    A node that has joined needs it no more: then a file that is gone is only warned about.

    Raises:
        ConfigError: `config.invalid`; it cannot be read, or does not hold one word.
    """
    try:
        data, warning = _bytes_of(path)
        words = data.decode("ascii").split()
    except FileNotFoundError as error:
        if not is_first_start:
            return None, f"--join-file {path} is not there; this node joins nobody"
        raise _bad_join_file(path, "there is no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise _bad_join_file(path, f"it cannot be read: {error}") from error
    if len(data) > JOIN_FILE_MAX_BYTES or len(words) != 1:
        raise _bad_join_file(path, "it does not hold one word and nothing else")
    return words[0], warning


def _bytes_of(path: str) -> tuple[bytes, str]:
    if path == "-":
        return sys.stdin.buffer.read(JOIN_FILE_MAX_BYTES + 1), ""
    with Path(path).open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        is_shared = bool(mode & (stat.S_IRWXG | stat.S_IRWXO))
        warning = f"others can read the invitation in {path}: chmod 600 {path}" if is_shared else ""
        return file.read(JOIN_FILE_MAX_BYTES + 1), warning


def _bad_join_file(path: str, reason: str) -> ConfigError:
    return ConfigError(
        "config.invalid",
        f"--join-file {path} holds no invitation: {reason}",
        remediation="Write there what `skulk cluster invite` prints on a member.",
        details={"key": "join_file"},
    )


def _fail(error: SkulkError) -> NoReturn:
    print(f"error: {error.message} [{error.code}]", file=sys.stderr)  # ruff: ignore[print]  before there is a log
    if error.remediation:
        print(f"  remedy: {error.remediation}", file=sys.stderr)  # ruff: ignore[print]  see above
    cannot_succeed = isinstance(error, ConfigError) or error.code == "cluster.journal_corrupt"
    sys.exit(EX_CONFIG if cannot_succeed else 1)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the daemon; does not return."""
    flags = vars(make_parser().parse_args(arguments))
    try:
        loaded = load(flags, os.environ)
        from skulkd.daemon import run_daemon

        sys.exit(run_daemon(loaded))
    except SkulkError as error:
        _fail(error)


def load(flags: dict[str, Any], environment: Mapping[str, str]) -> LoadedSettings:
    """Read the settings, and the invitation that this start was given.

    Args:
        flags: As the parser gives them; those that are no settings are taken out.
        environment: The process's.

    Raises:
        ConfigError: `config.unknown_key`, `config.invalid`.
    """
    chosen_home: Path | None = flags.pop("home")
    token: str | None = flags.pop("join")
    discard: bool = flags.pop("discard")
    home = chosen_home.absolute() if chosen_home else default_home(environment)
    from skulkd.api.certificate import check_certificate
    from skulkd.cluster.settings_check import check_addresses

    loaded = load_settings(
        home=home, file_text=read_settings_file(home), environment=environment, flags=flags
    )
    check_addresses(loaded.settings)
    check_certificate(loaded.settings)
    return _with_invitation(loaded, token=token, discard=discard)
