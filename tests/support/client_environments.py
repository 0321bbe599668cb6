"""Environments of programs that are not ours: one for each, pinned and hashed.

python -m tests.support.client_environments

makes those of the clients under `tests/clients/` that are missing or made from another lock, in
`.clients/` of the checkout. It needs the package indexes; what is installed runs later and without
any network.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.source_tree import ROOT

LOCKS: Final = ROOT / "tests" / "clients" / "environments"
"""`NAME.txt` of pip, made from `NAME.in` by `make lock`; `NAME/package-lock.json` of npm."""
MADE: Final = ROOT / ".clients"
HAS_NODE: Final = shutil.which("node") is not None and shutil.which("npm") is not None
NOWHERE: Final = "http://127.0.0.1:9"
"""A proxy that nobody is: what would leave the machine fails at once, also without a namespace."""
_STAMP: Final = "made-from"
_LIMIT_S: Final = 900


class NotInstalledError(RuntimeError):
    """An environment could not be made; says which, and what to do."""


def closed_environment(home: Path) -> dict[str, str]:
    """Give variables for a program: a home of its own, no settings, and no way out."""
    home.mkdir(exist_ok=True)
    proxies = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    both = (*proxies, *(variable.lower() for variable in proxies))
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        **dict.fromkeys(both, NOWHERE),
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }


def client_python(name: str) -> Path:
    """Give the interpreter of a client's environment.

    Raises:
        AssertionError: It was not made.
    """
    return _made(name) / "bin" / "python"


def client_modules(name: str) -> Path:
    """Give the folder of packages of a client of Node's.

    Raises:
        AssertionError: It was not made.
    """
    return _made(name) / "node_modules"


def make_ready(lock: Path, made: Path = MADE) -> Path:
    """Make the environment of a lock, unless it is there already, and give its folder.

    Args:
        lock: Of pip, or of npm.
        made: Where environments lie.

    Raises:
        NotInstalledError: A step failed.
    """
    is_npm = lock.name == "package-lock.json"
    folder = made / (lock.parent.name if is_npm else lock.stem)
    stamp = folder / _STAMP
    wanted = f"{sys.version}\n{hashlib.sha256(lock.read_bytes()).hexdigest()}\n"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return folder
    # ruff: ignore[print]  it takes a while, and a person waits
    print(f"fetching {folder.name}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    if is_npm:
        _fetch_with_npm(lock, folder)
    else:
        _fetch_with_pip(lock, folder)
    stamp.write_text(wanted, encoding="utf-8")
    return folder


def _made(name: str) -> Path:
    folder = MADE / name
    assert (folder / _STAMP).exists(), f"there is no environment {name}: run `make test-clients`"
    return folder


def _fetch_with_pip(lock: Path, folder: Path) -> None:
    _run([sys.executable, "-m", "venv", str(folder)], folder)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    _run([*pip, "-qq", "--retries", "2", "--require-hashes", "-r", str(lock)], folder)


def _fetch_with_npm(lock: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(lock.parent / name, folder)
    npm = ["npm", "--prefix", str(folder), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    _run([*npm, "--fetch-retries", "2"], folder)


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode != 0:
        message = (
            f"{folder.name} cannot be installed: a package index is needed for it, and the one of "
            f"this machine gave no such packages. Connect to one and try again.\n"
            f"{done.stderr[-2000:]}"
        )
        raise NotInstalledError(message)


def main() -> None:
    """Make all that are missing."""
    try:
        _make_clients()
    except NotInstalledError as error:
        raise SystemExit(str(error)) from None


def _make_clients() -> None:
    for lock in sorted(LOCKS.glob("*.txt")):
        make_ready(lock)
    if not HAS_NODE:
        # ruff: ignore[print]  it says what is not tested
        print("no node and npm here: the clients that need them are left out", flush=True)
        return
    for lock in sorted(LOCKS.glob("*/package-lock.json")):
        make_ready(lock)


if __name__ == "__main__":
    main()
