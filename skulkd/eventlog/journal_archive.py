"""Takes one history's place by another, and keeps the old one aside.

A journal is its directory. The new history is written whole into a directory beside it; then the
old directory is renamed away and the new one takes its name. Between the two renames there is no
journal: a start that meets that finishes the second one. So a crash at any step leaves the old
history or the new one, never a mixture.
"""

import logging
import re
from pathlib import Path
from typing import Final

from skulkd.runtime.disk import Disk

N_ARCHIVES_KEPT: Final = 2

_log = logging.getLogger(__name__)


def archive_journal(disk: Disk, directory: Path) -> Path | None:
    """Put a journal aside, so that another history can begin; blocks.

    Returns:
        Where it lies now; None where there was none.

    Raises:
        OSError: The disk does not allow it; the journal is where it was.
    """
    remove_tree(disk, successor_of(directory))
    if directory.name not in _names(disk, directory.parent):
        return None
    return put_aside(disk, directory)


def put_aside(disk: Disk, directory: Path) -> Path:
    """Rename a journal's directory, and forget archives that are too many.

    Raises:
        OSError: It is where it was.
    """
    archives = _archives(disk, directory)
    number = archives[-1][0] + 1 if archives else 1
    aside = directory.with_name(f"{directory.name}.archive-{number:06d}")
    disk.rename(directory, aside)
    kept = N_ARCHIVES_KEPT - 1
    for _, path in archives[: max(0, len(archives) - kept)]:
        _forget(disk, path)
    return aside


def successor_of(directory: Path) -> Path:
    """Name the directory in which a new history is written before it takes the journal's place."""
    return directory.with_name(f"{directory.name}.next")


def finish_succession(disk: Disk, directory: Path) -> None:
    """At a start: let a new history that was whole take its place, or clear a half one away.

    Raises:
        OSError: The disk does not allow it.
    """
    names, successor = _names(disk, directory.parent), successor_of(directory)
    if successor.name not in names:
        return
    if directory.name in names:
        remove_tree(disk, successor)
        return
    disk.rename(successor, directory)
    _log.warning("%s took its place, which a crash had interrupted", directory)


def remove_tree(disk: Disk, directory: Path) -> None:
    """Remove a journal's directory with its files; one that is not there is no error.

    Raises:
        OSError: The disk does not allow it; part of it may be left.
    """
    if directory.name not in _names(disk, directory.parent):
        return
    for name in disk.list(directory):
        disk.remove(directory / name)
    disk.remove_directory(directory)


def _forget(disk: Disk, path: Path) -> None:
    try:
        remove_tree(disk, path)
    except OSError:
        _log.warning("cannot remove the old archive %s", path, exc_info=True)


def _archives(disk: Disk, directory: Path) -> list[tuple[int, Path]]:
    pattern = re.compile(rf"{re.escape(directory.name)}\.archive-(\d{{6,}})")
    matches = map(pattern.fullmatch, _names(disk, directory.parent))
    return sorted((int(match[1]), directory.with_name(match[0])) for match in matches if match)


def _names(disk: Disk, directory: Path) -> tuple[str, ...]:
    try:
        return disk.list(directory)
    except FileNotFoundError:
        return ()
