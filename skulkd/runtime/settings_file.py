"""The settings file in the home: read whole, and changed a key at a time with its comments kept."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from protocol.admin_api import SettingValue
from protocol.errors import ConfigError
from skulkd.config import SETTINGS_FILE, SETTINGS_FILE_MAX_BYTES, read_document

_KEY: Final = re.compile(r"([A-Za-z_]\w*)[ \t]*:(?:[ \t]+(.*)|)$")
_COMMENT: Final = re.compile(r"[ \t]+#.*$")


def read_settings_file(home: Path) -> str | None:
    """Read the settings file of a home; None where there is none.

    Raises:
        ConfigError: `config.invalid`; it cannot be read, or is no settings file by its size.
    """
    path = home / SETTINGS_FILE
    try:
        with path.open("rb") as file:
            data = file.read(SETTINGS_FILE_MAX_BYTES + 1)
        if len(data) > SETTINGS_FILE_MAX_BYTES:
            raise too_long(path)
        return data.decode()
    except (FileNotFoundError, NotADirectoryError):
        return None  # a home that is no directory is refused as such when it is opened
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "config.invalid",
            f"{path} cannot be read: {error}",
            remediation="Make it a readable text file, or move it away to run with the defaults.",
        ) from error


def too_long(path: Path) -> ConfigError:
    """Give the error of a file that is larger than settings ever are."""
    return ConfigError(
        "config.invalid",
        f"{path} is longer than {SETTINGS_FILE_MAX_BYTES} bytes",
        remediation="A settings file has a few lines; move this one away.",
    )


def edited(text: str, changes: Mapping[str, SettingValue | None], path: Path) -> str:
    """Change keys of a settings file and leave every other line as it is.

    Args:
        text: The file.
        changes: New values by key; None takes a key out.
        path: Where it lies, for what is said of it.

    Raises:
        ConfigError: `config.invalid`; it is written in a way that cannot be changed line by line.
    """
    before = read_document(text, path) if text else {}
    lines = text.splitlines()
    for key, value in changes.items():
        lines = _replaced(lines, key, value)
    after = "".join(f"{line}\n" for line in lines)
    wanted = {**before, **{key: _plain(value) for key, value in changes.items()}}
    for key, value in changes.items():
        if value is None:
            del wanted[key]
    if not _says(after, wanted, path):
        raise ConfigError(
            "config.invalid",
            f"{path} cannot be changed without rewriting it whole",
            remediation="Write one `key: value` a line there, or change it by hand.",
        )
    if len(after.encode()) > SETTINGS_FILE_MAX_BYTES:
        raise too_long(path)
    return after


def _says(text: str, wanted: Mapping[str, object], path: Path) -> bool:
    try:
        return (read_document(text, path) if text else {}) == wanted
    except ConfigError:
        return False


def _plain(value: SettingValue | None) -> object:
    return list(value) if isinstance(value, tuple) else value


def _replaced(lines: list[str], key: str, value: SettingValue | None) -> list[str]:
    start = next((i for i, line in enumerate(lines) if _key_of(line) == key), None)
    if start is None:
        return lines if value is None else [*lines, _line(key, value, "")]
    end = start + 1
    for index in range(start + 1, len(lines)):
        line = lines[index]
        if line.strip() and not line.startswith((" ", "\t", "- ")):
            break
        if line.strip() and not line.lstrip().startswith("#"):
            end = index + 1
    new = [] if value is None else [_line(key, value, _comment_of(lines[start], end - start))]
    return [*lines[:start], *new, *lines[end:]]


def _key_of(line: str) -> str | None:
    match = _KEY.match(line)
    return match[1] if match else None


def _comment_of(line: str, n_lines: int) -> str:
    """Find what is written behind a value; inside quotes a `#` may be the value's own."""
    found = _COMMENT.search(line)
    return found[0] if found and n_lines == 1 and not re.search(r"[\"']", line) else ""


def _line(key: str, value: SettingValue, comment: str) -> str:
    # JSON is YAML that cannot be misread: a name such as `no` or `1e3` stays a text.
    return f"{key}: {json.dumps(value, ensure_ascii=False)}{comment}"
