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
"""`NAME.txt` of pip, made from `NAME.in` by `make lock`."""
MADE: Final = ROOT / ".clients"
_STAMP: Final = "made-from"
_LIMIT_S: Final = 900


def client_python(name: str) -> Path:
    """Give the interpreter of a client's environment.

    Raises:
        AssertionError: It was not made.
    """
    python = MADE / name / "bin" / "python"
    assert python.exists(), f"there is no environment {name}: run `make test-clients`"
    return python


def make_ready(lock: Path) -> None:
    """Make the environment of a lock, unless it is there already.

    Raises:
        SystemExit: A step failed; says which, and what to do.
    """
    folder = MADE / lock.stem
    stamp = folder / _STAMP
    wanted = _stamp_of(lock)
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    # ruff: ignore[print]  it takes a while, and a person waits
    print(f"fetching the client {lock.stem}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)], lock)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--retries", "2"]
    _run([*pip, "--require-hashes", "-r", str(lock)], lock)
    stamp.write_text(wanted, encoding="utf-8")


def _stamp_of(lock: Path) -> str:
    return f"{sys.version}\n{hashlib.sha256(lock.read_bytes()).hexdigest()}\n"


def _run(command: list[str], lock: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode != 0:
        message = (
            f"The client {lock.stem} cannot be installed, as a package index is needed for it and "
            f"this one gave no such packages. Connect to one and try again.\n{done.stderr[-2000:]}"
        )
        raise SystemExit(message)


def main() -> None:
    """Make all that are missing."""
    for lock in sorted(LOCKS.glob("*.txt")):
        make_ready(lock)


if __name__ == "__main__":
    main()
