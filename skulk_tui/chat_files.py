"""Conversations and drafts on the operator's own disk: private, bounded, replaced whole."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from protocol.errors import ClientError
from skulk_tui.chat_claims import ChatClaims
from skulk_tui.chat_conversation import Conversation
from skulk_tui.own_files import read_text, replace_file

MAX_KEPT: Final = 200
"""Conversations, and drafts; the one changed least recently goes first."""
MAX_BYTES: Final = 16 << 20
"""Of one file that is read."""
_LISTED: Final = 40
_FOLDER: Final = "chats"
_EXPORTS: Final = "exports"
_MODE: Final = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptChat:
    """A conversation that can be opened."""

    id: str
    title: str
    changed_ms: int


@final
class ChatFiles:
    """The files of one operator; blocking.

    Args:
        state_dir: Where the program leaves things behind; None keeps nothing.
    """

    def __init__(self, state_dir: Path | None) -> None:
        self._folder = None if state_dir is None else state_dir / _FOLDER
        self.claims = ChatClaims(self._folder)

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self._folder is not None

    def save(self, conversation_id: str, text: str) -> None:
        """Keep a conversation, and let go of the oldest beyond what is kept.

        Raises:
            ClientError: `client.usage`: the directory or the disk does not allow it.
        """
        if self._folder is not None:
            replace_file(self._folder / f"{conversation_id}.json", text)
            for path in self._newest_first()[MAX_KEPT:]:
                _forget(path)
                _forget(path.with_suffix(".draft"))

    def load(self, conversation_id: str) -> Conversation:
        """Read a conversation.

        Raises:
            ClientError: `client.usage` or `client.bad_answer`: it cannot be read.
        """
        path = None if self._folder is None else self._folder / f"{conversation_id}.json"
        text = None if path is None else read_text(path, max_bytes=MAX_BYTES)
        if text is None:
            raise ClientError(
                "client.usage",
                "the conversation is no longer kept",
                remediation="`:open` lists those that are.",
            )
        return Conversation.restored(text)

    def save_draft(self, conversation_id: str, text: str) -> None:
        """Keep what is being written; an empty draft is forgotten.

        Raises:
            ClientError: `client.usage`.
        """
        if self._folder is None:
            return
        path = self._folder / f"{conversation_id}.draft"
        if text:
            replace_file(path, text)
            for old in self._newest_first("*.draft")[MAX_KEPT:]:
                _forget(old)
        else:
            _forget(path)

    def load_draft(self, conversation_id: str) -> str:
        """Give what was being written; nothing where there is none.

        Raises:
            ClientError: `client.usage`.
        """
        if self._folder is None:
            return ""
        return read_text(self._folder / f"{conversation_id}.draft", max_bytes=MAX_BYTES) or ""

    def latest_id(self) -> str | None:
        """Give the conversation that was changed last, by itself or by its draft."""
        if self._folder is None:
            return None
        found = [*self._folder.glob("*.draft"), *self._newest_first()[:1]]
        return max(found, key=_changed).stem if found else None

    def recent(self) -> list[KeptChat]:
        """List the conversations changed last, the latest first; unreadable files are left out."""
        found: list[KeptChat] = []
        for path in self._newest_first()[:_LISTED]:
            with contextlib.suppress(ClientError):
                kept = self.load(path.stem)
                found.append(
                    KeptChat(id=kept.id, title=kept.shown_title, changed_ms=kept.changed_ms)
                )
        return found

    def export(self, name: str, text: str) -> Path:
        """Write a file for other programs; gives where it lies.

        Raises:
            ClientError: `client.usage`: nothing is kept here, or the disk does not allow it.
        """
        if self._folder is None:
            raise ClientError(
                "client.usage",
                "this run keeps no files",
                remediation="Set SKULK_STATE_DIR to a directory that can be written.",
            )
        path = self._folder / _EXPORTS / name
        replace_file(path, text)
        return path

    def _newest_first(self, pattern: str = "*.json") -> list[Path]:
        if self._folder is None:
            return []
        return sorted(self._folder.glob(pattern), key=_changed, reverse=True)


def _forget(path: Path) -> None:
    # Another program of the same operator may have been first, or nothing can be kept at all: that
    # is told when there is something to keep.
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0  # it has just gone


def file_name(title: str, suffix: str) -> str:
    """Make a file's name of a conversation's title."""
    kept = "".join(letter if letter.isalnum() else "-" for letter in title.lower())
    return f"{'-'.join(filter(None, kept.split('-')))[:60] or 'chat'}.{suffix}"
