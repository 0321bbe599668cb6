"""Where model files lie on disk, and how they are opened.

    <models_dir>/
      artifacts/<key>/manifest.json, card.toml, files/...   complete, under its final name
      staging/<key>/...                                     a transfer in progress, or a rest of one
      locks/<key>                                           held while a process works on a key
      cards/<digest of the model id>.toml                   the operator's own cards
      digests/<key>.json                                    of files that are used where they lie

Every name below `models_dir` is a digest, a fixed word, or a member path that a card's grammar
already refused dots and slashes in front of. Nothing is reached through a symbolic link: each
component is opened relative to its parent with no-follow, so that a planted link is an error and
never a way out.
"""

import errno
import os
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, final

from protocol.errors import StoreError
from protocol.ids import DIGEST_PATTERN, Digest

ARTIFACTS: Final = "artifacts"
STAGING: Final = "staging"
LOCKS: Final = "locks"
CARDS: Final = "cards"
DIGESTS: Final = "digests"
FILES: Final = "files"
MANIFEST: Final = "manifest.json"
CARD: Final = "card.toml"

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KEY: Final = re.compile(DIGEST_PATTERN)
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def disk_error(error: OSError, doing: str) -> StoreError:
    """Name what the disk refused.

    Returns:
        `store.no_space` for a full disk or quota, `store.disk_failed` for anything else.
    """
    if error.errno in _NO_SPACE:
        return StoreError(
            "store.no_space",
            f"the disk filled up while {doing} ({error.strerror})",
            remediation="Free space on the models volume (`skulk models rm`), then pull again: "
            "what was fetched is kept.",
            details={"errno": error.errno},
        )
    return StoreError(
        "store.disk_failed",
        f"{doing} failed: {error.strerror or error} (errno {error.errno})",
        remediation="Check the models volume: mounted, writable by this user, no links inside it.",
        details={"errno": error.errno},
    )


def open_beneath(root: int, relative: str, flags: int, mode: int = 0o600) -> int:
    """Open a file below a directory descriptor, following no link in any component.

    Args:
        root: Descriptor of a directory; not closed.
        relative: Components separated by `/`; no empty one, no `.` and no `..`.
        flags: As for `os.open`; no-follow and close-on-exec are added.
        mode: Permissions of a file that is created.

    Raises:
        OSError: `ELOOP` or `ENOTDIR` where a component is a link.
        ValueError: On a component that could leave the root (a bug of the caller).
    """
    *parents, name = _components(relative)
    with _descend(root, parents) as directory:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=directory)


def create_beneath(root: int, relative: str) -> int:
    """Create a file below a directory descriptor for writing, in place of whatever has its name.

    Never writes into what is there: it may be a second name of somebody's file.

    Raises:
        OSError: As `open_beneath`.
    """
    *parents, name = _components(relative)
    with _descend(root, parents) as directory:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=directory)


def make_directories(root: int, parents: list[str]) -> None:
    """Make private directories below a descriptor; those that exist are kept."""
    current = os.dup(root)
    try:
        for name in parents:
            _components(name)
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=current)
            following = os.open(name, _DIRECTORY, dir_fd=current)
            os.close(current)
            current = following
    finally:
        os.close(current)


def stat_beneath(root: int, relative: str) -> os.stat_result:
    """Look at a file below a directory descriptor, following no link in any component.

    Raises:
        OSError: As `open_beneath`.
    """
    *parents, name = _components(relative)
    with _descend(root, parents) as directory:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)


def is_own_file(found: os.stat_result) -> bool:
    """Say whether a file may be written: regular, and under no second name."""
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def sync_directory(directory: int) -> None:
    """Make the names in a directory durable."""
    os.fsync(directory)


def names_in(directory: int) -> list[str]:
    """List the names in an open directory, sorted."""
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries)


def remove_tree(root: int, name: str) -> None:
    """Delete a directory or file below a descriptor; links are deleted, never followed.

    An absent name is not an error.
    """
    _components(name)
    try:
        found = os.stat(name, dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(name, dir_fd=root)
        return
    with directory_beneath(root, [name]) as directory:
        for entry in names_in(directory):
            remove_tree(directory, entry)
    os.rmdir(name, dir_fd=root)


@contextmanager
def directory_beneath(root: int, parents: list[str]) -> Generator[int]:
    """Open a directory below a descriptor, following no link; closed on leaving."""
    for name in parents:
        _components(name)
    with _descend(root, parents) as directory:
        yield directory


@final
class StoreLayout:
    """The directories of one models volume.

    Args:
        models_dir: Made (mode 0700) when missing; may itself be reached through a link, since
            an operator who moves models to another disk leaves one behind.
    """

    def __init__(self, models_dir: Path) -> None:
        self.models_dir = models_dir

    def prepare(self) -> None:
        """Make the directories that are missing.

        Raises:
            StoreError: `store.disk_failed`, `store.no_space`.
        """
        try:
            self.models_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.opened() as root:
                for name in (ARTIFACTS, STAGING, LOCKS, CARDS, DIGESTS):
                    make_directories(root, [name])
        except OSError as error:
            raise disk_error(error, f"preparing {self.models_dir}") from error

    @contextmanager
    def opened(self, *parents: str) -> Generator[int]:
        """Open a directory of the volume for relative work.

        Raises:
            OSError: When it is missing, or a component is a link.
        """
        root = os.open(self.models_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with directory_beneath(root, list(parents)) as directory:
                yield directory
        finally:
            os.close(root)

    def artifact_path(self, key: Digest) -> Path:
        """Where a complete artifact lies."""
        return self.models_dir / ARTIFACTS / key

    def file_path(self, key: Digest, relative: str) -> Path:
        """Where a file of a complete artifact lies: what an engine is given."""
        return self.artifact_path(key) / FILES / relative

    def staging_path(self, key: Digest) -> Path:
        """Where a transfer puts its bytes until they are verified."""
        return self.models_dir / STAGING / key

    def cards_path(self) -> Path:
        """Where the operator's own cards lie."""
        return self.models_dir / CARDS

    def artifact_keys(self) -> list[Digest]:
        """List the keys that have a directory under `artifacts`, complete or not."""
        return self._keys(ARTIFACTS)

    def staging_keys(self) -> list[Digest]:
        """List the keys that a transfer left something for."""
        return self._keys(STAGING)

    def _keys(self, room: str) -> list[Digest]:
        try:
            with self.opened(room) as directory:
                names = names_in(directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise disk_error(error, f"listing {room}") from error
        return [Digest(name) for name in names if is_key(name)]


def is_key(name: str) -> bool:
    """Say whether a name has the form of an artifact's key."""
    return _KEY.fullmatch(name) is not None


def _components(relative: str) -> list[str]:
    parts = relative.split("/")
    if any(part in {"", ".", ".."} or "\0" in part for part in parts):
        msg = f"{relative!r} is not a path below the store"
        raise ValueError(msg)
    return parts


@contextmanager
def _descend(root: int, parents: list[str]) -> Generator[int]:
    current = os.dup(root)
    try:
        for name in parents:
            following = os.open(name, _DIRECTORY, dir_fd=current)
            os.close(current)
            current = following
        yield current
    finally:
        os.close(current)
