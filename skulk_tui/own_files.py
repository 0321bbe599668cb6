"""The operator's own files: where they lie, and how they are replaced whole or not at all."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from protocol.errors import ClientError

CONFIG_FILE: Final = "config.toml"
PRIVATE_DIRECTORY: Final = 0o700


def config_dir(environ: Mapping[str, str]) -> Path:
    """Give the directory of the operator's own files: XDG everywhere, as this is a terminal tool.

    SKULK_CONFIG_DIR names it whole.
    """
    if environ.get("SKULK_CONFIG_DIR"):
        return Path(environ["SKULK_CONFIG_DIR"]).expanduser()
    base = environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path("~/.config").expanduser()) / "skulk"


def state_dir(environ: Mapping[str, str]) -> Path:
    """Give the directory of what the program itself leaves behind: crashes, what was copied.

    SKULK_STATE_DIR names it whole.
    """
    if environ.get("SKULK_STATE_DIR"):
        return Path(environ["SKULK_STATE_DIR"]).expanduser()
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path("~/.local/state").expanduser()) / "skulk"


def may_exist(path: Path) -> bool:
    """Say whether a file is there; where that cannot be seen, yes: reading it says why."""
    try:
        return path.exists()
    except OSError:
        return True


_REMEDY: Final = "Look at the directory's owner and free space, or set SKULK_CONFIG_DIR."


def replace_file(path: Path, text: str, *, remedy: str = _REMEDY) -> None:
    """Write a file that only its owner can read; whoever reads meanwhile sees the old one whole.

    Args:
        path: Its directory is made where it is missing.
        text: All of it.
        remedy: What to do where it cannot be written.

    Raises:
        ClientError: `client.usage`: the directory or the disk does not allow it.
    """
    try:
        path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        _write_and_rename(path, text)
    except OSError as wrong:
        raise ClientError(
            "client.usage",
            f"{path} cannot be written: {wrong.strerror or wrong}",
            remediation=remedy,
        ) from wrong


def _write_and_rename(path: Path, text: str) -> None:
    import tempfile

    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    written = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)


def read_text(path: Path, *, max_bytes: int) -> str | None:
    """Read a file of bounded size; None where there is none.

    Raises:
        ClientError: `client.usage`: it cannot be read, is too large, or is no UTF-8.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(max_bytes + 1)
        if len(raw) > max_bytes:
            raise _unreadable(path, f"it has more than {max_bytes} bytes")
        return raw.decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as wrong:
        raise _unreadable(path, f"byte {wrong.start} is not UTF-8") from wrong
    except OSError as wrong:
        raise _unreadable(path, wrong.strerror or str(wrong)) from wrong


def _unreadable(path: Path, fault: str) -> ClientError:
    return ClientError(
        "client.usage",
        f"{path} cannot be read: {fault}",
        remediation="Mend the file, or move it away.",
    )
