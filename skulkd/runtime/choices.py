"""What an operator chose at run time and wants kept: one small file in the home.

Settings are written by people and only read here; a choice is made through the API and must not
rewrite a person's file.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, final

from pydantic import Field, ValidationError

from protocol.base import FrozenModel
from protocol.errors import ConfigError
from protocol.ids import ClusterIdField, ModelIdField, NodeIdField
from protocol.nodes import AddressField, PublicKeyField
from skulkd.runtime.disk import Disk
from skulkd.runtime.tasks import run_blocking

MAX_SEEDS: Final = 256
MAX_PAUSED: Final = 256
_MAX_FILE_BYTES: Final = 256 << 10


class Seed(FrozenModel):
    """A member of the cluster that this node joins: whom to dial before the state is here."""

    node_id: NodeIdField
    public_key: PublicKeyField
    addresses: Annotated[tuple[AddressField, ...], Field(max_length=16)] = ()


class PausedTransfer(FrozenModel):
    """A transfer that an operator has paused on this node, until it is resumed or cancelled."""

    model_id: ModelIdField
    by: Annotated[str, Field(max_length=200)]
    """Who did it, for people."""
    at_ms: Annotated[int, Field(ge=0)]
    """Wall time."""
    done_bytes: Annotated[int, Field(ge=0)] = 0
    """How far it was, for what is shown until it goes on."""
    total_bytes: Annotated[int, Field(ge=0)] | None = None
    source: Annotated[str, Field(max_length=500)] = ""


class Choices(FrozenModel):
    """The choices; all optional, so that an older file still reads."""

    open_host: str | None = None
    """Listen here beside loopback, as `skulk api open` asked."""
    cluster_open: bool = False
    """Whether the cluster's ports are bound: since an invitation was made, or a cluster joined."""
    base_port: Annotated[int, Field(ge=0, le=65533)] = 0
    """The base that was picked, where the settings ask for one of our choice; 0 before."""
    joining: ClusterIdField | None = None
    """The cluster that has admitted this node; the next start makes it the node's own."""
    seeds: Annotated[tuple[Seed, ...], Field(max_length=MAX_SEEDS)] = ()
    """Its members, as they were when it admitted this node."""
    paused: Annotated[tuple[PausedTransfer, ...], Field(max_length=MAX_PAUSED)] = ()
    """One a model."""


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
                remediation=(
                    "Remove the file; then repeat `skulk api open` and `skulk cluster invite` if "
                    "they were wanted."
                ),
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
                f"the choice cannot be kept in {self._path}: {error}",
                remediation="Make room in the home, then repeat the command.",
                details={"file": str(self._path)},
            ) from error


@final
class KeptChoices:
    """The choices in force, changed one at a time.

    Args:
        file: Where they are kept.
        choices: As read from it.
    """

    def __init__(self, file: ChoicesFile, choices: Choices) -> None:
        self._file = file
        self._choices = choices
        self._changing = asyncio.Lock()

    @property
    def now(self) -> Choices:
        """What was chosen last."""
        return self._choices

    async def change(self, change: Callable[[Choices], Choices]) -> None:
        """Replace the choices, durably; nothing is written when nothing changes.

        Raises:
            ConfigError: `config.home_unusable`; the earlier choices stand.
        """
        async with self._changing:
            changed = change(self._choices)
            if changed != self._choices:
                await run_blocking(self._file.write, changed)
                self._choices = changed
