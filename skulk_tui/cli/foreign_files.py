"""Other programs' configuration files: changed whole or not at all, and brought back as they were.

What was written is noted by its digest: only a file that nobody has changed since is taken back,
and one that somebody has changed is kept in a further backup before it is written again.
"""

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, final

from pydantic import TypeAdapter, ValidationError

from protocol.errors import ClientError
from skulk_tui.own_files import read_text, replace_file, state_dir

MAX_BYTES: Final = 4 << 20
_NOTES_FILE: Final = "connections.json"
_BACKUP: Final = ".before-skulk"
_PRIVATE: Final = 0o600
_ANY_WRITE: Final = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_REMEDY: Final = "Look at the directory's owner and free space."


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What was done to one file."""

    sha256: str
    """Of what was written."""
    backup: str | None
    """What it was before; None: it was not there."""
    mode: int
    """Of the file before."""
    key_id: str | None = None
    """Of the API key that was made for it."""


@cache
def _adapter() -> TypeAdapter[dict[str, Note]]:
    return TypeAdapter[dict[str, Note]](dict[str, Note])


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFile:
    """One file, as it is now."""

    path: Path
    """Where it really lies: links are followed, and stay."""
    text: str | None
    """None: it is not there."""
    mode: int
    notes_path: Path
    notes: Mapping[str, Note] = field(default_factory=dict[str, Note])

    @property
    def note(self) -> Note | None:
        """What was last done to it, if anything was."""
        return self.notes.get(str(self.path))

    @property
    def is_as_written(self) -> bool:
        """Has nobody changed it since this program wrote it?"""
        return (
            self.note is not None and self.text is not None and _sha(self.text) == self.note.sha256
        )

    def write(self, text: str, *, is_private: bool, key_id: str | None) -> str | None:
        """Replace it, and give the path of what it was before, where it was.

        Args:
            text: The file from now on.
            is_private: Nobody but its owner may read it: it holds a key.
            key_id: Of a key that was made for it.

        Raises:
            ClientError: `client.usage`: it is read-only, or the disk or the folder refuses.
        """
        self._check_writable()
        backup, mode = self._keep()
        known = self.note.key_id if self.note is not None else None
        note = Note(sha256=_sha(text), backup=backup, mode=mode, key_id=key_id or known)
        # First the note: if what follows does not happen, the file differs from it and is kept.
        self._note(note)
        replace_file(self.path, text, remedy=_REMEDY)
        if not is_private and self.text is not None:
            self.path.chmod(self.mode)
        return backup

    def before(self) -> str | None:
        """Give what was there before it was written; None when nothing was.

        Raises:
            ClientError: `client.usage`: nothing was written, or the backup is gone.
        """
        note = self._noted()
        if note.backup is None:
            return None
        text = read_text(Path(note.backup), max_bytes=MAX_BYTES)
        if text is None:
            raise ClientError("client.usage", f"{note.backup} is gone: nothing was changed")
        return text

    def undo(self, text: str | None) -> None:
        """Put back what was there, and forget that it was ever written.

        Args:
            text: All of it; None takes the file away.

        Raises:
            ClientError: `client.usage`: nothing was written, or the file cannot be.
        """
        note = self._noted()
        self._check_writable()
        if text is None:
            self.path.unlink(missing_ok=True)
        else:
            replace_file(self.path, text, remedy=_REMEDY)
            self.path.chmod(note.mode)
        if note.backup is not None:
            Path(note.backup).unlink(missing_ok=True)
        self._note(None)

    def _noted(self) -> Note:
        if self.note is None:
            raise ClientError("client.usage", f"{self.path} was not written by this program")
        return self.note

    def _check_writable(self) -> None:
        if self.text is None:
            return
        # Root may write anything, but whoever made it read-only meant that.
        if not self.mode & _ANY_WRITE or not os.access(self.path, os.W_OK):
            raise ClientError(
                "client.usage",
                f"{self.path} is read-only, and is left as it is",
                remediation=f"Run `chmod u+w {self.path}`, or add by hand what is printed"
                " without --write.",
            )

    def _keep(self) -> tuple[str | None, int]:
        """Keep what is there, unless it is what was written before; give where, and its mode."""
        if self.note is not None and self.is_as_written:
            return self.note.backup, self.note.mode
        if self.text is None:
            return None, self.mode
        backup, number = self.path.with_name(f"{self.path.name}{_BACKUP}"), 1
        while backup.exists():
            number += 1
            backup = self.path.with_name(f"{self.path.name}{_BACKUP}-{number}")
        replace_file(backup, self.text, remedy=_REMEDY)
        return str(backup), self.mode

    def _note(self, note: Note | None) -> None:
        notes = {path: one for path, one in self.notes.items() if path != str(self.path)}
        if note is not None:
            notes[str(self.path)] = note
        text = _adapter().dump_json(notes).decode()
        replace_file(self.notes_path, text, remedy=f"{_REMEDY} SKULK_STATE_DIR names another.")


def look_at(path: Path, environ: Mapping[str, str]) -> ForeignFile:
    """Read a file that may not be there.

    Raises:
        ClientError: `client.usage`: it cannot be read, is too large, or is no UTF-8.
    """
    real = _real(path)
    text = read_text(real, max_bytes=MAX_BYTES)
    mode = _PRIVATE if text is None else stat.S_IMODE(real.stat().st_mode)
    notes_path = state_dir(environ) / _NOTES_FILE
    return ForeignFile(
        path=real, text=text, mode=mode, notes_path=notes_path, notes=_read_notes(notes_path)
    )


def _real(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as wrong:
        raise ClientError(
            "client.usage", f"{path} leads nowhere: {wrong}", remediation="Mend the link."
        ) from wrong


def _read_notes(path: Path) -> dict[str, Note]:
    text = read_text(path, max_bytes=MAX_BYTES)
    if text is None:
        return {}
    try:
        return _adapter().validate_json(text)
    except ValidationError as wrong:
        raise ClientError(
            "client.usage",
            f"{path} does not hold what was written before",
            remediation="Move it away; what was written then is not undone by this program.",
        ) from wrong


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
