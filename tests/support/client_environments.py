"""Environments of the clients under `tests/clients/`: one for each, pinned and hashed.

python -m tests.support.client_environments

makes those that are missing or made from another lock, in `.clients/` of the checkout. It needs the
package indexes; the tests themselves run later and without any network.
"""

import hashlib
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
_STAMP: Final = "made-from"
_LIMIT_S: Final = 900


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


def make_ready(lock: Path) -> None:
    """Make the environment of a lock, unless it is there already.

    Raises:
        SystemExit: A step failed; says which, and what to do.
    """
    is_npm = lock.name == "package-lock.json"
    folder = MADE / (lock.parent.name if is_npm else lock.stem)
    stamp = folder / _STAMP
    wanted = f"{sys.version}\n{hashlib.sha256(lock.read_bytes()).hexdigest()}\n"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    # ruff: ignore[print]  it takes a while, and a person waits
    print(f"fetching the client {folder.name}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    if is_npm:
        _fetch_with_npm(lock, folder)
    else:
        _fetch_with_pip(lock, folder)
    stamp.write_text(wanted, encoding="utf-8")


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
            f"The client {folder.name} cannot be installed: a package index is needed for it, and "
            f"the one of this machine gave no such packages. Connect to one and try again.\n"
            f"{done.stderr[-2000:]}"
        )
        raise SystemExit(message)


def main() -> None:
    """Make all that are missing."""
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
