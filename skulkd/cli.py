"""The `skulkd` command: read arguments, run one node until a signal ends it.

Imports little before the arguments are known to be good. Exit codes: 0 after a signal, 2 for usage,
78 (EX_CONFIG) when settings, home, journal or port are unusable, so that a service manager does not
retry what cannot succeed, 1 when the daemon died of its own fault, 143 when a second signal forced
it.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final, NoReturn

from protocol.errors import ConfigError, SkulkError
from skulkd.config import SETTINGS_FILE, SETTINGS_FILE_MAX_BYTES, default_home, load_settings

EX_CONFIG: Final = 78


def _parser() -> argparse.ArgumentParser:
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
    add("--offline", action="store_true", default=None, help="make no call that leaves the cluster")
    add("--log-level", choices=("debug", "info", "warning", "error"), help="default: info")
    add("--version", action="version", version=f"skulkd {version('skulkd')}")
    return parser


def _settings_text(home: Path) -> str | None:
    path = home / SETTINGS_FILE
    try:
        with path.open("rb") as file:
            data = file.read(SETTINGS_FILE_MAX_BYTES + 1)
        if len(data) > SETTINGS_FILE_MAX_BYTES:
            raise ConfigError(
                "config.invalid",
                f"{path} is longer than {SETTINGS_FILE_MAX_BYTES} bytes",
                remediation="A settings file has a few lines; move this one away.",
            )
        return data.decode()
    except (FileNotFoundError, NotADirectoryError):
        return None  # a home that is no directory is refused as such when it is opened
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "config.invalid",
            f"{path} cannot be read: {error}",
            remediation="Make it a readable text file, or move it away to run with the defaults.",
        ) from error


def _fail(error: SkulkError) -> NoReturn:
    print(f"error: {error.message} [{error.code}]", file=sys.stderr)  # ruff: ignore[print]  before there is a log
    if error.remediation:
        print(f"  remedy: {error.remediation}", file=sys.stderr)  # ruff: ignore[print]  see above
    cannot_succeed = isinstance(error, ConfigError) or error.code == "cluster.journal_corrupt"
    sys.exit(EX_CONFIG if cannot_succeed else 1)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the daemon; does not return."""
    flags = vars(_parser().parse_args(arguments))
    chosen_home: Path | None = flags.pop("home")
    try:
        home = chosen_home.absolute() if chosen_home else default_home(os.environ)
        loaded = load_settings(
            home=home, file_text=_settings_text(home), environment=os.environ, flags=flags
        )
        from skulkd.daemon import run_daemon

        sys.exit(run_daemon(loaded))
    except SkulkError as error:
        _fail(error)
