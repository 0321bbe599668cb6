"""What an operator chose at run time and wants kept: one small file in the home.

Settings are written by people and only read here; a choice is made through the API and must not
rewrite a person's file.
"""

from pathlib import Path
from typing import Final, final

from pydantic import ValidationError

from protocol.base import FrozenModel
from protocol.errors import ConfigError
from skulkd.runtime.disk import Disk

_MAX_FILE_BYTES: Final = 4096


class Choices(FrozenModel):
    """The choices; all optional, so that an older file still reads."""

    open_host: str | None = None
    """Listen here beside loopback, as `skulk api open` asked."""


@final
class ChoicesFile:
    """Reads and replaces the file. Both block.

    Args:
        disk: Where it lies.
        path: Its name; the directory exists.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def read(self) -> Choices:
        """Give the choices; none were made where there is no file.

        Raises:
            ConfigError: `config.invalid`; the file is damaged.
        """
        try:
            return Choices.model_validate_json(
                self._disk.read(self._path, max_bytes=_MAX_FILE_BYTES)
            )
        except FileNotFoundError:
            return Choices()
        except (OSError, ValidationError) as error:
            raise ConfigError(
                "config.invalid",
                f"{self._path} cannot be read: {error}",
                remediation="Remove the file; then repeat `skulk api open` if it was wanted.",
                details={"file": str(self._path)},
            ) from error

    def write(self, choices: Choices) -> None:
        """Replace the file durably.

        Raises:
            ConfigError: `config.home_unusable`; the earlier choices stand.
        """
        try:
            self._disk.replace(self._path, choices.model_dump_json(indent=2).encode() + b"\n")
        except OSError as error:
            raise ConfigError(
                "config.home_unusable",
                f"the choice is in force but cannot be kept in {self._path}: {error}",
                remediation="Make room in the home, then repeat the command.",
                details={"file": str(self._path)},
            ) from error
